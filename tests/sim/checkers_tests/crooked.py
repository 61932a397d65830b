"""Crooked histories: honest ones with one lie in them, and wild ones that are mostly lies.

Whether a lie is a crime is for `brute_force` to say: a read that was made stale may still be explained by some order.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import msgspec

from tests.sim.checkers.history import Append, Operation, Outcome, Read, Transaction

Lie: TypeAlias = Callable[[Random, list[Operation]], list[Operation] | None]
"""Takes a history and returns it with one lie, or None if it has no place for it."""


def drop_an_append(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One value is missing from one read."""
    return _change_read(rng, history, 1, lambda values: _without(values, rng.randrange(len(values))))


def swap_two_values(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """Two values of one read change places."""

    def swap(values: tuple[int, ...]) -> tuple[int, ...]:
        one, other = rng.sample(range(len(values)), 2)
        changed = list(values)
        changed[one], changed[other] = changed[other], changed[one]
        return tuple(changed)

    return _change_read(rng, history, 2, swap)


def make_a_read_stale(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One read ends earlier."""
    return _change_read(rng, history, 1, lambda values: values[: rng.randrange(len(values))])


def show_a_foreign_value(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One read holds a value of another transaction, or of none."""
    made = [op.value for operation in history for op in _ops(operation) if isinstance(op, Append)]
    return _change_read(rng, history, 0, lambda values: (*values, rng.choice([*made, 999])))


def repeat_a_value(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One read holds a value twice."""
    return _change_read(rng, history, 1, lambda values: (*values, rng.choice(values)))


def borrow_a_read(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One read answers what another one did."""
    answers = [op.values for operation in history for op in _ops(operation) if isinstance(op, Read) and op.values]
    return _change_read(rng, history, 0, lambda values: rng.choice(answers)) if answers else None


def turn_an_outcome(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """What was acknowledged is said to have failed, or the other way round."""
    at = rng.randrange(len(history))
    operation = history[at]
    if operation.completed is None or any(isinstance(op, Read) and op.values is None for op in _ops(operation)):
        return None
    turned: Outcome = "fail" if operation.outcome == "ok" else "ok"
    return [*history[:at], _alone(history, operation, outcome=turned), *history[at + 1 :]]


def move_in_time(rng: Random, history: list[Operation]) -> list[Operation] | None:
    """One operation happened earlier or later, and was somebody else's."""
    at = rng.randrange(len(history))
    operation = history[at]
    by = rng.randint(-60, 60)
    completed = None if operation.completed is None else operation.completed + by
    moved = _alone(history, operation, invoked=operation.invoked + by, completed=completed)
    return [*history[:at], moved, *history[at + 1 :]]


LIES: list[Lie] = [
    drop_an_append,
    swap_two_values,
    make_a_read_stale,
    show_a_foreign_value,
    repeat_a_value,
    borrow_a_read,
    turn_an_outcome,
    move_in_time,
]


def wild(rng: Random, transactions: int) -> list[Operation]:
    """Transactions that read arbitrary beginnings of one arbitrary order for each key."""
    bodies: list[list[Append | Read]] = []
    orders: dict[str, list[int]] = {"x": [], "y": []}
    made = 0
    for _ in range(transactions):
        body: list[Append | Read] = []
        for _ in range(rng.randint(1, 3)):
            key = rng.choice("xy")
            if rng.random() < 0.5:
                made += 1
                orders[key].append(made)
                body.append(Append(key, made))
            else:
                body.append(Read(key))
        bodies.append(body)
    if rng.random() < 0.5:
        for order in orders.values():
            rng.shuffle(order)
    history: list[Operation] = []
    for process, body in enumerate(bodies):
        ops: list[Append | Read] = []
        for op in body:
            if isinstance(op, Append):
                ops.append(op)
            else:
                order = orders[op.key]
                ops.append(Read(op.key, tuple(order[: rng.randint(0, len(order))])))
        invoked = rng.randint(0, 30)
        outcome = rng.choices(("ok", "info", "fail"), (8, 1, 1))[0]
        completed = None if outcome == "info" else invoked + rng.randint(0, 15)
        history.append(Operation(process, invoked, completed, _OUTCOMES[outcome], Transaction(tuple(ops))))
    return history


_OUTCOMES: dict[str, Outcome] = {"ok": "ok", "info": "info", "fail": "fail"}


def _ops(operation: Operation) -> tuple[Append | Read, ...]:
    assert isinstance(operation.action, Transaction)
    return operation.action.ops


def _alone(history: list[Operation], operation: Operation, **changes: object) -> Operation:
    """The operation, changed, by a process that does nothing else: so that no record contradicts itself."""
    return msgspec.structs.replace(operation, process=1 + max(other.process for other in history), **changes)


def _without(values: tuple[int, ...], at: int) -> tuple[int, ...]:
    return values[:at] + values[at + 1 :]


def _change_read(
    rng: Random, history: list[Operation], least: int, change: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> list[Operation] | None:
    """Change what one acknowledged read of at least so many values answered."""
    places = [
        (at, part)
        for at, operation in enumerate(history)
        if operation.outcome == "ok"
        for part, op in enumerate(_ops(operation))
        if isinstance(op, Read) and op.values is not None and len(op.values) >= least
    ]
    if not places:
        return None
    at, part = rng.choice(places)
    ops = list(_ops(history[at]))
    read = ops[part]
    assert isinstance(read, Read), "only reads were chosen"
    assert read.values is not None, "only answered reads were chosen"
    ops[part] = Read(read.key, change(read.values))
    changed = msgspec.structs.replace(history[at], action=Transaction(tuple(ops)))
    return [*history[:at], changed, *history[at + 1 :]]
