"""What the blocks of one segment hold, noted in its index and in its summary: one pass over some blocks at a time.

A log is written one small block after the other, and for a block of one or two records to begin takes as long as to do it.
So blocks are gathered, `GATHERED_BYTES` of them, and whoever wants to know index or summary asks `Notes` for them, which
goes through the rest first. Nearly all blocks have updates only, or history only: of these one pass over their writes makes
all of both.
"""

from __future__ import annotations

from array import array
from binascii import crc32
from collections.abc import Sequence
from typing import NamedTuple

from wal.codec import BlockHeader
from wal.growing import BYTES, HIGH, LOW, WRITES, GrowingIndex, Row, speak
from wal.ids import DECISIONS, NAME_MAX, TX_ID_BYTES, Fragment
from wal.index import SegmentIndex, Touched, touched_by
from wal.parts import RECORDS_MIN, parts_max
from wal.records import History, Record, Update, Write
from wal.register import register_max
from wal.summary import FILTER_BYTES, MASK, SHIFT, YES, Filters, Summary

GATHERED_BYTES = 16 << 10
PUT_OFF_BYTES = 1 << 20
"""A block of so much is not gone through by who writes it."""

_INDEXED_MAX = 12 + 64 + NAME_MAX
_SUMMED_MAX = 32 + 64 + 64 + 24
"""What a fragment with the longest name may bring with it, in an index and in a summary."""


class Noted(NamedTuple):
    """What index and summary want to know of a block.

    Of one that has nothing but updates, or nothing but history, these are `writes`, all of them; of any other `touched`
    says where they are.
    """

    records: Sequence[Record]
    body: bytes | memoryview
    writes: Sequence[Write]
    touched: Touched

    def all_touched(self) -> Touched:
        """What the block says about: O(writes) where it is not known."""
        return touched_by(self.records) if self.writes else self.touched

    def indexed_max(self) -> int:
        """More than it brings to an index, unless a namespace has a longer name than any may have."""
        return 4 + _INDEXED_MAX * (len(self.writes) or len(self.touched))

    def summed_max(self) -> int:
        """More than it brings to a summary."""
        if not self.records:
            return 0
        return FILTER_BYTES + 32 + _SUMMED_MAX * (len(self.writes) or len(self.touched)) + 32 * len(self.records)

    def named(self) -> int:
        """About how many names it brings to a register. Where they do not fit after all, there is none."""
        return len(self.writes) or len(self.records)

    def parted(self) -> int:
        """About what its parts take in a footer. Where they do not fit after all, there are none."""
        if len(self.records) < RECORDS_MIN:
            return 1
        return parts_max(len(self.body)) + 2 * (len(self.writes) or len(self.touched))


NOTHING = Noted((), b"", (), {})


def note(records: Sequence[Record], body: bytes | memoryview) -> Noted:
    """The same, of the records that a block's body has."""
    if set(map(type, records)) in _OF_WRITES:
        return Noted(records, body, [write for record in records for write in record.writes], {})  # type: ignore[union-attr]
    return Noted(records, body, (), touched_by(records))


