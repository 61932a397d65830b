"""`python -m tests.sim cost`: what turns take of this processor, beside what `tests.sim.costs` says that they ought to.

A cluster is formed, filled, loses a node, gets it back with its history, gets it back empty, commits a large
transaction, deletes and scans. For each kind of turn the two figures are summed up; a turn that took much longer than the
model says, each time that it is tried, walks over something that it has no business with.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.client.calls import PutCall
from engine.client.ends import CommitCall
from engine.client.scans import ScanCall
from engine.node.node import Node
from engine.turn.effects import Effects
from engine.turn.events import Event
from engine.turn.settings import Settings
from engine.turn.turns import TURN_MS_MAX, what
from rebalance.ports import MS
from tests.conversations.names import key_in
from tests.sim.clients import Client
from tests.sim.costs import CountingStore, price, taken
from tests.sim.draws import Draws
from tests.sim.oracles import out_of_sync
from tests.sim.world import SECOND, Plant, World

EXCESS = 6
"""A turn that took so many times what it ought to, and `SPARE_NS` more, is named."""
SPARE_NS = 8 * MS
AT_ONCE = 500
WAIT_NS = 600 * SECOND


@dataclass
class Kind:
    """All turns over events of the same kinds."""

    turns: int = 0
    took: int = 0
    ought: int = 0
    longest: int = 0


@dataclass
class Found:
    """What both clocks say. `stage` is what the cluster is at; `worst` the longest turn of each stage."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    worst: dict[str, tuple[int, str]] = field(default_factory=dict)
    excesses: list[str] = field(default_factory=list)
    stage: str = ""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take a turn, and note both; the world goes by what it took."""
        store = node.core.replica.store
        assert isinstance(store, CountingStore)
        handed = [*node.untaken, *events]
        before, began = store.read, time.thread_time_ns()
        effects = node.turn(now, events)
        took = time.thread_time_ns() - began
        events = taken(handed, node.untaken)
        ought = price(events, effects, store.read - before, len(node.core.local))
        name = _kinds(events)
        kind = self.kinds.setdefault(name, Kind())
        kind.turns, kind.took, kind.ought = kind.turns + 1, kind.took + took, kind.ought + ought
        kind.longest = max(kind.longest, took)
        self.worst[self.stage] = max(self.worst.get(self.stage, (0, "")), (took, name))
        if took > EXCESS * ought + SPARE_NS:
            self.excesses.append(
                f"{self.stage}: {node.core.node} took {took / MS:.1f} ms, expected about {ought / MS:.1f}: {what(events)}"
            )
        return effects, took


def _kinds(events: Sequence[Event]) -> str:
    if not events:
        return "nothing new"
    return " ".join(sorted({word.partition(" ")[2] for word in what(events).split(", ")}))


def calibrate(
    partitions: int, namespaces: int, nodes: int, *, plant: Plant | None = None, tell: Callable[[str], None] = print
) -> int:
    """Run the story and print both; 1 if a turn took much longer than it ought to, or than any may."""
    found = Found()
    gc.disable()  # it comes at any time, and belongs to no turn
    try:
        _story(found, partitions, namespaces, nodes, plant)
    finally:
        gc.enable()
    tell(f"{partitions} partitions, {namespaces} namespaces, {nodes} nodes; processor time, model, ratio")
    for name, kind in sorted(found.kinds.items(), key=lambda pair: -pair[1].took)[:16]:
        tell(
            f"{kind.took / MS:9.1f} ms {kind.ought / MS:9.1f} ms {kind.took / kind.ought:5.2f}  {kind.turns:6} turns, "
            f"longest {kind.longest / MS:6.1f} ms: {name[:90]}"
        )
    for stage, (took, name) in found.worst.items():
        tell(f"longest turn of {stage}: {took / MS:.1f} ms: {name[:90]}")
    for excess in found.excesses[:20]:
        tell(f"more than it ought to: {excess}")
    above = [stage for stage, (took, _) in found.worst.items() if took > TURN_MS_MAX * MS]
    tell(f"turns above {TURN_MS_MAX} ms: {', '.join(above) or 'none'}")
    return 1 if found.excesses or above else 0


def _story(found: Found, partitions: int, namespaces: int, nodes: int, plant: Plant | None) -> None:
    settings = Settings(cluster="sim", partitions=partitions, backups=2)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    with World(Draws(1), settings, costs=found, plant=plant) as world:
        for name in names:
            world.add_machine(name)
        found.stage = "forming"
        world.form(names)
        client = world.add_client("c1")
        found.stage = "filling"
        _do(world, client, _fill(client, partitions, namespaces))
        last = world.machines[names[-1]]
        for stage, wiped in (("a return with history", False), ("a replacement", True)):
            found.stage = "a failure"
            last.stop("killed", process_only=True)
            world.run_for(5 * SECOND)
            _do(world, client, _fill(client, partitions, 1))
            if wiped:
                last.wipe()
            found.stage = stage
            assert last.start(), last.why
            assert world.run_while(lambda: bool(out_of_sync(world)), at_most=WAIT_NS, look_every=SECOND), out_of_sync(world)
        found.stage = "a large transaction"
        keys = [b"large%d" % number for number in range(2_000)]
        tx = client.new_tx()
        writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("large", keys, [b"v" * 100] * len(keys))]
        commit = CommitCall(tx, tx, optimistic=True, writes=writes, locks=[], reads=[])
        _do(world, client, client.call(commit, timeout_ns=WAIT_NS))
        world.run_for(2 * SECOND)
        found.stage = "deletes and a scan"
        _do(world, client, _delete_and_scan(client))


async def _fill(client: Client, partitions: int, namespaces: int) -> None:
    keys = [key_in(partition, partitions, "k") for partition in range(partitions)]
    for number in range(namespaces):
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            call = PutCall(client.new_tx(), f"ns{number}", some, [b"v" * 100] * len(some))
            await client.call(call, timeout_ns=WAIT_NS)


async def _delete_and_scan(client: Client) -> None:
    keys = [b"{row}%d" % number for number in range(5_000)]
    for value in (b"v", None):
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            await client.call(PutCall(client.new_tx(), "rows", some, [value] * len(some)), timeout_ns=WAIT_NS)
    await client.call(ScanCall("rows", b"{row}", None, 10), timeout_ns=WAIT_NS)


def _do(world: World, client: Client, doing: Coroutine[Any, None, object]) -> None:
    task = client.spawn(doing)
    assert world.run_while(lambda: not task.done, at_most=WAIT_NS, look_every=10 * MS), "nobody answers"
    assert task.failure is None, task.failure
