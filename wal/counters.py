"""The partition update counter: what is applied without a gap, what beyond a gap, and what is reserved.

```
 counters   1 2 3 4 5 6 7 8 9
 applied    x x x x x . x x .       lwm=5 hwm=9 ranges=(6,2)
                    ^lwm      ^hwm  7 and 8 are applied out of order; 6 and 9 are reserved or missing
```

The strip between the low and the high watermark is the foreshore. A range `(start, delta)` means the counters
`start+1 .. start+delta`, as in the partition update counters of Apache Ignite. Where Ignite silently corrupts its queue
(a range that overlaps an applied one in part) or moves a watermark before it refuses, this one raises and changes
nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sortedcontainers import SortedDict

from wal.ids import COUNTER_MAX

RANGES_MAX = 10_000
"""More ranges than this and the copy must leave the in-sync set and resynchronise; a range is never dropped."""

_FORMAT = 1
_HEADER = struct.Struct(">BQQI")
_RANGE = struct.Struct(">QQ")


class CounterError(Exception):
    """A counter operation that would make the counter say something untrue; nothing was changed."""


class CounterOverlap(CounterError):
    """The range lies partly inside what is applied already: two histories claim the same counter."""


class CounterAhead(CounterError):
    """Something above the value is applied already: jumping to it would forget that."""


class TooManyRanges(CounterError):
    """`RANGES_MAX` out-of-order ranges: the copy is too far behind to be tracked and must resynchronise."""


class PartitionCounter:
    """Counts one fragment's updates, tolerating that they are applied out of order.

    Invariants: lwm < every out-of-order range; ranges are sorted, disjoint and not adjacent;
    hwm >= highest applied >= lwm.

    >>> c = PartitionCounter(5)
    >>> c.reserve(4)
    5
    >>> c.update(6, 2)
    True
    >>> print(c)
    lwm=5 hwm=9 ranges=(6,2)
    >>> c.update(5, 1), c.lwm
    (True, 8)
    """

    __slots__ = ("_hwm", "_lwm", "_ranges")

    def __init__(self, lwm: int = 0) -> None:
        if not 0 <= lwm <= COUNTER_MAX:
            raise ValueError(f"lwm {lwm} is out of range: expected 0 to {COUNTER_MAX}")
        self._lwm = lwm
        self._hwm = lwm
        self._ranges: SortedDict[int, int] | None = None  # start -> end; made only when something is out of order

    @property
    def lwm(self) -> int:
        """The low watermark: this counter and all below it are applied."""
        return self._lwm

    @property
    def hwm(self) -> int:
        """The high watermark: the highest counter that was reserved or applied."""
        return self._hwm

    @property
    def highest_applied(self) -> int:
        """The highest counter that is applied, in order or not."""
        return int(self._ranges.peekitem(-1)[1]) if self._ranges else self._lwm

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """What is applied above a gap, as (start, delta), sorted, disjoint and never adjacent."""
        return tuple((start, end - start) for start, end in self._ranges.items()) if self._ranges else ()

    def reserve(self, n: int) -> int:
        """Promise the next `n` counters, on a primary; return `start`, for the range (start, n). O(1)."""
        if n < 1:
            raise ValueError(f"cannot reserve {n} counters: expected at least 1")
        start = self._hwm
        if start + n > COUNTER_MAX:
            raise OverflowError(f"the counter is used up: {start} + {n} exceeds {COUNTER_MAX}")
        self._hwm = start + n
        return start

    def reserve_to(self, value: int) -> None:
        """Raise hwm to `value`: a prepare that holds counters up to there is known. Never lowers it."""
        if value > self._hwm:
            self._hwm = value

    def step(self, start: int, delta: int) -> bool:
        """Mark (start, delta) applied if it is the next one and nothing lies beyond a gap; else False, nothing changes.

        The quick way that nearly every update takes; whoever gets False goes on with `update`. O(1).
        """
        if start != self._lwm or self._ranges or delta < 1:
            return False
        end = start + delta
        self._lwm = end
        if end > self._hwm:
            self._hwm = end
        return True

    def withdraw(self) -> None:
        """Forget what was reserved and not applied: nobody holds these counters any more."""
        self._hwm = self.highest_applied

    def update(self, start: int, delta: int) -> bool:
        """Mark (start, delta) applied; True if it is new, False if all of it was applied already.

        Raises CounterOverlap if only a part of it was applied, TooManyRanges at the bound; both change nothing.
        O(1) at lwm with nothing out of order, O(log n) else.
        """
        if start < 0 or delta < 1 or start + delta > COUNTER_MAX:
            raise ValueError(f"({start},{delta}) is not a range: expected start >= 0, delta >= 1")
        end = start + delta
        lwm = self._lwm
        ranges = self._ranges
        if start == lwm and not ranges:
            self._lwm = end
            if end > self._hwm:
                self._hwm = end
            return True
        if end <= lwm:
            return False
        if start < lwm:
            raise CounterOverlap(f"({start},{delta}) overlaps the applied prefix in part: {self}")
        if ranges is None:
            ranges = self._ranges = SortedDict()
        at = ranges.bisect_right(start)  # the first range that begins above `start`
        if at:
            before_start, before_end = ranges.peekitem(at - 1)
            if end <= before_end:
                return False
            if start < before_end:
                raise CounterOverlap(f"({start},{delta}) overlaps ({before_start},{before_end - before_start}) in part")
        if at < len(ranges):
            after_start, after_end = ranges.peekitem(at)
            if end > after_start:
                raise CounterOverlap(f"({start},{delta}) overlaps ({after_start},{after_end - after_start}) in part")
        joins_before = at > 0 and ranges.peekitem(at - 1)[1] == start
        joins_after = at < len(ranges) and ranges.peekitem(at)[0] == end
        if start == lwm:
            self._lwm = ranges.pop(end) if joins_after else end
        else:
            if not (joins_before or joins_after) and len(ranges) >= RANGES_MAX:
                raise TooManyRanges(f"{len(ranges)} ranges are applied out of order: resynchronise this copy")
            if joins_after:
                end = ranges.pop(end)
            ranges[ranges.peekitem(at - 1)[0] if joins_before else start] = end
        self._hwm = max(self._hwm, self.highest_applied)
        return True

    def missing(self, up_to: int) -> list[tuple[int, int]]:
        """The gaps in (lwm, up_to] as (start, delta), in order: what a copy must still be given."""
        gaps: list[tuple[int, int]] = []
        at = self._lwm
        for start, delta in self.ranges:
            if start >= up_to:
                break
            gaps.append((at, start - at))
            at = start + delta
        if at < up_to:
            gaps.append((at, up_to - at))
        return gaps

    def covers(self, start: int, delta: int) -> bool:
        """Whether all of (start, delta) is applied."""
        end = start + delta
        if end <= self._lwm:
            return True
        if not self._ranges or start < self._lwm:
            return False
        at = self._ranges.bisect_right(start)
        return at > 0 and end <= int(self._ranges.peekitem(at - 1)[1])

    def advance(self, value: int) -> None:
        """Jump lwm to `value` and drop every range at or below it; below lwm: nothing. For the exchange only.

        The engine has no use for it, nor for `finalize`: its promotions close gaps by records, which move the counters.

        Raises CounterAhead, and changes nothing, if something above `value` is applied already.
        """
        if value > COUNTER_MAX:
            raise ValueError(f"{value} is out of range: expected at most {COUNTER_MAX}")
        if value <= self._lwm:
            return
        if self.highest_applied > value:
            raise CounterAhead(f"cannot advance to {value}: {self.highest_applied} is applied already ({self})")
        self._lwm = value
        self._hwm = max(self._hwm, value)
        self._ranges = None

    def finalize(self) -> list[tuple[int, int]]:
        """Close all gaps and return them as (start, delta); then hwm = lwm = highest applied, without ranges.

        The caller logs and replicates what is returned: a gap closed without a record would look like lost data.
        """
        gaps = self.missing(self.highest_applied)
        self._lwm = self._hwm = self.highest_applied
        self._ranges = None
        return gaps

    def cut(self, value: int) -> None:
        """Forget everything above `value`: this copy's suffix belongs to a history that was not continued."""
        if self._ranges:
            kept = [(start, min(end, value)) for start, end in self._ranges.items() if start < value]
            self._ranges = SortedDict(kept) if kept else None
        self._lwm = min(self._lwm, value)
        self._hwm = self.highest_applied

    def copy(self) -> PartitionCounter:
        """An independent counter that says the same."""
        twin = PartitionCounter(self._lwm)
        twin._hwm = self._hwm
        twin._ranges = SortedDict(self._ranges) if self._ranges else None
        return twin

    def to_bytes(self) -> bytes:
        """Version, lwm, hwm, count, then (start, delta) pairs, big-endian."""
        ranges = self.ranges
        return _HEADER.pack(_FORMAT, self._lwm, self._hwm, len(ranges)) + b"".join(
            _RANGE.pack(start, delta) for start, delta in ranges
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionCounter:
        """The inverse of `to_bytes`; raises ValueError, with what was expected and found, for anything else."""
        if len(data) < _HEADER.size:
            raise ValueError(f"not a partition counter: expected at least {_HEADER.size} bytes, found {len(data)}")
        version, lwm, hwm, count = _HEADER.unpack_from(data)
        if version != _FORMAT:
            raise ValueError(f"not a partition counter: expected version {_FORMAT}, found {version}")
        if count > RANGES_MAX:
            raise ValueError(f"not a partition counter: expected at most {RANGES_MAX} ranges, found {count}")
        if len(data) != _HEADER.size + count * _RANGE.size:
            raise ValueError(
                f"not a partition counter: expected {_HEADER.size + count * _RANGE.size} bytes, found {len(data)}"
            )
        if not lwm <= hwm <= COUNTER_MAX:
            raise ValueError(f"not a partition counter: expected lwm <= hwm <= {COUNTER_MAX}, found lwm={lwm} hwm={hwm}")
        counter = cls(lwm)
        at = lwm
        ranges: list[tuple[int, int]] = []
        for start, delta in _RANGE.iter_unpack(data[_HEADER.size :]):
            if start <= at or delta < 1 or start + delta > hwm:
                raise ValueError(f"not a partition counter: ({start},{delta}) is not above {at} and within hwm={hwm}")
            at = start + delta
            ranges.append((start, at))
        counter._hwm = hwm
        counter._ranges = SortedDict(ranges) if ranges else None
        return counter

    def check(self) -> None:
        """Assert the whole invariant; for tests and the simulator."""
        at = self._lwm
        for start, delta in self.ranges:
            assert start > at, f"range ({start},{delta}) touches what is below it: {self}"
            assert delta > 0, f"empty range at {start}: {self}"
            at = start + delta
        assert self._hwm >= at, f"hwm is below what is applied: {self}"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionCounter):
            return NotImplemented
        return (self._lwm, self._hwm, self.ranges) == (other._lwm, other._hwm, other.ranges)

    __hash__ = None  # type: ignore[assignment]  # a counter changes; it must not be a key

    def __str__(self) -> str:
        ranges = "".join(f"({start},{delta})" for start, delta in self.ranges)
        return f"lwm={self._lwm} hwm={self._hwm}" + (f" ranges={ranges}" if ranges else "")

    def __repr__(self) -> str:
        return f"<PartitionCounter {self}>"
