"""Copies are asked whether this node is primary still, and what they have confirmed is answered: at once as far as the turn
has room, the rest in the next ones.

Very many clients may read in one turn, and the answers to several such turns' questions may come in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from engine.protocol.requests import Request
from engine.turn.core import Core
from engine.turn.events import SessionId
from wal.ids import NodeId
from wal.probe import probe

ANSWERED_AT_ONCE = 500

Then: TypeAlias = tuple[SessionId, Request, Callable[[], None]]
"""What somebody asked, and what is to be done as soon as this node is known to be primary still."""

Which: TypeAlias = tuple[tuple[NodeId, ...], bool]
"""Which copies are asked; and whether by one that answers stale reads, for which a light step counts too."""


class Round:
    """One question to the in-sync copies, and what is to be done when all have answered."""

    __slots__ = ("asked_at", "since", "stale", "then", "waiting")

    def __init__(self, asked: Which, then: list[Then]) -> None:
        copies, self.stale = asked
        self.waiting = dict.fromkeys(copies)
        self.then = then
        self.asked_at = self.since = 0


class Answering:
    """Those of one node that may be answered, and are not yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.left = deque[Then]()

    def put_off(self, confirmed: Sequence[Then]) -> None:
        """Answer these after those that are left: the turn has no room for all of them."""
        probe("read.answered_in_pieces")
        if not self.left:
            self._core.resume(self._go_on)
        self.left.extend(confirmed)

    def give_up(self) -> list[Then]:
        """What is left is not answered."""
        left = list(self.left)
        self.left.clear()
        return left

    def _go_on(self) -> None:
        core, left = self._core, self.left
        some = min(len(left), ANSWERED_AT_ONCE)
        core.work += some
        for _ in range(some):
            _, _, then = left.popleft()
            then()
        if left:
            core.resume(self._go_on)
