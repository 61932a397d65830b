"""The file beside the segment that is still written: what its footer will say, of the blocks that are durable so far.

```
00000000000000001234.notes: entries, each about the blocks since the one before
 0  length of the body  u32 |  4  crc  u32 |  8  body: MessagePack array, `Entry`
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
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from wal.checksum import crc32c
from wal.codec import (
    TRAILER_BYTES,
    Trailer,
    big_endian,
    bytes_head,
    encode_trailer,
)
from wal.disk import Disk, DiskError, File
from wal.growing import ordinals
from wal.ids import COUNTER_MAX, Fragment
from wal.probe import probe
from wal.register import Written
from wal.segment import SegmentBuilder
from wal.summary import SUMMARY_FROM_BYTES

if TYPE_CHECKING:
    from wal.registering import Reach

K = TypeVar("K", bound=Hashable)

NOTES = ".notes"
NOTES_BYTES = 4 << 20
BYTES_EACH = 1024
"""So much of the log there is for each fragment that an entry goes through."""
HEAD_BYTES = 8


def notes_name(first_lsn: int) -> str:
    """`00000000000000001234.notes`."""
    return f"{first_lsn:020d}{NOTES}"


class Rows(msgspec.Struct, Generic[K], frozen=True, array_like=True):
    """Rows of ordinals that grow: `names` are new, and of all rows so far there are so many more ordinals, u32 each."""

    names: list[K]
    counts: bytes
    ordinals: bytes


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """`last` is where the last block begins. Groups of filters take the place of those from the first one's block on."""

    trailer: Trailer
    last: int
    starts: bytes  # u32 each
    fragments: Rows[Fragment]
    mentions: Rows[Fragment]
    about: Rows[int]
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
        self._waits: Entry | None = None  # it is not durable yet
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

    def gather(self) -> Entry | None:
        """The next entry, if there is one to write, which has no register yet."""
        live = self._live
        if self._waits is None:
            self._waits, self._told_to = self._told(), live.end
            self._due = live.end + max(NOTES_BYTES, BYTES_EACH * len(live.notes.growing.rows))
        entry = self._waits
        if entry.trailer.end > live.synced_to:
            return None
        self._waits = None
        return entry

    def write(self, entry: Entry, register: Written | None = None, named: Reach | None = None) -> None:
        """Write an entry behind the others, with their `register` if there is one; names are told up to there."""
        body = encoded(entry, register)
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
        self._size += HEAD_BYTES + len(body)
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

    def _told(self) -> Entry:
        """What the segment's blocks say since it was told last."""
        index, about, filters = self._live.notes.so_far()
        entry = Entry(
            self._live.trailer(),
            index.starts[-1],
            big_endian(index.starts[self._blocks :]),
            fragments=self._fragments.more(index.rows, ordinals),
            mentions=self._mentions.more(index.mentions),
            about=self._about.more(about),
            firsts=big_endian(filters.firsts[self._groups :]),
            filters=b"".join(filters.all_bits()[self._groups :]),
        )
        self._blocks, self._groups = len(index.starts), max(0, len(filters.firsts) - 1)
        return entry


def encoded(entry: Entry, register: Written | None) -> bytes:
    """An entry as it stands in the file."""
    if register is None:
        return _encoder.encode(msgspec.structs.astuple(entry)[:-1])
    trailer = encode_trailer(entry.trailer)
    names = register.encode(entry.trailer)
    body = _encoder.encode(msgspec.structs.replace(entry, register=names + trailer))
    starts_at = 1 + len(_encoder.encode(entry.trailer)) + len(_encoder.encode(entry.last)) + bytes_head(len(entry.starts))
    return register.placed(body[:-TRAILER_BYTES], len(names), starts_at, entry.trailer) + trailer


def _since(row: array[int], told: int) -> array[int]:
    return row[told:]


class _Growing(Generic[K]):
    """Rows that grow, as far as they were told."""

    def __init__(self) -> None:
        self._told: list[int] = []

    def more(self, rows: Mapping[K, array[int]], since: Callable[[array[int], int], array[int]] = _since) -> Rows[K]:
        """What came to them, which is of a row what came `since` it was so long. O(rows, and what came)."""
        names = list(islice(rows, len(self._told), None))
        self._told += [0] * len(names)
        counts, found = array("I"), array("I")
        for row, told in zip(rows.values(), self._told, strict=True):
            known = len(found)
            if len(row) > told:
                found += since(row, told)
            counts.append(len(found) - known)
        self._told = list(map(len, rows.values()))
        return Rows(names, big_endian(counts), big_endian(found))
