"""The next map, made in pieces, is the same as made at once; the conversations of `assignment` say which map it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rebalance.lives import Life
from rebalance.messages import CopyReport, SingleMap
from rebalance.moves import better_of
from rebalance.plan import PLACED_AT_ONCE, Alike, Change, first_topology, next_topology, planning
from rebalance.table import Candidate, Placement, disk_name
from wal.ids import Ballot, Version

PARTITIONS = 4 * PLACED_AT_ONCE + 1


def _single(candidate: Candidate) -> SingleMap:
    copies = [CopyReport("n", number, 1, 1, 1, 1, 1) for number in range(PARTITIONS)]
    life = Life(candidate.allocation, candidate.incarnation, 0, [])
    return SingleMap(Version(1, 0), Ballot(1, "n1"), life, [], copies, [])


def test_a_plan_for_many_partitions_is_made_in_pieces() -> None:
    candidates = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in ("n1", "n2", "n3")]
    first = first_topology("id", "c", PARTITIONS, 1, candidates)
    here = candidates[:2]
    change = Change(
        candidates=here, singles={c.node: _single(c) for c in here}, handover=[], baseline=[c.node for c in candidates]
    )
    pieces, work = planning(first, change), list[int]()
    while True:
        try:
            work.append(next(pieces))
        except StopIteration as end:
            plan = end.value
            break
    assert max(work) <= PLACED_AT_ONCE
    assert len(work) >= PARTITIONS // PLACED_AT_ONCE
    assert plan == next_topology(first, change)
    assert all("n3" not in placement.owners[:1] for placement in plan.topology.placements)


def test_where_one_is_next_is_found_out_once_for_all_that_are_placed_alike_and_for_no_other() -> None:
    asked: list[tuple[object, ...]] = []

    def place(old: Placement, wanted: tuple[str, ...], moves: bool) -> Placement:
        asked.append((old, wanted, moves))
        return msgspec.structs.replace(old, version=1, epoch=1, owners=wanted) if moves else old

    alike, first, how = Alike(), Placement(7, 3, ("a", "b"), ("a",), asynchronous=("c",)), (("b", "a"), True)
    assert alike.placed(first, place, how) == Placement(8, 4, ("b", "a"), ("a",), asynchronous=("c",))
    assert alike.placed(Placement(1, 1, ("a", "b"), ("a",), asynchronous=("c",)), place, how).epoch == 2
    assert len(asked) == 1
    stays = how[0], False
    others = [
        msgspec.structs.replace(first, owners=("a", "d")),
        msgspec.structs.replace(first, in_sync=("a", "b")),
        msgspec.structs.replace(first, asynchronous=()),
        msgspec.structs.replace(first, lost=True),
    ]
    for other in others:
        alike.placed(other, place, how)
    alike.placed(first, place, (("b", "d"), True))
    assert alike.placed(first, place, stays) is first, "what stays is what it was, so that no map changes for it"
    assert len(asked) == 1 + len(others) + 2


def test_who_leaves_the_baseline_while_it_is_slow_is_still_said_to_be_slow() -> None:
    candidates = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in ("n1", "n2", "n3")]
    first = first_topology("id", "c", 4, 2, candidates)
    singles = {c.node: _single(c) for c in candidates}
    change = Change(candidates=candidates, singles=singles, handover=[], baseline=["n1", "n2"], aside={"n3": 1})
    following = next_topology(first, change).topology
    assert following.aside == {"n3": 1}, "else nobody could tell why its copies are not in sync any more"
    assert all("n3" not in placement.in_sync for placement in following.placements)
    gone = Change(candidates=candidates[:2], singles=singles, handover=[], baseline=["n1", "n2"])
    assert next_topology(following, gone).topology.aside == {}


def test_a_member_without_data_that_becomes_a_voter_while_it_is_away_votes_with_the_disk_that_it_had() -> None:
    candidates = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in ("n1", "n2", "n3", "n4")]
    first = first_topology("id", "c", 4, 1, candidates[:3])
    singles = {c.node: _single(c) for c in candidates}
    here = Change(candidates=candidates, singles=singles, handover=[], baseline=["n1", "n2", "n3"])
    with_a_spare = next_topology(first, here).topology
    assert "n4" not in with_a_spare.allocations
    away = Change(candidates=candidates[:2], singles=singles, handover=[], baseline=["n1", "n2", "n4"])
    following = next_topology(with_a_spare, away).topology
    assert following.allocations == {"n1": "disk-n1", "n2": "disk-n2", "n4": "disk-n4"}
    assert following.listed[disk_name("n4", "disk-n4")][0] == 1, "and the life that is known of it"


def _of_five(in_sync: tuple[str, ...], aside: dict[str, int], mute: tuple[str, ...] = ()) -> Placement:
    """Where a partition of n1, n2 and n3 is after an exchange that sets somebody aside; these were in sync."""
    candidates = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in ("n1", "n2", "n3", "n4", "n5")]
    first = first_topology("id", "c", 1, 2, candidates, _always_the_first)
    owners = (*in_sync, *(n for n in ("n1", "n2", "n3") if n not in in_sync))
    before = msgspec.structs.replace(first, placements=(Placement(1, 1, owners, in_sync),))
    life = {c.node: Life(c.allocation, 1, 0, []) for c in candidates}
    singles = {n: SingleMap(Version(1, 0), Ballot(1, "n1"), life[n], [], [], []) for n in life}
    change = Change(
        candidates=candidates, singles=singles, handover=[], baseline=list(life), aside=aside, mute=mute, map_hash=1
    )
    return next_topology(before, change, _always_the_first).topology.placements[0]


def _always_the_first(nodes: Sequence[str], _domains: Mapping[str, str], count: int, copies: int) -> list[tuple[str, ...]]:
    return [tuple(nodes[:copies])] * count


def test_a_slow_copy_stays_in_sync_where_one_other_would_be_left_of_three() -> None:
    assert _of_five(("n1", "n2", "n3"), {"n2": 1}).in_sync == ("n1", "n3")
    assert _of_five(("n1", "n2"), {"n2": 1}).in_sync == ("n1", "n2")
    assert _of_five(("n1", "n2"), {"n2": 1}, mute=("n2",)).in_sync == ("n1",)
    assert _of_five(("n1", "n2", "n3"), {"n1": 1, "n2": 1}).in_sync == ("n3", "n1")
    assert _of_five(("n2",), {"n2": 1}, mute=("n2",)).in_sync == ("n2",), "the last one, whatever it is"


def test_a_slow_copy_leads_only_where_no_fast_one_is() -> None:
    assert _of_five(("n1", "n2"), {"n1": 1}).owners[:2] == ("n2", "n1")
    assert _of_five(("n1",), {"n1": 1}).owners[0] == "n1"


def test_nothing_is_handed_over_to_a_slow_copy() -> None:
    candidates = [Candidate(name, f"disk-{name}", 1, f"{name}:1", "") for name in ("n1", "n2", "n3")]
    first = first_topology("id", "c", 1, 2, candidates, _always_the_first)
    moved = msgspec.structs.replace(first, placements=(Placement(1, 2, ("n2", "n1", "n3"), ("n2", "n1")),))
    nodes = [c.node for c in candidates]
    found = better_of(moved, nodes, _always_the_first)
    assert found.ready(moved) == [0]
    slow = msgspec.structs.replace(moved, aside={"n1": 1})
    assert found.ready(slow) == []
    assert found.ready_with({0: ["n1"]}) == [0], "it is let back in by the same exchange"
