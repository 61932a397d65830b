"""How many copies are still to come to count, and whether a light step for those that have come is worth its map."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rebalance.table import Placement, Topology
from wal.ids import NodeId

STEPS = 6
"""Copies that come together come to count in about so many steps."""


def moving_in(topology: Topology, before: Topology | None = None, counted: int = 0) -> int:
    """How many copies are not in sync, on nodes that are here, and not set aside. Of the map `before` that many were."""
    here = {m.node for m in topology.members if topology.aside.get(m.node, 0) <= 0}

    alike: dict[tuple[tuple[NodeId, ...], tuple[NodeId, ...]], int] = {}  # of many partitions, placed in few ways

    def moving(placements: Iterable[Placement]) -> int:
        count = 0
        for p in placements:
            if len(p.owners) != len(p.in_sync) and not p.lost:
                known = alike.get(placed := (p.owners, p.in_sync))
                if known is None:
                    known = alike[placed] = len(here.intersection(p.owners).difference(p.in_sync))
                count += known
        return count

    now = topology.placements
    if before is None or len(before.placements) != len(now) or _who_is_here(before) != _who_is_here(topology):
        return moving(now)
    changed = [(p, q) for p, q in zip(before.placements, now, strict=True) if p is not q]
    return counted + moving(q for _, q in changed) - moving(p for p, _ in changed)


def _who_is_here(topology: Topology) -> tuple[object, ...]:
    return topology.members, topology.aside


def worth_a_step(old: Topology, vouched: Collection[tuple[int, NodeId]], moving: int, most: int) -> bool:
    """Whether a step is due at once: each is a map, and where many copies come some are waited for.

    `moving` copies are not in sync yet, and there were `most` of them. A copy that the only other one of its partition
    vouches for is waited for by nobody.
    """
    if len(vouched) >= moving or len(vouched) * STEPS >= most:
        return True
    return any(len(old.placements[number].in_sync) == 1 for number, _ in vouched)
