"""The figures of a node in the application's own process: durable puts, puts in batches, and scans."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

from engine import aio
from engine.offline.directory import read_directory
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is, per_second

NAMESPACE = "bench"
WARM_UP = 0.2


async def embedded_puts(setting: Setting, figure: str, tasks: int, goal: float) -> list[Measured]:
    """Single-key puts of new keys, each durable when it is answered."""
    what = f"embedded: durable single-key puts, {tasks} tasks"
    return [await _rate(setting, figure, tasks, 1, what=what, unit="puts/s", goal=goal)]


async def embedded_batches(setting: Setting, figure: str, tasks: int, batch: int, goal: float) -> list[Measured]:
    """The same in batches."""
    what = f"embedded: durable keys in batches of {batch}, {tasks} tasks"
    return [await _rate(setting, figure, tasks, batch, what=what, unit="keys/s", goal=goal)]


async def _rate(setting: Setting, figure: str, tasks: int, batch: int, what: str, unit: str, goal: float) -> Measured:
    directory = setting.directory / figure
    setting.say(f"{figure}: {tasks} tasks for {setting.seconds:g} s")
    async with await aio.open(directory) as database:
        namespace = database.namespace(NAMESPACE)
        done = await _drive(namespace, tasks, batch, setting.seconds * WARM_UP, 0)
        began, processor = time.perf_counter(), time.process_time()
        found = await _drive(namespace, tasks, batch, setting.seconds, done)
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
    count_is("updates in the directory", done + found, _counted(directory))
    return Measured(
        figure=figure,
        what=what,
        value=per_second(found, seconds),
        unit=unit,
        goal=goal,
        counted=done + found,
        seconds=round(seconds, 3),
        parts={"processor us each": round(1e6 * processor / found, 2)},
    )


async def scans(setting: Setting, figure: str, rows: int, few: int, many: int, goal: float) -> list[Measured]:
    """A scan of all rows where there are many partitions, beside one where there are few, by processor time."""
    setting.say(f"{figure}: {rows:,} rows in {few} and in {many:,} partitions")
    speeds: dict[int, float] = {}
    for partitions in (few, many):
        async with await aio.open(setting.directory / f"{figure}-{partitions}", partitions=partitions) as database:
            namespace = database.namespace(NAMESPACE)
            await namespace.put_many({b"key-%08d" % number: b"v" * VALUE_BYTES for number in range(rows)})
            for _ in range(2):  # the first puts what came into order
                processor = time.process_time()
                found = sum([1 async for _ in namespace.scan()])
                speeds[partitions] = per_second(found, time.process_time() - processor)
            count_is("rows of a scan", rows, found)
    return [
        Measured(
            figure=figure,
            what=f"embedded: a scan of {many:,} partitions, beside one of {few}",
            value=round(100 * speeds[many] / speeds[few], 1),
            unit="% of its speed",
            goal=goal,
            counted=rows,
            seconds=round(rows / speeds[many], 3),
            parts={f"rows/s of {partitions}": round(speed) for partitions, speed in speeds.items()},
        )
    ]


async def _drive(namespace: aio.Namespace[bytes, bytes], tasks: int, batch: int, seconds: float, first: int) -> int:
    """Puts of each task until the time is over, but one at least; how many keys were acknowledged."""
    value = b"v" * VALUE_BYTES
    numbers, end = itertools.count(first), time.perf_counter() + seconds
    acknowledged = 0

    async def task() -> None:
        nonlocal acknowledged
        while True:
            keys = [b"key-%08d" % number for number in itertools.islice(numbers, batch)]
            if batch == 1:
                await namespace.put(keys[0], value)
            else:
                await namespace.put_many(dict.fromkeys(keys, value))
            acknowledged += batch
            if time.perf_counter() >= end:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(task())
    return acknowledged


def _counted(directory: Path) -> int:
    """The updates that the directory counts, read as a tool reads it."""
    with read_directory(directory) as state:
        return sum(view.counter.lwm for name, view in state.fragments.items() if name[0] == NAMESPACE)
