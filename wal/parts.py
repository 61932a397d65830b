"""Where in its blocks what is: parts of a block, each of some whole records, which can be read and believed by themselves.

```
block   head | records . . . | . . . | . . | . . .        parts of `PART_BYTES` or a little more, `PARTS_MAX` at most
footer  for each block how many parts, for each part its records, its bytes and its crc;
        for each block with parts that an index names for a fragment, the first and the last that speak of it
```

A block's checksum is the block's. So a part has its own, in the footer, which has a checksum again: CRC-32C over the
block's header, in which the block's own checksum stands and its place in the chain, and then over the part. What fits is
therefore this part of this block, or the footer and the block were made for each other. Where it does not fit the block
is read, and says itself whether it is whole.

A supplier who wants few of many fragments reads little more than these. It takes a microsecond for each record to make, as
long again as writing them, so it is made when a segment is sealed, beside who writes the next one; 10 bytes a part, and 2
for each time that an index names a block. A small segment has none, neither has one that would
spare little by it (`worth_it`), or one of an older version.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from wal.checksum import crc32c
from wal.codec import (
    BLOCK_HEADER_BYTES,
    UNDECODABLE,
    FormatError,
    NewerFormat,
    big_endian,
    decode_body_as,
    native,
    opening,
)
from wal.ids import Fragment
from wal.index import FragmentIndex, Parts, SegmentIndex
from wal.records import Record
from wal.scan import RawBlock

R = TypeVar("R")

PART_BYTES = 256
PARTS_MAX = 250
"""So many there are in a block: their numbers are bytes."""
PART_MAX = 10
"""What a part takes in a footer."""
RECORDS_MIN, RECORDS_MAX = 3, (1 << 16) - 1
"""A block with less records or with more has no parts, and is read whole."""
SPREAD_MAX = 4
"""Where records speak of more fragments than this each, to read one by itself spares little."""
OFTEN_MAX = 4
"""Where a block speaks of a fragment more often than this, most of it lies between the first part and the last that do. So
it is with the few partitions of an embedded engine, whose blocks are large besides."""
_GAP_BYTES_MAX = 128
READ_WHOLE = 4
"""Where more than one part in so many is wanted, whole blocks are read."""

_split: Callable[[memoryview], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_records = msgspec.msgpack.Decoder(list[Record])


class _At(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of which fragment a write is."""

    namespace: str
    partition: int


class _Update(msgspec.Struct, frozen=True, array_like=True, tag="update", gc=False):
    """An `Update`, as far as it is opened here."""

    writes: list[_At]


class _History(msgspec.Struct, frozen=True, array_like=True, tag="history", gc=False):
    writes: list[_At]


class _Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare", gc=False):
    tx: bytes
    partition: int
    epoch: int
    writes: list[_At]


class _Range(msgspec.Struct, frozen=True, array_like=True, gc=False):
    namespace: str


class _Outcome(msgspec.Struct, frozen=True, array_like=True, tag="outcome", gc=False):
    tx: bytes
    partition: int
    epoch: int
    how: bool
    ranges: list[_Range]


class _NoOp(msgspec.Struct, frozen=True, array_like=True, tag="noop", gc=False):
    partition: int
    epoch: int
    ranges: list[_Range]


_leanly = msgspec.msgpack.Decoder(list[_Update]).decode
_any = opening((_Update, _History, _Prepare, _Outcome, _NoOp))
_WRITING, _ENDING = (_Update, _History, _Prepare), (_Outcome, _NoOp)
"""What has counters of fragments: `spans` of `wal.records`."""


class PartsTold(msgspec.Struct, frozen=True, array_like=True):
    """As a footer has them. `runs` are in the order of its fragments."""

    counts: bytes  # u8 for each block
    records: bytes  # u16 for each part
    sizes: bytes  # u32 for each part
    crcs: bytes  # u32 for each part
    runs: list[bytes]  # u8, u8 for each block of a fragment


