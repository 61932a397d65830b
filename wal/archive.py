"""Reading archives: to who reads blocks an archive is its segment, byte for byte; history reads only what it asks for.

What `wal.stored.open_segment` gives for an archive is a file of the segment's own bytes. Where an archive is damaged, zeros
stand for what it cannot give back, and `problems` says why: checksums and chain then tell what that costs, as they do for
any block, and what stands in other chunks is read all the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec

from wal.archive_codec import (
    RECORD,
    UNDECODABLE,
    Chunk,
    Directory,
    Extent,
    Map,
    Piece,
    decode_directory,
    decode_frame,
    decode_map,
    unpack,
    weave,
)
from wal.codec import HEADER_BYTES, TRAILER_BYTES, FormatError, NewerFormat, decode_header, decode_trailer
from wal.disk import File
from wal.errors import Finding, Kind
from wal.ids import Fragment
from wal.records import Record, Update, Write
from wal.segment import Archived, archive_name

_record = msgspec.msgpack.Decoder(Record)
_write = msgspec.msgpack.Decoder(Write)
RUN_FRAMES_MAX = 256
"""So many frames are read at a time."""


class ArchiveFile(Archived):
    """The segment in an archive, as a file. What was given back last is kept: one chunk, and the index."""

    def __init__(self, file: File) -> None:
        self.stored = file.size()
        self.problems: list[str] = []
        """What of it cannot be given back, and why."""
        self.newer = False
        """One of the problems is that a newer version wrote it."""
        self._file = file
        self._opened: tuple[int, Directory | None] | None = None  # how large the segment was, and what is here of it
        self._known: Map | None = None
        self._last: tuple[int, bytes] = (-1, b"")
        self._footer: bytes | None = None

    @property
    def directory(self) -> Directory:
        """What is in it, or FormatError."""
        return decode_directory(self._file.read, self.stored)

    @property
    def map(self) -> Map:
        """Who is in which frame, or FormatError."""
        if self._known is None:
            self._known = decode_map(self.unpacked(self.directory.map))
        return self._known

    def packed(self, at: int, size: int) -> bytes:
        """Bytes of the archive itself."""
        return self._file.read(at, size)

    def unpacked(self, extent: Extent) -> bytes:
        """What an extent becomes, or FormatError."""
        return unpack(extent, self._file.read(extent.at, extent.size))

    def read(self, offset: int, n: int) -> bytes:
        """The `n` bytes of the segment at `offset`, fewer only where it ends."""
        if offset + n <= HEADER_BYTES:
            return self._file.read(offset, n)
        capacity, directory = self._open()
        end = min(offset + n, capacity)
        if directory is None or end <= offset:
            return bytes(max(0, end - offset))
        found = bytearray(end - offset)

        def put(at: int, data: bytes) -> None:
            """Lay over what is asked for what stands at an offset of the segment."""
            low, high = max(at, offset), min(at + len(data), end)
            if low < high:
                found[low - offset : high - offset] = data[low - at : high - at]

        put(0, self._file.read(0, HEADER_BYTES) if offset < HEADER_BYTES else b"")
        first = bisect_right(directory.chunks, offset, key=lambda chunk: chunk.end)
        for number in range(first, len(directory.chunks)):
            if directory.chunks[number].start >= end:
                break
            put(directory.chunks[number].start, self._chunk(number, directory.chunks[number]))
        put(capacity - TRAILER_BYTES, directory.trailer)
        index_at = capacity - TRAILER_BYTES - directory.index.raw
        if directory.index.raw and index_at < end and offset < capacity - TRAILER_BYTES:
            put(index_at, self._index(directory.index))
        return bytes(found)

    def size(self) -> int:
        """The size that the segment was made with; the archive's own if its header cannot be read."""
        return self._open()[0]

    def write(self, offset: int, data: bytes) -> None:
        """Nobody writes to an archive."""
        raise AssertionError(f"{len(data)} bytes at {offset} of an archive were to be written: it is read only")

    def sync(self) -> None:
        """An archive is durable before it has its name."""

    def truncate(self, size: int) -> None:
        """Nobody writes to an archive."""
        raise AssertionError(f"an archive was to be truncated to {size}: it is read only")

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()

    def _open(self) -> tuple[int, Directory | None]:
        if self._opened is None:
            try:
                header = decode_header(self._file.read(0, HEADER_BYTES))
            except FormatError:
                return self.stored, None  # whoever reads the header is told
            self._opened = header.capacity, None
            try:
                directory = self.directory
                end = directory.chunks[-1].end if directory.chunks else HEADER_BYTES
                trailer = decode_trailer(directory.trailer, header, header.capacity)
                if (trailer.end, trailer.index_bytes) != (end, directory.index.raw):
                    raise FormatError(f"the archive ends at offset {end}, the segment in it at {trailer.end}")
                self._opened = header.capacity, directory
            except FormatError as error:
                self._note(error)
        return self._opened

    def _index(self, extent: Extent) -> bytes:
        """The segment's own index: where it is damaged it is made again from the blocks, so that it costs nothing."""
        if self._footer is None:
            try:
                self._footer = self.unpacked(extent)
            except FormatError:
                self._footer = bytes(extent.raw)
        return self._footer

    def _chunk(self, number: int, chunk: Chunk) -> bytes:
        if self._last[0] != number:
            try:
                self._last = number, self._woven(chunk)
            except FormatError as error:
                self._note(error)
                self._last = number, bytes(chunk.end - chunk.start)
        return self._last[1]

    def _woven(self, chunk: Chunk) -> bytes:
        frames = self.map.frames(range(chunk.first_frame, chunk.first_frame + chunk.frames))
        if len(frames) != chunk.frames or any(a.at + a.size != b.at for a, b in pairwise(frames)):
            raise FormatError(f"the frames of the chunk at offset {chunk.start} do not stand behind each other")
        data = self._file.read(frames[0].at, sum(frame.size for frame in frames)) if frames else b""
        at, pieces = 0, []
        for frame in frames:
            pieces.append(iter([piece for _, _, piece in decode_frame(0, unpack(frame, data[at : at + frame.size]))]))
            at += frame.size
        return weave(self.unpacked(chunk.way), pieces, chunk.end - chunk.start)

    def _note(self, error: FormatError) -> None:
        self.newer |= isinstance(error, NewerFormat)
        if str(error) not in self.problems:
            self.problems.append(str(error))


