"""What Spark says when it cannot do what was asked, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import Error, UsageError
from tools.reconcile.children import WorkerDied

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
            raise WorkerDied(f"Spark gave up: {_last_words(str(error))}") from error
        if isinstance(error, PySparkException) and error.getCondition() == "PATH_ALREADY_EXISTS":
            place = (error.getMessageParameters() or {}).get("outputPath", "the output")
            raise UsageError(f"{place} is there already: name a new directory") from error
        words = _last_words(str(error))
        if words.startswith(_REFUSED):
            raise UsageError(words.removeprefix(_REFUSED)) from error
        raise JobFailed(f"Spark gave up: {words}") from error


def _last_words(told: str) -> str:
    """The line of a Java or Python stack trace that says what happened."""
    given = [line.strip(" \t:") for line in told.splitlines() if line.strip()]
    behind = zip(["", *given], given, strict=False)  # each with the line before it
    lines = [line for before, line in behind if not before.startswith('File "')]  # else a line of source
    said = [line for line in lines if not line.startswith(("at ", "...", "File ", "Traceback", "Caused by: java.lang"))]
    return next((line for line in said if "Error" in line or "Exception" in line), said[0] if said else "no reason given")
