"""What checkpoints cost the clients beside them: the waits of single puts, told apart by whether one was being written.

Nodes that start together write theirs one after the other (`engine.node.node`), so one at a time is told to. What it costs
if all are told at once, as an operator may, is said beside it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias

from engine import aio
from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, counted, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, per_second, percentile
from tools.local_cluster import LocalCluster

Waits: TypeAlias = list[tuple[float, float]]
"""When a put was asked, and when it was answered."""

CLIENTS = 64
KEYS = 100_000
CYCLES_LEAST = 4
CYCLE_SECONDS = 10.0
LOOK_SECONDS = 0.02


class Written(NamedTuple):
    """Checkpoints of so many nodes at once: when they were ordered, and when the last one was written."""

    start: float
    end: float
    nodes: int


async def _checkpoints(setting: Setting, cluster: LocalCluster, end: float) -> list[Written]:
    """Checkpoints until then: of one node after the other, and after a round of these of all at once."""
    written: list[Written] = []
    nodes = list(cluster.running)
    turns = cycle([*([node] for node in nodes), nodes])
    pause = min(CYCLE_SECONDS, setting.seconds / (CYCLES_LEAST + 1))
    while time.perf_counter() + pause < end:
        await asyncio.sleep(pause)
        start, told = time.perf_counter(), next(turns)
        for node in told:
            await ask(node.address, "checkpoint")
        while any([(await ask(node.address, "status"))["checkpointing"] for node in told]):
            await asyncio.sleep(LOOK_SECONDS)
        written.append(Written(start, time.perf_counter(), len(told)))
    return written


def _beside(waits: Waits, written: Sequence[Written]) -> list[float]:
    """The waits of those puts that were under way while any of these was written."""
    return [answered - asked for asked, answered in waits if any(asked < w.end and answered > w.start for w in written)]


def _calm(waits: Waits, written: Sequence[Written]) -> list[float]:
    """The waits of all others."""
    return [answered - asked for asked, answered in waits if not any(asked < w.end and answered > w.start for w in written)]


async def sustained(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """Puts of 64 clients; every ten seconds, or four times, a node is told to write a checkpoint, or all are."""
    value = b"v" * VALUE_BYTES
    waits: Waits = []
    async with three_nodes(setting, figure) as (cluster, database):
        began = time.perf_counter()
        end = began + setting.seconds

        async def client(number: int) -> None:
            draw = random.Random(number)  # noqa: S311  # which keys are written is no secret
            namespace: aio.Namespace[bytes, bytes] = database.namespace(NAMESPACE)
            while not waits or time.perf_counter() < end:
                asked = time.perf_counter()
                await namespace.put(b"key-%09d" % draw.randrange(KEYS), value)
                waits.append((asked, time.perf_counter()))

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(_checkpoints(setting, cluster, end))
            for number in range(CLIENTS):
                tasks.create_task(client(number))
        seconds = time.perf_counter() - began
        await counted(cluster, len(waits))
    written = writing.result()
    by_one, by_all = [w for w in written if w.nodes == 1], [w for w in written if w.nodes > 1]
    kinds = {"": _calm(waits, written), "beside one ": _beside(waits, by_one), "beside all ": _beside(waits, by_all)}
    parts = {"puts/s": per_second(len(waits), seconds), "checkpoints": float(sum(w.nodes for w in written))}
    for kind, some in (("one", by_one), ("all", by_all)):
        parts[f"seconds of {kind}"] = round(sum(w.end - w.start for w in some) / max(1, len(some)), 2)
    for kind, found in kinds.items():
        parts |= {f"{kind}p{at} ms": round(1000 * percentile(found, at / 100), 1) for at in (50, 99, 99.9)}
    return [
        Measured(
            figure=figure,
            what=f"99th percentile of a put's wait beside a checkpoint, to that without; {CLIENTS} clients",
            value=round(percentile(kinds["beside one "], 0.99) / max(percentile(kinds[""], 0.99), 1e-6), 2),
            unit="x",
            goal=goal,
            at_most=True,
            counted=len(waits),
            seconds=round(seconds, 3),
            parts=parts,
        )
    ]
