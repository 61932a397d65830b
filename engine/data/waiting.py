"""Who waits for which key, and for whom: what the table of locks keeps of it, and what others are told.

`engine.data.locks` is the table: who has a key next.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain, islice

from engine.data.holdings import Holdings, Key, Place, Places, Who
from engine.data.lines import Line
from engine.data.waiter import Single, Waiter, named
from wal.ids import TxId

LINE_MAX = 1_000
"""Of one line so many are looked at to tell who waits for whom: those at its head, of whom most hold other keys."""
LOOKED_MAX = 2_000
"""So many keys of one who waits are looked at to tell for whom."""


def _everybody(_: Waiter) -> bool:
    return True


class Waiting(Holdings):
    """Who holds what, and who stands in line for it. Whoever waits stands in the line of each key that it misses."""

    def __init__(self, place: Place, places: Places | None = None) -> None:
        super().__init__(place, places)
        self._waiting: dict[Key, Line[Waiter]] = {}
        self._waiters: dict[Waiter, None] = {}
        self._waiters_of: dict[TxId, dict[Waiter, None]] = {}
        self._waiters_in: dict[int, dict[Waiter, None]] = {}  # by partition, with each that its keys lie in

    def waiting(self, skip: int, most: int) -> list[tuple[TxId, Who | None]]:
        """Some transactions that wait, and since when they have waited."""
        waiters = islice(self._waiters_of.items(), skip, skip + most)
        return [(owner, next(iter(mine)).who) for owner, mine in waiters]

    def waits_at(self, owner: TxId) -> Who | None:
        """Who waits here, and since when, if it does."""
        return next((waiter.who for waiter in self._waiters_of.get(owner, ())), None)

    @property
    def awaited(self) -> bool:
        """Whether anybody stands in line for any key."""
        return bool(self._waiting)

    def may_close_a_circle(self, owner: TxId) -> bool:
        """Whether it waits here and holds something, or may, elsewhere, as its client says. Others may wait for it."""
        waiters = self._waiters_of.get(owner, ())
        return bool(waiters) and (owner in self._keys or any(waiter.holding for waiter in waiters))

    def is_awaited(self, key: Key) -> bool:
        """Whether anybody stands in line for a key."""
        return key in self._waiting

    def take_along(self, key: Key) -> Single | None:
        """The write of whoever is next in line for a key, if that is a single one: it waits no more, and has no lock. So
        whoever has the key writes it too, as one with its own."""
        while line := self._waiting.get(key):
            waiter = next(iter(line))
            if not waiter.done and waiter.single is None:
                return None
            self._leave(waiter, key, served=True)
            if not waiter.done:
                waiter.done = True
                self._no_longer_waits(waiter)
                return waiter.single
        return None

    @property
    def waiters(self) -> int:
        """How many wait for something."""
        return len(self._waiters)

    def lines(self) -> list[Key]:
        """The keys for which anybody stands in line."""
        return list(self._waiting)

    def waits(
        self, among: Callable[[Waiter], bool] = _everybody, keys: Iterable[Key] | None = None
    ) -> Iterator[tuple[TxId, TxId, Key, bool]]:
        """Who waits, for whom, where, and whether to read: for those that hold the key, and those before it in the line.

        A writer waits for the readers before it, and whoever is behind it for the writer; that it waits for those that hold
        the key, too, is said of the first writers only where these are many. So it is said in as many words as there are
        holders and waiters. `among` these: of others nothing is said, and whoever stands behind such a one waits for those
        for whom that one does. For these `keys`, or all.
        """
        for key in self._waiting if keys is None else keys:
            if (line := self._waiting.get(key)) is None:
                continue
            owner, readers = self._owner.get(key), list(self._sharing.get(key, ()))
            holders = [owner] if owner is not None else readers
            before: list[TxId] = []  # the readers that wait since the last writer; if there are none, that one
            writer: list[TxId] = []
            behind = False  # somebody of whom nothing is said, and who keeps readers from the key
            for waiter in islice(line, LINE_MAX):
                if not among(waiter):
                    behind = behind or not waiter.shared
                    continue
                ahead = writer if waiter.shared else before
                if owner is not None or key in waiter.raised or behind or not (writer or waiter.shared):
                    ahead = [*holders, *ahead]
                for other in dict.fromkeys(ahead):
                    if other != waiter.owner:
                        yield waiter.owner, other, key, waiter.shared
                if not waiter.shared:
                    before = writer = [waiter.owner]
                elif before is writer:
                    before = [waiter.owner]
                else:
                    before.append(waiter.owner)

    def waits_of(self, owner: TxId) -> Iterator[tuple[TxId, Key, bool]]:
        """For whom a transaction waits here, where, and whether to read; those before it in line are left out."""
        for waiter in self._waiters_of.get(owner, ()):
            for key in islice(waiter.missing, LOOKED_MAX):
                held = self._owner.get(key)
                readers = () if waiter.shared else self._sharing.get(key, ())
                for other in (held,) if held is not None else readers:
                    if other != owner:
                        yield other, key, waiter.shared

    def waits_for(self, owner: TxId, other: TxId) -> bool:
        """Whether a transaction waits here for a key that the other one holds, or for which that stands in line, too."""
        theirs = self._waiters_of.get(other, ())
        for waiter in self._waiters_of.get(owner, ()):
            if any(not waiter.missing.keys().isdisjoint(ahead.missing) for ahead in theirs):
                return True
            if any(self.holds(other, key) for key in islice(waiter.missing, LOOKED_MAX)):
                return True
        return False

    def _leave(self, waiter: Waiter, key: Key, *, served: bool = False) -> bool:
        """Out of the line; whether it stood in it."""
        line = self._waiting.get(key)
        if line is None or not line.leave(waiter, served=served):
            return False
        del waiter.missing[key]
        if not line:
            del self._waiting[key]
        return True

    def wait_in(self, partitions: Container[int]) -> list[Waiter]:
        """Who waits for keys of some partitions."""
        found = (waiters for number, waiters in self._waiters_in.items() if number in partitions)
        return list(dict.fromkeys(chain.from_iterable(found)))

    def _wants_in(self, waiter: Waiter, keys: list[Key]) -> None:
        """Somebody who waits has asked for these keys."""
        for number in self._places(keys) if len(keys) > 1 else (self._place(*keys[0]),):
            if number not in waiter.partitions:
                waiter.partitions[number] = None
                self._waiters_in.setdefault(number, {})[waiter] = None

    def _no_longer_waits(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        for number in waiter.partitions:
            there = self._waiters_in[number]
            del there[waiter]
            if not there:
                del self._waiters_in[number]
        mine = self._waiters_of[waiter.owner]
        del mine[waiter]
        if not mine:
            del self._waiters_of[waiter.owner]

    def _in_the_way(self, waiter: Waiter, now: int) -> str:
        for key in islice(waiter.missing, LOOKED_MAX):
            owner, readers = self._owner.get(key), () if waiter.shared else self._sharing.get(key, ())
            holders = (owner,) if owner is not None else readers
            other = next((other for other in holders if other != waiter.owner), None)
            if other is not None:
                label, since, _ = self._who.get(other, Who("", now))
                who = named(other, label) + (f" for {(now - since) / 1e9:.1f} s" if now > since else "")
                count = len(holders) - (waiter.owner in holders)
                more = f", and {count - 1} more" if count > 1 else ""
                return f"{key[0]}:{key[1]!r} {'held' if owner is not None else 'read'} by {who}{more}"
        return "single writes that are under way"
