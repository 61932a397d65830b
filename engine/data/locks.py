"""Who may write which key of the partitions that this node is primary of.

All locks are exclusive. A lock belongs to a transaction and lasts until the transaction ends, its client gives it up, its
lease runs out (the client died), or the partition changes its primary. From the vote on, or from the moment that its one
record is logged, a key is pinned: only the outcome releases it, whatever the client does. A transaction may be pinned in
one partition and not in the others, so it is keys that are pinned and not transactions. Whoever must wait is served in
order.

A transaction may hold a hundred thousand keys in thousands of partitions, and ends partition by partition: so what it
holds is kept by partition, and nothing here walks all keys to find those of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from heapq import heappop, heappush

from engine.protocol.requests import Code
from wal.ids import Namespace, NodeId, TxId

Key = tuple[Namespace, bytes]

EXPIRED_MAX = 1_000
"""Waiters and leases that end in one turn; the rest in the next."""
RELEASED_MAX = 1_000
"""Keys that a transaction which is given up releases in one piece."""


class Waiter:
    """Someone who waits for a set of keys; `granted` is called once all of them are its own.

    `taken` are those that it has got so far: it gives them back if it does not get all. `expired` is told what stood in the
    way, and whether it was in a circle, of which it breaks the ring.
    """

    __slots__ = ("deadline", "done", "expired", "granted", "keys", "missing", "owner", "taken")

    def __init__(
        self, owner: TxId, keys: list[Key], deadline: int, granted: Callable[[], None], expired: Callable[[str, bool], None]
    ) -> None:
        self.owner = owner
        self.keys = keys
        self.missing = 0
        self.taken: list[Key] = []
        self.deadline = deadline
        self.granted = granted
        self.expired = expired
        self.done = False


class LockTable:
    """Locks by key. Invariant: a key with waiters has an owner or is pinned by a write that does not count yet.

    `place` tells in which partition a key lies.
    """

    def __init__(self, place: Callable[[bytes], int]) -> None:
        self._place = place
        self._owner: dict[Key, TxId] = {}
        self._waiting: dict[Key, deque[Waiter]] = {}
        self._pending: dict[Key, int] = {}  # single writes under way; they hold a key together
        self._keys: dict[TxId, dict[int, dict[Key, None]]] = {}  # by partition
        self._owners: dict[int, dict[TxId, None]] = {}  # who holds something in a partition
        self._pinned: dict[Key, bool] = {}  # waits for an outcome; True: of a vote, so that nobody may be told its value
        self._doubtful: dict[int, dict[Key, None]] = {}  # the pinned ones of votes, by partition
        self._lease: dict[TxId, int] = {}
        self._waiters: dict[Waiter, None] = {}
        self._waiters_of: dict[TxId, dict[Waiter, None]] = {}
        self._ends: list[tuple[int, int, Waiter | TxId]] = []  # a heap of deadlines; no entry is later than its deadline
        self._number = 0
        self._who: dict[TxId, tuple[str, int]] = {}  # the labels of owners, and since when they hold something

    def __len__(self) -> int:
        return len(self._owner)

    # Single writes, which hold nothing but must not pass a transaction.

    @property
    def idle(self) -> bool:
        """No transaction holds or awaits any key."""
        return not self._owner and not self._waiting

    def owned(self, key: Key) -> TxId | None:
        """The transaction that holds a key."""
        return self._owner.get(key)

    def busy(self, key: Key) -> bool:
        """Whether a single write of the key would have to wait for a transaction."""
        return key in self._owner or key in self._waiting

    def pend(self, key: Key) -> None:
        """A single write of the key is under way."""
        self._pending[key] = self._pending.get(key, 0) + 1

    def unpend(self, key: Key) -> None:
        """A single write of the key counts (or was abandoned)."""
        left = self._pending.get(key, 0) - 1
        if left > 0:
            self._pending[key] = left
        elif left == 0:
            del self._pending[key]
            if key in self._waiting:
                self._grant(key)

    # Transactions.

    def holds(self, owner: TxId, key: Key) -> bool:
        """Whether the transaction holds the key."""
        return self._owner.get(key) == owner

    def keys_of(self, owner: TxId) -> list[Key]:
        """The keys a transaction holds."""
        return [key for keys in self._keys.get(owner, {}).values() for key in keys]

    def keys_in(self, owner: TxId, partition: int) -> list[Key]:
        """The keys of one partition that a transaction holds."""
        return list(self._keys.get(owner, {}).get(partition, ()))

    def introduce(self, owner: TxId, label: str, now: int) -> None:
        """Whoever waits for what this transaction holds is told its label, and since when it holds something."""
        if owner in self._keys:
            self._who.setdefault(owner, (label, now))

    def is_owner(self, owner: TxId) -> bool:
        """Whether a transaction holds anything."""
        return owner in self._keys

    def owners_in(self, partition: int) -> Iterable[TxId]:
        """The transactions that hold keys of a partition."""
        return self._owners.get(partition, ())

    def try_all(self, owner: TxId, keys: list[Key]) -> Key | None:
        """Take all keys without waiting, or none of them; the key that stood in the way, if one did."""
        for key in keys:
            held = self._owner.get(key)
            if (held is not None and held != owner) or key in self._pending or (held is None and key in self._waiting):
                return key
        for key in keys:
            self._take(owner, key)
        return None

    def wait_all(
        self,
        owner: TxId,
        keys: list[Key],
        deadline: int,
        granted: Callable[[], None],
        expired: Callable[[str, bool], None],
    ) -> None:
        """Take all keys, waiting in line for each; then `granted`. After `deadline` (ns), or told to give way: `expired`.

        Who gives up has none of them: a timeout is no grant, not even of a part.
        """
        waiter = Waiter(owner, keys, deadline, granted, expired)
        for key in dict.fromkeys(keys):
            if self._owner.get(key) == owner:
                continue
            if key in self._owner or key in self._pending or key in self._waiting:
                self._waiting.setdefault(key, deque()).append(waiter)
                waiter.missing += 1
            else:
                self._take(owner, key)
                waiter.taken.append(key)
        if waiter.missing:
            self._waiters[waiter] = None
            self._waiters_of.setdefault(owner, {})[waiter] = None
            self._end_at(deadline, waiter)
        else:
            waiter.done = True
            granted()

    def pin(self, owner: TxId, keys: list[Key], *, in_doubt: bool = True) -> None:
        """Only an outcome releases these keys: take those that the transaction does not hold yet.

        `in_doubt`: it voted, so that what the keys hold cannot be told before the outcome is known.
        """
        for key in keys:
            self._take(owner, key)
            self._pinned[key] = in_doubt
            if in_doubt:
                self._doubtful.setdefault(self._place(key[1]), {})[key] = None

    def _take(self, owner: TxId, key: Key) -> None:
        held = self._owner.get(key)
        assert held is None or held == owner, f"{key} is taken twice: by {self._owner[key].hex()}, {owner.hex()}"
        if held is not None:
            return
        self._owner[key] = owner
        number = self._place(key[1])
        mine = self._keys.setdefault(owner, {})
        keys = mine.get(number)
        if keys is None:
            keys = mine[number] = {}
            self._owners.setdefault(number, {})[owner] = None
        keys[key] = None

    def give_up(self, owner: TxId, keys: list[Key] | None = None) -> None:
        """The transaction is not wanted any more (or not these keys of it): release what does not wait for an outcome."""
        mine = self.keys_of(owner) if keys is None else keys
        self.release(owner, [key for key in mine if key not in self._pinned])

    def giving_up(self, owner: TxId) -> Iterator[int]:
        """As `give_up` of all, in pieces: yields how many keys the last one was."""
        done = 0
        for number in list(self._keys.get(owner, ())):
            mine = self.keys_in(owner, number)
            for at in range(0, len(mine), RELEASED_MAX):
                piece = mine[at : at + RELEASED_MAX]
                self.give_up(owner, piece)
                done += len(piece)
                if done >= RELEASED_MAX:
                    yield done
                    done = 0

    def leaving(self, owner: TxId) -> Iterator[int]:
        """The transaction wants nothing here any more: it gives up its places in line, and what it holds, in pieces."""
        for waiter in list(self._waiters_of.get(owner, ())):
            waiter.done = True
            self._give_up(waiter, "nobody: the transaction was given up")
        yield from self.giving_up(owner)

    def release(self, owner: TxId, keys: list[Key] | None = None) -> None:
        """The transaction is over (here, or for these keys)."""
        for key in self.keys_of(owner) if keys is None else keys:
            if self._owner.get(key) == owner:
                self._let_go(owner, key)
                self._grant(key)

    def _let_go(self, owner: TxId, key: Key) -> None:
        del self._owner[key]
        number, mine = self._place(key[1]), self._keys[owner]
        keys = mine[number]
        del keys[key]
        if self._pinned.pop(key, False):
            doubtful = self._doubtful[number]
            del doubtful[key]
            if not doubtful:
                del self._doubtful[number]
        if keys:
            return
        del mine[number]
        owners = self._owners[number]
        del owners[owner]
        if not owners:
            del self._owners[number]
        if not mine:
            del self._keys[owner]
            self._lease.pop(owner, None)
            self._who.pop(owner, None)

    def _grant(self, key: Key) -> None:
        queue = self._waiting.get(key)
        while queue and key not in self._owner and key not in self._pending:
            waiter = queue.popleft()
            if waiter.done:
                continue
            self._take(waiter.owner, key)
            waiter.taken.append(key)
            waiter.missing -= 1
            if not waiter.missing:
                waiter.done = True
                self._no_longer_waits(waiter)
                waiter.granted()
        if queue is not None and not queue and self._waiting.get(key) is queue:
            del self._waiting[key]

    def in_doubt(self, key: Key) -> bool:
        """Whether a transaction that holds the key voted, and its outcome is open."""
        return self._pinned.get(key, False)

    def keys_in_doubt(self, partition: int) -> Iterable[Key]:
        """The keys of a partition that belong to transactions that voted and whose outcome is open."""
        return self._doubtful.get(partition, ())

    # Time and topology.

    def lend(self, owner: TxId, until: int, *, again: bool = False) -> None:
        """A transaction's client must speak up before `until`. `again`: it did; one that has no lease gets none."""
        known = owner in self._lease
        if known or not again:
            self._lease[owner] = until
        if not known and not again:
            self._end_at(until, owner)

    def _end_at(self, when: int, what: Waiter | TxId) -> None:
        self._number += 1
        heappush(self._ends, (when, self._number, what))

    def _is_over(self, what: Waiter | TxId) -> bool:
        return what.done if isinstance(what, Waiter) else what not in self._lease

    def expire(self, now: int) -> list[TxId]:
        """Give up waiters past their deadline, as many as one turn may; the owners whose lease ran out, to be given up."""
        silent: list[TxId] = []
        for _ in range(EXPIRED_MAX):
            if not self._ends or self._ends[0][0] > now:
                break
            what = heappop(self._ends)[2]
            if isinstance(what, Waiter):
                if not what.done:
                    held = self._in_the_way(what, now)
                    what.done = True
                    self._give_up(what, held)
            elif (until := self._lease.get(what)) is not None:
                if now < until:
                    self._end_at(until, what)  # it was renewed
                else:
                    del self._lease[what]
                    silent.append(what)
        return silent

    def _in_the_way(self, waiter: Waiter, now: int) -> str:
        for key in waiter.keys:
            owner = self._owner.get(key)
            if owner is not None and owner != waiter.owner:
                label, since = self._who.get(owner, ("", now))
                named = f"{label!r} ({owner.hex()})" if label else owner.hex()
                return f"{key[0]}:{key[1]!r} held by {named}" + (f" for {(now - since) / 1e9:.1f} s" if now > since else "")
        return "single writes that are under way"

    def _no_longer_waits(self, waiter: Waiter) -> None:
        del self._waiters[waiter]
        mine = self._waiters_of[waiter.owner]
        del mine[waiter]
        if not mine:
            del self._waiters_of[waiter.owner]

    def _give_up(self, waiter: Waiter, held: str, *, in_circle: bool = False) -> None:
        """A waiter that is marked as done gets nothing any more: it gives back what it took, and is told."""
        self._no_longer_waits(waiter)
        self.give_up(waiter.owner, waiter.taken)
        waiter.expired(held, in_circle)

    @property
    def waited_for(self) -> bool:
        """Whether anybody waits for anything."""
        return bool(self._waiters)

    def waits(self) -> Iterator[tuple[TxId, TxId, Key]]:
        """Who waits, for whom, and where: for the one that holds the key, and for the one before it in the line."""
        for key, queue in self._waiting.items():
            owner = before = self._owner.get(key)
            for waiter in queue:
                if waiter.done:
                    continue
                for other in (owner, before) if before != owner else (owner,):
                    if other is not None and other != waiter.owner:
                        yield waiter.owner, other, key
                before = waiter.owner

    def who(self, owner: TxId) -> tuple[str, int] | None:
        """The label of a transaction that holds something here, and since when it does; None if nobody said."""
        return self._who.get(owner)

    def give_way(self, owner: TxId, because: str, now: int) -> None:
        """A transaction is not to wait here any more: it stands in a circle of such that wait for each other."""
        for waiter in list(self._waiters_of.get(owner, ())):
            held = self._in_the_way(waiter, now)
            waiter.done = True
            self._give_up(waiter, f"{held}, {because}", in_circle=True)

    def next_expiry(self) -> int | None:
        """When to `expire`; a lease that was renewed is looked at too early, and put off."""
        while self._ends and self._is_over(self._ends[0][2]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def drop(self, gone: Container[int]) -> None:
        """This node is no longer primary of these partitions: nobody holds or awaits their keys here."""
        in_vain = [w for w in self._waiters if any(self._place(key) in gone for _, key in w.keys)]
        for waiter in in_vain:
            waiter.done = True
        for number in [n for n in self._owners if n in gone]:
            for owner in list(self._owners[number]):
                for key in self.keys_in(owner, number):
                    self._let_go(owner, key)
        for waiter in in_vain:
            for key in waiter.keys:
                if self._place(key[1]) in gone:
                    self._waiting.pop(key, None)
        for key in [k for k in self._pending if self._place(k[1]) in gone]:
            del self._pending[key]
        for waiter in in_vain:
            self._give_up(waiter, "")


def refused_lock(node: NodeId, waited_ms: int, held: str, *, in_circle: bool) -> tuple[str, str]:
    """The code and the words for who did not get its locks."""
    if in_circle:
        said = f"gave way in a deadlock, so that the others go on: it waited on {node} for {held}; run it again"
        return Code.DEADLOCK, said
    return Code.LOCK_TIMEOUT, f"waited {waited_ms} ms for a lock on {node}: {held or 'the primary changed'}"
