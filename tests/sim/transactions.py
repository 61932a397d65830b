"""Transactions of a simulated client: `engine.client.transaction` itself, and what no application asks of it.

A world wants to see them stopped where a client may die: after the votes, after the look at what was scanned; and some that
stage the little that they write, or are not heard of again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from engine.client.batches import STAGED_ABOVE
from engine.client.claims import CANDIDATES, Sample, claimed, scanned
from engine.client.deciding import withdraw
from engine.client.ends import CheckCall, CommitCall, StatusCall
from engine.client.modes import Concurrency, Isolation
from engine.client.moments import HeldCut
from engine.client.scans import ScanCall
from engine.client.transaction import Transaction
from engine.protocol.requests import Scanned
from tests.sim.clients import SECOND, Client
from tests.sim.network import MS
from wal.ids import Era, Namespace, TxId

Key = tuple[Namespace, bytes]
LOCK_TIMEOUT_MS = 5_000
CALL_TIMEOUT_NS = 10_000 * MS
LASTS_NS = 3_600 * SECOND


class SimTransaction(Transaction):
    """One transaction of a simulated client. `commit_call`: what was asked last to commit or to prepare it."""

    def __init__(
        self,
        client: Client,
        *,
        optimistic: bool = False,
        isolation: Isolation = Isolation.SERIALIZABLE,
        late: bool = False,
        timeout_ns: int = CALL_TIMEOUT_NS,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        lasts_ns: int = LASTS_NS,
        at_once: int = STAGED_ABOVE,
    ) -> None:
        """`timeout_ns`: of each of its calls; `lasts_ns`: of all of it. `at_once`: what writes more bytes than that is
        staged in pieces of as many."""
        super().__init__(
            client.session,
            concurrency=Concurrency.OPTIMISTIC if optimistic else Concurrency.PESSIMISTIC,
            isolation=isolation,
            timeout=lasts_ns / SECOND,
            label="unlocked" if optimistic else "",  # so that clients have several sessions
            lock_timeout=lock_timeout_ms / 1000,
        )
        self.client = client
        self.optimistic = optimistic
        self.patience = timeout_ns / SECOND
        self.at_once = at_once
        self.commit_call: CommitCall | None = None
        self.free = False  # it was rolled back, and everybody said so
        if late:
            self.lock_late()

    # What a world looks at.

    @property
    def owner(self) -> TxId:
        """Who holds its locks."""
        return self._owner

    @property
    def written(self) -> dict[Key, bytes | None]:
        """What it will write."""
        return {(namespace, key): value for namespace, of in self._written.items() for key, value in of.items()}

    @property
    def asked_for(self) -> dict[Key, None]:
        """What may be locked for it."""
        return self._asked_for

    @property
    def scanned(self) -> list[Scanned]:
        """What it has scanned."""
        return self._scanned

    # What it does.

    async def get(self, namespace: Namespace, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The values of keys, as this transaction sees them."""
        wanted = list(dict.fromkeys(keys))
        found = await self.get_many(namespace, wanted)
        return {key: found.get(key) for key in wanted}

    async def put(self, namespace: Namespace, values: Mapping[bytes, bytes | None]) -> None:
        """Set keys when it commits; None deletes."""
        await self.put_many(namespace, dict(values))

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
        """Rows of a range that nobody else has locked."""
        rows = self.client.raw(namespace)
        return await claimed(self, rows, (low, high), limit, reverse=reverse, candidates=candidates, sample=sample)

    async def scan(self, namespace: Namespace, low: bytes, high: bytes, *, page_rows: int = 100) -> dict[bytes, bytes]:
        """The rows of a range into which nothing may come before this transaction's end."""
        return dict(await scanned(self, self._pages(namespace, low, high, page_rows), (low, high), None))

    async def _pages(self, namespace: Namespace, low: bytes, high: bytes, page_rows: int) -> AsyncIterator[ScanCall]:
        async def pages(low: bytes, high: bytes | None, cut: Era, marked: bool) -> AsyncIterator[ScanCall]:
            left: tuple[bytes, bytes | None] | None = (low, high)
            while left is not None:
                call = ScanCall(namespace, *left, page_rows, marked=marked, cut=cut)
                yield await self.session.call(call, timeout=self.patience)
                left, marked = call.following, False

        async for page in self.moment.pages(pages, low, high, marked=self.serializable):
            yield page

    async def begin_at_a_cut(self) -> None:
        """Read at a cut, as an optimistic one does that has asked often enough whether all is as it was."""
        self.moment._held = HeldCut(self.session, self._ends_at)
        await self.moment._held.take(self.patience)

    def leave_its_cut(self) -> None:
        """Read at it no more."""
        self.moment.leave()

    def abandon(self) -> None:
        """Its client is not heard of again."""
        self._keeper.stop()

    # How it ends.

    def request(self, *, prepare_only: bool = False) -> CommitCall:
        """The commit, as it is said; what was staged to prepare it is taken to be staged."""
        before, self.commit_call = self.commit_call, super().request(prepare_only=prepare_only)
        self.commit_call.staged = before.staged if before is not None else 0
        return self.commit_call

    async def prepare(self) -> None:
        """Ask for the votes, and stop before the decision."""
        self.check_open()
        self._keeper.stop()  # as before a commit
        self.moment.leave()
        self._take_id()
        await self.session.call(self.request(prepare_only=True), timeout=self.patience)

    async def look(self) -> None:
        """See that nothing came into what was scanned, when all that is written is prepared."""
        call = CheckCall(self._owner, [], [], [], scanned=self._scanned, tx=self.tx)
        await self.session.call(call, timeout=self.patience)

    async def decide(self) -> None:
        """Ask for the commit itself."""
        await self.session.call(self.request(), timeout=self.patience)

    async def rollback(self) -> None:
        """Give up; what was prepared is taken back."""
        if self.commit_call is not None and self.commit_call.prepare_only and not self.over:
            self._keeper.stop()
            self._state = "rolled back"
            await withdraw(self.session, self.commit_call)
            await self._release()
            return
        await super().rollback()

    async def _release(self, keys: dict[Key, None] | None = None) -> bool:
        self.free = await super()._release(keys)
        return self.free

    async def status(self) -> str:
        """How it ended: `committed` or `aborted`, for good."""
        self._take_id()
        call = StatusCall(self.tx, self._decision())
        await self.session.call(call, timeout=self.patience)
        return call.outcome
