"""One segment as a value: its name, how it is written block by block, and what it says about itself when it is full.

Nothing here touches a disk. `SegmentBuilder` is the state of the segment that is being written, and the same state is
rebuilt from its blocks when the log is opened: there is one way to come by it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wal.codec import (
    CAPACITY_MAX,
    HEADER_BYTES,
    TRAILER_BYTES,
    BlockHeader,
    SegmentHeader,
    Trailer,
    block_size,
    encode_block,
)
from wal.footer import encode_summary
from wal.growing import GrowingIndex
from wal.index import SegmentIndex
from wal.index_codec import INDEX_FORMS, encode_footer
from wal.noting import Noted, Notes
from wal.records import Record
from wal.register import Written
from wal.summary import SUMMARY_FROM_BYTES, Summary

PREPARED = "next.segment"
"""The file that becomes the next segment: zero-filled and synced ahead of need."""

_GRAIN = 4096


def segment_name(first_lsn: int) -> str:
    """`00000000000000001234.wal`: sorting names sorts LSNs."""
    return f"{first_lsn:020d}.wal"


def archive_name(first_lsn: int) -> str:
    """`00000000000000001234.walz`: what a segment is called once it is archived."""
    return f"{first_lsn:020d}.walz"


def file_name(first_lsn: int, archived: int) -> str:
    """The one or the other, by the size of its archive."""
    return archive_name(first_lsn) if archived else segment_name(first_lsn)


class Archived:
    """The segment in an archive (`wal.archive.ArchiveFile`), to whoever need not know how it stands there.

    `problems` is what of it cannot be given back, and why; `newer`: one of them is that a newer version wrote it.
    """

    stored: int
    problems: list[str]
    newer: bool


def stored_bytes(file: object) -> int:
    """The size of the archive behind a segment; 0 if it is none."""
    return file.stored if isinstance(file, Archived) else 0


def stored_name(file: object, lsn: int) -> str:
    """The name of the file behind the segment that begins at `lsn`."""
    return file_name(lsn, stored_bytes(file))


def segment_lsn(name: str) -> int | None:
    """The first LSN of the segment with this file name, archived or not; None if it is no segment's name."""
    return int(name[:20]) if name[20:] in (".wal", ".walz") and name[:20].isdecimal() and name.isascii() else None


def segment_lsns(names: Iterable[str]) -> list[int]:
    """The first LSNs of the segments among these files, ascending."""
    return sorted({lsn for lsn in map(segment_lsn, names) if lsn is not None})


class Block(msgspec.Struct, frozen=True):
    """One turn of the node: its records, and where they stand. `bytes` is what the block takes in the file.

    `body` is what its records take, 0 for a part of a block.
    """

    first_lsn: int
    time_ms: int
    records: list[Record]
    segment: str
    offset: int
    bytes: int
    body: int = 0

    @property
    def last_lsn(self) -> int:
        """The LSN of its last record."""
        return self.first_lsn + len(self.records) - 1


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `foreshore wal segments` prints: an empty segment's last LSN is one less than its first, its times are 0."""

    name: str
    first_lsn: int
    last_lsn: int
    bytes: int
    sealed: bool
    first_time_ms: int
    last_time_ms: int
    archived: bool = False


