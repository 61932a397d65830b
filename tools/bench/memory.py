"""What a node keeps in memory once nothing is written any more, and when it has come back from its disk: of large values,
and of very many fragments."""

from __future__ import annotations

import asyncio
import time

from engine.client.admin import ask
from tools.bench.cluster import NAMESPACE, NODES, memory_of, three_nodes
from tools.bench.figures import Measured, Setting
from tools.bench.turns import key_of_each
from tools.local_cluster import LocalCluster, until

VALUES = 1_024
VALUE_BYTES = 256 << 10
AT_ONCE = 16
PARTITIONS, NAMESPACES, ROW_BYTES = 1_024, 60, 100
REST_SECONDS = 4.0
"""Tails go within two looks (`rebalance.stability`), and a checkpoint after that leaves nothing in the layers."""
LET_GO_SECONDS = 2.0
"""What a checkpoint held is freed in pieces when it has ended."""
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
        returned = await _came_back(cluster)
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


async def of_fragments(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """The same of a small row in each partition of many namespaces: beside what a node has in memory that has nothing."""
    async with three_nodes(setting, figure) as (cluster, database):
        fragments = PARTITIONS * NAMESPACES
        setting.say(f"{figure}: a row in each of {fragments:,} fragments")
        began = time.perf_counter()
        empty = (await _rested(cluster))["own"]
        keys = key_of_each(PARTITIONS)
        for number in range(NAMESPACES):
            await database.namespace(f"many-{number}").put_many(dict.fromkeys(keys.values(), b"v" * ROW_BYTES))
        resting = await _rested(cluster)
        setting.say(f"{figure}: all nodes stop, and come back")
        returned = await _came_back(cluster)
        seconds = time.perf_counter() - began
    return [
        Measured(
            figure=figure,
            what=f"memory at rest of a node for each of {fragments:,} fragments, {when}, the largest",
            value=round((worst["own"] - empty) / fragments / 1_000, 2),
            unit="KB",
            goal=goal,
            at_most=True,
            counted=fragments,
            seconds=round(seconds, 3),
            parts={"with none MB": round(empty / (1 << 20), 1)},
        )
        for when, worst in (("written", resting), ("come back", returned))
    ]


async def _came_back(cluster: LocalCluster) -> dict[str, int]:
    """The memory of the largest node, when all have stopped as by a power cut, and come back."""
    for node in cluster.running:
        node.kill()
    for name in NODES:
        await cluster.start(name).ready()

    async def healthy() -> bool:
        return await cluster.healthy(len(NODES))

    await until(healthy, PATIENCE_SECONDS, "the nodes do not come back")
    return await _rested(cluster)


async def _rested(cluster: LocalCluster) -> dict[str, int]:
    """The memory of the largest node, when tails have settled, and a checkpoint has been taken and let go."""
    await asyncio.sleep(REST_SECONDS)
    for node in cluster.running:
        await ask(node.address, "checkpoint")

    async def written() -> bool:
        said = [await ask(node.address, "status") for node in cluster.running]
        return not any(status["checkpointing"] for status in said)

    await asyncio.sleep(1)
    await until(written, PATIENCE_SECONDS, "a checkpoint does not end")
    await asyncio.sleep(LET_GO_SECONDS)
    found = [memory_of(node.pid) for node in cluster.running]
    return max(found, key=lambda parts: sum(parts.values()))
