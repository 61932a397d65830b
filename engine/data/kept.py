"""What was overwritten since a cut was taken, for as long as somebody reads at it.

```
 rows at cut A  =  what A keeps, else what B keeps, else what C keeps, else what is there now
                        A < B < C: cuts that are read at, oldest first
```

A row that is overwritten is kept once: for the newest cut that is older than the write. Whoever reads at an older one
finds it by looking on from there. So a write costs what it overwrites, however many cuts there are, and nothing if there
is none. The oldest cut goes with all that it keeps; of one in between, what an older one has not is handed to that, later.
Of each fragment it is known which cuts keep anything: who reads looks at these, and at no others.

Of very many rows it is noted only that they are kept: what they had lies where it lay, below what has come since the last
checkpoint, and is read there in pieces later, or by who asks first. And that is noted in pieces, before they are written:
what a key has that is not kept for the newest cut is what it had at that cut, whether or not it is written then.

What comes of a prepared transaction may be of an era before the newest cut. Its keys were locked meanwhile, so nothing is
kept of them for a newer cut, which sees what is there.

With the first row of a fragment that is kept for a cut it is noted where the fragment stood: all counters up to there had
been applied, and are of before. So nothing comes after the cut at or below the *mark*, whatever comes (`mark`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import TypeAlias

from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS, PIECE_KEYS
from engine.state.store import GONE, ROW_OVERHEAD_BYTES, Entry, LayeredStore, Page, Row, is_row
from engine.turn.letting_go import empty
from rebalance.by_key import Table, in_parts, parts_of, roomy
from wal.ids import NO_ERA, Era, Fragment
from wal.probe import probe

READ_WORK = 64
"""Rows that are more work to read than this are read later."""
FOLDED_MAX = 2_000
"""So many rows are handed to an older cut at once; more stay where they are until the older one goes."""
FOLDED_OF_WORK = 8
"""So many of them are as much work as one thing that is decided."""
STEPS_MAX, STEPS_OF_WORK = 50_000, 50
"""So many cuts, one after the other, are asked for rows before a turn may end; and how many are as much work as a row."""


class Unread:
    """What some rows had, and where that is read until the next checkpoint is finished."""

    __slots__ = ("below",)

    def __init__(self, below: Callable[[bytes], Entry | None]) -> None:
        self.below = below


Held: TypeAlias = Entry | Unread | None
Rows: TypeAlias = dict[Fragment, Table[Held]]
"""Of each key what it had; None: nothing."""


class Kept:
    """What one node keeps of its rows, by cut. `store` has what is there now."""

    def __init__(self, store: LayeredStore, lwm: Callable[[Fragment], int] = lambda _: 0) -> None:
        self._store = store
        self._lwm = lwm
        self._get = store.get
        self._unread: deque[tuple[Era, Fragment, list[bytes], Unread]] = deque()  # still to be read, for which cut
        self._eras: list[Era] = []  # of cuts, ascending; some may be over, and stand between others that are not
        self._rows: dict[Era, Rows] = {}
        self._stood: dict[Era, dict[Fragment, int]] = {}  # the LWM of a fragment when the first of its rows was kept
        self._cuts_of: dict[Fragment, list[Era]] = {}  # who keep something of it, ascending; and some that are gone
        self._over: dict[Era, None] = {}
        self._unfolded: deque[Era] = deque()  # those of them that may have something for an older one
        self._gone: list[tuple[Era, Rows, dict[Fragment, int]]] = []  # what is to be let go of
        self._bytes: dict[Era, int] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._eras)

    def __contains__(self, fragment: object) -> bool:
        """Whether anything is kept of a fragment, or was a moment ago: none of its deletes may be forgotten."""
        return fragment in self._cuts_of

    def begin(self, cut: Era) -> None:
        """From now on keep what is overwritten by what is not older than this cut."""
        insort(self._eras, cut)
        self._rows[cut], self._stood[cut] = {}, {}
        self._bytes[cut] = 0

    def end(self, cut: Era) -> None:
        """Nobody reads at a cut any more; what comes of that is for `tidy`."""
        self._over[cut] = None
        if self._eras[0] != cut:
            self._unfolded.append(cut)
            return
        gone = next((at for at, era in enumerate(self._eras) if era not in self._over), len(self._eras))
        for era in self._eras[:gone]:
            self._drop(era)
        del self._eras[:gone]

    def _drop(self, cut: Era) -> None:
        self._over.pop(cut)
        self.bytes -= self._bytes.pop(cut)
        self._gone.append((cut, self._rows.pop(cut), self._stood.pop(cut)))

    def is_tidy(self) -> bool:
        """Whether nothing is left for `tidy`."""
        return not (self._gone or self._unfolded)

    def tidy(self) -> Iterator[int]:
        """Hand on what is kept for cuts that are over, and let go of what nobody needs; yields how much work it was."""
        while not self.is_tidy():
            if not self._gone:
                yield self._fold(self._unfolded.popleft())
                continue
            cut, rows, stood = self._gone.pop()
            freed = 0
            while rows:
                name, of = rows.popitem()
                self._keeps_no_more(cut, name)
                yield from empty(parts_of(of))
                freed += 1
                if not freed % FOLDED_MAX:
                    yield FOLDED_MAX // FOLDED_OF_WORK
            yield from empty([stood])
            yield 1 + freed % FOLDED_MAX // FOLDED_OF_WORK

    def _keeps_no_more(self, cut: Era, name: Fragment) -> None:
        cuts = self._cuts_of[name]
        del cuts[bisect_left(cuts, cut)]
        if not cuts:
            del self._cuts_of[name]

    def _fold(self, cut: Era) -> int:
        """Hand what is kept for a cut that is over to the one before it, if that is little; how much work it was."""
        if cut not in self._rows:
            return 1  # the older ones are over, too
        at, rows = bisect_left(self._eras, cut), self._rows[cut]
        unread = any(of == cut for of, *_ in self._unread)
        if not at or unread or len(rows) > FOLDED_MAX or sum(map(len, rows.values())) > FOLDED_MAX:
            return 1 + min(len(rows), FOLDED_MAX) // FOLDED_OF_WORK
        before, size, handed = self._eras[at - 1], 0, 0
        for name, of in rows.items():
            older = self._of(before, name, self._stood[cut][name], len(of))
            handed += len(of)
            for key, held in of.items():
                if key not in older:
                    older[key] = held
                    size += _weight(key, held)
        self._weigh(before, size)
        del self._eras[at]
        self._drop(cut)
        return 1 + handed // FOLDED_OF_WORK

    def keep(self, name: Fragment, keys: Sequence[bytes], era: Era, noted: Era = NO_ERA) -> None:
        """Rows are about to be written anew in this era: keep what they have, where somebody may want to read it, and they
        are not all `noted` for that cut."""
        at = bisect_right(self._eras, era)
        if not at or self._eras[at - 1] == noted:
            return
        cut = self._eras[at - 1]
        if len(keys) > LARGE_KEYS:
            probe("cut.kept_at_once")
            self._note(cut, name, keys)
            return
        if self._store.base.fitting_of(name, keys)[1] > READ_WORK:
            probe("cut.large_rows_are_kept")
            self._note(cut, name, keys)
            return
        mine, get, size = self._of(cut, name, self._lwm(name), len(keys)), self._get, 0
        for key in keys:
            if key not in mine:
                held = mine[key] = get(name, key)
                size += _weight(key, held)
        self._weigh(cut, size)

    def note(self, name: Fragment, keys: Sequence[bytes]) -> Generator[int, None, Era]:
        """What very many rows have that are to be written soon, by what is not older than the newest cut: note it for that.

        Yields how much work each piece was; returns for which cut all are noted.
        """
        cut = self._eras[-1] if self._eras else NO_ERA
        for at in range(0, len(keys), PIECE_KEYS):
            if cut not in self._rows:
                return NO_ERA
            self._note(cut, name, keys[at : at + PIECE_KEYS])
            yield PIECE_KEYS // KEYS_OF_WORK
        return cut

    def _note(self, cut: Era, name: Fragment, keys: Sequence[bytes]) -> None:
        """They are kept, and read later."""
        mine, unread = self._of(cut, name, self._lwm(name), len(keys)), Unread(self._store.below(name))
        above, _ = self._store.layer_of(name)
        fresh: list[bytes] = []
        for some, (there, rows) in in_parts(keys, mine, above):
            new = [key for key in some if key not in there]
            there.update(zip(new, map(rows.get, new, repeat(unread)), strict=True))
            fresh += new
        if fresh:
            self._unread.append((cut, name, fresh, unread))

    def _of(self, cut: Era, name: Fragment, stood: int, more: int) -> Table[Held]:
        """What is kept of a fragment for a cut, of which so much `more` is to be kept now, or was when it `stood` there."""
        known = self._stood[cut]
        if name not in known:
            insort(self._cuts_of.setdefault(name, []), cut)
            known[name] = stood
        elif known[name] > stood:
            known[name] = stood
        rows = self._rows[cut]
        kept = rows[name] = roomy(rows.get(name, _NONE_KEPT), more)
        return kept

    def mark(self, cut: Era, name: Fragment) -> int:
        """A counter at or below which nothing comes, or came, into a fragment after a cut: with it the rows at the cut can
        be held against what is there later."""
        stood = (self._stood[each][name] for each in self._later(cut, name) if each in self._stood)
        return min(stood, default=self._lwm(name))

    def _later(self, cut: Era, name: Fragment) -> list[Era]:
        """The cuts from this one on that keep something of a fragment, and some that are gone."""
        cuts = self._cuts_of.get(name, _NONE)
        return cuts[bisect_left(cuts, cut) :] if cuts else cuts

    def depth(self, cut: Era, name: Fragment) -> int:
        """How many there are of these: so many are asked for a key of which nothing was kept."""
        cuts = self._cuts_of.get(name)
        return len(cuts) - bisect_left(cuts, cut) if cuts is not None else 0

    def read(self) -> Iterator[int]:
        """Read what was not read yet, before a checkpoint is finished; yields how much work each piece was."""
        while self._unread:
            cut, name, keys, _ = self._unread[0]
            some = keys[: -PIECE_KEYS - 1 : -1]
            fit, large = self._store.base.fitting_of(name, some)
            del some[fit:], keys[-len(some) :]
            if not keys:
                self._unread.popleft()
            if cut not in self._rows:
                continue
            mine, size = self._rows[cut][name], 0
            for key in some:
                held = mine[key] = _read(key, mine[key])
                size += _weight(key, held)
            self._weigh(cut, size)
            yield len(some) // 2 + large

    def has_unread(self) -> bool:
        """Whether something is still to be read."""
        return bool(self._unread)

    def _weigh(self, cut: Era, size: int) -> None:
        self._bytes[cut] += size
        self.bytes += size

    def _from(self, cut: Era, name: Fragment) -> list[Table[Held]]:
        """What is kept of a fragment for a cut and those after it."""
        return [self._rows[each][name] for each in self._later(cut, name) if each in self._rows]

    def at(self, cut: Era, name: Fragment, key: bytes) -> Entry | None:
        """What a key had at a cut."""
        return self.reader(cut)(name, key)

    def reader(self, cut: Era) -> Callable[[Fragment, bytes], Entry | None]:
        """What tells that of each of some keys, while nothing is applied: where nothing was overwritten, as it is now."""
        known: dict[Fragment, list[Table[Held]]] = {}

        def read(name: Fragment, key: bytes) -> Entry | None:
            kept = known.get(name)
            if kept is None:
                kept = known[name] = self._from(cut, name)
            for of in kept:
                if key in of:
                    return _read(key, of[key])
            return self._get(name, key)

        return read if self._cuts_of else self._get

    def more(self, cut: Era, name: Fragment, most: int) -> tuple[int | None, int]:
        """How many rows more a fragment had at a cut than it has now, and how many keys were looked at; None if there are
        more than `most` to look at."""
        kept = self._from(cut, name)
        if sum(map(len, kept)) > most:
            return None, 0
        held: dict[bytes, Held] = {}
        for of in reversed(kept):
            held |= of
        return sum(is_row(_read(key, entry)) - is_row(self._get(name, key)) for key, entry in held.items()), len(held)

    def page(self, cut: Era, name: Fragment, page: Page) -> Page:
        """A page of what is there now, with the rows as they were at a cut. Each key of then has a row or a tombstone."""
        kept = self._from(cut, name)
        if not kept:
            return page
        rows: list[Row] = []
        for key, entry in page.rows:
            held: Entry | None = entry
            for of in kept:
                if key in of:
                    held = _read(key, of[key])
                    break
            if held is not None:
                rows.append((key, held))
        return Page(rows, page.next, page.work + len(page.rows) // 4 + len(page.rows) * len(kept) // STEPS_OF_WORK)


_NONE: list[Era] = []
_NONE_KEPT: Mapping[bytes, Held] = MappingProxyType({})


def _read(key: bytes, held: Held) -> Entry | None:
    if isinstance(held, Unread):
        held = held.below(key)
    return held if held is not GONE else None


def _weight(key: bytes, held: Held) -> int:
    value = held.value if isinstance(held, Entry) else None
    return ROW_OVERHEAD_BYTES + len(key) + (len(value) if value is not None else 0)
