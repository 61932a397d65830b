"""The log's bytes on disk, and the only module that knows them. Format 1; big-endian, blocks aligned to 8 bytes.

```
segment file, made zero-filled in its full size before it is needed
+--------+-------+-------+-----+ - - - - - - +-----------------+---------+
| header | block | block | ... | zeros       | index           | trailer |
+--------+-------+-------+-----+ - - - - - - +-----------------+---------+
0       256                    ^ end         ^ sealed segments only      ^ capacity

header, 256 bytes                                block, at a multiple of 8
  0  magic                8s                       0  length of the body        u32, never 0
  8  format               u16                      4  crc                       u32
 10  reserved             u16                      8  first LSN                 u64
 12  crc of the rest      u32                     16  records                   u32, 0 in a marker
 16  first LSN            u64                     20  flags                     u32, 0
 24  capacity             u64                     24  time                      u64, ms since 1970
 32  predecessor: last LSN  u64                   32  synced up to offset       u64
 40               end     u64                     40  previous block's crc      u32
 48               last crc  u32                   44  mark "FSbk"               4s
 52  cluster              64s, zero-padded        48  body: MessagePack array of records,
116  node                 64s, zero-padded            zero-padded to 8
180  reserved

trailer, the last 80 bytes of a sealed segment
  0  last LSN  u64 |  8  end  u64 | 16  earliest time  u64 | 24  latest time  u64 | 32  records  u64
 40  blocks    u32 | 44  last crc  u32 | 48  bytes of index  u32 | 52  crc of index  u32
 56  first LSN u64 | 64  format  u16 | 66  reserved  u16 | 68  crc of the rest  u32 | 72  magic  8s
```

A segment is sealed by its trailer. The index is written after that, beside whoever writes the next segment, and with it the
trailer again: until then that says 0 bytes of index.

A block's crc is CRC-32C over the segment's first LSN and all of the block but the crc itself; the previous block's crc
is in it, so that the blocks form a chain that begins with the header's crc. A recycled, swapped or misplaced block is
invalid although its own bytes are whole; a zero-filled one is invalid because no length is 0. `synced up to offset` is
what of this file was known to be durable when the block was written: it tells a tail that a power cut tore from damage
(see `wal.recovery`). A marker is a block without records that says nothing but that. The first 16 bytes of a header,
its size, and the rule of its crc are the same in every format, so that any version can call another one too new.

Everything read here is untrusted: lengths are checked against a bound and against what is there before anything is
allocated, and the only errors are `FormatError` and its kinds.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import chain
from operator import or_
from typing import Any, NamedTuple, TypeVar

import msgspec

from wal.checksum import Checksum, crc32c
from wal.records import KINDS, Record

R = TypeVar("R")

FORMAT = 1
MAGIC = b"\x89FSWAL\r\n"
END_MAGIC = b"\x89FSEND\r\n"
MARK = b"FSbk"
HEADER_BYTES = 256
BLOCK_HEADER_BYTES = 48
TRAILER_BYTES = 80
BLOCK_BYTES_MAX = 256 << 20
CAPACITY_MAX = 2**32 - 8
"""Offsets in an index are 32 bits wide."""

_HEADER = struct.Struct(">8sHHIQQQQI64s64s76x")
_BLOCK = struct.Struct(">IIQIIQQI4s")
_SEED = struct.Struct(">QI")
_TRAILER = struct.Struct(">QQQQQIIIIQHHI8s")
assert (_HEADER.size, _BLOCK.size, _TRAILER.size) == (HEADER_BYTES, BLOCK_HEADER_BYTES, TRAILER_BYTES)
_EMPTY = bytes(BLOCK_HEADER_BYTES)


class FormatError(Exception):
    """Bytes that are not what the format says; the text says what was expected and found."""


class NothingHere(FormatError):
    """Zeros, where something could be."""


class NewerFormat(FormatError):
    """Whole bytes that a newer version wrote."""


class SegmentHeader(NamedTuple):
    """Whose segment it is, where it begins, how large its file was made, and how its predecessor ended.

    The first segment of a log has a predecessor whose LSN, end and crc are 0.
    """

    cluster: str
    node: str
    first_lsn: int
    capacity: int
    previous_lsn: int = 0
    previous_end: int = 0
    previous_crc: int = 0
    crc: int = 0
    """Filled in by `encode_header` and `decode_header`; the first block chains to it."""


class BlockHeader(NamedTuple):
    """What stands before a block's records. `previous_crc` is the chain, `synced_to` what was durable by then."""

    length: int
    crc: int
    first_lsn: int
    records: int
    flags: int
    time_ms: int
    synced_to: int
    previous_crc: int
    mark: bytes = MARK

    @property
    def size(self) -> int:
        """The bytes of the whole block."""
        return block_size(self.length)

    @property
    def last_lsn(self) -> int:
        """Its last record; one less than the first if it has none."""
        return self.first_lsn + self.records - 1


