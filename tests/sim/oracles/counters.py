"""Invariant 2: `hwm >= lwm`, a version is one map, and an epoch has one primary. The rest of it is the ledger's."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from engine.turn.effects import Effects
from engine.turn.events import Event
from rebalance.partition import Role
from rebalance.table import hash_of
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import NO_VERSION, NodeId, Version
from wal.records import Accepted, Committed, EpochStart, Record


class Watermarks(Oracle):
    """On every copy `hwm >= highest applied >= lwm >= stable`, and whatever else a copy knows of itself."""

    def look(self, world: World) -> None:
        """All copies of running nodes."""
        for machine in world.running:
            assert machine.node is not None
            for name, copy in machine.node.core.replica.fragments.items():
                counter = copy.counter
                if not counter.hwm >= counter.highest_applied >= counter.lwm >= copy.stable:
                    raise Violation("watermarks", f"{machine.name}: {copy} stable={copy.stable}", About(fragments=(name,)))

    def finish(self, world: World) -> None:
        """The whole of it."""
        look_inside(world)


def _hash(record: Accepted | Committed) -> int:
    """Which map it is."""
    return record.map_hash if record.step else hash_of(record.topology)


class OneMap(Oracle):
    """A version is one map, everywhere and for ever, and is followed by one: 1.1 and 2.0 cannot both come after 1.0."""

    def __init__(self) -> None:
        self._maps: dict[Version, tuple[int, NodeId]] = {}
        self._after: dict[int, Version] = {}  # what was accepted, as the successor of which version
        self._successors: dict[Version, tuple[Version, NodeId]] = {}

    def decided(self, machine: Machine, records: Sequence[Record]) -> None:
        """A node decided something; what it accepted, others may commit."""
        for record in records:
            if isinstance(record, Accepted):
                self._after[_hash(record)] = record.after

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        """A node has a new map on disk."""
        for record in records:
            if isinstance(record, Committed):
                self._committed(machine, record)

    def _committed(self, machine: Machine, record: Committed) -> None:
        known, by = self._maps.setdefault(record.version, (_hash(record), machine.name))
        if known != _hash(record):
            raise Violation("one-map", f"version {record.version} is one map for {by}, another for {machine.name}")
        after = self._after.get(_hash(record), NO_VERSION)
        if after == NO_VERSION:
            return
        successor, by = self._successors.setdefault(after, (record.version, machine.name))
        if successor != record.version:
            raise Violation(
                "one-map", f"{after} is followed by {successor} for {by}, and by {record.version} for {machine.name}"
            )


_role, _epoch = attrgetter("role"), attrgetter("epoch")
BEGINNING = frozenset((EpochStart, Committed))
FEW = 64
"""Of so many partitions each is looked at in every turn; of more, in the turns that may begin an epoch or a map."""


class OnePrimary(Oracle):
    """In an epoch of a partition only one node ever serves as its primary.

    It serves from the turn on that follows the one in which it begins to: whose log was not synced has served nobody.
    """

    def __init__(self) -> None:
        self._served: dict[tuple[int, int], NodeId] = {}
        self._begun: dict[NodeId, tuple[int, list[tuple[int, int]]]] = {}  # in its last turn, in which life
        self._judged: dict[NodeId, tuple[int, list[Role], list[int]]] = {}  # the same: how all its partitions stood

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """A node took a turn."""
        assert machine.node is not None
        begun = self._begun.pop(machine.name, None)
        if begun is not None and begun[0] == machine.boot:
            for served in begun[1]:
                self._judge(served, self._served.setdefault(served, machine.name), machine.name)
        if len(machine.node.core.local) > FEW and BEGINNING.isdisjoint(map(type, effects.log)):
            return
        here = machine.node.core.local
        now = machine.boot, [*map(_role, here)], [*map(_epoch, here)]  # this is asked millions of times
        if self._judged.get(machine.name) == now:
            return
        self._judged[machine.name] = now
        for serves in [(local.number, local.epoch) for local in here if local.active]:
            first = self._served.get(serves)
            if first is None:
                self._begun.setdefault(machine.name, (machine.boot, []))[1].append(serves)
            else:
                self._judge(serves, first, machine.name)

    @staticmethod
    def _judge(served: tuple[int, int], first: NodeId, name: NodeId) -> None:
        if first != name:
            number, epoch = served
            raise Violation(
                "one-primary",
                f"{first} and {name} both served partition {number} in epoch {epoch}",
                About(partitions=(number,)),
            )


def look_inside(world: World) -> None:
    """The invariants that a node knows of itself."""
    for machine in world.running:
        assert machine.node is not None
        try:
            machine.node.core.replica.check()
        except AssertionError as error:
            raise Violation("replica", f"{machine.name}: {error}", About(nodes=(machine.name,))) from error
