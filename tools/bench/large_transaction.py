"""What a transaction of the largest size costs: how much memory a node takes beside the data, and how long it is deaf."""

from __future__ import annotations

import asyncio
import time

from engine import aio
from engine.client.admin import ask
from engine.protocol.sizes import KEYS_MAX, TRANSACTION_BYTES_MAX
from engine.turn.turns import TURN_MS_MAX
from tools.bench.cluster import NAMESPACE, three_nodes
from tools.bench.figures import Measured, Setting, count_is
from tools.local_cluster import LocalCluster

MIB = 1 << 20
LOOK_SECONDS = 0.02
REST_SECONDS = 3.0
TIMEOUT_SECONDS = 300.0
KEY_BYTES = 8
SHAPES = ((256, b""), (KEYS_MAX, b""), (17, b"{one}"), (KEYS_MAX, b"{one}"))
"""So many keys, over all partitions or all with one tag in one, have as many bytes as one transaction may write."""


async def large_transaction(setting: Setting, figure: str, goal: float) -> list[Measured]:
    """One transaction of 256 MiB over three nodes, of which each keeps all: in few keys, and in as many as may be."""
    found: list[Measured] = []
    for keys, tag in SHAPES:
        async with three_nodes(setting, f"{figure}-{keys}{'-one' if tag else ''}") as (cluster, database):
            where = f"{keys:,} keys{' of one partition' if tag else ''}"
            setting.say(f"{figure}: {where}")
            found += await _written(cluster, database, figure, _values(keys, tag), where=where, goal=goal)
    return found


async def _written(
    cluster: LocalCluster, database: aio.Database, figure: str, values: dict[bytes, bytes], *, where: str, goal: float
) -> list[Measured]:
    namespace, keys = database.namespace(NAMESPACE), len(values)
    await namespace.put(b"first", b"")
    peak = before = max(node.rss_bytes() for node in cluster.running)
    began = time.perf_counter()
    writing = asyncio.ensure_future(_write(database, values))
    while not writing.done() or time.perf_counter() < began + REST_SECONDS:
        peak = max(peak, *(node.rss_bytes() for node in cluster.running))
        await asyncio.sleep(LOOK_SECONDS)
    seconds = await writing - began
    there = await namespace.get_many(list(values)[:100])
    count_is("values as they were written", len(there), sum(values[key] == value for key, value in there.items()))
    count_is("keys", keys + 1, await namespace.count())
    turns = [(await ask(node.address, "status"))["turns"] for node in cluster.running]
    size = sum(map(len, values)) + sum(map(len, values.values()))
    what = f"of a transaction of {size // MIB} MiB in {where}"
    return [
        Measured(
            figure=figure,
            what=f"memory {what}, of the largest node, beside the data",
            value=round((peak - before - size) / MIB, 1),
            unit="MB",
            goal=goal,
            at_most=True,
            counted=keys,
            seconds=round(seconds, 3),
            parts={"before": round(before / MIB, 1), "peak": round(peak / MIB, 1)},
        ),
        Measured(
            figure=figure,
            what=f"longest turn {what}",
            value=max(said["longest_ms"] for said in turns),
            unit="ms",
            goal=float(TURN_MS_MAX),
            at_most=True,
            counted=keys,
            seconds=round(seconds, 3),
            parts={"turns above": sum(said["above"] for said in turns)},
        ),
    ]


async def _write(database: aio.Database, values: dict[bytes, bytes]) -> float:
    """Write all of it, again if others are in the way: a node whose disk is slow may be relieved of what it leads."""

    async def put(transaction: aio.Transaction) -> None:
        await transaction.namespace(NAMESPACE).put_many(values)

    await database.run(put, timeout=TIMEOUT_SECONDS)
    return time.perf_counter()


def _values(keys: int, tag: bytes) -> dict[bytes, bytes]:
    words = (TRANSACTION_BYTES_MAX // keys - len(tag) - KEY_BYTES) // 4
    return {tag + b"%08d" % number: number.to_bytes(4, "big") * words for number in range(keys)}
