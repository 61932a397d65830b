"""Sets that lose, invent and disagree."""

from __future__ import annotations

import pytest

from tests.sim.checkers.history import HistoryError, Kind
from tests.sim.checkers.notation import parse
from tests.sim.checkers.sets import check
from tests.sim.checkers_tests.planted import accused

STORIES: dict[str, tuple[set[Kind], str]] = {
    "an acknowledged element is missing in the end": (
        {"lost-write"},
        """
        p1 0..10 ok add 1
        p1 20..30 ok add 2
        p2 40..50 ok elements [2]
        """,
    ),
    "a read misses an acknowledged element that a later one has": (
        {"stale-read"},
        """
        p1 0..10 ok add 1
        p2 20..30 ok elements []
        p2 40..50 ok elements [1]
        """,
    ),
    "a read has the later of two elements without the earlier": (
        {"stale-read"},
        """
        p1 0..10 ok add 1
        p1 20..30 ok add 2
        p2 0..40 ok elements [2]
        p2 50..60 ok elements [1 2]
        """,
    ),
    "an element of unknown outcome was seen and is gone": (
        {"vanished"},
        """
        p1 0..- info add 1
        p2 20..30 ok elements [1]
        p3 40..50 ok elements []
        """,
    ),
    "a read has the later of one process's two elements, added without a pause, and not the earlier": (
        {"stale-read"},
        """
        p1 0..10 ok add 1
        p1 10..20 ok add 2
        p2 10..20 ok add 0
        p3 0..30 ok elements [0 2]
        """,
    ),
    "a process misses at the very next instant what it saw": (
        {"vanished"},
        """
        p1 0..- info add 1
        p2 10..20 ok elements [1]
        p2 20..30 ok elements []
        """,
    ),
    "an element is from nowhere": ({"garbage-read"}, "p1 0..10 ok elements [7]"),
    "an element is seen before it was added": (
        {"garbage-read"},
        """
        p2 0..10 ok elements [1]
        p1 20..30 ok add 1
        """,
    ),
    "an element that failed is seen": (
        {"G1a"},
        """
        p1 0..10 fail add 1
        p2 20..30 ok elements [1]
        """,
    ),
    "an element is there twice": (
        {"duplicate"},
        """
        p1 0..10 ok add 1
        p2 20..30 ok elements [1 1]
        """,
    ),
    "two reads saw two growths": (
        {"incompatible-order"},
        """
        p1 0..50 ok add 1
        p2 0..50 ok add 2
        p3 0..50 ok elements [1]
        p4 0..50 ok elements [2]
        """,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name(story: str) -> None:
    expected, text = STORIES[story]
    assert accused(check, text) == expected


def test_an_element_of_unknown_outcome_may_come_late_or_never() -> None:
    assert accused(check, "p1 0..5 info add 1\np2 10..20 ok elements []\np2 30..40 ok elements [1]") == set()
    assert accused(check, "p1 0..5 info add 1\np2 10..20 ok elements []") == set()


def test_a_lost_element_names_its_add_and_the_reader() -> None:
    found = check(parse(STORIES["an acknowledged element is missing in the end"][1]))
    assert str(found[0]) == ("lost-write: lost 1 acknowledged element: 1 of p1@0; p2@40, which began later, read 1 others")


def test_an_element_that_is_added_twice_accuses_the_workload() -> None:
    with pytest.raises(HistoryError, match="p2@5 and p1@0 both add 1"):
        check(parse("p1 0..10 fail add 1\np2 5..10 ok add 1"))
