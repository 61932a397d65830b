"""What is said of maps is read and worked out in pieces before it is taken: the node goes on under the map that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from engine.cluster import foresight
from engine.messages import AskMap, Commit, CommitStep, Message, Promise, Propose
from engine.node.node import Node
from engine.protocol.requests import GetTable, Table
from engine.state.maps import Maps
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event, Received
from engine.turn.settings import Settings
from engine.turn.turns import TURN_MS_MAX
from rebalance import differing, placing
from rebalance import table as topologies
from rebalance.partition import LocalPartition, Role
from rebalance.placing import Placed
from rebalance.ports import MS
from rebalance.steps import Step, stepped
from rebalance.table import Placement, Topology
from tests.sim.costs import Costs, Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.planted.fault import around
from tests.sim.world import SECOND, World
from tests.support.placed import placed_at_once
from wal.ids import NO_BALLOT, NO_VERSION, NodeId, Version
from wal.records import Accepted, Committed, Record

NODES: list[NodeId] = ["n1", "n2", "n3"]


@contextmanager
def _formed(partitions: int, *, costs: Costs | None = None) -> Iterator[tuple[World, Node, Topology]]:
    """Three nodes, the last of them, and their map."""
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=2), costs=costs) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        node, newest = world.machines["n3"].node, world.newest()
        assert node is not None
        assert newest is not None
        yield world, node, newest


@pytest.fixture
def _every_map_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "LARGE_MAP", 0)
    monkeypatch.setattr(differing, "SHORT", 1)
    monkeypatch.setattr(placing, "AT_ONCE", 3)


def _step(topology: Topology, count: int) -> Step:
    """One after a map, that says something else of so many of its partitions."""
    placed = enumerate(topology.placements[:count])
    moved = [(number, msgspec.structs.replace(placement, version=placement.version + 1)) for number, placement in placed]
    return Step(topology.version, topologies.hash_of(topologies.encode(topology)), moved, [])


def _from_leader(topology: Topology, *said: Message) -> list[Received]:
    leader = topology.member("n1")
    assert leader is not None
    return [Received("n1", leader.allocation, leader.incarnation, message) for message in said]


def test_a_step_of_many_partitions_of_a_large_map_is_read_and_taken_in_turns_within_the_bound() -> None:
    """Of 8,192 partitions it changes 2,500 (seed 200039). To read it is one thing, to look at all of them another."""
    with _formed(8_192, costs=Modelled()) as (world, node, newest):
        for event in _from_leader(newest, CommitStep(_step(newest, 2_500))):
            world.machines["n3"].receive(event)
        assert world.run_while(lambda: node.core.version == newest.version, at_most=SECOND, look_every=100_000)
        assert node.exchange.foresight.looked >= 2 * 8_192, "and the first map was, too"


class _Dearest:
    """The turn of a node that cost most, by the model."""

    def __init__(self) -> None:
        self._costs, self.most = Modelled(), dict[NodeId, int]()

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it, in no time."""
        effects, cost = self._costs.turn(node, now, events)
        self.most[node.core.node] = max(self.most.get(node.core.node, 0), cost)
        return effects, 0


def test_steps_of_many_partitions_that_come_together_are_taken_in_turns_of_their_own() -> None:
    """Seed 1776: while the first of them is read, the others wait; each is another turn, which has room for clients yet."""
    costs = _Dearest()
    with _formed(16_384, costs=costs) as (world, node, newest):
        topology, steps = newest, list[Step]()
        for _ in range(4):
            steps.append(_step(topology, 2_500))
            topology = stepped(topology, steps[-1])
        costs.most.clear()
        for event in _from_leader(newest, *map(CommitStep, steps)):
            world.machines["n3"].receive(event)
        assert world.run_while(lambda: node.core.version < topology.version, at_most=SECOND, look_every=100_000)
    assert costs.most["n3"] <= TURN_MS_MAX * MS // 2


