"""Every class of transactional anomaly, planted by hand in a history of a few lines."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.checkers.history import REPORTED_MAX, HistoryError, Kind, Operation, Transaction
from tests.sim.checkers.list_append import check
from tests.sim.checkers.notation import parse
from tests.sim.checkers_tests.planted import accused, kinds

serializable = partial(check, strict=False)

STORIES: dict[str, tuple[set[Kind], str]] = {
    "two transactions interleave their writes": (
        {"G0"},
        """
        p1 0..10 ok append x 1; append y 2
        p2 0..10 ok append x 3; append y 4
        p3 20..30 ok read x [1 3]; read y [4 2]
        """,
    ),
    "a write of another transaction stands amid two of one": (
        {"G0"},
        """
        p1 0..10 ok append x 1; append x 2
        p2 0..10 ok append x 3
        p3 20..30 ok read x [1 3 2]
        """,
    ),
    "a read sees what was aborted": (
        {"G1a"},
        """
        p1 0..10 fail append x 1
        p2 20..30 ok read x [1]
        """,
    ),
    "a committed write stands upon an aborted one": (
        {"G1a", "dirty-update"},
        """
        p1 0..10 fail append x 1
        p2 20..30 ok append x 2
        p3 40..50 ok read x [1 2]
        """,
    ),
    "a read sees half of a transaction": (
        {"G1b", "G-single"},
        """
        p1 0..10 ok append x 1; append x 2
        p2 0..10 ok read x [1]
        """,
    ),
    "two transactions see each other": (
        {"G1c"},
        """
        p1 0..10 ok append x 1; read y [2]
        p2 0..10 ok append y 2; read x [1]
        """,
    ),
    "information flows in a circle along a write": (
        {"G1c"},
        """
        p1 0..10 ok append x 1; append y 2
        p2 0..10 ok append x 3; read y [2]
        p3 20..30 ok read x [3 1]
        """,
    ),
    "a reader sees one of two writes: read skew": (
        {"G-single"},
        """
        p1 0..10 ok append x 1; append y 2
        p2 0..10 ok read x []; read y [2]
        """,
    ),
    "two read the same and both append: a lost update": (
        {"G-single"},
        """
        p1 0..10 ok read x []; append x 1
        p2 0..10 ok read x []; append x 2
        p3 20..30 ok read x [1 2]
        """,
    ),
    "a lost update shows even if nobody reads again": (
        {"G-single"},
        """
        p1 0..10 ok read x []; append x 1
        p2 0..10 ok read x []; append x 2
        """,
    ),
    "each missed what the other wrote: write skew": (
        {"G2"},
        """
        p1 0..10 ok read x []; append y 1
        p2 0..10 ok read y []; append x 2
        """,
    ),
    "two readers saw two writers in two orders: a long fork": (
        {"G2"},
        """
        p1 0..10 ok append x 1
        p2 0..10 ok append y 2
        p3 0..10 ok read x [1]; read y []
        p4 0..10 ok read x []; read y [2]
        """,
    ),
    "a value is there twice": (
        {"duplicate"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok read x [1 1]
        """,
    ),
    "a value is from nowhere": (
        {"garbage-read"},
        """
        p1 0..10 ok read x [7]
        """,
    ),
    "a transaction does not see its own append": (
        {"internal"},
        """
        p1 0..10 ok append x 1; read x []
        """,
    ),
    "a transaction sees its own append too early": (
        {"internal"},
        """
        p1 0..10 ok read x [1]; append x 1
        """,
    ),
    "a transaction reads a key twice and differently": (
        {"internal"},
        """
        p1 0..10 ok append x 1
        p2 0..10 ok read x []; read x [1]
        """,
    ),
    "a transaction's appends are in the wrong order": (
        {"internal"},
        """
        p1 0..10 ok append x 1; append x 2
        p2 20..30 ok read x [2 1]
        """,
    ),
    "two reads belong to two histories: a split brain": (
        {"incompatible-order"},
        """
        p1 0..10 ok append x 1
        p2 0..10 ok append x 2
        p3 0..30 ok read x [1]
        p4 0..30 ok read x [2]
        """,
    ),
    "a transaction of unknown outcome that was seen must be whole": (
        {"G-single"},
        """
        p1 0..- info append x 1; append y 2
        p2 20..30 ok read x [1]; read y []
        """,
    ),
    "an unknown outcome is known by a chain of unknown ones": (
        {"G1c"},
        """
        p1 0..- info append x 1; read y [2]
        p2 0..- info append y 2; read x [1]
        p3 20..30 ok read x [1]
        """,
    ),
}

