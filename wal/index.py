"""Which blocks of one segment hold which fragment, and which counters: what makes history cost what is missing.

For each fragment: its lowest and highest counter in the segment, the ordinals of the blocks that mention it, and after
every `MARK_EVERY` of those the highest counter so far. A copy that was away for a moment misses the end of a fragment's
history; the marks let a supplier skip what precedes it without keeping a counter for each block. Where every 16th block had
one, three times as much was read as was missing.

```
 blocks  3  4  9 40 | 41 44 ...              ordinals; `starts` has each block's offset
 marks             7012                      every counter in those 4 blocks is <= 7012
```
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from wal.ids import Fragment
from wal.records import History, Outcome, Prepare, Record, Update, mentions, spans

MARK_EVERY = 4
COARSE = 4
"""The first versions kept every fourth of these marks."""

Touched = dict[Fragment, tuple[int, int]]
"""What one block says about: fragment -> (lowest, highest counter), or MENTIONED."""

MENTIONED = (2**63 - 1, 0)
"""A fragment that a block speaks of without a counter that history could need: its rows in a transfer, its clearing."""


class Parts(NamedTuple):
    """The parts of all blocks of a segment: those of block n are `firsts[n]` to `firsts[n + 1]`, without that.

    `parted` has a 1 for each block that has some.
    """

    parted: bytearray
    firsts: array[int]
    records: array[int]
    sizes: array[int]
    crcs: array[int]


_NO_MARKS: array[int] = array("Q")
"""Most have none, and share this one, which is never changed."""


class FragmentIndex:
    """One fragment in one segment.

    `blocks` are ordinals, which rise; `marks[i]` is the highest counter in the first `every` * (i + 1) of them. `runs` has
    the first and the last part of each block that speak of it, where the segment's `parts` are known.
    """

    __slots__ = ("blocks", "every", "high", "low", "marks", "runs")

    def __init__(
        self,
        low: int,
        high: int,
        blocks: array[int],
        marks: array[int] | None = None,
        every: int = MARK_EVERY,
    ) -> None:
        self.low = low
        self.high = high
        self.blocks = blocks
        self.marks = _NO_MARKS if marks is None else marks
        self.every = every
        self.runs: bytes | None = None

    def after(self, counter: int) -> array[int]:
        """The ordinals of all blocks that can hold a counter above `counter`: a suffix of `blocks`."""
        return self.blocks[bisect_right(self.marks, counter) * self.every :]

    def reaching(self, counter: int) -> array[int]:
        """The ordinals of the few blocks that came to a counter first: it is in one of them, unless a later block brought
        it out of order, or speaks of it again."""
        where = self.reached(counter)
        return self.blocks[where.start : where.stop]

    def reached(self, counter: int) -> range:
        """Where in `blocks` these are."""
        if not self.low <= counter <= self.high:
            return range(0)
        at = bisect_left(self.marks, counter) * self.every
        return range(at, min(at + self.every, len(self.blocks)))


class SegmentIndex:
    """The blocks of one segment and the fragments in them, for whoever reads it; `wal.growing` has those of one that grows.

    `mentions` has the ordinals of the blocks that only mention a fragment; None where a footer does not tell. `parts` are
    known once the segment is sealed (`wal.parts`).
    """

    __slots__ = ("fragments", "mentions", "parts", "starts")

    def __init__(self) -> None:
        self.starts = array("I")
        self.fragments: dict[Fragment, FragmentIndex] = {}
        self.mentions: dict[Fragment, array[int]] | None = {}
        self.parts: Parts | None = None

    def speaking_of(self, wanted: Iterable[Fragment] | Mapping[Fragment, Sequence[int]]) -> list[int] | None:
        """The ordinals, in order, of the blocks that speak of these fragments in any way; None if it does not tell.

        Of a fragment that has counters in `wanted`, those of the blocks that came to one of them first.
        """
        if self.mentions is None:
            return None
        found: set[int] = set()
        counters: Mapping[Fragment, Sequence[int]] = wanted if isinstance(wanted, Mapping) else {}
        for fragment in wanted:
            entry = self.fragments.get(fragment)
            if counters.get(fragment):
                found.update(o for c in counters[fragment] for o in (entry.reaching(c) if entry is not None else ()))
                continue
            found.update(entry.blocks if entry is not None else ())
            found.update(self.mentions.get(fragment, ()))
        return sorted(found)

    def holding(self, wanted: Mapping[Fragment, tuple[int, int]]) -> list[int]:
        """The ordinals, in order, of the blocks that can hold a counter in (above, up_to] of a wanted fragment."""
        found: set[int] = set()
        for fragment, (above, up_to) in wanted.items():
            entry = self.fragments.get(fragment)
            if entry is not None and entry.low <= up_to and entry.high > above:
                found.update(entry.after(above))
        return sorted(found)

    def ends(self) -> Iterator[tuple[Fragment, int]]:
        """Each fragment with its highest counter here."""
        for fragment, entry in self.fragments.items():
            yield fragment, entry.high


def touched_by(records: Sequence[Record]) -> Touched:
    """The fragments and counters that records speak about: `spans` and `mentions` of `wal.records`, in one pass.

    What nearly all records are is written out, since this is done in the thread that is about to fsync: a block of 50
    one-key updates takes 8 us instead of 64, one of 20 prepares and outcomes 5 us instead of 30.
    """
    touched: Touched = {}
    for record in records:
        kind = type(record)
        if kind in _WRITING:
            for write in record.writes:  # type: ignore[union-attr]  # each of them has some
                fragment, start = (write.namespace, write.partition), write.start
                low, high = start + 1, start + (write.closed or len(write.keys))
                known = touched.get(fragment)
                touched[fragment] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
        elif kind is Outcome:
            partition = record.partition  # type: ignore[union-attr]
            for namespace, start, delta in record.ranges:  # type: ignore[union-attr]
                fragment, low, high = (namespace, partition), start + 1, start + delta
                known = touched.get(fragment)
                touched[fragment] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
        else:
            for namespace, partition, start, delta in spans(record):
                fragment = (namespace, partition)
                known = touched.get(fragment, MENTIONED)
                touched[fragment] = (min(known[0], start + 1), max(known[1], start + delta))
            for fragment in mentions(record):
                touched.setdefault(fragment, MENTIONED)
    return touched


_WRITING = frozenset((Update, Prepare, History))
