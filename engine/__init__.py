"""Foreshore's engine: a transactional, partitioned, persistent key-value store.

`open(path)` is a node in this process, `connect("host:port,...")` a client of a cluster; both give a `Database`, and
`engine.aio` has the same in its native, asynchronous form. What is below this module is the node itself.
"""

try:
    from engine.api import Database, Namespace, Transaction, connect, transactional
    from engine.api import open as open  # noqa: A004  # as `dbm.open`; not in `__all__`: `import *` keeps the builtin
except (AttributeError, ImportError):
    from engine.siblings import check_siblings

    check_siblings(["wal", "rebalance"])
    raise
from engine.client.codecs import Codec, by_tuple
from engine.client.timing import Aged
from engine.client.transaction import Concurrency, Isolation
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
    TransactionTimeout,
    Unavailable,
    UsageError,
)

__all__ = [
    "Aged",
    "AlreadyAnswered",
    "ClusterReadOnly",
    "Codec",
    "CommitUnknown",
    "Concurrency",
    "Conflict",
    "CorruptionError",
    "Database",
    "Deadlock",
    "DiskFull",
    "Error",
    "Isolation",
    "LockTimeout",
    "Namespace",
    "NoQuorum",
    "PartitionLost",
    "ProtocolError",
    "Transaction",
    "TransactionTimeout",
    "Unavailable",
    "UsageError",
    "by_tuple",
    "connect",
    "transactional",
]