@pytest.mark.usefixtures("_every_map_is_large")
def test_what_is_said_of_maps_meanwhile_is_taken_after_it_in_order() -> None:
    """Two steps come together: the second rests on the first, which nobody is asked for."""
    with _formed(8) as (world, node, newest):
        first = _step(newest, 2)
        second = _step(stepped(newest, first), 3)
        events, taken, asked = _from_leader(newest, CommitStep(first), CommitStep(second)), [newest.version], 0
        for _ in range(20):
            effects = node.turn(world.now, events)
            events = []
            asked += sum(type(message) is AskMap for _, message in effects.send)
            if node.core.version != taken[-1]:
                taken.append(node.core.version)
        assert taken == [newest.version, first.version, second.version]
        assert not asked


@pytest.mark.usefixtures("_every_map_is_large")
def test_a_client_is_answered_under_the_map_that_is_here_while_another_is_read() -> None:
    with _formed(8) as (world, node, newest):
        replies: list[object] = []
        session = world.machines["n3"].new_session(replies.append)
        step = _step(newest, 2)
        node.turn(world.now, _from_leader(newest, CommitStep(step)))
        assert node.core.version == newest.version
        effects = node.turn(world.now, [Asked(session, GetTable(1))])
        told = [reply for _, reply in effects.reply if isinstance(reply, Table)]
        assert [table.version for table in told] == [newest.version]
        for _ in range(5):
            node.turn(world.now, [])
        assert node.core.version == step.version


@pytest.mark.usefixtures("_every_map_is_large")
def test_what_was_worked_out_of_one_map_is_not_what_another_one_changes() -> None:
    """A map comes by force while a step is worked out: what it makes of each partition is found out anew."""
    with _formed(8) as (world, node, newest):
        step = _step(newest, 8)
        node.turn(world.now, _from_leader(newest, CommitStep(step)))
        placements = tuple(
            Placement(p.version + 5, p.epoch + 1, (*p.owners[1:], p.owners[0]), p.in_sync) for p in newest.placements
        )
        forced = msgspec.structs.replace(newest, version=Version(7, 0), placements=placements)
        node.exchange.adopt(forced, topologies.encode(forced))
        for _ in range(20):
            node.turn(world.now, [])
        assert node.core.version == forced.version
        for local, placement in zip(node.core.local, placements, strict=True):
            assert (local.placement, local.epoch, local.mine) == (placement, placement.epoch, placement.primary == "n3")


@pytest.mark.usefixtures("_every_map_is_large")
def test_what_is_likely_is_worked_out_before_it_is_decided() -> None:
    """Who has accepted a map has nothing left to look at when it is committed."""
    with _formed(8) as (world, node, newest):
        looked = list[tuple[Version, int]]()

        def switch(go_on: Callable[..., None], *said: object) -> None:
            looked.append((node.core.version, node.exchange.foresight.looked))
            go_on(*said)

        around(node.exchange, "_switch", switch)
        world.machines["n2"].stop("killed", process_only=True)
        assert world.run_while(lambda: node.core.version == newest.version, at_most=60 * SECOND, look_every=100_000)
        assert looked[0] == (newest.version, 2 * 8)


def _placed(partitions: Sequence[LocalPartition], placement: Placement, newest: Topology) -> Placed:
    after = msgspec.structs.replace(newest, placements=(placement,), partitions=1)
    placed = Placed(partitions, after, "n1", anew=False)
    while not placed.is_found:
        placed.look_on()
    return placed


def test_a_partition_that_serves_by_the_time_a_map_takes_effect_serves_on() -> None:
    """Its promotion ended after it was looked at, which is all that may happen meanwhile to one that a node leads."""
    leading = Placement(1, 1, ("n1", "n2"), ("n1", "n2"))
    local = LocalPartition(0, leading)
    placed_at_once(local, leading, "n1")
    with _formed(1) as (_, _, newest):
        placed = _placed([local], msgspec.structs.replace(leading, version=2, in_sync=("n1",)), newest)
    local.activate()
    new = placed.take(lambda _: None, (), light=False)
    assert local.role is Role.PRIMARY
    assert not new.promoted
    assert new.moved == [local]


