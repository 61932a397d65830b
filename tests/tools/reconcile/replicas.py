"""Copies of one fragment in memory, folded by the engine's own replica from the writes that each of them got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from engine.offline.directory import PartitionView, Prepared, view_of
from engine.state.replica import Replica
from engine.state.store import Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from tools.reconcile.copies import Copy
from wal import records as r
from wal.ids import Fragment, NodeId, TxId, Version

ACC: Fragment = ("acc", 7)
MAP = Version(1, 0)

Said: TypeAlias = r.Record | r.Write


def tx(number: int) -> TxId:
    """A transaction id."""
    return number.to_bytes(8, "big") + b"reconcil"


def put(start: int, /, epoch: int = 1, stable: int = 0, tx: TxId = b"", **entries: str | None) -> r.Write:
    """The counters after `start`: `put(4, k="v", gone=None)` is 5 and 6."""
    keys = [key.encode() for key in entries]
    values = [value.encode() if value is not None else None for value in entries.values()]
    return r.Write(ACC[0], ACC[1], epoch, start, keys, values, stable, tx)


def closed(start: int, delta: int, epoch: int = 1) -> r.Write:
    """A closed gap."""
    return r.Write(ACC[0], ACC[1], epoch, start, [], [], closed=delta)


def replica_of(history: Iterable[Said]) -> Replica:
    """What a node has after these records."""
    replica = Replica(LayeredStore(MemoryStore()))
    for said in history:
        replica.apply(r.Update([said]) if isinstance(said, r.Write) else said)
    replica.check()
    return replica


def copy_of(
    node: NodeId,
    history: Iterable[Said],
    *,
    changed: Mapping[bytes, Entry | None] | None = None,
    damaged: Mapping[bytes | None, str] | None = None,
    drop_tombstones: bool = False,
    touched_ms: int = 0,
    version: Version = MAP,
) -> Copy:
    """A node's copy after a history. `changed` rows are not what the history says; None removes one."""
    replica = replica_of(history)
    fragment = replica.fragment(ACC)
    rows: dict[bytes, Entry | None] = dict(replica.store.scan(ACC, b"", 1 << 20))
    if drop_tombstones:
        rows = {k: e for k, e in rows.items() if e is None or e.value is not None or e.counter > fragment.stable}
    rows |= changed or {}
    told = dict(damaged or {})
    left = [(key, entry) for key, entry in sorted(rows.items()) if entry is not None and key not in told]
    state = replica.partition(ACC[1])
    prepared = {t: Prepared(p, touched_ms) for t, p in state.prepared.items()}
    partition = PartitionView(state.epoch, prepared, dict(state.results.items()))
    return Copy(node, version, partition, view_of(fragment, touched_ms), told, left)
