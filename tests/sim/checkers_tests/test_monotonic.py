"""Versions that go back, and versions that are two things at once."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.checkers.history import Kind
from tests.sim.checkers.monotonic import check
from tests.sim.checkers.notation import parse
from tests.sim.checkers_tests.planted import accused

STORIES: dict[str, tuple[set[Kind], str]] = {
    "a session reads an older version again": (
        {"session-rollback"},
        """
        p1 0..10 ok observe x 1.2 20
        p1 20..30 ok observe x 1.1 10
        """,
    ),
    "a session finds nothing any more": (
        {"session-rollback"},
        """
        p1 0..10 ok observe x 1.2 20
        p1 20..30 ok observe x - -
        """,
    ),
    "a session does not read its own update": (
        {"session-rollback"},
        """
        p1 0..10 ok update x 1.2 20
        p1 10..30 ok observe x 1.1 10
        """,
    ),
    "an update gets a version that its session has seen": (
        {"session-rollback"},
        """
        p1 0..10 ok observe x 1.2 20
        p1 20..30 ok update x 1.2 20
        """,
    ),
    "a later epoch goes before a higher counter": (
        {"session-rollback"},
        """
        p1 0..10 ok observe x 2.1 30
        p1 20..30 ok observe x 1.9 20
        """,
    ),
    "another client reads an older version later": (
        {"version-rollback"},
        """
        p1 0..10 ok observe x 1.2 20
        p2 20..30 ok observe x 1.1 10
        """,
    ),
    "an update was given a version below one that was known": (
        {"version-rollback"},
        """
        p1 0..10 ok update x 2.1 30
        p2 20..30 ok update x 1.9 20
        """,
    ),
    "one version is two values": (
        {"divergent-version"},
        """
        p1 0..30 ok observe x 1.2 20
        p2 0..30 ok observe x 1.2 21
        """,
    ),
    "one version is two updates of the same value": (
        {"divergent-version"},
        """
        p1 0..30 ok update x 1.2 20
        p2 0..30 ok update x 1.2 20
        """,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name(story: str) -> None:
    expected, text = STORIES[story]
    assert accused(check, text) == expected


def test_a_session_is_held_to_the_highest_version_that_it_saw() -> None:
    found = check(parse("p1 0..5 ok observe x 1.2 20\np1 6..7 ok observe x 1.1 10\np1 8..9 ok observe x 1.1 10"))
    assert [str(anomaly) for anomaly in found] == [
        "session-rollback: x went back within process 1: p1 0..5 ok observe x 1.2 20, p1 6..7 ok observe x 1.1 10",
        "session-rollback: x went back within process 1: p1 0..5 ok observe x 1.2 20, p1 8..9 ok observe x 1.1 10",
    ]


def test_what_only_another_client_saw_matters_only_globally() -> None:
    text = "p1 0..10 ok observe x 1.2 20\np2 20..30 ok observe x 1.1 10"
    assert accused(partial(check, globally=False), text) == set()


def test_reads_that_overlap_and_other_keys_are_left_alone() -> None:
    text = """
        p1 0..10 ok update x 1.1 10
        p2 5..20 ok observe x - -
        p1 20..30 ok observe y 0.5 7
        p1 40..50 ok observe x 1.1 10
        p3 0..60 info update x ? 11
        p2 60..70 ok observe x 1.2 11
        p4 70..80 ok observe x 1.1 10
    """
    assert accused(check, text) == set()
