"""What checkpoints cost the clients beside them: the waits of single puts, told apart by whether one was being written."""

from __future__ import annotations

import asyncio
import random
import time

from engine import aio
from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, counted, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, per_second, percentile
from tools.local_cluster import LocalCluster

CLIENTS = 64
KEYS = 100_000
CYCLES_LEAST = 4
CYCLE_SECONDS = 10.0
LOOK_SECONDS = 0.02


async def _checkpoints(setting: Setting, cluster: LocalCluster, end: float) -> list[tuple[float, float]]:
    """Checkpoints of all nodes, one after another until then: when each was ordered, and when it was written."""
    written: list[tuple[float, float]] = []
    pause = min(CYCLE_SECONDS, setting.seconds / (CYCLES_LEAST + 1))
    while time.perf_counter() + pause < end:
        await asyncio.sleep(pause)
        start = time.perf_counter()
        for node in cluster.running:
            await ask(node.address, "checkpoint")
        while any([(await ask(node.address, "status"))["checkpointing"] for node in cluster.running]):
            await asyncio.sleep(LOOK_SECONDS)
        written.append((start, time.perf_counter()))
    return written


async def sustained(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """Puts of 64 clients; every ten seconds, or four times, all nodes are told to write a checkpoint."""
    value = b"v" * VALUE_BYTES
    waits: list[tuple[float, float]] = []  # (when it was asked, when it was answered)
    async with three_nodes(setting, figure) as (cluster, database):
        began = time.perf_counter()
        end = began + setting.seconds

        async def client(number: int) -> None:
            draw = random.Random(number)  # noqa: S311  # which keys are written is no secret
            namespace: aio.Namespace[bytes, bytes] = database.namespace(NAMESPACE)
            while (asked := time.perf_counter()) < end:
                await namespace.put(b"key-%09d" % draw.randrange(KEYS), value)
                waits.append((asked, time.perf_counter()))

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(_checkpoints(setting, cluster, end))
            for number in range(CLIENTS):
                tasks.create_task(client(number))
        seconds = time.perf_counter() - began
        await counted(cluster, len(waits))
    written = writing.result()
    beside = [answered - asked for asked, answered in waits if any(asked < e and answered > s for s, e in written)]
    calm = [answered - asked for asked, answered in waits if not any(asked < e and answered > s for s, e in written)]
    return [
        Measured(
            figure=figure,
            what=f"99th percentile of a put's wait beside a checkpoint, to that without; {CLIENTS} clients",
            value=round(percentile(beside, 0.99) / max(percentile(calm, 0.99), 1e-6), 2),
            unit="x",
            goal=goal,
            at_most=True,
            counted=len(waits),
            seconds=round(seconds, 3),
            parts={
                "puts/s": per_second(len(waits), seconds),
                "checkpoints": float(len(written)),
                "seconds each": round(sum(e - s for s, e in written) / max(1, len(written)), 2),
            }
            | {f"p{at} ms": round(1000 * percentile(calm, at / 100), 1) for at in (50, 99, 99.9)}
            | {f"beside one p{at} ms": round(1000 * percentile(beside, at / 100), 1) for at in (50, 99, 99.9)},
        )
    ]
