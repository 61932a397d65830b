"""The transactional checker is about linear, also where everything is wrong. Figures are of processor time."""

from __future__ import annotations

import time
from random import Random

from tests.sim.checkers import list_append, register
from tests.sim.checkers.history import Append, Get, Operation, Put, Read, Transaction
from tests.sim.checkers_tests import honest
from tests.sim.checkers_tests.planted import kinds

SECONDS_MAX = 10.0
"""Twenty times what an idle core needs: it must fail for a quadratic checker, and not for a busy machine."""


def test_ten_thousand_transactions_take_seconds() -> None:
    history = honest.list_append(Random(1), 20, 10_000, keys=5)
    began = time.process_time()
    assert list_append.check(history) == []
    assert time.process_time() - began < SECONDS_MAX


def test_one_cycle_through_ten_thousand_transactions_is_found_in_seconds() -> None:
    n = 10_000
    history = [Operation(i, 0, 10, "ok", Transaction((Read(f"k{i}", ()), Append(f"k{(i + 1) % n}", i)))) for i in range(n)]
    began = time.process_time()
    assert kinds(list_append.check(history)) == {"G2"}
    assert time.process_time() - began < SECONDS_MAX


def test_ten_thousand_lost_updates_of_one_key_are_found_in_seconds() -> None:
    history = [Operation(i, 0, 10, "ok", Transaction((Read("x", ()), Append("x", i)))) for i in range(10_000)]
    began = time.process_time()
    assert kinds(list_append.check(history)) == {"G-single"}
    assert time.process_time() - began < SECONDS_MAX


def test_two_hundred_operations_of_ten_clients_on_one_register_stay_cheap() -> None:
    for seed in range(10):
        began = time.process_time()
        assert register.check(honest.register(Random(seed), 10, 200, keys=1, values=100)) == []
        assert time.process_time() - began < SECONDS_MAX


def test_a_hopeless_search_is_given_up_and_says_so() -> None:
    writes = [Operation(i, 0, 100, "ok", Put("x", i)) for i in range(30)]
    reads = [Operation(30 + i, 101 + 10 * i, 105 + 10 * i, "ok", Get("x", i)) for i in range(2)]
    found = register.check([*writes, *reads], states_max=5_000)
    assert kinds(found) == {"undecided"}
    assert "x: gave up after 5000 states, 30 of 32 completions in; 32 operations, up to 30 at once" in str(found[0])
