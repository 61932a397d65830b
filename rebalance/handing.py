"""Which primaries can move by a light step, and where to: among the copies that are in sync, for better or for worse.

A step moves a primary to a better place. Only where its copy is wrong it moves to a worse one, and then a fence begins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rebalance import going
from rebalance.affinity import Affinity, assign
from rebalance.ideal import ideal_of
from rebalance.plan import handed_over
from rebalance.table import Placement, Topology
from wal.ids import NodeId

PARTITIONS_AT_ONCE = 2_500
"""So many partitions a step changes at most, so that no turn plans or takes very many."""
NONE_DOUBTED: Mapping[int, Sequence[NodeId]] = {}


def movable(
    old: Topology,
    numbers: Sequence[int],
    affinity: Affinity = assign,
    *,
    most: int = PARTITIONS_AT_ONCE,
    doubted: Mapping[int, Sequence[NodeId]] = NONE_DOUBTED,
) -> list[tuple[int, Placement]]:
    """Those of these partitions whose primary can move by a step, and where they are then; the first ones.

    All of their copies are in sync, on disks that the map knows, and of members that nobody set aside: so whoever has a
    copy is asked before the new primary serves, and nothing is on its way that the old one alone knows of. Where a fence
    begins with it, because the primary's copy is wrong, another may be loading: it begins anew with who leads then.
    """
    steady = _steady(old)
    ideal, leaves = ideal_of(old, affinity), going.going(old)
    found: list[tuple[int, Placement]] = []
    for number in numbers:
        placement, wrong = old.placements[number], doubted.get(number, ())
        whole = not placement.lost and len(placement.owners) == len(placement.in_sync)
        if may_leave(placement, wrong, steady) if wrong else (whole and steady.issuperset(placement.owners)):
            placed = handed_over(placement, ideal[number], leaves, wrong)
            if placed != placement:
                found.append((number, placed))
                if len(found) == most:
                    break
    return found


def _steady(old: Topology) -> frozenset[NodeId]:
    """The members on the disk that the map knows as theirs, whom nobody set aside."""
    return frozenset(
        m.node for m in old.members if old.allocations.get(m.node) == m.allocation and old.aside.get(m.node, 0) <= 0
    )


def may_leave(placement: Placement, wrong: Collection[NodeId], steady: frozenset[NodeId]) -> bool:
    """Whether a primary whose copy is wrong, with others perhaps, can move to one that is not."""
    right = [node for node in placement.in_sync if node not in wrong]
    return not placement.lost and bool(right) and steady.issuperset(placement.in_sync)


def all_may_leave(old: Topology, doubted: Mapping[int, Sequence[NodeId]]) -> bool:
    """Whether all primaries of these copies, which are wrong, can move to one that is not."""
    led = [(p, wrong) for n, wrong in doubted.items() for p in [old.placements[n]] if p.owners[0] in wrong]
    steady = _steady(old) if led else frozenset()
    return all(may_leave(placement, wrong, steady) for placement, wrong in led)