class Trailer(NamedTuple):
    """How a sealed segment ended. The index is the `index_bytes` before it; 0: it was not written yet."""

    last_lsn: int
    end: int
    first_time_ms: int
    last_time_ms: int
    records: int
    blocks: int
    last_crc: int
    index_bytes: int
    index_crc: int
    first_lsn: int


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[Record])
UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError, OverflowError)


def encode_header(header: SegmentHeader) -> bytes:
    """A segment's header; raises ValueError for names that do not fit."""
    cluster, node = header.cluster.encode(), header.node.encode()
    if not (0 < len(cluster) <= 64 and 0 < len(node) <= 64):
        raise ValueError(f"cluster {header.cluster!r} and node {header.node!r} must have 1 to 64 bytes each")
    fields = header.first_lsn, header.capacity, header.previous_lsn, header.previous_end, header.previous_crc
    data = _HEADER.pack(MAGIC, FORMAT, 0, 0, *fields, cluster, node)
    crc = crc32c(data[16:], crc32c(data[:12], 0))
    return data[:12] + crc.to_bytes(4, "big") + data[16:]


def decode_header(data: bytes, checksum: Checksum = crc32c) -> SegmentHeader:
    """The inverse of `encode_header`."""
    if len(data) < HEADER_BYTES:
        raise FormatError(f"expected a header of {HEADER_BYTES} bytes, found {len(data)} bytes")
    if data[:8] != MAGIC:
        raise FormatError(f"expected the magic {MAGIC!r}, found {data[:8]!r}")
    _, version, _, crc, first_lsn, capacity, lsn, end, last_crc, cluster, node = _HEADER.unpack_from(data)
    found = checksum(data[16:HEADER_BYTES], checksum(data[:12], 0))
    if crc != found:
        raise FormatError(f"the header's checksum is {crc:08x}, expected {found:08x}")
    if version > FORMAT:
        raise NewerFormat(f"format {version} is newer than {FORMAT}, the newest that this version reads")
    if not HEADER_BYTES + TRAILER_BYTES <= capacity <= CAPACITY_MAX:
        raise FormatError(f"the header says that the segment has {capacity} bytes: expected at most {CAPACITY_MAX}")
    try:
        names = [name.rstrip(b"\0").decode("ascii") for name in (cluster, node)]
    except UnicodeDecodeError as error:
        raise FormatError(f"the header's names are not ASCII: {error}") from error
    return SegmentHeader(
        names[0], names[1], first_lsn, capacity, previous_lsn=lsn, previous_end=end, previous_crc=last_crc, crc=crc
    )


def block_size(length: int) -> int:
    """The bytes that a block with a body of `length` takes."""
    return BLOCK_HEADER_BYTES + (length + 7 & ~7)


