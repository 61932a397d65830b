"""Invariant 4: equal epoch tables and equal LWMs mean equal digests and equal contents."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from engine.state.replica import Replica
from engine.state.store import Entry
from rebalance.contents import MASK, rows_digest
from rebalance.epochs import Epochs
from rebalance.moves import waits_by_order
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, NodeId

ROWS_AT_ONCE = 1_000_000
CONTENTS_EVERY = 8
"""Contents are compared at each so many looks."""

State = tuple[Fragment, int, tuple[tuple[int, int], ...]]
"""A fragment, its LWM and its epoch table."""


class Seen(NamedTuple):
    """What the first copy that stood at a state had, with its tombstones, and who that was."""

    found: list[tuple[bytes, Entry]]
    digest: int
    rows: int  # that are no tombstones
    by: NodeId


def _seen(found: list[tuple[bytes, Entry]], by: NodeId) -> Seen:
    return Seen(found, rows_digest(found) & MASK, sum(entry.value is not None for _, entry in found), by)


def _rows(found: Sequence[tuple[bytes, Entry]]) -> list[tuple[bytes, int, bytes]]:
    """What copies must have alike: they drop tombstones at different times."""
    return [(key, entry.counter, entry.value) for key, entry in found if entry.value is not None]


class EqualCounters(Oracle):
    """Over the whole run: who stands where another one ever stood has what that one had."""

    def __init__(self) -> None:
        self._digests: dict[State, tuple[int, NodeId]] = {}
        self._contents: dict[State, Seen] = {}
        self._judged: dict[NodeId, dict[Fragment, tuple[int, int, Epochs]]] = {}  # where each stood at the last look
        self._looks = 0

    def look(self, world: World) -> None:
        """All copies of running nodes, now."""
        self._looks += 1
        world.rotten.look(world)
        for machine in world.running:
            assert machine.node is not None
            judged = self._judged.setdefault(machine.name, {})
            contents = self._looks % CONTENTS_EVERY == 0
            for name, copy in machine.node.core.replica.fragments.items():
                lwm = copy.counter.lwm
                if copy.loading or not lwm:
                    continue
                stands = lwm, copy.digest, copy.epochs
                if not contents and judged.get(name) == stands:
                    continue  # whoever else stood there was judged by it
                judged[name] = stands
                state = (name, lwm, tuple(copy.history))
                digest, by = self._digests.setdefault(state, (copy.digest, machine.name))
                if digest != copy.digest:
                    raise Violation(
                        "equal-counters",
                        f"at {copy.counter} with epochs {copy.history}, {by} and {machine.name} have different digests",
                        About(fragments=(name,)),
                    )
                if contents and _whole(machine, name) and not world.rotten.holds(machine, name):
                    self._compare(machine, state)

    def _compare(self, machine: Machine, state: State) -> None:
        assert machine.node is not None
        name = state[0]
        found = machine.node.core.replica.store.scan(name, b"", ROWS_AT_ONCE)
        first = self._contents.get(state)
        if first is None:
            first = self._contents[state] = _seen(found, machine.name)
        # What is the same to the last tombstone adds up to the same.
        here = first if found == first.found else _seen(found, machine.name)
        digest = contents_digest(machine.node.core.replica, name)
        if digest is not None and digest != here.digest:
            raise Violation(
                "equal-counters",
                f"at lwm={state[1]} {machine.name} says that it contains {digest:016x}, and its rows say something else",
                About(fragments=(name,)),
            )
        if (counted := count_of(machine.node.core.replica, name)) not in (None, here.rows):
            raise Violation(
                "equal-counters",
                f"at lwm={state[1]} {machine.name} says that it has {counted} rows, and it has {here.rows}",
                About(fragments=(name,)),
            )
        if here is not first and (theirs := _rows(first.found)) != (ours := _rows(found)):
            differing = [row for row in (*theirs, *ours) if (row in theirs) != (row in ours)]
            raise Violation(
                "equal-counters",
                f"at lwm={state[1]} with epochs {state[2]}, {first.by} and {machine.name} differ in {differing[:4]}",
                About(fragments=(name,)),
            )

    def finish(self, world: World) -> None:
        """In every respect, on every owner."""
        compare_copies(world)


def contents_digest(replica: Replica, name: Fragment) -> int | None:
    """The digest of contents that a copy would tell; None if its store knows none."""
    walk = replica.store.walk(name)()
    if walk is None:
        return None
    while not walk.done:
        walk.step(ROWS_AT_ONCE)
    return replica.store.walked(walk)


def count_of(replica: Replica, name: Fragment) -> int | None:
    """How many rows a copy says that it has; None if its store knows nothing of that."""
    store = replica.store
    while (found := store.count(name, ROWS_AT_ONCE))[1] > ROWS_AT_ONCE:
        pass
    return found[0]


def _whole(machine: Machine, name: Fragment) -> bool:
    """In sync, without gaps: a copy that is still supplied may have rows that are newer than its counters."""
    assert machine.node is not None
    core = machine.node.core
    copy = core.replica.fragments[name]
    serves = core.serving and core.local[name[1]].in_sync
    return serves and not copy.counter.ranges and not copy.suspects


def made(topology: Topology, number: int) -> tuple[NodeId, ...]:
    """Who has a copy of a partition at rest: all that the map says, unless the operator has paused the making of more."""
    placement = topology.placements[number]
    return placement.in_sync if waits_by_order(topology, number) else placement.copies


def compare_copies(world: World) -> None:
    """At rest: every copy of a fragment is where the map says, has no gap, and equals the others in every respect.

    What is not made because the operator has paused that may have anything.
    """
    newest = world.newest()
    assert newest is not None
    names = sorted({n for m in world.running if m.node is not None for n in m.node.core.replica.fragments})
    for name in names:
        if name[1] in world.rotten.for_good:
            continue  # nobody can be made equal to a copy that does not prove itself
        replicas: list[tuple[NodeId, Replica]] = []
        for owner in made(newest, name[1]):
            node = world.machines[owner].node
            assert node is not None
            replicas.append((owner, node.core.replica))
        compare(name, replicas)


def compare(name: Fragment, replicas: Sequence[tuple[NodeId, Replica]]) -> None:
    """Every two of these copies of a fragment are equal in every respect."""
    copies = [(node, contents_of(replica, name)) for node, replica in replicas]
    for (first, mine), (second, theirs) in pairwise(copies):
        if mine != theirs:
            wrong = next(k for k in mine if mine[k] != theirs[k])
            raise Violation(
                "equal-contents",
                f"{wrong} on {first}: {mine[wrong]}; on {second}: {theirs[wrong]}",
                About(fragments=(name,)),
            )


def contents_of(replica: Replica, name: Fragment) -> dict[str, object]:
    """All that two copies of a fragment must agree on."""
    copy = replica.fragments.get(name)
    if copy is None:
        return {"counter": "lwm=0 hwm=0", "digest": 0, "epochs": [], "suspects": [], "rows": [], "contents": 0, "count": 0}
    rows = replica.store.scan(name, b"", ROWS_AT_ONCE)
    return {
        "counter": str(copy.counter),
        "digest": copy.digest,
        "epochs": copy.history,
        "suspects": list(copy.suspects),
        "rows": [(key, entry) for key, entry in rows if entry.value is not None],
        "contents": contents_digest(replica, name),
        "count": count_of(replica, name),
    }
