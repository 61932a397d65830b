"""Half transfers and half rotations."""

from __future__ import annotations

from functools import partial

import pytest

from tests.sim.checkers import bank, ring
from tests.sim.checkers.history import Kind
from tests.sim.checkers.notation import parse
from tests.sim.checkers_tests.planted import accused

ABC = ["a", "b", "c"]

RINGS: dict[str, tuple[set[Kind], str]] = {
    "is whole": (set(), "ring a>b b>c c>a"),
    "lacks a key": ({"ring-broken"}, "ring a>b b>a"),
    "has a key too many": ({"ring-broken"}, "ring a>b b>c c>d d>a"),
    "has two keys that point to one": ({"ring-broken"}, "ring a>b b>c c>b"),
    "points to nowhere": ({"ring-broken"}, "ring a>b b>c c>z"),
    "is two rings": ({"ring-split"}, "ring a>b b>a c>c"),
}


def test_a_read_in_the_middle_of_a_transfer_shows_in_the_total() -> None:
    text = "p1 0..10 ok transfer a b 5\np2 0..10 ok balances a=5 b=0"
    found = bank.check(10, parse(text))
    assert [str(anomaly) for anomaly in found] == ["wrong-total: expected 10, found 5 (-5): p2 0..10 ok balances a=5 b=0"]


def test_a_negative_balance_is_an_anomaly_unless_it_was_promised() -> None:
    text = "p2 0..10 ok balances a=12 b=-2"
    assert accused(partial(bank.check, 10), text) == {"negative-balance"}
    assert accused(partial(bank.check, 10, overdraft=True), text) == set()


def test_an_account_that_nobody_opened_is_an_anomaly() -> None:
    text = "p2 0..10 ok balances a=8 z=2"
    assert accused(partial(bank.check, 10, accounts="ab"), text) == {"unknown-account"}
    assert accused(partial(bank.check, 10), text) == set()


def test_an_account_at_zero_may_be_missing_and_a_failed_read_says_nothing() -> None:
    assert accused(partial(bank.check, 10, accounts="ab"), "p2 0..10 ok balances a=10") == set()
    assert accused(partial(bank.check, 10), "p2 0..10 fail balances a=3\np3 0..10 info balances ?") == set()


@pytest.mark.parametrize("story", RINGS)
def test_a_ring(story: str) -> None:
    expected, text = RINGS[story]
    assert accused(partial(ring.check, ABC), f"p1 0..10 ok rotate a b c\np2 20..30 ok {text}") == expected


def test_a_broken_ring_says_where() -> None:
    (found,) = ring.check(ABC, parse("p2 20..30 ok ring a>b b>c c>b"))
    assert str(found) == "ring-broken: p2@20 read a broken ring: nothing points to a; a, c point to b"
    (found,) = ring.check(ABC, parse("p2 20..30 ok ring a>b b>a c>c"))
    assert str(found) == "ring-split: p2@20 read 2 rings instead of one: a > b, c"
