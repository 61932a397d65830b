"""What a node keeps in memory of large values once nothing is written any more, and when it has come back from its disk."""

from __future__ import annotations

import asyncio
import time

from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, NODES, memory_of, three_nodes
from tools.bench.figures import Measured, Setting
from tools.local_cluster import LocalCluster, until

VALUES = 1_024
VALUE_BYTES = 256 << 10
AT_ONCE = 16
REST_SECONDS = 4.0
"""Tails go within two looks (`rebalance.stability`), and a checkpoint after that leaves nothing in the layers."""
PATIENCE_SECONDS = 120.0


async def at_rest(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """Write many large values, rest; stop all nodes as a power cut would, start them, rest."""
    async with three_nodes(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {VALUES:,} values of {VALUE_BYTES >> 10} KiB")
        began = time.perf_counter()
        namespace = database.namespace(NAMESPACE)
        for first in range(0, VALUES, AT_ONCE):
            await namespace.put_many(
                {b"key-%06d" % n: n.to_bytes(4, "big") * (VALUE_BYTES // 4) for n in range(first, first + AT_ONCE)}
            )
        resting = await _rested(cluster)
        setting.say(f"{figure}: all nodes stop, and come back")
        for node in cluster.running:
            node.kill()
        for name in NODES:
            await cluster.start(name).ready()

        async def healthy() -> bool:
            return await cluster.healthy(len(NODES))

        await until(healthy, PATIENCE_SECONDS, "the nodes do not come back")
        returned = await _rested(cluster)
        seconds = time.perf_counter() - began
    return [
        Measured(
            figure=figure,
            what=f"memory at rest of a node with {VALUES:,} values of {VALUE_BYTES >> 10} KiB, {when}, the largest",
            value=round(sum(worst.values()) / (1 << 20), 1),
            unit="MB",
            goal=goal,
            at_most=True,
            counted=VALUES,
            seconds=round(seconds, 3),
            parts={f"{name} MB": round(part / (1 << 20), 1) for name, part in worst.items()},
        )
        for when, worst in (("written", resting), ("come back", returned))
    ]


async def _rested(cluster: LocalCluster) -> dict[str, int]:
    """The memory of the largest node, when tails have settled and a checkpoint has been taken."""
    await asyncio.sleep(REST_SECONDS)
    for node in cluster.running:
        await ask(node.address, "checkpoint")

    async def written() -> bool:
        said = [await ask(node.address, "status") for node in cluster.running]
        return not any(status["checkpointing"] for status in said)

    await asyncio.sleep(1)
    await until(written, PATIENCE_SECONDS, "a checkpoint does not end")
    found = [memory_of(node.pid) for node in cluster.running]
    return max(found, key=lambda parts: sum(parts.values()))
