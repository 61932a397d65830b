"""Spark looks for modules with such a name, and takes the data source `DefaultSource` of each: `format("foreshore")`."""

from tools.reconcile.source import Foreshore as DefaultSource

__all__ = ["DefaultSource"]
