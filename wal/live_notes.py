"""What is told of the segment that is still written (`wal.beside`), to who reads the log from outside.

As with a footer, what is not read for it is not verified, and where it cannot be believed the blocks say the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Protocol

import msgspec

from wal.beside import HEAD_BYTES, Entry, K, Rows, encoded, notes_name
from wal.checksum import Checksum, crc32c
from wal.codec import UNDECODABLE, FormatError, SegmentHeader, Trailer, big_endian, native
from wal.disk import DiskError, File
from wal.footer import Span, Told, numbers
from wal.growing import ordinals
from wal.ids import COUNTER_MAX, Fragment
from wal.index import FragmentIndex, SegmentIndex
from wal.register import Read, Register, Registers, registers_in
from wal.scan import Readable, read_block
from wal.segment import SegmentBuilder
from wal.summary import FILTER_BYTES


class LiveNotes(Told):
    """What is told of a segment that is still written, up to `trailer.end`.

    `load` gives the entries. Where there are `registers`, which are asked first, they are not needed before; then `close`
    gives back what both are read from.
    """

    def __init__(
        self,
        file: Readable,
        header: SegmentHeader,
        load: Callable[[], Sequence[Entry]],
        registers: Sequence[Register] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._file = file
        self._load = load
        self._registers = registers
        self._close = close
        super().__init__(header, registers[-1].trailer if registers else self._entries[-1].trailer)

    @cached_property
    def _entries(self) -> Sequence[Entry]:
        """All that is told. From now on it is told up to where this tells of."""
        entries = self._load()
        if not entries:
            raise FormatError("the notes have no entry that can be believed")
        self.trailer = entries[-1].trailer
        return entries

    def close(self) -> None:
        """Nobody asks any more for what was not asked for yet."""
        self._close()

    def register(self) -> Registers | None:
        """Which blocks name what, told by itself."""
        return Registers(self._registers) if self._registers else None

    def index(self, only: Collection[Fragment] | None = None, *, parts: bool = False) -> SegmentIndex:
        """The index, but for its counters; notes tell of no parts."""
        index = SegmentIndex()
        index.starts = _ordinals(b"".join(entry.starts for entry in self._entries))
        fragments = _rows([entry.fragments for entry in self._entries], only)
        index.fragments = {name: FragmentIndex(1, COUNTER_MAX, ordinals) for name, ordinals in fragments.items()}
        index.mentions = _rows([entry.mentions for entry in self._entries], only)
        if len(index.starts) != self.trailer.blocks:
            raise FormatError(f"the notes tell of {len(index.starts)} blocks: expected {self.trailer.blocks}")
        return index

    def speaking_of(self, fragments: Collection[Fragment] | Mapping[Fragment, Sequence[int]]) -> list[Span] | None:
        """The blocks that speak of these fragments in any way."""
        return super().speaking_of(list(fragments))

    def _filters(self) -> tuple[bytes, bytes]:
        firsts: list[int] = []
        filters = b""
        for entry in self._entries:
            begin = numbers(entry.firsts)
            while firsts and begin and firsts[-1] >= begin[0]:
                firsts.pop()
            filters = filters[: FILTER_BYTES * len(firsts)] + entry.filters
            firsts += begin
        return big_endian(array("I", firsts)), filters

    def _concerning(self, partitions: Iterable[int]) -> list[int]:
        rows = _rows([entry.about for entry in self._entries], set(partitions))
        return sorted({ordinal for row in rows.values() for ordinal in row})

    def agrees(self, built: SegmentBuilder, *, indexes: bool) -> bool:
        """Whether the blocks say so, which this is made of. `indexes`: it has their index and summary."""
        index, about, filters = built.notes.so_far()
        count = self.trailer.blocks
        if index.starts[:count] != self.index(()).starts or not indexes:
            return index.starts[:count] == self.index(()).starts
        told = self.index()
        firsts, bits = self._filters()
        begin, whole = numbers(firsts), filters.all_bits()
        known = [first for first in filters.firsts if first < count]
        open_at = FILTER_BYTES * max(0, len(known) - 1)
        return (
            _cut({name: ordinals(row) for name, row in index.rows.items()}, count)
            == {name: entry.blocks for name, entry in told.fragments.items()}
            and _cut(index.mentions, count) == told.mentions
            and _cut(about, count) == _rows([entry.about for entry in self._entries], None)
            and begin == known
            and bits[:open_at] == b"".join(whole)[:open_at]
            and all(mine & ~theirs == 0 for mine, theirs in zip(bits[open_at:], whole[len(known) - 1], strict=True))
            and self._registers_agree()
        )

    def _registers_agree(self) -> bool:
        """Whether the blocks say what the registers do, as far as there are some."""
        from wal.registering import RegisterBuilder  # noqa: PLC0415  # who only reads does not wait for it

        names = RegisterBuilder(self.header)
        for entry in self._entries:
            since = names.reach
            names.go_on(self._file, entry.trailer.end)
            right = msgspec.msgpack.decode(encoded(entry, names.written(since)), type=Entry)
            if entry.register and entry != right:
                return False
        return True


def _cut(rows: Mapping[K, array[int]], count: int) -> dict[K, array[int]]:
    """The rows, as they were when there were so many blocks."""
    cut = {name: array("I", (ordinal for ordinal in row if ordinal < count)) for name, row in rows.items()}
    return {name: row for name, row in cut.items() if row}


class Opens(Protocol):
    """The part of a disk that is needed to open a file."""

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        ...


def read_notes(
    disk: Opens, file: Readable, header: SegmentHeader, checksum: Checksum = crc32c, *, registers: bool = True
) -> LiveNotes | None:
    """What is told of this segment and can be believed; None if nothing is.

    With `registers` the rest is read if it is asked for: close it then.
    """
    try:
        beside = disk.open(notes_name(header.first_lsn))
    except DiskError:
        return None  # the blocks say the same
    found: LiveNotes | None = None
    try:
        read = _reading(beside)
        if registers:
            found = _read_registers(read, beside, file, header, checksum)
        if found is None:
            entries = list(_entries_in(read(0, header.capacity), header.crc, checksum))
            while entries and not _stands(file, header, entries[-1].last, entries[-1].trailer):
                entries.pop()
            return LiveNotes(file, header, lambda: entries) if entries else None
    except FormatError:
        return None
    finally:
        if found is None:
            beside.close()
    return found


def _read_registers(
    read: Read, beside: File, file: Readable, header: SegmentHeader, checksum: Checksum
) -> LiveNotes | None:
    """The same out of registers: what they lead to is mostly all that is read."""
    known = registers_in(read, _ends_in(read, beside.size()), header, checksum) or []
    while known and not _stands(file, header, known[-1].end.last, known[-1].trailer):
        known.pop()
    if not known:
        return None

    def load() -> list[Entry]:
        return list(islice(_entries_in(read(0, header.capacity), header.crc, checksum), len(known)))

    return LiveNotes(file, header, load, known, beside.close)


def _reading(beside: File) -> Read:
    """To read of notes; what cannot be read is not told."""

    def read(offset: int, n: int) -> bytes:
        try:
            return beside.read(offset, n)
        except DiskError as error:
            raise FormatError(str(error)) from error

    return read


def _ends_in(read: Read, size: int) -> Iterator[int]:
    """Where the entries end, by what they say themselves."""
    at = 0
    while at + HEAD_BYTES < size:
        at += HEAD_BYTES + int.from_bytes(read(at, 4), "big")
        yield at


def _entries_in(data: bytes, crc: int, checksum: Checksum) -> Iterator[Entry]:
    at = 0
    while at + HEAD_BYTES < len(data):
        length, told = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        body = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        at += HEAD_BYTES + length
        crc = checksum(body, checksum(crc.to_bytes(4, "big"), 0))
        if len(body) != length or crc != told:
            return
        try:
            yield msgspec.msgpack.decode(body, type=Entry)
        except UNDECODABLE:
            return  # a newer version's: the blocks say the same


def _stands(file: Readable, header: SegmentHeader, at: int, trailer: Trailer) -> bool:
    """Whether the last block that is told of is where it was."""
    try:
        last = read_block(file, header, at)
    except FormatError:
        return False
    ends = last.offset + len(last.data), last.header.last_lsn, last.header.crc
    return trailer.first_lsn == header.first_lsn and ends == (trailer.end, trailer.last_lsn, trailer.last_crc)


def _rows(parts: Sequence[Rows[K]], only: Collection[K] | None) -> dict[K, array[int]]:
    """The rows that were told part by part, or `only` these."""
    found: dict[K, array[int]] = {}
    wanted: dict[int, K] = {}
    known = 0
    for part in parts:
        wanted.update((at, name) for at, name in enumerate(part.names, known) if only is None or name in only)
        known += len(part.names)
        counts, ordinals = _ordinals(part.counts), _ordinals(part.ordinals)
        if len(counts) != known or sum(counts) != len(ordinals):
            raise FormatError(f"the notes tell of {len(counts)} rows with {len(ordinals)} blocks: expected {known} rows")
        begin = done = 0
        for at, name in wanted.items():
            begin += sum(counts[done:at])
            done = at
            if counts[at]:
                found.setdefault(name, array("I")).extend(ordinals[begin : begin + counts[at]])
    return found


def _ordinals(data: bytes) -> array[int]:
    try:
        return native("I", data)
    except UNDECODABLE as error:
        raise FormatError(f"the notes have {len(data)} bytes of ordinals: expected 4 for each") from error