class Notes:
    """Of the segment that is being written. `summarised`: its footer says the summary too, so there must be room for it."""

    __slots__ = (
        "_bytes",
        "_gathered",
        "_growth",
        "_index",
        "_known",
        "_named",
        "_parted",
        "_size",
        "_summary",
        "_whole",
        "summarised",
    )

    def __init__(self, *, summarised: bool) -> None:
        self.summarised = summarised
        self._index = GrowingIndex()
        self._summary = Summary(self._index)
        self._whole: SegmentIndex | None = None  # the index, if it was asked for since the last block
        self._known: dict[Fragment, Row] = {}  # those of the index whose writes name no transactions but their own
        self._gathered: list[tuple[int, BlockHeader, Noted]] = []
        self._bytes = 0  # of the blocks that were gathered
        self._growth = 0  # what they bring at most
        self._parted = 0  # what the parts of all blocks take, about
        self._named = 0  # how many names they have, about, but for those that the summary counts
        self._size = 0  # of all blocks

    @property
    def index(self) -> SegmentIndex:
        """Where what is, for a reader. O(fragments), where blocks have come since it was asked for."""
        self.go_through()
        if self._whole is None:
            self._whole = self._index.whole()
        return self._whole

    @property
    def growing(self) -> GrowingIndex:
        """The same as it grows."""
        self.go_through()
        return self._index

    @property
    def summary(self) -> Summary:
        """What there is."""
        self.go_through()
        return self._summary

    def so_far(self) -> tuple[GrowingIndex, dict[int, array[int]], Filters]:
        """The index, and of the summary what grows block by block: what concerns partitions, and the filters."""
        return self.growing, self._summary.about, self._summary.filters

    def leave(self, room: int, noted: Noted) -> bool:
        """Whether what they take in a footer fits into so many bytes, once a block like this is added."""
        room -= self._index.bytes_max + self._growth
        if self.summarised:
            room -= self._summary.bytes_max + noted.summed_max() + self._parted + noted.parted()
            names, blocks = (
                self._named + self._summary.keys + noted.named(),
                len(self._index.starts) + len(self._gathered) + 1,
            )
            room -= register_max(names, blocks, self._size + len(noted.body))
        return room >= noted.indexed_max() or room >= self._index.growth(noted.all_touched())

    def add(self, offset: int, header: BlockHeader, noted: Noted) -> None:
        """The next block begins at `offset`. A large one waits to be gone through, for whoever has time, or the next."""
        if self._bytes >= GATHERED_BYTES:
            self.go_through()
        self._gathered.append((offset, header, noted))
        self._growth += noted.indexed_max() + (noted.summed_max() if self.summarised else 0)
        self._parted += noted.parted() if self.summarised else 0
        self._named += noted.named()
        self._size += header.size
        self._bytes += header.size
        if self._bytes >= GATHERED_BYTES and header.length < PUT_OFF_BYTES:
            self.go_through()

    @property
    def waits(self) -> bool:
        """Whether a large block was not gone through yet."""
        return self._bytes >= GATHERED_BYTES

    def go_through(self) -> bool:
        """Note the blocks that were gathered; False if there are none."""
        gathered, self._gathered, self._bytes, self._growth = self._gathered, [], 0, 0
        if not gathered:
            return False
        self._whole = None
        index, summary = self._index, self._summary
        summary.tally.add_blocks([header for _, header, noted in gathered if noted.records])
        counted: dict[type[Record], tuple[int, int]] = {}
        for offset, _, noted in gathered:
            if noted.writes:
                kind = type(noted.records[0])
                records, size = counted.get(kind, (0, 0))
                size += len(noted.body) - _array_head(len(noted.records))
                counted[kind] = records + len(noted.records), size
                self._writes(offset, noted.writes)
                continue
            index.add(offset, noted.touched)
            if noted.records:
                summary.add(len(index.starts) - 1, noted.records, noted.body)
        for kind, (records, size) in counted.items():
            summary.add_kind(kind, records, size)
        return True

    def _writes(self, offset: int, writes: Sequence[Write]) -> None:
        """Note the writes of a block that has nothing else: the innermost loop of who writes a log.

        What `GrowingIndex.count` does for nearly every write, an update of one key, is written out.
        """
        index, known_as = self._index, self._known.get
        ordinal = len(index.starts)
        index.starts.append(offset)
        slots, spoken = self._summary.begin(ordinal), 0
        for write in writes:
            keys, start, at = write.keys, write.start, crc32(write.tx[:TX_ID_BYTES])
            slots[at & MASK] = slots[at >> SHIFT & MASK] = YES
            row = known_as((write.namespace, write.partition))
            if row is None or write.closed or len(keys) != 1 or (value := write.values[0]) is None:
                row, high = self._any(write, ordinal), write.end
            else:
                high = start + 1
                row[WRITES] += 1
                row[BYTES] += len(keys[0]) + len(value)
            if row[-1] != ordinal:
                speak(row, ordinal)
                spoken += 1
            if high > row[HIGH]:
                row[HIGH] = high
            if start < row[LOW]:
                row[LOW] = start + 1
        index.bytes_max += 4 + 12 * spoken
        self._summary.filters.names += len(writes)

    def _any(self, write: Write, ordinal: int) -> Row:
        """Count a write of any kind; the row of its fragment."""
        summary, index = self._summary, self._index
        fragment = index.one_name((write.namespace, write.partition))
        row = index.rows.get(fragment)
        if row is None:
            row = index.begin(fragment, write.start + 1, ordinal)
            index.bytes_max += 12
        summary.count(write)
        if write.namespace == DECISIONS:
            summary.name(write.keys)
        elif fragment not in self._known:
            self._known[fragment] = row
        return row


def _array_head(length: int) -> int:
    """How many bytes stand before the elements of a MessagePack array."""
    return 1 if length < 16 else 3 if length < 1 << 16 else 5


_OF_WRITES = ({Update}, {History})
