"""Records that contradict themselves are refused, and every history can be written down and read again."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.sim.checkers import history as h
from tests.sim.checkers import list_append, register
from tests.sim.checkers.notation import dump, line, parse
from tests.sim.checkers_tests import honest

REFUSED: dict[str, str] = {
    "p1@0 is ok, but it never completed": "p1 0..- ok get x 1",
    "p1@9 completed at 5, before it was invoked": "p1 9..5 ok get x 1",
    "p1@5 began before p1@0 of the same process completed": "p1 0..10 ok get x 1\np1 5..15 ok get x 1",
    "p1@0 began before p1@0 of the same process": "p1 0..0 ok get x 1\np1 0..5 ok get x 1",
    "p1@20 follows p1@0, which is info: process 1 retired": "p1 0..10 info put x 1\np1 20..30 ok get x 1",
    "p1@0 is a Transaction: expected Get, Put, CompareAndSet": "p1 0..10 ok append x 1",
}

GENERATORS = [
    honest.list_append,
    honest.register,
    honest.sets,
    honest.bank,
    honest.ring,
    honest.monotonic,
    honest.idempotent,
    honest.scan,
]


@pytest.mark.parametrize("reason", REFUSED)
def test_a_record_that_cannot_be_accuses_the_harness(reason: str) -> None:
    with pytest.raises(h.HistoryError, match=reason):
        register.check(parse(REFUSED[reason]))


def test_an_ok_without_its_answer_is_refused() -> None:
    with pytest.raises(h.HistoryError, match="p1@0 is ok, but its answer was not recorded"):
        list_append.check(parse("p1 0..10 ok read x ?"))


def test_a_mixed_history_is_taken_apart() -> None:
    mixed = parse("p1 0..10 ok append x 1\np2 0..10 ok get x 1")
    assert h.only(mixed, h.Transaction) == mixed[:1]
    assert h.only(mixed, h.Get, h.Put) == mixed[1:]


def test_one_operation_precedes_another_if_it_surely_ended_before() -> None:
    one, same, other, unknown, later = parse("""
        p1 0..10 ok get x 1
        p1 10..20 ok get x 1
        p2 10..20 ok get x 1
        p3 0..5 info put x 1
        p2 11..20 ok get x 1
    """)
    assert h.precedes(one, same)
    assert h.precedes(one, later)
    assert not h.precedes(one, other)
    assert not h.precedes(unknown, later)
    assert not h.precedes(same, one)


@pytest.mark.parametrize("generate", GENERATORS, ids=lambda generate: generate.__name__)
def test_every_history_can_be_written_down_and_read_again(generate: honest.Generator) -> None:
    for seed in range(50):
        recorded = generate(Random(seed), 4, 30)
        recorded.sort(key=lambda operation: (operation.invoked, operation.process))
        assert parse(dump(recorded)) == recorded
        packed = msgspec.json.encode(recorded)
        assert msgspec.json.decode(packed, type=list[h.Operation]) == recorded


def test_a_line_that_cannot_be_read_is_named() -> None:
    with pytest.raises(h.HistoryError, match=r"line 2: expected .*, found `p1 0-10 ok get x 1`"):
        parse("# a remark\np1 0-10 ok get x 1")
    for wrong in (
        "get",
        "put x y",
        "cas x 1 2 maybe",
        "fly x",
        "read x",
        "append x 1; add 2",
        "ring a=b",
        "scan a b [] b",
    ):
        with pytest.raises(h.HistoryError, match="line 1: cannot read"):
            parse(f"p1 0..10 ok {wrong}")


def test_an_operation_is_one_line() -> None:
    operation = h.Operation(1, 0, 10, "ok", h.Transaction((h.Append("x", 1), h.Read("y", (1, 2)))))
    assert line(operation) == "p1 0..10 ok append x 1; read y [1 2]"
    assert operation.name == "p1@0"
