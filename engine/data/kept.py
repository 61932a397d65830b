"""What was overwritten since a cut was taken, for as long as somebody reads at it.

```
 rows at cut A  =  what A keeps, else what B keeps, else what C keeps, else what is there now
                        A < B < C: cuts that are read at, oldest first
```

A row that is overwritten is kept once: for the newest cut that is older than the write. Whoever reads at an older one
finds it by looking on from there. So a write costs what it overwrites, however many cuts there are, and nothing if there
is none. The oldest cut goes with all that it keeps; of one in between, what an older one has not is handed to that.

Of very many rows it is noted only that they are kept: what they had lies where it lay, below what has come since the last
checkpoint, and is read there in pieces later, or by who asks first. And that is noted in pieces, before they are written:
what a key has that is not kept for the newest cut is what it had at that cut, whether or not it is written then.

What comes of a prepared transaction may be of an era before the newest cut. Its keys were locked meanwhile, so nothing is
kept of them for a newer cut, which sees what is there.

With the first row of a fragment that is kept for a cut it is noted where the fragment stood: all counters up to there had
been applied, and are of before. So nothing comes after the cut at or below the *mark*, whatever comes (`mark`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS, PIECE_KEYS
from engine.state.store import GONE, ROW_OVERHEAD_BYTES, Entry, LayeredStore, Page, Row, is_row
from wal.ids import NO_ERA, Era, Fragment
from wal.probe import probe

READ_WORK = 64
"""Rows that are more work to read than this are read later."""
FOLDED_MAX = 2_000
"""So many rows are handed to an older cut at once; more stay where they are until the older one goes."""


class Unread:
    """What some rows had, and where that is read until the next checkpoint is finished."""

    __slots__ = ("below",)

    def __init__(self, below: Callable[[bytes], Entry | None]) -> None:
        self.below = below


Held: TypeAlias = Entry | Unread | None
Rows: TypeAlias = dict[Fragment, dict[bytes, Held]]
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
        self._over: dict[Era, None] = {}
        self._bytes: dict[Era, int] = {}
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._eras)

    def __contains__(self, fragment: object) -> bool:
        """Whether anything is kept of a fragment: none of its deletes may be forgotten."""
        return any(fragment in rows for rows in self._rows.values())

    def begin(self, cut: Era) -> None:
        """From now on keep what is overwritten by what is not older than this cut."""
        insort(self._eras, cut)
        self._rows[cut], self._stood[cut] = {}, {}
        self._bytes[cut] = 0

    def end(self, cut: Era) -> list[Rows]:
        """Nobody reads at a cut any more; what is not needed now, to be let go of piece by piece."""
        self._over[cut] = None
        self._fold(cut)
        gone: list[Rows] = []
        while self._eras and self._eras[0] in self._over:
            gone.append(self._drop(self._eras[0]))
        return gone

    def _drop(self, cut: Era) -> Rows:
        self._eras.remove(cut)
        self._over.pop(cut)
        self.bytes -= self._bytes.pop(cut)
        del self._stood[cut]
        return self._rows.pop(cut)

    def _fold(self, cut: Era) -> None:
        """Hand what is kept for a cut that is over to the one before it, if that is little."""
        at = self._eras.index(cut)
        rows = self._rows[cut]
        unread = any(of == cut for of, *_ in self._unread)
        if not at or unread or sum(map(len, rows.values())) > FOLDED_MAX:
            return
        before, size = self._eras[at - 1], 0
        for name, of in rows.items():
            older = self._of(before, name, self._stood[cut][name])
            for key, held in of.items():
                if key not in older:
                    older[key] = held
                    size += _weight(key, held)
        self._weigh(before, size)
        self._drop(cut)

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
        mine, get, size = self._of(cut, name, self._lwm(name)), self._get, 0
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
        mine, unread = self._of(cut, name, self._lwm(name)), Unread(self._store.below(name))
        fresh = [key for key in keys if key not in mine]
        above, _ = self._store.layer_of(name)
        mine.update(zip(fresh, map(above.get, fresh, repeat(unread)), strict=True))
        if fresh:
            self._unread.append((cut, name, fresh, unread))

    def _of(self, cut: Era, name: Fragment, stood: int) -> dict[bytes, Held]:
        """What is kept of a fragment for a cut, of which something is to be kept now, or was when it `stood` there."""
        known = self._stood[cut]
        if name not in known or known[name] > stood:
            known[name] = stood
        return self._rows[cut].setdefault(name, {})

    def mark(self, cut: Era, name: Fragment) -> int:
        """A counter at or below which nothing comes, or came, into a fragment after a cut: with it the rows at the cut can
        be held against what is there later."""
        later = self._eras[bisect_right(self._eras, cut) - 1 :]
        return min((self._stood[each][name] for each in later if name in self._stood[each]), default=self._lwm(name))

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

    def _from(self, cut: Era, name: Fragment) -> list[dict[bytes, Held]]:
        """What is kept of a fragment for a cut and those after it."""
        at = bisect_right(self._eras, cut) - 1
        return [of for later in self._eras[at:] if (of := self._rows[later].get(name)) is not None]

    def at(self, cut: Era, name: Fragment, key: bytes) -> Entry | None:
        """What a key had at a cut."""
        return self.reader(cut)(name, key)

    def reader(self, cut: Era) -> Callable[[Fragment, bytes], Entry | None]:
        """What tells that of each of some keys, while nothing is applied: where nothing was overwritten, as it is now."""
        kept = [rows for later in self._eras[bisect_right(self._eras, cut) - 1 :] if (rows := self._rows[later])]

        def read(name: Fragment, key: bytes) -> Entry | None:
            for rows in kept:
                if name in rows and key in (of := rows[name]):
                    return _read(key, of[key])
            return self._get(name, key)

        return read if kept else self._get

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
        return Page(rows, page.next, page.work + len(page.rows) // 4)


def _read(key: bytes, held: Held) -> Entry | None:
    if isinstance(held, Unread):
        held = held.below(key)
    return held if held is not GONE else None


def _weight(key: bytes, held: Held) -> int:
    value = held.value if isinstance(held, Entry) else None
    return ROW_OVERHEAD_BYTES + len(key) + (len(value) if value is not None else 0)
