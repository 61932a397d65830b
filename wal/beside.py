"""The file beside the segment that is still written: what its footer will say, of the blocks that are durable so far.

```
00000000000000001234.notes: entries, each about the blocks since the one before
 0  length of the body  u32 |  4  crc  u32 |  8  body: MessagePack array, `_Entry`
```

An entry's crc is CRC-32C over the crc of the entry before and the body; before the first stands the crc of the segment's
header. So entries are of this segment, in this order, or nothing. They tell of durable blocks only, and name the last of
them: an entry is believed as long as that block stands in the segment, with the crc that is told, to which all before it
chain. As with a footer, what is not read for it is not verified, and the blocks say the same: where there is no such file,
or it is torn, stale or another's, the segment is read. No log is opened by it. It is never synced by itself, begins anew
when the log is opened, and goes when the segment has its index.

The writer tells of `NOTES_BYTES` at a time, beside whoever appends: what an entry costs to make grows with the fragments,
so that with many of them it waits for more.

The last in an entry is the register of its blocks, with a trailer behind it (`wal.register`), so that who looks for a key
reads nothing else of the notes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from wal.checksum import Checksum, crc32c
from wal.codec import (
    TRAILER_BYTES,
    UNDECODABLE,
    FormatError,
    SegmentHeader,
    Trailer,
    big_endian,
    bytes_head,
    encode_trailer,
    native,
)
from wal.disk import Disk, DiskError, File
from wal.footer import Span, Told, numbers
from wal.ids import COUNTER_MAX, Fragment
from wal.index import FragmentIndex, SegmentIndex
from wal.probe import probe
from wal.register import Register, Registers, Written, registers_in
from wal.scan import Readable, read_block
from wal.segment import SegmentBuilder
from wal.summary import FILTER_BYTES, SUMMARY_FROM_BYTES

if TYPE_CHECKING:
    from wal.registering import Reach

K = TypeVar("K", bound=Hashable)

NOTES = ".notes"
NOTES_BYTES = 4 << 20
BYTES_EACH = 1024
"""So much of the log there is for each fragment that an entry goes through."""
_HEAD_BYTES = 8
_NONE: array[int] = array("I")


def notes_name(first_lsn: int) -> str:
    """`00000000000000001234.notes`."""
    return f"{first_lsn:020d}{NOTES}"


class _Rows(msgspec.Struct, Generic[K], frozen=True, array_like=True):
    """Rows of ordinals that grow: `names` are new, and of all rows so far there are so many more ordinals, u32 each."""

    names: list[K]
    counts: bytes
    ordinals: bytes


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """`last` is where the last block begins. Groups of filters take the place of those from the first one's block on."""

    trailer: Trailer
    last: int
    starts: bytes  # u32 each
    fragments: _Rows[Fragment]
    mentions: _Rows[Fragment]
    about: _Rows[int]
    firsts: bytes  # u32 each
    filters: bytes
    register: bytes = b""


_encoder = msgspec.msgpack.Encoder()


class Notes:
    """Tells of one segment, as it is written. `gather` is called while nothing is added to it, `write` beside that.

    A disk that refuses ends the telling, and nothing else.
    """

    def __init__(self, disk: Disk, live: SegmentBuilder) -> None:
        self._disk = disk
        self._live = live
        self._file: File | None = None
        self._size = 0
        self._crc = live.header.crc
        self._due = NOTES_BYTES if live.notes.summarised else COUNTER_MAX
        self._told_to = 0
        self._waits: _Entry | None = None  # it is not durable yet
        self.named: Reach | None = None
        """Up to where registers tell of the names, None if nowhere."""
        self._blocks = 0
        self._groups = 0
        self._fragments = _Growing[Fragment]()
        self._mentions = _Growing[Fragment]()
        self._about = _Growing[int]()

    @property
    def due(self) -> bool:
        """There is enough to tell of."""
        if self._waits is not None:
            return self._waits.trailer.end <= self._live.synced_to and self._due < COUNTER_MAX
        return self._live.end >= self._due

    @property
    def behind(self) -> bool:
        """It would take a reader longer to read what is not told of than to be told."""
        return self._due < COUNTER_MAX and self._live.end - self._told_to >= SUMMARY_FROM_BYTES

    def gather(self) -> _Entry | None:
        """The next entry, if there is one to write, which has no register yet."""
        live = self._live
        if self._waits is None:
            self._waits, self._told_to = self._told(), live.end
            self._due = live.end + max(NOTES_BYTES, BYTES_EACH * len(live.index.fragments))
        entry = self._waits
        if entry.trailer.end > live.synced_to:
            return None
        self._waits = None
        return entry

    def write(self, entry: _Entry, register: Written | None = None, named: Reach | None = None) -> None:
        """Write an entry behind the others, with their `register` if there is one; names are told up to there."""
        body = _encoded(entry, register)
        self.named = named
        crc = crc32c(body, crc32c(self._crc.to_bytes(4, "big"), 0))
        try:
            if self._file is None:
                name = notes_name(self._live.header.first_lsn)
                self._disk.create(name, 0)
                self._file = self._disk.open(name, write=True)
            self._file.write(self._size, len(body).to_bytes(4, "big") + crc.to_bytes(4, "big") + body)
        except DiskError:
            probe("wal.beside.refused")
            self._due = COUNTER_MAX
            return
        self._size += _HEAD_BYTES + len(body)
        self._crc = crc

    def end(self) -> None:
        """Nothing more is told."""
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """The segment's footer says it all."""
        if self._file is not None:
            with suppress(DiskError):
                self._disk.remove(notes_name(self._live.header.first_lsn))

    def _told(self) -> _Entry:
        """What the segment's blocks say since it was told last."""
        index, about, filters = self._live.notes.so_far()
        assert index.mentions is not None, "an index that is added to tells of everything"
        entry = _Entry(
            self._live.trailer(),
            index.starts[-1],
            big_endian(index.starts[self._blocks :]),
            fragments=self._fragments.more({name: entry.blocks for name, entry in index.fragments.items()}),
            mentions=self._mentions.more(index.mentions),
            about=self._about.more(about),
            firsts=big_endian(filters.firsts[self._groups :]),
            filters=b"".join(filters.all_bits()[self._groups :]),
        )
        self._blocks, self._groups = len(index.starts), max(0, len(filters.firsts) - 1)
        return entry


