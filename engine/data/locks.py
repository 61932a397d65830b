"""Who may read and write which key of the partitions that this node is primary of, and who waits for it.

A lock belongs to a transaction and lasts until the transaction ends, its client gives it up, its lease runs out (the client
died), or the partition changes its primary; unless it is pinned (`engine.data.holdings`).

Whoever must wait is served in order, readers beside each other: no reader passes a writer who waits, so that neither
starves. Only a reader who wants to write what it reads stands before all others, since nobody behind it could go on
without it; it has the key when it is its only reader. Two of these wait for each other, and one must give way. And a
writer who holds other keys passes some of those who hold nothing (`engine.data.lines`). Who waits `early` may have a key
as soon as the commit of its owner is certain, others when it counts.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import partial
from itertools import filterfalse

from engine.data.ending import Ends
from engine.data.holdings import MANY_KEYS, Key, Place, Places, Who, Written
from engine.data.lines import Line
from engine.data.waiter import Acked, Ring, Single, Waiter
from engine.data.waiting import Waiting
from rebalance.rule import NEVER
from wal.ids import TxId
from wal.probe import probe

EXPIRED_MAX = 1_000
"""Waiters and leases that end in one turn; the rest in the next."""
STANDING_MAX = 2_000
"""Keys that who has very many stands in line for in one piece."""
RELEASED_MAX = 1_000
"""Keys that a transaction which is given up releases in one piece."""
KEYS_OF_ONE = 8
"""So many of them cost as much as a waiter or a lease that ends."""

_all_at_once = partial(deque[int], maxlen=0)


class LockTable(Waiting):
    """Locks by key. Invariant: the first who waits for a key cannot have it: for whoever has it, or for a single write; or
    because the turn has no room for more."""

    def __init__(self, place: Place, places: Places | None = None) -> None:
        super().__init__(place, places)
        self._pending: dict[Key, int] = {}  # single writes under way; they hold a key together
        self.began: list[TxId] = []  # who has begun to wait since somebody looked for circles
        self.gave_up = False  # somebody who waited, since then
        self.acked: Acked | None = None  # while what counts lets go of keys, for whoever has them now
        self._ends = Ends[Waiter | TxId]()
        self._served: deque[Waiter] = deque()  # these have all, and are yet to be told
        self.may_tell: Callable[[], bool] = lambda: True  # one more in this turn; else `tell_on` is called in a later one
        self._untold: OrderedDict[Waiter, None] = OrderedDict()  # these have all, and wait for that
        self._ungranted: OrderedDict[Key, None] = OrderedDict()  # what more may have then of those in line
        self.in_pieces: Callable[[Iterator[int]], object] = _all_at_once  # does something in as many turns as it takes
        self.drops = 0  # how often keys went with their partitions

    # Single writes, which hold nothing but must not pass a transaction.

    @property
    def idle(self) -> bool:
        """No transaction holds or awaits any key, and none is in doubt."""
        return not (self._owner or self._sharing or self._waiting or self.handed)

    def busy(self, key: Key) -> bool:
        """Whether a single write of the key would have to wait for a transaction."""
        return key in self._owner or key in self._sharing or key in self._waiting or key in self.handed

    def busy_any(self, keys: Collection[Key]) -> bool:
        """Whether a single write of any of some keys would have to wait for a transaction."""
        held = (self._owner, self._sharing, self._waiting, self.handed)
        return any(any(map(those.__contains__, keys)) for those in held if those)

    def pend(self, key: Key) -> None:
        """A single write of the key is under way."""
        self._pending[key] = self._pending.get(key, 0) + 1

    def unpend(self, key: Key) -> None:
        """A single write of the key counts (or was abandoned)."""
        pending = self._pending
        left = pending.pop(key, 0) - 1
        if left > 0:
            pending[key] = left
        elif left == 0 and self._waiting and key in self._waiting:
            self._grant(key)

    def is_pending(self, key: Key) -> bool:
        """Whether a single write of the key is under way."""
        return key in self._pending

    def alone(self, owner: TxId, key: Key) -> bool:
        """Whether nobody but this owner (b"": nobody at all) has the key, and no single write of it is under way."""
        return self._free(owner, key, shared=False)

    # Transactions.

    def try_all(self, owner: TxId, keys: Iterable[Key], reads: Iterable[Key] = ()) -> Key | None:
        """Take all keys to write, and `reads` to read, without waiting; or none, and the one that stood in the way."""
        wanted = dict.fromkeys(keys, owner)
        read = [key for key in reads if key not in wanted]
        new = len(wanted) >= MANY_KEYS and not self._known(wanted)
        one_by_one = [(key, False) for key in (() if new else wanted)] + [(key, True) for key in read]
        for key, shared in one_by_one:
            if not self._at_once(owner, key, shared=shared):
                return key
        if new:
            self._take_new(owner, wanted)
        for key, shared in one_by_one:
            self._take(owner, key, shared=shared)
        return None

    def _known(self, keys: dict[Key, TxId]) -> set[Key]:
        """Those of some keys that anybody has, has handed on, awaits or writes."""
        asked = keys.keys()
        return (
            asked & self._owner.keys()
            | asked & self._sharing.keys()
            | asked & self._waiting.keys()
            | asked & self._pending.keys()
            | asked & self.handed.keys()
        )

    def wait_all(
        self,
        owner: TxId,
        keys: list[Key],
        deadline: int,
        granted: Callable[[], None],
        expired: Callable[[str, Ring], None],
        *,
        shared: bool = False,
        who: Who | None = None,
        holding: bool = False,
        early: bool = False,
        single: Single | None = None,
    ) -> None:
        """Take all keys, waiting in line for each; then `granted`. After `deadline` (ns), or told to give way: `expired`.

        Who gives up has none of them, but for reading what it read before: a timeout is no grant, not even of a part.
        `early`: what is handed on will do.
        """
        waiter = Waiter(owner, keys, deadline, granted, expired, shared=shared, who=who, holding=holding, early=early)
        waiter.single = single
        self._stand(waiter, keys)
        if waiter.missing:
            self._begin_to_wait(waiter)
            self._wants_in(waiter, keys)
        else:
            waiter.done = True
            granted()

    def standing(self, waiter: Waiter) -> Iterator[int]:
        """As `wait_all`, in pieces: yields how many keys the last one was. All of it is given up if it is over before."""
        waiter.coming = True
        self._begin_to_wait(waiter)
        for at in range(0, len(waiter.keys), STANDING_MAX):
            if waiter.done:
                return
            piece, missing = waiter.keys[at : at + STANDING_MAX], len(waiter.missing)
            self._wants_in(waiter, piece)
            self._stand(waiter, piece)
            if len(waiter.missing) > missing:
                self.began.append(waiter.owner)
            yield len(piece)
        waiter.coming = False
        if not waiter.missing and not waiter.done:
            self._has_all(waiter)

    def _begin_to_wait(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None
        self._waiters_of.setdefault(waiter.owner, {})[waiter] = None
        self.began.append(waiter.owner)
        self._ends.add(waiter.deadline, waiter)

    def _has_all(self, waiter: Waiter) -> bool:
        """It has all, and is told: one after the other, where who is told lets go at once, and so the next one has all.
        Until it is told it waits, and so it may be given up. Whether the turn had room for it."""
        if not self.may_tell():
            probe("lock.told_in_a_later_turn")
            waiter.coming = True
            self._untold[waiter] = None
            return False
        self._tell(waiter)
        return True

    def _tell(self, waiter: Waiter) -> None:
        waiter.done = True
        self._no_longer_waits(waiter)
        self._served.append(waiter)
        while self._served[0] is waiter:
            self._served[0].granted()
            self._served.popleft()
            if not self._served:
                break
            waiter = self._served[0]

    def tell_on(self) -> None:
        """Tell those who have all and could not be told in an earlier turn, as far as this one has room; and when all are,
        let others have what they left."""
        while self._untold:
            waiter = next(iter(self._untold))
            if not (waiter.done or self.may_tell()):
                return
            del self._untold[waiter]
            if not waiter.done:
                self._tell(waiter)
        while self._ungranted and not self._untold:
            self._grant(self._ungranted.popitem(last=False)[0])

    def _stand(self, waiter: Waiter, keys: list[Key]) -> None:
        """Take of some keys what is free, and stand in line for the others."""
        owner, shared, held, sharing = waiter.owner, waiter.shared, self._owner, self._sharing
        wanted = dict.fromkeys(keys, owner)
        if len(wanted) >= MANY_KEYS and not shared:
            known = self._known(wanted)
            new, wanted = wanted, {key: owner for key in wanted if key in known} if known else {}
            for key in wanted:
                del new[key]
            self._take_new(owner, new)
            waiter.taken.extend(new)
        for key in wanted:
            if not (key in held or key in sharing or key in self._waiting or key in self._pending or key in self.handed):
                self._take(owner, key, shared=shared)  # how it nearly always is
                waiter.taken.append(key)
                continue
            reads = owner in sharing.get(key, ())
            if held.get(key) == owner or (reads and shared):
                continue
            if reads:
                waiter.raised[key] = False
            if self._at_once(owner, key, shared=shared, early=waiter.early):
                self._give(waiter, key)
                continue
            self._waiting.setdefault(key, Line()).join(waiter, raising=reads)
            waiter.missing[key] = None

    def _free(self, owner: TxId, key: Key, *, shared: bool, early: bool = False) -> bool:
        """Whether nobody who has the key stands in the way of a transaction, which may have it `early`."""
        if not early and key in self.handed:
            return False
        if (held := self._owner.get(key)) is not None:
            return held == owner or (early and self._may_be_handed_on(key))
        if key in self._pending:
            return False
        others = self._sharing.get(key)
        return shared or others is None or (len(others) == 1 and owner in others)

    def _at_once(self, owner: TxId, key: Key, *, shared: bool, early: bool = False) -> bool:
        """Whether a transaction need not wait for a key: neither for whoever has it, nor in line, unless it has it, too."""
        if not (key in self._owner or key in self._waiting or key in self._sharing or key in self.handed):
            return key not in self._pending  # how it nearly always is
        free = self._free(owner, key, shared=shared, early=early)
        return free and (key not in self._waiting or self.holds(owner, key))

    def _give(self, waiter: Waiter, key: Key) -> None:
        if self._owner.get(key, waiter.owner) != waiter.owner:
            self._hand_on(key)
        self._take(waiter.owner, key, shared=waiter.shared)
        if key in waiter.raised:
            waiter.raised[key] = True
        else:
            waiter.taken.append(key)

    def _lower(self, owner: TxId, key: Key) -> None:
        """Who was to write a key reads it as before."""
        if self._owner.get(key) == owner and key not in self._pinned:
            del self._owner[key]
            self._sharing[key] = {owner: False}
            self._grant(key)

    def give_up(self, owner: TxId, keys: list[Key] | None = None) -> None:
        """The transaction is not wanted any more (or not these keys of it): release what does not wait for an outcome."""
        if owner in self._keys:
            mine = self.keys_of(owner) if keys is None else keys
            if self._pinned or self._sharing:
                pinned = self._pinned.__contains__ if self.may_write_all(owner, mine) else partial(self.is_pinned, owner)
                mine = list(filterfalse(pinned, mine))
            self.release(owner, mine)

    def giving_up(self, owner: TxId) -> Iterator[int]:
        """As `give_up` of all, in pieces: yields how many keys the last one was."""
        done = 0
        for number in list(self._keys.get(owner, ())):
            for count in self.giving_up_in(owner, number):
                done += count
                if done >= RELEASED_MAX:
                    yield done
                    done = 0

    def giving_up_in(self, owner: TxId, number: int) -> Iterator[int]:
        """The same, in one partition."""
        mine = self.keys_in(owner, number)
        for at in range(0, len(mine), RELEASED_MAX):
            piece = mine[at : at + RELEASED_MAX]
            self.give_up(owner, piece)
            yield len(piece)

    def leaving(self, owner: TxId) -> Iterator[int]:
        """The transaction wants nothing here any more: it gives up its places in line, and what it holds, in pieces."""
        self._give_up_all(owner, "nobody: the transaction was given up")
        yield from self.giving_up(owner)

    def release(self, owner: TxId, keys: list[Key] | None = None, *, acked: Acked | None = None) -> None:
        """The transaction is over (here, or for these keys). `acked`: by what all in-sync copies have answered."""
        self.acked = acked
        self._release(owner, self.keys_of(owner) if keys is None else keys)
        self.acked = None

    def certain(self, owner: TxId, tx: TxId, number: int, written: Written, acked: Acked | None) -> None:
        """The commit of a transaction is certain, and on its way to the copies of a partition: who stands in line has of it
        what it has `written` there. `acked`: by what all in-sync copies have answered, as far as that is known."""
        self.pass_on(owner, tx, number, written)
        self.acked = acked
        for key in self.keys_in(owner, number):
            if key in self._waiting:
                self._grant(key)
        self.acked = None

    def _release(self, owner: TxId, mine: list[Key]) -> None:
        if len(mine) >= MANY_KEYS and self.may_write_all(owner, mine):
            self._let_go_all(owner, mine)
            for key in [key for key in mine if key in self._waiting] if self._waiting else ():
                self._grant(key)
            return
        for key in mine:
            if self._owner.get(key) == owner or self.holds(owner, key):
                self._let_go(owner, key)
            self._grant(key)

    def _grant(self, key: Key) -> None:
        """Let those have a key who wait for it, in order, as far as nothing is in their way any more."""
        while line := self._waiting.get(key):
            waiter = next(iter(line))
            if waiter.done:
                self._leave(waiter, key)
                continue
            if not self._free(waiter.owner, key, shared=waiter.shared, early=waiter.early):
                return
            self._leave(waiter, key, served=True)
            if key in waiter.raised and not self.holds(waiter.owner, key):
                waiter.done = True  # its lease ran out: what it has read may not be so any more
                self._give_up(waiter, "itself, until its lease ran out")
                continue
            self._give(waiter, key)
            if not waiter.missing and not waiter.coming and not self._has_all(waiter):
                self._ungranted[key] = None
                return

    # Time and topology.

    def lend(self, owner: TxId, until: int, *, again: bool = False) -> None:
        """A transaction's client must speak up before `until`. `again`: it did; one that has no lease gets none."""
        known = owner in self._lease
        if known or not again:
            self._lease[owner] = until
        if not known and not again:
            self._ends.add(until, owner)

    def _is_over(self, what: Waiter | TxId) -> bool:
        if isinstance(what, Waiter):
            return what.done or what in self._untold  # it has all
        return what not in self._lease

    def expire(self, now: int) -> list[TxId]:
        """Give up waiters past their deadline, as many as one turn may; the owners whose lease ran out, to be given up."""
        silent: list[TxId] = []
        left = EXPIRED_MAX
        while left > 0 and (what := self._ends.due(now)) is not None:
            left -= 1
            if isinstance(what, Waiter):
                if not self._is_over(what):
                    left -= min(len(what.taken) + len(what.missing), RELEASED_MAX) // KEYS_OF_ONE
                    held = self._in_the_way(what, now)
                    what.done = True
                    self._give_up(what, held)
            elif (until := self._lease.get(what)) is not None:
                if now < until:
                    self._ends.add(until, what)  # it was renewed
                else:
                    del self._lease[what]
                    silent.append(what)
        return silent

    def _give_up(self, waiter: Waiter, held: str, ring: Ring = ()) -> None:
        """A waiter that is marked as done gets nothing any more: it gives back what it took, and is told then."""
        self._no_longer_waits(waiter)
        self.gave_up = True
        if len(waiter.missing) + len(waiter.taken) > RELEASED_MAX:
            probe("lock.very_many_are_given_back")
            self.in_pieces(self._giving_back(waiter, held, ring))
        else:
            _all_at_once(self._giving_back(waiter, held, ring))

    def _giving_back(self, waiter: Waiter, held: str, ring: Ring) -> Iterator[int]:
        missing, taken = list(waiter.missing), waiter.taken
        for at in range(0, len(missing), RELEASED_MAX):
            some = missing[at : at + RELEASED_MAX]
            for key in [key for key in some if self._leave(waiter, key)]:
                self._grant(key)  # it may have been all that stood before the next ones
            yield len(some)
        for at in range(0, len(taken), RELEASED_MAX):
            some = taken[at : at + RELEASED_MAX]
            self.give_up(waiter.owner, some)
            yield len(some)
        for key, raised in waiter.raised.items():
            if raised:
                self._lower(waiter.owner, key)
        waiter.expired(held, ring)

    def _give_up_all(self, owner: TxId, held: str, ring: Ring = ()) -> None:
        """All that a transaction waits for: none of it is granted because another part of it is given up."""
        waiters = list(self._waiters_of.get(owner, ()))
        for waiter in waiters:
            waiter.done = True
        for waiter in waiters:
            self._give_up(waiter, held, ring)

    def give_way(self, owner: TxId, ring: Ring) -> None:
        """A transaction is not to wait here any more: it stands in a circle of such that wait for each other."""
        self._give_up_all(owner, "", ring)

    def next_expiry(self) -> int:
        """When to `expire`, or `NEVER`; a lease that was renewed is looked at too early, and put off."""
        return self._ends.first(self._is_over) if self._ends.heap else NEVER

    def waiting_in_vain(self, gone: Container[int]) -> Iterator[int]:
        """Give up, in pieces, who waits for keys of partitions that this node is about to lose; yields how many keys."""
        for waiter in self.wait_in(gone):
            if not waiter.done:
                waiter.done = True
                self._give_up(waiter, "")
                yield 1 + len(waiter.taken) + len(waiter.missing)

    def drop(self, gone: Container[int]) -> None:
        """This node is no longer primary of these partitions: nobody holds or awaits their keys here. Single writes are
        under way until they are abandoned, each by itself."""
        self.drops += 1
        in_vain = self.wait_in(gone)
        for waiter in in_vain:
            waiter.done = True
        self._go(gone)
        self.in_pieces(self.letting_go())
        passing = [(o, each.tx, n) for o, mine in self.passing.items() for n, each in mine.items() if n in gone]
        lost = [each for which in passing if (each := self.passed(*which)) is not None]
        for each in lost:
            for go_on in each.behind:
                go_on(False)
        for waiter in in_vain:
            self._give_up(waiter, "")
