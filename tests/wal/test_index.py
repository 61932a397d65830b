"""The index finds every block that can hold a missing counter, and skips what lies before."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wal.logs import filled, no_op, open_log, outcome, prepare, update
from tests.wal.test_history import supplied, want
from wal import LogSettings, read, verify
from wal.codec import (
    TRAILER_BYTES,
    FormatError,
    SegmentHeader,
    Trailer,
    decode_header,
    decode_trailer,
    encode_body,
    encode_header,
)
from wal.growing import GrowingIndex
from wal.ids import COUNTER_MAX
from wal.index import COARSE, MARK_EVERY, touched_by
from wal.index_codec import decode_index, encode_footer
from wal.noting import note
from wal.records import (
    Checkpoint,
    EpochStart,
    FragmentClear,
    FragmentReady,
    History,
    Preload,
    Record,
    Undo,
    Update,
    Write,
    spans,
)
from wal.segment import SegmentBuilder
from wal.segment_file import rebuild


def test_touched_by_agrees_with_spans_for_every_kind_of_record() -> None:
    vote = prepare(b"t" * 16, [Write("acc", 3, 1, 10, [b"a", b"b"], [b"1", b"2"])])
    records: list[Record] = [
        Update([Write("acc", 3, 1, 5, [b"x"], [b"1"]), Write("names", 3, 1, 0, [], [], closed=4)]),
        Update([Write("acc", 3, 1, 2, [b"x"], [b"1"])]),
        vote,
        outcome(vote, commit=False),
        no_op(7, 2, partition=3),
        History([Write("acc", 4, 1, 99, [b"y"], [None])]),
        Checkpoint(5),
    ]
    expected: dict[tuple[str, int], tuple[int, int]] = {}
    for record in records:
        for namespace, partition, start, delta in spans(record):
            low, high = expected.get((namespace, partition), (start + 1, start + delta))
            expected[namespace, partition] = (min(low, start + 1), max(high, start + delta))
    assert touched_by(records) == expected
    assert expected == {("acc", 3): (3, 12), ("names", 3): (1, 4), ("acc", 4): (100, 100)}


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=4), max_size=120),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_no_block_with_a_missing_counter_is_left_out(blocks: list[list[tuple[int, int]]], above: int, up_to: int) -> None:
    growing = GrowingIndex()
    for at, counters in enumerate(blocks):
        growing.add(256 + 8 * at, touched_by([update(n + 1, partition=p) for p, n in counters]))
    index = growing.whole()
    for partition in range(4):
        found = set(index.holding({("acc", partition): (above, up_to)}))
        holds = [
            at for at, counters in enumerate(blocks) if any(p == partition and above < n + 1 <= up_to for p, n in counters)
        ]
        assert found.issuperset(holds)


def test_a_long_prefix_that_a_copy_has_is_skipped() -> None:
    growing = GrowingIndex()
    for n in range(1000):
        growing.add(256 + 64 * n, touched_by([update(n + 1)]))
    index = growing.whole()
    found = index.holding({("acc", 0): (990, 1000)})
    assert found[-1] == 999
    assert len(found) < 10 + MARK_EVERY
    trailer = Trailer(1000, 1 << 20, 1, 1, 1000, 1000, 0, 0, 0, 1)
    for form, every in ((4, MARK_EVERY), (5, MARK_EVERY * COARSE), (6, MARK_EVERY * COARSE)):
        told, footer = encode_footer(trailer, index, form)
        read = decode_index(footer[: told.index_bytes], told)
        found = read.holding({("acc", 0): (990, 1000)})
        assert found[-10:] == list(range(990, 1000)), "what an older version wrote leaves nothing out"
        assert len(found) < 10 + every


def test_an_index_that_lies_about_its_marks_is_refused() -> None:
    growing = GrowingIndex()
    for n in range(40):
        growing.add(256 + 64 * n, touched_by([update(n + 1)]))
    index = growing.whole()
    for marks in (9, 11):
        index.fragments["acc", 0].marks = array("Q", range(1, marks + 1))
        trailer, footer = encode_footer(Trailer(40, 4096, 1, 1, 40, 40, 0, 0, 0, 1), index)
        with pytest.raises(FormatError, match=f"has {marks} marks for 40 blocks: expected one for every 4"):
            decode_index(footer[: trailer.index_bytes], trailer)


def test_a_fragment_without_a_missing_counter_costs_nothing() -> None:
    growing = GrowingIndex()
    growing.add(256, touched_by([update(5)]))
    index = growing.whole()
    assert index.holding({("acc", 0): (5, 9)}) == []
    assert index.holding({("acc", 0): (0, 4)}) == []
    assert index.holding({("acc", 1): (0, 9)}) == []
    assert index.holding({("acc", 0): (4, 5)}) == [0]


def test_there_is_room_for_the_largest_counter_that_a_record_may_name() -> None:
    growing = GrowingIndex()
    last = Write("acc", 0, 1, COUNTER_MAX, [b"k"], [b"v"])
    growing.add(256, touched_by([Update([last])]))
    assert growing.count(last)
    entry = growing.whole().fragments["acc", 0]
    assert (entry.low, entry.high) == (COUNTER_MAX + 1, COUNTER_MAX + 1)
    assert list(growing.tallied()) == [(("acc", 0), [1, 1, 0, 0, 2])]


def test_a_snapshot_does_not_change_with_the_index() -> None:
    index = GrowingIndex()
    index.add(256, touched_by([update(1), update(1, partition=1)]))
    twin = index.snapshot([("acc", 0)])
    index.add(320, touched_by([update(2)]))
    assert list(twin.starts) == [256]
    assert set(twin.fragments) == {("acc", 0)}
    assert twin.fragments["acc", 0].high == 1


def test_blocks_that_only_mention_a_fragment_are_found_and_never_supplied_from() -> None:
    growing = GrowingIndex()
    blocks: list[list[Record]] = [
        [update(1)],
        [FragmentClear("acc", 0, "behind")],
        [Preload("acc", 0, [1], [7], [b"k"], [b"v"]), Preload("acc", 1, [1], [7], [b"k"], [b"v"])],
        [FragmentReady("acc", 0, 7, 0, [(1, 1)], True), update(8)],
        [Undo("acc", 0, 7, [b"k"])],
        [EpochStart(0, 2, [("acc", 8)]), update(9, partition=3)],
        [Checkpoint(5)],
    ]
    for at, records in enumerate(blocks):
        growing.add(256 + 64 * at, touched_by(records))
    index = growing.whole()
    assert index.speaking_of([("acc", 0)]) == [0, 1, 2, 3, 4, 5]
    assert index.speaking_of([("acc", 1)]) == [2]
    assert index.speaking_of([("acc", 9)]) == []
    assert index.holding({("acc", 0): (0, 99)}) == [0, 3]


def test_the_blocks_that_came_to_a_counter_first_are_few() -> None:
    growing, name = GrowingIndex(), ("acc", 0)
    for at in range(1, 41):
        growing.add(256 + 64 * at, touched_by([update(at)]))
    growing.add(256 + 64 * 41, touched_by([update(7)]))
    index = growing.whole()
    assert index.speaking_of({name: [7, 38]}) == [4, 5, 6, 7, 36, 37, 38, 39], "and not the one that brought 7 again"
    assert index.speaking_of({name: [41]}) == []
    assert index.speaking_of({name: []}) == list(range(41))
    assert index.speaking_of({name: [1], ("acc", 3): [1]}) == [0, 1, 2, 3]


def test_a_footer_leaves_mentions_out_where_an_older_version_left_no_room() -> None:
    cleared: list[Record] = [FragmentClear("acc", 1, "behind"), update(1)]
    builder = SegmentBuilder(decode_header(encode_header(SegmentHeader("c", "n1", 1, 1024))))
    header, _ = builder.encode(encode_body(cleared), len(cleared), time_ms=1)
    builder.add(header, note(cleared, encode_body(cleared)))
    trailer, _, footer = builder.footer()
    assert decode_index(footer[: trailer.index_bytes], trailer).speaking_of([("acc", 1)]) == [0]
    _, builder.end, _ = builder.footer(form=6)
    trailer, at, footer = builder.footer()
    assert at == builder.end
    assert decode_index(footer[: trailer.index_bytes], trailer).speaking_of([("acc", 1)]) is None


def test_a_log_of_the_version_before_is_whole_and_gives_its_history() -> None:
    """Its footers have fewer marks."""
    disk = filled([[update(at + 1)] for at in range(200)], LogSettings(segment_bytes=4 << 10, total_bytes=1 << 20))
    known, sizes = list(read(disk)), []
    for name in disk.names()[:-1]:
        data = disk.image(name)
        header = decode_header(data)
        trailer = decode_trailer(data[-TRAILER_BYTES:], header, len(data))
        builder, _ = rebuild(disk.open(name), header, trailer.end)
        newest, (_, offset, footer) = builder.footer(), builder.footer(form=5)
        sizes.append(len(newest[2]) - len(footer))
        disk.put(name, data[: trailer.end] + bytes(offset - trailer.end) + footer)
    assert sizes
    assert min(sizes) > 0
    assert verify(disk).findings == []
    assert list(read(disk)) == known
    writes, missed = supplied(open_log(disk, LogSettings(segment_bytes=4 << 10, total_bytes=1 << 20)), want(150, 200))
    assert ([write.start for write in writes], missed) == (list(range(150, 200)), [])