def _encoded(entry: _Entry, register: Written | None) -> bytes:
    """An entry as it stands in the file."""
    if register is None:
        return _encoder.encode(msgspec.structs.astuple(entry)[:-1])
    trailer = encode_trailer(entry.trailer)
    names = register.encode(entry.trailer)
    body = _encoder.encode(msgspec.structs.replace(entry, register=names + trailer))
    starts_at = 1 + len(_encoder.encode(entry.trailer)) + len(_encoder.encode(entry.last)) + bytes_head(len(entry.starts))
    return register.placed(body[:-TRAILER_BYTES], len(names), starts_at, entry.trailer) + trailer


class _Growing(Generic[K]):
    """Rows that grow, as far as they were told."""

    def __init__(self) -> None:
        self._told: list[int] = []

    def more(self, rows: Mapping[K, array[int]]) -> _Rows[K]:
        """What came to them. O(rows, and what came)."""
        names = list(islice(rows, len(self._told), None))
        self._told += [0] * len(names)
        new = [row[told:] if len(row) > told else _NONE for row, told in zip(rows.values(), self._told, strict=True)]
        self._told = list(map(len, rows.values()))
        counts = array("I", map(len, new))
        return _Rows(names, big_endian(counts), big_endian(array("I", b"".join(new))))


# Reading.


class LiveNotes(Told):
    """What is told of a segment that is still written, up to `trailer.end`.

    `load` gives the entries. Where there are `registers`, which are asked first, they are not needed before.
    """

    def __init__(
        self,
        file: Readable,
        header: SegmentHeader,
        load: Callable[[], Sequence[_Entry]],
        registers: Sequence[Register] | None = None,
    ) -> None:
        self._file = file
        self._load = load
        self._registers = registers
        super().__init__(header, registers[-1].trailer if registers else self._entries[-1].trailer)

    @cached_property
    def _entries(self) -> Sequence[_Entry]:
        """All that is told. From now on it is told up to where this tells of."""
        entries = self._load()
        if not entries:
            raise FormatError("the notes have no entry that can be believed")
        self.trailer = entries[-1].trailer
        return entries

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
            _cut({name: entry.blocks for name, entry in index.fragments.items()}, count)
            == {name: entry.blocks for name, entry in told.fragments.items()}
            and _cut(index.mentions or {}, count) == told.mentions
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
            right = msgspec.msgpack.decode(_encoded(entry, names.written(since)), type=_Entry)
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

    With `registers` the rest is looked at if it is asked for.
    """
    try:
        beside = disk.open(notes_name(header.first_lsn))
        try:
            data = beside.read(0, header.capacity)
        finally:
            beside.close()
    except DiskError:
        return None  # the blocks say the same
    if registers:
        known = registers_in(data, _ends_in(data), header, checksum) or []
        while known and not _stands(file, header, known[-1].end.last, known[-1].trailer):
            known.pop()
        if known:
            return LiveNotes(file, header, lambda: list(islice(_entries_in(data, header.crc, checksum), len(known))), known)
    entries = list(_entries_in(data, header.crc, checksum))
    while entries and not _stands(file, header, entries[-1].last, entries[-1].trailer):
        entries.pop()
    return LiveNotes(file, header, lambda: entries) if entries else None


def _ends_in(data: bytes) -> Iterator[int]:
    """Where the entries end, by what they say themselves."""
    at = 0
    while at + _HEAD_BYTES < len(data):
        at += _HEAD_BYTES + int.from_bytes(data[at : at + 4], "big")
        yield at


def _entries_in(data: bytes, crc: int, checksum: Checksum) -> Iterator[_Entry]:
    at = 0
    while at + _HEAD_BYTES < len(data):
        length, told = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        body = data[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        at += _HEAD_BYTES + length
        crc = checksum(body, checksum(crc.to_bytes(4, "big"), 0))
        if len(body) != length or crc != told:
            return
        try:
            yield msgspec.msgpack.decode(body, type=_Entry)
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


def _rows(parts: Sequence[_Rows[K]], only: Collection[K] | None) -> dict[K, array[int]]:
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
