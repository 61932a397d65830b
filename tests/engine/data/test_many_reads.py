"""Very many reads that a copy has confirmed at once are answered in as many turns as that takes."""

from __future__ import annotations

from functools import partial

import pytest

from engine.data.answering import ANSWERED_AT_ONCE
from engine.messages import Confirmed
from engine.protocol.requests import Get, Lock, Remap
from engine.turn.events import Asked
from rebalance.ports import WORK_MAX
from tests.engine.data.test_sessions import Alone

MANY = 3 * WORK_MAX


def confirmed(alone: Alone, count: int) -> list[int]:
    """So many ask in one turn, and in the next one the copy that is asked has answered; who was told in that."""
    node, told = alone.node, list[int]()
    for number in range(count):
        node.reads.confirm(["n2"], 1, Get(number, "acc", [b"k"]), partial(told.append, number))
    node.reads.flush()
    node.core.begin_turn()
    (sequence,) = node.reads._rounds
    node.reads.on_confirmed("n2", Confirmed(node.core.fence, sequence))
    node.core.go_on()
    return told


def test_so_many_as_a_turn_has_room_for() -> None:
    alone = Alone()
    told = confirmed(alone, MANY)
    assert len(told) == WORK_MAX
    alone.node.core.begin_turn()
    alone.node.core.go_on()
    assert len(told) == 2 * WORK_MAX
    alone.turn([])
    assert told == list(range(MANY)), "in order"


def test_of_very_many_small_rounds_too() -> None:
    """Each of a few reads, as of many turns; what many copies have said of them comes in one."""
    alone = Alone()
    node, told = alone.node, list[int]()
    for number in range(0, MANY, ANSWERED_AT_ONCE // 5):
        for one in range(number, number + ANSWERED_AT_ONCE // 5):
            node.reads.confirm(["n2"], 1, Get(one, "acc", [b"k"]), partial(told.append, one))
        node.reads.flush()
    node.core.begin_turn()
    for sequence in list(node.reads._rounds):
        node.reads.on_confirmed("n2", Confirmed(node.core.fence, sequence))
    node.core.go_on()
    assert len(told) == WORK_MAX
    alone.turn([])
    alone.turn([])
    assert told == list(range(MANY)), "in order"


def test_few_are_told_at_once() -> None:
    told = confirmed(Alone(), 2 * ANSWERED_AT_ONCE)
    assert len(told) == 2 * ANSWERED_AT_ONCE


@pytest.mark.parametrize("again", [False, True])
def test_who_waits_for_an_outcome_is_told_in_pieces(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """And waits for the next one, if the key is in doubt `again` before."""
    alone = Alone()
    node, key = alone.node, ("acc", b"k")
    alone.ask(Lock(1, b"somebody" * 2, "acc", [b"another"], 60_000))
    doubt = [True]
    monkeypatch.setattr(node.locks, "in_doubt", lambda _: doubt[0])
    assert alone.turn([Asked(1, Get(number, "acc", [b"k"])) for number in range(MANY)]) == []
    doubt[0] = False
    node.reads.outcome_known([key])
    told = len(node.core.effects.reply)
    assert told == ANSWERED_AT_ONCE
    if again:
        doubt[0] = True
        assert alone.turn([]) == []
        doubt[0] = False
        node.reads.outcome_known([key])
        told += len(node.core.effects.reply)
    while told < MANY:
        told += len(some := node.turn(node.core.now + 1, []).reply)
        assert 0 < len(some) <= WORK_MAX
    assert told == MANY


def test_those_that_are_left_when_another_map_comes_ask_again() -> None:
    alone = Alone()
    told = confirmed(alone, MANY)
    alone.node.reads.switch()
    replies = alone.turn([])
    assert len(told) == WORK_MAX
    assert len(replies) == MANY - WORK_MAX
    assert not any(isinstance(reply, Remap) for reply in replies)
