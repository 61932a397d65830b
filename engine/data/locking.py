"""What clients ask about locks: to take them, to keep them, to give them up, and whether what they saw still stands.

`engine.data.locks` is the table. A transaction's client holds locks here from its first read on; that of one that wrote
nothing ends here, too. What is voted on is two-phase commit, and elsewhere.

A lock reads what it locks, and so is told when the copies have confirmed that this node is primary still, as any read is.
Who stood in line when the copies were told of what lets go of the key need not ask them again: all have answered that, so
this node was primary after the lock was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from engine.data import ranges
from engine.data.admission import Admission
from engine.data.answering import KEYS_OF_WORK
from engine.data.holdings import Key, Who
from engine.data.locks import LockTable
from engine.data.reads import Reads
from engine.data.values import values_of
from engine.data.waiter import Ring, refused_lock
from engine.protocol.requests import KEYS_AT_ONCE, SKIPPED, Check, Code, Done, KeepLocks, Lock, Unlock
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.ports import MS, WORK_MAX
from rebalance.rule import NewMap, Rule
from wal.ids import NodeId, TxId
from wal.probe import probe

_Read = tuple[str, bytes, int, int]

CHECKED_AT_ONCE = 1_000
"""So many locks, and so many reads, are looked at before a turn may end."""

OWNERS_OF_WORK = 16
"""So many leases that are renewed are as much work as one thing that is asked for."""
TOLD_MAX, TOLD_WORK = 500, 2
"""So many who waited for keys are told in one turn that they have them, and how much work it is: of those in line for one
key each may let go of it at once, and so the next one has it."""
TOLD_WORK_MAX = WORK_MAX * 3 // 2
"""And as long as the turn has no more than this: to be told may be more work, where who is told writes at once."""


class Locking(Rule):
    """The locks that clients hold on one node."""

    def __init__(self, core: Core, locks: LockTable, admission: Admission, reads: Reads) -> None:
        super().__init__()
        self.core = core
        self.desk = admission.desk
        self.admission = admission
        self.locks = locks
        self.reads = reads
        self._told = (0, 0)  # in which turn, how many
        locks.may_tell, locks.in_pieces = self._may_tell, core.in_pieces

    def _may_tell(self) -> bool:
        """Whether one more of those who waited for keys is told in this turn that it has them; else it is in another."""
        core, (turn, told) = self.core, self._told
        if turn != core.turns:
            told = 0
        if told < TOLD_MAX and core.work < TOLD_WORK_MAX:
            self._told = (core.turns, told + 1)
            core.work += TOLD_WORK
            return True
        if told <= TOLD_MAX:
            core.next_turn(self.locks.tell_on)
        self._told = (core.turns, TOLD_MAX + 1)
        return False

    @property
    def wake_at(self) -> int:
        """When somebody has waited for long enough, or a lease runs out."""
        return self.locks.next_expiry()

    def tick(self) -> None:
        """Whose time is over gives up, or is given up."""
        for owner in self.locks.expire(self.core.now):
            self.core.in_pieces(self.locks.giving_up(owner))

    def switch(self, _: NewMap) -> None:
        """Locks go with their partitions."""
        if len(self.locks) or not self.locks.idle:
            self.locks.drop({local.number for local in self.core.local if not local.active})

    def on_lock(self, session: SessionId, request: Lock) -> None:
        """Lock keys and read them."""
        core = self.core
        if self._is_not_there(session, request):
            return
        assert core.topology is not None
        new = not self.locks.is_owner(request.owner)
        needed: dict[NodeId, None] = {}
        keys = [(request.namespace, key) for key in request.keys[:KEYS_AT_ONCE]]
        for _, key in keys:
            local = core.local[core.topology.place(request.namespace, key)]
            if not self.admission.may_serve(session, request, local, None, new=new):
                return
            needed |= dict.fromkeys(local.needed)
        if lost := self.conflict(request.owner, [(request.namespace, key) for key in request.held], []):
            self.desk.refuse(session, request.id, Code.CONFLICT, lost, retryable=True)
            return
        core.work += len(keys) + (len(request.keys) + len(request.held)) // KEYS_OF_WORK
        timeout = min(request.timeout_ms, 10 * core.settings.lock_timeout_ms)

        has = self.locks.holds if request.shared else self.locks.may_write
        free = keys
        if request.skip:
            take = self.locks.try_all
            tried = [take(request.owner, (), [key]) if request.shared else take(request.owner, [key]) for key in keys]
            free = [key for key, blocked in zip(keys, tried, strict=True) if blocked is None]

        def answer() -> None:
            values = values_of(core, request, handed=self.locks.handed)
            for at in range(len(values.values) if len(free) < len(keys) else 0):
                if not has(request.owner, keys[at]):
                    values.values[at] = (SKIPPED, 0, None)
            self.desk.reply(session, values)

        def expired(held: str, ring: Ring) -> None:
            probe("lock.timed_out")
            self.desk.reply(session, refused_lock(request.id, core.node, timeout, held, ring))

        if free:
            who = Who(request.label, core.now, session)
            until, shared, holding = core.now + timeout * MS, request.shared, request.holding
            granted = partial(self._granted, session, request, needed, answer, asked=core.turns)
            waits = self.locks.wait_all
            waits(request.owner, free, until, granted, expired, shared=shared, who=who, holding=holding, early=True)
        else:
            self.reads.confirm(needed, session, request, answer)

    def _is_not_there(self, session: SessionId, request: Lock) -> bool:
        """Refuse to lock what cannot be there: whether that was so, and then nobody holds it any more."""
        problem = self.admission.not_there(request.namespace)
        if problem:
            self.locks.give_up(request.owner, [(request.namespace, key) for key in request.keys])
            self.desk.refuse(session, request.id, Code.USAGE, problem)
        return bool(problem)

    def _granted(
        self, session: SessionId, request: Lock, needed: dict[NodeId, None], answer: Callable[[], None], *, asked: int
    ) -> None:
        """Keys are a transaction's, which it `asked` for in a turn: it is answered when what has expired is gone, and this
        node is primary still."""
        core, expiry, acked = self.core, self.reads.expiry, self.locks.acked
        if self._is_not_there(session, request):
            return
        self.locks.lend(request.owner, core.now + core.settings.lock_lease_ms * MS)
        self.locks.introduce(request.owner, request.label, core.now, session)
        if over := expiry.over(request.namespace, request.keys[:KEYS_AT_ONCE], request.owner):
            again = partial(self._granted, session, request, needed, answer, asked=asked)
            expiry.delete_first(over, again, (session, request), request.owner)
        elif acked is not None and asked <= acked.turn and self._lie_in(acked.partition, request):
            probe("lock.handed_over")
            answer()  # it waited in line, and the copies have confirmed it since by what gives it the keys
        else:
            self.reads.confirm(needed, session, request, answer)

    def _lie_in(self, number: int, request: Lock) -> bool:
        """Whether all that is to be locked lies in one partition."""
        return all(at == number for at in self.core.places(request.namespace, request.keys[:KEYS_AT_ONCE]))

    def on_keep_locks(self, session: SessionId, request: KeepLocks) -> None:
        """Renew leases."""
        until = self.core.now + self.core.settings.lock_lease_ms * MS
        self.core.work += len(request.owners) // OWNERS_OF_WORK
        for owner in request.owners:
            self.locks.lend(owner, until, again=True)
        self.desk.reply(session, Done(request.id))

    def on_unlock(self, session: SessionId, request: Unlock) -> None:
        """A transaction was given up by its client."""
        self.desk.give_up(request.owner)
        self.core.in_pieces(self._unlock(session, request))

    def _unlock(self, session: SessionId, request: Unlock) -> Iterator[int]:
        yield from self.locks.leaving(request.owner)
        self.desk.reply(session, Done(request.id))

    def on_check(self, session: SessionId, request: Check) -> None:
        """The end of a transaction that wrote nothing; or what one that is prepared saw."""
        self.core.in_pieces(self._check(session, request))

    def _check(self, session: SessionId, request: Check) -> Iterator[int]:
        """Ask whether this node is still primary of everything, and then look at everything."""
        core, version = self.core, self.core.reign
        assert core.topology is not None
        numbers = core.places_of(request.locks)
        numbers += core.places_of([(ns, key) for ns, key, _, _ in (*request.reads, *request.absent)])
        for scanned in request.scanned:
            marked, all_of_it = [number for number, _, _ in scanned.marks], core.topology.partitions_of(scanned.namespace)
            if any(number not in all_of_it for number in marked):
                told = f"namespace {scanned.namespace!r} was created anew since it was scanned"
                self.desk.refuse(session, request.id, Code.CONFLICT, told, retryable=True)
                return
            numbers += marked
        needed: dict[NodeId, None] = {}
        for at in range(0, len(numbers), CHECKED_AT_ONCE):
            for number in dict.fromkeys(numbers[at : at + CHECKED_AT_ONCE]):
                local = core.local[number]
                if not self.admission.may_serve(session, request, local, None, new=False):
                    return
                needed |= dict.fromkeys(local.needed)
            yield CHECKED_AT_ONCE // 4
            if core.reign != version:
                self.on_check(session, request)  # by the new one
                return
        self.reads.confirm(needed, session, request, lambda: core.in_pieces(self._confirmed(session, request)))

    def _confirmed(self, session: SessionId, request: Check) -> Iterator[int]:
        """No other node can have been primary while this transaction read: is all as it was?

        What is unchanged at its turn was unchanged at every moment between its reading and now, so it does not matter
        that not all is looked at in one moment.
        """
        core, version, stale = self.core, self.core.reign, ""
        for locks, reads in _pieces(request.locks, request.reads):
            stale = self.conflict(request.owner, locks, reads, going_on=request.going_on)
            if stale:
                break
            yield CHECKED_AT_ONCE // 2
            if core.reign != version:
                self.on_check(session, request)
                return
        for at in range(0, 0 if stale else len(request.absent), CHECKED_AT_ONCE):
            stale = stale or self._came_and_went(request.absent[at : at + CHECKED_AT_ONCE])
            yield CHECKED_AT_ONCE // 2
            if core.reign != version:
                self.on_check(session, request)
                return
        for scanned in () if stale else request.scanned:
            stale = stale or (yield from ranges.moved(core, request.tx, scanned))
            if core.reign != version:
                self.on_check(session, request)
                return
        if not request.going_on:
            yield from self.locks.giving_up(request.owner)
        if stale:
            self.desk.refuse(session, request.id, Code.CONFLICT, stale, retryable=True)
        else:
            self.desk.reply(session, Done(request.id))

    def conflict(
        self, owner: TxId, locks: list[Key], reads: list[_Read], writes: Sequence[Key] = (), *, going_on: bool = False
    ) -> str:
        """Why a transaction's view does not hold any more, or what it may not write of `writes`; or nothing.

        `going_on`: of what it has read nothing may be in doubt, but somebody may hold a lock to write it.
        """
        core = self.core
        assert core.topology is not None
        for holds, keys in ((self.locks.holds, locks), (self.locks.may_write, writes)):
            if self.locks.may_write_all(owner, keys):
                continue  # how it nearly always is, of what is written
            for namespace, key in keys:
                if not holds(owner, (namespace, key)):
                    why = "its lease ran out, an operator gave it up, or the primary changed"
                    return f"the lock on {namespace}:{key!r} was lost ({why})"
        for namespace, key, epoch, counter in reads:
            held = core.replica.store.get((namespace, core.topology.place(namespace, key)), key)
            now = (held.epoch, held.counter) if held is not None and held.value is not None else (0, 0)
            if now != (epoch, counter):
                return f"{namespace}:{key!r} was changed since it was read: read {epoch}.{counter}, now {now[0]}.{now[1]}"
            other = self.locks.owned((namespace, key))
            if going_on and not self.locks.in_doubt((namespace, key)):
                continue
            if other is not None and other != owner:
                return f"{namespace}:{key!r} is locked by transaction {other.hex()}"
        return ""

    def _came_and_went(self, absent: list[_Read]) -> str:
        """Which of these keys, that are absent, may have been there since they were read; or nothing.

        Its tombstone would tell; where that is gone, nothing was dropped above the counter at which it was read. A
        transaction that writes need not ask: it holds what it read until its end, and so sees all of it in one moment.
        """
        core = self.core
        assert core.topology is not None
        for namespace, key, epoch, counter in absent:
            number = core.topology.place(namespace, key)
            held = core.replica.store.get((namespace, number), key)
            fragment = core.replica.fragments.get((namespace, number))
            last = held.counter if held is not None else fragment.dropped if fragment is not None else 0
            if core.local[number].epoch != epoch or last > counter:
                probe("tx.came_and_went")
                return f"{namespace}:{key!r} may have come and gone since it was read, at {epoch}.{counter}"
        return ""


def _pieces(locks: list[Key], reads: list[_Read]) -> Iterator[tuple[list[Key], list[_Read]]]:
    """What a transaction saw, in pieces that a turn can look at."""
    for at in range(0, len(locks), CHECKED_AT_ONCE):
        yield locks[at : at + CHECKED_AT_ONCE], []
    for at in range(0, len(reads), CHECKED_AT_ONCE):
        yield [], reads[at : at + CHECKED_AT_ONCE]
