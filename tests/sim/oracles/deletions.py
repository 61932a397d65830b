"""Invariant 8: a deleted key does not come back; and nothing else is there that the history does not say.

A tombstone may go once every in-sync copy has passed it: that is what `stable` stands for, so it is compared with them
at every look. Who is in sync says the newest map that anybody goes by, though the first log that is to know it is still
being written: it has been decided by then, and whoever has it waits for nobody whom it leaves out. In the end the rows
of every copy must be what its counters say, replayed from the ledger.
"""

from __future__ import annotations

from rebalance.partition import Fragments
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.oracles.equality import ROWS_AT_ONCE, made
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.ruined import Ruined
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, NodeId, Version, fragment_name

Told = dict[bytes, tuple[int, bytes | None]]


class Deletions(Oracle):
    """Tombstones wait for every in-sync copy; rows are what the history says."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ruined = Ruined()

    def destroyed(self, machine: Machine, how: str) -> None:
        """What it had passed, it has not any more, until a map knows its next life."""
        self._ruined.add(machine)

    def look(self, world: World) -> None:
        """No copy forgets what another in-sync one still lacks."""
        newest = max((t for t in (self._ledger.newest, world.newest()) if t is not None), key=_version, default=None)
        if newest is None:
            return
        in_sync: dict[int, list[tuple[NodeId, Fragments]]] = {}
        for machine in world.running:
            assert machine.node is not None
            for name, copy in machine.node.core.replica.fragments.items():
                if not copy.stable or copy.loading or name[1] in self._ledger.given_up:
                    continue
                if name[1] not in in_sync:
                    in_sync[name[1]] = self._in_sync(world, newest, name[1])
                for node, held in in_sync[name[1]]:
                    theirs = held.get(name)
                    if copy.stable > (theirs.counter.lwm if theirs is not None else 0):
                        raise Violation(
                            "tombstones",
                            f"{machine.name} has forgotten what it had up to {copy.stable} of {copy}; {node}, in sync, has "
                            f"{theirs or 'nothing'}",
                            About(fragments=(name,)),
                        )

    def _in_sync(self, world: World, newest: Topology, number: int) -> list[tuple[NodeId, Fragments]]:
        """Who is to have a partition, and what each of them has; not a disk that is gone, whose name the map remembers."""
        holders = [world.machines[node] for node in newest.placements[number].in_sync if node in world.machines]
        return [
            (holder.name, holder.node.core.replica.fragments)
            for holder in holders
            if holder.node is not None and self._ruined.forgive(holder, newest)
        ]

    def finish(self, world: World) -> None:
        """The rows of every copy."""
        newest = self._ledger.newest
        assert newest is not None
        held: dict[NodeId, dict[int, list[Fragment]]] = {}
        for machine in world.machines.values():
            if machine.node is not None:
                by_partition = held.setdefault(machine.name, {})
                for name in machine.node.core.replica.fragments:
                    by_partition.setdefault(name[1], []).append(name)
        for number in range(len(newest.placements)):
            told: dict[tuple[Fragment, int], Told] = {}  # copies are equal by now, nearly always: it is told once
            for node in made(newest, number):
                for name in held[node].get(number, ()):
                    machine = world.machines[node]
                    if number not in self._ledger.given_up and not world.rotten.holds(machine, name):
                        self._judge(machine, name, told)

    def _told(self, name: Fragment, lwm: int) -> Told:
        """By key the newest update that counts, and what it wrote."""
        told: Told = {}
        for counter, fact in self._ledger.history(name, lwm):
            if fact is None:
                raise Violation("history", f"counter {counter} of {fragment_name(name)} came from nowhere", _about(name))
            if fact.key is not None:
                told[fact.key] = (counter, fact.value)
        return told

    def _judge(self, machine: Machine, name: Fragment, known: dict[tuple[Fragment, int], Told]) -> None:
        assert machine.node is not None
        replica = machine.node.core.replica
        upto = name, replica.fragments[name].counter.lwm
        if upto not in known:
            known[upto] = self._told(*upto)
        told = known[upto]
        rows = {key: entry for key, entry in replica.store.scan(name, b"", ROWS_AT_ONCE) if entry.value is not None}
        for key, (counter, value) in told.items():
            row = rows.pop(key, None)
            if value is None and row is not None:
                raise Violation(
                    "deleted-key", f"{machine.name}: {key!r} was deleted at {counter}, and is {row}", _about(name, key)
                )
            if value is not None and (row is None or (row.counter, row.value) != (counter, value)):
                raise Violation(
                    "rows", f"{machine.name}: {key!r} is {row}, the history says {value!r} at {counter}", _about(name, key)
                )
        if rows:
            raise Violation("rows", f"{machine.name} has rows that nobody wrote: {rows}", _about(name))


def _version(topology: Topology) -> Version:
    return topology.version


def _about(name: Fragment, *keys: bytes) -> About:
    return About(fragments=(name,), keys=keys)
