"""What of a turn is a promise, and so has to be on disk before any of it is paid.

All that is answered, said to a peer, or begun is one, and all that is logged. Only of a transfer nothing is, for as long as
it goes on: what a copy takes of it counts for nobody before the copy says that it is whole, and credit asks for more and
says no more than that. A turn that does nothing else writes its block and goes on; the disk has it with whatever comes next
that is a promise, and a heartbeat is one. So the disk is waited for once for many batches of a transfer, and not for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.turn.effects import Effects
from rebalance.messages import Credit
from wal.records import (
    Accepted,
    Boot,
    Committed,
    EpochStart,
    FragmentClear,
    FragmentReady,
    History,
    Preload,
    Promised,
    Record,
    Results,
)

CONSENSUS = (Promised, Accepted, Committed, Boot, EpochStart)
"""What must be on disk before it is spoken of, whatever durability the data has."""
TAKEN = frozenset((Preload, History, Results, FragmentClear, FragmentReady))
"""What a copy logs of a transfer."""
UNSYNCED_BYTES = 8 << 20
"""No more of that is left to be synced at once, or a turn beside it would wait for very much."""

KEPT_MAX = 10_000
KEPT_BYTES = 64 << 20
"""So many records, and bytes, are not handed to the operating system, where a crash may take what memory holds; and no more
than goes into one block is handed over at once."""


class Kept:
    """Records of whole turns that the operating system was not handed yet, as BACKGROUND and NONE have it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._bytes = 0

    @property
    def is_much(self) -> bool:
        """There are as many as may be."""
        return len(self.records) > KEPT_MAX

    def has_room_for(self, size: int) -> bool:
        """Whether records of so many bytes may be kept, too."""
        return not self.records or self._bytes + size <= KEPT_BYTES

    def add(self, records: Sequence[Record], size: int) -> None:
        """Keep the records of a turn, which are so many bytes."""
        self.records.extend(records)
        self._bytes += size

    def take(self) -> list[Record]:
        """All of them, which are kept no longer."""
        taken, self.records, self._bytes = self.records, [], 0
        return taken


def waits_for_the_disk(effects: Effects) -> bool:
    """Whether anything of a turn rests on the disk: on its own block, or on one before it that is not synced."""
    if effects.reply or effects.tasks:
        return True
    for _, message in effects.send:
        if type(message) is not Credit:
            return True
    return bool(effects.log) and not TAKEN.issuperset(map(type, effects.log))


def sacred(records: Sequence[Record]) -> bool:
    """Whether some of these are what consensus rests on."""
    return any(isinstance(record, CONSENSUS) for record in records)
