"""Spark looks for modules with such a name, and takes the data source `DefaultSource` of each: `format("foreshore")`.

Directories, and exported tables, that only Hadoop's file systems find are fetched before they are read:
`load(fetch(spark, "s3a://backup/n1", "s3a://backup/n2"))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.reconcile import fetched
from tools.reconcile.source import Foreshore as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "fetch"]


def fetch(spark: SparkSession, *urls: str) -> str:
    """Let the driver and each executor have the directories of these URLs; what `load` takes. Raises UsageError, JobFailed.

    Once for a session: so give each directory a name of its own.
    """
    return ",".join(fetched.fetch(spark.sparkContext, url) for url in urls)
