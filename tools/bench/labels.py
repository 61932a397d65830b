"""What it costs that the log knows what transactions are called: bytes of it, and processor time of small ones.

Two nodes in this process do the same in turns, a slice each, one with labels and one without; of the time that they take
the median of the pairs counts, so that what else the machine does falls on both alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import msgspec

from engine import aio
from tools.bench.embedded import NAMESPACE
from tools.bench.figures import VALUE_BYTES, Measured, Setting, count_is
from wal import Block, inspect
from wal.records import Origin, Update

TASKS, SLICES, GOAL = 64, 20, 2.0
LABELS = [f"month-end {name}" for name in ("salary", "rent", "interest", "dividend")]


async def labels(setting: Setting, figure: str) -> list[Measured]:
    """Transactions of one put each, half of them called something."""
    setting.say(f"{figure}: {TASKS} tasks for {2 * setting.seconds:g} s, with and without labels by turns")
    directories = {labelled: setting.directory / f"{figure}-{labelled}" for labelled in (False, True)}
    took: dict[bool, list[float]] = {False: [], True: []}
    done = {False: 0, True: 0}
    async with await aio.open(directories[False]) as plain, await aio.open(directories[True]) as called:
        each = setting.seconds / SLICES
        for at in range(-1, SLICES):
            for labelled in (False, True) if at % 2 else (True, False):
                database = called if labelled else plain
                began = time.process_time()
                found = await _drive(database, each, done[labelled], labelled=labelled)
                if at >= 0:  # the first warms up
                    took[labelled].append((time.process_time() - began) / found)
                done[labelled] += found
    bytes_of = {labelled: _bytes(directory, done[labelled]) for labelled, directory in directories.items()}
    ratios = [one / other for one, other in zip(took[True], took[False], strict=True)]
    (plain_origins, _), (origins, size) = bytes_of[False], bytes_of[True]
    return [
        Measured(
            figure=figure,
            what="bytes of a log of transactions of one put that say what they are called",
            value=round(100 * (origins - plain_origins) / size, 3),
            unit="%",
            goal=GOAL,
            at_most=True,
            counted=done[True],
            seconds=setting.seconds,
            parts={"bytes of the records of a transaction": round(size / done[True], 1), "labels": len(LABELS)},
        ),
        Measured(
            figure=figure,
            what="processor time of a transaction of one put with a label, beside one without",
            value=round(100 * statistics.median(ratios), 2),
            unit="%",
            goal=100 + GOAL,
            at_most=True,
            counted=done[True],
            seconds=setting.seconds,
            parts={
                "us without": round(1e6 * statistics.median(took[False]), 1),
                "us with": round(1e6 * statistics.median(took[True]), 1),
            },
        ),
    ]


async def _drive(database: aio.Database, seconds: float, first: int, *, labelled: bool) -> int:
    """Transactions of each task until the time is over, but one at least; how many were committed."""
    value, end, done = b"v" * VALUE_BYTES, time.perf_counter() + seconds, 0

    async def task() -> None:
        nonlocal done
        while True:
            number = first + done
            done += 1
            label = LABELS[number % len(LABELS)] if labelled else ""
            async with database.transaction(concurrency="OPTIMISTIC", label=label) as tx:
                await tx.namespace(NAMESPACE).put(b"key-%08d" % number, value)
            if time.perf_counter() >= end:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(task())
    return done


def _bytes(directory: Path, transactions: int) -> tuple[int, int]:
    """How many bytes of records a log has: those that say who somebody is, and all."""
    origins = size = found = 0
    for block in inspect(directory / "wal"):
        for record in block.records if isinstance(block, Block) else ():
            there = len(msgspec.msgpack.encode(record))
            size += there
            if isinstance(record, Origin):
                origins += there
            elif isinstance(record, Update):
                found += sum(write.delta for write in record.writes if write.namespace == NAMESPACE)
    count_is("updates in the log", transactions, found)
    return origins, size
