"""The figure of what expires: what of their pace writers keep while a great many keys do."""

from __future__ import annotations

import asyncio
import time

from tools.bench.cluster import NAMESPACE, processor_seconds, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is
from tools.bench.snapshots import BATCH, write

TTL_S = 5.0
"""After the last of them is put, all of them expire within so long as it took to put them."""
PATIENCE_S = 900.0


async def expiring(setting: Setting, figure: str, writers: int, goal: float) -> list[Measured]:
    """`setting.updates` keys expire, beside writers who overwrite others."""
    async with three_nodes(setting, figure) as (cluster, database):
        namespace, fleeting = database.namespace(NAMESPACE), database.namespace("fleeting")
        setting.say(f"{figure}: {writers} writers alone for {setting.seconds:g} s")
        alone, seconds = await write(namespace, setting, writers, asyncio.Event())
        pace = alone / seconds
        setting.say(f"{figure}: {setting.updates:,} keys are put, which expire")
        began, last = time.time(), time.time() + setting.updates / 10_000 + TTL_S
        for first in range(0, setting.updates, BATCH):
            numbers = range(first, min(first + BATCH, setting.updates))
            left = max(last - time.time(), 1.0)
            await fleeting.put_many({b"key-%08d" % number: b"v" * VALUE_BYTES for number in numbers}, ttl=left)
        setting.say(f"{figure}: they were put in {time.time() - began:.0f} s; beside the writers they expire")
        await asyncio.sleep(max(0.0, last - time.time()))
        stop, nodes, since = asyncio.Event(), processor_seconds(cluster), time.perf_counter()
        writing = asyncio.create_task(write(namespace, setting, writers, stop, waits=True))
        there = setting.updates
        while there and time.perf_counter() < since + PATIENCE_S:
            await asyncio.sleep(0.5)
            there = await fleeting.count(stale=True)
        took, nodes = time.perf_counter() - since, processor_seconds(cluster) - nodes
        stop.set()
        written, writing_seconds = await writing
        count_is("keys that are left", 0, there)
    return [
        Measured(
            figure=figure,
            what=f"of the pace of {writers} writers is left while {setting.updates:,} keys expire",
            value=round(written / writing_seconds / pace, 3),
            unit="of it",
            goal=goal,
            counted=setting.updates,
            seconds=round(took, 3),
            parts={
                "puts/s alone": round(pace, 1),
                "keys deleted/s": round(setting.updates / took, 1),
                "processor us of nodes for each, with the writes": round(1e6 * nodes / setting.updates, 1),
            },
        )
    ]
