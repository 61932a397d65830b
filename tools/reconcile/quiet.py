"""Partitions whose copies need no comparison: each directory sums up what a comparison would look at, and the sums agree.

`--level digest` believes digests, so two copies are equal that say the same: of their counters, which have no gap, their
epochs, their histories, the digests of their contents, and how transactions ended. A `Survey` says this of each partition
in one number, so that a partition of which all copies say the same costs nothing more: no task, no second look at its
directories. All others go their ordinary way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from rebalance.results import COMMITTED
from rebalance.table import Placement, Topology
from tools.reconcile.copies import IN_SYNC, standing
from tools.reconcile.counts import Counts, Tally
from tools.reconcile.summed import NOTHING
from tools.reconcile.survey import Survey
from tools.reconcile.transactions import Decision
from wal.ids import NodeId, TxId


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
