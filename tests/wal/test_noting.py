"""What is noted of many blocks in one pass is what each block says on its own, whenever it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import append, open_log, outcome, prepare
from wal import LogSettings
from wal.codec import SegmentHeader, decode_header, encode_body, encode_header
from wal.ids import DECISIONS, TxId
from wal.index import MARK_EVERY, touched_by
from wal.noting import note
from wal.records import EpochStart, FragmentClear, History, Record, Update, Write, kind_of
from wal.segment import SegmentBuilder
from wal.summary import SUMMARY_FROM_BYTES, may_name
from wal.tally import Tally

HEADER = SegmentHeader("tests", "n1", 1, 4 * SUMMARY_FROM_BYTES)


@dataclass
class Told:
    """What the blocks of a segment say, each looked at alone."""

    starts: list[int] = field(default_factory=list)
    counters: dict[tuple[str, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    names: set[TxId] = field(default_factory=set)
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, builder: SegmentBuilder, records: list[Record], body: bytes) -> None:
        """The next block, which `builder` has not got yet."""
        ordinal, lsn = len(self.starts), builder.next_lsn
        self.starts.append(builder.end)
        for fragment, (low, high) in touched_by(records).items():
            if high:
                self.counters.setdefault(fragment, []).append((ordinal, low, high))
        header, _ = builder.encode(body, len(records), time_ms=1_000 + ordinal)
        if records:
            self.tally.block((lsn, lsn + len(records) - 1), len(records), time_ms=header.time_ms, size=header.size)
        for record in records:
            self.kinds[kind_of(record)] = self.kinds.get(kind_of(record), 0) + 1
            if isinstance(record, Update | History):
                for write in record.writes:
                    self.tally.write(write)
                self.names.update(write.tx for write in record.writes)
                self.names.update(key for write in record.writes if write.namespace == DECISIONS for key in write.keys)

    def agrees(self, builder: SegmentBuilder) -> None:
        """Hold it against what was noted."""
        index, summary = builder.index, builder.summary
        assert list(index.starts) == self.starts
        assert {name: list(entry.blocks) for name, entry in index.fragments.items()} == {
            name: [ordinal for ordinal, _, _ in some] for name, some in self.counters.items()
        }
        for name, some in self.counters.items():
            entry, highs = index.fragments[name], [high for _, _, high in some]
            assert (entry.low, entry.high) == (min(low for _, low, _ in some), max(highs))
            assert list(entry.marks) == [max(highs[:at]) for at in range(MARK_EVERY, len(highs) + 1, MARK_EVERY)]
        assert summary is not None
        assert (summary.tally.blocks, summary.tally.records) == (self.tally.blocks, self.tally.records)
        assert (summary.tally.bytes, summary.tally.last_lsn) == (self.tally.bytes, self.tally.last_lsn)
        assert {name: row for name, row in summary.counted() if name[0] != "voted"} == self.tally.writes
        assert {name: records for name, (records, _) in summary.tally.kinds.items()} == self.kinds
        filters = summary.filters.all_bits()
        assert all(any(may_name(bits, name) for bits in filters) for name in self.names)


def drawn_block(draw: Random, counters: dict[tuple[str, int], int]) -> list[Record]:
    """Mostly updates of one key; and all that makes a block, a record or a write another."""
    block: list[Record] = []
    for _ in range(draw.choice((0, 1, 1, 2, 7, 60))):
        kind, tx = draw.random(), draw.randbytes(16)
        fragment = draw.choice(("acc", "names", DECISIONS)), draw.randrange(8)
        start = counters.get(fragment, 100)
        if kind < 0.05:
            start = draw.randrange(start)  # late, as a range that was out of order
        write = Write(*fragment, 1, start, [draw.randbytes(16)], [draw.randbytes(draw.randrange(300))], start, tx)
        if kind > 0.95:
            write = Write(*fragment, 1, start, [], [], start, tx, closed=draw.randrange(1, 5))
        elif kind > 0.9:
            write = Write(*fragment, 1, start, [b"a", b"b", b"c"], [b"1", None, b"333"], start, tx)
        elif kind > 0.85:
            write = Write(*fragment, 1, start, [b"a"], [None], start, tx)
        counters[fragment] = max(counters.get(fragment, 0), write.end)
        block.append(Update([write]))
    if draw.random() < 0.1:
        vote = prepare(b"t" * 16, [Write("voted", 3, 1, counters.get(("voted", 3), 0), [b"k"], [b"v"])])
        counters["voted", 3] = vote.writes[0].end
        block += [vote, outcome(vote, commit=True), FragmentClear("acc", 1, ""), EpochStart(3, 2, [])]
    elif draw.random() < 0.2:
        return [History([write for record in block if isinstance(record, Update) for write in record.writes])]
    return block


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_each_block_says(seed: int) -> None:
    draw, counters, told = Random(seed), dict[tuple[str, int], int](), Told()  # figures, no secrets
    builder = SegmentBuilder(decode_header(encode_header(HEADER)))
    asked = draw.choice((0.0, 0.1, 0.9))
    for _ in range(200):
        records = drawn_block(draw, counters)
        body = encode_body(records)
        noted = note(records, body)
        told.add(builder, records, body)
        builder.add(builder.encode(body, len(records), time_ms=1_000 + len(told.starts) - 1)[0], noted)
        if draw.random() < asked:
            told.agrees(builder)
    told.agrees(builder)


def test_what_is_left_for_the_footer_is_enough_before_and_after_the_blocks_are_gone_through() -> None:
    draw, counters = Random(1), dict[tuple[str, int], int]()  # figures, no secrets
    builder = SegmentBuilder(decode_header(encode_header(HEADER)))
    while True:
        records = drawn_block(draw, counters)
        body = encode_body(records)
        noted = note(records, body)
        if not builder.fits(len(body), noted):
            break
        builder.add(builder.encode(body, len(records), time_ms=1_000)[0], noted)
        _, offset, footer = builder.footer()
        assert builder.end <= offset
        assert offset + len(footer) == builder.header.capacity
    assert builder.end > builder.header.capacity // 2


def test_a_large_block_is_gone_through_by_whoever_has_time() -> None:
    """The writer does not wait for that; who asks what there is, or the next block, does it where nobody had time."""
    builder = SegmentBuilder(decode_header(encode_header(HEADER._replace(capacity=64 << 20))))
    large = [Update([Write("acc", 1, 1, 0, [b"%06d" % at for at in range(20_000)], [bytes(100)] * 20_000, 0)])]
    small = [Update([Write("acc", 2, 1, 0, [b"a"], [b"b"], 0)])]
    for number, (records, waits) in enumerate([(large, True), (small, False), (large, True)]):
        body = encode_body(records)
        builder.add(builder.encode(body, 1, time_ms=number)[0], note(records, body))
        assert builder.notes.waits is waits
    assert len(builder.index.starts) == 3
    assert not builder.notes.waits


def test_the_background_goes_through_a_large_block() -> None:
    log = open_log(MemoryDisk(), LogSettings())
    keys = [b"%06d" % at for at in range(20_000)]
    append(log, Update([Write("acc", 1, 1, 0, keys, [bytes(100)] * len(keys), 0)]))
    waits = [log._segments.live.notes.waits]
    log.write_index()
    log.write_index()
    waits.append(log._segments.live.notes.waits)
    assert waits == [True, False]
    assert not log.wants_index
