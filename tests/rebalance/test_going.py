"""Members that go by light steps: where what they had is then, and that by one fence a place is better or it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import msgspec

from rebalance.going import all_stay, going, has_gone, led_by, may_go, never_gone
from rebalance.handing import PARTITIONS_AT_ONCE
from rebalance.lives import Life
from rebalance.messages import SingleMap
from rebalance.moves import better_of
from rebalance.plan import Change, first_topology, next_topology
from rebalance.steps import (
    Step,
    fits,
    handover_step,
    letting_go,
    light_step,
    noting,
    stepped,
)
from rebalance.table import Candidate, Placement, Topology
from tests.conversations.in_turn import in_turn
from wal.ids import NO_VERSION, Ballot, NodeId, Version
from wal.records import Claim

NODES = ("n1", "n2", "n3")


def life(node: NodeId, incarnation: int = 1) -> Candidate:
    return Candidate(node, f"disk-{node}", incarnation, f"{node}:1", "")


def formed(nodes: Sequence[NodeId] = NODES, backups: int = 2, partitions: int = 6) -> Topology:
    return first_topology("c", "test", partitions, backups, [life(n) for n in nodes], in_turn)


def by(topology: Topology, step: Step | None) -> Topology:
    """The map that a step makes, which fits."""
    assert step is not None
    assert fits(topology, 7, step)
    new = stepped(topology, step)
    new.check()
    return new


class Walk:
    """Maps that follow each other by steps alone; of each fence, who led what, and who spoke under which name."""

    def __init__(self, topology: Topology) -> None:
        self.map = topology
        self.led: dict[tuple[Version, int], list[tuple[NodeId, int]]] = {}
        self.lives: dict[tuple[Version, NodeId], dict[int, None]] = {}
        self._look()

    def take(self, step: Step | None) -> None:
        self.map = by(self.map, step)
        self._look()

    def _look(self) -> None:
        fence = self.map.fenced
        for member in self.map.members:
            self.lives.setdefault((fence, member.node), {})[member.incarnation] = None
        for number, placement in enumerate(self.map.placements):
            reigns = self.led.setdefault((fence, number), [])
            if not reigns or reigns[-1] != (placement.owners[0], placement.epoch):
                reigns.append((placement.owners[0], placement.epoch))

    def go(self, node: NodeId) -> None:
        self.take(noting(self.map, 7, [node], ()))
        while led := led_by(self.map, [node]):
            self.take(handover_step(self.map, 7, led, (), in_turn))
        self.take(letting_go(self.map, 7, [node], (), in_turn))
        assert self.map.member(node) is None

    def come(self, node: NodeId, incarnation: int) -> None:
        self.take(light_step(self.map, 7, {}, (), in_turn, joins=[life(node, incarnation)]))
        vouched = {n: {node: p.owners[0]} for n, p in enumerate(self.map.placements) if node in p.owners}
        self.take(light_step(self.map, 7, vouched, (), in_turn))
        better = better_of(self.map, [m.node for m in self.map.members], in_turn)
        if wanted := better.ready(self.map):
            self.take(handover_step(self.map, 7, wanted, (), in_turn))


def test_by_one_fence_nobody_leads_a_partition_twice_and_a_name_is_of_one_life() -> None:
    """Each order in which four stops are done to three nodes, each of which comes back before the next one, or after it."""
    for stops in product(NODES, repeat=4):
        walk = Walk(formed())
        for times, node in enumerate(stops, 2):
            walk.go(node)
            assert all(p.in_sync == p.owners and len(p.owners) == 2 for p in walk.map.placements)
            walk.come(node, times)
            assert [p.owners for p in walk.map.placements] == [p.owners for p in formed().placements]
        for (fence, number), reigns in walk.led.items():
            assert len({node for node, _ in reigns}) == len(reigns), f"{stops}: partition {number} by {fence}: {reigns}"
        for (fence, node), lives in walk.lives.items():
            assert len(lives) == 1, f"{stops}: {node} by {fence} in lives {list(lives)}"


def test_where_copies_are_when_one_has_gone_is_what_a_full_exchange_says() -> None:
    for node in ("n1", "n2", "n3", "n4"):
        old = formed(("n1", "n2", "n3", "n4"), backups=1, partitions=8)
        walk = Walk(old)
        walk.go(node)
        here = [life(m.node) for m in old.members]
        lives = {c.node: Life(c.allocation, c.incarnation, 0) for c in here}
        singles = {n: SingleMap(old.version, Ballot(1, "n1"), life, [], [], []) for n, life in lives.items()}
        led = led_by(old, [node])
        change = Change(candidates=here, singles=singles, handover=led, baseline=old.baseline, leaving=[node])
        full = next_topology(old, change, in_turn).topology
        for by_steps, at_once in zip(walk.map.placements, full.placements, strict=True):
            assert by_steps.owners[0] == at_once.owners[0]
            assert sorted(by_steps.owners) == sorted(at_once.owners)
            assert (sorted(by_steps.in_sync), by_steps.epoch) == (sorted(at_once.in_sync), at_once.epoch)
        assert walk.map.baseline == old.baseline, "it is a voter that is away"
        assert walk.map.allocations == full.allocations
        assert [m.node for m in walk.map.members] == [m.node for m in full.members]
        assert walk.map.listed.keys() == full.listed.keys()


def test_a_fence_begins_with_who_is_noted_and_with_who_comes_back_under_the_one_that_let_it_go() -> None:
    old = formed()
    noted = by(old, noting(old, 7, ["n3"], (Claim("n1", "disk-n1", 1, 40),)))
    assert (noted.version, noted.fence) == (Version(1, 1), Version(1, 1))
    assert noted.placements == old.placements
    assert [c.durable_lsn for c in noted.claims] == [40], "where the promises lie goes into the map"
    assert (going(old), going(noted)) == ([], ["n3"])
    assert (never_gone(old), never_gone(noted)) == (True, False)
    moved = by(noted, handover_step(noted, 7, led_by(noted, ["n3"]), (), in_turn))
    gone = by(moved, letting_go(moved, 7, ["n3"], (), in_turn))
    assert (gone.version, gone.fenced) == (Version(2, 0), noted.version)
    assert (going(gone), has_gone(gone, "n3"), never_gone(gone)) == ([], True, False)
    assert gone.listed == {"n3#disk-n3": (1, moved.version)}
    assert (all_stay(noted, moved), all_stay(moved, gone)) == (True, False)
    new = by(gone, light_step(gone, 7, {}, (), in_turn, joins=[life("n4")]))
    assert new.fenced == noted.version, "it was nobody under this fence"
    back = by(new, light_step(new, 7, {}, (), in_turn, joins=[life("n3", 2)]))
    assert back.fence == back.version
    assert back.listed == {}
    assert not all_stay(moved, back), "whoever has missed both finds another life under the name"
    another = by(gone, noting(gone, 7, ["n2"], ()))
    assert not has_gone(another, "n3"), "that was under another fence"


def test_nothing_moves_to_who_is_about_to_go_and_no_copy_is_made_there() -> None:
    old = formed(("n1", "n2", "n3", "n4"), backups=1)
    noted = by(old, noting(old, 7, ["n1"], ()))
    moved = by(noted, handover_step(noted, 7, led_by(noted, ["n1"]), (), in_turn))
    assert handover_step(moved, 7, range(6), (), in_turn) is None
    fewer = letting_go(moved, 7, ["n1"], (), in_turn)
    halfway = stepped(moved, msgspec.structs.replace(fewer, placements=fewer.placements[:1], gone=[]))
    number = fewer.placements[0][0]
    again = light_step(halfway, 7, {}, (), in_turn, missing=[number])
    assert again is None, "its copy is not made once more"


def test_of_very_many_copies_some_go_with_each_step_and_it_with_the_last() -> None:
    old = formed(partitions=2 * PARTITIONS_AT_ONCE + 1)
    walk = Walk(old)
    walk.take(noting(old, 7, ["n3"], ()))
    while led := led_by(walk.map, ["n3"]):
        walk.take(handover_step(walk.map, 7, led, (), in_turn))
    steps = 0
    while walk.map.member("n3") is not None:
        walk.take(letting_go(walk.map, 7, ["n3"], (), in_turn))
        steps += 1
    assert steps == 3
    assert all(p.owners == p.in_sync and "n3" not in p.owners for p in walk.map.placements)


def test_who_cannot_be_spared_is_not_noted() -> None:
    old = formed()

    def with_first(**changes: object) -> Topology:
        first = msgspec.structs.replace(old.placements[0], **changes)
        return msgspec.structs.replace(old, placements=(first, *old.placements[1:]))

    assert may_go(old, ["n1"])
    assert not may_go(with_first(in_sync=("n1", "n2")), ["n1"]), "a copy of what it leads is loading"
    assert may_go(with_first(in_sync=("n1", "n2")), ["n2"]), "it leads nothing of that"
    assert not may_go(with_first(owners=("n1",), in_sync=("n1",)), ["n1"])
    assert not may_go(with_first(owners=("n2", "n1"), in_sync=("n2", "n1")), ["n1", "n2"])
    assert not may_go(with_first(lost=True), ["n2"])
    assert not may_go(msgspec.structs.replace(old, aside={"n3": 1}), ["n1"])
    assert not may_go(msgspec.structs.replace(old, allocations=old.allocations | {"n2": "another"}), ["n1"])


def test_a_step_that_lets_go_whom_it_may_not_does_not_fit() -> None:
    old = formed()
    noted = by(old, noting(old, 7, ["n3"], ()))
    moved = by(noted, handover_step(noted, 7, led_by(noted, ["n3"]), (), in_turn))
    step = letting_go(moved, 7, ["n3"], (), in_turn)
    changed: Mapping[str, object]
    assert fits(moved, 7, step)
    assert not fits(moved, 7, msgspec.structs.replace(step, placements=step.placements[1:])), "it has a copy yet"
    assert not fits(moved, 7, msgspec.structs.replace(step, gone=["n3", "n2"])), "n2 was not noted"
    assert not fits(moved, 7, msgspec.structs.replace(step, goes=["n3"])), "it is noted already"
    assert not fits(moved, 7, msgspec.structs.replace(step, goes=["n4"])), "it is not there"
    alone = msgspec.structs.replace(moved, members=tuple(m for m in moved.members if m.node != "n2"))
    assert not fits(alone, 7, step), "the others are no majority"
    lost = Placement(2, 1, ("n2",), ("n2",), lost=True)
    changed = {"placements": (*moved.placements[:-1], lost)}
    assert not fits(msgspec.structs.replace(moved, **changed), 7, step)
    unmoved = letting_go(noted, 7, ["n3"], (), in_turn)
    assert not fits(noted, 7, unmoved), "it leads something"
    assert noted.fence != NO_VERSION
