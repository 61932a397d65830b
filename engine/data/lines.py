"""In which order those who wait for one key have it.

First who reads it and wants to write it, since nobody behind it could go on without it. Then who holds other keys: those
who want these wait for it, and perhaps it for them, and the sooner it has all the sooner all go on. It passes whoever has
nothing that others wait for, but not for ever: after some that passed, the first of those has its turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

PASSED_MAX = 8
"""So many in a row may pass those who hold nothing."""


class Standing(Protocol):
    """Whoever stands in a line: `presses`, if it is served before those who do not."""

    @property
    def presses(self) -> bool:
        """Whether it holds other keys."""
        ...


W = TypeVar("W", bound=Standing)


class Line(Generic[W]):
    """Those who wait for one key. Whoever comes, goes or is served: each costs the same, however long the line is."""

    __slots__ = ("_others", "_passed", "_pressing", "_raising")

    def __init__(self) -> None:
        self._raising: OrderedDict[W, None] = OrderedDict()
        self._pressing: OrderedDict[W, None] = OrderedDict()
        self._others: OrderedDict[W, None] = OrderedDict()
        self._passed = 0

    def __bool__(self) -> bool:
        return bool(self._raising or self._pressing or self._others)

    def __contains__(self, waiter: object) -> bool:
        return waiter in self._others or waiter in self._pressing or waiter in self._raising

    def __iter__(self) -> Iterator[W]:
        """In the order in which they would be served if nobody came."""
        yield from self._raising
        pressing, others, passed = iter(self._pressing), iter(self._others), self._passed
        following, other = next(pressing, None), next(others, None)
        while following is not None or other is not None:
            if following is not None and (other is None or passed < PASSED_MAX):
                yield following
                following, passed = next(pressing, None), passed + 1
            elif other is not None:
                yield other
                other, passed = next(others, None), 0

    def join(self, waiter: W, *, raising: bool) -> None:
        """Stand in line; `raising`: it reads the key already, and wants to write it."""
        if raising:
            self._raising[waiter] = None
            self._raising.move_to_end(waiter, last=False)
        elif waiter.presses:
            self._pressing[waiter] = None
        else:
            self._others[waiter] = None

    def leave(self, waiter: W, *, served: bool = False) -> bool:
        """Out of the line, because it has its turn (`served`) or wants none; whether it stood in it."""
        if waiter in self._others:
            del self._others[waiter]
            self._passed = 0 if served else self._passed
        elif waiter in self._pressing:
            del self._pressing[waiter]
            self._passed += served and bool(self._others)
        elif waiter in self._raising:
            del self._raising[waiter]
        else:
            return False
        return True
