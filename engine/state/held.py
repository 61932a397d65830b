"""What a store below has of many keys of a fragment, for whoever sums up what changes there (`rebalance.contents.Walk`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rebalance.contents import Entry


class Held:
    """What a fragment's store has of many keys, by its `get` and its `scan`.

    Where they lie close together one scan tells of all of them, and which are not there: to be sure of that of a single
    key takes a look at its neighbours, and several times as long. Where a scan was of little use, none is tried again.
    """

    def __init__(
        self, get: Callable[[bytes], Entry | None], scan: Callable[[bytes, int], Sequence[tuple[bytes, Entry]]]
    ) -> None:
        self._get = get
        self._scan = scan
        self._close_together = True

    def __call__(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """What each of them has."""
        if not keys:
            return []
        if not self._close_together:
            return [self._get(key) for key in keys]
        rows = self._scan(min(keys), len(keys))
        told = dict(rows)
        last = rows[-1][0] if len(rows) == len(keys) else max(keys)
        passed = sum(key <= last for key in keys)
        self._close_together = 2 * passed >= len(keys)
        return [told.get(key) if key <= last else self._get(key) for key in keys]
