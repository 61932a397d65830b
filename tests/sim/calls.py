"""What a turn really does, counted in calls, so that a forgotten walk shows although no rule says that it walked.

The model of costs asks a price for what a turn is handed, reads and owes: a walk over all locks costs nothing in it until
somebody thinks of that. Here the interpreter counts what is called, in some of the turns, which the seed draws; it is the
same in each run of the same Python. To count changes nothing in the world: a seed that counts is the seed that does not.
Two things are a finding: a turn above the bound, and one that does much more than its price and the work which it says it
did (`Core.work`) would explain. A loop that calls nothing is not seen: it takes a million rounds to be long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from cProfile import Profile
from pathlib import Path
from random import Random
from types import CodeType

from engine.node.node import Node
from engine.turn.effects import Effects
from engine.turn.events import Event
from engine.turn.turns import TURN_MS_MAX, what
from rebalance.ports import MS
from tests.sim.violation import About, Violation

CALLED_NS, BUILT_IN_NS = 160, 40
"""A function that is called, or a generator that goes on, with what it does itself; and one that is written in C."""
PRICES_MAX, WORK_NS, SPARE_NS = 3, 10_000, 3 * MS
"""A turn may do so many times what the model asks for it, so much for each unit of work, and so much more."""
LARGE_SHARE, SMALL_SHARE = 1 / 16, 1 / 64
"""The share of the turns that are counted, where there is much of something, and where there is not."""
NAMED = 5
ROOT = Path(__file__).parents[2]

_counts: list[Profile] = []  # at most one, while it does


class Calls:
    """Counts a share of the turns. Made for one world."""

    def __init__(self, draw: Random | None = None, share: float = 1.0) -> None:
        self._draw, self._share = draw, share
        self._profile = Profile(subcalls=False)

    def wanted(self) -> bool:
        """Whether the next turn is counted; somebody else may be counting already."""
        return (self._draw is None or self._draw.random() < self._share) and sys.getprofile() is None

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> Effects:
        """Take a turn, and count."""
        profile = self._profile
        profile.clear()
        _counts.append(profile)
        profile.enable()
        try:
            return node.turn(now, events)
        finally:
            profile.disable()
            _counts.clear()

    def ns(self) -> int:
        """How long the turn that was counted last takes, on a machine of the usual speed."""
        return sum(each.callcount * _price(each.code) for each in self._profile.getstats())

    def judge(self, node: Node, events: Sequence[Event], price: int) -> None:
        """Hold the turn that was counted last against what the model asks for it, and what it says that it did."""
        took, work = self.ns(), node.core.work
        lawful = PRICES_MAX * price + WORK_NS * work + SPARE_NS
        if took <= min(lawful, TURN_MS_MAX * MS):
            return
        raise Violation(
            "turn",
            f"{node.core.node} has a turn of {took / MS:.0f} ms by what it calls, and not {TURN_MS_MAX} at most, or "
            f"{lawful / MS:.0f} by its price of {price / MS:.1f} and its work of {work}: {what(events)}; "
            f"it calls {self.most()}",
            About(nodes=(node.core.node,)),
        )

    def most(self) -> str:
        """What took most of the turn that was counted last."""
        dearest = sorted(self._profile.getstats(), key=lambda each: -each.callcount * _price(each.code))
        return ", ".join(f"{each.callcount} {_name(each.code)}" for each in dearest[:NAMED])


@contextmanager
def uncounted() -> Iterator[None]:
    """What is done in here belongs to no turn: another process does it for a real node."""
    for profile in _counts:
        profile.disable()
    try:
        yield
    finally:
        for profile in _counts:
            profile.enable()


def _price(code: CodeType | str) -> int:
    return BUILT_IN_NS if isinstance(code, str) else CALLED_NS


def _name(code: CodeType | str) -> str:
    return code if isinstance(code, str) else f"{place_of(code.co_filename)}:{code.co_name}"


def place_of(file: str) -> str:
    """Where it is written, for a person."""
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
