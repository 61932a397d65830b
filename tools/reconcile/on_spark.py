"""Spark as the engine behind `--engine spark`: a function over a list, one item a task.

Plain RDDs of Python objects, one item a task. There are no rows to give a schema to: what goes in is a list of paths
and partitions, what comes out is a list of JSON lines and counts. A Python data source or `mapInArrow` would read the
same files in the same function and put a query planner, Arrow and a schema around them; a data source needs 10 s more
for its first query here. Neither pandas nor pyarrow is needed, and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from tools.reconcile.fetched import SEPARATOR, fetch
from tools.reconcile.spark_errors import spark_errors
from tools.reconcile.survey import FILE, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = TypeVar("A")
B = TypeVar("B")


class OnSpark:
    """The engine that runs a function over a list as tasks of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def __call__(self, function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
        """One task an item; results in the order of the list. Raises JobFailed.

        Results wait on the disks of the executors, and come one by one: together they may be more than a driver holds.
        """
        if not items:
            return
        from pyspark import StorageLevel  # noqa: PLC0415  # there where a session is

        found = self._context.parallelize(items, len(items)).map(function).persist(StorageLevel.DISK_ONLY)
        try:
            with spark_errors():
                found._jrdd.count()  # all tasks at once; `count` itself would start a second Python for each of them
                yield from found.toLocalIterator()
        finally:
            found.unpersist()

    def path_of(self, given: str) -> str:
        """A path that every executor sees, or a URL whose directory each of them will have fetched."""
        if SEPARATOR in given and not given.startswith(FILE):
            return fetch(self._context, given)
        return local_path(given)

    @property
    def processors(self) -> int:
        """How many tasks run at a time."""
        return self._context.defaultParallelism
