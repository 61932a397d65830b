"""What would move, and in which order: only what has to, and repairs first."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebalance.affinity import assign
from rebalance.migrations import Paused
from rebalance.moves import Kind, Move, Why, better_of, moves, order_of_work, waits
from rebalance.plan import first_topology
from rebalance.steps import light_step
from rebalance.table import Candidate, Placement, Topology

NODES = ("n1", "n2", "n3", "n4", "n5")


def formed(*nodes: str, backups: int = 1, partitions: int = 16) -> Topology:
    """A cluster of these, all copies whole and in place."""
    return first_topology("c", "test", partitions, backups, [Candidate(n, n, 1, f"{n}:1", "") for n in nodes])


def test_a_cluster_in_order_moves_nothing() -> None:
    topology = formed("n1", "n2", "n3")
    assert moves(topology, topology.baseline) == []


def test_who_goes_is_replaced_and_gives_up_what_it_has_at_last() -> None:
    topology = formed("n1", "n2", "n3")
    found = moves(topology, ("n1", "n2"))
    assert {m.why for m in found if m.kind is not Kind.PRIMARY} == {Why.LEAVES}
    kinds = [m.kind for m in found]
    assert kinds == sorted(kinds, key=list(Kind).index), "copies, then primaries, then what is too much"
    assert {m.node for m in found if m.kind is Kind.DROP} == {"n3"}
    held = sum("n3" in p.owners for p in topology.placements)
    assert sum(m.kind is Kind.COPY for m in found) == held


def test_asynchronous_copies_are_shown_too_and_what_is_only_not_waited_for_any_more_is_not_dropped() -> None:
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in ("n1", "n2", "n3")]
    formed_so = first_topology("c", "test", 8, 0, candidates, async_backups=1)
    assert moves(formed_so, formed_so.baseline) == []
    without = [msgspec.structs.replace(p, asynchronous=()) for p in formed_so.placements]
    found = moves(msgspec.structs.replace(formed_so, placements=tuple(without)), formed_so.baseline)
    assert {(m.partition, m.node) for m in found} == {
        (number, node) for number, p in enumerate(formed_so.placements) for node in p.asynchronous
    }
    assert {m.kind for m in found} == {Kind.ASYNC}
    assert all(waits(m, Paused.BALANCE) and waits(m, Paused.ALL) for m in found)
    turned = [Placement(p.version, p.epoch, p.asynchronous, p.asynchronous) for p in formed_so.placements]
    back = moves(msgspec.structs.replace(formed_so, placements=tuple(turned)), formed_so.baseline)
    assert {m.kind for m in back} == {Kind.COPY, Kind.PRIMARY}, "who leads now stays as an asynchronous copy"
    gone = moves(formed_so, ("n1", "n2"))
    named = {m.partition for m in gone if (m.kind, m.node) == (Kind.DROP, "n3")}
    assert named == {number for number, p in enumerate(formed_so.placements) if "n3" in p.copies}


def test_repairs_come_first_and_of_them_what_has_the_fewest_copies() -> None:
    topology = formed("n1", "n2", "n3", backups=2, partitions=4)
    placements = [msgspec.structs.replace(p, in_sync=p.owners) for p in topology.placements]
    placements[2] = msgspec.structs.replace(placements[2], in_sync=placements[2].owners[:2])
    placements[3] = msgspec.structs.replace(placements[3], in_sync=placements[3].owners[:1])
    topology = msgspec.structs.replace(topology, placements=tuple(placements))
    found = moves(topology, topology.baseline)
    assert [m.partition for m in found] == [3, 3, 2]
    assert {m.why for m in found} == {Why.REPAIR}


@given(st.data())
def test_copies_are_made_where_the_fewest_are_and_balanced_last(data: st.DataObject) -> None:
    topology = formed(*NODES, backups=2, partitions=8)
    whole = data.draw(st.lists(st.integers(1, 3), min_size=8, max_size=8))
    orders = [data.draw(st.permutations(NODES)) for _ in range(8)]
    placements = tuple(Placement(1, 1, tuple(o[: w + 1]), tuple(o[:w])) for o, w in zip(orders, whole, strict=True))
    topology = msgspec.structs.replace(topology, placements=placements)
    asked = data.draw(st.lists(st.integers(0, 7), unique=True))
    done = order_of_work(topology, asked)
    assert sorted(done) == sorted(asked)
    copies = [whole[number] for number in done]
    assert copies == sorted(copies), "the fewest first, and what is complete last"
    held = {node: sum(node in p.owners for p in placements) for node in NODES}
    relieved = [held[placements[number].in_sync[-1]] for number in done if whole[number] == 3]
    assert relieved == sorted(relieved, reverse=True), "the fullest node is relieved first"
    assert order_of_work(topology, done[::-1]) == done, "whoever is asked in whichever order says the same"


def test_a_node_that_is_away_is_waited_for() -> None:
    topology = formed("n1", "n2")
    found = moves(topology, ("n1", "n2", "n9"))
    assert found
    assert all(m.here == (m.node != "n9") for m in found)


def test_a_partition_that_is_lost_is_left_alone() -> None:
    topology = formed("n1", "n2", partitions=2)
    lost = Placement(2, 1, topology.placements[0].owners, topology.placements[0].in_sync, True)
    topology = msgspec.structs.replace(topology, placements=(lost, topology.placements[1]))
    assert all(m.partition for m in moves(topology, ("n1",)))


@given(
    st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True),
    st.integers(0, 3),
)
def test_what_carries_data_is_target_minus_current_and_nothing_else(
    before: list[str], after: list[str], backups: int
) -> None:
    topology = formed(*before, backups=backups, partitions=8)
    ideal = assign(tuple(after), topology.domains, 8, backups + 1)
    found = moves(topology, after)
    for number, (placement, wanted) in enumerate(zip(topology.placements, ideal, strict=True)):
        of = [m for m in found if m.partition == number]
        assert {m.node for m in of if m.kind is Kind.COPY} == set(wanted) - set(placement.in_sync)
        assert {m.node for m in of if m.kind is Kind.DROP} == set(placement.owners) - set(wanted)
        assert len(of) == len({(m.kind, m.node) for m in of})
    assert found == moves(topology, after), "the same for whoever asks"


@pytest.mark.parametrize("kind", Kind)
def test_a_move_is_told_as_fields(kind: Kind) -> None:
    move = Move(1, kind, Why.BALANCE, "n1", None, True)
    assert msgspec.json.decode(msgspec.json.encode(move), type=Move) == move


def test_while_no_copy_may_go_none_goes_with_an_asynchronous_one_that_is_made() -> None:
    """n3 led the partition before the last step, and is asked yet; n2 is to have an asynchronous copy."""
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in ("n1", "n2", "n3")]
    first = first_topology("c", "test", 8, 0, candidates, async_backups=1)
    number = next(n for n, p in enumerate(first.placements) if "n3" not in p.copies)
    other = next(n for n in range(8) if n != number)
    led, follows = first.placements[number].owners[0], first.placements[number].asynchronous[0]
    placements = list(first.placements)
    placements[number] = Placement(2, 2, (led, "n3"), (led, "n3"))
    placements[other] = msgspec.structs.replace(placements[other], asynchronous=())
    old = msgspec.structs.replace(first, placements=tuple(placements))
    better = better_of(old, [c.node for c in candidates])
    assert (better.surplus, better.missing) == ([number], sorted([number, other]))
    step = light_step(old, 7, {}, (), missing=[number])
    assert step is not None
    assert step.placements[0][1].copies == (led, follows), "that one would go with it"
    kept = better.without_surplus()
    assert (kept.surplus, kept.missing, kept.leaders) == ([], [other], better.leaders)
