"""Facts are fields, prose is for people: whatever the words are, every node and every client does the same."""

from __future__ import annotations

from typing import Any

import pytest

from engine.protocol.requests import Code
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.run import Result, run_seed
from tests.sim.world import SECOND


def _reworded(machine: Machine) -> None:
    """Every refusal and every note of a node is as long as it was, and says nothing."""
    assert machine.node is not None
    node = machine.node

    def refuse(original: Any, session: int, request: int, code: str, message: str, **facts: Any) -> None:
        original(session, request, code, "x" * len(message), **facts)

    def note(original: Any, text: str) -> None:
        original("x" * len(text))

    around(node.desk, "refuse", refuse)
    around(node.core, "note", note)


def _reads_words(machine: Machine) -> None:
    """A deliberate fault: a node goes by what it is about to say, as it was when facts were cut out of sentences."""
    assert machine.node is not None

    def refuse(original: Any, session: int, request: int, code: str, message: str, **facts: Any) -> None:
        if "transaction" in message:
            code = Code.BUSY
        original(session, request, code, message, **facts)

    around(machine.node.desk, "refuse", refuse)


def _reads_what_was_reworded(machine: Machine) -> None:
    _reads_words(machine)
    _reworded(machine)


def _deeds(result: Result) -> tuple[object, ...]:
    """What was done, without a word of it."""
    counted = (result.deliveries, result.events, result.operations, result.done, result.faults, result.probes)
    return (*counted, result.simulated_s, result.written, result.deleted, result.violation is None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 10])
def test_rewording_every_message_changes_no_behaviour(seed: int) -> None:
    told = run_seed(seed, storm_ns=3 * SECOND, digest=False)
    assert sum(told.errors.values()) > 0, "clients were refused something"
    assert _deeds(run_seed(seed, storm_ns=3 * SECOND, digest=False, plant=_reworded)) == _deeds(told)


@pytest.mark.slow
def test_a_node_that_reads_words_does_something_else_when_they_are_others() -> None:
    told, reworded = (
        run_seed(3, storm_ns=SECOND, digest=False, plant=plant) for plant in (_reads_words, _reads_what_was_reworded)
    )
    assert _deeds(told) != _deeds(reworded)
