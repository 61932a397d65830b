"""Which blocks of a segment name a key, told so that whoever looks for one key reads next to nothing else.

A footer is a twentieth of a log of small values, and blocks that speak of a fragment mostly speak of other keys of it. Who
looks for one key needs neither: the *register* is the last thing in a footer, read by itself, with checksums of its own. Of
the segment that is written each entry of the notes ends with one.

```
footer, or an entry of notes
 ... | starts | ... | page | page | ... | where each page begins | end | trailer
                                          u32 each, and the last's end

page   crc u32, then entries of `width` bytes, ascending: the rest of a name's hash, and the ordinal of a block
end    0  bytes before it      u32 |  4  blocks          u32 |  8  mentions      u32 | 12  the first block's offset  u32
      16  crc before that one  u32 | 20  last block at   u32 | 24  starts before u32 | 28  crc of the starts         u32
      32  pages, as a power of two u8 | 33  width u8 | 34  reserved u16 | 36  reserved u32 | 40  crc u32 | 44  magic 4s
```

What is named are keys, with their namespaces; the transactions that are decided or end in a block, as keys of the
namespace that decisions are in; and *mentions*, of fragments to all of which something happens. Of the 32 bits of a hash
the first ones say which page, and as many as there is room for stand in it, so that a name that is not there seldom leads
to a block. The page's crc is over the segment and its number, too, and that of the end over the trailer: a page or a
register that belongs elsewhere is not believed, and whoever does not believe it asks the index instead. It is written
with three or four bytes for each name (`wal.registering`).
"""

from __future__ import annotations

import struct
from array import array
from binascii import crc32
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from wal.checksum import Checksum, crc32c
from wal.codec import (
    HEADER_BYTES,
    TRAILER_BYTES,
    UNDECODABLE,
    FormatError,
    NothingHere,
    SegmentHeader,
    Trailer,
    big_endian,
    decode_trailer,
    native,
)
from wal.ids import Fragment

END_BYTES = 48
MAGIC = b"FSrg"
PAGE_BITS = 7
"""A page has 64 to 128 names, more or less."""
HASH_BITS = 32
NARROW, WIDE = 3, 4
NARROW_BLOCKS = 1 << 14
"""Of so many blocks the ordinals leave enough of three bytes for the hash."""

BYTES_FOR_ONE = 16
"""A register that takes more than one in so many bytes of the blocks is left out: keys and values have a few bytes each."""

_END = struct.Struct(">IIIIIIIIBBHII4s")
_SEED = struct.Struct(">QI")
_AT = struct.Struct(">II")
assert _END.size == END_BYTES

Read: TypeAlias = Callable[[int, int], bytes]
"""(offset, size) -> bytes, fewer only where they end."""
Span: TypeAlias = tuple[int, int]
"""A block, by offsets: from where to where."""


def key_name(namespace: str, key: bytes) -> int:
    """The name of a key; of a transaction, in the namespace of decisions."""
    return crc32(key, crc32(namespace.encode()))


def mention_name(fragment: Fragment) -> int:
    """The name of a fragment to all of which something happens."""
    return crc32(fragment[1].to_bytes(4, "big"), crc32(fragment[0].encode(), 1))


class End(msgspec.Struct, frozen=True, gc=False):
    """What a register ends with, behind `size` bytes; the blocks' offsets stand `starts` bytes before it.

    `first` and `last` are where the first and the last block begin, and `previous_crc` is that of the block before.
    """

    size: int
    blocks: int
    mentions: int
    first: int
    previous_crc: int
    last: int
    starts: int
    starts_crc: int
    pages: int
    width: int

    @property
    def ordinal_bits(self) -> int:
        """How many bits of an entry say which block."""
        return bits_for(self.blocks)

    @property
    def rest_bits(self) -> int:
        """How many bits of an entry are of the hash."""
        return min(HASH_BITS - self.pages, 8 * self.width - self.ordinal_bits)


def bits_for(blocks: int) -> int:
    """How many bits an ordinal takes."""
    return max(1, (blocks - 1).bit_length())


def width_for(blocks: int) -> int:
    """How many bytes an entry takes."""
    return NARROW if blocks <= NARROW_BLOCKS else WIDE


def _size_of(names: int, blocks: int) -> int:
    """With what a page takes beside its entries: an eighth of a byte for each."""
    return (8 * (NARROW if blocks <= NARROW_BLOCKS else WIDE) + 1) * names // 8


def worth_it(names: int, blocks: int, size: int) -> bool:
    """Whether there is a register of so many names in blocks of so many bytes."""
    return BYTES_FOR_ONE * _size_of(names, blocks) <= size


