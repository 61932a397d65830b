"""Rows that rot in a checkpoint, so that nothing tells: the sums that are kept beside them are those of what was written.

They are rows that nobody reads or writes, in a namespace of their own: what a client is told of a row that rotted before
anybody has looked at it is wrong, and no engine could help that. Of each fragment one copy rots at a time; an asynchronous
one that was filled by it before that was found is wrong, too.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from engine.client.calls import PutCall
from engine.state.store_memory import MemoryStore
from rebalance.migrations import Paused
from rebalance.table import Standing, Topology
from tests.sim.clients import Client
from tests.sim.network import MS
from tests.support.rot import rot
from wal.ids import Fragment, NodeId, fragment_name

if TYPE_CHECKING:
    from engine.turn.core import Core
    from tests.sim.machine import Machine
    from tests.sim.world import World

COLD = "cold"
ROWS = {f"cold{at}".encode(): b"as it was written %d" % at for at in range(24)}


class Rotten:
    """The rows of one world that rotted. Oracles pass over what a copy has of a fragment while `holds` says so."""

    def __init__(self) -> None:
        self._rows: dict[tuple[NodeId, Fragment], bytes] = {}
        self._written: dict[tuple[Fragment, bytes], bytes] = {}  # what any row was that ever rotted anywhere
        self.ever: dict[tuple[NodeId, str], None] = {}
        self.partitions: dict[tuple[NodeId, int], None] = {}  # of which a copy ever was wrong
        self.for_good: dict[int, None] = {}  # of which the one that is wrong is all that is left in sync: nobody takes it
        self._waiting: dict[tuple[NodeId, Fragment], None] = {}  # to move, while that is paused: nobody looks at them

    def __len__(self) -> int:
        return sum(name[1] not in self.for_good and (node, name) not in self._waiting for node, name in self._rows)

    def __str__(self) -> str:
        return ", ".join(f"{fragment_name(name)} on {node}" for node, name in self._rows)

    def add(self, machine: Machine, name: Fragment, key: bytes, written: bytes) -> None:
        """Nobody has noticed yet. `written`: what it was."""
        self._rows[machine.name, name] = key
        self._written[name, key] = written
        self.ever[machine.name, fragment_name(name)] = None
        self.partitions[machine.name, name[1]] = None

    def forget(self) -> None:
        """A story knows that all is well again."""
        self._rows.clear()
        self._written.clear()

    def holds(self, machine: Machine, name: Fragment) -> bool:
        """Whether a copy is wrong still."""
        return (machine.name, name) in self._rows

    def anywhere(self, name: Fragment) -> bool:
        """Whether any copy of a fragment is."""
        return any(other == name for _, other in self._rows)

    def look(self, world: World) -> None:
        """Forget what was healed: the row is there again as it was written, or its copy is elsewhere."""
        newest = world.newest()
        if newest is not None:
            self._hand_on(world, newest)
        self._waiting = {(node, name): None for node, name in self._rows if _waits_to_move(world, newest, node, name)}
        for (node, name), key in list(self._rows.items()):
            if newest is not None and newest.placements[name[1]].in_sync == (node,):
                self.for_good[name[1]] = None
            machine = world.machines[node]
            if machine.node is None or not machine.up:
                continue
            core = machine.node.core
            held = core.replica.store.get(name, key)
            if name not in core.replica.fragments or (held is not None and held.value == self._written[name, key]):
                del self._rows[node, name]

    def _hand_on(self, world: World, newest: Topology) -> None:
        """What rotted may have filled an asynchronous copy meanwhile: no other one is believed before it was compared."""
        for (name, key), written in self._written.items():
            placement = newest.placements[name[1]]
            leader = _running(world, placement.primary)
            for node in placement.asynchronous:
                core = _running(world, node)
                if core is None or leader is None or (node, name) in self._rows:
                    continue
                theirs, ours = leader.replica.fragment(name), core.replica.fragment(name)
                whole = not (ours.loading or ours.suspects) and str(ours.counter) == str(theirs.counter)
                held = core.replica.store.get(name, key) if whole else None
                if whole and (held is None or held.value != written):
                    self._rows[node, name] = key


def _running(world: World, name: NodeId | None) -> Core | None:
    machine = world.machines[name] if name is not None else None
    return machine.node.core if machine is not None and machine.up and machine.node is not None else None


def _waits_to_move(world: World, newest: Topology | None, node: NodeId, name: Fragment) -> bool:
    """Whether a copy is not in sync, or is asynchronous and was emptied, and is not filled before the operator says."""
    if newest is None or newest.migrations.paused is Paused.NOTHING:
        return False
    standing, inside = newest.placements[name[1]].standing_of(node), world.machines[node].node
    emptied = inside is not None and name in inside.core.replica.fragments and inside.core.replica.fragment(name).loading
    return standing is Standing.MOVING or (standing is Standing.ASYNC and emptied)


async def write_cold(client: Client) -> None:
    """The rows, before anything goes wrong."""
    call = PutCall(client.new_tx(), COLD, list(ROWS), list(ROWS.values()))
    await client.call(call, timeout_ns=60_000 * MS)


def rot_one(world: World, machine: Machine, draw: Random) -> bool:
    """A row of one of its copies rots; False if none may, or none is in a checkpoint."""
    rotten = world.rotten
    rotten.look(world)
    if not machine.up or machine.node is None:
        return False
    core = machine.node.core
    base = core.replica.store.base
    if not isinstance(base, MemoryStore):
        return False
    there = [
        (name, key)
        for name, copy in core.replica.fragments.items()
        if name[0] == COLD and not copy.loading and core.local and core.local[name[1]].in_sync and not rotten.anywhere(name)
        if len(core.local[name[1]].placement.in_sync) > 1
        for key, entry in base.scan(name, b"", len(ROWS))
        if entry.value is not None
    ]
    if not there:
        return False
    name, key = draw.choice(there)
    value = draw.choice([None, b"nobody wrote this"])
    rot(base, name, key, value)
    rotten.add(machine, name, key, ROWS[key])
    world.say(f"{machine.name}: {key!r} of {fragment_name(name)} rots")
    return True
