"""The bytes of an archive: a sealed segment in another order, compressed, with the way back. Format 1; big-endian.

```
 00000000000000001234.walz
+--------+-----------------------------------------+-----+-------+-----+-----------+------+
| header | chunk: frame | frame | ... | its way     | ... | index | map | directory | end  |
+--------+-----------------------------------------+-----+-------+-----+-----------+------+
0       256                                                                       size - 24
```

The header is the segment's own. A *chunk* is what stood in some of its blocks, one after the other, about `CHUNK_BYTES`.
The bytes of their records are cut into *pieces*, a write or a whole record each, and the pieces of one fragment stand
together in *frames* of about `FRAME_BYTES`, each compressed by itself: who wants one fragment reads no other. What is no
piece (block headers, padding, the tags in between) is the chunk's *glue*. The *way* says how glue and pieces take turns,
so that the segment's very bytes come back: to all who read blocks an archive *is* the segment, checksums, chain and LSNs.
The *map* says which frames speak of which fragment, and which counters. Index and trailer are the segment's own footer.

```
frame, before it is compressed          way, MessagePack in one frame         end, 24 bytes
  0  pieces   u32, n                      glue         bytes                    0  bytes of directory  u32
  4  LSNs     n u32, above the chunk's    its parts    u32 each                 4  crc of directory    u32
     lengths  n u32                       frame of the next piece  u32 each     8  format              u16
     kinds    n u8: record, or write                                           10  reserved            u16
     pieces                                                                    12  crc of the rest     u32
                                                                               16  magic               8s
```

Everything read here is untrusted: a checksum is looked at before anything is decompressed, and a size before anything is
allocated. The only errors are `FormatError` and its kinds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from wal.checksum import crc32c
from wal.codec import BLOCK_BYTES_MAX, HEADER_BYTES, TRAILER_BYTES, FormatError, NewerFormat, big_endian, native
from wal.ids import Fragment

if TYPE_CHECKING:
    import zstandard

ARCHIVE_FORMAT = 1
CHUNK_BYTES = 8 << 20
"""What must be in memory to give a part of a segment back. One block that is larger is a chunk by itself."""
FRAME_BYTES = 1 << 10
"""A copy that was away for a moment misses the end of a fragment: the smaller a frame, the less is read in vain."""
SMALL_BYTES = 512
"""Fragments that have less in a chunk share a frame."""
RAW_BYTES_MAX = 2 * BLOCK_BYTES_MAX
ENDING_BYTES = 24
ENDING_MAGIC = b"\x89FSARC\r\n"
RECORD, WRITE = 0, 1
"""Kinds of pieces: a record, or one write of an update or of history."""
Piece: TypeAlias = tuple[int, int, bytes]
"""(LSN, kind, bytes)"""

_ENDING = struct.Struct(">IIHHI8s")
UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, OverflowError)

Read = Callable[[int, int], bytes]
"""(offset, size) -> bytes of the archive, fewer only where it ends."""


class Extent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compressed bytes: where they are, how many, how many they become, and their checksum."""

    at: int
    size: int
    raw: int
    crc: int


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks of the segment from offset `start` to `end`: `frames` of them, from the one numbered `first_frame` on."""

    start: int
    end: int
    first_lsn: int
    first_frame: int
    frames: int
    way: Extent


class Directory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is in an archive. `trailer` are the segment's own last bytes."""

    trailer: bytes
    index: Extent
    map: Extent
    chunks: list[Chunk]


class Spoken(msgspec.Struct, frozen=True):
    """The frames that speak of one fragment, with the lowest and highest counter in each; a high of 0: none of its."""

    frames: array[int]
    lows: array[int]
    highs: array[int]


class Map(msgspec.Struct, frozen=True):
    """All frames, each an `Extent` in four columns, and who is in them. About 4% of a segment of small writes."""

    at: array[int]
    sizes: array[int]
    raws: array[int]
    crcs: array[int]
    fragments: dict[Fragment, Spoken]

    @classmethod
    def empty(cls) -> Map:
        """No frames yet."""
        return cls(array("Q"), array("I"), array("I"), array("I"), {})

    @property
    def count(self) -> int:
        """How many frames there are."""
        return len(self.at)

    def add(self, frame: Extent) -> None:
        """The next frame."""
        self.at.append(frame.at)
        self.sizes.append(frame.size)
        self.raws.append(frame.raw)
        self.crcs.append(frame.crc)

    def frames(self, numbers: range) -> list[Extent]:
        """Frames by their numbers; fewer where there are not so many."""
        part = slice(numbers.start, numbers.stop)
        return list(map(Extent, self.at[part], self.sizes[part], self.raws[part], self.crcs[part]))

    def holding(self, wanted: Mapping[Fragment, tuple[int, int]]) -> list[int]:
        """The frames, in order, that can hold a counter in (above, up_to] of a wanted fragment."""
        found: set[int] = set()
        for fragment, (above, up_to) in wanted.items():
            spoken = self.fragments.get(fragment)
            if spoken is not None:
                found.update(
                    frame
                    for frame, low, high in zip(spoken.frames, spoken.lows, spoken.highs, strict=True)
                    if low <= up_to and high > above
                )
        return sorted(found)


