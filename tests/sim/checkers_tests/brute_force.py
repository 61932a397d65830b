"""The second opinion: try every order. Slow, short, and sharing no thought with the checkers that it judges.

An order explains a history if, taken one after the other, all operations that are `ok` and any of those that are
`info` answer what they were told. What is `strict` also respects real time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from tests.sim.checkers.history import Add, Append, CompareAndSet, Get, Operation, Put, ReadSet, Transaction, precedes

S = TypeVar("S")
Lists: TypeAlias = dict[str, tuple[int, ...]]
Registers: TypeAlias = dict[str, int | None]


def explicable(
    history: Iterable[Operation], start: S, step: Callable[[S, Operation], S | None], *, strict: bool = True
) -> bool:
    """Whether some order explains the history; `step` takes one operation, or answers None if it cannot be next."""
    operations = [operation for operation in history if operation.outcome != "fail"]

    def search(state: S, left: list[Operation]) -> bool:
        if all(operation.outcome == "info" for operation in left):
            return True
        for i, operation in enumerate(left):
            rest = left[:i] + left[i + 1 :]
            if strict and any(precedes(other, operation) for other in rest):
                continue
            after = step(state, operation)
            if after is not None and search(after, rest):
                return True
        return False

    return search(start, operations)


def append_step(lists: Lists, operation: Operation) -> Lists | None:
    """One transaction of appends and reads, from no lists at all."""
    assert isinstance(operation.action, Transaction)
    after = dict(lists)
    for op in operation.action.ops:
        if isinstance(op, Append):
            after[op.key] = (*after.get(op.key, ()), op.value)
        elif op.values is not None and op.values != after.get(op.key, ()):
            return None
    return after


def register_step(registers: Registers, operation: Operation) -> Registers | None:
    """One operation upon registers, all absent at first."""
    action = operation.action
    match action:
        case Get(key, value):
            return registers if operation.outcome == "info" or registers.get(key) == value else None
        case Put(key, value):
            return {**registers, key: value}
        case CompareAndSet(key, expected, value, swapped):
            if operation.outcome == "ok" and (registers.get(key) == expected) != swapped:
                return None
            return {**registers, key: value} if registers.get(key) == expected else registers
        case _:
            raise AssertionError(f"not of a register: {action}")


def set_step(elements: frozenset[int], operation: Operation) -> frozenset[int] | None:
    """One operation upon a set that is empty at first."""
    action = operation.action
    match action:
        case Add(element):
            return elements | {element}
        case ReadSet(found):
            known = operation.outcome == "ok" and found is not None
            return None if known and (len(found or ()) != len(elements) or set(found or ()) != elements) else elements
        case _:
            raise AssertionError(f"not of a set: {action}")
