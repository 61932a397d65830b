"""The map that an exchange proposes: a pure function of the last one and of what the members report.

For every partition it keeps four promises. The primary and the in-sync set are chosen only from copies that hold every
acknowledged update. A copy outside that set becomes in-sync only if the primary vouches for it. A primary that is alive
and in place stays, unless its partition was drained for a handover. And no step lowers the number of copies below
min(before, after): a copy that is not wanted any more goes only when every wanted one that is here is in sync, and it
stands in for one that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping, Sequence
from itertools import zip_longest

import msgspec

from rebalance.adding import begun, epoch_of_new
from rebalance.affinity import Affinity, assign
from rebalance.aside import aside_next, fast, waited_for
from rebalance.baselines import disks_counted_on
from rebalance.ideal import Ideal, finding_ideal, places_for
from rebalance.messages import SingleMap
from rebalance.migrations import Migrations, ordered
from rebalance.moves import LOOKED_AT_ONCE, standing_in
from rebalance.namespaces import NamespaceSettings, changed
from rebalance.ports import all_of
from rebalance.salvage import INTERVENTIONS_KEPT, best_copy
from rebalance.survivors import CopyReports, returned_disks, sorted_reports, survivors_of, trusted_nodes
from rebalance.table import (
    BEFORE_KEPT,
    Candidate,
    Group,
    Intervention,
    Member,
    Placement,
    Taken,
    Topology,
    disk_name,
    lost_disks,
)
from wal.ids import Namespace, NodeId, Version
from wal.records import Claim

PLACED_AT_ONCE = 500
"""So much work is one piece of a plan: a partition that is placed, or two of its namespaces that are looked at."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What the exchange knows beside the last map."""

    candidates: Sequence[Candidate]  # every node that is alive and reported
    singles: Mapping[NodeId, SingleMap]
    handover: Sequence[int]
    baseline: Sequence[NodeId]
    leaving: Sequence[NodeId] = ()
    voted: Mapping[NodeId, int] = {}  # where on its disk the promise of each life lies that reported
    claims: Sequence[Claim] = ()  # of those who did not report
    map_hash: int = 0  # of the last map
    aside: Mapping[NodeId, int] | None = None  # who is too slow to be waited for, and how often; else as before
    mute: Sequence[NodeId] = ()  # of these, who does not answer at all
    reset: Sequence[int] = ()  # lost partitions that begin again with the best copies that are here
    namespaces: Mapping[Namespace, NamespaceSettings] = {}  # of which the map is to say something else
    groups: Sequence[Group] = ()  # that come into the map
    migrations: Migrations | None = None  # if the map is to say something else of them


class Plan(msgspec.Struct, frozen=True):
    """The proposed map, and what a person should know about how it came to be."""

    topology: Topology
    notes: list[str]


def first_topology(
    cluster: str,
    name: str,
    partitions: int,
    backups: int,
    candidates: Sequence[Candidate],
    affinity: Affinity = assign,
    *,
    async_backups: int = 0,
) -> Topology:
    """Version 1.0 of a new cluster: every candidate is a member, in the baseline, and every owner's copy is in sync."""
    group = Group(backups, async_backups)
    return all_of(planning_first(cluster, name, partitions, group, candidates=candidates, affinity=affinity))


def planning_first(
    cluster: str,
    name: str,
    partitions: int,
    group: Group,
    candidates: Sequence[Candidate],
    affinity: Affinity = assign,
) -> Generator[int, None, Topology]:
    """`first_topology` in pieces: yields how much work the last one was."""
    nodes = tuple(c.node for c in candidates)
    domains = {c.node: c.domain for c in candidates if c.domain}
    question = (affinity, nodes, domains, partitions, (group,))
    yield from finding_ideal(*question)
    placed = [(tuple(nodes[: group.copies]), tuple(nodes[group.copies :])) for nodes in places_for(*question)]
    topology = Topology(
        version=Version(1, 0),
        cluster=cluster,
        name=name,
        partitions=partitions,
        backups=group.backups,
        members=tuple(
            Member(c.node, c.allocation, c.incarnation, c.address, order=order, domain=c.domain)
            for order, c in enumerate(candidates, 1)
        ),
        baseline=nodes,
        placements=tuple(Placement(1, 1, owners, owners, asynchronous=others) for owners, others in placed),
        allocations={c.node: c.allocation for c in candidates},
        domains=domains,
        next_order=len(nodes) + 1,
        groups=(group,) if group.async_backups else (),
    )
    yield from _checked(topology)
    return topology


def _checked(topology: Topology) -> Generator[int, None, None]:
    for at in range(0, len(topology.placements), LOOKED_AT_ONCE):
        topology.check(at, at + LOOKED_AT_ONCE)
        yield min(LOOKED_AT_ONCE, len(topology.placements) - at) // 2


