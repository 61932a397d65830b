"""What the log wants done beside its writer: the next segment's file, and what a segment says of its blocks; and a disk
without room, for that or for a checkpoint.

A disk on which the next segment finds no room ends nothing yet: the one that is written has half of its own left. It is
tried again now and then, and the node is `cramped` meanwhile: it begins no checkpoint, for which there would be no room
either, and tells the other members. Where nobody else has all of the data, or those who have room are no majority, nothing
new is written meanwhile (`engine.turn.core.Core.in_the_way`). Else it goes on until the segment is full, and ends before it
has written half of something; the others go on without it. Only a file that was still being made may be tried again: a sync
that failed ends the node.

A checkpoint that finds no room is kept, and written again now and then; the node is `cramped` meanwhile, too. No other one
is begun, so that what comes is kept in memory beside it. Where that is as much as may be (`backlogged`) and others can go
on without this node, it ends: they would wait for it. What it has is in its log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.node.node import Node
from engine.state.store import CheckpointImage
from engine.state.store_errors import StoreFull
from rebalance.ports import MS
from wal import DiskFull, Log
from wal.probe import probe

AGAIN_MS = 1_000
"""So long it waits before it tries again."""
CHECKPOINT_AGAIN_MS_MAX = 4_000
"""So long at most for a checkpoint: twice as long each time, as each writes as much as there is room for."""

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
    """One thing at a time. `ends` says whether nothing is to be begun any more; `fail` ends the node; `write` writes a
    checkpoint, and says `checkpoint_full` if there is no room for it, or `checkpoint_written`."""

    def __init__(
        self,
        doer: Doer,
        node: Node,
        log: Log,
        *,
        ends: Callable[[], bool],
        fail: Callable[[Exception], None],
        write: Callable[[CheckpointImage], None],
    ) -> None:
        self._doer = doer
        self._node = node
        self._log = log
        self._ends = ends
        self._fail = fail
        self._write = write
        self._image: CheckpointImage | None = None  # that found no room, and is to be written again
        self._image_at = 0
        self._image_pause = 0  # ms; 0: the last one found room
        self._log_full = False
        self._busy = False
        self._now = 0
        self._again_at = 0

    def look(self, now: int) -> None:
        """Begin what the log wants, if there is something. `now` in ns, monotonic."""
        self._now = now
        if self._ends():
            return
        if self._image is not None and now >= self._image_at:
            image, self._image = self._image, None
            self._write(image)
        if self._busy:
            return
        if self._log_full and not self._log.wants_next:
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
        if not (isinstance(error, DiskFull) and error.early):
            if self._log_full and error is None:
                self._goes_on()
            self._back(None, error)
            return
        self._busy, self._again_at = False, self._now + AGAIN_MS * MS
        if not self._log_full:
            probe("preparing.cramped")
            self._log_full = True
            self._note_room()
            self._doer.note(
                f"NO ROOM for the log's next segment of {self._log.next_bytes} bytes ({error}): the node goes on while "
                "this one lasts, and tries again"
            )

    def _goes_on(self) -> None:
        self._log_full = False
        self._note_room()
        self._doer.note("the disk has room again for the log's next segment: goes on")

    def _note_room(self) -> None:
        cramped = self._log_full or bool(self._image_pause)
        if cramped is not self._node.core.is_cramped:
            self._node.note_cramped(cramped)

    # A checkpoint.

    @property
    def waits(self) -> bool:
        """A checkpoint was made and waits for room."""
        return self._image is not None

    def checkpoint_full(self, image: CheckpointImage, error: StoreFull, *, ends: bool) -> None:
        """It found no room; nothing of it was written. `ends`: the node is told to end, and does so in good order."""
        core = self._node.core
        if not ends and core.is_backlogged() and core.is_spared():
            probe("preparing.spared")
            self._fail(error)
            return
        first, self._image = not self._image_pause, image
        self._image_pause = min(2 * self._image_pause or AGAIN_MS, CHECKPOINT_AGAIN_MS_MAX)
        self._image_at = self._now + self._image_pause * MS
        if first:
            probe("preparing.no_room_for_a_checkpoint")
            self._note_room()
            self._doer.note(
                f"NO ROOM for a checkpoint of {image.weight} bytes ({error}, or raise what limits "
                "it, as a quota or `ulimit -f`): it is kept in memory and tried again"
            )

    def last_checkpoint(self, error: Exception | None) -> Exception | None:
        """What is wrong with how a node ends: not that its last checkpoint found no room, as what that would hold is in the
        log; of that the operator is told."""
        if not isinstance(error, StoreFull):
            return error
        self._doer.note(f"NO ROOM for a last checkpoint ({error}): nothing is lost, the next start reads more of the log")
        return None

    def checkpoint_written(self) -> None:
        """It is in the store."""
        if self._image_pause:
            self._image_pause = 0
            self._note_room()
            self._doer.note("the disk has room again for a checkpoint: goes on")
