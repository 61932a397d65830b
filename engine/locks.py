"""Who may write which key of the partitions that this node is primary of.

All locks are exclusive. A lock belongs to a transaction and lasts until the transaction ends, its client gives it up, its
lease runs out (the client died), or the partition changes its primary. From the vote on, or from the moment that its one
record is logged, a key is pinned: only the outcome releases it, whatever the client does. A transaction may be pinned in
one partition and not in the others, so it is keys that are pinned and not transactions. Whoever must wait is served in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from wal.ids import Namespace, TxId

Key = tuple[Namespace, bytes]


class Waiter:
    """Someone who waits for a set of keys; `granted` is called once all of them are its own.

    `taken` are those that it has got so far: it gives them back if it does not get all.
    """

    __slots__ = ("deadline", "done", "expired", "granted", "keys", "missing", "owner", "taken")

    def __init__(
        self, owner: TxId, keys: list[Key], deadline: int, granted: Callable[[], None], expired: Callable[[str], None]
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
    """Locks by key. Invariant: a key with waiters has an owner or is pinned by a write that does not count yet."""

    def __init__(self) -> None:
        self._owner: dict[Key, TxId] = {}
        self._waiting: dict[Key, deque[Waiter]] = {}
        self._pending: dict[Key, int] = {}  # single writes under way; they hold a key together
        self._keys: dict[TxId, dict[Key, None]] = {}
        self._pinned: dict[Key, bool] = {}  # waits for an outcome; True: of a vote, so that nobody may be told its value
        self.lease: dict[TxId, int] = {}
        self._waiters: dict[Waiter, None] = {}

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

    def settle(self, key: Key) -> None:
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
        return list(self._keys.get(owner, ()))

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
        expired: Callable[[str], None],
    ) -> None:
        """Take all keys, waiting in line for each; then `granted`. After `deadline` (ns): `expired`, with the reason.

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

    def _take(self, owner: TxId, key: Key) -> None:
        assert self._owner.get(key, owner) == owner, f"{key} is taken twice: by {self._owner[key].hex()}, {owner.hex()}"
        self._owner[key] = owner
        self._keys.setdefault(owner, {})[key] = None

    def give_up(self, owner: TxId, keys: list[Key] | None = None) -> None:
        """The transaction is not wanted any more (or not these keys of it): release what does not wait for an outcome."""
        mine = self.keys_of(owner) if keys is None else keys
        self.release(owner, [key for key in mine if key not in self._pinned])

    def release(self, owner: TxId, keys: list[Key] | None = None) -> None:
        """The transaction is over (here, or for these keys)."""
        mine = self._keys.get(owner)
        if mine is None:
            return
        for key in list(mine) if keys is None else keys:
            if key in mine:
                self._let_go(owner, key)
                self._grant(key)

    def _let_go(self, owner: TxId, key: Key) -> None:
        mine = self._keys[owner]
        del mine[key]
        del self._owner[key]
        self._pinned.pop(key, None)
        if not mine:
            del self._keys[owner]
            self.lease.pop(owner, None)

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
                del self._waiters[waiter]
                waiter.granted()
        if queue is not None and not queue and self._waiting.get(key) is queue:
            del self._waiting[key]

    def in_doubt(self, key: Key) -> bool:
        """Whether a transaction that holds the key voted, and its outcome is open."""
        return self._pinned.get(key, False)

    def keys_in_doubt(self) -> list[Key]:
        """The keys of all transactions that voted and whose outcome is open."""
        return [key for key, in_doubt in self._pinned.items() if in_doubt]

    # Time and topology.

    def expire(self, now: int) -> None:
        """Give up waiters past their deadline, and release locks whose lease ran out."""
        for waiter in list(self._waiters):
            if not waiter.done and now >= waiter.deadline:
                held = self._in_the_way(waiter)
                waiter.done = True
                self._give_up(waiter, held)
        for owner, until in list(self.lease.items()):
            if now >= until:
                del self.lease[owner]
                self.give_up(owner)

    def _in_the_way(self, waiter: Waiter) -> str:
        for key in waiter.keys:
            owner = self._owner.get(key)
            if owner is not None and owner != waiter.owner:
                return f"{key[0]}:{key[1]!r} held by {owner.hex()}"
        return "single writes that are under way"

    def _give_up(self, waiter: Waiter, held: str) -> None:
        """A waiter that is marked as done gets nothing any more: it gives back what it took, and is told."""
        del self._waiters[waiter]
        self.give_up(waiter.owner, waiter.taken)
        waiter.expired(held)

    def next_expiry(self) -> int | None:
        """When `expire` has something to do."""
        times = [waiter.deadline for waiter in self._waiters]
        times.extend(self.lease.values())
        return min(times, default=None)

    def drop(self, gone: Callable[[Key], bool]) -> None:
        """This node is no longer primary of the keys for which `gone` holds: nobody holds or awaits them here."""
        in_vain = [waiter for waiter in self._waiters if any(gone(key) for key in waiter.keys)]
        for waiter in in_vain:
            waiter.done = True
        for key in [k for k in self._owner if gone(k)]:
            self._let_go(self._owner[key], key)
        for key in [k for k in self._waiting if gone(k)]:
            del self._waiting[key]
        for key in [k for k in self._pending if gone(k)]:
            del self._pending[key]
        for waiter in in_vain:
            self._give_up(waiter, "")

    def owners(self) -> list[TxId]:
        """Every transaction that holds something here."""
        return list(self._keys)
