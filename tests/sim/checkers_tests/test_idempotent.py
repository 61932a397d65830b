"""Retries that took effect twice, never, or with another answer."""

from __future__ import annotations

import pytest

from tests.sim.checkers.history import Kind
from tests.sim.checkers.idempotent import check
from tests.sim.checkers.notation import parse
from tests.sim.checkers_tests.planted import accused

STORIES: dict[str, tuple[set[Kind], str]] = {
    "a retry takes effect again": (
        {"duplicate"},
        """
        p1 0..10 info apply t1 ?
        p2 20..30 ok apply t1 done
        p3 40..50 ok applied t1=2
        """,
    ),
    "an acknowledged transaction did not take effect": (
        {"lost-write"},
        """
        p1 0..10 ok apply t1 done
        p3 40..50 ok applied
        """,
    ),
    "an effect was seen and is gone": (
        {"vanished"},
        """
        p1 0..10 info apply t1 ?
        p2 20..30 ok applied t1=1
        p3 40..50 ok applied t1=0
        """,
    ),
    "an effect is from nowhere": ({"garbage-read"}, "p3 40..50 ok applied t1=1"),
    "an effect is seen before it was asked for": (
        {"garbage-read"},
        """
        p3 0..10 ok applied t1=1
        p1 20..30 ok apply t1 done
        """,
    ),
    "an effect is there although every attempt failed": (
        {"G1a"},
        """
        p1 0..10 fail apply t1 ?
        p1 20..30 fail apply t1 ?
        p3 40..50 ok applied t1=1
        """,
    ),
    "a retry is answered in another way": (
        {"contradictory-answer"},
        """
        p1 0..10 ok apply t1 done
        p1 20..30 ok apply t1 again
        """,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name(story: str) -> None:
    expected, text = STORIES[story]
    assert accused(check, text) == expected


def test_one_attempt_may_fail_after_another_of_unknown_outcome() -> None:
    text = """
        p1 0..10 info apply t1 ?
        p2 20..30 fail apply t1 ?
        p2 40..50 ok apply t1 done
        p3 60..70 ok applied t1=1 t2=0
    """
    assert accused(check, text) == set()


def test_the_report_names_all_attempts() -> None:
    (found,) = check(parse(STORIES["a retry takes effect again"][1]))
    assert str(found) == "duplicate: p3@40 found t1 applied 2 times, after attempts p1@0, p2@20"
