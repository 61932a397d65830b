"""A record can be read and believed without its block: history costs what is missing, and nobody is told other records."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

import pytest

from tests.support.counting_disk import CountingDisk
from tests.support.memory_disk import MemoryDisk
from tests.wal import golden
from tests.wal.logs import open_log, outcome, prepare
from wal import Block, Log, LogSettings, PartitionCounter, Want, inspect, read, verify
from wal.codec import BLOCK_HEADER_BYTES, TRAILER_BYTES, BlockHeader, FormatError, decode_body, encode_body
from wal.footer import Span, Told
from wal.history import BlockView
from wal.ids import Fragment
from wal.index import Parts, SegmentIndex, touched_by
from wal.parts import (
    OFTEN_MAX,
    PARTS_MAX,
    RECORDS_MAX,
    RECORDS_MIN,
    SPREAD_MAX,
    Few,
    _speaking,
    cost,
    holding,
    near,
    opened,
    places,
)
from wal.records import NoOp, Record, Update, Write
from wal.scan import RawBlock, Scan
from wal.segment import SegmentBuilder
from wal.segment_file import Sealed, load_index, read_header, read_trailer, rebuild
from wal.segments import INDEXES_KEPT

LARGE = LogSettings(segment_bytes=1 << 20, total_bytes=64 << 20)
PARTITIONS = 60


def written(updates: int = 6_000, *, large: bool = False) -> tuple[MemoryDisk, Log, dict[int, int]]:
    """A log with a segment that is sealed, and where each partition's counters end. Blocks of very different sizes."""
    disk, draw = MemoryDisk(), Random(7)
    log = open_log(disk, LARGE)
    counters = [0] * PARTITIONS

    def write(at: int, count: int = 1) -> Write:
        start = counters[at]
        counters[at] += count
        keys = [b"key-%02d-%05d-%d" % (at, start, n) for n in range(count)]
        return Write("acc", at, 1, start, keys, [draw.randbytes(draw.choice((3, 90, 2_000 if large else 200)))] * count)

    n = 0
    while n < updates:
        block: list[Record] = []
        for _ in range(draw.choice((1, 3, 40))):
            at = draw.randrange(PARTITIONS)
            kind = draw.random()
            if kind < 0.03:
                vote = prepare(n.to_bytes(16, "big"), [write(at)])
                block += [vote, outcome(vote, commit=kind < 0.02)]
            elif kind < 0.04:
                counters[at] += 2
                block.append(NoOp(at, 1, [("acc", counters[at] - 2, 2)]))
            else:
                block.append(Update([write(at, draw.choice((1, 1, 1, 5)))]))
            n += 1
        log.append(block, now_ms=n, durable=True)
    log.write_index()
    return disk, log, dict(enumerate(counters))


def supplied(log: Log, wants: dict[int, tuple[int, int]]) -> tuple[list[list[Write]], int, list[Fragment]]:
    """What history gives of each partition, what it read for that, and what it missed."""
    cursor = log.history([Want(("acc", at), PartitionCounter(above), end, [(1, 1)]) for at, (above, end) in wants.items()])
    found: list[Write] = []
    while some := cursor.read(1 << 20):
        found += some
    return [[one for one in found if one.partition == at] for at in wants], cursor.bytes_read, cursor.missed


def indexes(log: Log) -> list[SegmentIndex]:
    """Those of the sealed segments, as they are kept for whoever reads history."""
    assert len(log._segments.sealed()) <= INDEXES_KEPT
    return [log._segments.index_of(sealed) for sealed in log._segments.sealed()]


def known(log: Log) -> list[tuple[SegmentIndex, int]]:
    """The index of each segment, and where its last block ends."""
    live = log._segments.live
    ends = [sealed.trailer.end for sealed in log._segments.sealed()]
    return [*zip(indexes(log), ends, strict=True), (live.index, live.end)]


def sealed_index(disk: MemoryDisk) -> tuple[str, Parts]:
    name = disk.names()[0]
    file = disk.open(name)
    header = read_header(file)
    index = load_index(file, Sealed(header, read_trailer(file, header)))
    assert index.parts is not None
    return name, index.parts


