"""The next map, made in pieces, is the same as made at once; the conversations of `assignment` say which map it is."""

from __future__ import annotations

from rebalance.lives import Life
from rebalance.messages import CopyReport, SingleMap
from rebalance.plan import PLACED_AT_ONCE, Candidate, Change, first_topology, next_topology, planning
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
