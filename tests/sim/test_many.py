"""Many seeds: each in a process of its own, and with a trace only where somebody reads it."""

from __future__ import annotations

import os

import pytest

from tests.sim import run
from tests.sim.many import run_many
from tests.sim.run import Result, run_seed
from tests.sim.shapes import SMALL
from tests.sim.violation import About, Violation
from tests.sim.world import SECOND, World

QUIET = {"checkpoint": 1.0, "reset": 1.0}


def _process(seed: int) -> Result:
    return Result(seed, SMALL, str(os.getpid()))


def _wrong(seed: int) -> Result:
    raise ValueError(f"there is no seed {seed}")


def _dies(seed: int) -> Result:
    os._exit(9)


def test_each_seed_has_a_process_of_its_own() -> None:
    told: list[int] = []
    results = run_many([3, 1, 2], _process, jobs=2, told=lambda result: told.append(result.seed))
    assert [result.seed for result in results] == [1, 2, 3]
    assert sorted(told) == [1, 2, 3]
    assert len({result.options for result in results} - {str(os.getpid())}) == 3


def test_what_a_seed_dies_of_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)seed 5 is not done: .*ValueError: there is no seed 5"):
        run_many([5], _wrong, jobs=1, told=lambda _: None)


def test_a_process_that_ends_without_a_word_is_no_seed_that_found_nothing() -> None:
    with pytest.raises(RuntimeError, match="seed 5 is not done: it was killed"):
        run_many([5], _dies, jobs=1, told=lambda _: None)


def test_a_trace_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(run, "look_inside", lambda world: kept.append(len(world.trace.entries)))
    quiet = run_seed(1, rates=QUIET, storm_ns=SECOND, digest=False)
    read = run_seed(1, rates=QUIET, storm_ns=SECOND)
    assert kept[0] == 0 < kept[1]
    assert (quiet.events, quiet.deliveries, quiet.operations) == (read.events, read.deliveries, read.operations)


def test_what_a_seed_finds_without_a_trace_has_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(world: World) -> None:
        raise Violation("replica", f"something at {world.now}", About(nodes=("n1",)))

    monkeypatch.setattr(run, "look_inside", look)
    found, read = (run_seed(1, rates=QUIET, storm_ns=SECOND, digest=digest) for digest in (False, True))
    assert str(found.violation) == str(read.violation)
    assert len(found.story) > 100
    assert found.story == read.story


def test_a_seed_that_is_another_one_the_next_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[World] = []

    def look(world: World) -> None:
        runs.append(world)
        raise Violation("replica", f"run {len(runs)}")

    monkeypatch.setattr(run, "look_inside", look)
    found = run_seed(1, rates=QUIET, storm_ns=SECOND, digest=False)
    assert str(found.violation) == "replica: run 1"
    assert found.story == ["it has none: when it was run again for it, it found replica: run 2"]
