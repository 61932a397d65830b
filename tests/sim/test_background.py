"""What a simulated process does beside its turns: with a thread only where it stops on its way."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.sim.background import Fibre
from tests.support.memory_disk import PowerCut


def _fibre(name: str, density: float, said: list[str]) -> Fibre:
    def work() -> str:
        for call in ("open", "write", "sync"):
            fibre.pause()
            said.append(call)
        return "done"

    draws = (Random(seed) for seed in range(100))
    fibre = next(f for f in (Fibre(name, work, draw) for draw in draws) if f._density == density)
    return fibre


def test_what_the_seed_does_not_interrupt_is_done_at_once() -> None:
    said: list[str] = []
    fibre = _fibre("trim", 0.0, said)
    assert not fibre.begun
    fibre.resume()
    assert (fibre.finished, fibre.result, said) == (True, "done", ["open", "write", "sync"])
    assert fibre._thread is None


def test_what_it_interrupts_goes_on_where_it_was() -> None:
    said: list[str] = []
    fibre = _fibre("trim", 1.0, said)
    for done in ([], ["open"], ["open", "write"]):
        fibre.resume()
        assert (fibre.finished, said) == (False, done)
    fibre.resume()
    assert (fibre.finished, fibre.result, said) == (True, "done", ["open", "write", "sync"])


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_a_checkpoint_pauses_where_it_says_and_a_kill_there_ends_it(density: float) -> None:
    said: list[str] = []

    def checkpoint() -> Iterator[None]:
        said.append("begins")
        yield
        said.append("is there")

    draws = [Random(seed) for seed in range(100)]
    whole, killed = [f for f in (Fibre("checkpoint", checkpoint, d) for d in draws) if f._density == density][:2]
    for fibre in (whole, killed):
        fibre.resume()
        assert fibre.begun
        assert not fibre.finished
    assert said == ["begins", "begins"]
    killed.kill()
    assert killed.finished
    assert isinstance(killed.error, PowerCut)
    whole.resume()
    assert (whole.finished, whole.error, said) == (True, None, ["begins", "begins", "is there"])


def test_what_has_not_begun_is_not_begun_by_a_kill() -> None:
    said: list[str] = []
    fibre = _fibre("trim", 0.0, said)
    fibre.kill()
    assert (fibre.finished, said) == (True, [])


def test_what_it_dies_of_is_kept_for_the_world() -> None:
    def work() -> None:
        raise ValueError("no")

    fibre = next(f for f in (Fibre("trim", work, Random(seed)) for seed in range(100)) if not f._density)
    fibre.resume()
    assert fibre.finished
    assert repr(fibre.error) == "ValueError('no')"
