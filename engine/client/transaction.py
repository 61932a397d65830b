"""A transaction as its client sees it: what it read, what it will write, and how it ends.

Writes are kept here until the commit, which sends them all at once. A pessimistic transaction locks each key when it
first touches it, to read it or to write it, and so reads the same value again; where it may be run again it locks what it
writes, and has not read to write it, by the commit itself (`lock_late`). An optimistic one remembers the version of
each key that it read, and is refused with `Conflict`, by its next read or by its commit, if one of them has changed. Either
way transactions are serializable over the keys they touch. A SERIALIZABLE one also remembers where the fragments stood when
it scanned a range: when all that it writes is prepared, or it has read all, nothing may have come into the range since
(`engine.data.ranges` says why that is enough).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from engine import errors
from engine.client.batches import STAGED_ABOVE, grown
from engine.client.calls import Call, GetCall, LockCall, UnlockCall, Whereabouts
from engine.client.deciding import decide
from engine.client.ends import CheckCall, CommitCall
from engine.client.entered import refuse_own_locks
from engine.client.expiring import TimesToLive
from engine.client.keeping import UNLOCK_SECONDS, Keeper
from engine.client.modes import Concurrency, Isolation, check_patience
from engine.client.moments import Moment
from engine.client.ranges import Own, Seen, in_pieces, scanned_of, seen_of
from engine.client.running import CLAIMS_MAX, in_order
from engine.client.session import Session
from engine.protocol.limits import TIMEOUT_MS_MAX
from engine.protocol.requests import SKIPPED, Scanned
from wal.ids import NO_ERA, Era
from wal.ids import Namespace as NamespaceName

T = TypeVar("T")
NOTHING: Seen = (SKIPPED, 0, None)
_Key = tuple[NamespaceName, bytes]


class Transaction:
    """One transaction; made by `Database.transaction`, used in an `async with`."""

    def __init__(
        self,
        session: Session,
        *,
        concurrency: Concurrency,
        isolation: Isolation,
        timeout: float,
        label: str,
        lock_timeout: float,
    ) -> None:
        self.session = session
        self.concurrency, self.isolation = concurrency, isolation
        self.label = label
        self.tx = self._owner = session.new_owner()  # holds its locks; it commits as `_take_id` says
        self._ends_at = session.seconds() + timeout
        self._timeout, self._lock_timeout = timeout, lock_timeout
        self.patience = session.timeout  # s, of each of its calls
        self.at_once = STAGED_ABOVE  # what writes more bytes is staged
        self._read: dict[NamespaceName, dict[bytes, Seen]] = {}
        self._written: dict[NamespaceName, dict[bytes, bytes | None]] = {}
        self._wanted: dict[_Key, None] = {}  # what it has asked for to write it
        self._claims: list[tuple[NamespaceName, bytes]] = []  # what it will lock first
        self._shared: dict[NamespaceName, dict[bytes, None]] = {}  # what it has locked to read, and not to write
        self._scanned: list[Scanned] = []  # if it is SERIALIZABLE
        self._ttls = TimesToLive()
        self._bytes = 0  # of what is written
        self.moment = Moment(session, self._ends_at)  # if it is optimistic
        self._asked_for: dict[_Key, None] = {}  # keys that may be locked for it somewhere
        self._astray: dict[_Key, None] = {}  # some of these: the call that was to lock them failed, perhaps not everywhere
        self._in_turn = asyncio.Lock()  # tasks that share a transaction touch keys one after the other
        self._state = "open"
        self._where = Whereabouts(self._asked_for)
        self._keeper = Keeper(session, self._owner, self._where, self._ends_at)
        self.dropped = False  # nobody has it any more
        self._late = False  # what it writes, and has not read to write it, is locked by the commit
        self._unlocked = False  # it has written such

    @property
    def id(self) -> str:
        """The id to ask `Database.transaction_status` about, before its end and after it: it commits under no other."""
        self._take_id()
        return self.tx.hex() + (f"@{self._decision()}" if self._written else "")

    @property
    def description(self) -> str:
        """What a person is told of it: its name, mode, and how far it is."""
        return f"{self.name} {self.concurrency} {self.isolation} {self._state}"

    @property
    def named(self) -> bool:
        """Whether its id will not change any more."""
        return self.over or self.tx is not self._owner

    @property
    def name(self) -> str:
        """What a person is told of it: its label, or an id."""
        return self.label or self.tx.hex()

    def _take_id(self) -> None:
        """Take the id under which it will commit, if there is none yet: an id holds back what its client acknowledges."""
        if not self.named:
            self.tx = self.session.new_tx(self.label)

    def _unused(self) -> None:
        """It came to its end without anything to decide."""
        if self.tx is not self._owner:
            self.session.router.identity.give_up(self.tx)

    def holds(self, namespace: NamespaceName, keys: Iterable[bytes] | None, *, shared: bool) -> bytes | None:
        """A key of these (None: of all) that nobody else can lock beside it, to read it (`shared`) or to write it."""
        ended = self.over or self.dropped or self.session.seconds() >= self._ends_at
        if self.concurrency is Concurrency.OPTIMISTIC or ended:
            return None
        touched, reads = self._read.get(namespace, {}), self._shared.get(namespace, {}) if shared else {}
        return next((key for key in (touched if keys is None else keys) if key in touched and key not in reads), None)

    def lock_late(self) -> None:
        """Whoever runs it runs it again if it comes to nothing: so what it writes, unless it has read it to write it, is
        locked by its commit, which is refused what others have, and tells what was read, as of an optimistic one."""
        self._late = self.concurrency is Concurrency.PESSIMISTIC

    @property
    def _takes_at_commit(self) -> bool:
        """Whether what it writes is locked by its commit."""
        return self._unlocked or self.concurrency is Concurrency.OPTIMISTIC

    def follow(self, before: Transaction, error: errors.Error) -> None:
        """One like it gave way to others, or was late: what that one wanted to write is locked first, in the order that all
        keep; but for what it had not read."""
        late = before._unlocked and isinstance(error, errors.Conflict)
        if (late or isinstance(error, errors.Deadlock)) and len(before._wanted) <= CLAIMS_MAX:
            self._claims = list(before._wanted)

    @property
    def over(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._state in {"committed", "rolled back"}

    def _decision(self) -> int:
        topology, (namespace, written) = self.session.router.topology, next(iter(self._written.items()))
        return topology.place(namespace, next(iter(written))) if topology is not None else 0

    # Reading and writing, in bytes; `engine.aio` puts codecs around it.

    async def get_many(
        self,
        namespace: NamespaceName,
        keys: Iterable[bytes],
        *,
        update: bool = False,
        nowait: bool = False,
        skip_locked: bool = False,
        in_part: bool = False,
    ) -> dict[bytes, bytes]:
        """The values of the keys that exist; `skip_locked`: but for those that others have locked, and nobody else gets
        them now. `update`: they will be written, and are protected in any isolation. `in_part`: seen after `be_sure`."""
        wanted = list(dict.fromkeys(keys))
        if nowait or skip_locked:
            check_patience(nowait, skip_locked, self.concurrency, self.name)
        if self.isolation is Isolation.READ_COMMITTED and not (update or nowait or skip_locked):
            return await self._get_committed(namespace, wanted)
        await self._touch(namespace, wanted, shared=not (update or skip_locked), now=nowait, skip=skip_locked)
        if self.moment.unsure and not in_part:
            await self.be_sure()
        read, written = self._read.get(namespace, {}), self._written.get(namespace, {})
        found: dict[bytes, bytes] = {}
        others = self._shared.get(namespace, {}) if skip_locked else {}  # others read them, too
        for key in (key for key in wanted if key not in others) if others else wanted:
            value = written[key] if key in written else read.get(key, NOTHING)[2]
            if value is not None:
                found[key] = value
        return found

    async def _get_committed(self, namespace: NamespaceName, keys: list[bytes]) -> dict[bytes, bytes]:
        """What is committed now of keys that it has neither written nor locked; of the others, what it knows."""
        async with self._in_turn:
            self.check_open()
            read, written = self._read.get(namespace, {}), self._written.get(namespace, {})
            found = {key: written[key] if key in written else read[key][2] for key in keys if key in written or key in read}
            call = GetCall(namespace, [key for key in keys if key not in found])
            if call.keys:
                await self._ask(call)
                found |= {key: value for key, (_, _, value) in zip(call.keys, call.values, strict=True)}
        return {key: value for key in keys if (value := found[key]) is not None}

    async def put_many(self, namespace: NamespaceName, values: dict[bytes, bytes | None], ttl_ms: int = 0) -> None:
        """Set (or, with None, delete) keys, when the transaction commits; `ttl_ms`: they expire (0: never)."""
        self._size_with(namespace, values)
        if self.concurrency is Concurrency.PESSIMISTIC:
            read, reads = (self._read.get(namespace, {}), self._shared.get(namespace, {})) if self._late else (values, {})
            await self._touch(namespace, [key for key in values if key in read and key not in reads])
            self._wanted |= dict.fromkeys((namespace, key) for key in values if key in reads)
            self._unlocked = self._unlocked or any(key not in read or key in reads for key in values)
        else:
            self.check_open()
        self._write(namespace, values, ttl_ms)

    async def change(
        self, namespace: NamespaceName, key: bytes, make: Callable[[Seen], tuple[bool, bytes | None, T]], ttl_ms: int = 0
    ) -> T:
        """Read a key as one that will be written; `make` says whether it is, with which value, and what is returned;
        `ttl_ms` as with `put_many`. What the transaction has written itself has no version yet: it is of the epoch
        `SKIPPED`."""
        await self._touch(namespace, [key])
        if self.moment.unsure:
            await self.be_sure()
        written = self._written.get(namespace, {})
        changed, value, result = make((SKIPPED, 0, written[key]) if key in written else self._read[namespace][key])
        if changed:
            self._write(namespace, {key: value}, ttl_ms)
        return result

    def _size_with(self, namespace: NamespaceName, values: dict[bytes, bytes | None]) -> int:
        """How many bytes it writes with these values. Raises UsageError if they, or the keys, are too many."""
        before, keys = self._written.get(namespace, {}), sum(map(len, self._written.values()))
        return grown(self._bytes, before, values, self.name, keys=keys)

    def _write(self, namespace: NamespaceName, values: dict[bytes, bytes | None], ttl_ms: int = 0) -> None:
        if values:
            self._bytes = self._size_with(namespace, values)
            self._written.setdefault(namespace, {}).update(values)
        self._ttls.note(namespace, values, ttl_ms)

    @property
    def serializable(self) -> bool:
        """Whether it is protected from what others may add to a range that it has scanned."""
        return self.isolation is Isolation.SERIALIZABLE

    def own(self, namespace: NamespaceName, low: bytes, high: bytes | None, *, read: bool = False) -> Own:
        """What it has written so far, low <= key < high; `read`: and what it has read, and locked if it is pessimistic."""
        known: Own = {key: seen[2] for key, seen in self._read.get(namespace, {}).items()} if read else {}
        known |= self._written.get(namespace, {})
        return {key: value for key, value in known.items() if low <= key and (high is None or key < high)}

    def saw(
        self,
        namespace: NamespaceName,
        between: tuple[bytes, bytes | None],
        marks: dict[int, tuple[int, int]],
        touched: list[bytes],
        *,
        cut: Era = NO_ERA,
    ) -> None:
        """It has scanned a range, when its fragments stood at `marks`: nothing but what it `touched` may come into it.
        `cut`: at which it began to, if it did at one."""
        if self.concurrency is Concurrency.OPTIMISTIC and (cut == NO_ERA or cut != self.moment.cut):
            self.moment.unsure = True
        read, topology = self._read.get(namespace, {}), self.session.router.topology
        self._scanned.append(scanned_of(namespace, between, marks, touched, read=read, topology=topology))

    async def _touch(
        self, namespace: NamespaceName, keys: list[bytes], *, shared: bool = False, now: bool = False, skip: bool = False
    ) -> None:
        """Read keys that were not touched before; lock them, if pessimistic, and also those that it has locked to read,
        unless that will do (`shared`). `skip`: but for those that others have."""
        async with self._in_turn:
            claims, self._claims = self._claims, []
            for claimed, some in in_order(claims, self.session.router.topology):
                await self._touch_new(claimed, some, shared=False, now=False, skip=False)
            await self._touch_new(namespace, keys, shared=shared, now=now, skip=skip)

    async def _touch_new(self, namespace: NamespaceName, keys: list[bytes], *, shared: bool, now: bool, skip: bool) -> None:
        self.check_open()
        read, reads = self._read.setdefault(namespace, {}), self._shared.setdefault(namespace, {})
        held = {} if shared or not reads else dict.fromkeys(key for key in keys if key in reads)
        new = [key for key in keys if key not in read or key in held]
        if self.concurrency is Concurrency.OPTIMISTIC or self._unlocked:
            written = self._written.get(namespace, {})
            new = [key for key in new if key not in written]
        if not new:
            return
        if self.concurrency is Concurrency.OPTIMISTIC:
            call = await self.moment.get(self._ask, namespace, new)
            if not self.moment.is_cut and (call.answers > 1 or self._scanned or any(self._read.values())):
                self.moment.unsure = self.isolation is not Isolation.READ_COMMITTED
        else:
            left = self._ends_at - self.session.seconds()
            wait_ms = 0 if now else max(1, min(int(min(self._lock_timeout, left) * 1000), TIMEOUT_MS_MAX))
            if not (skip or now):
                refuse_own_locks(self, namespace, new, shared=shared)
            call = LockCall(self._owner, namespace, new, wait_ms, self.label, skip=skip, shared=shared, held=held)
            call.holding = len(new) > 1 or bool(self._asked_for)  # of several one may be granted elsewhere
            self._asked_for |= dict.fromkeys((namespace, key) for key in new)
            if not (shared or skip):
                self._wanted |= dict.fromkeys((namespace, key) for key in new)
            self._keeper.begin(left, self._release)
            try:
                await self._ask(call)
            except (errors.Error, asyncio.CancelledError):
                self._astray |= dict.fromkeys((namespace, key) for key in new)
                raise
            self._keeper.begin(left, self._release)
        for key, seen in zip(new, call.values, strict=True):
            if seen[0] == SKIPPED:
                continue
            if shared:
                reads[key] = None
            elif held:
                reads.pop(key, None)
            read.setdefault(key, seen)  # what it has read before has been locked since

    async def be_sure(self) -> None:
        """See that all that it has read so far was so at one moment, if it is optimistic: else nobody is shown it."""
        async with self._in_turn:
            if not self.moment.unsure:
                return
            self.check_open()
            _, reads, absent = seen_of(self._read, self._written, optimistic=True)
            first, *others = in_pieces(self._scanned)
            checks = [CheckCall(self._owner, [], reads, absent, scanned=first, going_on=True)]
            checks += [CheckCall(self._owner, [], [], [], scanned=piece, going_on=True) for piece in others]
            await self.moment.be_sure(self._ask, checks)

    async def _ask(self, call: Call) -> None:
        left = self._ends_at - self.session.seconds()
        if left <= 0:
            raise self._too_late()
        try:
            await self.session.call(call, timeout=min(left, self.patience + self._lock_timeout))
        except errors.Unavailable as error:
            if self.session.seconds() >= self._ends_at:
                raise self._too_late() from error
            raise

    def check_open(self) -> None:
        """Raise UsageError if it is over, TransactionTimeout if its time is; and what every call of its session is told."""
        self.session.check_whole()
        if self.over:
            raise errors.UsageError(f"the transaction {self.name} is over: it was {self._state}")
        if self.session.seconds() >= self._ends_at:
            raise self._too_late()

    def _too_late(self) -> errors.TransactionTimeout:
        return errors.TransactionTimeout(f"the transaction {self.name} took longer than its timeout of {self._timeout} s")

    # The end.

    async def commit(self) -> None:
        """Make it so, or raise: Conflict (nothing of it happened) or CommitUnknown (ask for its status)."""
        async with self._in_turn:
            await self._commit()

    async def _commit(self) -> None:
        self.check_open()
        if self._bytes <= self.at_once:  # else some of its locks are needed for long
            self._keeper.stop()
        self.moment.leave()
        if self._written:
            self._take_id()
        self._state = "committed"
        try:
            if self._written:
                await self._decide()
            else:
                self._unused()
                await self._look()
            await self._release(self._astray)
        except errors.Error as error:
            self._state = "rolled back"
            if not error.maybe_committed:
                await self._release()
            raise
        except asyncio.CancelledError:  # what of it is on its way is refused where its locks are gone by then
            await self._release()
            raise
        finally:
            self._keeper.stop()

    async def _look(self) -> None:
        """See that all that it saw still stands: it has written nothing, and ends with that."""
        locks, reads, absent = seen_of(self._read, self._written, optimistic=self._takes_at_commit)
        first, *others = in_pieces(self._scanned)
        checks = [CheckCall(self._owner, locks, reads, absent, scanned=first)] if locks or reads or first else []
        checks += [CheckCall(self._owner, [], [], [], scanned=piece) for piece in others]
        for check in checks:
            await self.session.call(check, timeout=self.patience)

    def request(self, *, prepare_only: bool = False) -> CommitCall:
        """The commit, as it is said."""
        locks, reads, _ = seen_of(self._read, self._written, optimistic=self._takes_at_commit)
        return CommitCall(
            self.tx,
            self._owner,
            optimistic=self._takes_at_commit,
            writes=[(ns, list(written), list(written.values())) for ns, written in self._written.items()],
            locks=locks,
            reads=reads,
            prepare_only=prepare_only,
            label=self.label,
            labels_all=self.session.router.identity.labels_all(self.tx),
            ttls=self._ttls.listed(),
            size=self._bytes,
            at_once=self.at_once,
        )

    async def _decide(self) -> None:
        patience = self.patience
        if self._bytes > self.at_once:  # as long as it may take
            patience = max(patience, self._ends_at - self.session.seconds())
        try:
            prepare = self.request(prepare_only=True) if self._scanned else None
            await decide(self.session, self.request(), prepare, self._scanned, patience)
        except errors.Error as error:
            error.tx_id = f"{self.tx.hex()}@{self._decision()}"
            raise

    async def rollback(self) -> None:
        """Forget the writes and release the locks."""
        if self.over:
            return
        self._keeper.stop()
        self._state = "rolled back"
        self._unused()
        self.moment.leave()
        await self._release()

    def drop(self) -> Coroutine[Any, Any, object]:
        """Nobody has it any more, or knows how far it came to its end: what it has locked is to be given back."""
        self.dropped = True
        return self._release() if self.over else self.rollback()

    async def _release(self, keys: dict[_Key, None] | None = None) -> bool:
        """Give back what may be locked for it, or only where these keys are; it waits for none of its keys any more.
        Whether all have heard that."""
        where = self._where if keys is None else Whereabouts(keys)
        if (self._asked_for if keys is None else keys) and self.concurrency is Concurrency.PESSIMISTIC:
            try:
                await self.session.call(UnlockCall(self._owner, where), timeout=UNLOCK_SECONDS)
            except errors.Error:
                return False  # the locks' leases run out
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                await self.commit()
            except BaseException:
                await self.rollback()
                raise
        else:
            await self.rollback()
