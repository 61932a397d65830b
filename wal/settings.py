"""How large a log may become, and in what pieces it is written."""

from __future__ import annotations

import msgspec

from wal.codec import CAPACITY_MAX

SEGMENT_BYTES_MIN = 1024
FIRST_SEGMENT_BYTES = 1 << 20
"""A log begins with a segment of this size, and each is twice the one before, up to the size that is set."""
PIN_FRACTION = 8
"""This part of the cap is kept free for what is pinned, in whole segments."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`segment_bytes` is the size that a segment's file grows to; a block that does not fit gets a larger one of its own.

    `total_bytes` caps all segments together, the prepared one included, and what is older than `age_ms` (0: nothing) need
    not be kept either (see `wal.retention`).
    """

    segment_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    age_ms: int = 0

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= CAPACITY_MAX:
            raise ValueError(f"segment_bytes is {self.segment_bytes}: expected {SEGMENT_BYTES_MIN} to {CAPACITY_MAX} bytes")
        if self.total_bytes < 3 * self.segment_bytes:
            raise ValueError(
                f"total_bytes is {self.total_bytes}: expected at least three segments, {3 * self.segment_bytes} bytes, "
                "for the one that is written, the next, and one of history"
            )

    @property
    def first_bytes(self) -> int:
        """The size of a log's first segment."""
        return min(self.segment_bytes, FIRST_SEGMENT_BYTES)

    @property
    def pin_bytes(self) -> int:
        """How much of the cap only pinned segments may take."""
        return self.total_bytes // PIN_FRACTION // self.segment_bytes * self.segment_bytes