@pytest.mark.parametrize("light", [True, False])
def test_a_partition_that_is_promoted_yet_is_told_again_but_by_a_light_step(light: bool) -> None:
    leading = Placement(1, 1, ("n1", "n2"), ("n1", "n2"))
    local = LocalPartition(0, leading)
    placed_at_once(local, leading, "n1")
    with _formed(1) as (_, _, newest):
        placed = _placed([local], leading, newest)
    assert placed.take(lambda _: None, (), light=light).promoted == ([] if light else [local])


@pytest.mark.parametrize("at_once", [1, 2, 15, 16, 64, 1_000])
def test_a_map_that_is_encoded_in_pieces_has_the_bytes_of_one_that_is_not(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topologies, "ENCODED_AT_ONCE", at_once)
    with _formed(256) as (_, _, newest):
        pieces, encoded = topologies.encoding(newest), b""
        try:
            while True:
                next(pieces)
        except StopIteration as end:
            encoded = end.value
    assert encoded == topologies.encode(newest)


@pytest.mark.usefixtures("_every_map_is_large")
def test_a_map_that_comes_twice_while_it_is_worked_out_is_taken_once() -> None:
    with _formed(8) as (world, node, newest):
        before = ((newest.version, topologies.hash_of(topologies.encode(newest))),)
        after = msgspec.structs.replace(newest, version=Version(9, 0), before=before)
        commit = Commit(after.version, topologies.encode(after))
        events, taken = _from_leader(newest, commit, commit), 0
        for _ in range(20):
            version = node.core.version
            node.turn(world.now, events)
            events, taken = [], taken + (node.core.version != version)
        assert (node.core.version, taken) == (after.version, 1)


@pytest.mark.usefixtures("_every_map_is_large")
def test_the_map_of_a_full_exchange_is_told_and_logged_as_what_it_changes() -> None:
    """Where maps are large: each node has the very one that was planned, from its log, too."""
    with _formed(8) as (world, node, newest):
        seen = _Maps()
        world.watchers.add(seen)
        world.machines["n2"].stop("killed", process_only=True)
        assert world.run_while(lambda: node.core.version == newest.version, at_most=60 * SECOND, look_every=100_000)
        whole, after = topologies.encode(newest), node.core.topology
        world.run_until(world.now + SECOND // 100)  # until that is on disk
        assert seen.proposed == {"n3": {"what it changes"}, "n2": {"the map"}}
        mine = seen.maps_of["n3"]
        assert [type(record) for record in mine] == [Accepted, Committed]
        assert all(record.step and not record.topology for record in mine)
        replayed = Maps()
        replayed.load((newest.version, whole), (NO_VERSION, NO_BALLOT, b""))
        for record in mine:
            replayed.commit(record) if isinstance(record, Committed) else replayed.accept(record)
        assert after is not None
        assert replayed.committed == (after.version, topologies.encode(after))


@pytest.mark.usefixtures("_every_map_is_large")
def test_who_cannot_be_told_so_is_told_the_whole_map() -> None:
    """A member of an older version has promised without a word of it."""
    with _formed(8) as (world, node, newest):
        seen = _Maps()
        world.watchers.add(seen)

        def promise(go_on: Callable[..., Promise], *said: object) -> Promise:
            return msgspec.structs.replace(go_on(*said), tells_apart=False)

        around(node.exchange.reporting, "promise", promise)
        world.machines["n2"].stop("killed", process_only=True)
        assert world.run_while(lambda: node.core.version == newest.version, at_most=60 * SECOND, look_every=100_000)
        world.run_until(world.now + SECOND // 100)
        assert seen.proposed == {"n3": {"the map"}, "n2": {"the map"}}
        assert all(record.topology and not record.step for record in seen.maps_of["n3"])
        assert all(record.step and not record.topology for record in seen.maps_of["n1"])


class _Maps(Observer):
    """What nodes propose and log of maps."""

    def __init__(self) -> None:
        self.proposed: dict[NodeId, set[str]] = {}
        self.maps_of: dict[NodeId, list[Accepted | Committed]] = {}

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        maps = [record for record in records if isinstance(record, Accepted | Committed)]
        self.maps_of.setdefault(machine.name, []).extend(maps)

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        if isinstance(message, Propose):
            assert bool(message.topology) == (message.step is None)
            for node in targets:
                self.proposed.setdefault(node, set()).add("the map" if message.step is None else "what it changes")
