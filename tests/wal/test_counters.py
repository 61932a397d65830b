"""PartitionCounter against the plainest model there is: a set of counters."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wal.counters import (
    RANGES_MAX,
    CounterAhead,
    CounterOverlap,
    PartitionCounter,
    TooManyRanges,
)
from wal.ids import COUNTER_MAX

STARTS = st.integers(0, 60)
DELTAS = st.integers(1, 8)


class AgainstASet(RuleBasedStateMachine):
    """Every operation, on a counter and on the set of the counters that are applied."""

    @initialize(lwm=st.integers(0, 5))
    def begin(self, lwm: int) -> None:
        self.counter = PartitionCounter(lwm)
        self.applied = set(range(1, lwm + 1))
        self.hwm = lwm

    def lwm(self) -> int:
        return next(c - 1 for c in range(1, 10**6) if c not in self.applied)

    @rule(start=STARTS, delta=DELTAS)
    def update(self, start: int, delta: int) -> None:
        wanted = set(range(start + 1, start + delta + 1))
        had = wanted & self.applied
        before = self.counter.to_bytes()
        if had == wanted:
            assert self.counter.update(start, delta) is False
            assert self.counter.to_bytes() == before
        elif had:
            with pytest.raises(CounterOverlap):
                self.counter.update(start, delta)
            assert self.counter.to_bytes() == before
        else:
            assert self.counter.update(start, delta) is True
            self.applied |= wanted
            self.hwm = max(self.hwm, start + delta)

    @rule(n=DELTAS)
    def reserve(self, n: int) -> None:
        assert self.counter.reserve(n) == self.hwm
        self.hwm += n

    @rule(value=STARTS)
    def promise(self, value: int) -> None:
        self.counter.reserve_to(value)
        self.hwm = max(self.hwm, value)

    @rule(value=STARTS)
    def advance(self, value: int) -> None:
        before = self.counter.to_bytes()
        if value > self.lwm() and max(self.applied, default=0) > value:
            with pytest.raises(CounterAhead):
                self.counter.advance(value)
            assert self.counter.to_bytes() == before
        else:
            self.counter.advance(value)
            self.applied |= set(range(1, value + 1))
            self.hwm = max(self.hwm, value)

    @rule(value=STARTS)
    def cut(self, value: int) -> None:
        self.counter.cut(value)
        self.applied = {c for c in self.applied if c <= value}
        self.hwm = max(self.applied, default=0)

    @rule()
    def finalize(self) -> None:
        top = max(self.applied, default=0)
        closed = {c for start, delta in self.counter.finalize() for c in range(start + 1, start + delta + 1)}
        assert closed == set(range(1, top + 1)) - self.applied
        self.applied |= closed
        self.hwm = top

    @rule(up_to=STARTS)
    def missing(self, up_to: int) -> None:
        found = [c for start, delta in self.counter.missing(up_to) for c in range(start + 1, start + delta + 1)]
        assert found == [c for c in range(1, up_to + 1) if c not in self.applied]

    @rule(start=STARTS, delta=DELTAS)
    def covers(self, start: int, delta: int) -> None:
        assert self.counter.covers(start, delta) == (set(range(start + 1, start + delta + 1)) <= self.applied)

    @rule()
    def copy_is_independent(self) -> None:
        twin = self.counter.copy()
        assert twin == self.counter
        twin.reserve(1)
        assert twin != self.counter

    @rule()
    def bytes_round_trip(self) -> None:
        assert PartitionCounter.from_bytes(self.counter.to_bytes()) == self.counter

    @precondition(lambda self: hasattr(self, "counter"))
    @invariant()
    def says_what_the_set_says(self) -> None:
        self.counter.check()
        assert self.counter.lwm == self.lwm()
        assert self.counter.hwm == self.hwm
        assert self.counter.highest_applied == max(self.applied, default=0)
        above = {c for start, delta in self.counter for c in range(start + 1, start + delta + 1)}
        assert above == {c for c in self.applied if c > self.counter.lwm}


TestAgainstASet = AgainstASet.TestCase


def test_the_example_of_the_design_prints_as_it_is_written_there() -> None:
    counter = PartitionCounter(5)
    assert counter.reserve(4) == 5
    assert counter.update(6, 2)
    assert str(counter) == "lwm=5 hwm=9 ranges=(6,2)"


def test_a_range_that_bridges_two_applied_ones_is_a_clash_and_changes_nothing() -> None:
    counter = PartitionCounter()
    counter.update(3, 2)
    counter.update(8, 2)
    with pytest.raises(CounterOverlap, match=r"\(4,5\) overlaps \(3,2\) in part"):
        counter.update(4, 5)
    assert counter.ranges == ((3, 2), (8, 2))


def test_ten_thousand_ranges_are_the_bound_and_joining_ranges_is_still_possible() -> None:
    counter = PartitionCounter()
    for n in range(RANGES_MAX):
        counter.update(2 * n + 1, 1)
    with pytest.raises(TooManyRanges, match="resynchronise"):
        counter.update(2 * RANGES_MAX + 1, 1)
    assert len(counter.ranges) == RANGES_MAX
    assert counter.update(2 * RANGES_MAX, 1), "a range that joins another adds none"
    assert counter.update(0, 1)
    assert counter.lwm == 2
    assert PartitionCounter.from_bytes(counter.to_bytes()) == counter


def read_or_refused(data: bytes) -> PartitionCounter | str:
    """The counter, or the words with which it was refused."""
    try:
        return PartitionCounter.from_bytes(data)
    except ValueError as error:
        return str(error)


@given(st.binary(max_size=80))
def test_junk_is_refused_as_a_counter(junk: bytes) -> None:
    match read_or_refused(junk):
        case str(words):
            assert "not a partition counter" in words
        case counter:
            assert counter.to_bytes() == junk


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=3),
)
def test_a_well_formed_lie_is_refused_or_keeps_its_invariants(lwm: int, hwm: int, ranges: list[tuple[int, int]]) -> None:
    data = struct.pack(">BQQI", 1, lwm, hwm, len(ranges)) + b"".join(struct.pack(">QQ", *pair) for pair in ranges)
    match read_or_refused(data):
        case str(words):
            assert "not a partition counter" in words
        case counter:
            counter.check()


def test_counters_end_at_two_to_the_63_less_one() -> None:
    counter = PartitionCounter(COUNTER_MAX - 1)
    assert counter.reserve(1) == COUNTER_MAX - 1
    with pytest.raises(OverflowError, match="used up"):
        counter.reserve(1)
    with pytest.raises(ValueError, match="not a range"):
        counter.update(COUNTER_MAX, 1)
