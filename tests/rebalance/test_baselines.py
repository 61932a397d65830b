"""Another baseline by a step: of voters and disks the map says what a full exchange would, and nothing moves with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import msgspec
import pytest

from rebalance.baselines import came_by_a_step, may_be
from rebalance.going import going, has_gone
from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.moves import better_of
from rebalance.plan import Change, next_topology
from rebalance.steps import fits, handover_step, letting_go, light_step, noting, rebasing, stepped, taking_out
from rebalance.table import Topology
from tests.conversations.in_turn import in_turn
from tests.rebalance.test_going import NODES, Walk, by, formed, life
from wal.ids import NO_VERSION, Ballot, NodeId, Version
from wal.records import Claim

FOUR = ("n1", "n2", "n3", "n4")
CHOICES = [list(some) for size in range(1, 5) for some in permutations(FOUR, size)]


def _joined(nodes: Sequence[NodeId], joins: Sequence[NodeId]) -> Topology:
    """A map of these, which others have joined."""
    return by(formed(nodes), light_step(formed(nodes), 7, {}, (), in_turn, joins=[life(n) for n in joins]))


def _by_a_full_exchange(old: Topology, baseline: Sequence[NodeId]) -> Topology:
    here = [life(m.node, m.incarnation) for m in old.members]
    lives = {c.node: Life(c.allocation, c.incarnation, 0) for c in here}
    singles = {n: SingleMap(old.version, Ballot(1, "n1"), said, [], [], []) for n, said in lives.items()}
    change = Change(candidates=here, singles=singles, handover=(), baseline=baseline)
    return next_topology(old, change, in_turn).topology


@pytest.mark.parametrize("away", [False, True], ids=["all-here", "n3-is-away"])
def test_voters_and_disks_are_what_a_full_exchange_would_say(*, away: bool) -> None:
    for baseline in CHOICES:
        old = _joined(NODES, ["n4"])
        if away:
            walk = Walk(old)
            walk.go("n3")
            old = walk.map
            if not may_be(old, baseline):
                assert 2 * sum(n != "n3" for n in baseline) <= len(baseline), "a majority of them is here"
                continue
        new = by(old, rebasing(old, 7, baseline, ()))
        full = _by_a_full_exchange(old, baseline)
        assert (new.baseline, new.allocations, new.members) == (full.baseline, full.allocations, full.members)
        assert new.listed == full.listed
        assert new.placements == old.placements, "it moves nothing"
        assert (new.fence, new.baselined) == (new.version, new.version)
        assert (came_by_a_step(old), came_by_a_step(new), came_by_a_step(full)) == (False, True, False)


def test_who_is_about_to_go_is_so_still_and_who_has_gone_comes_under_another_fence() -> None:
    old = _joined(NODES, ["n4"])
    noted = by(old, noting(old, 7, ["n4"], ()))
    new = by(noted, rebasing(noted, 7, ["n1", "n2"], ()))
    assert going(new) == ["n4"]
    gone = by(new, letting_go(new, 7, ["n4"], (), in_turn))
    assert has_gone(gone, "n4")
    again = by(gone, rebasing(gone, 7, ["n1", "n2", "n3"], ()))
    assert not has_gone(again, "n4")
    assert not again.listed, "its disk counts for nothing"


def test_by_one_fence_nobody_leads_a_partition_twice() -> None:
    """From each baseline to each other one and back, with all that follows of it by steps."""
    for first in permutations(FOUR, 3):
        for second in (FOUR, FOUR[1:], FOUR[:2], ("n4", "n3", "n2")):
            walk = Walk(_joined(NODES, ["n4"]))
            for baseline in (first, second, first):
                if walk.map.baseline != baseline:
                    walk.take(rebasing(walk.map, 7, baseline, ()))
                _follow(walk)
            for (fence, number), reigns in walk.led.items():
                assert len({node for node, _ in reigns}) == len(reigns), f"partition {number} by {fence}: {reigns}"
            for placement in walk.map.placements:
                assert placement.owners == placement.in_sync
                assert all(node in first for node in placement.owners)


def _follow(walk: Walk) -> None:
    """Copies are made, become whole, primaries move, copies go."""
    here = [m.node for m in walk.map.members]
    while True:
        better = better_of(walk.map, here, in_turn)
        if better.missing:
            walk.take(light_step(walk.map, 7, {}, (), in_turn, missing=better.missing))
            vouched = {
                n: dict.fromkeys((c for c in p.owners if c not in p.in_sync), p.owners[0])
                for n, p in enumerate(walk.map.placements)
                if p.owners != p.in_sync
            }
            walk.take(light_step(walk.map, 7, vouched, (), in_turn))
        elif wanted := better.ready(walk.map):
            walk.take(handover_step(walk.map, 7, wanted, (), in_turn))
        elif better.surplus:
            walk.take(light_step(walk.map, 7, {}, (), in_turn, surplus=better.surplus))
        else:
            return


def test_a_step_to_a_baseline_that_cannot_be_does_not_fit() -> None:
    old = _joined(NODES, ["n4"])
    step = rebasing(old, 7, ["n1", "n4"], (Claim("n1", "disk-n1", 1, 40),))
    assert fits(old, 7, step)
    assert [c.durable_lsn for c in stepped(old, step).claims] == [40], "where the promises lie goes into the map"
    for baseline in (["n1", "n5"], ["n1", "n1"]):
        assert not fits(old, 7, msgspec.structs.replace(step, baseline=baseline)), "nobody's vote"
    assert not fits(old, 7, msgspec.structs.replace(step, goes=["n2"])), "it changes nothing else"
    away = msgspec.structs.replace(old, members=tuple(m for m in old.members if m.node != "n1"))
    assert not fits(away, 7, step), "half of them is no majority"
    lost = msgspec.structs.replace(old.placements[0], lost=True)
    for other in (
        msgspec.structs.replace(old, placements=(lost, *old.placements[1:])),
        msgspec.structs.replace(old, aside={"n2": 1}),
    ):
        assert not fits(other, 7, step)


def test_a_copy_that_is_wrong_is_out_under_another_fence_and_loads() -> None:
    old = formed()
    assert old.placements[0].owners == ("n1", "n2", "n3")
    new = by(old, taking_out(old, 7, {0: ["n2"]}, (), in_turn))
    assert (new.placements[0].owners, new.placements[0].in_sync) == (("n1", "n3", "n2"), ("n1", "n3"))
    assert new.placements[1:] == old.placements[1:]
    assert (old.fence, new.fence) == (NO_VERSION, Version(1, 1))
    back = by(new, light_step(new, 7, {0: {"n2": "n1"}}, (), in_turn))
    assert back.placements[0].owners == old.placements[0].owners
    assert back.fence == new.fence