def test_every_part_of_every_block_is_what_the_block_says() -> None:
    disk, _, _ = written(large=True)
    name, parts = sealed_index(disk)
    file = disk.open(name)
    header = read_header(file)
    for ordinal, raw in enumerate(Scan(file, header, limit=read_trailer(file, header).end)):
        count = parts.firsts[ordinal + 1] - parts.firsts[ordinal]
        if not count:
            assert raw.header.records < RECORDS_MIN
            continue
        found: list[Record] = []
        end = 0
        for number, at, size in places(parts, ordinal, range(count)):
            found += opened(parts, number, raw.data[:48], raw.data[at : at + size])
            end = at + size
        assert found == decode_body(raw.header, raw.data)
        assert end == 48 + raw.header.length
        assert count <= PARTS_MAX + 1


def test_who_misses_little_is_given_the_same_and_reads_a_part_of_it() -> None:
    disk, log, ends = written()
    again = open_log(disk.copy(), LARGE)  # reads the footer
    for wants in (
        {at: (0, end) for at, end in ends.items() if at % 20 == 3},
        {at: (end - 3, end) for at, end in ends.items() if at % 7 == 1},
        {5: (ends[5] // 2, ends[5] // 2 + 1)},
        {at: (0, end) for at, end in ends.items()},
    ):
        for one in (log, again):
            assert all(index.parts is not None for index in indexes(one))
            by_parts, few, missed = supplied(one, wants)
            kept = [(index, index.parts) for index in indexes(one)]
            for index, _ in kept:
                index.parts = None
            by_blocks, many, missed_too = supplied(one, wants)
            for index, parts in kept:
                index.parts = parts
            assert (by_parts, missed) == (by_blocks, missed_too)
            if len(wants) == 1:
                told = [cost(index, end, {("acc", at): wants[at] for at in wants}) for index, end in known(one)]
                assert few == sum(size for _, size in told), "what it costs is known before"
            if len(wants) == 3:
                assert few < 0.6 * many, "the live segment is read by blocks"


def told_of(disk: MemoryDisk, at: int) -> tuple[list[tuple[int, Record]], int]:
    """What a reader finds of a partition in the sealed segment and behind it, by LSN, and how many bytes it read."""
    counted = CountingDisk(disk)

    def ask(told: Told) -> Sequence[Span | Few] | None:
        found = told.telling(("acc", at), [])
        return found[0] if found is not None else None

    found: list[tuple[int, Record]] = []
    for block in inspect(counted, ask=ask):
        assert isinstance(block, Block)
        found += [(lsn, one) for lsn, one in enumerate(block.records, block.first_lsn) if ("acc", at) in touched_by([one])]
    return found, counted.bytes_read


def scanned(disk: MemoryDisk) -> dict[int, list[tuple[int, Record]]]:
    """The same for all partitions, by who reads everything."""
    found: dict[int, list[tuple[int, Record]]] = {at: [] for at in range(PARTITIONS)}
    for block in read(disk):
        for lsn, one in enumerate(block.records, block.first_lsn):
            for _, at in touched_by([one]):
                found[at].append((lsn, one))
    return found


def test_who_asks_for_a_fragment_reads_the_parts_that_speak_of_it_and_is_told_all() -> None:
    disk, log, _ = written(large=True)
    log.close()
    everything, size = scanned(disk), sum(len(disk.image(name)) for name in disk.names())
    for at in range(0, PARTITIONS, 7):
        found, bytes_read = told_of(disk, at)
        assert found == everything[at]
        assert bytes_read < size / 3


@pytest.mark.parametrize("field", ["crcs", "sizes", "records", "runs"])
def test_who_is_told_of_parts_by_a_footer_that_lies_reads_the_blocks_or_less(field: str) -> None:
    """Where the bytes of a part are not what is told of it, its block is read. A footer that names other parts, with right
    checksums of these, leaves records out, or has their LSNs wrong, and `verify --logic` finds it."""
    disk, log, _ = written()
    everything = scanned(disk)
    lie(disk, log, field)
    for at in range(0, PARTITIONS, 7):
        found, _ = told_of(disk, at)
        if field == "runs":
            assert set(dict(found)) <= set(dict(everything[at]))
        elif field == "records":
            assert [one for _, one in found] == [one for _, one in everything[at]]
        else:
            assert found == everything[at]
    assert [finding.kind for finding in verify(disk, indexes=True).findings] == ["index"]


def test_of_what_is_cut_off_in_a_sealed_segment_blocks_tell() -> None:
    """A cursor that was made before the segment was sealed knows of a part of it only."""
    disk, log, ends = written()
    file = disk.open(disk.names()[0])
    header = read_header(file)
    sealed = Sealed(header, read_trailer(file, header))
    view = BlockView(file, header, load_index(file, sealed), sealed.trailer.end, last_lsn=sealed.last_lsn)
    until = sealed.last_lsn - 500
    found = [record for records in view.records({("acc", 3): (0, ends[3])}, until) for record in records]
    logged = [record for block in log.replay(1) if block.last_lsn <= until for record in block.records]
    assert found
    assert all(record in logged for record in found)


def test_a_flipped_bit_never_gives_other_records() -> None:
    disk, _, ends = written()
    name, _ = sealed_index(disk)
    wants = {3: (0, ends[3]), 44: (0, ends[44])}
    right, _, _ = supplied(open_log(disk.copy(), LARGE), wants)
    end = rebuild(disk.open(name), read_header(disk.open(name)), LARGE.segment_bytes)[1].offset
    places_hit = missed_some = 0
    for at in range(256, end, 9_973):
        twin = disk.copy()
        log = open_log(twin, LARGE)  # it was opened while all was well
        twin.flip(name, 8 * at + at % 8)
        found, _, missed = supplied(log, wants)
        places_hit += 1
        missed_some += bool(missed)
        for mine, theirs in zip(found, right, strict=True):
            assert all(write in theirs for write in mine), at
        if not missed:
            assert found == right
    assert places_hit > missed_some, "most bits are of what nobody asked for"


def lied(parts: Parts, field: str) -> Parts:
    told: array[int] = getattr(parts, field)
    changed = told[:]
    for at in range(0, len(changed), 3):
        changed[at] ^= 1
    return Parts(**(parts._asdict() | {field: changed}))


@pytest.mark.parametrize("field", ["crcs", "sizes", "records"])
def test_parts_that_lie_cost_the_reading_of_the_block(field: str) -> None:
    _, log, ends = written()
    wants = {at: (0, end) for at, end in ends.items() if at % 20 == 3}
    right, _, _ = supplied(log, wants)
    for index in indexes(log):
        if index.parts is not None:
            index.parts = lied(index.parts, field)
    found, _, missed = supplied(log, wants)
    assert (found, missed) == (right, [])


def lie(disk: MemoryDisk, log: Log, field: str) -> None:
    """Have the footer of the first segment say something else of the parts, with the right checksum."""
    builder = rebuild(disk.open(disk.names()[0]), read_header(disk.open(disk.names()[0])), LARGE.segment_bytes)[0]
    index = indexes(log)[0]
    if field == "runs":
        entry = index.fragments["acc", 3]
        assert entry.runs is not None
        entry.runs = bytes([entry.runs[0], entry.runs[1] + 1]) + entry.runs[2:]
    else:
        assert index.parts is not None
        index.parts = lied(index.parts, field)
    for name, entry in builder.index.fragments.items():
        entry.runs = index.fragments[name].runs
    builder.index.parts = index.parts
    _, offset, footer = builder.footer()
    disk.overwrite(disk.names()[0], offset, footer)


def test_a_footer_without_room_for_parts_tells_the_rest() -> None:
    disk, log, ends = written()
    name = disk.names()[0]
    builder = rebuild(disk.open(name), read_header(disk.open(name)), LARGE.segment_bytes)[0]
    whole = builder.footer()
    disk.overwrite(name, builder.end, bytes(LARGE.segment_bytes))
    disk.overwrite(name, whole[1], whole[2])  # as a version that knew of no parts wrote it
    assert verify(disk, indexes=True).findings == []
    again = open_log(disk, LARGE)
    wants = {3: (0, ends[3])}
    assert supplied(again, wants)[0] == supplied(log, wants)[0]


def test_what_is_asked_of_one_part_in_four_is_read_by_blocks() -> None:
    _, log, ends = written()
    index = indexes(log)[0]
    assert holding(index, {("acc", at): (0, end) for at, end in ends.items()}) is None
    few = holding(index, {("acc", 3): (0, ends[3])})
    assert few is not None
    assert list(few) == index.holding({("acc", 3): (0, ends[3])})
    index.parts = None
    assert holding(index, {("acc", 3): (0, ends[3])}) is None


def test_a_block_of_very_many_records_has_no_parts() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=8 << 20, total_bytes=64 << 20))
    log.append([NoOp(n % 3, 1, [("acc", n // 3, 1)]) for n in range(RECORDS_MAX + 2)], now_ms=1, durable=True)
    while len(log.segments()) == 1:
        log.append([Update([Write("acc", 5, 1, log.next_lsn, [b"k"], [bytes(60_000)])])], now_ms=1, durable=True)
    log.write_index()
    found, _, missed = supplied(log, {0: (0, RECORDS_MAX // 3), 1: (7, 9)})
    assert [sum(write.delta for write in one) for one in found] == [RECORDS_MAX // 3, 2]
    assert missed == []
    assert verify(disk, indexes=True).findings == []


def test_records_of_very_many_fragments_are_not_parted() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    while len(log.segments()) == 1:
        first = log.next_lsn
        log.append(
            [
                Update([Write("acc", at, 1, lsn - 1, [b"k"], [b"v" * 60]) for at in range(50 * SPREAD_MAX)])
                for lsn in range(first, first + 4)
            ],
            now_ms=1,
            durable=True,
        )
    log.write_index()
    index = indexes(log)[0]
    assert index.parts is None
    assert verify(disk, indexes=True).findings == []


def test_blocks_that_speak_of_each_fragment_often_are_not_parted() -> None:
    """As with few partitions: from the first part to the last that does is most of the block."""
    for partitions, parted in ((400 // (2 * OFTEN_MAX), False), (400 // 2, True)):
        disk = MemoryDisk()
        log, counters = open_log(disk, LARGE), [0] * partitions
        for at_block in range(60):
            block: list[Record] = []
            for n in range(400):
                at = n % partitions
                block.append(Update([Write("acc", at, 1, counters[at], [b"k%d" % n], [b"v" * 60])]))
                counters[at] += 1
            log.append(block, now_ms=at_block, durable=True)
        log.write_index()
        assert (known(log)[0][0].parts is not None) is parted
        assert verify(disk, indexes=True).findings == []
        log.close()


def test_what_lies_near_is_read_at_once_with_the_header() -> None:
    assert list(near([(4, 51, 300), (5, 351, 200), (9, 5_000, 10)])) == [
        (0, 551, [(4, 51, 300), (5, 351, 200)]),
        (5_000, 5_010, [(9, 5_000, 10)]),
    ]
    assert list(near([(4, 900, 300)])) == [(0, 48, []), (900, 1_200, [(4, 900, 300)])]


def test_parts_know_the_counters_of_every_kind_of_record() -> None:
    for record in (record for block in golden.BLOCKS for record in block):
        body = encode_body([record, record, record])
        header = BlockHeader(len(body), 0, 1, 3, flags=0, time_ms=1, synced_to=0, previous_crc=0)
        speaking, note = _speaking(RawBlock(0, header, bytes(BLOCK_HEADER_BYTES) + body, 1))
        spoken: dict[str, dict[int, int]] = {}
        note(spoken, 7, speaking)
        found = {(namespace, partition) for namespace, mine in spoken.items() for partition in mine}
        assert found == {fragment for fragment, (_, high) in touched_by([record]).items() if high}, record
        assert all(both == 256 * 7 + 7 for mine in spoken.values() for both in mine.values())


def test_the_golden_parts_are_believed() -> None:
    disk = golden.parted()
    assert [finding.kind for finding in verify(disk, indexes=True).findings] == ["unfollowed"]
    name, parts = sealed_index(disk)
    assert sum(parts.records) == sum(len(block) for block in golden.BLOCKS if len(block) >= RECORDS_MIN) > 0
    with pytest.raises(FormatError):
        opened(parts, 0, bytes(48), disk.image(name)[304:330])


def test_an_empty_segment_has_parts_of_nothing() -> None:
    disk = MemoryDisk()
    open_log(disk)
    builder = SegmentBuilder(read_header(disk.open(disk.names()[0])))
    assert len(builder.footer()[2]) > TRAILER_BYTES