def parts_max(length: int) -> int:
    """What the parts of a body of this length take in a footer at most, but for what fragments take."""
    return 1 + PART_MAX * (1 + min(PARTS_MAX, length // PART_BYTES))


class PartsBuilder:
    """Goes through all blocks of a segment, in their order, and says it to its index."""

    def __init__(self) -> None:
        self._parts = Parts(bytearray(), array("I", [0]), array("H"), array("I"), array("I"))
        self._runs: dict[str, dict[int, bytes | bytearray]] = {}  # the parts that speak of each, block by block

    def add(self, raw: RawBlock) -> None:
        """The next block. Raises NewerFormat."""
        parts, count = self._parts, raw.header.records
        if RECORDS_MIN <= count <= RECORDS_MAX:
            body = memoryview(raw.data)[BLOCK_HEADER_BYTES : BLOCK_HEADER_BYTES + raw.header.length]
            sizes = list(map(len, _split(body)))
            at, seed = BLOCK_HEADER_BYTES + raw.header.length - sum(sizes), crc32c(raw.data[:BLOCK_HEADER_BYTES])
            (speaking, note), spoken = _speaking(raw), dict[str, dict[int, int]]()
            for number, (first, end, size) in enumerate(_cut(sizes)):
                parts.records.append(end - first)
                parts.sizes.append(size)
                parts.crcs.append(crc32c(raw.data[at : at + size], seed))
                at += size
                note(spoken, number, speaking[first:end])
            self._go_on(spoken)
        parts.parted.append(len(parts.sizes) > parts.firsts[-1])
        parts.firsts.append(len(parts.sizes))

    def _go_on(self, spoken: Mapping[str, Mapping[int, int]]) -> None:
        """The parts of the next block that speak of fragments. Of most one does, in one block: that takes no room here."""
        for namespace, mine in spoken.items():
            runs = self._runs.setdefault(namespace, {})
            for partition, both in mine.items():
                first, last = divmod(both, 256)
                run, more = runs.get(partition), _ONCE[first] if first == last else bytes((first, last))
                if run is None:
                    runs[partition] = more
                elif isinstance(run, bytearray):
                    run += more
                else:
                    runs[partition] = bytearray(run + more)

    def attach(self, index: SegmentIndex) -> bool:
        """Say it to the index of these blocks; False if that is of others."""
        entries = index.fragments
        if len(self._parts.firsts) != len(index.starts) + 1:
            return False
        parted = self._parts.parted
        runs = {name: bytes(self._runs.get(name[0], {}).get(name[1], b"")) for name in entries}
        if any(len(runs[name]) != 2 * _told_of(entry, parted) for name, entry in entries.items()):
            return False
        for name, entry in entries.items():
            entry.runs = runs[name]
        index.parts = self._parts
        return True


def worth_it(index: SegmentIndex, records: int) -> bool:
    """Whether a segment's records are mostly of few fragments, and its blocks of each not often. O(fragments)."""
    told = sum(len(entry.blocks) for entry in index.fragments.values())
    return told <= SPREAD_MAX * records and records <= OFTEN_MAX * told


def check_runs(index: SegmentIndex) -> None:
    """Raise FormatError unless there is a run for each block that has parts and speaks of a fragment."""
    if index.parts is not None:
        if len(index.parts.firsts) != len(index.starts) + 1:
            raise FormatError(f"the index speaks of the parts of other blocks than the {len(index.starts)} of its segment")
        parted = index.parts.parted
        if any(len(entry.runs or b"") != 2 * _told_of(entry, parted) for entry in index.fragments.values()):
            raise FormatError("the index does not tell of the parts of each block that speaks of a fragment")


def _told_of(entry: FragmentIndex, parted: bytearray) -> int:
    """How many of a fragment's blocks have parts."""
    return sum(map(parted.__getitem__, entry.blocks))


def _note(spoken: dict[str, dict[int, int]], number: int, said: Sequence[_Update]) -> None:
    """These records are in this part of a block: the innermost loop. `spoken` has 256 times the first, and the last."""
    for record in said:
        for write in record.writes:
            try:
                mine = spoken[write.namespace]
            except KeyError:
                mine = spoken[write.namespace] = {}
            mine[write.partition] = (mine.get(write.partition, 256 * number) & 0xFF00) + number


def _note_any(spoken: dict[str, dict[int, int]], number: int, said: Sequence[msgspec.Struct]) -> None:
    """The same of records of all kinds: the loop for transactions."""
    first = 256 * number
    for record in said:
        if isinstance(record, _WRITING):
            for write in record.writes:
                partition, mine = write.partition, spoken.get(write.namespace)
                if mine is None:
                    mine = spoken[write.namespace] = {}
                mine[partition] = (mine.get(partition, first) & 0xFF00) + number
        elif isinstance(record, _ENDING):
            partition = record.partition
            for ended in record.ranges:
                mine = spoken.setdefault(ended.namespace, {})
                mine[partition] = (mine.get(partition, first) & 0xFF00) + number


_ONCE = [bytes((number, number)) for number in range(256)]

_Noting: TypeAlias = Callable[[dict[str, dict[int, int]], int, Sequence[Any]], None]


def _speaking(raw: RawBlock) -> tuple[Sequence[msgspec.Struct], _Noting]:
    """Of which fragments each record has counters. Nearly all blocks have updates only, or those of transactions."""
    try:
        return decode_body_as(_leanly, raw.header, raw.data), _note
    except NewerFormat:
        return decode_body_as(_any, raw.header, raw.data), _note_any


def _cut(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Records of these sizes in parts: the first, the end, and the bytes of each."""
    least = max(PART_BYTES, -(-sum(sizes) // PARTS_MAX))
    first = size = 0
    for at, one in enumerate(sizes, 1):
        size += one
        if size >= least:
            yield first, at, size
            first, size = at, 0
    if size:
        yield first, len(sizes), size


def told_parts(index: SegmentIndex) -> PartsTold | None:
    """What an index knows of parts, as a footer has it."""
    parts = index.parts
    if parts is None:
        return None
    counts = bytes(end - first for first, end in pairwise(parts.firsts))
    runs = [entry.runs or b"" for entry in index.fragments.values()]
    return PartsTold(counts, big_endian(parts.records), big_endian(parts.sizes), big_endian(parts.crcs), runs)


def decode_parts(told: PartsTold) -> Parts:
    """The parts again. Raises ValueError."""
    firsts = array("I", accumulate(told.counts, initial=0))
    parted = bytearray(map(bool, told.counts))
    parts = Parts(parted, firsts, native("H", told.records), native("I", told.sizes), native("I", told.crcs))
    if not len(parts.records) == len(parts.sizes) == len(parts.crcs) == firsts[-1]:
        raise ValueError(f"{firsts[-1]} parts in {len(parts.sizes)} sizes and {len(parts.crcs)} checksums")
    return parts


# Reading.


def body_begins(records: int) -> int:
    """Where in a block with so many records the first one stands."""
    return BLOCK_HEADER_BYTES + (1 if records < 16 else 3 if records < 1 << 16 else 5)


Place: TypeAlias = tuple[int, int, int]
"""A part of a block: its number among all of the segment, its offset in the block, and its bytes."""


class Few(NamedTuple):
    """Some parts of a block, in place of all of it: where that begins and ends, its records, its first part, and where they
    are."""

    start: int
    end: int
    records: int
    parts: Parts
    first: int
    places: list[Place]


def near(places: Iterable[Place]) -> Iterator[tuple[int, int, list[Place]]]:
    """What is to be read of a block for some of its parts: from where to where, beginning with its header."""
    begin, end, some = 0, BLOCK_HEADER_BYTES, list[Place]()
    for place in places:
        if place[1] - end > _GAP_BYTES_MAX:
            yield begin, end, some
            begin, some = place[1], []
        some.append(place)
        end = place[1] + place[2]
    yield begin, end, some


def places(parts: Parts, ordinal: int, numbers: Iterable[int]) -> list[Place]:
    """Where in a block some of its parts are. They ascend."""
    first, end = parts.firsts[ordinal], parts.firsts[ordinal + 1]
    at = body_begins(sum(parts.records[first:end]))
    starts = list(accumulate(parts.sizes[first:end], initial=at))
    there = [number for number in sorted(numbers) if number < end - first]
    return [(first + number, starts[number], parts.sizes[first + number]) for number in there]


def pieces(read: Callable[[int, int], bytes], start: int, wanted: Iterable[Place]) -> Iterator[tuple[int, bytes, bytes]]:
    """Some parts of the block that begins at `start`: the number of each, the header of its block, and its bytes."""
    header = b""
    for at, end, some in near(wanted):
        data = read(start + at, end - at)
        header = header or data[:BLOCK_HEADER_BYTES]
        for number, offset, size in some:
            yield number, header, data[offset - at : offset - at + size]


def check_part(parts: Parts, number: int, header: bytes, data: bytes) -> None:
    """Raise FormatError unless these bytes, read by themselves, are the part behind the header of its block."""
    found = crc32c(data, crc32c(header))
    if found != parts.crcs[number]:
        raise FormatError(f"the checksum of a part is {parts.crcs[number]:08x}, expected {found:08x}")


def opened(parts: Parts, number: int, header: bytes, data: bytes) -> list[Record]:
    """The records of a part that was read by itself. Raises FormatError where it cannot be believed."""
    return opened_as(_records.decode, parts, number, header, data)


def opened_as(decode: Callable[[bytes], list[R]], parts: Parts, number: int, header: bytes, data: bytes) -> list[R]:
    """The same, by a decoder that opens less of them."""
    check_part(parts, number, header, data)
    try:
        return decode(b"\xdd" + parts.records[number].to_bytes(4, "big") + data)
    except UNDECODABLE as error:
        raise NewerFormat(f"the checksum is right and the records cannot be decoded ({error})") from error


def holding(index: SegmentIndex, wanted: Mapping[Fragment, tuple[int, int]]) -> dict[int, set[int]] | None:
    """The parts, by blocks, that can hold a counter in (above, up_to] of a wanted fragment.

    None where nothing tells, or so much is wanted that whole blocks are read for less.
    """
    parts = index.parts
    if parts is None:
        return None
    chosen: list[tuple[FragmentIndex, int]] = []
    left = len(parts.sizes) // READ_WHOLE
    for fragment, (above, up_to) in wanted.items():
        entry = index.fragments.get(fragment)
        if entry is not None and entry.low <= up_to and entry.high > above:
            if entry.runs is None:
                return None
            skipped = len(entry.blocks) - len(entry.after(above))
            left -= len(entry.blocks) - skipped
            if left < 0:
                return None
            chosen.append((entry, skipped))
    found: dict[int, set[int]] = {}
    parted = parts.parted
    for entry, skipped in chosen:
        runs = entry.runs or b""
        at = 2 * sum(map(parted.__getitem__, entry.blocks[:skipped]))
        for ordinal in entry.blocks[skipped:]:
            numbers = found.setdefault(ordinal, set())
            if parted[ordinal]:
                numbers.update(range(runs[at], runs[at + 1] + 1))
                at += 2
    return found


def reaching(index: SegmentIndex, counters: Mapping[Fragment, Iterable[int]]) -> dict[int, set[int]] | None:
    """The parts, by blocks, that speak of a fragment in the few blocks that came to one of its counters first.

    None where nothing tells, or so much is wanted that whole blocks are read for less.
    """
    parts = index.parts
    if parts is None:
        return None
    found: dict[int, set[int]] = {}
    parted, left = parts.parted, len(parts.sizes) // READ_WHOLE
    for fragment, some in counters.items():
        entry = index.fragments.get(fragment)
        if entry is None:
            continue
        runs = entry.runs
        if runs is None:
            return None
        for where in dict.fromkeys(map(entry.reached, some)):
            at = 2 * sum(map(parted.__getitem__, entry.blocks[: where.start]))
            for ordinal in entry.blocks[where.start : where.stop]:
                numbers = found.setdefault(ordinal, set())
                if parted[ordinal]:
                    numbers.update(range(runs[at], runs[at + 1] + 1))
                    left -= runs[at + 1] + 1 - runs[at]
                    at += 2
            if left < 0:
                return None
    return found


def speaking(index: SegmentIndex, fragment: Fragment) -> dict[int, range]:
    """The parts that speak of a fragment, by blocks: nothing of a block that has none, or where they are most of it."""
    entry, parts = index.fragments.get(fragment), index.parts
    if entry is None or entry.runs is None or parts is None:
        return {}
    runs, firsts, at = entry.runs, parts.firsts, 0
    found: dict[int, range] = {}
    for ordinal in entry.blocks:
        if parts.parted[ordinal]:
            numbers = range(runs[at], runs[at + 1] + 1)
            at += 2
            if READ_WHOLE * len(numbers) <= firsts[ordinal + 1] - firsts[ordinal]:
                found[ordinal] = numbers
    return found


def cost(index: SegmentIndex, end: int, wanted: Mapping[Fragment, tuple[int, int]]) -> tuple[int, int]:
    """How many blocks, and bytes of them, are read for these counters, where `end` is that of the last block."""
    starts = index.starts
    found = holding(index, wanted)
    size = 0
    ordinals = list(found) if found is not None else index.holding(wanted)
    for ordinal in ordinals:
        some = places(index.parts, ordinal, found[ordinal]) if found is not None and index.parts is not None else []
        if some:
            size += sum(until - at for at, until, _ in near(some))
        else:
            size += (starts[ordinal + 1] if ordinal + 1 < len(starts) else end) - starts[ordinal]
    return len(ordinals), size
