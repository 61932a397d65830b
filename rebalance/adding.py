"""A group that comes into the map without stopping anybody, as the light step says it that brings it (`rebalance.steps`).

Nothing is in its partitions, so that every copy of them has all of it, and each of them is in sync at once: nobody had
anything to report. Of thousands of partitions few are placed in different ways, and a step says each way once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from struct import Struct, error

import msgspec

from rebalance.affinity import Affinity
from rebalance.aside import fast
from rebalance.going import going
from rebalance.ideal import places_for
from rebalance.table import BACKUPS_MAX, Group, Placement, Topology
from wal.ids import TABLE_MAX, NodeId


class Added(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group, and where its partitions are: of each, two bytes say in `which` of the `ways` it is placed."""

    group: Group
    ways: list[Placement]
    which: bytes


def epoch_of_new(old: Topology) -> int:
    """In which epoch partitions begin that come into the map: one that nobody can have heard of who was left behind when an
    operator forced a map."""
    return max((p.epoch for p in old.placements), default=1)


def begun(
    ideal: Sequence[NodeId],
    copies: int,
    epoch: int,
    *,
    here: Container[NodeId],
    aside: Mapping[NodeId, int],
    others: Iterable[NodeId],
) -> Placement:
    """Where a partition is that nothing is in: with its owners who are `here`, or else any of the `others`."""
    wanted = [n for n in ideal if n in here]
    owners = fast(wanted[:copies], aside) or wanted[:copies]
    owners = owners or [n for n in others if n in here][:1]
    return Placement(1, epoch, tuple(owners), tuple(owners), asynchronous=tuple(wanted[copies:]))


def adding(old: Topology, groups: Sequence[Group], affinity: Affinity) -> list[Added]:
    """These groups, each where it should be, as far as those are here who have a place in the map and stay."""
    steady, leaves = _steady(old), going(old)
    here = dict.fromkeys(n for n in steady if n not in leaves) or steady
    every, epoch = (*old.all_groups, *groups), epoch_of_new(old)
    ideal = places_for(affinity, old.baseline, old.domains, old.partitions, every)
    found: list[Added] = []
    for at, group in enumerate(groups, len(old.all_groups)):
        ways, which = list[Placement](), list[int]()
        known: dict[tuple[NodeId, ...], int] = {}
        copies = min(group.copies, len(old.baseline))
        for wanted in ideal[at * old.partitions : (at + 1) * old.partitions]:
            way = known.get(tuple(wanted))
            if way is None:
                way = known[tuple(wanted)] = len(ways)
                ways.append(begun(wanted, copies, epoch, here=here, aside=old.aside, others=here))
            which.append(way)
        found.append(Added(group, ways, _shorts(len(which)).pack(*which)))
    return found


def may_be_added(old: Topology, those: Sequence[Added]) -> bool:
    """Whether they are groups that can come beside the others, with copies on disks that the map knows."""
    groups, epoch, steady = old.all_groups, epoch_of_new(old) if those else 0, _steady(old)
    for new in those:
        backups, async_backups = new.group.backups, new.group.async_backups
        legal = backups >= 0 and async_backups >= 0 and backups + async_backups <= BACKUPS_MAX
        if not legal or new.group in groups or not _is_of(old.partitions, new):
            return False
        if not _are_begun(new.ways, epoch, frozenset(steady)):
            return False
        groups = (*groups, new.group)
    return old.partitions * len(groups) <= TABLE_MAX


def placements_of(old: Topology, those: Iterable[Added]) -> list[Placement]:
    """Of all their partitions."""
    return [new.ways[way] for new in those for way in _shorts(old.partitions).unpack(new.which)]


def _steady(old: Topology) -> dict[NodeId, None]:
    """The members on the disk that the map knows as theirs."""
    return {m.node: None for m in old.members if old.allocations.get(m.node) == m.allocation}


def _is_of(partitions: int, new: Added) -> bool:
    """Whether it says of every partition in which of its ways it is placed."""
    try:
        which: tuple[int, ...] = _shorts(partitions).unpack(new.which)
    except error:
        return False
    return max(which) < len(new.ways)


def _are_begun(ways: Iterable[Placement], epoch: int, on: frozenset[NodeId]) -> bool:
    """Whether these are partitions that nothing is in; a peer speaks of them, and of thousands."""
    for way in ways:
        copies = way.copies
        if (way.version, way.epoch, way.lost) != (1, epoch, False) or not way.owners or way.in_sync != way.owners:
            return False
        if len(frozenset(copies)) < len(copies) or not on.issuperset(copies):
            return False
    return True


def _shorts(count: int) -> Struct:
    return Struct(f">{count}H")
