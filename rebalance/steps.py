"""A light step: the next map where nobody joins or leaves, as what it changes, and why nobody has to stop for it.

A MOVING copy becomes in sync on its primary's word. The word binds: whoever gave it waits for the copy until another map
comes (`rebalance.vouching`), so it is as true when the step is decided as it was when it was given, and nobody has to
report anything, or to keep still. `docs/light-steps.md` argues that nothing acknowledged can be lost by it.

A **handover step** moves primaries among copies that are all in sync. The new one serves when each of these has said that
it goes by the step (`rebalance.promotion`), the old one among them: only its own partition stops, and for no longer. It
moves to a better place, or, off a copy that is wrong, to a worse one (`rebalance.handing`). `docs/handover.md` argues it.

A node that **joins** by a step leads nothing and is relied on for nothing: it has no copy, or is to make one. What the
operator has said of namespaces and of migrations concerns no copy at all. A node that **goes** is noted first, leads
nothing next, has no copy then, and is a member no more (`rebalance.going`). Another **baseline** (`rebalance.baselines`)
is a step of its own; copies are made, moved and let go by those that follow.

Maps that follow each other by light steps have one **fence**: what was said under one of them is as true under the next.
Within it a partition's primary and epoch are told by its placement: a copy heeds the primary of its own map alone.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

import msgspec

from rebalance import baselines, going
from rebalance.adding import Added, adding, may_be_added, placements_of
from rebalance.affinity import Affinity, assign
from rebalance.handing import NONE_DOUBTED, PARTITIONS_AT_ONCE, movable
from rebalance.ideal import places_of
from rebalance.migrations import Migrations, ordered
from rebalance.namespaces import NamespaceSettings, places_anew
from rebalance.namespaces import changed as said_of_namespaces
from rebalance.plan import Alike, placed_under_the_same
from rebalance.table import BEFORE_KEPT, Candidate, Group, Member, Placement, Topology, decode, encode, hash_of, node_of
from wal.ids import Namespace, NodeId, Number, Version
from wal.records import Claim

Vouched = Mapping[int, Mapping[NodeId, NodeId]]
"""Partition -> MOVING copy -> the primary who vouches for it."""


BEGUN_OF_WORK = 8
"""So many ways in which partitions come into the map are as much work as one that is placed elsewhere,"""
ADDED_OF_WORK = 32
"""and so many partitions for which it is said which of these ways is theirs."""
NOTHING_SAID: Mapping[Namespace, NamespaceSettings] = {}


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a light step changes of the map `after`, whose bytes have this hash.

    `joins` are members that it lists beside those of before. `namespaces` and `migrations` are what it says of them, if it
    says anything else than the map before. `goes` are members that it notes to go, `gone` those that it lists no more.
    `groups` come into the map, behind those that are there. `worse`: primaries move to worse places, off wrong copies.

    `rest`, where it is no light step: the map of a full exchange as what it changes. That is all that it says of anything
    but partitions; those that it places elsewhere, or anew behind the others, are in `placements`.
    """

    after: Version
    map_hash: int
    placements: list[tuple[Number, Placement]]
    claims: list[Claim]
    joins: list[Member] = msgspec.field(default_factory=list)
    namespaces: dict[Namespace, NamespaceSettings] = msgspec.field(default_factory=dict)
    migrations: Migrations | None = None
    goes: list[NodeId] = msgspec.field(default_factory=list)
    gone: list[NodeId] = msgspec.field(default_factory=list)
    baseline: list[NodeId] = msgspec.field(default_factory=list)
    groups: list[Added] = msgspec.field(default_factory=list)
    worse: bool = False
    rest: Topology | None = None

    @property
    def version(self) -> Version:
        """Of the map that comes of it: another major number if it lists others."""
        if self.rest is not None:
            return self.rest.version
        major, minor = self.after
        return Version(major + 1, 0) if self.joins or self.gone else Version(major, minor + 1)

    @property
    def work(self) -> int:
        """How much it is to take it: each partition as much as a thing that is decided, or less where nothing is in it."""
        begun = sum(len(new.ways) // BEGUN_OF_WORK + len(new.which) // 2 // ADDED_OF_WORK for new in self.groups)
        return len(self.placements) + begun


def light_step(
    old: Topology,
    map_hash: int,
    vouched: Vouched,
    claims: Sequence[Claim],
    affinity: Affinity = assign,
    *,
    surplus: Collection[int] = (),
    missing: Collection[int] = (),
    joins: Sequence[Candidate] = (),
    namespaces: Mapping[Namespace, NamespaceSettings] = NOTHING_SAID,
    groups: Sequence[Group] = (),
    migrations: Migrations | None = None,
) -> Step | None:
    """The step that makes in sync what is vouched for, lets go what is `surplus`, has copies made that are `missing`, lists
    who joins, brings `groups`, and says of namespaces and migrations what is to be said; None if there is nothing to do so.

    Copies are placed by the rule of the full exchange: what is not wanted any more goes as soon as every wanted copy that
    is here is in sync, in this very step. `claims` is all that is known for sure of what disks have claimed: a copy that
    counts from now on is held to what its node has on disk now. Where a member is concerned that was set aside, a full
    exchange weighs who is waited for instead.
    """
    joined = [
        Member(c.node, c.allocation, c.incarnation, c.address, order=order, domain=c.domain)
        for order, c in enumerate(joins, old.next_order)
    ]
    lives = {m.node: m.allocation for m in (*old.members, *joined)}
    ideal, leaves = places_of(old, affinity), going.going(old)
    may_count, slow_ones, alike = _may_count(old), {n for n, times in old.aside.items() if times > 0}, Alike()
    numbers = sorted(dict.fromkeys([*vouched, *surplus, *missing, *_wanted_of(joined, ideal)]))
    changed: list[tuple[int, Placement]] = []

    def place(now: Placement, wanted: Sequence[NodeId], copies: int, whole: Sequence[NodeId]) -> Placement:
        here = {n for n in lives if n not in leaves or n in now.copies} if leaves else lives
        return placed_under_the_same(now, wanted, copies, whole, here)

    for number in numbers:
        placement, lagging = old.placements[number], vouched.get(number, {})
        slow = bool(slow_ones) and not slow_ones.isdisjoint(placement.in_sync)
        if placement.lost or (slow and (lagging or number in surplus)):
            continue  # the slow copy is to go with the map that brings another one, and not after it
        wanted = tuple(ideal[number])
        copies = min(old.group_of(number).copies, len(wanted))
        whole = _whole(may_count, placement, lagging) if lagging else ()
        placed = alike.placed(placement, place, (wanted, copies, whole))
        if placed is not placement:
            changed.append((number, placed))
        if len(changed) == PARTITIONS_AT_ONCE:
            break  # the others are taken in by the next one
    if not (changed or joined or namespaces or migrations is not None):
        return None
    raised, said = _raised(old.claims, claims, lives, joined), dict(namespaces)
    new = adding(old, groups, affinity) if groups else []
    return Step(old.version, map_hash, changed, raised, joins=joined, namespaces=said, migrations=migrations, groups=new)


def letting_go(
    old: Topology, map_hash: int, those: Sequence[NodeId], claims: Sequence[Claim], affinity: Affinity = assign
) -> Step:
    """The step by which these, who are noted and lead nothing, have copies no more, or the next ones of very many; with the
    last of them they go.

    Whoever counts by the map that comes of it counts by this one. What is not wanted any more goes with them.
    """
    lives = {m.node: m.allocation for m in old.members}
    here = {node: disk for node, disk in lives.items() if node not in those}
    ideal, numbers = places_of(old, affinity), going.held_by(old, those)
    changed: list[tuple[int, Placement]] = []
    for number in numbers[:PARTITIONS_AT_ONCE]:
        placement = old.placements[number]
        copies = min(old.group_of(number).copies, len(ideal[number]))
        changed.append((number, placed_under_the_same(placement, ideal[number], copies, [], here)))
    gone = list(those) if len(numbers) == len(changed) else []
    return Step(old.version, map_hash, changed, _raised(old.claims, claims, lives), gone=gone)


def noting(old: Topology, map_hash: int, those: Sequence[NodeId], claims: Sequence[Claim]) -> Step:
    """The step that notes that these go."""
    lives = {m.node: m.allocation for m in old.members}
    return Step(old.version, map_hash, [], _raised(old.claims, claims, lives), goes=list(those))


def rebasing(old: Topology, map_hash: int, baseline: Sequence[NodeId], claims: Sequence[Claim]) -> Step:
    """The step by which these are the baseline."""
    lives = {m.node: m.allocation for m in old.members}
    return Step(old.version, map_hash, [], _raised(old.claims, claims, lives), baseline=list(baseline))


def taking_out(
    old: Topology,
    map_hash: int,
    doubted: Mapping[int, Sequence[NodeId]],
    claims: Sequence[Claim],
    affinity: Affinity = assign,
) -> Step:
    """The step by which these copies, none of which is a primary's, are in sync no more; or the first ones of very many.

    Whoever counts by the map that comes of it counts by this one.
    """
    lives = {m.node: m.allocation for m in old.members}
    ideal, changed = places_of(old, affinity), list[tuple[int, Placement]]()
    for number in sorted(doubted)[:PARTITIONS_AT_ONCE]:
        placement, wanted = old.placements[number], ideal[number]
        copies = min(old.group_of(number).copies, len(wanted))
        changed.append((number, placed_under_the_same(placement, wanted, copies, [], lives, doubted=doubted[number])))
    return Step(old.version, map_hash, changed, _raised(old.claims, claims, lives))


def _may_count(old: Topology) -> set[NodeId]:
    """Whose copies may count from now on: of those who are here on their disks a full exchange need not weigh whether they
    are waited for."""
    return {m.node for m in old.members if m.allocation == old.allocations.get(m.node) and old.aside.get(m.node, 0) <= 0}


def _whole(may_count: Container[NodeId], placement: Placement, vouched: Mapping[NodeId, NodeId]) -> tuple[NodeId, ...]:
    """Which of these copies of a partition count from now on: its primary vouches for them."""
    return tuple(
        node
        for node, primary in vouched.items()
        if primary == placement.primary and node in placement.owners and node not in placement.in_sync and node in may_count
    )


def may_join(old: Topology, joins: Sequence[Candidate]) -> bool:
    """Whether these can be listed without stopping anybody: nothing that is here rests on what they have.

    Not a member in another life: what that one had goes with it. Nor who was set aside, nor one by whose domain copies
    should be elsewhere; and nobody where something is LOST, for he may have it.
    """
    return not any(p.lost for p in old.placements) and all(
        old.member(c.node) is None
        and old.aside.get(c.node, 0) <= 0
        and (c.node not in old.baseline or c.domain in ("", old.domains.get(c.node, "")))
        for c in joins
    )


def _wanted_of(joined: Sequence[Member], ideal: Sequence[Sequence[NodeId]]) -> list[int]:
    """The partitions of which they are to have a copy."""
    if not joined:
        return []
    nodes = {m.node for m in joined}
    return [number for number, wanted in enumerate(ideal) if not nodes.isdisjoint(wanted)]


def handover_step(
    old: Topology,
    map_hash: int,
    numbers: Sequence[int],
    claims: Sequence[Claim],
    affinity: Affinity = assign,
    *,
    most: int = PARTITIONS_AT_ONCE,
    doubted: Mapping[int, Sequence[NodeId]] = NONE_DOUBTED,
) -> Step | None:
    """The step that moves the primaries of these partitions, or of the first ones, to where they belong, or to the best of
    those that are not `doubted`; None if none of them can be moved so."""
    changed = movable(old, numbers, affinity, most=most, doubted=doubted)
    if not changed:
        return None
    lives = {m.node: m.allocation for m in old.members}
    return Step(old.version, map_hash, changed, _raised(old.claims, claims, lives), worse=bool(doubted))


def _raised(
    known: Sequence[Claim], heard: Sequence[Claim], lives: Mapping[NodeId, str], joined: Sequence[Member] = ()
) -> list[Claim]:
    """The claims of a map, and of the lives that it knows what was heard since. Who joins is held to what this life of it
    has claimed: the map that lists it makes void what others have."""
    listed = {m.node: m.incarnation for m in joined}
    most: dict[tuple[NodeId, str, int], int] = {}
    for c in (*known, *(c for c in heard if lives.get(c.node) == c.allocation)):
        if listed.get(c.node, c.incarnation) == c.incarnation and lives.get(c.node, c.allocation) == c.allocation:
            key = (c.node, c.allocation, c.incarnation)
            most[key] = max(c.durable_lsn, most.get(key, 0))
    return [Claim(*key, lsn) for key, lsn in most.items()]


def fits(old: Topology, map_hash: int, step: Step) -> bool:
    """Whether a step is one from this very map, and what it changes is what a step may."""
    return (
        (step.after, step.map_hash, step.rest) == (old.version, map_hash, None)
        and may_be_added(old, step.groups)
        and all(_is_in(len(old.all_groups) + len(step.groups), said) for said in step.namespaces.values())
        and _are_placed([placed for _, placed in step.placements], [m.node for m in (*old.members, *step.joins)])
        and going.fits(old, step.placements, step.goes, step.gone)
        and all(
            number < len(old.placements)
            and (_stays(old.placements[number], placed) or _moves(old.placements[number], placed, worse=step.worse))
            for number, placed in step.placements
        )
        and [m.order for m in step.joins] == list(range(old.next_order, old.next_order + len(step.joins)))
        and (not step.joins or may_join(old, [_candidate(m) for m in step.joins]))
        and (not step.baseline or (_only_rebases(step) and baselines.may_be(old, step.baseline)))
    )


def _is_in(groups: int, said: NamespaceSettings) -> bool:
    """Whether a namespace is in one of so many groups, and is to be."""
    return 0 <= said.group < groups and (said.to is None or 0 <= said.to.group < groups)


def _only_rebases(step: Step) -> bool:
    said = step.placements, step.joins, step.namespaces, step.goes, step.gone, step.groups, step.worse
    return not any(said) and step.migrations is None


def _are_placed(placements: Sequence[Placement], names: Collection[NodeId]) -> bool:
    """Whether each of them is as `Topology.check` asserts of a map; a peer speaks of them."""
    for owners, in_sync, asynchronous in dict.fromkeys((p.owners, p.in_sync, p.asynchronous) for p in placements):
        copies = owners + asynchronous
        led = bool(owners) and owners[0] in in_sync and all(node in owners for node in in_sync)
        if not led or len(set(copies)) < len(copies) or any(node not in names for node in copies):
            return False
    return True


def _candidate(member: Member) -> Candidate:
    return Candidate(member.node, member.allocation, member.incarnation, member.address, member.domain)


def _takes_out(old: Placement, new: Placement) -> bool:
    """Whether a copy that was in sync has to become so anew."""
    return any(node not in new.in_sync and node in new.owners for node in old.in_sync)


def _stays(old: Placement, new: Placement) -> bool:
    """Whether a partition has the primary that it had, in the same epoch."""
    return not new.lost and (new.primary, new.epoch) == (old.primary, old.epoch)


def _moves(old: Placement, new: Placement, *, worse: bool) -> bool:
    """Whether another of its copies is primary, in the next epoch, and nothing else is different; all are in sync, unless a
    fence begins."""
    same = sorted(old.owners) == sorted(new.owners) and sorted(old.in_sync) == sorted(new.in_sync)
    same = same and (worse or len(old.owners) == len(old.in_sync))
    same = same and old.asynchronous == new.asynchronous
    return same and not old.lost and not new.lost and new.primary != old.primary and new.epoch == old.epoch + 1


def stepped(old: Topology, step: Step) -> Topology:
    """The map that a step makes of the one before it, if it `fits`, or `makes_a_map`: the same value for everybody."""
    placements = list(old.placements)
    known = len(placements)
    for number, placement in step.placements:
        if number < known:
            placements[number] = placement
        else:
            placements.append(placement)
    if step.rest is not None:
        return msgspec.structs.replace(step.rest, placements=tuple(placements))
    topology = msgspec.structs.replace(
        old,
        version=step.version,
        placements=tuple(placements),
        claims=tuple(step.claims),
        before=(*old.before, (old.version, step.map_hash))[-BEFORE_KEPT:],
        fence=step.version if _begins_a_fence(old, step) else old.fenced,
        namespaces=said_of_namespaces(old.namespaces, step.namespaces, step.version),
        migrations=ordered(old.migrations, step.migrations, step.version),
    )
    if step.groups:
        topology = msgspec.structs.replace(
            topology,
            placements=(*placements, *placements_of(old, step.groups)),
            groups=(*old.all_groups, *(new.group for new in step.groups)),
        )
    if step.goes or step.gone:
        topology = going.noted(old, topology, step.goes, step.gone)
    if step.baseline:
        topology = baselines.brought(topology, old, step.baseline, step.version)
    return _joined(topology, step.joins) if step.joins else topology


def _begins_a_fence(old: Topology, step: Step) -> bool:
    """Whether places become worse than they were, keys are elsewhere, a copy that stays is in sync no more, or a name is
    that of another life than under the fence before."""
    if step.goes or step.baseline or step.groups or step.worse or places_anew(old.namespaces, step.namespaces):
        return True
    if any(_takes_out(old.placements[number], placed) for number, placed in step.placements):
        return True
    return any(going.has_gone(old, m.node) for m in step.joins)


def map_of(said: bytes) -> Topology | None:
    """The map that a peer speaks of; None: what it says is none."""
    try:
        return decode(said)
    except ValueError:
        return None


def may_follow(after: Version, said: bytes) -> bool:
    """Whether that is a map, and of a later version."""
    topology = map_of(said)
    return topology is not None and topology.version > after


def rebuilt(whole: bytes, steps: Sequence[tuple[bytes, int]]) -> bytes:
    """The bytes of the map to which these steps lead from this one, each told with the hash of what comes of it.

    Raises ValueError where they do not: a log without one of them would be taken for another map.
    """
    topology = decode(whole)
    known = hash_of(whole)
    for encoded, makes in steps:
        step = decode_step(encoded)
        if (step.after, step.map_hash) != (topology.version, known):
            raise ValueError(f"a step after {step.after} does not follow the map {topology.version} that is here")
        topology, known = stepped(topology, step), makes
    found = encode(topology)
    if hash_of(found) != known:
        raise ValueError(f"the steps that lead to map {topology.version} do not make the one that was committed")
    return found


_step_decoder = msgspec.msgpack.Decoder(Step)
encode_step = msgspec.msgpack.Encoder().encode
"""The bytes of a step, as the log has them."""


def decode_step(data: bytes) -> Step:
    """The inverse of `encode_step`; raises ValueError with what was wrong."""
    try:
        return _step_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a step: {error}") from error


def _joined(old: Topology, joins: Sequence[Member]) -> Topology:
    """A map that lists these members, too."""
    names = {m.node for m in joins}
    return msgspec.structs.replace(
        old,
        members=(*old.members, *joins),
        allocations=old.allocations | {m.node: m.allocation for m in joins if m.node in old.baseline},
        domains=old.domains | {m.node: m.domain for m in joins if m.domain},
        next_order=joins[-1].order + 1,
        listed={name: life for name, life in old.listed.items() if node_of(name) not in names},
    )
