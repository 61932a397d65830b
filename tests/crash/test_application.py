"""A program with an embedded node and blocking calls in many threads: whatever becomes of it, what it was told is done is
there, and nothing that it did not ask for.

The loop's thread, the calls that wait for it, what is lost without `close`, and the end of the interpreter are in no
simulated world: they are threads. Here they are real, and so is what kills them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import engine
from tests.crash.application import ACCOUNTS, BALANCE, SETTINGS, kept_of, log_of, other_of
from tests.support.losing_disk import cut_power
from tests.support.patience import PATIENCE_SECONDS, next_line, waiting

ENDS = ("killed", "power", "interrupted", "ended")
CYCLES = 6


class Told:
    """What a program said of itself, life after life."""

    def __init__(self) -> None:
        self.begun: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.interrupted = 0

    def hear(self, line: str) -> bool:
        """Whether something is done."""
        what, *rest = line.split(maxsplit=1)
        assert what in ("begin", "done", "interrupted"), line
        key, number = rest[0].split()
        told = self.done if what == "done" else self.begun
        self.interrupted += what == "interrupted"
        told[key] = int(number)
        return what == "done"


def _live(data: Path, draw: Random, end: str, told: Told) -> None:
    """One life of the program, and its end."""
    with (
        subprocess.Popen(
            [sys.executable, "-m", "tests.crash.application", str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        waiting(process, "end"),
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(4 if end == "interrupted" else 1):
            left = draw.randrange(10, 150)
            while left:
                left -= told.hear(next_line(process, "line"))
            if end == "interrupted":
                process.send_signal(signal.SIGINT)
        process.stdin.close() if end == "ended" else process.kill()
        for line in process.stdout.read().splitlines():
            told.hear(line)
        code = process.wait(timeout=PATIENCE_SECONDS)
    assert code == (0 if end == "ended" else -signal.SIGKILL)
    if end == "power":
        cut_power(log_of(data), kept_of(data), draw)


def _judge(data: Path, told: Told) -> None:
    """What is there is what was done, or begun since."""
    for place, mine in ((data, lambda key: key != "other"), (other_of(data), lambda key: key == "other")):
        with engine.open(place, **SETTINGS) as database:
            numbers = dict(database.namespace("numbers", codec="json"))
            for key in filter(mine, told.begun):
                least, found = told.done.get(key, 0), numbers.get(key, 0)
                assert least <= found <= told.begun[key], f"{key} is {found}, and {least} was done"
            if place == data:
                held = dict(database.namespace("bank", codec="json"))
                assert sum(held.values()) == BALANCE * len(ACCOUNTS), held


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("seed", [1, 2])
def test_what_blocking_calls_were_told_is_done_is_there_however_the_program_ends(tmp_path: Path, seed: int) -> None:
    draw, told = Random(seed), Told()
    ends = [*ENDS, *draw.choices(ENDS, k=CYCLES - len(ENDS))]
    draw.shuffle(ends)
    for end in ends:
        _live(tmp_path / "data", draw, end, told)
        _judge(tmp_path / "data", told)
    assert told.interrupted, "a call was interrupted, and the next one went on"
