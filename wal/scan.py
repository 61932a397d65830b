"""Reading a segment's bytes: blocks in order, up to the first that does not verify, and what may lie behind it.

A `Scan` believes nothing: a block counts when its checksum fits this segment, it chains to the block before, and its
LSN is the next. Where that ends, `stop` says why, and it is for `wal.recovery` and `wal.reader` to judge what it means.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from wal.checksum import Checksum, crc32c
from wal.codec import (
    BLOCK_HEADER_BYTES,
    HEADER_BYTES,
    MARK,
    BlockHeader,
    FormatError,
    NewerFormat,
    NothingHere,
    SegmentHeader,
    block_size,
    check_block,
    decode_block_header,
)

_WINDOW = 1 << 20
_ALONE = 128 << 10
"""A larger block is read by itself: nothing that stands beside it is read twice, and it is not copied out of a window."""
_ZEROS = bytes(_WINDOW)
_MARK_AT = BLOCK_HEADER_BYTES - len(MARK)


class Readable(Protocol):
    """The half of `wal.disk.File` that a reader needs."""

    def read(self, offset: int, n: int) -> bytes:
        """The `n` bytes at `offset`, fewer only where the file ends."""
        ...

    def size(self) -> int:
        """The size now."""
        ...


class RawBlock(NamedTuple):
    """A block that verified: its header and all of its bytes, and the first LSN of the segment that it is in."""

    offset: int
    header: BlockHeader
    data: bytes
    segment: int


class Scan:
    """Iterates over a segment's blocks; between two of them and at the end it says where it stands.

    `offset`, `lsn` and `crc` are the place of the next block, its first LSN and what it has to chain to; a scan can
    begin at a `place` where another one stood. After the last block `stop` is the reason, empty where the log simply
    ends (zeros, or the limit); `newer` is set if the reason is a newer version.
    """

    def __init__(
        self,
        file: Readable,
        header: SegmentHeader,
        *,
        limit: int,
        place: tuple[int, int, int] | None = None,
        checksum: Checksum = crc32c,
    ) -> None:
        self.offset, self.lsn, self.crc = place or (HEADER_BYTES, header.first_lsn, header.crc)
        self.stop = ""
        self.newer: NewerFormat | None = None
        self._file = file
        self._segment = header.first_lsn
        self._limit = limit
        self._checksum = checksum

    def __iter__(self) -> Iterator[RawBlock]:
        base, window, at_once = self.offset, b"", _WINDOW
        while self.offset < self._limit:
            at = self.offset - base
            room = self._limit - self.offset
            if len(window) - at < min(BLOCK_HEADER_BYTES, room):
                base, at = self.offset, 0
                window = self._file.read(base, min(at_once, room))
            try:
                header = decode_block_header(window, at, room)
                size = block_size(header.length)
                if len(window) - at < size:
                    base, at = self.offset, 0
                    at_once = _WINDOW if size <= _ALONE else BLOCK_HEADER_BYTES
                    window = self._file.read(base, min(max(size, at_once), room))
                data = window[at : at + size]
                self._check(header, data)
            except NothingHere:
                return
            except NewerFormat as error:
                self.newer = error
                self.stop = str(error)
                return
            except FormatError as error:
                self.stop = str(error)
                return
            block = RawBlock(self.offset, header, data, self._segment)
            self.offset += size
            self.lsn += header.records
            self.crc = header.crc
            yield block

    def _check(self, header: BlockHeader, data: bytes) -> None:
        if header.previous_crc != self.crc:
            raise FormatError(f"the block chains to {header.previous_crc:08x}: expected {self.crc:08x}")
        if header.first_lsn != self.lsn:
            raise FormatError(f"the block's first LSN is {header.first_lsn}: expected {self.lsn}")
        check_block(self._segment, header, data, self._checksum)


def blocks_in(data: bytes, offset: int, header: SegmentHeader, checksum: Checksum = crc32c) -> Iterator[RawBlock]:
    """The blocks that these bytes are, which stand at `offset`. FormatError where one is none, or does not follow."""
    at, before = 0, None
    while at < len(data):
        found = decode_block_header(data, at, len(data) - at)
        block = data[at : at + block_size(found.length)]
        if before is not None and (found.previous_crc, found.first_lsn) != (before.crc, before.last_lsn + 1):
            raise FormatError(f"the block does not follow the one before, which ends with LSN {before.last_lsn}")
        check_block(header.first_lsn, found, block, checksum)
        yield RawBlock(offset + at, found, block, header.first_lsn)
        at, before = at + len(block), found


def read_block(file: Readable, header: SegmentHeader, offset: int) -> RawBlock:
    """The block at `offset`, by itself; FormatError if there is none."""
    room = header.capacity - offset
    found = decode_block_header(file.read(offset, BLOCK_HEADER_BYTES), 0, room)
    block = file.read(offset, found.size)
    check_block(header.first_lsn, found, block)
    return RawBlock(offset, found, block, header.first_lsn)


def survivors(file: Readable, header: SegmentHeader, *, offset: int, limit: int, lsn: int) -> Iterator[RawBlock]:
    """The blocks of this segment from `offset` on that verify by themselves and are not older than `lsn`.

    A mark in every block header makes them findable at the speed of `bytes.find`. Blocks of another segment, copies of
    older blocks inside users' values, and anything misplaced do not pass.
    """
    data = file.read(offset, limit - offset)
    skip = -offset % 8
    at = data.find(MARK, skip + _MARK_AT)
    while at >= 0:
        start = at - _MARK_AT
        step = 1
        if start % 8 == skip:
            try:
                found = decode_block_header(data, start, len(data) - start)
                block = data[start : start + block_size(found.length)]
                if lsn <= found.first_lsn:
                    check_block(header.first_lsn, found, block)
                    yield RawBlock(offset + start, found, block, header.first_lsn)
                    step = len(block)
            except (FormatError, struct.error):
                pass
        at = data.find(MARK, at + step)


def nonzero_end(file: Readable, offset: int, limit: int) -> int:
    """The end of the last byte in [offset, limit) that is not zero; `offset` if there is none."""
    end = offset
    for start in range(offset, limit, _WINDOW):
        data = file.read(start, min(_WINDOW, limit - start))
        if data != _ZEROS[: len(data)]:
            end = start + len(data.rstrip(b"\0"))
    return end
