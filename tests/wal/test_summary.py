"""A footer's summary says of a segment what reading all of it would say, and leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.golden import BLOCKS
from tests.wal.logs import open_log
from tools.wal.filters import Filter
from tools.wal.stat import Counted
from wal import Block, LogSettings, inspect, read, verify
from wal.codec import TRAILER_BYTES, FormatError, SegmentHeader, decode_header, decode_trailer, encode_header
from wal.footer import Footer, Span, encode_summary
from wal.ids import CLIENTS, DECISIONS
from wal.outline import vouched_by
from wal.records import (
    EpochStart,
    Forget,
    Origin,
    Outcome,
    Prepare,
    Record,
    Update,
    Write,
)
from wal.segment import SegmentBuilder
from wal.segment_file import rebuild
from wal.summary import GROUP_NAMES, SUMMARY_FROM_BYTES

SETTINGS = LogSettings(segment_bytes=SUMMARY_FROM_BYTES, total_bytes=1 << 26)
PARTITIONS = 64


def written(updates: int, *, per_block: int = 20, sessions: int = 7) -> MemoryDisk:
    """A log of updates of many sessions, with transactions and everything else that there is in between."""
    disk, draw = MemoryDisk(), Random(1)  # figures, no secrets
    log = open_log(disk, SETTINGS)
    counters, block = [0] * PARTITIONS, list[Record]()
    for n in range(updates):
        at = draw.randrange(PARTITIONS)
        tx = tx_of(n, sessions)
        writes = [Write("acc", at, 1, counters[at], [b"key-%d" % n], [b"v" * draw.randrange(200)], 0, tx)]
        counters[at] += 1
        if n % 10 == 3:
            block += [Prepare(tx, at, 1, writes, [], [at], at), Outcome(tx, at, 1, True, [("acc", counters[at] - 1, 1)])]
            block.append(Update([Write(DECISIONS, at, 1, n, [tx], [b"\x01"])]))
        else:
            block.append(Update(writes))
        if n % 97 == 5:
            block += [Origin(at, 1, tx, "n1", client="c", address="a:1"), Forget(at, 1, [(tx[:10], n)])]
        if n % 500 == 7:
            block += [one for some in BLOCKS for one in some]
        if len(block) >= per_block:
            log.append(block, now_ms=1_000 + n, durable=False)
            block = []
    log.append([*block, EpochStart(3, 2, [("acc", counters[3] + 1)])], now_ms=1_000 + updates, durable=True)
    log.close()
    return disk


def tx_of(n: int, sessions: int) -> bytes:
    return b"sess%06d" % (n % sessions) + (n // sessions).to_bytes(6, "big")


def footers(disk: MemoryDisk) -> Iterator[tuple[str, Footer]]:
    """Of all sealed segments."""
    for name in disk.names():
        data = disk.image(name)
        header = decode_header(data)
        if data[-8:].strip(b"\0"):
            yield name, Footer(disk.open(name), header, decode_trailer(data[-TRAILER_BYTES:], header, len(data)))


def counted(disk: MemoryDisk, *, by_footers: bool) -> tuple[Counted, int]:
    """What there is in a log, and how many blocks were read for that."""
    found, blocks, wanted = Counted(), 0, Filter()
    for block in inspect(disk, ask=found.asker(wanted, 1, None) if by_footers else None):
        assert isinstance(block, Block)
        found.add(block, wanted)
        blocks += 1
    return found, blocks


def test_what_footers_count_is_what_all_blocks_hold() -> None:
    disk = written(6_000)
    (read_all, blocks), (asked, few) = counted(disk, by_footers=False), counted(disk, by_footers=True)
    assert read_all == asked
    assert few < blocks / 2
    assert all(footer.tally() is not None for _, footer in footers(disk))


@pytest.mark.parametrize("sessions", [1, 7, 3_000])
def test_every_block_that_names_a_transaction_is_found_and_few_others(sessions: int) -> None:
    disk = written(3 * GROUP_NAMES, sessions=sessions)
    looked = total = 0
    for _, footer in footers(disk):
        blocks = list(read(disk, footer.trailer.first_lsn, footer.trailer.last_lsn))
        for n in range(0, 3 * GROUP_NAMES, 211):
            tx = tx_of(n, sessions)
            told = footer.naming([tx], [CLIENTS])
            assert told is not None
            spans, silent = told
            assert all(within(block, silent) is any(isinstance(one, Origin) for one in block.records) for block in blocks)
            inside = [block for block in blocks if within(block, spans)]
            naming = [block for block in blocks if any(tx in msgspec.msgpack.encode(one) for one in block.records)]
            forgets = [block for block in naming if block not in inside]
            assert forgets == []
            looked += len(inside)
            total += len(blocks)
    assert looked < total / 2, "a group is some blocks of a segment"


def test_what_concerns_all_of_a_partition_is_found() -> None:
    disk = written(6_000)
    for _, footer in footers(disk):
        for block in read(disk, footer.trailer.first_lsn, footer.trailer.last_lsn):
            for record in block.records:
                if isinstance(record, Forget | EpochStart | Outcome):
                    spans = footer.about([record.partition])
                    assert spans is not None
                    assert within(block, spans)
        assert footer.about([PARTITIONS + 1]) == []


def within(block: Block, spans: list[Span]) -> bool:
    return any(start <= block.offset < end for start, end in spans)


def test_a_footer_of_the_version_before_does_not_tell_and_all_of_it_is_read() -> None:
    disk = written(4_000)
    known = counted(disk, by_footers=False)[0]
    for name, _ in list(footers(disk)):
        data = disk.image(name)
        header = decode_header(data)
        trailer = decode_trailer(data[-TRAILER_BYTES:], header, len(data))
        builder, _ = rebuild(disk.open(name), header, trailer.end)
        _, offset, older = builder.footer(form=4)
        disk.put(name, data[: trailer.end] + bytes(offset - trailer.end) + older)
    for _, footer in footers(disk):
        assert (footer.tally(), footer.naming([bytes(16)]), footer.about([1])) == (None, None, None)
    assert counted(disk, by_footers=True)[0] == known
    assert verify(disk, indexes=True).findings == []


def test_a_summary_that_lies_is_found_by_who_holds_it_against_the_blocks() -> None:
    disk = written(4_000)
    assert verify(disk, indexes=True).findings == []
    name, footer = next(footers(disk))
    builder, _ = rebuild(disk.open(name), footer.header, footer.trailer.end)
    assert builder.summary is not None
    builder.summary.tally.records += 1
    _, offset, lying = builder.footer()
    data = disk.image(name)
    disk.put(name, data[:offset] + lying)
    assert [finding.kind for finding in verify(disk, indexes=True).findings] == ["index"]


def test_whatever_byte_of_a_footer_changes_is_found_and_changes_no_count() -> None:
    disk, draw = written(2_500), Random(2)
    known = counted(disk, by_footers=False)[0]
    (name, footer), data = next(footers(disk)), disk.image(disk.names()[0])
    begins = footer.header.capacity - TRAILER_BYTES - footer.trailer.index_bytes
    for _ in range(25):
        spoiled = bytearray(data)
        spoiled[draw.randrange(begins, len(data))] ^= 1 << draw.randrange(8)
        disk.put(name, bytes(spoiled))
        assert verify(disk).findings
        found = Counted()
        for block in inspect(disk, ask=found.asker(Filter(), 1, None)):
            if isinstance(block, Block):
                found.add(block, Filter())
        assert found == known


def test_a_summary_that_speaks_of_blocks_that_are_not_there_is_refused_and_all_is_read() -> None:
    disk = written(4_000)
    known = counted(disk, by_footers=False)[0]
    name, footer = next(footers(disk))
    builder, _ = rebuild(disk.open(name), footer.header, footer.trailer.end)
    assert builder.summary is not None
    builder.summary.about[3].append(2**32 - 1)
    builder.summary.filters.firsts[0] = 2**32 - 1
    builder.summary.tally.kinds["other"] = [1, 1]
    data = disk.image(name)
    _, offset, lying = builder.footer()
    disk.put(name, data[:offset] + lying)
    _, footer = next(footers(disk))
    assert footer.tally() is None
    with pytest.raises(FormatError, match="the summary speaks of block 4294967295"):
        footer.about([3])
    with pytest.raises(FormatError, match="bytes of filters"):
        footer.naming([bytes(16)])
    assert counted(disk, by_footers=True)[0] == known


def test_the_footer_fits_however_many_fragments_and_kinds_a_segment_has() -> None:
    disk, n = MemoryDisk(), 0
    log = open_log(disk, SETTINGS)
    while len(log.segments()) < 4:
        fresh = [Write(f"{'n' * 50}-{n + at}", at, 1, 0, [b"k"], [b"v"], 0, bytes(16)) for at in range(9)]
        log.append([Update(fresh), *BLOCKS[n % len(BLOCKS)], Forget(n % 16_384, 1, [])], now_ms=1, durable=False)
        n += 9
    log.close()
    found = [footer.tally() for _, footer in footers(disk)]
    assert len(found) == 3
    assert None not in found


def test_a_small_segment_has_no_summary() -> None:
    header = SegmentHeader("c", "n1", 1, SUMMARY_FROM_BYTES - 8)
    assert SegmentBuilder(decode_header(encode_header(header))).summary is None
    summary = SegmentBuilder(decode_header(encode_header(header._replace(capacity=SUMMARY_FROM_BYTES)))).summary
    assert summary is not None
    assert len(msgspec.msgpack.encode(encode_summary(summary))) < summary.bytes_max


def test_what_is_verified_by_footers_is_what_is_verified_by_blocks() -> None:
    disk = written(4_000)
    by_footers, by_blocks = verify(disk), verify(disk, indexes=True)
    assert by_footers == by_blocks
    assert not by_footers.findings
    assert by_footers.trimmed > 1, "no Trimmed was looked for in a segment whose footer vouches for it"


def test_a_footer_vouches_for_kinds_that_are_known_and_for_all_records() -> None:
    disk = written(4_000)
    name, footer = next(footers(disk))
    assert vouched_by(footer)
    data = disk.image(name)
    for kind, told in (("other", [1, 1]), ("update", [1, 1])):
        builder, _ = rebuild(disk.open(name), footer.header, footer.trailer.end)
        assert builder.summary is not None
        builder.summary.tally.kinds[kind] = told
        _, offset, lying = builder.footer()
        disk.put(name, data[:offset] + lying)
        assert vouched_by(next(footers(disk))[1]) is None, kind
