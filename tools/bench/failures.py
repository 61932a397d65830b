"""How long a write waits when nodes are killed: one of three, two of five, three of seven at the same moment.

So many nodes die as have a copy of each partition beside its primary, so that what is acknowledged is on one that lives.
Of two and more the coordinator is one: then nobody is left who knows of an exchange that was under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from engine import aio
from tools.bench.cluster import NAMESPACE, PATIENCE_SECONDS, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is
from tools.demo.load import Heart
from tools.local_cluster import until

BACKUPS = 2
"""A cluster has at least so many copies of each partition beside its primary."""
BEATS_BEFORE_SECONDS = 0.5
BEATS_AFTER = 100
LOAD_BESIDE = 16


async def blocked(setting: Setting, figure: str, goal: float, killed: int = 1) -> list[Measured]:
    """How long a write waits when its primary is killed, and others with it, beside other load."""
    names = [f"n{number + 1}" for number in range(2 * killed + 1)]
    options = ["--backups", str(max(BACKUPS, killed))]
    async with three_nodes(setting, figure, options, names) as (cluster, database):
        dying = victims(await cluster.status(), killed)
        hearts = [Heart(database, victim) for victim in dying]

        def kill() -> None:
            setting.say(f"{figure}: kill -9 of {', '.join(dying)}")
            for node in dying:
                cluster.nodes[node].kill()

        calm, written, seconds = await _held_up(database, hearts, kill)
        rows = sum([1 async for _ in database.namespace(NAMESPACE).scan()])  # a failover may close gaps, which count too
        count_is("keys put while a primary died", written, rows)
    who = "its primary" if killed == 1 else f"{killed} of {len(names)} nodes, its primary and the coordinator among them"
    return [
        Measured(
            figure=figure,
            what=f"longest that a put is held up by a kill -9 of {who}",
            value=round(max(heart.longest for heart in hearts), 3),
            unit="s",
            goal=goal,
            at_most=True,
            counted=written,
            seconds=round(seconds, 3),
            parts={"before the kill s": round(calm, 4)},
        )
    ]


async def _held_up(database: aio.Database, hearts: list[Heart], kill: Callable[[], None]) -> tuple[float, int, float]:
    """Kill beside other load, until all beat again: the longest beat before it, keys that were put, seconds since it."""
    stop = asyncio.Event()
    loading = [asyncio.create_task(_beside(database, n, stop)) for n in range(LOAD_BESIDE)]
    beating = [asyncio.create_task(heart.beat()) for heart in hearts]
    try:
        await asyncio.sleep(BEATS_BEFORE_SECONDS)
        calm, beats = max(heart.longest for heart in hearts), [heart.beats for heart in hearts]
        kill()
        began = time.monotonic()

        async def goes_on() -> bool:
            for task in (*beating, *loading):
                if task.done():
                    await task
            return all(heart.beats >= before + BEATS_AFTER for heart, before in zip(hearts, beats, strict=True))

        await until(goes_on, PATIENCE_SECONDS, "writes did not go on after the kill")
        seconds = time.monotonic() - began
        stop.set()
        return calm, sum(await asyncio.gather(*loading)), seconds
    finally:
        for task in (*beating, *loading):
            task.cancel()
        await asyncio.gather(*beating, *loading, return_exceptions=True)


def victims(status: dict[str, Any], killed: int) -> list[str]:
    """Who dies: those that lead most, the coordinator only beside others, and then always."""
    coordinator: str = status["coordinator"]
    leads: dict[str, int] = {m["node"]: m["primary"] for m in status["members"]}
    others = sorted((node for node in leads if node != coordinator), key=leads.__getitem__, reverse=True)
    return others[:1] if killed == 1 else [coordinator, *others[: killed - 1]]


async def _beside(database: aio.Database, number: int, stop: asyncio.Event) -> int:
    """One client of the load beside the beats; how many keys it put."""
    namespace, written = database.namespace(NAMESPACE), 0
    while not stop.is_set():
        await namespace.put(b"key-%d-%d" % (number, written), b"v" * VALUE_BYTES)
        written += 1
    return written
