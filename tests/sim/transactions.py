"""Transactions as a simulated client runs them: what `engine.client.transaction` does, without its event loop.

The rules are the same: a pessimistic transaction locks what it touches, an optimistic one remembers versions, and all
writes travel with the commit; one that has scanned is prepared first, and then its ranges are looked at; one that locks
`late` leaves to the commit what it only writes. What is left out is the renewal of leases, since simulated transactions
are short.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from engine import errors
from engine.client.calls import GetCall, LockCall, UnlockCall
from engine.client.claims import CANDIDATES, Sample, claimed
from engine.client.ends import CheckCall, CommitCall, StatusCall
from engine.client.scans import ScanCall
from engine.protocol.requests import SKIPPED, Scanned
from rebalance.table import Topology
from tests.sim.clients import Client
from tests.sim.network import MS
from wal.ids import NO_ERA, Era, Namespace, TxId

Key = tuple[Namespace, bytes]
LOCK_TIMEOUT_MS = 5_000
CALL_TIMEOUT_NS = 10_000 * MS
ALL_AT_ONCE = 1 << 62


class SimTransaction:
    """One transaction of a simulated client. After `commit` or `prepare`, `commit_call` is what was asked."""

    def __init__(
        self,
        client: Client,
        *,
        optimistic: bool = False,
        late: bool = False,
        timeout_ns: int = CALL_TIMEOUT_NS,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        at_once: int = ALL_AT_ONCE,
    ) -> None:
        """`at_once`: what writes more bytes than that is staged in pieces of as many."""
        self.client = client
        self.at_once = at_once
        self.optimistic = optimistic
        self.late = late
        self.unlocked = False  # it has written what it has not locked
        self.timeout_ns = timeout_ns
        self.lock_timeout_ms = lock_timeout_ms
        self.label = "unlocked" if optimistic else ""  # so that clients have several sessions
        self.tx: TxId = client.new_tx(self.label)
        self.owner: TxId = client.new_owner()  # holds its locks
        self.read: dict[Key, tuple[int, int, bytes | None]] = {}
        self.written: dict[Key, bytes | None] = {}
        self.shared: dict[Key, None] = {}  # what it has locked to read, and not to write
        self.asked_for: dict[Key, None] = {}  # to be locked, whatever came of it
        self.scanned: list[Scanned] = []
        self.free = False  # it was rolled back, and everybody said so
        self.commit_call: CommitCall | None = None
        self.cut: Era = NO_ERA  # at which it reads, if it is optimistic and has taken one

    async def get(self, namespace: Namespace, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The values of keys, as this transaction sees them."""
        wanted = list(dict.fromkeys(keys))
        await self._touch(namespace, wanted, shared=True)
        return {
            key: self.written[(namespace, key)] if (namespace, key) in self.written else self.read[(namespace, key)][2]
            for key in wanted
        }

    async def put(self, namespace: Namespace, values: Mapping[bytes, bytes | None]) -> None:
        """Set keys when it commits; None deletes."""
        if not self.optimistic:
            locked = [key for key in values if not self.late or (namespace, key) in self.read]
            await self._touch(namespace, locked)
            self.unlocked = self.unlocked or len(locked) < len(values)
        for key, value in values.items():
            self.written[(namespace, key)] = value

    def own(self, namespace: Namespace, low: bytes, high: bytes | None, *, read: bool = False) -> dict[bytes, bytes | None]:
        """What it has written so far, low <= key < high; `read`: and what it has read and locked."""
        known = {key: seen[2] for (ns, key), seen in self.read.items() if ns == namespace} if read else {}
        known |= {key: value for (ns, key), value in self.written.items() if ns == namespace}
        return {key: value for key, value in known.items() if low <= key and (high is None or key < high)}

    async def get_many(
        self, namespace: Namespace, keys: Iterable[bytes], *, update: bool = False, skip_locked: bool = False
    ) -> dict[bytes, bytes]:
        """The values of the keys that exist; `skip_locked`: and that are its own from now on. It will write them."""
        assert update, "who only reads says `get`"
        wanted = list(dict.fromkeys(keys))
        await self._touch(namespace, wanted, skip=skip_locked)
        known = self.own(namespace, b"", None, read=True)
        shared = self.shared if skip_locked else {}
        return {key: value for key in wanted if (namespace, key) not in shared and (value := known.get(key)) is not None}

    async def claim(
        self,
        namespace: Namespace,
        low: bytes,
        high: bytes,
        limit: int,
        *,
        reverse: bool = False,
        candidates: int = CANDIDATES,
        sample: Sample,
    ) -> list[tuple[bytes, bytes]]:
        """Rows of a range that nobody else has locked, as `scan(skip_locked=True)` of the client claims them."""
        rows = _Rows(self, namespace)
        return await claimed(self, rows, (low, high), limit, reverse=reverse, candidates=candidates, sample=sample)

    async def _touch(self, namespace: Namespace, keys: list[bytes], *, shared: bool = False, skip: bool = False) -> None:
        held = [key for key in keys if (namespace, key) in self.shared and not shared]
        new = [*held, *(key for key in keys if (namespace, key) not in self.read)]
        if self.optimistic or self.unlocked:
            new = [key for key in new if (namespace, key) not in self.written]
        if not new:
            return
        call = GetCall(namespace, new, cut=self.cut)
        if not self.optimistic:
            call = LockCall(self.owner, namespace, new, self.lock_timeout_ms, shared=shared, held=held, skip=skip)
            call.holding = bool(self.read) or len(new) > 1
            self.read = {(namespace, key): (0, 0, None) for key in new} | self.read  # so that a failure releases them
            self.asked_for |= {(namespace, key): None for key in new}
        await self.client.call(call, timeout_ns=self.timeout_ns + self.lock_timeout_ms * MS)
        for key, value in zip(new, call.values, strict=True):
            if value[0] == SKIPPED:
                if key not in held:
                    del self.read[(namespace, key)]
            elif key not in held:
                self.read[(namespace, key)] = value
                if shared and not self.optimistic:
                    self.shared[(namespace, key)] = None
            else:
                del self.shared[(namespace, key)]

    async def scan(self, namespace: Namespace, low: bytes, high: bytes, *, page_rows: int = 100) -> dict[bytes, bytes]:
        """The rows of a range into which nothing may come before this transaction's end; it has written none of them."""
        found: dict[bytes, bytes] = {}
        touched: list[bytes] = []
        marks: dict[int, tuple[int, int]] = {}
        start: bytes | None = low
        while start is not None and start < high:
            page = ScanCall(namespace, start, high, page_rows, marked=not marks)
            await self.client.call(page, timeout_ns=self.timeout_ns)
            marks = marks or page.marks
            keys = [key for key, _ in page.rows]
            touched += keys
            found |= {key: value for key, value in (await self.get(namespace, keys)).items() if value is not None}
            start = page.next_start
        topology = self.client.router.topology
        assert topology is not None, "it was scanned by it"
        known = [k for k in touched if self.read[(namespace, k)][1] > marks[topology.place(namespace, k)][1]]
        told = [(number, *mark) for number, mark in marks.items()]
        self.scanned.append(Scanned(namespace, low, high, told, known))
        return found

    def decision(self, topology: Topology) -> int:
        """The partition in which it is decided."""
        return topology.place(*next(iter(self.written)))

    def request(self, *, prepare_only: bool = False) -> CommitCall:
        """The commit, as it is sent; the same each time."""
        locks: list[Key] = []
        reads: list[tuple[Namespace, bytes, int, int]] = []
        takes_at_commit = self.optimistic or self.unlocked
        for (namespace, key), (epoch, counter, value) in self.read.items():
            if takes_at_commit:
                there = value is not None
                reads.append((namespace, key, epoch if there else 0, counter if there else 0))
            elif (namespace, key) not in self.written:
                locks.append((namespace, key))
        writes: dict[Namespace, tuple[list[bytes], list[bytes | None]]] = {}
        for (namespace, key), new in self.written.items():
            share = writes.setdefault(namespace, ([], []))
            share[0].append(key)
            share[1].append(new)
        return CommitCall(
            self.tx,
            self.owner,
            optimistic=takes_at_commit,
            writes=[(ns, keys, values) for ns, (keys, values) in writes.items()],
            locks=locks,
            reads=reads,
            prepare_only=prepare_only,
            label=self.label,
            labels_all=self.client.router.identity.labels_all(self.tx),
            size=sum(len(key) + len(new or b"") for (_, key), new in self.written.items()),
            at_once=self.at_once,
        )

    async def prepare(self) -> None:
        """Ask for the votes, and stop before the decision."""
        self.commit_call = self.request(prepare_only=True)
        await self.client.call(self.commit_call, timeout_ns=self.timeout_ns)

    async def look(self) -> None:
        """See that nothing came into what was scanned, when all that is written is prepared."""
        call = CheckCall(self.owner, [], [], [], scanned=self.scanned, tx=self.tx)
        await self.client.call(call, timeout_ns=self.timeout_ns)

    async def commit(self) -> None:
        """Make it so, or raise: Conflict, CommitUnknown, ..."""
        if not self.written:
            locks = [] if self.optimistic else list(self.read)
            reads = [
                (ns, key, v[0] if v[2] is not None else 0, v[1] if v[2] is not None else 0)
                for (ns, key), v in self.read.items()
                if self.optimistic
            ]
            absent = [(ns, key, *v[:2]) for (ns, key), v in self.read.items() if self.optimistic and v[2] is None]
            if locks or reads or self.scanned:
                call = CheckCall(self.owner, locks, reads, absent, scanned=self.scanned)
                await self.client.call(call, timeout_ns=self.timeout_ns)
            return
        if self.scanned:
            try:
                await self.prepare()
            except errors.CommitUnknown as error:
                raise errors.Unavailable(f"nobody asked to commit it: {error}") from error
            await self.look()
        await self.decide()

    async def decide(self) -> None:
        """Ask for the commit itself; what was staged to prepare it is taken to be staged."""
        before, self.commit_call = self.commit_call, self.request()
        self.commit_call.staged = before.staged if before is not None else 0
        await self.client.call(self.commit_call, timeout_ns=self.timeout_ns)

    async def rollback(self) -> None:
        """Give up, and release what was locked."""
        if self.commit_call is None:
            self.client.unused(self.tx)
        calls = []
        if self.commit_call is not None and self.commit_call.prepare_only:
            calls.append(UnlockCall(self.tx, [next(iter(self.written))]))
        if self.read and not self.optimistic:
            calls.append(UnlockCall(self.owner, list(self.read)))
        for call in calls:
            try:
                await self.client.call(call, timeout_ns=min(self.timeout_ns, 2_000 * MS))
            except errors.Error:
                return  # the locks' leases run out
        self.free = True

    async def status(self) -> str:
        """How it ended: `committed` or `aborted`, for good."""
        topology = self.client.router.topology
        assert topology is not None, "a transaction that wrote has seen a table"
        call = StatusCall(self.tx, self.decision(topology))
        await self.client.call(call, timeout_ns=self.timeout_ns)
        return call.outcome


class _Rows:
    """What a simulated transaction claims from."""

    def __init__(self, tx: SimTransaction, name: Namespace) -> None:
        self._tx = tx
        self.name = name

    async def unlocked(self, low: bytes, high: bytes | None, limit: int, *, reverse: bool) -> tuple[ScanCall, int]:
        """Up to `limit` rows that nobody has locked, as far as one page goes; each asks by itself."""
        call = ScanCall(self.name, low, high, limit, reverse=reverse, unlocked=True)
        return await self._tx.client.call(call, timeout_ns=self._tx.timeout_ns), 0

    async def pages(
        self, low: bytes, high: bytes | None, limit: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[ScanCall]:
        """All rows, a page of up to `limit` at a time."""
        left: tuple[bytes, bytes | None] | None = (low, high)
        while left is not None:
            call = ScanCall(self.name, *left, limit or CANDIDATES, reverse=reverse)
            await self._tx.client.call(call, timeout_ns=self._tx.timeout_ns)
            yield call
            left = call.following
