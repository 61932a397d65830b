"""Checkpoints that take more than a turn to encode, and a crash after each of their pieces.

What is written meanwhile: story `a-checkpoint-takes-several-turns`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from engine.protocol.requests import Done, Put
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event
from engine.turn.settings import Settings
from rebalance.ports import WORK_MAX
from tests.sim.costs import Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.world import SECOND, World
from wal.ids import NodeId, partition_of, piece_of, tx_of
from wal.records import Prepare, Record, Update, Write

PARTITIONS = 2_048
NODE: NodeId = "n1"


class Encoded(Observer):
    """How many states were encoded in each turn that encoded some."""

    def __init__(self) -> None:
        self.before = 0
        self.turns: list[int] = []

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look at what there is."""
        assert machine.node is not None
        encoded = machine.node.core.replica.changes.encoded
        if encoded > self.before:
            self.turns.append(encoded - self.before)
        self.before = encoded


def _keys() -> list[bytes]:
    """A key of every partition."""
    keys: dict[int, bytes] = {}
    number = 0
    while len(keys) < PARTITIONS:
        key = b"k%d" % number
        keys.setdefault(partition_of(key, PARTITIONS), key)
        number += 1
    return list(keys.values())


KEYS = _keys()


def _put(world: World, number: int, keys: list[bytes], value: bytes) -> list[object]:
    machine = world.machines[NODE]
    replies: list[object] = []
    session = machine.new_session(replies.append)
    machine.receive(Asked(session, Put(1, b"%016d" % number, "n", keys, [value] * len(keys))))
    return replies


def _full(draw: int) -> World:
    """A node with a change in every partition, and no checkpoint of it."""
    settings = Settings(cluster="sim", partitions=PARTITIONS, backups=0, checkpoint_ms=86_400_000)
    world = World(Draws(draw), settings, costs=Modelled())
    world.add_machine(NODE)
    world.form([NODE])
    replies = _put(world, 1, KEYS, b"old")
    assert world.run_while(lambda: not replies, at_most=10 * SECOND)
    assert isinstance(replies[0], Done)
    return world


def _written(machine: Machine) -> bool:
    assert machine.node is not None
    return not machine.node.checkpointing and machine.node.core.replica.store.base.load().lsn > 0


def _values(machine: Machine) -> list[bytes | None]:
    assert machine.node is not None
    machine.node.core.replica.check()
    store = machine.node.core.replica.store
    return [e.value if (e := store.get(("n", partition_of(key, PARTITIONS)), key)) is not None else None for key in KEYS]


@pytest.mark.parametrize("turns", range(3))
def test_a_crash_after_any_piece_of_a_checkpoint_loses_nothing(turns: int) -> None:
    with _full(2) as world:
        encoded, machine = Encoded(), world.machines[NODE]
        world.watch([encoded])
        world.command(machine, "checkpoint")
        replies = _put(world, 2, list(reversed(KEYS)), b"new")
        assert world.run_while(lambda: len(encoded.turns) <= turns, at_most=SECOND, look_every=10_000)
        assert len(encoded.turns) == turns + 1
        assert max(encoded.turns) <= WORK_MAX + 1
        told = bool(replies)
        machine.stop("power cut", torn=lambda _: False)
        assert machine.start()
        found = _values(machine)
        assert set(found) <= {b"old", b"new"}
        assert not told or found == [b"new"] * PARTITIONS