class ArchiveView:
    """An archive, as history reads it: the frames that speak of wanted counters, chunk by chunk.

    Frames that cannot be read are reported and left out: their counters will be missed.
    """

    def __init__(self, file: ArchiveFile, lsn: int, known: Map | None = None) -> None:
        self.bytes_read = 0
        self.findings: list[Finding] = []
        self.map = known
        self._file = file
        self._lsn = lsn
        try:
            self.map = known or file.map
        except FormatError as error:
            self._note(error)

    def records(self, wanted: Mapping[Fragment, tuple[int, int]], until_lsn: int) -> Iterator[list[Record]]:
        """The records of each chunk that speak of a wanted fragment, up to `until_lsn`, in the order of the log."""
        try:
            known = self.map
            if known is None:
                return  # that was told
            numbers = known.holding(wanted)
            for chunk in self._file.directory.chunks:
                mine = numbers[
                    bisect_left(numbers, chunk.first_frame) : bisect_left(numbers, chunk.first_frame + chunk.frames)
                ]
                pieces = [piece for run in _runs(mine) for piece in self._read(chunk, known.frames(run))]
                pieces.sort(key=itemgetter(0))
                yield list(_decoded([piece for piece in pieces if piece[0] <= until_lsn]))
        except FormatError as error:
            self._note(error)
        finally:
            self._file.close()

    def _read(self, chunk: Chunk, frames: Sequence[Extent]) -> Iterator[Piece]:
        """The pieces in frames that stand behind each other."""
        at, size = frames[0].at, sum(frame.size for frame in frames)
        data = self._file.packed(at, size)
        self.bytes_read += len(data)
        for frame in frames:
            try:
                yield from decode_frame(chunk.first_lsn, unpack(frame, data[frame.at - at : frame.at - at + frame.size]))
            except FormatError as error:
                self._note(error, frame.at)

    def _note(self, error: FormatError, offset: int = 0) -> None:
        kind: Kind = "newer" if isinstance(error, NewerFormat) else "damaged"
        name, cost = archive_name(self._lsn), "the history of the fragments in it"
        self.findings.append(Finding(kind=kind, segment=name, offset=offset, lsn=0, what=str(error), cost=cost))


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Numbers that follow each other, as ranges."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1 and end - at < RUN_FRAMES_MAX:
            end += 1
        yield range(numbers[at], numbers[end - 1] + 1)
        at = end


def _decoded(pieces: Sequence[Piece]) -> Iterator[Record]:
    """Pieces as records; writes that stood in one or more records come as one update."""
    for kind, run in groupby(pieces, key=itemgetter(1)):
        try:
            if kind == RECORD:
                yield from (_record.decode(piece) for _, _, piece in run)
            else:
                yield Update([_write.decode(piece) for _, _, piece in run])
        except UNDECODABLE as error:
            raise NewerFormat(f"the checksum is right and records of an archive cannot be decoded: {error}") from error
