"""What was applied since a point in time, over a store that lacks it: rows by key, put in order and counted when asked for.

A write costs neither. What is new since a layer was last walked is sorted then, and what is new since it was last counted
is looked up below then, once: so both cost what has changed, and a count of an unchanged layer costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from sortedcontainers import SortedList

from rebalance.by_fragment import ByFragment
from rebalance.contents import Entry
from wal.ids import Fragment, Namespace

E = TypeVar("E", bound=Entry)
T = TypeVar("T")
AtOnce: TypeAlias = Callable[[Sequence[bytes]], tuple[int, int]]
"""See `engine.state.held.Weighing.fitting_of`."""


class Layer(Generic[E]):
    """Entries applied since a point in time.

    Invariant: `dead` has those keys of `rows` whose entry is no row: a tombstone, or gone. Keys are never taken out of a
    layer, and a dict keeps them as they came: so the new ones are the last ones.
    """

    __slots__ = ("_fresh", "_order", "_replaced", "_unseen", "bytes", "cleared", "dead", "rows", "since")

    def __init__(self) -> None:
        self.rows = ByFragment[dict[bytes, E]]()
        self.dead = ByFragment[dict[bytes, None]]()
        self.cleared = ByFragment[None]()
        self.since = ByFragment[int]()  # up to which counter it had been applied when it began to change here
        self.bytes = 0
        self._order = ByFragment[SortedList[bytes]]()
        self._fresh = ByFragment[list[bytes]]()  # known to be new, and not in order yet
        self._replaced = ByFragment[tuple[int, int]]()  # of so many keys, how many have a row below
        self._unseen = ByFragment[list[bytes]]()  # known to be new, and not looked up below yet

    def clear(self, fragment: Fragment) -> None:
        """Forget all rows of a fragment, here and below."""
        self.cleared[fragment] = None
        self.rows.pop(fragment, None)
        self.dead.pop(fragment, None)
        self._order.pop(fragment, None)
        self._fresh.pop(fragment, None)
        self._replaced.pop(fragment, None)
        self._unseen.pop(fragment, None)

    def parts(self) -> Iterator[dict[Namespace, Any]]:
        """All that it is made of, to be emptied when nobody reads it any more."""
        made_of = self.rows, self.dead, self.cleared, self.since, self._order, self._fresh, self._replaced, self._unseen
        return chain.from_iterable(some.taken() for some in made_of)

    # In order.

    def put_in_order(self, fragment: Fragment, most: int) -> int:
        """Sort up to `most` of the keys that came since the last scan; how many there were: more if more are left."""
        rows = self.rows.get(fragment)
        if not rows:
            return 0
        order = self._order.get(fragment)
        if order is None:
            order = self._order[fragment] = SortedList()
        fresh = self._fresh.get(fragment, [])
        new = len(rows) - len(order) - len(fresh)
        if new:
            fresh.extend(islice(reversed(rows), new))
        if not fresh:
            return 0
        order.update(fresh[-most:])
        count = len(fresh)
        del fresh[-most:]
        if fresh:
            self._fresh[fragment] = fresh
        else:
            self._fresh.pop(fragment, None)
        return count

    def some_from(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[tuple[bytes, E]]:
        """Up to `limit` of the layer's rows of one fragment with keys >= start, ascending, or `down`: < start, descending;
        they were put in order."""
        rows = self.rows.get(fragment)
        if not rows:
            return []
        order = self._order[fragment]
        assert len(order) == len(rows), "a layer is put in order before it is walked"
        keys = order.irange(None, start, (True, False), reverse=True) if down else order.irange(start)
        return [(key, rows[key]) for key in islice(keys, limit)]

    # Counted.

    def look_below(self, fragment: Fragment, below: Callable[[bytes], E | None], most: int, at_once: AtOnce) -> int:
        """Look up to `most` of the keys up that came since the last count, as far as they are looked up `at_once`; how much
        work it was, above `most` if more are left. What lies below a layer stays what it is while there is the layer."""
        rows = self.rows.get(fragment)
        if not rows:
            return 0
        seen, replaced = self._replaced.get(fragment, (0, 0))
        unseen = self._unseen.get(fragment, [])
        new = len(rows) - seen - len(unseen)
        if new:
            unseen.extend(islice(reversed(rows), new))
        if not unseen:
            return 0
        some = unseen[: -most - 1 : -1]
        fit, large = at_once(some)
        some = some[:fit]
        replaced += sum((held := below(key)) is not None and held.value is not None for key in some)
        self._replaced[fragment] = seen + len(some), replaced
        work = len(unseen) + large
        del unseen[-len(some) :]
        if unseen:
            self._unseen[fragment] = unseen
            return max(work, most + 1)
        self._unseen.pop(fragment, None)
        return work

    def more(self, fragment: Fragment) -> int:
        """How many rows more there are with this layer than without; all of its keys were looked up below."""
        rows = self.rows.get(fragment)
        if not rows:
            return 0
        seen, replaced = self._replaced[fragment]
        assert seen == len(rows), "a layer is looked up before it is counted"
        return len(rows) - len(self.dead.get(fragment, ())) - replaced


def merged(sources: list[list[tuple[bytes, T]]], limit: int, *, down: bool) -> tuple[list[tuple[bytes, T]], bytes | None]:
    """The newest there is of each key, in order, and where to go on; the newest source comes first.

    Each source was asked for `limit` rows: the others may have more only before the last one of those who gave as many.
    """
    full = [rows[-1][0] for rows in sources if len(rows) == limit]
    last = (max(full) if down else min(full)) if full else None
    there = [rows for rows in sources if rows]
    if len(there) == 1:
        found = there[0]
    else:
        newest: dict[bytes, T] = {}
        for rows in reversed(there):
            newest.update(rows)
        found = sorted(newest.items(), key=itemgetter(0))
        if last is not None and down:
            del found[: bisect_left(found, last, key=itemgetter(0))]
        elif last is not None:
            del found[bisect_right(found, last, key=itemgetter(0)) :]
        if down:
            found.reverse()
    return found, last + (b"" if down else b"\0") if last is not None else None
