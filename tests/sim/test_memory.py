"""What a node keeps for a fragment at rest, when it was written and when the node has come back, on every copy."""

from __future__ import annotations

from engine.client.calls import PutCall
from engine.state.store_memory import MemoryStore
from engine.turn.settings import Settings
from tests.sim.background import Turnstile
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.oracles import unsettled
from tests.sim.world import SECOND, World
from tests.support.memory_disk import MemoryDisk
from tests.support.weight import weight
from wal.ids import partition_of

NAMES = ["n1", "n2", "n3"]
PARTITIONS, NAMESPACES = 256, 16
FRAGMENTS = PARTITIONS * NAMESPACES
WRITTEN_MAX, RETURNED_MAX = 600, 640
VALUE = b"v" * 100


def key_of_each() -> list[bytes]:
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < PARTITIONS:
        found.setdefault(partition_of(b"k%d" % number, PARTITIONS), b"k%d" % number)
        number += 1
    return list(found.values())


def weighs(machine: Machine) -> int:
    """A node and its log in memory, without what lies on its disk."""
    assert machine.node is not None
    assert machine.log is not None
    return weight([machine.node, machine.log], but=(Machine, World, MemoryDisk, MemoryStore, Turnstile))


def rest(world: World) -> None:
    """Tails go within two looks, and a checkpoint after that leaves nothing in the layers."""
    assert world.run_while(lambda: bool(unsettled(world)), at_most=60 * SECOND), unsettled(world)
    world.run_for(8 * SECOND)


def test_a_fragment_at_rest_takes_less_than_a_kilobyte() -> None:
    settings = Settings(cluster="sim", partitions=PARTITIONS, backups=2, checkpoint_ms=2_000, wal_segment_bytes=1 << 20)
    with World(Draws("memory"), settings) as world:
        for name in NAMES:
            world.add_machine(name)
        world.form(NAMES)
        client = world.add_client("c1")

        async def write() -> None:
            keys = key_of_each()
            for number in range(NAMESPACES):
                call = PutCall(client.new_tx(), f"many-{number}", keys, [key + VALUE for key in keys])
                await client.call(call, timeout_ns=30 * SECOND)

        rest(world)
        empty = {name: weighs(world.machines[name]) for name in NAMES}
        task = client.spawn(write())
        assert world.run_while(lambda: not task.done, at_most=600 * SECOND), "no answer"
        assert task.failure is None, task.failure
        rest(world)
        written = {name: (weighs(world.machines[name]) - empty[name]) // FRAGMENTS for name in NAMES}
        for machine in world.machines.values():
            machine.stop("power cut")
        for machine in world.machines.values():
            assert machine.start(), machine.why
        rest(world)
        returned = {name: (weighs(world.machines[name]) - empty[name]) // FRAGMENTS for name in NAMES}
        for name in NAMES:
            machine = world.machines[name]
            assert machine.node is not None
            assert len(machine.node.core.replica.fragments) >= FRAGMENTS, "all of them have a copy of each"
        assert max(written.values()) < WRITTEN_MAX, written
        assert max(returned.values()) < RETURNED_MAX, returned