def encode_body(records: Sequence[Record], bytes_max: int = BLOCK_BYTES_MAX) -> bytes:
    """The records as one MessagePack array; raises ValueError if they are too many bytes for one block."""
    body = _encoder.encode(records)
    if len(body) > bytes_max:
        raise ValueError(f"{len(body)} bytes in one block: expected at most {bytes_max}; append them in parts")
    return body


EMPTY_BODY = encode_body([])
"""The body of a marker."""


SUMMED_AT_ONCE = 64 << 10
"""What is summed up is copied before, which is little where it stays in the processor; a large copy is fetched anew."""
LARGE_BODY_BYTES = 64 << 10
"""A body of so much is written as it is: to join it with its header is to copy it."""


def encode_block(segment: int, header: BlockHeader, body: bytes) -> tuple[tuple[bytes, ...], int]:
    """A block of the segment that begins at LSN `segment`, in pieces that follow each other, and its crc.

    `header.crc` is not looked at.
    """
    assert 0 < header.length == len(body)
    packed = _BLOCK.pack(*header)
    padding = bytes(-len(body) & 7)
    crc = crc32c(padding, crc32c(body, crc32c(_SEED.pack(segment, header.length) + packed[8:], 0)))
    head = b"".join((packed[:4], crc.to_bytes(4, "big"), packed[8:]))
    return (head + body + padding,) if len(body) < LARGE_BODY_BYTES else (head, body, padding), crc


def decode_block_header(data: bytes, at: int, room: int) -> BlockHeader:
    """The block header at `at`; `room` is what the file has from there on, so that a length can be believed.

    NothingHere for zeros. What is returned is plausible, and proven by `check_block` only.
    """
    if len(data) - at < BLOCK_HEADER_BYTES or room < BLOCK_HEADER_BYTES:
        if not data[at:].strip(b"\0"):
            raise NothingHere("zeros up to the end of the file")
        raise FormatError(f"expected a block header of {BLOCK_HEADER_BYTES} bytes, found {min(len(data) - at, room)}")
    header = BlockHeader._make(_BLOCK.unpack_from(data, at))
    if header.length == 0 and data[at : at + BLOCK_HEADER_BYTES] == _EMPTY:
        raise NothingHere("zeros")
    if header.mark != MARK:
        raise FormatError(f"expected a block's mark {MARK!r}, found {header.mark!r}")
    if not 0 < header.length <= BLOCK_BYTES_MAX:
        raise FormatError(f"the block's length is {header.length}: expected 1 to {BLOCK_BYTES_MAX}")
    if block_size(header.length) > room:
        raise FormatError(f"the block's length is {header.length}: the file has only {room} bytes left")
    return header


def check_block(segment: int, header: BlockHeader, block: bytes, checksum: Checksum = crc32c) -> None:
    """Raise FormatError unless the crc fits these bytes, as a block of the segment that begins at LSN `segment`."""
    found = checksum(_SEED.pack(segment, header.length), 0)
    for at in range(8, len(block), SUMMED_AT_ONCE):
        found = checksum(block[at : at + SUMMED_AT_ONCE], found)
    if header.crc != found:
        raise FormatError(f"the block's checksum is {header.crc:08x}, expected {found:08x}")
    if header.flags:
        raise NewerFormat(f"the block's flags are {header.flags:#x}, expected 0")


def decode_body(header: BlockHeader, block: bytes) -> list[Record]:
    """The records of a block that was checked. What cannot be decoded then was written so, by another version."""
    return decode_body_as(_records.decode, header, block)


def decode_body_as(decode: Callable[[memoryview], list[R]], header: BlockHeader, block: bytes) -> list[R]:
    """The same, by a decoder that opens less of them."""
    try:
        records = decode(memoryview(block)[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + header.length])
    except UNDECODABLE as error:
        raise NewerFormat(
            f"the checksum is right and the records cannot be decoded ({error}): expected records of this version"
        ) from error
    if len(records) != header.records:
        raise NewerFormat(f"the checksum is right and there are {len(records)} records: expected {header.records}")
    return records


