"""Scans that miss, invent, repeat and misorder rows."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.checkers.history import HistoryError, Kind
from tests.sim.checkers.notation import parse
from tests.sim.checkers.scan import check
from tests.sim.checkers_tests.planted import accused

STORIES: dict[str, tuple[set[Kind], str]] = {
    "agrees with its gets": (set(), "scan a e [b=1 d=2] get b=1 c=- x=9"),
    "misses a row": ({"scan-missing"}, "scan a e [b=1] get d=2"),
    "finds a row that is not there": ({"scan-phantom"}, "scan a e [b=1 d=2] get d=-"),
    "finds another value": ({"scan-value"}, "scan a e [b=1] get b=2"),
    "finds a row out of range": ({"scan-phantom"}, "scan a e [b=1 e=5]"),
    "finds a row twice": ({"duplicate"}, "scan a e [b=1 b=1]"),
    "finds rows in the wrong order": ({"scan-order"}, "scan a e [d=1 b=1]"),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_scan(story: str) -> None:
    expected, text = STORIES[story]
    assert accused(check, f"p1 0..10 ok {text}") == expected


def test_scans_and_gets_must_agree_once_all_is_quiet() -> None:
    text = """
        p6 0..5 ok scan a e [c=7]
        p1 0..10 ok put b 1
        p2 100..110 ok get b 1
        p3 120..130 ok scan a e []
        p4 140..150 ok scan a e [b=1]
        p5 160..170 ok get b 2
    """
    assert accused(check, text) == set()
    assert accused(partial(check, quiet_from=100), text) == {"scan-missing", "scan-value"}
    found = check(parse(text), quiet_from=100)
    assert str(found[0]) == "scan-missing: p3@120 scanned a..e without b; p2@100 found 1"


def test_rows_of_partitions_may_come_in_any_order_if_no_order_is_promised() -> None:
    assert accused(partial(check, ordered=False), "p1 0..10 ok scan a e [d=1 b=1]") == set()


def test_a_write_while_all_is_quiet_accuses_the_harness() -> None:
    with pytest.raises(HistoryError, match="p1@90 was written after 100"):
        check(parse("p1 90..110 ok put b 1"), quiet_from=100)
