"""When each of very many things ends: those that wait for a lock, and the leases of those that hold some."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from rebalance.rule import NEVER

T = TypeVar("T")


class Ends(Generic[T]):
    """A heap of times (ns). Nothing is in it for later than it ends; what ends later than it was said is said again.

    `heap` is empty where nothing is to end.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, T]] = []
        self._number = 0

    def add(self, when: int, what: T) -> None:
        """Something ends at a time, or is to be looked at then."""
        self._number += 1
        heappush(self.heap, (when, self._number, what))

    def due(self, now: int) -> T | None:
        """The first of what has come to its end, which is in here no more; None: nothing has."""
        return heappop(self.heap)[2] if self.heap and self.heap[0][0] <= now else None

    def first(self, is_over: Callable[[T], bool]) -> int:
        """When the next thing ends that is not over, or `NEVER`."""
        while self.heap and is_over(self.heap[0][2]):
            heappop(self.heap)
        return self.heap[0][0] if self.heap else NEVER
