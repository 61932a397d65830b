"""What a turn costs where very many transactions are prepared, or decided and not over; and that nothing rests on its end.

What a map, a new primary or the time that passes makes of them is done in pieces. Between two of these the map may change
again, or the power may fail: whoever comes to lead then begins anew with what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, Put
from engine.transactions.commits import Phase
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event
from engine.turn.settings import Settings
from rebalance.messages import Supply
from rebalance.partition import PREPARED_MAX
from rebalance.ports import WORK_MAX
from rebalance.rule import NewMap
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.test_turns import NODES
from tests.sim.test_turns_of_data import CALLS_MAX, Busy, _node, _tx
from tests.sim.world import SECOND, World
from wal.ids import DECISIONS, partition_of

MANY = 2_400
PARTITIONS = 4
AT_ONCE = 400
"""Of them a turn begins so many in this test."""


class Told(Observer):
    """How many records one turn has logged, messages it has sent, and votes a supplier has told at once, at most."""

    def __init__(self) -> None:
        self.records = self.messages = self.votes = 0

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count them."""
        self.records = max(self.records, len(effects.log))
        self.messages = max(self.messages, len(effects.send))
        supplied = [message for _, message in effects.send if isinstance(message, Supply)]
        self.votes = max([self.votes, *(len(message.prepares) for message in supplied)])


