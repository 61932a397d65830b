"""Foreshore's engine: a transactional, partitioned, persistent key-value store.

`open(path)` is a node in this process, `connect("host:port,...")` a client of a cluster; both give a `Database`, and
`engine.aio` has the same in its native, asynchronous form. What is below this module is the node itself.
"""

import importlib
from typing import TYPE_CHECKING

from engine.siblings import check_siblings

if TYPE_CHECKING:
    from engine import aio as aio
    from engine import api as api
    from engine import errors as errors
    from engine.api import Database, Namespace, Snapshot, Transaction, connect, transactional
    from engine.api import open as open  # noqa: A004  # as `dbm.open`; not in `__all__`: `import *` keeps the builtin
    from engine.client.codecs import Codec, by_tuple
    from engine.client.modes import Concurrency, Isolation
    from engine.client.namespaces import NamespaceInfo
    from engine.client.oneshot import Check, Delete, Put
    from engine.client.operations import Entry, Version
    from engine.client.timing import Aged
    from engine.errors import (
        AlreadyAnswered,
        ClusterReadOnly,
        CommitUnknown,
        Conflict,
        CorruptionError,
        Deadlock,
        DiskFull,
        Error,
        LockTimeout,
        NoQuorum,
        PartitionLost,
        ProtocolError,
        SnapshotLost,
        SnapshotTooOld,
        TransactionTimeout,
        Unavailable,
        UsageError,
    )

_WHERE = {
    "engine.api": ("Database", "Namespace", "Snapshot", "Transaction", "connect", "open", "transactional"),
    "engine.client.codecs": ("Codec", "by_tuple"),
    "engine.client.oneshot": ("Check", "Delete", "Put"),
    "engine.client.namespaces": ("NamespaceInfo",),
    "engine.client.operations": ("Entry", "Version"),
    "engine.client.timing": ("Aged",),
    "engine.client.transaction": ("Concurrency", "Isolation"),
}
"""Where a name comes from, which is imported when it is first asked for; what is not here is one of `engine.errors`."""
_MODULES = ("aio", "api", "errors")

__all__ = [
    "Aged",
    "AlreadyAnswered",
    "Check",
    "ClusterReadOnly",
    "Codec",
    "CommitUnknown",
    "Concurrency",
    "Conflict",
    "CorruptionError",
    "Database",
    "Deadlock",
    "Delete",
    "DiskFull",
    "Entry",
    "Error",
    "Isolation",
    "LockTimeout",
    "Namespace",
    "NamespaceInfo",
    "NoQuorum",
    "PartitionLost",
    "ProtocolError",
    "Put",
    "Snapshot",
    "SnapshotLost",
    "SnapshotTooOld",
    "Transaction",
    "TransactionTimeout",
    "Unavailable",
    "UsageError",
    "Version",
    "by_tuple",
    "connect",
    "transactional",
]


def __getattr__(name: str) -> object:
    """A name of the engine (PEP 562): a program that looks at a log waits for no client, and no node."""
    if name in _MODULES:
        return importlib.import_module(f"engine.{name}")
    if name not in __all__ and name != "open":
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    where = next((module for module, names in _WHERE.items() if name in names), "engine.errors")
    found: object = getattr(importlib.import_module(where), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "open"})


check_siblings(["wal", "rebalance"])
