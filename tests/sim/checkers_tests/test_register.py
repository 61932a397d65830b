"""Registers that no order explains, and such as only an unusual order explains."""

from __future__ import annotations

import pytest

from tests.sim.checkers.history import Kind
from tests.sim.checkers.notation import parse
from tests.sim.checkers.register import check
from tests.sim.checkers_tests.planted import accused, kinds

STORIES: dict[str, tuple[set[Kind], str]] = {
    "a read misses an acknowledged write": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p2 20..30 ok get x -
        """,
    ),
    "a read finds what was overwritten": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p1 20..30 ok put x 2
        p2 40..50 ok get x 1
        """,
    ),
    "two reads find two writes in turn, and the first again": (
        {"nonlinearizable"},
        """
        p1 0..100 ok put x 1
        p2 0..100 ok put x 2
        p3 10..20 ok get x 1
        p3 30..40 ok get x 2
        p3 50..60 ok get x 1
        """,
    ),
    "a process misses its own write at the very next instant": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p1 10..20 ok get x -
        """,
    ),
    "two compare-and-sets take the same value": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p2 20..30 ok cas x 1 2 swapped
        p3 20..30 ok cas x 1 3 swapped
        """,
    ),
    "a compare-and-set refuses although the value was right": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p2 20..30 ok cas x 1 2 unchanged
        """,
    ),
    "a write of unknown outcome takes effect twice": (
        {"nonlinearizable"},
        """
        p1 0..- info put x 1
        p2 10..20 ok get x 1
        p2 30..40 ok put x 2
        p2 50..60 ok get x 1
        """,
    ),
    "a value is from nowhere": (
        {"garbage-read"},
        """
        p1 0..10 ok put x 1
        p2 0..10 ok get x 7
        """,
    ),
    "a compare-and-set found a value from nowhere": (
        {"garbage-read"},
        """
        p1 0..10 ok cas x 7 8 swapped
        """,
    ),
    "a read sees a write that failed": (
        {"G1a"},
        """
        p1 0..10 fail put x 1
        p2 20..30 ok get x 1
        """,
    ),
    "one key is broken and the other is not": (
        {"nonlinearizable"},
        """
        p1 0..10 ok put x 1
        p1 20..30 ok put y 1
        p2 40..50 ok get x -
        p2 60..70 ok get y 1
        """,
    ),
}

INNOCENT: dict[str, str] = {
    "a write takes effect long before it completes": """
        p1 0..100 ok put x 1
        p2 10..20 ok get x 1
        p2 30..40 ok get x 1
        """,
    "two writes that overlap take effect in the order that reads saw": """
        p1 0..100 ok put x 1
        p2 0..100 ok put x 2
        p3 10..20 ok get x 2
        p3 30..40 ok get x 1
        """,
    "a write hides behind another": """
        p1 0..100 ok put x 1
        p2 0..10 ok put x 2
        p3 20..30 ok get x 2
        p3 110..120 ok get x 2
        """,
    "a write of unknown outcome takes effect late": """
        p1 0..5 info put x 1
        p2 10..20 ok get x -
        p2 30..40 ok get x 1
        """,
    "a write of unknown outcome explains why a swap was refused": """
        p1 0..10 ok put x 1
        p2 0..- info put x 5
        p3 20..30 ok cas x 1 2 unchanged
        p3 40..50 ok get x 5
        """,
    "a swap of unknown outcome is one link of a chain": """
        p1 0..10 ok put x 1
        p2 20..- info cas x 1 2 swapped
        p3 20..- info cas x 2 3 unchanged
        p4 40..50 ok get x 3
        """,
    "a delete leaves nothing": """
        p1 0..10 ok put x 1
        p1 20..30 ok put x -
        p1 40..50 ok get x -
        """,
    "a read of unknown outcome says nothing": """
        p1 0..10 info get x 7
        """,
    "equal times prove nothing between processes": """
        p1 0..10 ok put x 1
        p2 10..20 ok get x -
        """,
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name(story: str) -> None:
    expected, text = STORIES[story]
    found = check(parse(text))
    assert kinds(found) == expected
    assert [anomaly.key for anomaly in found] == ["x"]


@pytest.mark.parametrize("story", INNOCENT)
def test_an_innocent_history_is_left_alone(story: str) -> None:
    assert accused(check, INNOCENT[story]) == set()


def test_the_report_says_how_far_an_order_goes_and_what_it_leaves() -> None:
    found = check(
        parse("""
        p1 0..10 ok put x 1
        p2 20..40 ok put x 2
        p3 20..50 ok cas x 7 3 unchanged
        p4 60..70 ok get x 1
        p5 65..80 ok put x 4
        """)
    )
    assert str(found[0]) == (
        "nonlinearizable: x: no order explains p4 60..70 ok get x 1; the 3 that completed before it have one, after "
        "which x may hold [2 4]\n"
        "  meanwhile p5 65..80 ok put x 4"
    )
    assert [operation.name for operation in found[0].operations] == ["p4@60", "p5@65"]


def test_registers_may_begin_with_a_value() -> None:
    assert check(parse("p1 0..10 ok get x 0"), initial=0) == []
    assert kinds(check(parse("p1 0..10 ok get x -"), initial=0)) == {"garbage-read"}
