"""The figures of a snapshot: how fast all rows are read at one moment, and what of their pace writers keep beside it."""

from __future__ import annotations

import asyncio
import itertools
import time

from engine import aio
from tools.bench.cluster import NAMESPACE, processor_seconds, three_nodes
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, per_second

BATCH = 5_000


async def snapshot_scan(setting: Setting, figure: str, writers: int, goal: float, kept_goal: float) -> list[Measured]:
    """A scan of a snapshot of `setting.updates` rows, beside writers who overwrite them."""
    async with three_nodes(setting, figure) as (cluster, database):
        namespace = database.namespace(NAMESPACE)
        setting.say(f"{figure}: {setting.updates:,} rows are put")
        for first in range(0, setting.updates, BATCH):
            numbers = range(first, min(first + BATCH, setting.updates))
            await namespace.put_many({b"key-%08d" % number: b"v" * VALUE_BYTES for number in numbers})
        setting.say(f"{figure}: {writers} writers alone for {setting.seconds:g} s, then beside snapshots")
        alone, seconds = await write(namespace, setting, writers, asyncio.Event())
        pace = alone / seconds
        stop = asyncio.Event()
        writing = asyncio.create_task(write(namespace, setting, writers, stop, waits=True))
        rows, began, own = 0, time.perf_counter(), time.process_time()
        nodes = processor_seconds(cluster)
        while not rows or time.perf_counter() < began + setting.seconds:
            async with database.snapshot() as snapshot:
                found = 0
                async for _ in snapshot.namespace(namespace).scan():
                    found += 1
            count_is("rows of a snapshot", setting.updates, found)
            rows += found
        seconds, own = time.perf_counter() - began, time.process_time() - own
        nodes = processor_seconds(cluster) - nodes
        stop.set()
        written, writing_seconds = await writing
    what = f"rows of a snapshot of {setting.updates:,}, beside {writers} writers"
    parts = {"processor us of nodes, with the writes": round(1e6 * nodes / rows, 2)}
    parts["of the client, likewise"] = round(1e6 * own / rows, 2)
    return [
        Measured(
            figure=figure,
            what=what,
            value=per_second(rows, seconds),
            unit="rows/s",
            goal=goal,
            counted=rows,
            seconds=round(seconds, 3),
            parts=parts,
        ),
        Measured(
            figure=f"{figure}-writers",
            what="of the writers' pace is left beside them; one client does both",
            value=round(written / writing_seconds / pace, 3),
            unit="of it",
            goal=kept_goal,
            counted=written,
            seconds=round(writing_seconds, 3),
            parts={"puts/s alone": round(pace, 1)},
        ),
    ]


async def write(
    namespace: aio.Namespace[bytes, bytes], setting: Setting, writers: int, stop: asyncio.Event, *, waits: bool = False
) -> tuple[int, float]:
    """Overwrite rows from so many tasks, for the time or (`waits`) until it is told to stop; how many, in which time.

    Each overwrites one at least, so that a pace is never nothing.
    """
    numbers, began = itertools.count(), time.perf_counter()
    done = 0

    async def writer() -> None:
        nonlocal done
        while True:
            await namespace.put(b"key-%08d" % (next(numbers) * 7_919 % setting.updates), b"w" * VALUE_BYTES)
            done += 1
            if stop.is_set() or (not waits and time.perf_counter() >= began + setting.seconds):
                return

    async with asyncio.TaskGroup() as tasks:
        for _ in range(writers):
            tasks.create_task(writer())
    return done, time.perf_counter() - began
