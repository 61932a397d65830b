"""A segment as a file: its header, its blocks decoded, and, when it is sealed, its trailer and its index.

The index of a sealed segment is a convenience: where its footer is damaged it is rebuilt from the blocks, which say the
same. Blocks are never taken on trust: what does not verify is `LogDamaged`, with the place and what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from wal.checksum import Checksum, crc32c
from wal.codec import (
    BLOCK_HEADER_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    FormatError,
    NewerFormat,
    SegmentHeader,
    Trailer,
    decode_body,
    decode_header,
    decode_trailer,
)
from wal.errors import Finding, Kind, LogDamaged, LogTooNew
from wal.ids import Fragment
from wal.index import SegmentIndex
from wal.index_codec import decode_index
from wal.noting import NOTHING, Noted, note
from wal.records import Record
from wal.scan import RawBlock, Readable, Scan
from wal.segment import Block, SegmentBuilder, SegmentInfo, file_name, segment_name


class Sealed(NamedTuple):
    """A segment that is complete. `trailer` was read, or found out: then it tells of no index.

    `archived` is the size of its archive, 0 if it is none.
    """

    header: SegmentHeader
    trailer: Trailer
    archived: int = 0

    @property
    def whole(self) -> bool:
        """Whether it has its index, too."""
        return self.trailer.index_bytes > 0

    @property
    def name(self) -> str:
        """Its file."""
        return file_name(self.header.first_lsn, self.archived)

    @property
    def last_lsn(self) -> int:
        """Its last record."""
        return self.trailer.last_lsn

    def info(self) -> SegmentInfo:
        """What to tell about it."""
        return SegmentInfo(
            name=self.name,
            first_lsn=self.header.first_lsn,
            last_lsn=self.trailer.last_lsn,
            bytes=self.archived or self.header.capacity,
            sealed=True,
            first_time_ms=self.trailer.first_time_ms,
            last_time_ms=self.trailer.last_time_ms,
            archived=self.archived > 0,
        )


def read_header(file: Readable, checksum: Checksum = crc32c) -> SegmentHeader:
    """A segment's header, or FormatError."""
    return decode_header(file.read(0, HEADER_BYTES), checksum)


def wrong_size(file: Readable, header: SegmentHeader) -> str:
    """What is wrong with the size of a segment's file; empty if nothing is.

    A segment is made, filled and synced in its full size before it is used, so no crash shortens one: a partial copy or
    a sick file system does, and what was behind its end may have been promised. A longer one was never ours.
    """
    size = file.size()
    return f"the file has {size} bytes: expected the {header.capacity} that it was made with" * (size != header.capacity)


def read_trailer(file: Readable, header: SegmentHeader, checksum: Checksum = crc32c) -> Trailer:
    """A segment's trailer; NothingHere if it is not sealed, FormatError if it cannot be read."""
    data = file.read(header.capacity - TRAILER_BYTES, TRAILER_BYTES)
    return decode_trailer(data, header, header.capacity, checksum)


def read_index(
    file: Readable, sealed: Sealed, checksum: Checksum = crc32c, only: Collection[Fragment] | None = None
) -> SegmentIndex:
    """The index in the footer, or the part of it that is about `only` these; or FormatError."""
    size = sealed.trailer.index_bytes
    at = sealed.header.capacity - TRAILER_BYTES - size
    return decode_index(file.read(at, size), sealed.trailer, checksum, only)


def load_index(file: Readable, sealed: Sealed) -> SegmentIndex:
    """A sealed segment's index, from its footer or else from its blocks; LogDamaged if neither serves."""
    if sealed.whole:
        try:
            return read_index(file, sealed)
        except FormatError:
            pass  # `verify` reports it; the blocks say the same
    builder, scan = rebuild(file, sealed.header, sealed.trailer.end)
    if scan.offset != sealed.trailer.end:
        raise LogDamaged(broken(scan, sealed.name, f"the records up to LSN {sealed.last_lsn}"))
    return builder.index


def rebuild(file: Readable, header: SegmentHeader, limit: int) -> tuple[SegmentBuilder, Scan]:
    """The state of a segment from its blocks, up to the first that does not verify, and the scan that stopped there."""
    builder = SegmentBuilder(header)
    scan = Scan(file, header, limit=limit)
    for raw in scan:
        builder.add(raw.header, noted_in(raw, decode(raw, builder.name).records))
    if scan.newer is not None:
        raise LogTooNew(newer(scan.newer, builder.name, scan.offset, scan.lsn))
    return builder, scan


def read_blocks(file: Readable, header: SegmentHeader, end: int, from_lsn: int) -> Iterator[Block]:
    """The blocks from `from_lsn` to the offset `end`, which must all be whole; a block is cut where `from_lsn` is."""
    name = segment_name(header.first_lsn)
    scan = Scan(file, header, limit=end)
    for raw in scan:
        if raw.header.last_lsn >= from_lsn and raw.header.records:
            yield after(decode(raw, name), from_lsn)
    if scan.newer is not None:
        raise LogTooNew(newer(scan.newer, name, scan.offset, scan.lsn))
    if scan.offset != end:
        raise LogDamaged(broken(scan, name, f"the records from LSN {scan.lsn} to the end of the segment"))


def decode(raw: RawBlock, name: str) -> Block:
    """A block that verified, with its records; LogTooNew if they cannot be decoded."""
    header = raw.header
    try:
        records = decode_body(header, raw.data)
    except NewerFormat as error:
        raise LogTooNew(newer(error, name, raw.offset, header.first_lsn)) from error
    return Block(
        header.first_lsn, header.time_ms, records, name, offset=raw.offset, bytes=len(raw.data), body=header.length
    )


def noted_in(raw: RawBlock, records: Sequence[Record]) -> Noted:
    """What index and summary want to know of a block, whose records these are."""
    body = memoryview(raw.data)[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + raw.header.length]
    return note(records, body) if records else NOTHING


def after(block: Block, lsn: int) -> Block:
    """The part of a block from `lsn` on, which has at least one record."""
    if block.first_lsn >= lsn:
        return block
    assert lsn <= block.last_lsn, f"LSN {lsn} is not in {block.first_lsn} to {block.last_lsn}"
    records = block.records[lsn - block.first_lsn :]
    return Block(lsn, block.time_ms, records, block.segment, offset=block.offset, bytes=block.bytes)


def before(block: Block, lsn: int) -> Block:
    """The part of a block before `lsn`, which has at least one record."""
    if block.last_lsn < lsn:
        return block
    assert block.first_lsn < lsn, f"LSN {lsn - 1} is not in {block.first_lsn} to {block.last_lsn}"
    records = block.records[: lsn - block.first_lsn]
    return Block(block.first_lsn, block.time_ms, records, block.segment, offset=block.offset, bytes=block.bytes)


def broken(scan: Scan, name: str, cost: str, kind: Kind = "damaged") -> Finding:
    """Where a scan stopped too early, as a finding."""
    what = scan.stop or "zeros where a block should be"
    return Finding(kind=kind, segment=name, offset=scan.offset, lsn=scan.lsn, what=what, cost=cost)


def newer(error: NewerFormat, name: str, offset: int, lsn: int) -> Finding:
    """Bytes that a newer version wrote, as a finding."""
    cost = "nothing, with the version that wrote it"
    return Finding(kind="newer", segment=name, offset=offset, lsn=lsn, what=str(error), cost=cost)
