"""Transactions as a simulated client runs them: what `engine.client.transaction` does, without its event loop.

The rules are the same: a pessimistic transaction locks what it touches, an optimistic one remembers versions, and all
writes travel with the commit. What is left out is the renewal of leases: simulated transactions are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine import errors
from engine.client.calls import GetCall, LockCall, UnlockCall
from engine.client.ends import CheckCall, CommitCall, StatusCall
from tests.sim.clients import Client
from tests.sim.network import MS
from wal.ids import Namespace, TxId, partition_of

Key = tuple[Namespace, bytes]
LOCK_TIMEOUT_MS = 5_000
CALL_TIMEOUT_NS = 10_000 * MS


class SimTransaction:
    """One transaction of a simulated client. After `commit` or `prepare`, `commit_call` is what was asked."""

    def __init__(
        self,
        client: Client,
        *,
        optimistic: bool = False,
        timeout_ns: int = CALL_TIMEOUT_NS,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    ) -> None:
        self.client = client
        self.optimistic = optimistic
        self.timeout_ns = timeout_ns
        self.lock_timeout_ms = lock_timeout_ms
        self.tx: TxId = client.new_tx()
        self.read: dict[Key, tuple[int, int, bytes | None]] = {}
        self.written: dict[Key, bytes | None] = {}
        self.commit_call: CommitCall | None = None

    async def get(self, namespace: Namespace, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The values of keys, as this transaction sees them."""
        wanted = list(dict.fromkeys(keys))
        await self._touch(namespace, wanted)
        return {
            key: self.written[(namespace, key)] if (namespace, key) in self.written else self.read[(namespace, key)][2]
            for key in wanted
        }

    async def put(self, namespace: Namespace, values: Mapping[bytes, bytes | None]) -> None:
        """Set keys when it commits; None deletes."""
        if not self.optimistic:
            await self._touch(namespace, list(values))
        for key, value in values.items():
            self.written[(namespace, key)] = value

    async def _touch(self, namespace: Namespace, keys: list[bytes]) -> None:
        new = [key for key in keys if (namespace, key) not in self.read]
        if self.optimistic:
            new = [key for key in new if (namespace, key) not in self.written]
        if not new:
            return
        call = GetCall(namespace, new)
        if not self.optimistic:
            call = LockCall(self.tx, namespace, new, self.lock_timeout_ms)
            self.read |= {(namespace, key): (0, 0, None) for key in new}  # so that a failure releases them
        await self.client.call(call, timeout_ns=self.timeout_ns + self.lock_timeout_ms * MS)
        for key, value in zip(new, call.values, strict=True):
            self.read[(namespace, key)] = value

    def decision(self, partitions: int) -> int:
        """The partition in which it is decided."""
        return partition_of(next(iter(self.written))[1], partitions)

    def request(self, *, prepare_only: bool = False) -> CommitCall:
        """The commit, as it is sent; the same each time."""
        locks: list[Key] = []
        reads: list[tuple[Namespace, bytes, int, int]] = []
        for (namespace, key), (epoch, counter, value) in self.read.items():
            if self.optimistic:
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
            self.tx,
            optimistic=self.optimistic,
            writes=[(ns, keys, values) for ns, (keys, values) in writes.items()],
            locks=locks,
            reads=reads,
            prepare_only=prepare_only,
        )

    async def prepare(self) -> None:
        """Ask for the votes, and stop before the decision."""
        self.commit_call = self.request(prepare_only=True)
        await self.client.call(self.commit_call, timeout_ns=self.timeout_ns)

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
            if locks or reads:
                await self.client.call(CheckCall(self.tx, locks, reads, absent), timeout_ns=self.timeout_ns)
            return
        self.commit_call = self.request()
        await self.client.call(self.commit_call, timeout_ns=self.timeout_ns)

    async def rollback(self) -> None:
        """Give up, and release what was locked."""
        if self.commit_call is None:
            self.client.unused(self.tx)
        if not self.optimistic and self.read:
            keys = [key for _, key in self.read]
            try:
                await self.client.call(UnlockCall(self.tx, keys), timeout_ns=min(self.timeout_ns, 2_000 * MS))
            except errors.Error:
                return  # the locks' leases run out

    async def status(self) -> str:
        """How it ended: `committed` or `aborted`, for good."""
        topology = self.client.router.topology
        assert topology is not None, "a transaction that wrote has seen a table"
        call = StatusCall(self.tx, self.decision(topology.partitions))
        await self.client.call(call, timeout_ns=self.timeout_ns)
        return call.outcome
