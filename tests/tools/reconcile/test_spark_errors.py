"""What Spark says is shown by the line that says what happened; what a task of ours refused is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark.errors import PySparkException

from engine.errors import Error, UsageError
from tools.reconcile.children import WorkerDied
from tools.reconcile.session import logging_option
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
WRITING = """An error occurred while calling o48.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to hdfs://x/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:835)
Caused by: org.apache.spark.SparkException: Task failed
\tat org.apache.spark.sql.execution.datasources.FileFormatWriter$.executeTask(FileFormatWriter.scala:420)
Caused by: {}
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:515)
\t... 15 more
"""
FULL = "java.io.IOException: No space left on device"
CHAINED = """
[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source reader: Traceback (most recent call last):
  File "/opt/wal/disk.py", line 319, in _translated
    raise _ours(operation, path, error) from error
FileNotFoundError: [Errno 2] No such file or directory

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/tools/reconcile/source.py", line 43, in reader
    return Reader(pieces(self._table(), self._directories()))
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
wal.disk.DiskMissing: open directory /nowhere/wal: there is no such file
 SQLSTATE: 38000
"""
CRASHED = """: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:624)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
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
        (WRITING.format(FULL), JobFailed, f"Spark gave up: {FULL}"),
        (
            WRITING.format("org.apache.spark.api.python.PythonException: " + OURS.format("UsageError").strip()),
            UsageError,
            SAID,
        ),
        (CHAINED, JobFailed, "Spark gave up: wal.disk.DiskMissing: open directory /nowhere/wal: there is no such file"),
        (
            CRASHED,
            WorkerDied,
            "Spark gave up: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        ),
    ],
)
def test_what_a_task_says_is_told_and_not_the_line_that_raised_it(told: str, kind: type[Error], says: str) -> None:
    with pytest.raises(kind) as found, spark_errors():
        raise PySparkException(told)
    assert (type(found.value), str(found.value)) == (kind, says)


def test_java_is_told_how_to_log_in_one_word_wherever_this_is_installed(tmp_path: Path) -> None:
    told = logging_option(tmp_path / "a checkout" / "log4j2.properties")
    assert told == f"-Dlog4j2.configurationFile=file://{tmp_path}/a%20checkout/log4j2.properties"
