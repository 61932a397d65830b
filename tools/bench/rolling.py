"""What a rolling restart costs: each of three nodes is stopped in good order and started again, beside 64 clients."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from tools.bench.cluster import NAMESPACE, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, percentile
from tools.bench.transfer import (
    PATIENCE_SECONDS,
    WRITERS,
    becomes_whole,
    fill,
    leads_its_share,
    load_beside,
    maps_of,
    stop_in_order,
)
from tools.local_cluster import LocalCluster, until

ROWS_LESS = 10
"""So many times fewer rows than elsewhere: what they hold is not what is measured."""


async def rolling_restart(setting: Setting, figure: str, goal: float, put_goal: float) -> list[Measured]:
    """The longest that any node stops for a map, and that a put takes, while each node is restarted once."""
    rows = max(1, setting.updates // ROWS_LESS)
    async with three_nodes(setting, figure) as (cluster, database):
        setting.say(f"{figure}: {rows:,} rows")
        await fill(database.namespace(NAMESPACE), rows, b"v" * VALUE_BYTES)
        waits, stop = list[tuple[float, float]](), asyncio.Event()
        loading = asyncio.create_task(load_beside(database, waits, stop))
        try:
            await asyncio.sleep(setting.seconds / 5)
            calm, began = len(waits), time.perf_counter()
            stops = [await _restarted(cluster, name, setting, figure) for name in list(cluster.nodes)]
            seconds = time.perf_counter() - began
        finally:
            stop.set()
            await loading
        found = sum([1 async for _ in database.namespace(NAMESPACE).scan()])
        count_is("keys put while nodes were restarted", rows + len(waits), found)
    beside = [(asked, answered) for asked, answered in waits[calm:] if asked < began + seconds]
    puts, each = [answered - asked for asked, answered in beside], Counter(int(at - began) for _, at in beside)
    return [
        Measured(
            figure=figure,
            what=f"longest that a node stops for a map while three are restarted, one by one, beside {WRITERS} clients",
            value=round(max(stops), 1),
            unit="ms",
            goal=goal,
            at_most=True,
            counted=found,
            seconds=round(seconds, 3),
            parts={"each restart s": round(seconds / len(stops), 2)},
        ),
        Measured(
            figure=f"{figure}-puts",
            what="longest put meanwhile",
            value=round(1000 * max(puts, default=0.0), 1),
            unit="ms",
            goal=put_goal,
            at_most=True,
            counted=len(puts),
            seconds=round(seconds, 3),
            parts={
                "p99 ms": round(1000 * percentile(puts, 0.99), 1),
                "p50 ms": round(1000 * percentile(puts, 0.5), 1),
                "calm longest ms": round(1000 * max((b - a for a, b in waits[:calm]), default=0.0), 1),
                "worst second %": round(100 * _worst(each, seconds) * setting.seconds / 5 / max(1, calm)),
            },
        ),
    ]


def _worst(each: Counter[int], seconds: float) -> int:
    """How many puts there were in the second in which there were fewest."""
    return min(each[at] for at in range(max(1, int(seconds))))


async def _restarted(cluster: LocalCluster, name: str, setting: Setting, figure: str) -> float:
    """Stop a node in good order, start it again, and wait until it has its share; the longest that another one stopped."""
    setting.say(f"{figure}: {name} is restarted")
    others = [node.name for node in cluster.running if node.name != name]
    before = {other: await maps_of(cluster, other) for other in others}
    await stop_in_order(cluster, name)
    await becomes_whole(cluster, name)
    await until(lambda: leads_its_share(cluster, name), PATIENCE_SECONDS, f"no primaries moved to {name}")
    after = {other: await maps_of(cluster, other) for other in others}
    stopped = {other: after[other]["stopped_ms"] - before[other]["stopped_ms"] for other in others}
    return max(min(stopped[other], after[other]["longest_stop_ms"]) for other in others)
