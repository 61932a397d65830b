"""Directories in an object store, or wherever Spark reads: each executor fetches them before it reads them.

LMDB maps a file, and a log is read here and there, so what is compared has to be a directory. Spark brings one to whoever
runs its tasks (`addFile`), by Hadoop's file systems and what they are configured with, and once for a session. The driver
fetches it as well. What lies there is a copy at rest: no node runs in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from tools.reconcile.spark_errors import spark_errors

if TYPE_CHECKING:
    from pyspark import SparkContext

SEPARATOR = "://"


def here(path: str) -> Path:
    """Where a directory lies for this process, which is a task where it was named by a URL."""
    if SEPARATOR not in path:
        return Path(path)
    from pyspark import SparkFiles  # noqa: PLC0415  # there where a URL is

    return Path(SparkFiles.get(_name(path)))


def is_fetched(url: str) -> bool:
    """Whether this process has the directory of a URL: it is one of Spark's, and somebody let them fetch it."""
    try:
        return here(url).is_dir()
    except (ImportError, AssertionError):  # no session of Spark
        return False


def fetch(context: SparkContext, url: str) -> str:
    """Let each executor have the directory of a URL. Raises UsageError, JobFailed."""
    url = url.rstrip("/")
    with spark_errors():
        taken = next((one for one in context.listFiles if _name(one) == _name(url) and one != url), None)
        if taken is not None:
            raise UsageError(
                f"{url} and {taken} would both be fetched as {_name(url)!r}: give the directories names of their own"
            )
        context.addFile(url, recursive=True)
    return url


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
