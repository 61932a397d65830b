"""What was applied since a point in time, over a store that lacks it: rows by key, put in order and counted when asked for.

A write costs neither. What is new since a layer was last walked is sorted then, and what is new since it was last counted
is looked up below then, once: so both cost what has changed, and a count of an unchanged layer costs nothing. Keys are
looked up in the order in which they came; so how many of the first ones have a row below is known for good, and whoever
counts need not look up what comes while he does.

Fragments to which nothing comes any more are *packed*: a dict, entries, keys and values for each of very many lie among
what stays when the layer goes, and then Python gives none of that memory back. So their rows are bytes, all in one place,
until somebody writes to the fragment again, or walks it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from sortedcontainers import SortedList

from rebalance.by_fragment import ByFragment
from rebalance.by_key import FEW, InOrder
from rebalance.contents import Entry
from wal.ids import Fragment, Namespace

E = TypeVar("E", bound=Entry)
T = TypeVar("T")
AtOnce: TypeAlias = Callable[[Sequence[bytes]], tuple[int, int]]
"""See `engine.state.held.Weighing.fitting_of`."""

PACKED_ROWS = 16
"""A fragment with more of them in a layer stays open: to read one of them would open all."""
PACKED_BYTES = 4 << 10
"""And one with more bytes: these are given back when they are freed."""
_LENGTH = 4
_OPENED = -1
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, int, int, bytes | None]]).decode


RowsOf: TypeAlias = dict[bytes, E] | InOrder[E]
"""What a layer has of one fragment."""


def _some_of(rows: RowsOf[E], first: int, count: int) -> list[bytes]:
    """So many keys, in the order in which they came, after the `first` ones."""
    if isinstance(rows, InOrder):
        return rows.came[first : first + count]
    after = len(rows) - first - count
    if first <= after:
        return list(islice(rows, first, first + count))
    return list(islice(reversed(rows), after, after + count))[::-1]


class Layer(Generic[E]):
    """Entries applied since a point in time.

    Very many rows that were cleared are kept until the layer goes, and freed then, in pieces: all at once would take long.

    Invariant: `dead` says of how many keys of `rows` the entry is no row: a tombstone, or gone. Keys are never taken out of
    a layer, and what has them knows in which order they came: so the new ones are the last ones. A fragment's rows are in
    `opened`, or `packed` says where they are; it is packed once, so that a layer does not grow by what comes and goes.
    """

    __slots__ = (
        "_bytes",
        "_entry",
        "_given_up",
        "_order",
        "_replaced",
        "bytes",
        "cleared",
        "dead",
        "opened",
        "packed",
        "since",
    )

    def __init__(self, entry: Callable[[int, int, bytes | None], E]) -> None:
        self.opened = ByFragment[RowsOf[E]]()
        self.packed = ByFragment[int]()
        self._bytes = bytearray()
        self._entry = entry  # makes one
        self.dead = ByFragment[int]()  # none that has none of them
        self.cleared = ByFragment[None]()
        self.since = ByFragment[int]()  # up to which counter it had been applied when it began to change here
        self.bytes = 0
        self._given_up: list[dict[Namespace, RowsOf[E]]] = []  # of fragments that were cleared
        self._order = ByFragment[SortedList[bytes]]()
        self._replaced: ByFragment[tuple[int, array[int]]] = ByFragment()  # of so many keys, which have a row below

    def clear(self, fragment: Fragment) -> None:
        """Forget all rows of a fragment, here and below."""
        self.cleared[fragment] = None
        if isinstance(rows := self.opened.pop(fragment, None), InOrder):
            self._given_up.append({fragment[0]: rows})
        self.packed.pop(fragment, None)
        self.dead.pop(fragment, None)
        self._order.pop(fragment, None)
        self._replaced.pop(fragment, None)

    def parts(self) -> Iterator[dict[Namespace, Any]]:
        """All that it is made of, to be emptied when nobody reads it any more."""
        rows = self.opened, self.packed, self.dead, self.cleared, self.since
        made_of = *rows, self._order, self._replaced
        return chain(chain.from_iterable(some.taken() for some in made_of), self._given_up)

    # Packed.

    @property
    def rows(self) -> Mapping[Fragment, Mapping[bytes, E]]:
        """All rows, to be looked at; also in another thread, once nothing is written here any more."""
        return _Rows(self)

    def has(self, fragment: Fragment) -> bool:
        """Whether it has rows of a fragment, open or packed."""
        namespace, number = fragment  # each scan asks this of each partition
        opened, packed = self.opened.parts.get(number), self.packed.parts.get(number)
        return (opened is not None and namespace in opened) or (packed is not None and namespace in packed)

    def changes(self, fragment: Fragment) -> bool:
        """Whether anything of a fragment is another thing in here than below."""
        return self.has(fragment) or fragment in self.cleared

    def pack(self, fragment: Fragment) -> None:
        """Nothing comes to a fragment for now."""
        rows = self.opened.get(fragment)
        if not rows or fragment in self.packed or fragment in self.dead or len(rows) > PACKED_ROWS:
            return
        if sum([len(key) + len(entry.value or b"") for key, entry in rows.items()]) > PACKED_BYTES:
            return  # before anything is copied: a row may be very large
        data = _encode([(key, entry.epoch, entry.counter, entry.value) for key, entry in rows.items()])
        self.packed[fragment] = len(self._bytes)
        self._bytes += len(data).to_bytes(_LENGTH, "big") + data
        del self.opened[fragment]

    def look(self, fragment: Fragment) -> RowsOf[E] | None:
        """The rows of a fragment, to be looked at; None if there are none."""
        rows = self.opened.get(fragment)
        return rows if rows is not None or not self.packed.parts else self._unpacked(fragment)

    def find(self, fragment: Fragment, key: bytes) -> E | None:
        """The row of a key in a fragment that is packed, if it is; `look` of none that is not opened."""
        rows = self._packed_rows(fragment)
        for name, epoch, counter, value in rows or ():
            if name == key:
                return self._entry(epoch, counter, value)
        return None

    def _unpacked(self, fragment: Fragment) -> dict[bytes, E] | None:
        """Of one that is packed, made anew; None of any other."""
        rows = self._packed_rows(fragment)
        return None if rows is None else {key: self._entry(epoch, counter, value) for key, epoch, counter, value in rows}

    def _packed_rows(self, fragment: Fragment) -> list[tuple[bytes, int, int, bytes | None]] | None:
        at = self.packed.get(fragment, _OPENED)
        if at == _OPENED:
            return None
        begin = at + _LENGTH
        return _decode(self._bytes[begin : begin + int.from_bytes(self._bytes[at:begin], "big")])

    def open(self, fragment: Fragment) -> RowsOf[E] | None:
        """The rows of a fragment, to be changed or walked; None if there are none."""
        rows = self.opened.get(fragment)
        if rows is None and self.packed.parts and (rows := self._unpacked(fragment)) is not None:
            self.opened[fragment] = rows
            self.packed[fragment] = _OPENED  # only then: another thread may be reading
        return rows

    def begin(self, fragment: Fragment, more: int = 0) -> RowsOf[E]:
        """The same, of a fragment that may be new here, and is to have so many `more`."""
        rows = self.open(fragment)
        if rows is None:
            rows = self.opened[fragment] = {} if more <= FEW else InOrder({})
        elif len(rows) + more > FEW and isinstance(rows, dict):
            rows = self.opened[fragment] = InOrder(rows)
        return rows

    def bury(self, fragment: Fragment, more: int) -> None:
        """Of so many more keys the entry is no row; or of so many fewer."""
        dead = self.dead.get(fragment, 0) + more
        assert dead >= 0, "what was no row was counted"
        if dead:
            self.dead[fragment] = dead
        else:
            self.dead.pop(fragment, None)

    # In order.

    def put_in_order(self, fragment: Fragment, most: int) -> int:
        """Sort up to `most` of the keys that came since the last scan; how many there were: more if more are left."""
        rows = self.open(fragment)
        if not rows:
            return 0
        order = self._order.get(fragment)
        if order is None:
            order = self._order[fragment] = SortedList()
        new = len(rows) - len(order)
        order.update(_some_of(rows, len(order), min(new, most)))
        return new

    def some_from(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[tuple[bytes, E]]:
        """Up to `limit` of the layer's rows of one fragment with keys >= start, ascending, or `down`: < start, descending;
        they were put in order."""
        rows = self.opened.get(fragment)
        if not rows:
            return []
        order = self._order[fragment]
        assert len(order) == len(rows), "a layer is put in order before it is walked"
        keys = order.irange(None, start, (True, False), reverse=True) if down else order.irange(start)
        return [(key, rows[key]) for key in islice(keys, limit)]

    # Counted.

    def look_below(
        self, fragment: Fragment, below: Callable[[bytes], E | None], most: int, at_once: AtOnce, end: int | None = None
    ) -> int:
        """Look up to `most` of the keys up that nobody has, in the order in which they came, as far as they are looked up
        `at_once`; how much work it was, above `most` if more are left of all, or of the first ones, up to an `end`. What
        lies below a layer stays what it is while there is the layer."""
        rows = self.open(fragment)
        if not rows:
            return 0
        seen, replaced = self._replaced.get(fragment) or (0, array("I"))
        left = (len(rows) if end is None else end) - seen
        if left <= 0:
            return 0
        some = _some_of(rows, seen, min(most, left))
        fit, large = at_once(some)
        del some[fit:]
        found = map(below, some)
        replaced.extend([at for at, held in enumerate(found, seen) if held is not None and held.value is not None])
        self._replaced[fragment] = seen + len(some), replaced
        work = len(some) + large
        return work if len(some) == left else max(work, most + 1)

    def more(self, fragment: Fragment, end: int | None = None, dead: int = 0) -> int:
        """How many rows more there are with this layer than without; all of its keys were looked up below. Or how many
        there were when it had so many keys, of which so many were `dead`."""
        rows = self.open(fragment)
        if not rows or end == 0:
            return 0
        seen, replaced = self._replaced[fragment]
        if end is None:
            end, dead = len(rows), self.dead.get(fragment, 0)
        assert seen >= end, "a layer is looked up before it is counted"
        return end - dead - bisect_left(replaced, end)


class _Rows(Mapping[Fragment, Mapping[bytes, E]]):
    """The rows of a layer, whether open or packed."""

    __slots__ = ("_layer",)

    def __init__(self, layer: Layer[E]) -> None:
        self._layer = layer

    def get(self, fragment: Fragment, default: Any = None) -> Any:
        """The rows of one, without an error that nobody hears where there are none."""
        return self[fragment] if self._layer.has(fragment) else default

    def __getitem__(self, fragment: Fragment) -> Mapping[bytes, E]:
        rows = self._layer.look(fragment)
        return rows if rows is not None else self._layer.opened[fragment]  # where another thread has just opened it

    def __contains__(self, fragment: object) -> bool:
        return self._layer.has(fragment)  # type: ignore[arg-type]  # a mapping is asked for anything

    def __iter__(self) -> Iterator[Fragment]:
        opened, packed = self._layer.opened, self._layer.packed
        for number in dict.fromkeys([*opened.parts, *packed.parts]):
            for namespace in dict.fromkeys([*opened.of(number), *packed.of(number)]):
                yield namespace, number

    def __len__(self) -> int:
        return sum(1 for _ in self)


def merged(sources: list[list[tuple[bytes, T]]], limit: int, *, down: bool) -> tuple[list[tuple[bytes, T]], bytes | None]:
    """The newest there is of each key, in order, and where to go on; the newest source comes first.

    Each source was asked for `limit` rows: the others may have more only before the last one of those who gave as many.
    """
    there = [rows for rows in sources if rows]
    if not there:
        return [], None  # how it mostly is: of each partition that is looked into few have anything
    full = [rows[-1][0] for rows in there if len(rows) == limit]
    last = (max(full) if down else min(full)) if full else None
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
