"""Which segments may go. A pure rule, so that it can be read, and tested, without a disk.

A segment may go when the store holds all of it (the last checkpoint), no transaction in doubt begins in it, and nobody
has pinned it. It does go, the oldest first, only as far as the log is larger than its cap, less what is kept free for
pinned segments, or as its last record is older than it need be: what is kept serves history. Age takes nothing that is
pinned. The cap is hard for pins: where they alone hold the log above it, they give
way, and their users fall back to a full transfer. It is never taken from the checkpoint or a transaction in doubt; then
the cap waits for the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal.segment import SegmentInfo


class Trim(msgspec.Struct, frozen=True):
    """The `count` oldest segments may go, so that the log begins at `first_lsn`; these pins gave way."""

    count: int
    first_lsn: int
    gave_way: tuple[str, ...]


def plan(
    sealed: Sequence[SegmentInfo],
    *,
    bytes_now: int,
    bytes_max: int,
    pin_bytes: int,
    older_than_ms: int,
    checkpoint_lsn: int,
    pins: Mapping[str, int],
) -> Trim | None:
    """What may go of the sealed segments, given from the oldest on; None if nothing needs to, or may.

    The store holds everything up to `checkpoint_lsn`, and with it what is in doubt; a pin needs the log from its LSN on.
    `pin_bytes` of `bytes_max` are for pinned segments alone. What was written before `older_than_ms` goes although there
    is room for it.
    """
    pinned_from = min(pins.values(), default=None)
    count = 0
    while count < len(sealed) and sealed[count].last_lsn <= checkpoint_lsn:
        pinned = pinned_from is not None and sealed[count].last_lsn >= pinned_from
        old = not pinned and sealed[count].last_time_ms < older_than_ms
        if not old and bytes_now <= (bytes_max if pinned else bytes_max - pin_bytes):
            break
        bytes_now -= sealed[count].bytes
        count += 1
    if not count:
        return None
    first_lsn = sealed[count - 1].last_lsn + 1
    return Trim(count, first_lsn, tuple(sorted(token for token, lsn in pins.items() if lsn < first_lsn)))
