"""What came and was not taken yet: its order, since when it waits, and that what no turn comes to is not looked at."""

from __future__ import annotations

import sys

from engine.messages import AskMap
from engine.protocol.requests import Get
from engine.turn.events import Asked, Event, Received
from engine.turn.untaken import Untaken
from rebalance.ports import WORK_MAX
from wal.ids import Version


def _said(count: int) -> list[Event]:
    return [Received("n2", "n2", 1, AskMap(Version(number, 0))) for number in range(1, count + 1)]


def _asked(number: int, since: int = 0) -> Asked:
    return Asked(1, Get(number, "n", [b"k"]), since)


def _take(untaken: Untaken, count: int) -> list[Event]:
    return [untaken.ready.popleft() for _ in range(min(count, len(untaken.ready)))]


def test_very_much_that_comes_at_once_is_taken_in_order_some_of_it_in_each_turn() -> None:
    untaken, said, taken, turns = Untaken(), _said(5 * WORK_MAX), list[Event](), 0
    untaken.come(said, 1)
    assert list(untaken.all()) == said
    late, came = _said(3), len(said)
    while untaken.all():
        taken += _take(untaken, WORK_MAX // 2 if turns < 3 else WORK_MAX)
        assert untaken.ready or not untaken.all()
        turns += 1
        untaken.leave(came, turns)
        untaken.come(late, 1 + turns)
        came = len(late)
        said, late = said + late, []
        assert [*taken, *untaken.all()] == said
    assert taken == said


def test_of_what_waits_is_known_since_when() -> None:
    untaken = Untaken()
    first, later = [_asked(number) for number in range(3 * WORK_MAX)], [_asked(-1), _asked(-2)]
    untaken.come(first, 7)
    assert _take(untaken, 1) == [_asked(0)], "it did not wait"
    untaken.leave(len(first), 7)
    untaken.come(later, 9)
    untaken.leave(len(later), 9)
    untaken.come([], 11)
    found = [event for event in untaken.all() if isinstance(event, Asked)]
    assert {event.since for event in found if event.request.id < 0} <= {0, 9}
    taken: list[Event] = []
    while untaken.all():
        taken += _take(untaken, WORK_MAX)
        untaken.leave(0, 11)
        untaken.come([], 13)
    assert taken == [*(_asked(number, 7) for number in range(1, len(first))), _asked(-1, 9), _asked(-2, 9)]


def test_who_asks_again_comes_first_and_waits_since_then() -> None:
    untaken = Untaken()
    untaken.come([_asked(3), _asked(4)], 5)
    untaken.ask_again([_asked(1, 2), _asked(2, 3)])
    untaken.leave(2, 5)
    assert _take(untaken, 9) == [_asked(1, 2), _asked(2, 3), _asked(3, 5), _asked(4, 5)]


def test_what_no_turn_comes_to_costs_it_nothing() -> None:
    """Of 200,000 messages that a node finds as many as a turn could take are looked at: each turn has its own."""
    untaken, steps = Untaken(), 0
    said = _said(200_000)

    def traced(_frame: object, event: str, _what: object) -> object:
        nonlocal steps
        steps += event == "opcode"
        return traced

    def stepped(frame: object, event: str, what: object) -> object:
        frame.f_trace_opcodes = True  # type: ignore[attr-defined]
        return traced(frame, event, what)

    before = sys.gettrace()
    sys.settrace(stepped)  # type: ignore[arg-type]
    try:
        untaken.come(said, 1)
        untaken.leave(len(said), 1)
    finally:
        sys.settrace(before)
    assert len(untaken.ready) == WORK_MAX + 1
    assert 0 < steps <= 100 * WORK_MAX, f"{steps} steps"