def opening(kinds: Iterable[type[msgspec.Struct]]) -> Callable[[memoryview], list[Any]]:
    """A decoder that opens of records what these kinds have, each by the tag of one of `wal.records`; of others nothing."""
    opened = {kind.__struct_config__.tag: kind for kind in kinds}
    bare = partial(msgspec.defstruct, fields=[], frozen=True, array_like=True, gc=False)
    tags = {str(kind.__struct_config__.tag): kind.__name__ for kind in KINDS}
    union: Any = reduce(or_, (opened.get(tag) or bare(name, tag=tag) for tag, name in tags.items()))
    return msgspec.msgpack.Decoder(list[union]).decode


def encode_trailer(trailer: Trailer) -> bytes:
    """The last bytes of a sealed segment's file."""
    packed = _TRAILER.pack(*trailer, FORMAT, 0, 0, END_MAGIC)
    crc = crc32c(packed[72:], crc32c(packed[:68], 0))
    return b"".join((packed[:68], crc.to_bytes(4, "big"), packed[72:]))


def decode_trailer(data: bytes, header: SegmentHeader, size: int, checksum: Checksum = crc32c) -> Trailer:
    """The trailer of the segment with this header and a file of `size` bytes; NothingHere if it is not sealed."""
    if len(data) != TRAILER_BYTES:
        raise FormatError(f"expected a trailer of {TRAILER_BYTES} bytes, found {len(data)} bytes")
    if not data.strip(b"\0"):
        raise NothingHere("the segment is not sealed")
    *fields, version, _, crc, magic = _TRAILER.unpack(data)
    trailer = Trailer._make(fields)
    found = checksum(data[72:], checksum(data[:68], 0))
    if magic != END_MAGIC or crc != found:
        raise FormatError(f"the trailer's magic is {magic!r} and its checksum {crc:08x}, expected {found:08x}")
    if version > FORMAT:
        raise NewerFormat(f"the trailer's format is {version}, the newest that this version reads is {FORMAT}")
    room = size - TRAILER_BYTES - trailer.index_bytes
    if trailer.first_lsn != header.first_lsn or not HEADER_BYTES <= trailer.end <= room:
        raise FormatError(
            f"the trailer is of a segment that begins at LSN {trailer.first_lsn} and ends at offset {trailer.end}: "
            f"expected LSN {header.first_lsn} and an offset up to {room}"
        )
    return trailer


def bytes_head(length: int) -> int:
    """How many bytes stand before so many in MessagePack."""
    return 2 if length < 1 << 8 else 3 if length < 1 << 16 else 5


def array_of(elements: Iterable[object], count: int) -> msgspec.Raw:
    """A long array of MessagePack, of elements that are encoded as they come: all at once they would take many times what
    they come to, and leave holes between what stays."""
    return _one_by_one(_head(count, 0x90, 0xDC), elements)


def map_of(pairs: Iterable[tuple[object, object]], count: int) -> msgspec.Raw:
    """The same of a map."""
    return _one_by_one(_head(count, 0x80, 0xDE), chain.from_iterable(pairs))


def _one_by_one(head: bytes, values: Iterable[object]) -> msgspec.Raw:
    data = bytearray(head)
    for value in values:
        _encoder.encode_into(value, data, -1)
    return msgspec.Raw(data)


def _head(count: int, short: int, long: int) -> bytes:
    """As the encoder has it: in as few bytes as there can be."""
    if count < 16:
        return bytes((short + count,))
    return bytes((long,)) + count.to_bytes(2, "big") if count < 1 << 16 else bytes((long + 1,)) + count.to_bytes(4, "big")


def big_endian(numbers: "array[int]") -> bytes:
    """Numbers as they stand in a file."""
    if sys.byteorder == "little":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def native(kind: str, data: bytes) -> "array[int]":
    """The numbers again, for `array(kind)`. Raises ValueError."""
    numbers: array[int] = array(kind, data)  # raises ValueError for a length that is no multiple of the item size
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
