"""What must hold at every moment and in the end, whatever happened: one oracle for each promise of the engine.

Observers see each fact as it becomes one; the rounds look at the whole cluster a few times in a simulated second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.effects import Effects, Event
from engine.messages import Heartbeat, Message
from engine.requests import Reply
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, NodeId, Version
from wal.records import Committed, Record

ROWS_AT_ONCE = 10_000


class Durability(Observer):
    """Nothing is sent or answered before the log that promises it is on disk (system.md 12, invariant "durability")."""

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """A message leaves."""
        self._check(machine, f"{type(message).__name__} to {', '.join(targets)}", needed_lsn)
        if isinstance(message, Heartbeat) and machine.log is not None and message.durable_lsn > machine.log.durable_lsn:
            raise Violation("durability", f"{machine.name} claims lsn {message.durable_lsn}", About(nodes=(machine.name,)))

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A reply leaves."""
        self._check(machine, f"{type(reply).__name__} #{reply.id}", needed_lsn)

    def _check(self, machine: Machine, what: str, needed_lsn: int) -> None:
        log = machine.log
        if log is not None and needed_lsn > log.durable_lsn:
            raise Violation(
                "durability",
                f"{machine.name} says {what}, which lsn {needed_lsn} promises; durable is {log.durable_lsn}",
                About(nodes=(machine.name,)),
            )


class OneMap(Observer):
    """A version is one map, everywhere and for ever; no node goes back in one life."""

    def __init__(self) -> None:
        self._maps: dict[Version, tuple[bytes, NodeId]] = {}

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        """A node has a new map on disk."""
        for record in records:
            if isinstance(record, Committed):
                known, by = self._maps.setdefault(record.version, (record.topology, machine.name))
                if known != record.topology:
                    raise Violation("one-map", f"version {record.version} is one map for {by}, another for {machine.name}")


class OnePrimary(Observer):
    """In an epoch of a partition only one node ever serves as its primary."""

    def __init__(self) -> None:
        self._served: dict[tuple[int, int], NodeId] = {}

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """A node took a turn."""
        assert machine.node is not None
        for hold in machine.node.core.holds:
            if hold.mine and hold.active:
                first = self._served.setdefault((hold.number, hold.epoch), machine.name)
                if first != machine.name:
                    raise Violation(
                        "one-primary",
                        f"{first} and {machine.name} both served partition {hold.number} in epoch {hold.epoch}",
                        About(partitions=(hold.number,)),
                    )


class EqualCounters:
    """Copies with equal counters and equal epoch tables have equal digests: at every round, over the whole run."""

    def __init__(self) -> None:
        self._digests: dict[tuple[Fragment, int, tuple[tuple[int, int], ...]], tuple[int, NodeId]] = {}

    def look(self, world: World) -> None:
        """All copies of running nodes, now."""
        for machine in world.running:
            assert machine.node is not None
            for name, copy in machine.node.core.replica.fragments.items():
                if copy.loading or not copy.counter.lwm:
                    continue
                key = (name, copy.counter.lwm, tuple(copy.history))
                digest, by = self._digests.setdefault(key, (copy.digest, machine.name))
                if digest != copy.digest:
                    raise Violation(
                        "equal-counters",
                        f"at {copy.counter} with epochs {copy.history}, {by} and {machine.name} have different digests",
                        About(fragments=(name,)),
                    )


def watch(world: World) -> EqualCounters:
    """Let every oracle see the world; the one returned is to be asked to `look` now and then."""
    world.watch([Durability(), OneMap(), OnePrimary()])
    return EqualCounters()


def look_inside(world: World) -> None:
    """The invariants that a node knows of itself."""
    for machine in world.running:
        assert machine.node is not None
        try:
            machine.node.core.replica.check()
        except AssertionError as error:
            raise Violation("replica", f"{machine.name}: {error}", About(nodes=(machine.name,))) from error


def out_of_sync(world: World) -> str:
    """Which copy is not where it belongs, or not in sync; empty if all are."""
    newest = world.newest()
    if newest is None:
        return "there is no map"
    for machine in world.machines.values():
        if machine.gone:
            continue
        node = machine.node
        if not machine.up or node is None or not node.core.serving:
            return f"{machine.name} does not serve ({machine.why or 'it is up'})"
        status = node.admin.status()
        if status["version"] != str(newest.version):
            return f"{machine.name} is at {status['version']}, the newest map is {newest.version}"
        for what in ("under_replicated", "lost", "behind", "frozen"):
            if status[what]:
                return f"{machine.name}: {what} is {status[what]}"
        if any(hold.mine and not hold.active for hold in node.core.holds):
            return f"{machine.name} has not promoted everything it is primary of"
    return ""


def unsettled(world: World) -> str:
    """Why the cluster has not come to rest yet; empty if it has."""
    reason = out_of_sync(world)
    if reason:
        return reason
    for machine in world.running:
        assert machine.node is not None
        status = machine.node.admin.status()
        for what in ("in_doubt", "locks"):
            if status[what]:
                return f"{machine.name}: {what} is {status[what]}"
    return ""


def compare_copies(world: World) -> None:
    """At rest: every copy of a fragment is where the map says, has no gap, and equals the others in every respect."""
    newest = world.newest()
    assert newest is not None
    names = sorted({n for m in world.running if m.node is not None for n in m.node.core.replica.fragments})
    for name in names:
        owners = newest.placements[name[1]].owners
        copies = [_copy(world.machines[owner], name) for owner in owners]
        for (first, mine), (second, theirs) in pairwise(zip(owners, copies, strict=True)):
            if mine != theirs:
                wrong = next(k for k in mine if mine[k] != theirs[k])
                raise Violation(
                    "equal-contents",
                    f"{wrong} on {first}: {mine[wrong]}; on {second}: {theirs[wrong]}",
                    About(fragments=(name,)),
                )


def _copy(machine: Machine, name: Fragment) -> dict[str, object]:
    assert machine.node is not None
    replica = machine.node.core.replica
    copy = replica.fragments.get(name)
    rows = replica.store.scan(name, b"", ROWS_AT_ONCE)
    if copy is None:
        return {"counter": "lwm=0 hwm=0", "digest": 0, "epochs": [], "suspects": [], "rows": []}
    return {
        "counter": str(copy.counter),
        "digest": copy.digest,
        "epochs": copy.history,
        "suspects": list(copy.suspects),
        "rows": [(key, entry) for key, entry in rows if entry.value is not None],
    }