class Begun(Observer):
    """When each node began to write a checkpoint, in s."""

    def __init__(self) -> None:
        self.at: list[tuple[float, NodeId]] = []
        self._was: dict[NodeId, bool] = {}

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Look at it."""
        assert machine.node is not None
        if machine.node.checkpointing and not self._was.get(machine.name):
            self.at.append((machine.world.now / SECOND, machine.name))
        self._was[machine.name] = machine.node.checkpointing


@pytest.mark.parametrize("due_by", ["time", "bytes"])
def test_the_members_of_a_map_write_their_checkpoints_one_after_the_other(due_by: str) -> None:
    """They are told the same, so that without more they would all write at once, each time."""
    names: list[NodeId] = ["n1", "n2", "n3"]
    due_ms, due_bytes = (12_000, 48 << 20) if due_by == "time" else (600_000, 60_000)
    settings = Settings(cluster="sim", partitions=4, backups=2, checkpoint_ms=due_ms, checkpoint_bytes=due_bytes)
    with World(Draws(1), settings) as world:
        for name in names:
            world.add_machine(name)
        world.form(names)
        begun = Begun()
        world.watch([begun])
        machine, replies = world.machines[NODE], list[object]()
        session, topology = machine.new_session(replies.append), world.newest()
        assert topology is not None
        keys = [
            key for key in (b"k%d" % n for n in range(400)) if topology.placements[partition_of(key, 4)].primary == NODE
        ]
        for number in range(200):
            tx, key = number.to_bytes(16, "big"), keys[number % 50]
            machine.receive(Asked(session, Put(number + 1, tx, "n", [key], [bytes(1_000)])))
            world.run_for(SECOND // 5)
        writers = [name for _, name in begun.at]
        assert len(writers) >= 7
        assert writers[:6] == writers[:3] * 2, "in turn"
        assert sorted(writers[:3]) == names
        times = [at for at, _ in begun.at]
        assert min(later - at for at, later in itertools.pairwise(times)) >= 1.0, begun.at


PIECE = 4 << 20


def _prepared(keys: int, size: int) -> Iterator[Record]:
    """What one transaction has prepared in one partition, in pieces: so many keys in all, and so many bytes."""
    tx = tx_of(b"a client..", 7)
    count = max(1, size // PIECE)
    at = 0
    for piece in range(count):
        names = [b"k%07d" % number for number in range(keys * piece // count, keys * (piece + 1) // count)]
        write = Write("n", 0, 0, at, names, [bytes(size // keys)] * len(names), tx=tx)
        yield Prepare(piece_of(tx, piece), 0, 0, [write], [], [0] * count, 0)
        at += len(names)


def _beyond_a_gap(updates: int, size: int) -> Iterator[Record]:
    """What came to a copy in so many updates of one key each, of which it lacks the first."""
    for number in range(1, updates + 1):
        yield Update([Write("n", 0, 0, number, [b"k%07d" % number], [bytes(size)], tx=tx_of(b"a client..", number))])


def _in_few_updates(keys: int, size: int) -> Iterator[Record]:
    """The same in large ones, of values of which the rows are asked whether they have them."""
    names = [b"k%07d" % number for number in range(keys)]
    yield Update([Write("n", 0, 0, 1, names, [bytes(size)] * keys)])


@pytest.mark.parametrize(
    ("had", "many", "size"),
    [
        (_prepared, 24, 96 << 20),
        (_prepared, 100_000, 96 << 20),
        (_beyond_a_gap, 64_000, 30),
        (_in_few_updates, 60_000, 300),
    ],
)
@pytest.mark.parametrize("changes", [False, True])
def test_no_turn_is_too_long_however_much_of_one_partition_a_checkpoint_has_to_encode(
    had: Callable[[int, int], Iterator[Record]], many: int, size: int, changes: bool
) -> None:
    """Nor is the one in which something of that changes, so that it has to be kept as it was."""
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=0), costs=Modelled()) as world:
        machine = world.add_machine(NODE)
        world.form([NODE])
        assert machine.node is not None
        node = machine.node
        replica = node.core.replica
        for record in had(many, size):
            replica.apply(record)
        before, node.checkpoint_wanted = replica.changes.number, True
        assert world.run_while(lambda: replica.changes.number == before, at_most=SECOND)
        if changes:
            replica.apply(Update([Write("n", 0, 0, 2 * many, [b"another"], [b"v"], tx=tx_of(b"a client..", 2 * many))]))
        assert world.run_while(lambda: node.checkpointing, at_most=60 * SECOND)
