"""One row for each update in a log: the columns of the table `wal`, which Spark and exports read alike; needs no Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from tools.shown import HASH_BYTES, Values
from wal import records as r
from wal.ids import tx_name

Cells: TypeAlias = tuple[Any, ...]
COLUMNS = (
    *("node", "segment", "lsn", "time", "record", "tx", "namespace", "partition", "epoch", "counter"),
    *("op", "key", "size", "hash", "value"),
)


def entries(head: Cells, record: r.Record, values: Values) -> Iterator[Cells]:
    """The rows of a record; `head` is (node, segment, LSN, time in us)."""
    for write in _writes(record):
        yield from _updates((*head, r.kind_of(record)), write, values)


def _writes(record: r.Record) -> Iterable[r.Write]:
    """The updates of a record; a rollback and a closed gap are counters that nothing was written with."""
    match record:
        case r.Update(writes) | r.History(writes) | r.Prepare(writes=writes):
            return writes
        case r.Outcome(tx, partition, epoch, False, ranges):
            return [
                r.Write(n, partition, epoch, start, keys=[], values=[], stable=0, tx=tx, closed=delta)
                for n, start, delta in ranges
            ]
        case r.NoOp(partition, epoch, ranges):
            return [
                r.Write(n, partition, epoch, start, keys=[], values=[], stable=0, tx=b"", closed=delta)
                for n, start, delta in ranges
            ]
        case _:
            return ()


def _updates(head: Cells, write: r.Write, values: Values) -> Iterator[Cells]:
    told = (*head, tx_name(write.tx) if write.tx else None, write.namespace, write.partition, write.epoch)
    for counter in range(write.start + 1, write.start + 1 + write.closed):
        yield (*told, counter, "none", None, None, None, None)
    for counter, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
        yield (*told, counter, "delete" if value is None else "put", key, *value_cells(value, values))


def value_cells(value: bytes | None, values: Values) -> Cells:
    """Size, hash and value, as far as they are asked for."""
    if value is None:
        return None, None, None
    hashed = hashlib.blake2b(value, digest_size=HASH_BYTES).hexdigest() if values is Values.HASH else None
    return len(value), hashed, value if values is Values.FULL else None
