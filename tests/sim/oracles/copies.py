"""Invariant 9: no step lowers the number of copies below min(before, after), and what counts as a copy is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from rebalance.aside import waited_for
from rebalance.table import Topology
from tests.sim.oracles.ledger import Ledger, version_before
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import NO_VERSION, NodeId, Version


class Copies(Oracle):
    """From map to map, in-sync copies of nodes that live on are given up only for others that are in sync already."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._judged: Version = NO_VERSION

    def look(self, world: World) -> None:
        """Every map that came since the last look, and every copy that serves."""
        maps = self._ledger.maps
        for version in sorted(v for v in maps if v > self._judged):
            before = version_before(maps, version)
            if before != NO_VERSION:
                compare_maps(maps[before], maps[version], world.ordered_anew, world.rotten.partitions)
            self._judged = version
        for machine in world.running:
            assert machine.node is not None
            core = machine.node.core
            for name, copy in core.replica.fragments.items():
                if copy.loading and core.local and core.local[name[1]].in_sync:
                    raise Violation(
                        "copies", f"{machine.name} is in sync, and its copy {copy} is not whole", About(fragments=(name,))
                    )


def _compare_new(before: Topology, after: Topology) -> None:
    """The partitions of a group that came: as many copies as that asks for, wherever there is somebody to have them."""
    if len(after.placements) < len(before.placements):
        raise Violation("copies", f"{after.version} has fewer partitions than {before.version}")
    here = [m.node for m in after.members if m.node in after.baseline and after.aside.get(m.node, 0) <= 0]
    away = len(after.baseline) - len(here)
    for number in range(len(before.placements), len(after.placements)):
        placed = after.placements[number]
        if len(placed.in_sync) < max(1, after.copies_of(number) - away):
            told = f"partition {number} of {after.group_of(number).told} begins with {', '.join(placed.in_sync)}"
            raise Violation("copies", f"{told} at {after.version}", About(partitions=(number,)))


def compare_maps(
    before: Topology, after: Topology, ordered: Counter[tuple[NodeId, int]], rotted: Container[tuple[NodeId, int]] = ()
) -> None:
    """One step from map to map, whose voters can vote.

    A node that began another life may have been left out for what it lost, and one that is set aside now for being slow;
    so may one that was set aside before, and waited for where nobody else was quick, if somebody is now.
    A copy that was `ordered` anew leaves once for each order, as long as another one stays, and so does one that has
    `rotted`, which may have to be healed again before anybody has looked.
    """
    if nobodys := [node for node in after.voters if node not in after.allocations]:
        raise Violation("copies", f"the map {after.version} gives votes to {', '.join(nobodys)}, of whom it knows no disk")
    lives = {member.node: member.incarnation for member in before.members}
    slow = {n for n, times in after.aside.items() if times > abs(before.aside.get(n, 0))}
    going_on = {m.node for m in after.members if lives.get(m.node) == m.incarnation and m.node not in slow}
    _compare_new(before, after)
    for number, (old, new) in enumerate(zip(before.placements, after.placements, strict=False)):
        if old.lost or new.lost:
            continue
        had = waited_for([n for n in old.in_sync if n in going_on], after.aside, (), after.copies_of(number))
        wrong = [node for node in had if (node, number) in ordered or (node, number) in rotted]
        leaves = {node for node in wrong if node not in new.in_sync}
        if leaves:
            ordered -= Counter((node, number) for node in leaves)  # of none that is left it keeps nothing
        had = [node for node in had if node not in leaves] or had[:1]
        wanted = min(after.group_of(number).copies, len(new.owners))
        here = [node for node in new.in_sync if after.member(node) is not None]
        if len(here) < min(len(had), wanted):
            raise Violation(
                "copies",
                f"partition {number} had {', '.join(had)} in sync at {before.version}; "
                f"at {after.version} it has {', '.join(new.in_sync)}",
                About(partitions=(number,)),
            )
