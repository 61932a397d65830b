"""What many keys of a fragment add up to in the store below: for whoever sums up what changes there (`contents.Walk`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from rebalance.contents import Entry, row_digest

ROWS_AT_ONCE = 200
ROWS_A_KEY = 4
"""To read so many rows in order is as much as to look one key up: a scan that passes more for each key is of no use."""


class Held:
    """What a fragment's store has of many keys, by its `get` and its `digests`.

    Where they lie close together one scan tells of all of them, and which are not there: to be sure of that of a single
    key takes a look at its neighbours, and several times as long. Where a scan was of little use, none is tried again.
    """

    def __init__(
        self,
        get: Callable[[bytes], Entry | None],
        digests: Callable[[bytes, int], Sequence[tuple[bytes, int]]],
    ) -> None:
        self._get = get
        self._digests = digests
        self._close_together = True

    def __call__(self, keys: Sequence[bytes]) -> int:
        """The sum of what each of these contributes, not reduced."""
        total, wanted, at = 0, sorted(keys), 0
        while at < len(wanted) and self._close_together:
            rows = self._digests(wanted[at], ROWS_AT_ONCE)
            told = dict(rows)
            end = bisect_right(wanted, rows[-1][0], at) if len(rows) == ROWS_AT_ONCE else len(wanted)
            total += sum([told.get(key, 0) for key in wanted[at:end]])
            self._close_together = len(rows) <= ROWS_A_KEY * (end - at)
            at = end
        return total + sum([row_digest(key, self._get(key)) for key in wanted[at:]])
