"""When copies that are vouched for come to count, how many there are, and where a light step places them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

import msgspec

from rebalance.coming import STEPS, moving_in, worth_a_step
from rebalance.handing import PARTITIONS_AT_ONCE, all_may_leave
from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.migrations import Migrations, Paused
from rebalance.moves import better_of
from rebalance.namespaces import NamespaceSettings
from rebalance.plan import Change, first_topology, next_topology
from rebalance.steps import (
    decode_step,
    encode_step,
    fits,
    handover_step,
    light_step,
    may_join,
    stepped,
)
from rebalance.table import Candidate, Placement, Topology
from wal.ids import NO_VERSION, Ballot, NodeId, Version
from wal.records import Claim

NODES = ("n1", "n2", "n3")
MEMBERS = ("n1", "n2", "n3", "n4")
IDEAL = ("n1", "n2", "n3")


def moving(copies: int, *, alone: int = 0) -> Topology:
    """A map of 32 partitions, in which n3 is yet to become whole in so many, and in some of them n2 is not there either."""
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in NODES]
    topology = first_topology("c", "test", 32, 2, candidates)
    placements = list(topology.placements)
    for number in range(copies):
        old = placements[number]
        owners = ("n1", "n2", "n3")
        in_sync = ("n1",) if number < alone else ("n1", "n2")
        placements[number] = msgspec.structs.replace(old, owners=owners, in_sync=in_sync)
    return msgspec.structs.replace(topology, placements=tuple(placements))


def test_copies_that_come_together_come_to_count_together() -> None:
    topology = moving(24)
    vouched = [(number, "n3") for number in range(24)]
    assert moving_in(topology) == 24
    fewer = (*topology.placements[:5], *(msgspec.structs.replace(p, in_sync=p.owners) for p in topology.placements[5:]))
    after = msgspec.structs.replace(topology, placements=fewer)
    assert moving_in(after, topology, 24) == moving_in(after) > 0
    assert moving_in(topology, after, moving_in(after)) == 24
    due = [count for count in range(1, 25) if worth_a_step(topology, vouched[:count], 24, 24)]
    assert due == list(range(24 // STEPS, 25)), "a sixth of them is worth a step"
    assert worth_a_step(topology, vouched[:1], 1, 24), "the last one waits for nobody"


def test_a_copy_of_a_partition_that_has_one_is_not_kept_waiting() -> None:
    topology = moving(24, alone=1)
    assert worth_a_step(topology, [(0, "n3")], 25, 25)
    assert not worth_a_step(topology, [(1, "n3")], 25, 25)


def test_copies_on_nodes_that_are_away_are_not_waited_for() -> None:
    topology = moving(24)
    here = tuple(m for m in topology.members if m.node != "n3")
    assert moving_in(msgspec.structs.replace(topology, members=here)) == 0


def _subsets(nodes: Sequence[NodeId]) -> Iterator[tuple[NodeId, ...]]:
    for size in range(len(nodes) + 1):
        yield from combinations(nodes, size)


def _tables() -> Iterator[tuple[tuple[NodeId, ...], int, tuple[NodeId, ...]]]:
    """All ways to place a partition among four members: (owners, how many are in sync, which of the others are whole)."""
    for size in range(1, len(MEMBERS) + 1):
        for owners in permutations(MEMBERS, size):
            for in_sync in range(1, size + 1):
                for whole in _subsets(owners[in_sync:]):
                    yield owners, in_sync, whole


def _ideal(_: Sequence[NodeId], __: Mapping[NodeId, str], partitions: int, ___: int) -> list[tuple[NodeId, ...]]:
    return [IDEAL] * partitions


def test_a_light_step_places_copies_as_a_full_exchange_would_and_lets_none_go_too_soon() -> None:
    """Each placement of one partition among four members, one partition of a map each, all in one step."""
    tables = list(_tables())
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in MEMBERS]
    first = first_topology("c", "test", len(tables), 2, candidates, _ideal)
    placements = tuple(Placement(1, 1, owners, owners[:whole]) for owners, whole, _ in tables)
    old = msgspec.structs.replace(first, placements=placements)
    vouched = {number: dict.fromkeys(whole, owners[0]) for number, (owners, _, whole) in enumerate(tables)}
    singles = {
        n: SingleMap(
            old.version,
            Ballot(1, "n1"),
            Life(n, 1, 0),
            [],
            [],
            [(number, copy) for number, copies in vouched.items() for copy, primary in copies.items() if primary == n],
        )
        for n in MEMBERS
    }
    full = next_topology(
        old, Change(candidates=candidates, singles=singles, handover=(), baseline=old.baseline, map_hash=7), _ideal
    ).topology
    step = light_step(old, 7, vouched, (), _ideal, surplus=range(len(tables)))
    assert step is not None
    assert fits(old, 7, step)
    light = stepped(old, step)
    light.check()
    for table, before, after, wanted in zip(tables, old.placements, light.placements, full.placements, strict=True):
        assert after == wanted, f"{table}: {after}, and a full exchange places {wanted}"
        assert after.owners[0] == before.owners[0]
        assert len(after.in_sync) >= min(len(before.in_sync), len(IDEAL)), f"{table}: {after} has too few copies"
        gone = [n for n in before.in_sync if n not in after.in_sync]
        assert not gone or all(n in after.in_sync for n in IDEAL), f"{table}: {gone} went before all that are wanted came"
    again = light_step(light, 8, {}, (), _ideal, surplus=better_of(light, MEMBERS, _ideal).surplus)
    assert again is None, "nothing is left to let go"


def _away() -> tuple[Topology, list[tuple[tuple[NodeId, ...], int]]]:
    """A map without n3, of whom an earlier life claimed something, and its partitions in all ways among the others."""
    tables = [
        (owners, in_sync)
        for size in range(1, 4)
        for owners in permutations(("n1", "n2", "n4"), size)
        for in_sync in range(1, size + 1)
    ]
    candidates = [Candidate(n, f"disk-{n}", 7, f"{n}:1", f"rack-{n}") for n in MEMBERS]
    first = first_topology("c", "test", len(tables), 2, candidates, _ideal)
    return msgspec.structs.replace(
        first,
        version=Version(4, 2),
        fence=Version(4, 0),
        members=tuple(m for m in first.members if m.node != "n3"),
        baseline=IDEAL,
        allocations={n: f"disk-{n}" for n in IDEAL},
        placements=tuple(Placement(1, 1, owners, owners[:whole]) for owners, whole in tables),
        claims=(Claim("n3", "disk-n3", 7, 900), Claim("n1", "disk-n1", 7, 80)),
        listed={"n3#disk-n3": (7, Version(3, 0))},
    ), tables


def test_who_joins_by_a_light_step_is_listed_as_by_a_full_exchange_and_leads_nothing() -> None:
    """n3 comes back in another life, and n5 is new: the map is what a full exchange would make of the same reports."""
    old, _ = _away()
    back, new = Candidate("n3", "disk-n3", 9, "n3:2", "rack-n3"), Candidate("n5", "disk-n5", 1, "n5:1", "rack-n5")
    here = [Candidate(m.node, m.allocation, m.incarnation, m.address, m.domain) for m in old.members]
    lives = {
        c.node: Life(c.allocation, c.incarnation, 0, [(7, 0)] if c.incarnation == 9 else []) for c in (*here, back, new)
    }
    singles = {n: SingleMap(old.version, Ballot(1, "n1"), life, [], [], []) for n, life in lives.items()}
    change = Change(
        candidates=[*here, back, new], singles=singles, handover=(), baseline=IDEAL, map_hash=7, voted={"n1": 80}
    )
    full = next_topology(old, change, _ideal).topology
    step = light_step(old, 7, {}, (Claim("n3", "disk-n3", 7, 950),), _ideal, joins=[back, new])
    assert step is not None
    assert fits(old, 7, step)
    light = stepped(old, step)
    light.check()
    assert light.fence == old.fence
    assert msgspec.structs.replace(light, fence=NO_VERSION) == full
    for before, after in zip(old.placements, light.placements, strict=True):
        assert (after.owners[0], after.epoch) == (before.owners[0], before.epoch)
        assert set(after.in_sync) == set(before.in_sync), "nobody is relied on who was not, and nobody less"
        assert "n3" in after.owners
        assert "n5" not in after.owners


def test_who_joins_is_held_to_what_this_life_has_claimed_and_to_no_other() -> None:
    old, _ = _away()
    back = Candidate("n3", "disk-n3", 9, "n3:2", "rack-n3")
    heard = (Claim("n3", "disk-n3", 7, 950), Claim("n3", "disk-n3", 9, 20), Claim("n2", "disk-n2", 7, 5))
    step = light_step(old, 7, {}, heard, _ideal, joins=[back])
    assert step is not None
    assert sorted((c.node, c.incarnation, c.durable_lsn) for c in step.claims) == [
        ("n1", 7, 80),
        ("n2", 7, 5),
        ("n3", 9, 20),
    ]


def test_who_must_be_asked_what_it_has_does_not_join_by_a_step() -> None:
    old, _ = _away()
    back = Candidate("n3", "disk-n3", 9, "n3:2", "rack-n3")
    lost = msgspec.structs.replace(old.placements[0], in_sync=("n3",), owners=("n3",), lost=True)
    assert may_join(old, [back])
    assert may_join(old, [msgspec.structs.replace(back, allocation="another disk")]), "its copies are made anew"
    assert not may_join(msgspec.structs.replace(old, placements=(lost, *old.placements[1:])), [back])
    assert not may_join(msgspec.structs.replace(old, aside={"n3": 1}), [back])
    assert not may_join(old, [msgspec.structs.replace(back, domain="another rack")])
    assert not may_join(old, [Candidate("n2", "disk-n2", 8, "n2:1", "rack-n2")]), "another life of a member"
    step = light_step(old, 7, {}, (), _ideal, joins=[back])
    assert step is not None
    assert not fits(msgspec.structs.replace(old, aside={"n3": 1}), 7, step)
    assert not fits(old, 7, msgspec.structs.replace(step, joins=[msgspec.structs.replace(step.joins[0], order=1)]))


def test_copies_that_are_too_many_for_one_step_are_made_by_the_next() -> None:
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in MEMBERS]
    first = first_topology("c", "test", 2 * PARTITIONS_AT_ONCE, 2, candidates, _ideal)
    placements = tuple(Placement(1, 1, ("n1", "n2"), ("n1", "n2")) for _ in first.placements)
    here = tuple(m for m in first.members if m.node != "n3")
    topology = msgspec.structs.replace(first, members=here, placements=placements, baseline=IDEAL)
    step = light_step(topology, 7, {}, (), _ideal, joins=[candidates[2]])
    assert step is not None
    topology = stepped(topology, step)
    missing = better_of(topology, MEMBERS, _ideal).missing
    assert missing == list(range(PARTITIONS_AT_ONCE, 2 * PARTITIONS_AT_ONCE))
    step = light_step(topology, 7, {}, (), _ideal, missing=missing)
    assert step is not None
    topology = stepped(topology, step)
    assert all(p.owners == IDEAL and p.in_sync == ("n1", "n2") for p in topology.placements)
    assert not better_of(topology, MEMBERS, _ideal).missing


def test_what_the_operator_says_is_said_by_a_step_that_changes_no_copy() -> None:
    old, _ = _away()
    step = light_step(
        old, 7, {}, (), _ideal, namespaces={"acc": NamespaceSettings(ttl_ms=5)}, migrations=Migrations(paused=Paused.ALL)
    )
    assert step is not None
    assert fits(old, 7, step)
    topology = stepped(old, step)
    assert (topology.placements, topology.version, topology.fence) == (old.placements, Version(4, 3), Version(4, 0))
    assert topology.namespaces == {"acc": NamespaceSettings(Version(4, 3), ttl_ms=5)}
    assert topology.migrations == Migrations(Version(4, 3), Paused.ALL, paused_since=Version(4, 3))
    later = light_step(topology, 8, {}, (), _ideal, namespaces={"old": NamespaceSettings(ttl_ms=6)})
    assert later is not None
    assert stepped(topology, later).migrations == topology.migrations


def _placed(*ways: tuple[tuple[NodeId, ...], int]) -> Topology:
    """A map with a partition for each of these: (owners, how many of them are in sync)."""
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in MEMBERS]
    first = first_topology("c", "test", len(ways), 2, candidates, _ideal)
    placements = tuple(Placement(1, 1, owners, owners[:whole]) for owners, whole in ways)
    return msgspec.structs.replace(first, placements=placements)


def test_a_handover_step_makes_the_best_copy_primary_and_changes_nothing_else() -> None:
    """Each placement of one partition among four members: if all is whole, the best is primary."""
    ways = [(owners, whole) for owners, whole, others in _tables() if not others]
    old = _placed(*ways)
    step = handover_step(old, 7, range(len(ways)), (), _ideal)
    assert step is not None
    assert fits(old, 7, step)
    new = stepped(old, step)
    new.check()
    assert new.fenced == old.fenced, "what is said of copies is as true as before"
    for (owners, whole), before, after in zip(ways, old.placements, new.placements, strict=True):
        best = min(owners, key=MEMBERS.index)
        if whole < len(owners) or owners[0] == best:
            assert after == before, f"{owners}, {whole} of them whole: {after}"
            continue
        assert (after.primary, after.epoch) == (best, before.epoch + 1)
        assert sorted(after.owners) == sorted(after.in_sync) == sorted(owners)
        assert after.version > before.version
    assert handover_step(new, 8, range(len(ways)), (), _ideal) is None, "nobody is made primary twice"


def test_nothing_is_handed_over_by_a_step_to_or_from_whom_it_cannot_count_on() -> None:
    old = _placed((("n3", "n1", "n2"), 3))
    assert handover_step(old, 7, [0], (), _ideal) is not None
    assert handover_step(msgspec.structs.replace(old, aside={"n2": 1}), 7, [0], (), _ideal) is None
    assert handover_step(msgspec.structs.replace(old, members=old.members[1:]), 7, [0], (), _ideal) is None
    another = dict(old.allocations) | {"n2": "another disk"}
    assert handover_step(msgspec.structs.replace(old, allocations=another), 7, [0], (), _ideal) is None


def test_a_primary_leaves_a_wrong_copy_for_the_best_that_is_right_and_begins_a_fence() -> None:
    """Each placement of one partition among four members, and any of its copies wrong: loading ones stay what they are."""
    ways = [(owners, whole) for owners, whole, others in _tables() if not others]
    for wrong in _subsets(MEMBERS):
        old = _placed(*ways)
        doubted = {number: [n for n in wrong if n in p.in_sync] for number, p in enumerate(old.placements)}
        led = [number for number, p in enumerate(old.placements) if p.owners[0] in doubted[number]]
        step = handover_step(old, 7, led, (), _ideal, doubted=doubted)
        free = [number for number in led if len(doubted[number]) < len(old.placements[number].in_sync)]
        assert [number for number, _ in (step.placements if step is not None else ())] == free
        if step is None:
            continue
        assert all_may_leave(old, {number: doubted[number] for number in free})
        assert free == led or not all_may_leave(old, doubted)
        assert fits(old, 7, decode_step(encode_step(step)))
        new = stepped(old, step)
        new.check()
        assert new.fence == new.version, "places are worse"
        for number, moved in step.placements:
            before = old.placements[number]
            right = [n for n in before.in_sync if n not in wrong]
            assert (moved.primary, moved.epoch) == (min(right, key=MEMBERS.index), before.epoch + 1)
            assert sorted(moved.in_sync) == sorted(before.in_sync), "the word of who led is needed"
            assert sorted(moved.owners) == sorted(before.owners)


def test_a_full_exchange_weighs_who_is_waited_for_where_a_wrong_primary_is_beside_a_slow_copy() -> None:
    old, doubted = _placed((("n1", "n2", "n3"), 3), (("n1", "n2", "n3"), 2)), {0: ["n1"], 1: ["n1"]}
    assert all_may_leave(old, doubted)
    assert all_may_leave(old, {0: ["n2", "n3"], 1: ["n2"]}), "a primary that is right stays where it is"
    assert not all_may_leave(msgspec.structs.replace(old, aside={"n2": 1}), doubted)
    assert not all_may_leave(msgspec.structs.replace(old, allocations=old.allocations | {"n2": "another"}), doubted)
    lost = tuple(msgspec.structs.replace(p, lost=True) for p in old.placements)
    assert not all_may_leave(msgspec.structs.replace(old, placements=lost), doubted)


def test_a_step_that_does_more_than_a_step_may_does_not_fit() -> None:
    old = _placed((("n3", "n1", "n2"), 3), (("n3", "n1", "n2"), 2))
    step = handover_step(old, 7, [0, 1], (), _ideal)
    assert step is not None
    assert [number for number, _ in step.placements] == [0], "a copy of the other one is not whole"
    _, moved = step.placements[0]

    def with_placement(number: int, placement: Placement) -> bool:
        return fits(old, 7, msgspec.structs.replace(step, placements=[(number, placement)]))

    assert with_placement(0, moved)
    assert not with_placement(0, msgspec.structs.replace(moved, epoch=moved.epoch + 1)), "an epoch is left out"
    assert not with_placement(0, msgspec.structs.replace(moved, epoch=old.placements[0].epoch)), "it is the same epoch"
    assert not with_placement(0, msgspec.structs.replace(moved, in_sync=("n1", "n3"))), "a copy counts no more"
    fewer = msgspec.structs.replace(moved, owners=("n1", "n3"), in_sync=("n1", "n3"))
    assert not with_placement(0, fewer), "a copy goes in the same step"
    assert not with_placement(1, moved), "a copy of it is loading"
    assert not with_placement(0, msgspec.structs.replace(moved, lost=True))
