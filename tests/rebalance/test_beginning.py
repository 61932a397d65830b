"""What a batch says by which an epoch begins, of votes and writes at any counters."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rebalance.beginning import joined
from wal.counters import CounterOverlap, PartitionCounter


def _gaps(lwm: int, spans: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """What is missing below the highest of them; None if some lie in others in part."""
    counter = PartitionCounter(lwm)
    try:
        for start, end in spans:
            counter.update(start, end - start)
    except CounterOverlap:
        return None
    return counter.missing(counter.highest_applied)


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)).map(lambda at: (at[0], at[0] + at[1])), max_size=8),
)
@example(5, [(3, 5), (5, 7)])
@example(5, [(5, 7), (5, 7), (7, 9)])
@example(0, [(2, 6), (3, 4), (4, 6), (6, 8)])
@example(0, [])
def test_spans_that_adjoin_leave_the_gaps_that_they_leave_one_by_one(lwm: int, spans: list[tuple[int, int]]) -> None:
    """Those that overlap in part are refused as before; of those one by one it depends on their order, but for this one."""
    expected = _gaps(lwm, sorted(spans))
    found = joined(spans, lwm)
    assert found == sorted(found)
    assert _gaps(lwm, found) == expected
