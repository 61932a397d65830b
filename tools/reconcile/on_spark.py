"""Spark as the engine behind `--engine spark`: a function over a list, one item a task.

Plain RDDs of Python objects, one item a task. There are no rows to give a schema to: what goes in is a list of paths
and partitions, what comes out is a list of JSON lines and counts. A Python data source or `mapInArrow` would read the
same files in the same function and put a query planner, Arrow and a schema around them; a data source needs 10 s more
for its first query here. Neither pandas nor pyarrow is needed, and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from engine.errors import Error
from tools.reconcile.children import WorkerDied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = TypeVar("A")
B = TypeVar("B")


_CRASHED = "Python worker exited unexpectedly"


class JobFailed(Error):
    """Spark could not run the tasks; the message has what it said last."""


class OnSpark:
    """The engine that runs a function over a list as tasks of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """One task an item; results in the order of the list. Raises JobFailed."""
        if not items:
            return []
        with spark_errors():
            return self._context.parallelize(items, len(items)).map(function).collect()

    @property
    def processors(self) -> int:
        """How many tasks run at a time."""
        return self._context.defaultParallelism


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark says when tasks fail, as ours. Raises JobFailed, WorkerDied."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # there where Spark is
    from pyspark.errors import PySparkException  # noqa: PLC0415  # as above

    try:
        yield
    except (Py4JError, PySparkException) as error:
        if _CRASHED in str(error):  # Spark has no other name for it
            raise WorkerDied(f"Spark gave up: {_last_words(str(error))}") from error
        raise JobFailed(f"Spark gave up: {_last_words(str(error))}") from error


def _last_words(told: str) -> str:
    """The line of a Java or Python stack trace that says what happened."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "...", "File ", "Traceback", "Caused by: java.lang"))]
    return next((line for line in said if "Error" in line or "Exception" in line), said[0] if said else "no reason given")
