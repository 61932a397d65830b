"""A small world that is at rest: three nodes, a few rows, every oracle watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.client.calls import PutCall
from engine.turn.settings import Settings
from rebalance.fragment import FragmentState
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.oracles import Oracles, unsettled, watch
from tests.sim.transactions import SimTransaction
from tests.sim.world import SECOND, World
from wal.ids import Fragment, partition_of

NAMES = ["n1", "n2", "n3"]
PARTITIONS = 4
KEYS = [b"k%d" % i for i in range(8)]
KEY = KEYS[0]
NAME: Fragment = ("acc", partition_of(KEY, PARTITIONS))


class Small:
    """The world, its oracles, and the write of `KEY` that was acknowledged last, as `put`."""

    def __init__(self, world: World, oracles: Oracles) -> None:
        self.world = world
        self.oracles = oracles
        self.client = world.add_client("c1")
        self.put = PutCall(self.client.new_tx(), "acc", [KEY], [b"last"])

    @property
    def primary(self) -> Machine:
        """Of the fragment that `KEY` lies in."""
        newest = self.world.newest()
        assert newest is not None
        return self.world.machines[newest.placements[NAME[1]].owners[0]]

    @property
    def backup(self) -> Machine:
        """Another copy of it."""
        newest = self.world.newest()
        assert newest is not None
        return self.world.machines[newest.placements[NAME[1]].owners[1]]

    def copy(self, machine: Machine) -> FragmentState:
        """A machine's copy of it."""
        assert machine.node is not None
        return machine.node.core.replica.fragments[NAME]

    def judge(self) -> None:
        """All that oracles do at rest."""
        self.oracles.look(self.world)
        self.oracles.finish(self.world)

    async def fill(self) -> None:
        """A transaction over all partitions, a delete, and the put."""
        tx = SimTransaction(self.client)
        await tx.put("acc", dict.fromkeys(KEYS, b"first"))
        await tx.commit()
        await self.client.call(PutCall(self.client.new_tx(), "acc", [KEYS[1]], [None]), timeout_ns=SECOND)
        await self.client.call(self.put, timeout_ns=SECOND)


@contextmanager
def small_world() -> Iterator[Small]:
    """All is well."""
    settings = Settings(
        cluster="sim", partitions=PARTITIONS, backups=2, checkpoint_ms=3_600_000, wal_segment_bytes=64 << 10
    )
    with World(Draws("oracles"), settings) as world:
        for name in NAMES:
            world.add_machine(name)
        small = Small(world, watch(world))
        world.form(NAMES)
        task = small.client.spawn(small.fill())
        assert world.run_while(lambda: not task.done or bool(unsettled(world)), at_most=30 * SECOND), unsettled(world)
        assert task.failure is None
        world.run_for(SECOND)
        yield small
