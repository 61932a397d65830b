"""What Spark says is shown by the line that says what happened; what a task of ours refused is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import PySparkException

from engine.errors import Error, UsageError
from tools.reconcile.spark_errors import JobFailed, spark_errors

OURS = """
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/tools/reconcile/tables.py", line 219, in _state
    with sketching(piece.path) as (sketch, whole):
  File "/opt/tools/reconcile/sketch.py", line 200, in sketching
    raise {0}(told)
engine.errors.{0}: /data/nx is not a data directory: expected identity.json, store and wal, found no directory
"""
JAVA = """: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s4a"
\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3585)
"""
SAID = "/data/nx is not a data directory: expected identity.json, store and wal, found no directory"


@pytest.mark.parametrize(
    ("told", "kind", "says"),
    [
        (OURS.format("UsageError"), UsageError, SAID),
        (OURS.format("CorruptionError"), JobFailed, f"Spark gave up: engine.errors.CorruptionError: {SAID}"),
        (
            JAVA,
            JobFailed,
            'Spark gave up: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s4a"',
        ),
    ],
)
def test_what_a_task_says_is_told_and_not_the_line_that_raised_it(told: str, kind: type[Error], says: str) -> None:
    with pytest.raises(kind) as found, spark_errors():
        raise PySparkException(told)
    assert (type(found.value), str(found.value)) == (kind, says)
