"""What many keys of a fragment add up to in the store below: for whoever sums up what changes there (`contents.Walk`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from rebalance.contents import Entry, row_digest
from wal.ids import Fragment

ROWS_AT_ONCE = 200
ROWS_A_KEY = 4
"""To read so many rows in order is as much as to look one key up: a scan that passes more for each key is of no use."""


class Below(Protocol):
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
            rows = self._below.digests(fragment, wanted[at], ROWS_AT_ONCE)
            told = dict(rows)
            end = bisect_right(wanted, rows[-1][0], at) if len(rows) == ROWS_AT_ONCE else len(wanted)
            total += sum([told.get(key, 0) for key in wanted[at:end]])
            self._close_together = len(rows) <= ROWS_A_KEY * (end - at)
            at = end
        return total + sum([row_digest(key, self._below.get(fragment, key)) for key in wanted[at:]])