class SegmentBuilder:
    """The segment that is being written: where its next block goes, what it chains to, and what the blocks hold.

    Invariants: blocks are contiguous from the header to `end`; `next_lsn` is one more than the last record; a footer
    with the whole index fits between `end` and the capacity.
    """

    __slots__ = (
        "crc",
        "end",
        "first_time_ms",
        "header",
        "last_time_ms",
        "marked",
        "next_lsn",
        "notes",
        "register",
        "synced_to",
    )

    def __init__(self, header: SegmentHeader) -> None:
        self.header = header
        self.end = HEADER_BYTES
        self.crc = header.crc
        self.next_lsn = header.first_lsn
        self.notes = Notes(summarised=header.capacity >= SUMMARY_FROM_BYTES)
        self.register: Written | None = None
        """What its footer says of the names in its blocks, once all of these were gone through for it."""
        self.first_time_ms = 0
        self.last_time_ms = 0
        self.marked = True
        """The last block is a marker, or there is none: nothing is left to prove."""
        self.synced_to = HEADER_BYTES
        """What of the file is known to be durable: the writer's own knowledge, or what a block's header says of it."""

    @property
    def name(self) -> str:
        """Its file."""
        return segment_name(self.header.first_lsn)

    @property
    def last_lsn(self) -> int:
        """Its last record; one less than its first if it has none."""
        return self.next_lsn - 1

    @property
    def empty(self) -> bool:
        """It has no records."""
        return self.next_lsn == self.header.first_lsn

    @property
    def index(self) -> SegmentIndex:
        """Which of its blocks are about what, for a reader: O(fragments), where blocks have come since."""
        return self.notes.index

    @property
    def summary(self) -> Summary | None:
        """What its footer says of it as a whole; None if it is too small."""
        return self.notes.summary if self.notes.summarised else None

    def fits(self, length: int, noted: Noted) -> bool:
        """Whether a block with a body of `length` fits, and still a footer after it."""
        room = self.header.capacity - TRAILER_BYTES - self.end - block_size(length)
        return self.notes.leave(room, noted) or (self.notes.go_through() and self.notes.leave(room, noted))

    def encode(self, body: bytes, records: int, *, time_ms: int) -> tuple[BlockHeader, tuple[bytes, ...]]:
        """The next block, in pieces to be written from `end` on; `add` it when it was."""
        header = BlockHeader(
            len(body), 0, self.next_lsn, records, flags=0, time_ms=time_ms, synced_to=self.synced_to, previous_crc=self.crc
        )
        pieces, crc = encode_block(self.header.first_lsn, header, body)
        return header._replace(crc=crc), pieces

    def add(self, block: BlockHeader, noted: Noted | None) -> None:
        """The block is written, or was read: what comes next chains to it. None: nobody will ask for index or summary."""
        assert block.previous_crc == self.crc, f"block at {self.end} of {self.name} does not chain to the one before"
        assert block.first_lsn == self.next_lsn, f"block at {self.end} of {self.name} has another LSN"
        time_ms = block.time_ms
        if self.end == HEADER_BYTES:
            self.first_time_ms = self.last_time_ms = time_ms
        elif time_ms > self.last_time_ms:
            self.last_time_ms = time_ms
        elif time_ms < self.first_time_ms:
            self.first_time_ms = time_ms
        if noted is not None:
            self.notes.add(self.end, block, noted)
        self.end += block.size
        self.crc = block.crc
        self.next_lsn += block.records
        self.marked = block.records == 0
        self.synced_to = max(self.synced_to, block.synced_to)
        assert self.synced_to < self.end, f"a block of {self.name} says that more is synced than was written before it"

    def resume(self, trailer: Trailer) -> None:
        """All blocks up to a trailer's end are written, and passed over: nobody will ask for index or summary."""
        self.end, self.crc, self.next_lsn = trailer.end, trailer.last_crc, trailer.last_lsn + 1
        self.first_time_ms, self.last_time_ms = trailer.first_time_ms, trailer.last_time_ms

    def trailer(self) -> Trailer:
        """How it ends, once nothing more is added; the index's size and checksum are for the codec to fill in."""
        header = self.header
        times = self.first_time_ms, self.last_time_ms
        records = self.next_lsn - header.first_lsn
        blocks = len(self.notes.growing.starts)
        return Trailer(
            self.last_lsn,
            self.end,
            *times,
            records=records,
            blocks=blocks,
            last_crc=self.crc,
            index_bytes=0,
            index_crc=0,
            first_lsn=header.first_lsn,
        )

    def footer(self, form: int = 0) -> tuple[Trailer, int, bytes]:
        """(trailer, offset, bytes) of the footer that seals it, in this form or a later one of `INDEX_FORMS`.

        Where a version that wrote less left no room, it is written as that one did.
        """
        summary = encode_summary(self.summary) if self.summary is not None and form < 4 else None
        trailer, footer = encode_footer(self.trailer(), self.index, form, summary, self.register)
        offset = self.header.capacity - len(footer)
        if offset < self.end and form + 1 < INDEX_FORMS:
            return self.footer(form + 1)
        assert offset >= self.end, f"the footer of {self.name} takes {len(footer)} bytes, more than were left for it"
        return trailer, offset, footer

    def info(self) -> SegmentInfo:
        """What to tell about it."""
        return SegmentInfo(
            name=self.name,
            first_lsn=self.header.first_lsn,
            last_lsn=self.last_lsn,
            bytes=self.header.capacity,
            sealed=False,
            first_time_ms=self.first_time_ms,
            last_time_ms=self.last_time_ms,
        )


def next_header(previous: SegmentBuilder, capacity: int) -> SegmentHeader:
    """The header of the segment that follows."""
    before = previous.header
    link = previous.last_lsn, previous.end, previous.crc
    return SegmentHeader(before.cluster, before.node, previous.next_lsn, capacity, *link)


def capacity_for(length: int, noted: Noted, segment_bytes: int) -> int:
    """The size of a segment that begins with a body of `length`: `segment_bytes`, or more if it does not fit."""
    empty = GrowingIndex()
    summary = Summary(empty)
    needed = HEADER_BYTES + block_size(length) + empty.bytes_max + empty.growth(noted.all_touched()) + TRAILER_BYTES
    summed_up = summary.bytes_max + noted.summed_max()
    if max(segment_bytes, needed + summed_up) >= SUMMARY_FROM_BYTES:
        needed += summed_up
    if needed <= segment_bytes:
        return segment_bytes
    capacity = -(-needed // _GRAIN) * _GRAIN
    assert capacity <= CAPACITY_MAX, f"a segment of {capacity} bytes: block and index are bounded far below that"
    return capacity
