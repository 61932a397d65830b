"""Seconds as an application gives them: what is one, and how many are left; and what counts them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from engine.errors import UsageError
from engine.protocol.addresses import Address
from engine.protocol.limits import FOR_GOOD_MS, TIMEOUT_MS_MAX, TTL_MS_MAX

V = TypeVar("V")


class Surroundings(NamedTuple):
    """What a client decides nothing about: what time it is, and what is drawn. A simulated one has others."""

    clock: Callable[[], int] = time.monotonic_ns
    wall: Callable[[], int] = time.time_ns
    chance: random.Random = random.SystemRandom()


REAL = Surroundings()

KEEP_LOCKS_SECONDS, LOCKS_TIMES = 2.0, 5
KEEP_SESSION_SECONDS, SESSION_TIMES = 60.0, 10
"""Who lives says so at least so often, and so many times within what a node grants to those who are silent."""
KEEP_SECONDS_MIN = 0.02
SECONDS_MAX = 1e9
"""Nobody waits longer: it is thirty years."""


class Renewals:
    """How often a client says that it lives, in seconds: for its locks, and for its answers.

    Each node says what it grants when it greets (`wire.Hello`). The least of them counts, since none is told by itself.
    """

    __slots__ = ("_granted", "of_locks", "of_sessions")

    def __init__(self) -> None:
        self._granted: dict[Address, tuple[int, int]] = {}
        self.of_locks, self.of_sessions = KEEP_LOCKS_SECONDS, KEEP_SESSION_SECONDS

    def hear(self, address: Address, lock_lease_ms: int, result_retention_ms: int) -> None:
        """What a node grants; nothing, from one of a version that does not say it."""
        self._granted[address] = lock_lease_ms, result_retention_ms
        locks, answers = zip(*self._granted.values(), strict=True)
        self.of_locks = _within(locks, LOCKS_TIMES, KEEP_LOCKS_SECONDS)
        self.of_sessions = _within(answers, SESSION_TIMES, KEEP_SESSION_SECONDS)


def _within(granted: Iterable[int], times: int, most: float) -> float:
    least = min((ms for ms in granted if ms > 0), default=0)
    return max(KEEP_SECONDS_MIN, min(most, least / times / 1000)) if least else most


class Aged(NamedTuple, Generic[V]):
    """What a copy holds: the value (None: there is none), and its age in seconds.

    It misses nothing that was acknowledged longer ago than `age`; None: the copy does not know yet.
    """

    value: V | None
    age: float | None


def check_seconds(name: str, seconds: float) -> float:
    """The number, if so long can be waited; or as many as can. Raises UsageError."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(f"{name} is {seconds!r}: expected a number of seconds above 0, and finite")
    return min(seconds, SECONDS_MAX)


def milliseconds(name: str, seconds: float) -> int:
    """A time from 0 as a request carries it. Raises UsageError."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds * 1000 <= TIMEOUT_MS_MAX:
        raise UsageError(f"{name} is {seconds!r}: expected a number of seconds from 0 to {TIMEOUT_MS_MAX // 1000}")
    return int(seconds * 1000)


def time_to_live(seconds: float | None) -> int:
    """How long a value is to last, as a request carries it: ms, rounded up, so that it lasts as long as was asked for; 0:
    as its namespace says, which is for good unless it says otherwise; `math.inf`: for good. Raises UsageError."""
    if seconds is None:
        return 0
    if seconds == math.inf:
        return FOR_GOOD_MS
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds * 1000 <= TTL_MS_MAX:
        raise UsageError(
            f"ttl is {seconds!r}: expected a number of seconds above 0, at most {TTL_MS_MAX // 1000}, math.inf or None"
        )
    return math.ceil(seconds * 1000)


def time_left(seconds: float | None, now: Callable[[], float]) -> Callable[[], float | None]:
    """What is left of a time that begins `now`, for each of the calls that share it; None: each has its own."""
    if seconds is None:
        return lambda: None
    until = now() + check_seconds("timeout", seconds)
    return lambda: max(1e-3, until - now())
