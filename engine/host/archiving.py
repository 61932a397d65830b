"""When the next part of making archives is due, and which segments of the log are not archived, and why.

It goes as fast as the setting allows, and beside the turns. Where the disk has no room for an archive it is tried again,
twice as late each time: each attempt takes for a moment what room there is. A segment that cannot be given back byte for
byte is left alone for as long as the node runs.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.node.node import Node
from rebalance.ports import MS
from wal import Log

AGAIN_MS, AGAIN_MS_MAX = 10_000, 15 * 60_000
"""So long it waits before it tries again, at first and at most."""


class Archiving:
    """What `engine.host.duties` asks and tells. `note` tells the operator."""

    def __init__(self, node: Node, log: Log, note: Callable[[str], None]) -> None:
        self._node = node
        self._log = log
        self._note = note
        self._up_to = 0  # up to this LSN the store has everything, and there may be something to archive
        self._at = 0  # when the next part of that is due: ns, monotonic
        self._pause = 0  # ms; 0: the last one found room
        self._told: set[str] = set()

    def may_go_up_to(self, lsn: int) -> None:
        """A checkpoint has everything up to here."""
        self._up_to = lsn

    def due(self, now: int) -> Callable[[], int] | None:
        """The next part, if it is due, to be done beside the turns."""
        if not self._node.core.settings.wal_archive_bytes_per_s or not self._up_to or now < self._at:
            return None
        below = self._up_to + 1
        return lambda: self._log.archive(below)

    def done(self, began: int, worked: int) -> None:
        """A part that began then is done, or was in vain."""
        core, log = self._node.core, self._log
        self._at = began + worked * 1_000 * MS // max(1, core.settings.wal_archive_bytes_per_s)
        if log.no_room:  # or there was none the last time, and the next attempt has begun
            if not worked:
                if not self._pause:
                    self._note(f"NO ROOM for an archive of a segment of the log ({log.no_room}): it is tried again")
                self._pause = min(2 * self._pause or AGAIN_MS, AGAIN_MS_MAX)
                self._at = began + self._pause * MS
        elif self._pause:
            self._pause = 0
            self._note(
                "the disk has room again for archives of the log: goes on"
                if worked
                else "nothing of the log is left to be archived: what found no room was trimmed meanwhile"
            )
        elif not worked:
            self._up_to = 0  # until the next checkpoint
        core.not_archived = log.no_room
        for name in log.left_alone.keys() - self._told:
            self._told.add(name)
            self._note(f"a segment of the log is not archived: {log.left_alone[name]}")
