"""Thirty kill cycles of real nodes under load; `make crash` does a thousand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest

from tests.crash.kills import KILLS, schedule
from tests.crash.run import crash_run

CYCLES = 15
SEEDS = (1, 2)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_whoever_is_killed(seed: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix=f"foreshore-crash-{seed}-"))  # stays behind if the test fails
    report = crash_run(directory, seed=seed, cycles=CYCLES)
    assert report.kills.total() == CYCLES
    assert report.answers["ok"] > 20 * CYCLES, "\n".join(report.lines())
    report.forget()


def test_every_kind_of_kill_comes_in_two_runs_of_the_tests() -> None:
    drawn = {kind for seed in SEEDS for kind in schedule(Random(seed), CYCLES)}
    assert drawn == set(KILLS)
