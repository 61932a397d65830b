"""When copies that are vouched for come to count, how many there are, and where a light step places them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

import msgspec

from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.moves import better_of
from rebalance.plan import Change, first_topology, next_topology
from rebalance.steps import STEPS, fits, handover_step, light_step, moving_in, stepped, worth_a_step
from rebalance.table import Candidate, Placement, Topology
from wal.ids import Ballot, NodeId

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
