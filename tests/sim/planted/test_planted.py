"""Each deliberate fault is found by what `catches.json` names, which finds nothing without the fault."""

from __future__ import annotations

import pytest

from tests.sim.planted.catalogue import FAULTS
from tests.sim.planted.catches import DOCUMENT, Catch, document, load
from tests.sim.planted.search import tell
from tests.sim.planted.stories import STORIES

CATCHES = load()
HARMLESS = [fault.name for fault in FAULTS.values() if fault.harmless]
TWENTIETH = 20
HINT = "has the simulator changed? `python -m tests.sim planted --renew` looks for what catches it now"


@pytest.mark.parametrize("name", CATCHES)
def test_its_catch_finds_the_fault(name: str) -> None:
    fault, catch = FAULTS[name], CATCHES[name]
    found = catch.run(fault.plant, fault.rates)
    assert found is not None, f"{catch} finds nothing: {HINT}"
    assert found.oracle == catch.oracle, f"{catch} finds {found}, expected {catch.oracle}: {HINT}"


def _worlds() -> list[tuple[Catch, tuple[tuple[str, float], ...] | None]]:
    """What all catches live through: each of them once."""
    found: dict[tuple[Catch, tuple[tuple[str, float], ...] | None], None] = {}
    for name, catch in CATCHES.items():
        rates = FAULTS[name].rates
        found[(Catch("", catch.seed, catch.storm_s, catch.story), tuple(rates.items()) if rates is not None else None)] = (
            None
        )
    return list(found)


@pytest.mark.parametrize(("catch", "rates"), _worlds(), ids=str)
def test_what_catches_a_fault_finds_nothing_without_one(catch: Catch, rates: tuple[tuple[str, float], ...] | None) -> None:
    found = catch.run(None, dict(rates) if rates is not None else None)
    assert found is None, f"{catch}: {found}"


@pytest.mark.parametrize("name", HARMLESS)
def test_no_story_finds_a_fault_that_is_called_harmless(name: str) -> None:
    """Each is told every twentieth story, others than the next one: each story is told, and all of them by
    `tests.sim planted NAME`."""
    found = tell(FAULTS[name], list(STORIES)[HARMLESS.index(name) % TWENTIETH :: TWENTIETH])
    assert found is None, f"{found} finds {found.oracle}: it is not harmless"


def test_every_fault_is_caught_or_understood() -> None:
    assert [name for name in CATCHES if name not in FAULTS] == []
    for fault in FAULTS.values():
        assert bool(fault.harmless) != (fault.name in CATCHES), f"{fault.name}: caught, or a reason why not; not both"
        if fault.both:
            assert fault.both in CATCHES, f"{fault.name}: {fault.both} is not caught and shows nothing"


def test_the_document_says_what_the_faults_are() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(CATCHES), "run `python -m tests.sim planted --renew`"
