"""What the blocks of the segment that is being written say of each fragment, and how much is in them.

A node has very many fragments, and one segment says little of most of them. So each has one flat row of numbers here, and
nothing else; what a reader asks for, a `wal.index.SegmentIndex`, is made of the rows when it is asked for.

```
row   low | high | writes | further | deletes | closed | bytes | nth | ordinal ordinal ordinal ordinal mark ordinal ...
```

`low` and `high` are counters. Then comes what `wal.tally` counts, where `further` are the counters beside one for each
write, and `nth` says in which order fragments were counted, from 1 on: 0 is one that no write has named. Behind that are
the blocks, and after each `MARK_EVERY` of them, once there is another, the highest counter so far.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from wal.ids import Fragment
from wal.index import MARK_EVERY, FragmentIndex, SegmentIndex, Touched
from wal.records import Write

Row: TypeAlias = "array[int]"
LOW, HIGH, WRITES, FURTHER, DELETES, CLOSED, BYTES, NTH, BLOCKS = range(9)
_GROUP = MARK_EVERY + 1


def speak(row: Row, ordinal: int) -> None:
    """Block `ordinal` is about it; what its counters are comes next."""
    if (len(row) - BLOCKS) % _GROUP == MARK_EVERY:
        row.append(row[HIGH])  # it can no longer rise
    row.append(ordinal)


def ordinals(row: Row, since: int = BLOCKS) -> array[int]:
    """The blocks of a row, which rise, or those that came since it was so long."""
    since = max(since, BLOCKS)
    some = row[since:]
    del some[(BLOCKS + MARK_EVERY - since) % _GROUP :: _GROUP]
    return array("I", some)


class GrowingIndex:
    """The blocks of one segment and the fragments in them.

    `bytes_max` is never less than what the index takes in a footer, so that a footer always fits where room was left.
    `mentions` has the ordinals of the blocks that only mention a fragment. All fragments that one block was the first to
    mention have the same array of one ordinal, which is never changed.
    """

    __slots__ = ("_numbers", "_once", "bytes_max", "counted", "mentions", "rows", "starts")

    def __init__(self) -> None:
        self.starts = array("I")
        self.rows: dict[Fragment, Row] = {}
        self.mentions: dict[Fragment, array[int]] = {}
        self.bytes_max = 32
        self._once = array("I", [0])
        self._numbers: dict[int, int] = {}
        self.counted = 0

    def growth(self, touched: Touched) -> int:
        """By how much `bytes_max` grows with a block that touches these. O(touched)."""
        bytes_new = 4 + 12 * len(touched)
        for fragment, (_, high) in touched.items():
            if fragment not in (self.rows if high else self.mentions):
                bytes_new += 64 + len(fragment[0].encode())
        return bytes_new

    def add(self, offset: int, touched: Touched) -> None:
        """The next block begins at `offset` and touches these. O(touched)."""
        ordinal = len(self.starts)
        self.starts.append(offset)
        self.bytes_max += 4 + 12 * len(touched)
        for fragment, (low, high) in touched.items():
            if not high:
                self._mention(fragment, ordinal)
                continue
            row = self.rows.get(fragment)
            if row is None:
                row = self.begin(self.one_name(fragment), low, ordinal)
            else:
                speak(row, ordinal)
            row[LOW] = min(low, row[LOW])
            row[HIGH] = max(high, row[HIGH])

    def begin(self, fragment: Fragment, low: int, ordinal: int) -> Row:
        """A fragment that was not there yet, and the first block that speaks of it, with `low` in it."""
        self.bytes_max += 64 + len(fragment[0].encode())
        row = self.rows[fragment] = array("Q", (low, low, 0, 0, 0, 0, 0, 0, ordinal))
        return row

    def one_name(self, fragment: Fragment) -> Fragment:
        """The same, of a string and a number that others share: each record comes with its own."""
        return sys.intern(fragment[0]), self._numbers.setdefault(fragment[1], fragment[1])

    def _mention(self, fragment: Fragment, ordinal: int) -> None:
        known = self.mentions.get(fragment)
        if known is None:
            if self._once[0] != ordinal:
                self._once = array("I", [ordinal])
            self.mentions[self.one_name(fragment)] = self._once
            self.bytes_max += 64 + len(fragment[0].encode())
        elif len(known) == 1:
            self.mentions[fragment] = array("I", (known[0], ordinal))
        else:
            known.append(ordinal)

    # Counted.

    def count(self, write: Write) -> bool:
        """A write that is in a block that was added; whether it is the first of its fragment."""
        row, keys, values = self.rows.get((write.namespace, write.partition)), write.keys, write.values
        if row is None or not write.delta:
            return False  # it has no counter at all
        row[WRITES] += 1
        if write.closed:
            row[CLOSED] += write.closed
            row[FURTHER] += write.closed - 1
        else:
            row[FURTHER] += len(keys) - 1
            row[DELETES] += values.count(None)
            row[BYTES] += sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if row[NTH]:
            return False
        self.counted += 1
        row[NTH] = self.counted
        return True

    def tallied(self) -> Iterator[tuple[Fragment, list[int]]]:
        """What was counted of each fragment, as `wal.tally` has it, in the order in which they were met. O(fragments)."""
        rows = self.rows
        for name in sorted((name for name, row in rows.items() if row[NTH]), key=lambda name: rows[name][NTH]):
            writes, further, *rest = rows[name][WRITES:NTH]
            yield name, [writes, writes + further, *rest]

    # Read.

    def ends(self) -> Iterator[tuple[Fragment, int]]:
        """Each fragment with its highest counter here."""
        return ((name, row[HIGH]) for name, row in self.rows.items())

    def snapshot(self, fragments: Iterable[Fragment]) -> SegmentIndex:
        """What concerns these fragments, for another thread to read while blocks are added here."""
        twin = SegmentIndex()
        twin.starts = self.starts[:]
        twin.mentions = None
        for fragment in fragments:
            row = self.rows.get(fragment)
            if row is not None:
                twin.fragments[fragment] = _read(row)
        return twin

    def whole(self) -> SegmentIndex:
        """All of it. O(fragments, and the blocks of each)."""
        twin = SegmentIndex()
        twin.starts = self.starts[:]
        twin.mentions = {name: blocks[:] for name, blocks in self.mentions.items()}
        twin.fragments = {name: _read(row) for name, row in self.rows.items()}
        return twin


def _read(row: Row) -> FragmentIndex:
    """A row, as a reader has it: of what was said so far there are all marks."""
    blocks = ordinals(row)
    marks = row[BLOCKS + MARK_EVERY :: _GROUP]
    if len(blocks) // MARK_EVERY > len(marks):
        marks.append(row[HIGH])
    return FragmentIndex(row[LOW], row[HIGH], blocks, marks or None)
