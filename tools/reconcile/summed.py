"""What a directory says of each of its partitions, in one number: all that a comparison would look at, beside the rows.

`tools.reconcile.quiet` lays these side by side. Whatever is not as plain as a number has none, and has to be looked at.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_128_digest

from engine.offline.directory import FragmentView, PartitionView, State
from rebalance.results import COMMITTED
from wal.ids import Namespace, TxId


class Summed(msgspec.Struct, frozen=True, array_like=True):
    """What one copy of one partition says; `sum` is empty where that has to be looked at. `aborted` is part of it: those
    transactions that a decision elsewhere may have committed."""

    sum: bytes = b""
    namespaces: list[Namespace] = []
    aborted: list[TxId] = []


_COMMITTED = {COMMITTED}

NOTHING = Summed(b"nothing")
"""Of a copy that has no trace of the partition."""


def summed_up(state: State) -> dict[int, Summed]:
    """What a directory says of each partition that it has anything of."""
    names: dict[int, list[Namespace]] = {number: [] for number in state.partitions}
    for namespace, number in sorted(state.fragments):
        names.setdefault(number, []).append(namespace)
    return {number: _summed(state, number, namespaces) for number, namespaces in names.items()}


def _summed(state: State, number: int, namespaces: list[Namespace]) -> Summed:
    partition = state.partitions.get(number) or PartitionView()
    results = partition.results
    aborted = [tx for tx, outcome in results.items() if outcome != COMMITTED] if set(results.values()) - _COMMITTED else []
    said: list[object] = [partition.epoch, sorted(results), sorted(aborted)]
    for namespace in namespaces:
        view = state.fragments[namespace, number]
        contents = state.contents((namespace, number)) if _plain(view) else None
        if contents is None:
            return Summed()
        lwm = view.counter.lwm
        said.append((namespace, lwm, view.epochs, view.digests[lwm], contents))
    if partition.prepared:
        return Summed()
    return Summed(xxh3_128_digest(msgspec.msgpack.encode(said)), namespaces, aborted)


def _plain(view: FragmentView) -> bool:
    """Whether a copy has all that it was promised, and no more."""
    counter = view.counter
    return not view.loading and counter.hwm == counter.lwm >= view.stable and not counter.ranges
