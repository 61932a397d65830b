"""What a copy missed comes to it as history: no turn that reads and says it, or takes it, is too long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.protocol.requests import Put
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event
from engine.turn.settings import Settings
from rebalance.messages import Supply
from rebalance.ports import WORK_MAX, HistoryRead
from rebalance.supplier import WRITES_MAX
from tests.sim.costs import Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.world import SECOND, World
from wal.ids import NodeId, partition_of
from wal.records import History, Write

NODES: list[NodeId] = ["n1", "n2", "n3"]


class Missed(Observer):
    """How many keys of history one turn has read and said, or has logged, at most, and how many were logged at all."""

    def __init__(self) -> None:
        self.read_and_said = self.logged_at_once = self.all_logged = 0

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count those of a turn."""
        read = sum(_keys(event.writes) for event in events if isinstance(event, HistoryRead))
        said = sum(_keys(message.writes) for _, message in effects.send if isinstance(message, Supply))
        self.read_and_said = max(self.read_and_said, read + said)
        taken = sum(_keys(record.writes) for record in effects.log if isinstance(record, History))
        self.logged_at_once = max(self.logged_at_once, taken)
        self.all_logged += taken


def _keys(writes: Sequence[Write]) -> int:
    return sum(len(write.keys) for write in writes)


@pytest.mark.parametrize(("puts", "many", "length"), [(8_000, 1, 4), (40, 1_000, 4), (1, 100_000, 60), (3, 50_000, 4)])
def test_what_a_copy_missed_is_read_said_and_taken_in_pieces(puts: int, many: int, length: int) -> None:
    """By many small updates, by updates of many keys, and by one that is as large as it may be (seed 986022)."""
    keys = [key for key in (number.to_bytes(4) for number in range(5 * puts * many)) if partition_of(key, 4) == 0]
    settings = Settings(cluster="sim", partitions=4, backups=2, supply_batch_bytes=8 << 20, mutations_bytes=0)
    missed = Missed()
    with World(Draws(1), settings) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        topology = world.newest()
        assert topology is not None
        primary = next(world.machines[name] for name in NODES if name == topology.placements[0].primary)
        copy = next(world.machines[name] for name in NODES if name != primary.name)
        replies: list[object] = []
        session = primary.new_session(replies.append)

        def put(number: int, some: list[bytes]) -> None:
            tx = number.to_bytes(16)
            primary.receive(Asked(session, Put(number, tx, "n", some, [bytes(length)] * len(some))))

        put(1, keys[:1])
        assert world.run_while(lambda: not replies, at_most=SECOND)
        copy.stop("killed", process_only=True)
        assert world.run_while(lambda: len(_in_sync(world)) == len(NODES), at_most=60 * SECOND)
        for number in range(puts):
            put(2 + number, keys[number * many : (number + 1) * many])
        assert world.run_while(lambda: len(replies) < 1 + puts, at_most=60 * SECOND)
        world.watch([missed])
        world.costs = Modelled()
        copy.start()
        assert world.run_while(lambda: len(_in_sync(world)) < len(NODES), at_most=60 * SECOND)
    assert missed.all_logged == puts * many, "it came as history"
    assert missed.read_and_said <= max(3 * WRITES_MAX, many)
    assert missed.logged_at_once <= max(4 * WORK_MAX + WRITES_MAX, many)


def _in_sync(world: World) -> Sequence[NodeId]:
    topology = world.newest()
    assert topology is not None
    return topology.placements[0].in_sync
