"""What Spark says when it cannot do what was asked, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from engine.errors import Error, UsageError
from tools.reconcile.children import WorkerDied

_TRACEBACK = "Traceback (most recent call last):"
_CRASHED = "Python worker exited unexpectedly"
_REFUSED = f"{UsageError.__module__}.{UsageError.__name__}: "
"""What a task of ours was asked, and cannot be."""


class JobFailed(Error):
    """Spark could not run the tasks; the message has what it said last."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark says when tasks fail, as ours. Raises JobFailed, WorkerDied; UsageError where the output is there, or a
    task was asked what it cannot be."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415  # there where Spark is
    from pyspark.errors import PySparkException  # noqa: PLC0415  # as above

    try:
        yield
    except (Py4JError, PySparkException) as error:
        if _CRASHED in str(error):  # Spark has no other name for it
            line = next(line for line in str(error).splitlines() if _CRASHED in line)
            raise WorkerDied(f"Spark gave up: {line.removeprefix('Caused by: ').strip()}") from error
        if isinstance(error, PySparkException) and error.getCondition() == "PATH_ALREADY_EXISTS":
            place = (error.getMessageParameters() or {}).get("outputPath", "the output")
            raise UsageError(f"{place} is there already: name a new directory") from error
        words = _last_words(str(error))
        if words.startswith(_REFUSED):
            raise UsageError(words.removeprefix(_REFUSED)) from error
        raise JobFailed(f"Spark gave up: {words}") from error


def _last_words(told: str) -> str:
    """The line of a Java or Python stack trace that says what happened: of its last cause."""
    _, caused, deepest = told.rpartition("Caused by: ")
    _, raised, behind = deepest.rpartition(_TRACEBACK)
    if raised:
        said = [line for line in behind.splitlines() if line[:1].strip()]  # where it was raised is indented
        return said[0] if said else raised
    given = [line.strip(" \t:") for line in deepest.splitlines() if line.strip()]
    said = [line for line in given if not line.startswith(("at ", "..."))]
    named = said if caused else [line for line in said if "Error" in line or "Exception" in line]
    return next(chain(named, said), "no reason given")