class _Way(msgspec.Struct, frozen=True, array_like=True, gc=False):
    glue: bytes
    parts: bytes  # u32 each: one before each piece, and one behind the last
    frames: bytes  # u32 each: counted from the chunk's first


class _Spoken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    namespace: str
    partition: int
    frames: bytes  # u32 each
    lows: bytes  # u64 each
    highs: bytes  # u64 each


class _Map(msgspec.Struct, frozen=True, array_like=True):
    at: bytes  # u64 each
    sizes: bytes  # u32 each
    raws: bytes  # u32 each
    crcs: bytes  # u32 each
    fragments: list[_Spoken]


_encode = msgspec.msgpack.Encoder().encode
_directory = msgspec.msgpack.Decoder(Directory)
_way = msgspec.msgpack.Decoder(_Way)
_map = msgspec.msgpack.Decoder(_Map)


def encode_frame(first_lsn: int, pieces: Sequence[Piece]) -> bytes:
    """Pieces of a chunk that begins with `first_lsn`, as one frame."""
    lsns = array("I", [lsn - first_lsn for lsn, _, _ in pieces])
    lengths = array("I", [len(piece) for _, _, piece in pieces])
    kinds = bytes([kind for _, kind, _ in pieces])
    head = len(pieces).to_bytes(4, "big"), big_endian(lsns), big_endian(lengths), kinds
    return b"".join((*head, *(piece for _, _, piece in pieces)))


def decode_frame(first_lsn: int, data: bytes) -> list[Piece]:
    """The inverse of `encode_frame`."""
    count = int.from_bytes(data[:4], "big")
    at = 4 + 9 * count
    if len(data) < at:
        raise FormatError(f"a frame of {len(data)} bytes says that it has {count} pieces")
    lsns, lengths = native("I", data[4 : 4 + 4 * count]), native("I", data[4 + 4 * count : 4 + 8 * count])
    if at + sum(lengths) != len(data):
        raise FormatError(f"a frame's pieces have {sum(lengths)} bytes: expected {len(data) - at}")
    found = []
    for lsn, length, kind in zip(lsns, lengths, data[4 + 8 * count : at], strict=True):
        found.append((first_lsn + lsn, kind, data[at : at + length]))
        at += length
    return found


def encode_way(glue: bytes, parts: array[int], frames: array[int]) -> bytes:
    """How glue and pieces take turns: `parts[0]` bytes of glue, a piece of `frames[0]`, `parts[1]` bytes of glue, ..."""
    assert len(parts) == len(frames) + 1, "a chunk begins and ends with glue"
    return _encode(_Way(glue, big_endian(parts), big_endian(frames)))


def weave(way: bytes, frames: Sequence[Iterator[bytes]], size: int) -> bytes:
    """The `size` bytes of a chunk, out of its way and the pieces in its frames."""
    try:
        found = _way.decode(way)
        order, lengths = native("I", found.frames), native("I", found.parts)
    except UNDECODABLE as error:
        raise NewerFormat(f"the checksum is right and the way of a chunk cannot be decoded: {error}") from error
    takers = [frame.__next__ for frame in frames]
    glue, at = found.glue, lengths[0] if lengths else 0
    parts = [glue[:at]]
    try:
        for frame, length in zip(order, lengths[1:], strict=True):
            parts.append(takers[frame]())
            parts.append(glue[at : at + length])
            at += length
    except (StopIteration, IndexError, ValueError) as error:
        raise FormatError(f"a chunk's way does not fit its {len(takers)} frames") from error
    image = b"".join(parts)
    if len(image) != size:
        raise FormatError(f"a chunk gives {len(image)} bytes: expected {size}")
    return image


def encode_map(found: Map) -> bytes:
    """Where all frames are, and who is in them."""
    spoken = [
        _Spoken(name, partition, big_endian(one.frames), big_endian(one.lows), big_endian(one.highs))
        for (name, partition), one in found.fragments.items()
    ]
    columns = big_endian(found.at), big_endian(found.sizes), big_endian(found.raws), big_endian(found.crcs)
    return _encode(_Map(*columns, spoken))


