"""The index finds every block that can hold a missing counter, and skips what lies before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.wal.logs import no_op, outcome, prepare, update
from wal.codec import SegmentHeader, decode_header, decode_index, encode_body, encode_header
from wal.index import MARK_EVERY, SegmentIndex, touched_by
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
    index = SegmentIndex()
    for at, counters in enumerate(blocks):
        index.add(256 + 8 * at, touched_by([update(n + 1, partition=p) for p, n in counters]))
    for partition in range(4):
        found = set(index.holding({("acc", partition): (above, up_to)}))
        holds = [
            at for at, counters in enumerate(blocks) if any(p == partition and above < n + 1 <= up_to for p, n in counters)
        ]
        assert found.issuperset(holds)


def test_a_long_prefix_that_a_copy_has_is_skipped() -> None:
    index = SegmentIndex()
    for n in range(1000):
        index.add(256 + 64 * n, touched_by([update(n + 1)]))
    found = index.holding({("acc", 0): (990, 1000)})
    assert found[-1] == 999
    assert len(found) <= 10 + MARK_EVERY


def test_a_fragment_without_a_missing_counter_costs_nothing() -> None:
    index = SegmentIndex()
    index.add(256, touched_by([update(5)]))
    assert index.holding({("acc", 0): (5, 9)}) == []
    assert index.holding({("acc", 0): (0, 4)}) == []
    assert index.holding({("acc", 1): (0, 9)}) == []
    assert index.holding({("acc", 0): (4, 5)}) == [0]


def test_a_snapshot_does_not_change_with_the_index() -> None:
    index = SegmentIndex()
    index.add(256, touched_by([update(1), update(1, partition=1)]))
    twin = index.snapshot([("acc", 0)])
    index.add(320, touched_by([update(2)]))
    assert list(twin.starts) == [256]
    assert set(twin.fragments) == {("acc", 0)}
    assert twin.fragments["acc", 0].high == 1


def test_blocks_that_only_mention_a_fragment_are_found_and_never_supplied_from() -> None:
    index = SegmentIndex()
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
        index.add(256 + 64 * at, touched_by(records))
    assert index.speaking_of([("acc", 0)]) == [0, 1, 2, 3, 4, 5]
    assert index.speaking_of([("acc", 1)]) == [2]
    assert index.speaking_of([("acc", 9)]) == []
    assert index.holding({("acc", 0): (0, 99)}) == [0, 3]
    assert index.without_mentions().speaking_of([("acc", 0)]) is None


def test_a_footer_leaves_mentions_out_where_an_older_version_left_no_room() -> None:
    cleared: list[Record] = [FragmentClear("acc", 1, "behind"), update(1)]
    builder = SegmentBuilder(decode_header(encode_header(SegmentHeader("c", "n1", 1, 1024))))
    header, _ = builder.encode(encode_body(cleared), len(cleared), time_ms=1)
    builder.add(header, touched_by(cleared))
    trailer, _, footer = builder.footer()
    assert decode_index(footer[: trailer.index_bytes], trailer).speaking_of([("acc", 1)]) == [0]
    _, builder.end, _ = builder.footer(mentions=False)
    trailer, at, footer = builder.footer()
    assert at == builder.end
    assert decode_index(footer[: trailer.index_bytes], trailer).speaking_of([("acc", 1)]) is None
