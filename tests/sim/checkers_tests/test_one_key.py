"""What many write to one key: each answer is the read of a list."""

from __future__ import annotations

import pytest

from tests.sim.checkers import list_append
from tests.sim.checkers.history import Kind
from tests.sim.checkers.notation import dump, parse
from tests.sim.checkers.one_key import OneKey, Told, as_lists, element
from tests.sim.checkers_tests.planted import kinds

NUMBER, LIST = OneKey("n", True, [11, 12, 13, 14]), OneKey("l", False, [21, 22, 23])
KEYS = {key.name: key for key in (NUMBER, LIST)}
A, B, C, D = (NUMBER.power(value) for value in NUMBER.values)


def _sums(*told: int | None) -> dict[int, Told]:
    """What the first processes were told of the number, one after the other, if they were."""
    return {at: Told("n", b"%d" % found) for at, found in enumerate(told, 1) if found is not None}


ADDED = """
    p1 0..10 ok append n 11; read n []
    p2 0..10 ok append n 12; read n []
    p3 0..10 {} append n 13{}
    p4 20..30 ok read n []
"""
ACKNOWLEDGED, UNKNOWN = ADDED.format("ok", "; read n []"), ADDED.format("info", "")
STORIES: dict[str, tuple[set[Kind], str, dict[int, Told]]] = {
    "all are told what they left": (set(), ACKNOWLEDGED, _sums(A, A + B, A + B + C, A + B + C)),
    "they came in another order": (set(), ACKNOWLEDGED, _sums(A + B + C, B, B + C, A + B + C)),
    "who was not told counts": (set(), UNKNOWN, _sums(A, A + C + B, None, A + B + C)),
    "who was not told does not count": (set(), UNKNOWN, _sums(A, A + B, None, A + B)),
    "two are told the same": ({"internal"}, ACKNOWLEDGED, _sums(A, A + B + C, A + B + C, A + B + C)),
    "one is told what the one before was told": ({"internal"}, ACKNOWLEDGED, _sums(A, A, A + B + C, A + B + C)),
    "each counts on what stood": ({"incompatible-order"}, ACKNOWLEDGED, _sums(A, B, A + B + C, A + B + C)),
    "one is counted twice": ({"duplicate"}, ACKNOWLEDGED, _sums(A, A + B, A + 2 * B + C, A + 2 * B + C)),
    "one is lost": ({"lost-write"}, ACKNOWLEDGED, _sums(A, A + B, A + B + C, A + B)),
    "one is counted whom nobody knows": (
        {"garbage-read"},
        ACKNOWLEDGED,
        _sums(A, A + B, A + B + C, A + B + C + 8 * D),
    ),
    "a condition holds of what another one left": (
        set(),
        """
        p1 0..10 ok append n 11; read n []
        p2 0..10 ok read n []; append n 12
        p3 0..20 info append n 13
        p4 20..30 ok append n 14; read n []
        """,
        _sums(A, A, None, A + B + C + D),
    ),
    "a condition holds of what is not there any more": (
        {"G-single"},
        """
        p1 0..10 ok append n 11; read n []
        p2 0..10 ok read n []; append n 12
        p3 0..10 ok read n []; append n 13
        p4 20..30 ok read n []
        """,
        _sums(A, A, A, A + B + C),
    ),
    "a list is as long as it is told": (
        set(),
        """
        p1 0..10 ok append l 21; read l []
        p2 0..10 ok append l 22; read l []
        p3 20..30 ok read l []
        """,
        {1: Told("l", length=16), 2: Told("l", length=8), 3: Told("l", element(22) + element(21))},
    ),
    "a list is told too short": (
        {"internal"},
        """
        p1 0..10 ok append l 21; read l []
        p2 0..10 ok append l 22; read l []
        p3 20..30 ok read l []
        """,
        {1: Told("l", length=8), 2: Told("l", length=8), 3: Told("l", element(22) + element(21))},
    ),
    "half of an element is in a list": (
        {"garbage-read"},
        "p1 20..30 ok read l []",
        {1: Told("l", b"22")},
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name(story: str) -> None:
    expected, text, told = STORIES[story]
    found = list_append.check(lists := as_lists(KEYS, parse(text), told))
    assert kinds(found) == expected, f"{dump(lists)}\n{found}"
