"""Copies are asked whether this node is primary still, and what they have confirmed is answered: at once as far as the turn
has room, the rest in the next ones.

Very many clients may read in one turn, and the answers to several such turns' questions may come in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from engine.messages import Confirm
from engine.protocol.requests import Get, Request
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.ports import WORK_MAX
from wal.ids import NO_VERSION, NodeId
from wal.probe import probe

NOBODY = -1
"""The session of a question that no client asked."""
ANSWERED_AT_ONCE = 500
MANY_KEYS = 64
"""Who asks for more is answered when the turn has room for that, and not because others are answered."""
KEYS_OF_WORK, PARTITIONS_OF_WORK = 64, 50
"""So many keys, or partitions, that are asked about are as much work as one: they were looked at, and placed."""

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

    def question(self, core: Core, sequence: int) -> Confirm:
        """What the copies are asked."""
        return Confirm(core.fence, sequence, core.version if self.stale else NO_VERSION)


def is_little(request: Request) -> bool:
    """Whether few keys are asked for."""
    return isinstance(request, Get) and len(request.keys) <= MANY_KEYS


class Answering:
    """Those of one node that may be answered, and are not yet."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.left = deque[Then]()
        self._goes_on = False

    def soon(self, session: SessionId, request: Request, then: Callable[[], None]) -> None:
        """Answer somebody in this turn, if it has room, or not much is asked for."""
        if self._core.work < WORK_MAX or is_little(request):
            then()
        else:
            self.put_off([(session, request, then)])

    def put_off(self, confirmed: Sequence[Then]) -> None:
        """Answer these after those that are left: the turn has no room for all of them."""
        probe("read.answered_in_pieces")
        if not self._goes_on:
            self._goes_on = True
            self._core.resume(self._go_on)
        self.left.extend(confirmed)

    def give_up(self) -> list[Then]:
        """What is left is not answered."""
        left = list(self.left)
        self.left.clear()
        return left

    def _go_on(self) -> None:
        core, left, some = self._core, self.left, ANSWERED_AT_ONCE
        while left and some and (core.work < WORK_MAX or some == ANSWERED_AT_ONCE):
            _, _, then = left.popleft()
            core.work, some = core.work + 1, some - 1
            then()
        self._goes_on = bool(left)
        if left:
            core.resume(self._go_on)
