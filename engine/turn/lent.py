"""What whoever drives a node tells it of what it is lent: the room on its disk, and what its peers were not sent."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Room(NamedTuple):
    """What a disk has left for its node, and what the log takes of it at once when it goes on in another file.

    `free_files`: so many files can be made there (inodes); None where the file system has no such limit.
    """

    free_bytes: int
    next_bytes: int
    free_files: int | None = None

    @property
    def low(self) -> bool:
        """Whether the node is to end soon: what it cannot log it cannot do."""
        return self.free_bytes < self.next_bytes or self.free_files == 0


class NotSent(msgspec.Struct):
    """What a peer was not sent, because too much waited for it already."""

    frames: int = 0
    bytes: int = 0
