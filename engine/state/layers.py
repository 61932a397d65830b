"""What lies over what in a store, and how many rows there are with all of it.

```
 rows  =  those of the store below  +  what the frozen layer adds  +  what the active one does
```

The store below knows how many are its own. What a layer adds is known when each of its keys was looked up in what lies
below it, and beside writers of new keys these would never end. So rows are counted as of a moment: that needs the keys
that were there by then, which are the first ones of their layer, and no others. The checkpoint that takes such a layer
down counts as well, for it reads what it replaces: whoever has not looked all up by the time it is finished has a number
from it, of when it began. So no count takes longer than the checkpoint under way and the one that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine.state.held import Weighing, all_at_once
from engine.state.layer import Layer, RowsOf
from rebalance.by_fragment import ByFragment
from rebalance.contents import Entry
from wal.ids import Fragment
from wal.probe import probe

E = TypeVar("E", bound=Entry)
E_co = TypeVar("E_co", bound=Entry, covariant=True)


class Base(Weighing, Protocol[E_co]):
    """The store below, as it is read here: `engine.state.store.BaseStore` says how."""

    def get(self, fragment: Fragment, key: bytes) -> E_co | None:
        """One key's entry."""
        ...

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> Sequence[object]:
        """Some rows."""
        ...

    def live(self, fragment: Fragment) -> int | None:
        """How many of a fragment's rows are no tombstones."""
        ...


class Moment(NamedTuple, Generic[E]):
    """A fragment as it was: how many keys its active layer had, in these `rows`, and of how many the entry was no row."""

    fragment: Fragment
    layer: Layer[E]
    rows: RowsOf[E] | None
    keys: int
    dead: int
    alone: bool  # whatever lay below had been cleared


class Layers(Generic[E]):
    """Layers over a store, the newest first; who reads and writes them is `engine.state.store.LayeredStore`."""

    def __init__(self, base: Base[E], entry: Callable[[int, int, bytes | None], E]) -> None:
        self.base = base
        self._active = Layer(entry)
        self._frozen: Layer[E] | None = None
        self._live = ByFragment[int | None]()  # rows of the base, as far as they were asked for

    @property
    def layers(self) -> list[Layer[E]]:
        """What lies above the base, the newest first."""
        return [self._active] if self._frozen is None else [self._active, self._frozen]

    # What lies below.

    def below(self, fragment: Fragment, *, stored: bool = True) -> Callable[[bytes], E | None]:
        """What lies below what came since the last checkpoint began, until a `thaw`. `stored`: the store may have some."""
        return _nothing if fragment in self._active.cleared else self.as_frozen(fragment, stored=stored)

    def as_frozen(self, fragment: Fragment, *, stored: bool = True) -> Callable[[bytes], E | None]:
        """The same, whatever came since: the rows of a checkpoint that is under way; without one, those of the store."""
        below = self._below_frozen(fragment, stored=stored)
        rows = self._frozen.rows.get(fragment) if self._frozen is not None else None
        return below if rows is None else partial(_either, rows, below)

    def _below_frozen(self, fragment: Fragment, *, stored: bool) -> Callable[[bytes], E | None]:
        gone = not stored or (self._frozen is not None and fragment in self._frozen.cleared)
        return _nothing if gone else partial(self.base.get, fragment)

    def _is_cleared(self, fragment: Fragment) -> bool:
        return fragment in self._active.cleared or (self._frozen is not None and fragment in self._frozen.cleared)

    # How many.

    def moment(self, fragment: Fragment) -> Moment[E]:
        """What is to be counted: the rows that there are now. O(1)."""
        layer = self._active
        rows, dead = layer.open(fragment), layer.dead.get(fragment, 0)
        alone = fragment in layer.cleared
        return Moment(fragment, layer, rows, keys=len(rows or ()), dead=dead, alone=alone)

    def passed(self, moment: Moment[E]) -> bool:
        """Whether a fragment cannot be counted any more as it was at a moment: a checkpoint took it down, or it was
        cleared."""
        there = moment.layer.opened.get(moment.fragment)
        return moment.layer not in self.layers or (moment.keys > 0 and there is not moment.rows)

    def counted(self, moment: Moment[E], most: int) -> tuple[int | None, int]:
        """How many rows a fragment had at a moment, tombstones aside, or at a later one if that has `passed`; None if the
        store below does not know how many are its own. And how much work it was: above `most` if it is to be asked again
        first.

        What came since the last count is looked up, once for each key between two checkpoints: first what came after the
        checkpoint under way began, which that does not count.
        """
        name = moment.fragment
        if moment.layer not in self.layers:
            probe("count.by_a_checkpoint")
            return self._stored(name), 0
        if self.passed(moment):
            probe("count.of_a_later_moment")
            moment = self.moment(name)
        over: list[tuple[Layer[E], int | None, int]] = [(moment.layer, moment.keys, moment.dead)]
        alone, frozen = moment.alone, self._frozen
        if frozen is not None and frozen is not moment.layer and not alone:
            over.append((frozen, None, 0))
            alone = name in frozen.cleared
        stored = self._stored(name) if not alone else 0
        if stored is None:
            return None, 0
        at_once = partial(self.base.fitting_of, name) if stored else all_at_once
        rows, work = stored, 0
        for layer, keys, dead in over:
            below = self.below if layer is self._active else self._below_frozen
            work += layer.look_below(name, below(name, stored=stored > 0), max(1, most - work), at_once, keys)
            if work > most:
                return None, work
            rows += layer.more(name, keys, dead)
        return rows, work

    def count(self, fragment: Fragment, most: int) -> tuple[int | None, int]:
        """The same of now."""
        return self.counted(self.moment(fragment), most)

    def least(self, fragment: Fragment) -> int:
        """How many rows a fragment has at least: those of the last checkpoint, if each delete since was of one of them."""
        gone = sum(layer.dead.get(fragment, 0) for layer in self.layers)
        return 0 if self._is_cleared(fragment) else max(0, (self._stored(fragment) or 0) - gone)

    def _stored(self, fragment: Fragment) -> int | None:
        """How many rows the store below has, tombstones aside; None if it does not know."""
        if fragment not in self._live:
            found = self.base.live(fragment)
            self._live[fragment] = found if found is not None or self.base.scan(fragment, b"", 1) else 0
        return self._live[fragment]


def _nothing(_key: bytes) -> None:
    return None


def _either(first: Mapping[bytes, E], then: Callable[[bytes], E | None], key: bytes) -> E | None:
    entry = first.get(key)
    return entry if entry is not None else then(key)
