"""Partitions whose copies need no comparison: each directory sums up what a comparison would look at, and the sums agree.

`--level digest` believes digests, so two copies are equal that say the same: of their counters, which have no gap, their
epochs, their histories, the digests of their contents, and how transactions ended. A `Survey` says this of each partition
in one number, so that a partition of which all in-sync copies say the same costs nothing more: no task, no second look at
its directories. Whatever is not as plain as that has no number, and goes its ordinary way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_128_digest

from engine.offline.directory import FragmentView, PartitionView, State
from rebalance.results import COMMITTED
from rebalance.table import Placement, Topology
from tools.reconcile.copies import IN_SYNC, standing
from tools.reconcile.counts import Counts, Tally
from tools.reconcile.transactions import Decision
from wal.ids import Namespace, NodeId, TxId

if TYPE_CHECKING:
    from tools.reconcile.survey import Survey


class Summed(msgspec.Struct, frozen=True, array_like=True):
    """What one copy of one partition says; `sum` is empty where that has to be looked at. `aborted` is part of it: those
    transactions that a decision elsewhere may have committed."""

    sum: bytes = b""
    namespaces: list[Namespace] = []
    aborted: list[TxId] = []


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
    said: list[object] = [partition.epoch, sorted(partition.results.items())]
    for namespace in namespaces:
        view = state.fragments[namespace, number]
        contents = state.contents((namespace, number)) if _plain(view) else None
        if contents is None:
            return Summed()
        lwm = view.counter.lwm
        said.append((namespace, lwm, view.epochs, view.digests[lwm], contents))
    if partition.prepared:
        return Summed()
    aborted = [tx for tx, outcome in partition.results.items() if outcome != COMMITTED]
    return Summed(xxh3_128_digest(msgspec.msgpack.encode(said)), namespaces, aborted)


def _plain(view: FragmentView) -> bool:
    """Whether a copy has all that it was promised, and no more."""
    counter = view.counter
    return not view.loading and counter.hwm == counter.lwm >= view.stable and not counter.ranges


def quiet_ones(
    surveys: Sequence[Survey],
    topology: Topology,
    numbers: Iterable[int],
    decisions: Mapping[TxId, Decision],
    torn: Container[int],
) -> tuple[list[int], Counts]:
    """Those of these partitions that need no comparison, and what is counted of them; `torn` ones do need it."""
    quiet, counts = list[int](), Counts()
    told = {s.node: s for s in surveys}
    doubtful = {p for one in decisions.values() if one.outcome != COMMITTED for p in (one.partition, *one.participants)}
    for number in numbers:
        placement = topology.placements[number]
        copies = [s for s in surveys if s.node in placement.in_sync or number in s.summed]
        if (
            number in doubtful
            or number in torn
            or placement.lost
            or not _all_there(placement, topology, told)
            or len(copies) < 2
        ):
            continue
        said = [one.summed.get(number, NOTHING) for one in copies]
        if len({one.sum for one in said}) > 1 or not said[0].sum or any(tx in decisions for tx in said[0].aborted):
            continue
        quiet.append(number)
        fragments = len(said[0].namespaces)
        for namespace in said[0].namespaces:
            counts.namespaces.setdefault(namespace, Tally()).fragments += 1
        counts.copies += fragments * len(copies)
        counts.copies_known += fragments * len(copies)
        counts.by_digest += fragments
        for one in copies if fragments else ():
            role = standing(topology, placement, one.node, one.allocation)
            if role != IN_SYNC:
                had = counts.apart.get(f"{one.node} {role}", (0, 0))
                counts.apart[f"{one.node} {role}"] = (had[0] + fragments, had[1])
    return quiet, counts


def _all_there(placement: Placement, topology: Topology, told: Mapping[NodeId, Survey]) -> bool:
    """Whether all in-sync copies of a partition are here, each on the disk that is known."""
    return all(n in told and topology.allocations.get(n) == told[n].allocation for n in placement.in_sync)
