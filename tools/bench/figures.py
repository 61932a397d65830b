"""What a benchmark says: one figure with its goal, what was counted for it, and the machine that it was measured on.

A figure is only worth something if what it counts is there afterwards. So every measurement of the engine compares what
its clients were told with what the nodes count (`count_is`), and there is no figure if the two differ.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine.errors import Error
from tools.terminal import Row

SYNCS = 200
SYNC_BYTES = 4096
VALUE_BYTES = 100


class Miscounted(Error):
    """What was acknowledged is not what is there."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `goal` is what it is to reach, at least or `at_most`; `counted` is how much was done for it.

    `parts` are figures of the same measurement that explain it, each named with its unit.
    """

    figure: str
    what: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False
    counted: int
    seconds: float
    parts: dict[str, float] = {}

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def row(self) -> Row:
        """For a person."""
        goal = "" if self.goal is None else f"{'<=' if self.at_most else '>='} {_number(self.goal)} {self.unit}"
        verdict = {None: "", True: "reached", False: "MISSED"}[self.reached]
        parts = ", ".join(f"{name} {_number(value)}" for name, value in self.parts.items())
        return {
            "figure": self.figure,
            "measured": f"{_number(self.value)} {self.unit}",
            "goal": goal,
            "verdict": verdict,
            "counted": self.counted,
            "what": self.what + (f"; {parts}" if parts else ""),
        }

    def object(self) -> dict[str, object]:
        """For a program."""
        return msgspec.structs.asdict(self) | {"reached": self.reached}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How much is to be measured, and where. `say` tells a person how far it is."""

    directory: Path
    seconds: float
    updates: int
    hours: int  # of the year of flights; 0: all
    say: Callable[[str], None]


def count_is(what: str, expected: int, found: int) -> None:
    """What was acknowledged must be there, once. Raises Miscounted."""
    if expected != found:
        raise Miscounted(
            f"{what}: {expected:,} were acknowledged and {found:,} are counted; a figure of this would mean nothing: keep "
            "the directory (--keep) and look at `foreshore wal counters`"
        )


def per_second(count: int, seconds: float) -> float:
    """A rate as it is printed."""
    return round(count / seconds, 1) if seconds > 0 else 0.0


def percentile(waits: Sequence[float], fraction: float) -> float:
    """How long all but a part of them took at most; 0 if there are none."""
    ordered = sorted(waits)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] if ordered else 0.0


def machine(directory: Path) -> dict[str, object]:
    """What the figures were measured on; the time of a sync is measured here and now."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "command": " ".join(["foreshore", *sys.argv[1:]]),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory": f"{pages / (1 << 30):.1f} GB",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
        "fdatasync_us": _sync_us(directory),
    }


def _sync_us(directory: Path) -> float:
    """The median time of an fdatasync after 4 KiB were written over, as the log does it."""
    path = directory / "sync"
    taken: list[float] = []
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, bytes(SYNCS * SYNC_BYTES), 0)
        os.fsync(file)
        for at in range(SYNCS):
            os.pwrite(file, b"x" * SYNC_BYTES, at * SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(file)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()
    return round(statistics.median(taken) * 1e6, 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}".rstrip("0").rstrip(".")
