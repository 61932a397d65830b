"""Checkers that claim an exact verdict agree with a trial of all orders, on honest and crooked histories alike."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from tests.sim.checkers import list_append, register, sets
from tests.sim.checkers.history import CompareAndSet, Get, Operation, ReadSet
from tests.sim.checkers.notation import dump
from tests.sim.checkers_tests import crooked, honest
from tests.sim.checkers_tests.brute_force import Lists, Registers, append_step, explicable, register_step, set_step

SEEDS = range(300)
NO_LISTS: Lists = {}
NO_REGISTERS: Registers = {}
NO_ELEMENTS: frozenset[int] = frozenset()


def judge_lists(history: list[Operation], *, strict: bool) -> bool:
    """Whether it is serializable, after both judges agreed."""
    expected = explicable(history, NO_LISTS, append_step, strict=strict)
    found = list_append.check(history, strict=strict)
    assert expected == (not found), f"{strict=} {expected=} {[str(a) for a in found]}\n{dump(history)}"
    return expected


@pytest.mark.parametrize("strict", [True, False])
def test_lists_are_judged_alike_in_wild_histories(strict: bool) -> None:
    verdicts: Counter[bool] = Counter()
    for seed in SEEDS:
        rng = Random(seed)
        verdicts[judge_lists(crooked.wild(rng, rng.randint(2, 5)), strict=strict)] += 1
    assert min(verdicts.values()) > 80, f"one-sided: {verdicts}"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("lie", crooked.LIES, ids=lambda lie: lie.__name__)
def test_lists_are_judged_alike_after_one_lie(lie: crooked.Lie, strict: bool) -> None:
    verdicts: Counter[bool] = Counter()
    for seed in SEEDS:
        rng = Random(seed)
        history = honest.list_append(rng, 3, 5, keys=2, width=3, info=rng.choice([0.1, 0.4]))
        assert judge_lists(history, strict=strict), f"seed {seed} is not honest"
        lied = lie(rng, history)
        if lied is not None:
            verdicts[judge_lists(lied, strict=strict)] += 1
    assert verdicts.total() > 100, f"few lies: {verdicts}"
    assert verdicts[False] > 20 or (lie is crooked.move_in_time and not strict), f"harmless: {verdicts}"


def test_registers_are_judged_alike() -> None:
    verdicts: Counter[bool] = Counter()
    for seed in range(600):
        rng = Random(seed)
        history = honest.register(rng, rng.randint(2, 4), rng.randint(4, 7), keys=1, values=3, info=0.2)
        for candidate in (history, _lie_about_registers(rng, history)):
            expected = explicable(candidate, NO_REGISTERS, register_step)
            found = register.check(candidate)
            assert expected == (not found), f"{expected=} {[str(a) for a in found]}\n{dump(candidate)}"
            verdicts[expected] += 1
    assert min(verdicts.values()) > 100, f"one-sided: {verdicts}"


def test_sets_are_judged_alike() -> None:
    verdicts: Counter[bool] = Counter()
    for seed in range(600):
        rng = Random(seed)
        history = honest.sets(rng, rng.randint(2, 4), rng.randint(4, 7))
        for candidate in (history, _lie_about_sets(rng, history)):
            expected = explicable(candidate, NO_ELEMENTS, set_step)
            found = sets.check(candidate)
            assert expected == (not found), f"{expected=} {[str(a) for a in found]}\n{dump(candidate)}"
            verdicts[expected] += 1
    assert min(verdicts.values()) > 100, f"one-sided: {verdicts}"


def _lie_about_registers(rng: Random, history: list[Operation]) -> list[Operation]:
    lied = list(history)
    for at, operation in enumerate(history):
        action = operation.action
        if isinstance(action, Get) and rng.random() < 0.5:
            lied[at] = msgspec.structs.replace(operation, action=Get(action.key, rng.choice([None, 0, 1, 2])))
        elif isinstance(action, CompareAndSet) and rng.random() < 0.5:
            turned = CompareAndSet(action.key, action.expected, action.value, not action.swapped)
            lied[at] = msgspec.structs.replace(operation, action=turned)
    return crooked.move_in_time(rng, lied) or lied


def _lie_about_sets(rng: Random, history: list[Operation]) -> list[Operation]:
    lied = list(history)
    for at, operation in enumerate(history):
        action = operation.action
        if isinstance(action, ReadSet) and action.elements and rng.random() < 0.5:
            fewer = rng.sample(action.elements, rng.randint(0, len(action.elements)))
            more = [rng.randint(1, 6)] * rng.randint(0, 1)
            lied[at] = msgspec.structs.replace(operation, action=ReadSet((*fewer, *more)))
    return crooked.move_in_time(rng, lied) or lied