class Stage:
    """Three nodes, and many transactions of two keys each, of which all the first ones lie in partition 0."""

    def __init__(self, world: World) -> None:
        self.world = world
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        every = list(map(b"k%d".__mod__, range(20 * MANY)))
        self.one = [key for key in every if partition_of(key, PARTITIONS) == 0][:MANY]
        self.other = [key for key in every if partition_of(key, PARTITIONS) == 1][:MANY]

    def leads(self, partition: int = 0) -> Machine:
        """Whom the newest map lists."""
        topology = self.world.newest()
        assert topology is not None
        return self.world.machines[topology.placements[partition].primary or ""]

    def commit(self, *, prepare_only: bool) -> None:
        """All of them, some at a time."""
        machine, replies = self.leads(), list[object]()
        session = machine.new_session(replies.append)
        for at in range(0, MANY, AT_ONCE):
            for n in range(at, at + AT_ONCE):
                keys: list[tuple[str, list[bytes], list[bytes | None]]] = [
                    ("n", [self.one[n], self.other[n]], [b"v", b"v"])
                ]
                machine.receive(Asked(session, CommitTx(n, _tx(n), _tx(n), True, keys, [], [], prepare_only=prepare_only)))
            assert self.world.run_while(partial(_fewer, replies, at + AT_ONCE), at_most=10 * SECOND)
        assert all(isinstance(reply, Done) for reply in replies)

    def nodes(self) -> list[Node]:
        """Those that are up."""
        return [_node(machine) for machine in self.world.machines.values() if machine.up]

    def lost(self, machine: Machine) -> None:
        """It ends, and there is a map without it."""
        machine.stop("killed", process_only=True)
        rest = [name for name in NODES if self.world.machines[name].up]
        before = self.world.newest()
        assert self.world.run_while(lambda: self.world.newest() is before, at_most=30 * SECOND)
        assert self.world.run_while(lambda: not self.world.serving(rest), at_most=30 * SECOND)

    def settled(self) -> None:
        """Nothing is prepared any more, decided and not over, or held; and all copies have the same of it."""

        def open_ones() -> bool:
            return any(
                node.participant.in_doubt()
                or node.coordinator.active
                or any(state.prepared for state in node.core.replica.partitions.values())
                or any(node.locks.owners_in(0))
                for node in self.nodes()
            )

        assert self.world.run_while(open_ones, at_most=60 * SECOND, look_every=SECOND // 10)

    def values(self) -> list[dict[bytes | None, int]]:
        """Of each node that is up, how many of the keys have which value."""
        found: list[dict[bytes | None, int]] = []
        for node in self.nodes():
            counts: dict[bytes | None, int] = {}
            for number, keys in enumerate((self.one, self.other)):
                for key in keys:
                    row = node.core.replica.store.get(("n", number), key)
                    value = row.value if row is not None else None
                    counts[value] = counts.get(value, 0) + 1
            found.append(counts)
        return found


def _fewer(replies: list[object], count: int) -> bool:
    return len(replies) < count


SETTINGS = Settings(cluster="sim", partitions=PARTITIONS, backups=2, lock_lease_ms=600_000)


def _forget_to_finish(stage: Stage) -> None:
    """Nobody hears of an outcome, on any node: all are decided, and none is over."""
    for node in stage.nodes():
        node.participant.on_finish = lambda *_: None  # type: ignore[method-assign]


def _hear_again(stage: Stage) -> None:
    for node in stage.nodes():
        del node.participant.on_finish


@pytest.mark.parametrize("decided", [False, True], ids=["prepared", "decided"])
def test_a_new_primary_takes_up_very_many_in_pieces(*, decided: bool) -> None:
    with World(Draws(1), SETTINGS) as world:
        stage = Stage(world)
        if decided:
            _forget_to_finish(stage)
        stage.commit(prepare_only=not decided)
        told, calls = Told(), Busy()
        world.watch([told])
        world.costs = calls
        stage.lost(stage.leads())
        if decided:
            new = _node(stage.leads())
            assert sum(t.phase is Phase.FINISHING for t in new.coordinator.active.values()) == MANY
            _hear_again(stage)
        stage.settled()
        assert stage.values() == [{b"v" if decided else None: 2 * MANY}] * 2
        assert told.records <= WORK_MAX
        assert told.messages <= WORK_MAX
        assert calls.most <= 2 * CALLS_MAX, calls.over


@pytest.mark.parametrize("decided", [False, True], ids=["prepared", "decided"])
def test_whose_power_fails_between_two_pieces_leaves_the_rest_to_the_next(*, decided: bool) -> None:
    """Who led before has come back: of what was begun some has come to its end, and most has not."""
    with World(Draws(1), SETTINGS) as world:
        stage = Stage(world)
        if decided:
            _forget_to_finish(stage)
        stage.commit(prepare_only=not decided)
        first = stage.leads()
        world.costs = Busy()
        stage.lost(first)
        second = stage.leads()
        node = _node(second)
        if decided:
            _hear_again(stage)

        def over() -> int:
            return len(node.core.replica.partition(1).results) + len(node.core.replica.partition(0).results)

        before = over()
        first.start()
        assert world.run_while(lambda: over() < before + 100, at_most=10 * SECOND, look_every=SECOND // 1_000)
        assert over() < before + 2 * MANY, "it is in the middle of it"
        second.stop("power")
        world.run_for(SECOND // 2)
        second.start()
        assert world.run_while(lambda: not world.serving(NODES), at_most=60 * SECOND, look_every=SECOND // 10)
        stage.settled()
        counts = stage.values()
        assert counts == [{b"v" if decided else None: 2 * MANY}] * 3
        replies: list[object] = []
        leader = stage.leads()
        leader.receive(Asked(leader.new_session(replies.append), Put(1, _tx(10**6), "n", stage.one, [b"w"] * MANY)))
        assert world.run_while(lambda: not replies, at_most=5 * SECOND)
        assert isinstance(replies[0], Done), "nothing of it is held any more"


def test_votes_are_asked_for_again_in_pieces_and_all_of_them_if_another_map_comes_between() -> None:
    with World(Draws(1), SETTINGS) as world:
        stage = Stage(world)
        leader, voter = stage.leads(0), stage.leads(1)
        for node in stage.nodes():
            node.participant.on_prepare = lambda *_: None  # type: ignore[method-assign]
        replies: list[object] = []
        session = leader.new_session(replies.append)
        for n in range(MANY):
            keys: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [stage.one[n], stage.other[n]], [b"v", b"v"])]
            leader.receive(Asked(session, CommitTx(n, _tx(n), _tx(n), True, keys, [], [])))
        world.run_for(SECOND)
        coordinator = _node(leader).coordinator
        assert sum(t.phase is Phase.PREPARING for t in coordinator.active.values()) == MANY
        for node in stage.nodes():
            del node.participant.on_prepare
        told, calls = Told(), Busy()
        world.watch([told])
        world.costs = calls
        assert voter is not leader
        voter.stop("killed", process_only=True)
        maps, look_every = coordinator.maps, SECOND // 5_000
        assert world.run_while(lambda: coordinator.maps == maps, at_most=30 * SECOND, look_every=look_every)
        some = [t for t in coordinator.active.values() if t.said_under == coordinator.maps]
        assert 0 < len(some) < MANY, "it is in the middle of it"
        coordinator.switch(NewMap([], [], []))
        assert world.run_while(lambda: coordinator._looking, at_most=SECOND, look_every=look_every)
        assert all(t.said_under == coordinator.maps for t in coordinator.active.values())
        assert world.run_while(lambda: len(replies) < MANY, at_most=30 * SECOND)
        assert all(isinstance(reply, Done) for reply in replies)
        stage.settled()
        assert stage.values() == [{b"v": 2 * MANY}] * 2
        assert not any(len(list(n.core.replica.store.scan((DECISIONS, 0), b"", 10))) > 10 for n in stage.nodes())
        assert told.messages <= WORK_MAX
        assert calls.most <= 2 * CALLS_MAX, calls.over


def test_a_copy_that_comes_back_is_told_of_very_many_votes_in_several_turns() -> None:
    with World(Draws(1), SETTINGS) as world:
        stage = Stage(world)
        leads = (stage.leads(0).name, stage.leads(1).name)
        third = next(world.machines[name] for name in NODES if name not in leads)
        stage.lost(third)
        stage.commit(prepare_only=True)
        told = Told()
        world.watch([told])
        third.start()
        assert world.run_while(lambda: not world.serving(NODES), at_most=60 * SECOND, look_every=SECOND // 10)
        assert len(_node(third).core.replica.partition(0).prepared) == MANY
        assert 0 < told.votes <= PREPARED_MAX