STRICT_STORIES: dict[str, tuple[set[Kind], str]] = {
    "an acknowledged append is missing in the end": (
        {"lost-write"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok append x 2
        p3 40..50 ok read x [2]
        """,
    ),
    "an append that was seen is lost later": (
        {"lost-write"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok read x [1]
        p3 40..50 ok read x []
        """,
    ),
    "a read misses what was acknowledged, and a later one has it": (
        {"stale-read"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok read x []
        p3 40..50 ok read x [1]
        """,
    ),
    "a read misses what another read saw before": (
        {"strict-serializability"},
        """
        p1 0..- info append x 1
        p2 20..30 ok read x [1]
        p3 40..50 ok read x []
        """,
    ),
    "a process misses its own append at the very next instant": (
        {"strict-serializability"},
        """
        p1 0..10 ok append x 1
        p1 10..20 ok read x []
        """,
    ),
    "a read sees what is appended only later": (
        {"strict-serializability"},
        """
        p1 0..10 ok read x [1]
        p2 20..30 ok append x 1
        """,
    ),
    "appends stand in the wrong order of time": (
        {"strict-serializability"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok append x 2
        p3 0..40 ok read x [2 1]
        """,
    ),
    "a read sees the later of two writes without the earlier": (
        {"strict-serializability"},
        """
        p1 0..10 ok append x 1
        p2 20..30 ok append y 2
        p3 0..40 ok read x []; read y [2]
        """,
    ),
}

INNOCENT: dict[str, str] = {
    "nothing happened": "",
    "an append of unknown outcome is never seen": """
        p1 0..- info append x 1
        p2 20..30 ok read x []
        """,
    "an append of unknown outcome takes effect late": """
        p1 0..5 info append x 1
        p2 20..30 ok read x []
        p3 40..50 ok read x [1]
        """,
    "an append that failed stays away": """
        p1 0..10 fail append x 1; read y [99]
        p2 20..30 ok read x []
        """,
    "equal times prove nothing between processes": """
        p1 0..10 ok append x 1
        p2 10..20 ok read x []
        """,
    "a transaction reads its own appends behind those of others": """
        p1 0..10 ok append x 1
        p2 0..10 ok read x [1]; append x 2; append x 3; read x [1 2 3]
        """,
    "appends that nobody read have any order": """
        p1 0..10 ok append x 1; append y 2
        p2 0..10 ok append y 3; append x 4
        p3 0..10 ok read x []; read y []; append x 5
        """,
}


@pytest.mark.parametrize("story", STORIES)
def test_an_anomaly_has_its_name_with_and_without_the_clock(story: str) -> None:
    expected, text = STORIES[story]
    assert accused(check, text) == expected
    assert accused(serializable, text) == expected


@pytest.mark.parametrize("story", STRICT_STORIES)
def test_an_anomaly_of_time_is_none_without_the_clock(story: str) -> None:
    expected, text = STRICT_STORIES[story]
    assert accused(check, text) == expected
    assert accused(serializable, text) == set()


@pytest.mark.parametrize("story", INNOCENT)
def test_an_innocent_history_is_left_alone(story: str) -> None:
    assert accused(check, INNOCENT[story]) == set()


def test_a_cycle_is_told_edge_by_edge() -> None:
    found = check(parse(STORIES["a reader sees one of two writes: read skew"][1]))
    assert len(found) == 1
    assert str(found[0]) == (
        "G-single: a cycle of 2 transactions\n"
        "  p2@0 -rw x-> p1@0: p2@0 read x=[], without 1 of p1@0\n"
        "  p1@0 -wr y-> p2@0: p1@0 appended 2 to y, and p2@0 read it"
    )
    assert [operation.name for operation in found[0].operations] == ["p2@0", "p1@0"]


def test_a_cycle_through_time_names_the_times() -> None:
    found = check(parse(STRICT_STORIES["a read sees what is appended only later"][1]))
    assert str(found[0]) == (
        "strict-serializability: a cycle of 2 transactions\n"
        "  p2@20 -wr x-> p1@0: p2@20 appended 1 to x, and p1@0 read it\n"
        "  p1@0 -time-> p2@20: p1@0 completed at 10, p2@20 began at 20"
    )


def test_a_lost_append_names_key_value_and_reader() -> None:
    found = check(parse(STRICT_STORIES["an acknowledged append is missing in the end"][1]))
    assert str(found[0]) == "lost-write: x lost 1 acknowledged append: 1 of p1@0; p3@40, which began later, read [2]"
    assert found[0].key == "x"


def test_the_shortest_cycle_is_told_of_many() -> None:
    ring = [f"p{i} 0..10 ok read k{i} []; append k{(i + 1) % 9} {i}" for i in range(9)]
    shortcut = "p9 0..10 ok read k0 []; read k4 [3]"
    found = check(parse("\n".join([*ring, shortcut])))
    assert kinds(found) == {"G2"}
    assert len(found[0].operations) == 7


def test_a_giant_cycle_is_told_in_part() -> None:
    found = check(parse("\n".join(f"p{i} 0..10 ok read k{i} []; append k{(i + 1) % 99} {i}" for i in range(99))))
    assert len(found[0].operations) == 99
    assert "\n  ... 86 more\n" in found[0].explanation


def test_a_thousand_anomalies_of_one_kind_are_reported_as_a_few_and_a_number() -> None:
    found = check(parse("\n".join(f"p{i} 0..10 ok read k{i} [{i}]" for i in range(1000))))
    assert [anomaly.kind for anomaly in found] == ["garbage-read"] * REPORTED_MAX
    assert found[-1].explanation.endswith("... and 990 more of this kind")


def test_a_value_that_is_appended_twice_accuses_the_workload() -> None:
    with pytest.raises(HistoryError, match="p2@5 and p1@0 both append 1 to x"):
        check(parse("p1 0..10 fail append x 1\np2 5..10 ok append x 1"))


def test_an_empty_transaction_is_no_matter() -> None:
    assert check([Operation(0, 0, 1, "ok", Transaction(()))]) == []
