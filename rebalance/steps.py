"""A light step: the next map where no primary changes, as what it changes, and why nobody has to stop for it.

A MOVING copy becomes in sync on its primary's word. The word binds: whoever gave it waits for the copy until another map
comes (`rebalance.vouching`), so it is as true when the step is decided as it was when it was given, and nobody has to
report anything, or to keep still. `docs/light-steps.md` argues that nothing acknowledged can be lost by it.

Maps that follow each other by light steps have one **fence**: what was said under one of them is as true under the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from rebalance.affinity import Affinity, assign
from rebalance.plan import placed_under_the_same
from rebalance.table import BEFORE_KEPT, Placement, Topology
from wal.ids import NodeId, Version
from wal.records import Claim

Vouched = Mapping[int, Mapping[NodeId, NodeId]]
"""Partition -> MOVING copy -> the primary who vouches for it."""


STEPS = 6
"""Copies that come together come to count in about so many steps."""


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a light step changes of the map `after`, whose bytes have this hash."""

    after: Version
    map_hash: int
    placements: list[tuple[int, Placement]]
    claims: list[Claim]


def light_step(
    old: Topology,
    map_hash: int,
    vouched: Vouched,
    claims: Sequence[Claim],
    affinity: Affinity = assign,
    *,
    surplus: Collection[int] = (),
) -> Step | None:
    """The step that makes in sync what is vouched for, and lets go what is `surplus`; None if there is nothing to do so.

    Copies are placed by the rule of the full exchange: what is not wanted any more goes as soon as every wanted copy that
    is here is in sync, in this very step. `claims` is all that is known for sure of what disks have claimed: a copy that
    counts from now on is held to what its node has on disk now. Where a member is concerned that was set aside, a full
    exchange weighs who is waited for instead.
    """
    lives = {m.node: m.allocation for m in old.members}
    ideal = affinity(old.baseline, old.domains, old.partitions, old.backups + 1)
    changed: list[tuple[int, Placement]] = []
    for number in sorted(dict.fromkeys([*vouched, *surplus])):
        placement = old.placements[number]
        if placement.lost or any(old.aside.get(node, 0) > 0 for node in placement.in_sync):
            continue  # the slow copy is to go with the map that brings another one, and not after it
        whole = [
            node
            for node, primary in vouched.get(number, {}).items()
            if primary == placement.primary
            and node in placement.owners
            and node not in placement.in_sync
            and lives.get(node, "") == old.allocations.get(node)
            and old.aside.get(node, 0) <= 0
        ]
        placed = placed_under_the_same(placement, ideal[number], whole, lives)
        if placed != placement:
            changed.append((number, placed))
    if not changed:
        return None
    return Step(old.version, map_hash, changed, _raised(old.claims, claims, lives))


def moving_in(topology: Topology) -> int:
    """How many copies are not in sync, on nodes that are here, and not set aside."""
    here = {m.node for m in topology.members if topology.aside.get(m.node, 0) <= 0}
    return sum(len(here.intersection(p.owners).difference(p.in_sync)) for p in topology.placements if not p.lost)


def worth_a_step(old: Topology, vouched: Collection[tuple[int, NodeId]], moving: int, most: int) -> bool:
    """Whether a step is due at once: each is a map, and where many copies come some are waited for.

    `moving` copies are not in sync yet, and there were `most` of them. A copy that the only other one of its partition
    vouches for is waited for by nobody.
    """
    alone = any(len(old.placements[number].in_sync) == 1 for number, _ in vouched)
    return alone or len(vouched) >= moving or len(vouched) * STEPS >= most


def _raised(known: Sequence[Claim], heard: Sequence[Claim], lives: Mapping[NodeId, str]) -> list[Claim]:
    """The claims of a map, and of the lives that it knows what was heard since."""
    most = {(c.node, c.allocation, c.incarnation): c.durable_lsn for c in known}
    for c in heard:
        if lives.get(c.node) == c.allocation:
            key = (c.node, c.allocation, c.incarnation)
            most[key] = max(c.durable_lsn, most.get(key, 0))
    return [Claim(*key, lsn) for key, lsn in most.items()]


def fits(old: Topology, map_hash: int, step: Step) -> bool:
    """Whether a step is one from this very map, and moves no primary."""
    return (step.after, step.map_hash) == (old.version, map_hash) and all(
        number < old.partitions
        and not placement.lost
        and (placement.primary, placement.epoch) == (old.placements[number].primary, old.placements[number].epoch)
        for number, placement in step.placements
    )


def stepped(old: Topology, step: Step) -> Topology:
    """The map that a light step which fits makes of the one before it: the same value for everybody."""
    placements = list(old.placements)
    for number, placement in step.placements:
        placements[number] = placement
    return msgspec.structs.replace(
        old,
        version=Version(old.version.major, old.version.minor + 1),
        placements=tuple(placements),
        claims=tuple(step.claims),
        before=(*old.before, (old.version, step.map_hash))[-BEFORE_KEPT:],
        fence=old.fenced,
    )