def decode_map(data: bytes) -> Map:
    """The inverse of `encode_map`."""
    try:
        found = _map.decode(data)
        columns = native("Q", found.at), native("I", found.sizes), native("I", found.raws), native("I", found.crcs)
        fragments = {
            (one.namespace, one.partition): Spoken(native("I", one.frames), native("Q", one.lows), native("Q", one.highs))
            for one in found.fragments
        }
    except UNDECODABLE as error:
        raise NewerFormat(f"the checksum is right and an archive's map cannot be decoded: {error}") from error
    count = len(columns[0])
    if any(len(column) != count for column in columns):
        raise FormatError(f"an archive's map has columns of different lengths: {[len(column) for column in columns]}")
    for one in fragments.values():
        if not len(one.frames) == len(one.lows) == len(one.highs) or (any(one.frames) and max(one.frames) >= count):
            raise FormatError(f"an archive's map speaks of other frames than its {count}")
    return Map(*columns, fragments)


def encode_directory(directory: Directory) -> bytes:
    """The directory and the end that an archive ends with."""
    body = _encode(directory)
    packed = _ENDING.pack(len(body), crc32c(body, 0), ARCHIVE_FORMAT, 0, 0, ENDING_MAGIC)
    crc = crc32c(packed[16:], crc32c(packed[:12], 0))
    return b"".join((body, packed[:12], crc.to_bytes(4, "big"), packed[16:]))


def decode_directory(read: Read, size: int) -> Directory:
    """The directory of an archive of `size` bytes."""
    if size < HEADER_BYTES + ENDING_BYTES:
        raise FormatError(f"an archive of {size} bytes: expected a header and an end")
    data = read(size - ENDING_BYTES, ENDING_BYTES)
    if len(data) != ENDING_BYTES:
        raise FormatError(f"expected an end of {ENDING_BYTES} bytes, found {len(data)}")
    length, body_crc, version, _, crc, magic = _ENDING.unpack(data)
    found = crc32c(data[16:], crc32c(data[:12], 0))
    if magic != ENDING_MAGIC or crc != found:
        raise FormatError(f"the archive's end has the magic {magic!r} and the checksum {crc:08x}, expected {found:08x}")
    if version > ARCHIVE_FORMAT:
        raise NewerFormat(f"the archive's format is {version}, the newest that this version reads is {ARCHIVE_FORMAT}")
    room = size - ENDING_BYTES - HEADER_BYTES
    if length > room:
        raise FormatError(f"the archive's directory has {length} bytes: expected at most {room}")
    body = read(size - ENDING_BYTES - length, length)
    if crc32c(body, 0) != body_crc:
        raise FormatError("the archive's directory does not have its checksum")
    try:
        directory = _directory.decode(body)
    except UNDECODABLE as error:
        raise NewerFormat(f"the checksum is right and the archive's directory cannot be decoded: {error}") from error
    at = HEADER_BYTES
    for chunk in directory.chunks:
        if chunk.start != at or not at < chunk.end <= at + RAW_BYTES_MAX:
            raise FormatError(f"a chunk of the archive is offset {chunk.start} to {chunk.end}: expected it at {at}")
        at = chunk.end
    if len(directory.trailer) != TRAILER_BYTES:
        raise FormatError(f"the archive has a trailer of {len(directory.trailer)} bytes: expected {TRAILER_BYTES}")
    return directory


def pack(compressor: zstandard.ZstdCompressor, data: bytes, at: int) -> tuple[Extent, bytes]:
    """Compress what will stand at offset `at`."""
    packed = compressor.compress(data)
    return Extent(at, len(packed), len(data), crc32c(packed, 0)), packed


def unpack(extent: Extent, packed: bytes) -> bytes:
    """What an extent becomes, or FormatError."""
    import zstandard  # noqa: PLC0415  # most logs have no archive

    if len(packed) != extent.size or crc32c(packed, 0) != extent.crc:
        raise FormatError(f"{extent.size} bytes at offset {extent.at} of the archive do not have their checksum")
    try:
        size = zstandard.frame_content_size(packed)
        if size != extent.raw or size > RAW_BYTES_MAX:
            raise FormatError(f"a frame at offset {extent.at} says that it has {size} bytes: expected {extent.raw}")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=extent.raw)
    except zstandard.ZstdError as error:
        raise FormatError(f"a frame at offset {extent.at} cannot be decompressed: {error}") from error
