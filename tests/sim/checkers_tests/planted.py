"""How a test plants a crime: a history in the checkers' notation, and the kinds of anomaly that are found in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.sim.checkers.history import Anomaly, Kind, Operation
from tests.sim.checkers.notation import parse


def kinds(found: Iterable[Anomaly]) -> set[Kind]:
    """The kinds alone."""
    return {anomaly.kind for anomaly in found}


def accused(check: Callable[[list[Operation]], list[Anomaly]], text: str) -> set[Kind]:
    """What `check` finds in a history that is written as text."""
    return kinds(check(parse(text)))