def register_max(names: int, blocks: int, size: int) -> int:
    """What it takes at most, if it is not left out."""
    return min(size // BYTES_FOR_ONE, _size_of(names, blocks)) + END_BYTES + 16


def encode_end(end: End, trailer: Trailer) -> bytes:
    """The end of a register of the blocks before this trailer."""
    packed = _END.pack(*msgspec.structs.astuple(end), 0, 0, 0, MAGIC)
    crc = crc32c(packed[44:], crc32c(packed[:40], crc32c(_SEED.pack(trailer.first_lsn, trailer.last_crc))))
    return b"".join((packed[:40], crc.to_bytes(4, "big"), packed[44:]))


def decode_end(data: bytes, trailer: Trailer, checksum: Checksum = crc32c) -> End:
    """The inverse; NothingHere if these bytes are no end of any register."""
    if len(data) != END_BYTES or data[44:] != MAGIC:
        raise NothingHere("no register ends here")
    *fields, _, _, crc, _ = _END.unpack(data)
    end = End(*fields)
    found = checksum(data[44:], checksum(data[:40], checksum(_SEED.pack(trailer.first_lsn, trailer.last_crc), 0)))
    if crc != found:
        raise FormatError(f"the register's checksum is {crc:08x}, expected {found:08x}")
    if end.width not in (NARROW, WIDE) or end.pages >= HASH_BITS or end.rest_bits < 1:
        raise FormatError(f"a register of {end.blocks} blocks with {end.width} bytes for each name in 2**{end.pages} pages")
    return end


def page_seed(trailer: Trailer, first: int, number: int) -> int:
    """What the checksum of a page begins with."""
    return crc32c(_SEED.pack(trailer.first_lsn, number), first)


class Written:
    """A register that waits for its place: what it says of which page."""

    def __init__(self, end: End, pages: Sequence[array[int]]) -> None:
        self._end = end
        self._pages = pages

    def encode(self, trailer: Trailer) -> bytes:
        """Its bytes, with room for the end, which is `placed` when all that stands before it is."""
        parts: list[bytes] = []
        at, begins = 0, array("I")
        for number, entries in enumerate(self._pages):
            data = _page(entries, self._end.width)
            crc = crc32c(data, page_seed(trailer, self._end.first, number))
            parts += (crc.to_bytes(4, "big"), data)
            begins.append(at)
            at += 4 + len(data)
        begins.append(at)
        return b"".join((*parts, big_endian(begins), bytes(END_BYTES)))

    def placed(self, body: bytes, size: int, starts_at: int, trailer: Trailer) -> bytes:
        """What ends with `size` bytes that this gave, and has the blocks' offsets at `starts_at`: its end is filled in."""
        at = len(body) - END_BYTES
        end = msgspec.structs.replace(self._end, size=size - END_BYTES, starts=at - starts_at)
        return body[:at] + encode_end(end, trailer)


def _page(entries: array[int], width: int) -> bytes:
    """The entries of a page, as they stand in a file."""
    data = big_endian(array("I", sorted(entries)))
    if width == WIDE:
        return data
    narrow = bytearray(NARROW * len(entries))
    for at in range(NARROW):
        narrow[at::NARROW] = data[at + WIDE - NARROW :: WIDE]
    return bytes(narrow)


# Reading.


class Register:
    """The register whose end is at an offset of what is read, before the trailer. Raises FormatError as it is read."""

    def __init__(self, read: Read, at: int, trailer: Trailer, checksum: Checksum = crc32c) -> None:
        self.trailer = trailer
        self.end = decode_end(read(at, END_BYTES), trailer, checksum)
        self._read = read
        self._at = at
        self._checksum = checksum
        self._starts: array[int] | None = None
        self._begins = at - self.end.size
        self._directory = at - 4 * (2**self.end.pages + 1)
        if self._directory < self._begins or min(self._begins, at - self.end.starts) < 0:
            raise FormatError(f"the register has {self.end.size} bytes, at offset {at}")

    def spans(self, names: Iterable[int]) -> list[Span]:
        """The blocks that may name one of these, in their order."""
        ordinals = sorted({ordinal for name in names for ordinal in self._ordinals(name)})
        if not ordinals:
            return []
        starts = self._all_starts()
        if ordinals[-1] >= len(starts):
            raise FormatError(f"the register speaks of block {ordinals[-1]}: the segment has {len(starts)}")
        ends = (starts[one + 1] if one + 1 < len(starts) else self.trailer.end for one in ordinals)
        return list(zip(map(starts.__getitem__, ordinals), ends, strict=True))

    def _ordinals(self, name: int) -> list[int]:
        end = self.end
        entries = self._page(name >> HASH_BITS - end.pages)
        width, bits = end.width, end.ordinal_bits
        low = (name >> HASH_BITS - end.pages - end.rest_bits & (1 << end.rest_bits) - 1) << bits
        high = low + (1 << bits)
        found: list[int] = []
        at = width * bisect_left(range(len(entries) // width), low, key=lambda n: _entry(entries, width * n, width))
        while at < len(entries) and (entry := _entry(entries, at, width)) < high:
            found.append(entry - low)
            at += width
        return found

    def _page(self, number: int) -> bytes:
        """The entries of a page."""
        read = self._read
        begin, end = _AT.unpack(_whole(read(self._directory + 4 * number, 8), 8))
        if not begin + 4 <= end <= self.end.size:
            raise FormatError(f"page {number} of the register is from {begin} to {end} of its {self.end.size} bytes")
        data = _whole(read(self._begins + begin, end - begin), end - begin)
        crc = int.from_bytes(data[:4], "big")
        found = self._checksum(data[4:], page_seed(self.trailer, self.end.first, number))
        if crc != found or (len(data) - 4) % self.end.width:
            raise FormatError(f"the checksum of page {number} of the register is {crc:08x}, expected {found:08x}")
        return data[4:]

    def _all_starts(self) -> array[int]:
        """Where all blocks begin."""
        if self._starts is None:
            data = self._read(self._at - self.end.starts, 4 * self.end.blocks)
            found = self._checksum(data, 0)
            if len(data) != 4 * self.end.blocks or found != self.end.starts_crc:
                raise FormatError(f"the blocks' offsets have the checksum {found:08x}, not {self.end.starts_crc:08x}")
            try:
                self._starts = native("I", data)
            except UNDECODABLE as error:
                raise FormatError(f"the offsets of blocks cannot be read: {error}") from error
        return self._starts


class Registers:
    """All that is told of a segment, or of its first blocks up to `trailer`: some registers, one behind the other."""

    def __init__(self, registers: Sequence[Register]) -> None:
        self._registers = registers

    @property
    def trailer(self) -> Trailer:
        """Up to where they tell."""
        return self._registers[-1].trailer

    def naming(self, names: Iterable[int]) -> list[Span]:
        """The blocks that may name one of these."""
        known = list(names)
        return [span for register in self._registers for span in register.spans(known)]

    def mentioning(self, names: Iterable[int]) -> list[Span]:
        """The same for mentions: mostly there are none."""
        known = list(names)
        return [span for register in self._registers if register.end.mentions for span in register.spans(known)]


def register_of(read: Read, header: SegmentHeader, trailer: Trailer, checksum: Checksum = crc32c) -> Registers | None:
    """What the footer of a sealed segment has; None if it has none. Raises FormatError."""
    if trailer.index_bytes < END_BYTES:
        return None
    try:
        register = Register(read, header.capacity - TRAILER_BYTES - END_BYTES, trailer, checksum)
    except NothingHere:
        return None
    if (register.end.blocks, register.end.first, register.end.previous_crc) != (trailer.blocks, *begins(header)):
        raise FormatError(f"the register is of {register.end.blocks} blocks from offset {register.end.first} on")
    return Registers([register])


def registers_in(
    read: Read, ends: Iterable[int], header: SegmentHeader, checksum: Checksum = crc32c
) -> list[Register] | None:
    """What notes have, whose entries end there, each of which goes on where the one before it ended.

    Without the last if that cannot be read; None if another one cannot, or there are none.
    """
    found: list[Register] = []
    begin, places = begins(header), iter(ends)
    for at in places:
        try:
            if at < END_BYTES + TRAILER_BYTES:
                raise FormatError(f"an entry of the notes ends at offset {at}: it has no register")
            trailer = decode_trailer(read(at - TRAILER_BYTES, TRAILER_BYTES), header, header.capacity, checksum)
            register = Register(read, at - TRAILER_BYTES - END_BYTES, trailer, checksum)
            if (register.end.first, register.end.previous_crc) != begin:
                raise FormatError(f"the register begins at offset {register.end.first}: expected {begin[0]}")
        except FormatError:
            return found if found and next(places, None) is None else None
        begin = trailer.end, trailer.last_crc
        found.append(register)
    return found or None


def begins(header: SegmentHeader) -> tuple[int, int]:
    """Where a segment's first block begins, and to what it chains."""
    return HEADER_BYTES, header.crc


def _entry(entries: bytes, at: int, width: int) -> int:
    return int.from_bytes(entries[at : at + width], "big")


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise FormatError(f"the register ends too early: expected {size} bytes, found {len(data)}")
    return data
