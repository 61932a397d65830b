"""What the log wants done beside its writer: the next segment's file, and what a segment says of its blocks.

A disk on which the next segment finds no room ends nothing yet: the one that is written has half of its own left. It is
tried again now and then, and the node is `cramped` meanwhile: it begins no checkpoint, for which there would be no room
either, and tells the other members. Where nobody else has all of the data, or those who have room are no majority, nothing
new is written meanwhile (`engine.turn.core.Core.in_the_way`). Else it goes on until the segment is full, and ends before it
has written half of something; the others go on without it. Only a file that was still being made may be tried again: a sync
that failed ends the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.node.node import Node
from rebalance.ports import MS
from wal import DiskFull, Log
from wal.probe import probe

AGAIN_MS = 1_000
"""So long it waits before it tries again."""

T = TypeVar("T")


class Doer(Protocol):
    """The part of `engine.host.duties.Doer` that is needed here."""

    def note(self, text: str) -> None:
        """Tell the operator."""
        ...

    def background(self, name: str, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        """Do `run` beside the turns; then, between two of them, `back` with what it returned or raised."""
        ...


class Preparing:
    """One thing at a time. `ends` says whether nothing is to be begun any more; `fail` ends the node."""

    def __init__(
        self, doer: Doer, node: Node, log: Log, *, ends: Callable[[], bool], fail: Callable[[Exception], None]
    ) -> None:
        self._doer = doer
        self._node = node
        self._log = log
        self._ends = ends
        self._fail = fail
        self._busy = False
        self._now = 0
        self._again_at = 0

    def look(self, now: int) -> None:
        """Begin what the log wants, if there is something. `now` in ns, monotonic."""
        self._now = now
        if self._busy or self._ends():
            return
        if self._node.core.is_cramped and not self._log.wants_next:
            probe("preparing.room_was_taken")  # there was room when the segment was full, before it was looked for again
            self._goes_on()
        if self._log.wants_index:
            self._begin(self._log.write_index, self._back)
        elif self._log.wants_next and now >= self._again_at:
            self._begin(self._log.prepare_next, self._prepared)

    def _begin(self, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        self._busy = True
        self._doer.background("prepare", run, back)

    def _back(self, _: object, error: Exception | None) -> None:
        self._busy = False
        if error is not None:
            self._fail(error)
        self.look(self._now)

    def _prepared(self, _: object, error: Exception | None) -> None:
        core = self._node.core
        if not (isinstance(error, DiskFull) and error.early):
            if core.is_cramped and error is None:
                self._goes_on()
            self._back(None, error)
            return
        self._busy, self._again_at = False, self._now + AGAIN_MS * MS
        if not core.is_cramped:
            probe("preparing.cramped")
            self._node.note_cramped(True)
            self._doer.note(
                f"NO ROOM for the log's next segment of {self._log.next_bytes} bytes ({error}): the node goes on while "
                "this one lasts, and tries again; free some space"
            )

    def _goes_on(self) -> None:
        self._node.note_cramped(False)
        self._doer.note("the disk has room again for the log's next segment: goes on")
