"""What a checkpoint keeps of a node, beside its copies and their rows."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.state.store import Entry
from wal import records as r
from wal.ids import NO_VERSION, Ballot, Version


class NodeImage(msgspec.Struct, frozen=True, array_like=True):
    """The node's own part of a checkpoint. `open` are records of the log that are not applied yet."""

    incarnation: int
    promised: tuple[Version, Ballot]
    accepted: tuple[Version, Ballot, bytes]
    committed: tuple[Version, bytes]
    open: list[r.Record]
    lives: list[tuple[int, int]] = msgspec.field(default_factory=list)
    claimed_at: Version = NO_VERSION
    claims: list[r.Claim] = msgspec.field(default_factory=list)
    trimmed: int = 1


def version_in(get: Callable[[bytes], Entry | None], key: bytes) -> tuple[int, int, bytes | None] | None:
    """What a key has, as an image of its fragment wants to know it."""
    entry = get(key)
    return (entry.epoch, entry.counter, entry.value) if entry is not None else None
