"""What Spark adds to a reconciliation, and how the work divides among its workers: processor time, so that a machine which
has other things to do tells the same.

The workers are those of a `local-cluster`: processes of their own, to which tasks are shipped and which send back what came
of them. The speed-up is that of the longest way through: what the driver does, and of each stage the worker that does most.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tools.bench.figures import Measured, Setting
from tools.bench.processor import processor_seconds
from tools.bench.reconcile import is_consistent, stopped, timed
from tools.reconcile.on_spark import OnSpark
from tools.reconcile.run import check
from tools.reconcile.session import borrowed

A = TypeVar("A")

WORKERS = 2
START = "tools.bench.reconcile_spark"
"""This module, run by itself: a session begins, each of its processors does nothing once, and it ends."""


class Ways:
    """An engine that notes which worker took how long; `stages` has the seconds of each by worker."""

    def __init__(self, engine: OnSpark) -> None:
        self._engine = engine
        self.stages: list[dict[int, float]] = []

    def __call__(self, function: Callable[[A], Any], items: Sequence[A]) -> list[Any]:
        """The engine, with a clock in each task."""
        stage: dict[int, float] = {}
        found = []
        for worker, took, result in self._engine(partial(_clocked, function), items):
            stage[worker] = stage.get(worker, 0.0) + took
            found.append(result)
        self.stages.append(stage)
        return found

    @property
    def longest(self) -> float:
        """The seconds of the worker that has most to do, of each stage."""
        return sum(max(stage.values(), default=0.0) for stage in self.stages)

    @property
    def whole(self) -> float:
        """The seconds of all of them."""
        return sum(sum(stage.values()) for stage in self.stages)


def _clocked(function: Callable[[A], Any], item: A) -> tuple[int, float, Any]:
    """A task, with who did it and how long it took."""
    took, result = timed(partial(function, item))
    return os.getppid(), took, result  # the daemon of an executor, whose children take its tasks


async def on_spark(setting: Setting, figure: str) -> list[Measured]:
    """Check whole stores in one process, by Spark with as many processors, and by workers."""
    async with stopped(setting, figure, lambda n: b"key-%08d" % n) as directories:
        check_command = [sys.executable, "-m", "tools.cli", "reconcile", "check", *directories]
        alone = processor_seconds(check_command) - processor_seconds([*check_command[:5], "--help"])
        spark = processor_seconds([*check_command, "--engine", "spark", "--master", "local[1]", "--parallelism", "1"])
        start = processor_seconds([sys.executable, "-m", START, "local[1]"])
        ways = {workers: _ways(directories, setting.updates, workers) for workers in (1, WORKERS)}
    (one, serial, seconds), (many, serial_many, seconds_many) = ways[1], ways[WORKERS]
    rows = setting.updates * len(directories)

    def row(what: str, value: float, goal: float, parts: dict[str, float], *, at_most: bool) -> Measured:
        return Measured(
            figure=figure,
            what=what,
            value=round(value, 3),
            unit="x",
            goal=goal,
            at_most=at_most,
            counted=rows,
            seconds=round(spark, 3),
            parts={name: round(part, 3) for name, part in parts.items()},
        )

    return [
        row(
            "a check by Spark beyond its start, of one in one process",
            (spark - start) / alone,
            1.2,
            {"one process s": alone, "Spark s": spark, "its start s": start},
            at_most=True,
        ),
        row(
            f"a check by {WORKERS} workers on free processors, quicker than by one",
            (serial + one.whole) / (serial_many + many.longest),
            0.8 * WORKERS,
            {
                "tasks of one s": one.whole,
                f"tasks of {WORKERS} s": many.whole,
                "the longest way s": many.longest,
                "driver s": serial_many,
                "clock, one s": seconds,
                f"clock, {WORKERS} s": seconds_many,
            },
            at_most=False,
        ),
    ]


def _ways(directories: Sequence[str], keys: int, workers: int) -> tuple[Ways, float, float]:
    """A check by so many workers: what they did, the processor seconds of the driver's Python, and those of the clock."""
    with borrowed(f"local-cluster[{workers},1,1024]", name="foreshore bench") as spark:
        engine = OnSpark(spark)
        list(engine(abs, range(4 * workers)))  # workers begin with the first task, whatever it is
        ways, began = Ways(engine), time.monotonic()
        took, report = timed(lambda: check(directories, engine=ways, shares=workers))
        is_consistent(report, keys)
        return ways, took, time.monotonic() - began


def main() -> None:
    """A session, and nothing."""
    with borrowed(sys.argv[1]) as spark:
        engine = OnSpark(spark)
        list(engine(abs, range(engine.processors)))


if __name__ == "__main__":
    main()
