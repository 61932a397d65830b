"""What the operator has ordered of migrations: whether copies are moved at all, and how many bytes a second of them.

It is in the map, so that all members have the same, and it survives what the map survives. `docs/migrations.md` says what
each order means, and what it leaves alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from wal.ids import NO_VERSION, Version

BYTES_PER_SECOND_MIN = 64 << 10
"""A smaller limit would stop migrations in all but name, and the batch under way for minutes."""
BYTES_PER_SECOND_MAX = 1 << 40


class Paused(StrEnum):
    """What waits for the operator's word."""

    NOTHING = "nothing"
    BALANCE = "balance"  # what would only be better elsewhere; a copy that is missing is made
    ALL = "all"  # every copy that is to be made, whatever for


class Migrations(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What holds for migrations. `since`: the version of the map that said so first; 0.0: nobody has ordered anything.

    `bytes_per_second` is the most that one node supplies to all others together; 0: as fast as it goes. `paused_since` is
    of the map that brought the pause, which another limit leaves as it is.
    """

    since: Version = NO_VERSION
    paused: Paused = Paused.NOTHING
    bytes_per_second: int = 0
    paused_since: Version = NO_VERSION


NOT_ORDERED = Migrations()
"""Copies are moved, as fast as it goes."""


def ordered(before: Migrations, new: Migrations | None, version: Version) -> Migrations:
    """What a map of this version says, which brings what is `new`, if anything."""
    if new is None:
        return before
    paused_since = before.paused_since if new.paused == before.paused else version
    if new.paused is Paused.NOTHING:
        paused_since = NO_VERSION
    return Migrations(version, new.paused, new.bytes_per_second, paused_since)


def as_object(migrations: Migrations) -> dict[str, Any]:
    """It as plain data: what a node says of its map. `since` is what the next order is given on."""
    return {
        "since": str(migrations.since),
        "paused": migrations.paused,
        "paused_since": str(migrations.paused_since),
        "bytes_per_second": migrations.bytes_per_second,
    }
