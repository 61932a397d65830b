"""Someone who waits for a set of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.data.holdings import Key, Who
from engine.protocol.requests import Link
from wal.ids import TxId

Ring = Sequence[Link]
"""A circle of transactions that wait for each other, from the one that gives way."""


class Acked(NamedTuple):
    """All in-sync copies of a partition have answered what was said to them at the end of a turn, or later: until they did
    none of them had left the map, and this node was primary."""

    partition: int
    turn: int


class Waiter:
    """Someone who waits for a set of keys, to read (`shared`) or to write; `granted` is called once all are its own.

    `taken` are those that it has got so far: it gives them back if it does not get all, and reads on what it has `raised`
    from reading to writing. `expired` is told what stood in the way, and the circle in which it gives way, if it is in one.
    `who` it is, and since when it waits, is for a person to see. `holding`: it holds other keys already, here or elsewhere.
    """

    __slots__ = (
        "deadline",
        "done",
        "expired",
        "granted",
        "holding",
        "keys",
        "missing",
        "owner",
        "raised",
        "shared",
        "taken",
        "who",
    )

    def __init__(
        self,
        owner: TxId,
        keys: list[Key],
        deadline: int,
        granted: Callable[[], None],
        expired: Callable[[str, Ring], None],
        *,
        shared: bool,
        who: Who | None = None,
        holding: bool = False,
    ) -> None:
        self.owner = owner
        self.who = who
        self.holding = holding
        self.keys = keys
        self.shared = shared
        self.missing: dict[Key, None] = {}  # those in whose lines it stands
        self.taken: list[Key] = []
        self.raised: dict[Key, bool] = {}  # what it read before: whether it may write it by now
        self.deadline = deadline
        self.granted = granted
        self.expired = expired
        self.done = False

    @property
    def presses(self) -> bool:
        """Whether it is to pass those who hold nothing."""
        return self.holding and not self.shared
