"""What the batch says by which a new primary begins its epoch: plain functions over what it has by then."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from rebalance.issuing import Again, prepare_in
from rebalance.partition import LocalPartition, PartitionState
from wal import records as r
from wal.counters import PartitionCounter
from wal.ids import Namespace
from wal.probe import probe


def beginning(local: LocalPartition, state: PartitionState, again: Again) -> tuple[r.EpochStart, list[r.Record]]:
    """The epoch's start, and what is issued again in it: applied writes, closed gaps, prepared transactions."""
    number, epoch = local.number, local.epoch
    firsts: list[tuple[Namespace, int]] = []
    taken: dict[Namespace, list[tuple[int, int]]] = {}
    first = [prepare for prepare in state.prepared.values() if prepare.epoch == epoch]
    prepared = [prepare_in(epoch, prepare, again) for prepare in state.prepared.values() if prepare.epoch < epoch]
    for write in chain(again.writes, *[prepare.writes for prepare in first + prepared]):
        span = write.start, write.start + (write.closed or len(write.keys))  # up to `end`, without a call for each
        taken.setdefault(write.namespace, []).append(span)
    gaps: list[r.Range] = []
    for namespace, fragment in state.fragments.items():
        lwm = fragment.counter.lwm
        firsts.append((namespace, lwm + 1))
        if namespace in taken:
            counter = PartitionCounter(lwm)
            for start, end in joined(taken[namespace], lwm):
                counter.update(start, end - start)
            gaps.extend((namespace, *gap) for gap in counter.missing(counter.highest_applied))
    records: list[r.Record] = []
    if again.writes:
        probe("promotion.issued_again")
        records.append(r.Update(again.writes))
    if gaps:
        probe("promotion.closed_gaps")
        records.append(r.NoOp(number, epoch, gaps))
    if first or prepared:
        probe("promotion.kept_prepared")
    return r.EpochStart(number, epoch, firsts), records + prepared


def joined(spans: list[tuple[int, int]], lwm: int) -> list[tuple[int, int]]:
    """What of some spans of counters, as (start, end), lies above `lwm`, in order; those that adjoin are one: of very many
    votes that were given one after the other there is one then. Those that overlap in part stay apart, for the counter."""
    found: list[tuple[int, int]] = []
    first = last = lwm
    for start, end in sorted(spans):
        if start == last > first:
            last = end
        elif end > last:
            if last > first:
                found.append((first, last))
            first, last = start, end
    if last > first:
        found.append((first, last))
    return found


def epochs_after(number: int, state: PartitionState, epoch: int) -> list[r.EpochStart]:
    """The starts of the epochs that a survivor at `epoch` has not taken part in, as this copy knows them."""
    return starts(number, [(ns, f.epochs) for ns, f in state.fragments.items()], epoch, state.epoch)


def starts(
    number: int, tables: Iterable[tuple[Namespace, Iterable[tuple[int, int]]]], above: int, up_to: int
) -> list[r.EpochStart]:
    firsts: dict[int, list[tuple[Namespace, int]]] = {}
    for namespace, table in tables:
        for epoch, first in table:
            if above < epoch <= up_to:
                firsts.setdefault(epoch, []).append((namespace, first))
    if above < up_to:
        firsts.setdefault(up_to, [])
    return [r.EpochStart(number, epoch, firsts[epoch]) for epoch in sorted(firsts)]
