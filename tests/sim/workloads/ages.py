"""How old what any copy answers may be: never older than what somebody had read of its primary so long before."""

from __future__ import annotations

from tests.sim.checkers.history import Stamp
from tests.sim.network import MS
from tests.sim.violation import About, Violation

SLOW_CLOCKS = 1.25
"""By more than that no clock is slower than another one."""


class Seen:
    """What was read of registers, and when."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[int, Stamp, int]]] = {}  # by key: when it had been read, its version, its value

    def note(self, key: str, now: int, stamp: Stamp, value: int) -> None:
        """It was read from its primary."""
        self._of.setdefault(key, []).append((now, stamp, value))

    def version_of(self, key: str, value: int) -> Stamp | None:
        """That of a value, if it was read."""
        return next((stamp for _, stamp, held in self._of.get(key, ()) if held == value), None)

    def judge(self, key: str, found: Stamp, asked: int, age_ms: int) -> None:
        """A copy answered so to who `asked` then for what is so old at most. Raises Violation if it is older."""
        before = asked - int(age_ms * MS * SLOW_CLOCKS) - MS
        newest = max((stamp for when, stamp, _ in self._of.get(key, ()) if when < before), default=None)
        if newest is not None and found < newest:
            what = f"{key} at {newest} was read more than {age_ms} ms before it was told at {found}"
            raise Violation("age", what, About(keys=(key.encode(),)))