def next_topology(old: Topology, change: Change, affinity: Affinity = assign) -> Plan:
    """The map that follows `old`."""
    return all_of(planning(old, change, affinity))


def planning(old: Topology, change: Change, affinity: Affinity = assign) -> Generator[int, None, Plan]:
    """`next_topology` in pieces, for there may be many partitions: yields how much work the last one was."""
    return _Next(old, change, affinity).made()


class Alike:
    """Where partitions are next, found out once for all that are placed alike: there are many, placed in few ways."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Placement] = {}

    def placed(self, old: Placement, place: Callable[..., Placement], how: tuple[object, ...]) -> Placement:
        """Where one is next, by `place`, which goes by where its copies are, and by `how`, and by nothing else."""
        question = (old.owners, old.in_sync, old.asynchronous, old.lost, *how)
        new = self._known.get(question)
        if new is None:
            new = place(Placement(0, 0, old.owners, old.in_sync, old.lost, asynchronous=old.asynchronous), *how)
            self._known[question] = new
        if not new.version:
            return old
        version, epoch = old.version + new.version, old.epoch + new.epoch
        return Placement(version, epoch, new.owners, new.in_sync, new.lost, asynchronous=new.asynchronous)


class _Next:
    """The next map, while it is made."""

    def __init__(self, old: Topology, change: Change, affinity: Affinity) -> None:
        self.old = old
        self.change = change
        self.notes: list[str] = []
        self.alive = {c.node: c for c in change.candidates if c.node not in change.leaving}
        self.members = _members(old, self.alive)
        self.baseline = tuple(change.baseline)
        self.domains = {**old.domains, **{c.node: c.domain for c in self.alive.values() if c.domain}}
        self.affinity = affinity
        self.ideal: Ideal = ()
        self.groups = (*old.all_groups, *change.groups) if change.groups else old.groups
        self.steady = {m.node for m in old.members if m.node in self.alive and _life(self.alive[m.node]) == _life(m)}
        self.trusted = trusted_nodes(old, self.alive, change.singles, self.steady, self.notes)
        self.whole = dict.fromkeys(self.trusted) | returned_disks(self.alive, change.singles)
        # A lost partition must never take the new disk of a node for the old one that held its last copy.
        new_disks = [n for n in self.alive if n in change.singles and n not in self.trusted]
        self.replaced = {n: disk_name(n, old.allocations.get(n, "")) for n in new_disks}
        self.vouched = self._vouched()
        self.aside = aside_next(old.aside, change.aside, self.vouched)
        slow = [n for n, times in self.aside.items() if times > abs(old.aside.get(n, 0))]
        self.notes += [f"{n} is too slow and set aside" for n in slow]
        self.taken: list[Taken] = []
        self.epoch = epoch_of_new(old) if change.groups else 0
        self._alike = Alike()

    def made(self) -> Generator[int, None, Plan]:
        """Place the partitions, some at a time."""
        old = self.old
        question = (self.affinity, self.baseline, self.domains, old.partitions, self.groups or old.all_groups)
        yield from finding_ideal(*question)
        self.ideal = places_for(*question)
        reports = yield from sorted_reports(old, self.change.singles)
        handover, reset = set(self.change.handover), set(self.change.reset)
        placements: list[Placement] = []
        work = 0
        for number in range(len(self.ideal)):
            if number >= len(old.placements):
                placements.append(self._new(number))
                work += 1
                continue
            told = reports.pop(number, {})
            placements.append(self._placed(number, told, moves=number in handover, reset=number in reset))
            work += 1 + len(told) // 2
            if work >= PLACED_AT_ONCE:
                yield work
                work = 0
        yield work
        if self.taken:
            self.notes.append(f"begun again: {', '.join(_told(what) for what in self.taken)}")
        topology = self._topology(tuple(placements))
        yield from _checked(topology)
        return Plan(topology, self.notes)

    def _new(self, number: int) -> Placement:
        """A partition of a group that comes into the map."""
        copies = min(self.groups[number // self.old.partitions].copies, len(self.baseline))
        others = (*self.baseline, *self.alive)
        return begun(self.ideal[number], copies, self.epoch, here=self.alive, aside=self.aside, others=others)

    def _vouched(self) -> dict[int, list[NodeId]]:
        """The MOVING copies that a primary vouches for, if it is still the one that the map knows."""
        vouched: dict[int, list[NodeId]] = {}
        steady = {n for n in self.steady if n in self.trusted}
        for node, single in self.change.singles.items():
            if node in steady:
                for partition, copy in single.vouched:
                    placement = self.old.placements[partition] if partition < len(self.old.placements) else None
                    if placement is not None and placement.primary == node and copy in placement.owners and copy in steady:
                        vouched.setdefault(partition, []).append(copy)
        return vouched

    def _placed(self, number: int, reports: CopyReports, *, moves: bool, reset: bool) -> Placement:
        """Where a partition is next."""
        placement, ideal, alive = self.old.placements[number], self.ideal[number], self.alive
        copies = min(self.old.group_of(number).copies, len(ideal))
        vouched = self.vouched.get(number, [])
        survivors = survivors_of(
            placement, self.whole, vouched, reports, steady=self.steady, number=number, notes=self.notes
        )
        survivors = waited_for(survivors, self.aside, self.change.mute, copies)
        if not survivors and reset:
            instead = next((n for n in ideal if n in alive), next(iter(alive)))
            best, what = best_copy(number, reports, list(alive), instead)
            self.taken.append(what)
            survivors, placement = [best], _begun_again(placement, what)
        return self._alike.placed(placement, self._place, (tuple(ideal), copies, tuple(survivors), moves))

    def _place(
        self, old: Placement, wanted: Sequence[NodeId], copies: int, survivors: Sequence[NodeId], moves: bool
    ) -> Placement:
        return _place(
            old,
            wanted,
            copies,
            survivors,
            fast(survivors, self.aside) or survivors,
            steady=self.steady,
            replaced=self.replaced,
            alive=self.alive,
            handover=moves,
        )

    def _version(self) -> Version:
        """Another major number if a member joined, left or started again, else another minor one."""
        last = self.old.version
        if {_life(m) for m in self.members} != {_life(m) for m in self.old.members}:
            return Version(last.major + 1, 0)
        return Version(last.major, last.minor + 1)

    def _topology(self, placements: tuple[Placement, ...]) -> Topology:
        """The map, with what may not be forgotten of those that led to it."""
        old, change, alive, baseline = self.old, self.change, self.alive, self.baseline
        version = self._version()
        interventions = old.interventions
        if self.taken:
            forced = Intervention("reset-lost", old.version, tuple(alive), tuple(self.taken))
            interventions = (*interventions, forced)[-INTERVENTIONS_KEPT:]
        allocations = disks_counted_on(old, baseline, placements, {n: c.allocation for n, c in alive.items()})
        return Topology(
            version=version,
            cluster=old.cluster,
            name=old.name,
            partitions=old.partitions,
            backups=old.backups,
            members=self.members,
            baseline=baseline,
            placements=placements,
            allocations=allocations,
            domains=self.domains,
            next_order=max(m.order for m in self.members) + 1,
            claims=_claims(self.members, allocations, placements, change),
            before=(*old.before, (old.version, change.map_hash))[-BEFORE_KEPT:] if change.map_hash else (),
            baselined=version if baseline != old.baseline else old.baselined,
            interventions=interventions,
            aside={n: times for n, times in self.aside.items() if n in baseline or n in alive},
            listed=_listed(old, self.members, allocations, placements),
            namespaces=changed(old.namespaces, change.namespaces, version),
            migrations=ordered(old.migrations, change.migrations, version),
            groups=self.groups,
        )


def _claims(
    members: Sequence[Member], allocations: Mapping[NodeId, str], placements: Sequence[Placement], change: Change
) -> tuple[Claim, ...]:
    """What may not be forgotten: where the promise lies of those that reported, and all that is known of the others."""
    here = [Claim(m.node, m.allocation, m.incarnation, change.voted.get(m.node, 0)) for m in members]
    names = {m.node for m in members}
    away = [c for c in change.claims if c.node not in names and allocations.get(c.node) == c.allocation]
    lost = lost_disks(placements)
    awaited = [c for c in change.claims if disk_name(c.node, c.allocation) in lost]
    return (*(c for c in here if c.durable_lsn), *away, *awaited)


def _listed(
    old: Topology, members: Sequence[Member], allocations: Mapping[NodeId, str], placements: Sequence[Placement]
) -> dict[str, tuple[int, Version]]:
    """Of the disks that are away and counted on, the life that was listed last, and by which map."""
    known = old.listed | {disk_name(m.node, m.allocation): (m.incarnation, old.version) for m in old.members}
    counted_on = dict.fromkeys(disk_name(node, disk) for node, disk in allocations.items()) | lost_disks(placements)
    here = dict.fromkeys(disk_name(m.node, m.allocation) for m in members)
    return {name: life for name, life in known.items() if name in counted_on and name not in here}


def _begun_again(old: Placement, taken: Taken) -> Placement:
    """A lost partition, for its next epoch to be above all that anybody here knows of."""
    return Placement(old.version, max(old.epoch, taken.epoch), old.owners, old.in_sync, old.lost)


def _told(taken: Taken) -> str:
    whose = f"{taken.node}'s copy of epoch {taken.epoch} with {taken.updates} updates" if taken.node else "empty"
    return f"partition {taken.partition} with {whose}" if taken.node else f"partition {taken.partition} {whose}"


def _life(node: Member | Candidate) -> tuple[NodeId, str, int]:
    """One life of a node on one disk."""
    return (node.node, node.allocation, node.incarnation)


def _members(old: Topology, alive: Mapping[NodeId, Candidate]) -> tuple[Member, ...]:
    kept = [
        Member(m.node, c.allocation, c.incarnation, c.address, order=m.order, domain=c.domain)
        for m in old.members
        for c in [alive.get(m.node)]
        if c is not None and c.allocation == m.allocation
    ]
    known = {m.node for m in kept}
    order = old.next_order
    for node, c in alive.items():
        if node not in known:
            kept.append(Member(node, c.allocation, c.incarnation, c.address, order=order, domain=c.domain))
            order += 1
    return tuple(sorted(kept, key=lambda m: m.order))


def _place(
    old: Placement,
    ideal: Sequence[NodeId],
    copies: int,
    survivors: Sequence[NodeId],
    leaders: Sequence[NodeId],
    *,
    steady: set[NodeId],
    replaced: Mapping[NodeId, NodeId],
    alive: Container[NodeId],
    handover: bool,
) -> Placement:
    if not survivors:
        held = tuple(replaced.get(n, n) for n in old.in_sync)
        return _changed(old, Placement(0, old.epoch, held, held, lost=True))
    here = [n for n in ideal if n in alive]
    wanted = here[:copies]  # one whose copy was asynchronous steps in for one that is away
    incumbent = old.owners[0] if not old.lost and old.owners[0] in steady and old.owners[0] in leaders else None
    best = next((n for n in wanted if n in leaders), leaders[0])
    primary = best if incumbent is None or handover else incumbent
    complete = all(n in survivors for n in wanted)
    in_sync = [n for n in wanted if n in survivors and n != primary]
    extra = [n for n in survivors if n not in wanted and n != primary]
    in_sync += standing_in(extra, ideal[:copies], [primary, *in_sync]) if complete and wanted else extra
    owners = [primary, *in_sync, *(n for n in wanted if n not in survivors)]
    asynchronous = tuple(n for n in here[copies:] if n not in owners)
    epoch = old.epoch if primary == incumbent else old.epoch + 1
    return _changed(old, Placement(0, epoch, tuple(owners), (primary, *in_sync), asynchronous=asynchronous))


def placed_under_the_same(
    old: Placement,
    ideal: Sequence[NodeId],
    copies: int,
    whole: Sequence[NodeId],
    here: Container[NodeId],
    *,
    doubted: Container[NodeId] = (),
) -> Placement:
    """Where a partition is once these MOVING copies are in sync as well, and its primary stays: by the same rule.

    `ideal`: with those behind the first `copies`, that are asynchronous. Copies on nodes that are not `here` go; those that
    are `doubted` are in sync no more.
    """
    primary = old.owners[0]
    return _place(
        old,
        ideal,
        copies,
        [n for n in (*old.in_sync, *whole) if n in here and n not in doubted],
        [primary],
        steady={primary},
        replaced={},
        alive=here,
        handover=False,
    )


def handed_over(
    old: Placement, ideal: Sequence[NodeId], leaves: Container[NodeId] = (), doubted: Container[NodeId] = ()
) -> Placement:
    """Where a partition is once the best of its in-sync copies is primary, in a new epoch; the copies are the same.

    By light steps alone a primary only ever moves to a better place, so that nobody is made primary twice under one fence.
    Those who are about to go, and first of all those whose copies are wrong, are the last: this changes only where a new
    fence begins.
    """
    ranks = {node: rank for rank, node in enumerate(ideal)}

    def place(node: NodeId) -> tuple[bool, bool, int]:
        return node in doubted, node in leaves, ranks.get(node, len(ranks))

    in_sync = tuple(sorted(old.in_sync, key=place))
    if place(in_sync[0]) >= place(old.owners[0]):
        return old
    owners = (*in_sync, *(n for n in old.owners if n not in in_sync))
    return _changed(old, Placement(0, old.epoch + 1, owners, in_sync, asynchronous=old.asynchronous))


def _changed(old: Placement, new: Placement) -> Placement:
    """`new` with the version that follows `old`'s: one more for each slot that changed, and for any other change."""
    slots = max(len(old.owners), len(new.owners))
    changes = sum(
        (old.owners[i] if i < len(old.owners) else None) != (new.owners[i] if i < len(new.owners) else None)
        for i in range(slots)
    )
    changes += sum(a != b for a, b in zip_longest(old.asynchronous, new.asynchronous))
    if not changes and (old.in_sync, old.epoch, old.lost) != (new.in_sync, new.epoch, new.lost):
        changes = 1
    return Placement(old.version + changes, new.epoch, new.owners, new.in_sync, new.lost, asynchronous=new.asynchronous)
