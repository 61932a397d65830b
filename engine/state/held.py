"""How the rows of a store are read and summed up in a turn: no more at once than there is room for, however large they are.

And what many keys of a fragment add up to there, for whoever sums up what changes (`contents.Walk`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

from rebalance.contents import Entry, Summed, row_digest, rows_digest
from rebalance.ports import BYTES_OF_WORK
from wal.ids import Fragment

ROWS_AT_ONCE = 200
ROWS_A_KEY = 4
"""To read so many rows in order is as much as to look one key up: a scan that passes more for each key is of no use."""


FIT_BYTES = 1 << 20
"""Of the rows of a store so many bytes are read at once, or a single row that has more."""
FIT_WORK = FIT_BYTES // BYTES_OF_WORK


class Weighing(Protocol):
    """A store that tells how large its rows are before they are read."""

    def fitting(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> tuple[int, int]:
        """How many of the rows that such a scan reads have `FIT_BYTES` together, but one at least; and how much work it is
        to read so many bytes."""
        ...

    def fitting_of(self, fragment: Fragment, keys: Sequence[bytes]) -> tuple[int, int]:
        """The same of the rows of these keys, from the first one on: so many of the keys."""
        ...


def all_at_once(keys: Sequence[bytes]) -> tuple[int, int]:
    """`Weighing.fitting_of` where nothing lies below."""
    return len(keys), 0


def fitted(sizes: Iterable[int], limit: int) -> tuple[int, int]:
    """Of rows of these sizes, and at least one, and `limit`, so many as have `FIT_BYTES`; and the work to read those."""
    sizes = list(sizes)
    if (total := sum(sizes)) >= FIT_BYTES:
        totals = list(accumulate(sizes))
        at = bisect_left(totals, FIT_BYTES)
        return at + 1, totals[at] // BYTES_OF_WORK
    return limit, total // BYTES_OF_WORK


def summed(rows: Sequence[tuple[bytes, Entry]], limit: int) -> Summed:
    """What rows add up to, of which up to `limit` were asked for."""
    last = rows[-1][0] + b"\0" if len(rows) == limit else None
    return Summed(rows_digest(rows), len(rows), last)


class Below(Weighing, Protocol):
    """A store, as what follows reads it: `engine.state.store.BaseStore` says how."""

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry."""
        ...

    def held(self, fragment: Fragment, keys: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """What those of these keys contribute that are found."""
        ...

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """What the next rows contribute."""
        ...

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """What they add up to."""
        ...


def sum_some_of(below: Below, fragment: Fragment, start: bytes, limit: int) -> Summed:
    """What some rows add up to, as many as are read at once."""
    limit, large = below.fitting(fragment, start, limit)
    return below.sum_some(fragment, start, limit)._replace(work=large)


class Held:
    """What a fragment's store has of many keys.

    All are looked up at once, and those that are there are told of for little, whatever lies between them. That a key is
    not there takes a look at its neighbours to be sure of, and several times as long. So where such keys lie close
    together one scan tells of all of them; where a scan was of little use, none is tried again.
    """

    def __init__(self, below: Below, fragment: Fragment) -> None:
        self._below = below
        self._fragment = fragment
        self._close_together = True

    def fit(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """So many of these at a time, from the first one on; and the work to read what is large of them."""
        return self._below.fitting_of(self._fragment, keys)

    def __call__(self, keys: Sequence[bytes]) -> int:
        """The sum of what each of these contributes, not reduced."""
        wanted = sorted(keys)
        there = dict(self._below.held(self._fragment, wanted))
        total = sum(there.values())
        return total if len(there) == len(wanted) else total + self._rest([key for key in wanted if key not in there])

    def _rest(self, wanted: Sequence[bytes]) -> int:
        """The same of keys that were not found: nothing, as a rule, and that is to be proven."""
        fragment, total, at = self._fragment, 0, 0
        while at < len(wanted) and self._close_together:
            most, _ = self._below.fitting(fragment, wanted[at], ROWS_AT_ONCE)
            rows = self._below.digests(fragment, wanted[at], most)
            told = dict(rows)
            end = bisect_right(wanted, rows[-1][0], at) if len(rows) == most else len(wanted)
            total += sum([told.get(key, 0) for key in wanted[at:end]])
            self._close_together = len(rows) <= ROWS_A_KEY * (end - at)
            at = end
        return total + sum([row_digest(key, self._below.get(fragment, key)) for key in wanted[at:]])
