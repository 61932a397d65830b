"""The transactional key-value API in its native, asynchronous form: `connect` to a cluster, or `open` a directory.

`engine.api` is the same for blocking code, a thin face over this one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from engine import errors
from engine.client.calls import GetCall, PutCall, ScanCall, StatusCall, SwapCall
from engine.client.session import Session, SocketLinks
from engine.client.transaction import Concurrency, Isolation, check_mode
from engine.client.transaction import Transaction as RawTransaction
from engine.codecs import Codec, codec_of
from engine.transport import split_address
from wal.ids import check_name

T = TypeVar("T")

PAGE_ROWS = 1000
BATCH_KEYS = 10_000
BATCH_BYTES = 16 << 20
RETRY_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

__all__ = ["Concurrency", "Database", "Isolation", "Namespace", "Transaction", "connect", "open"]


def _range(codec: Codec, prefix: Any, start: Any, end: Any) -> tuple[bytes, bytes | None]:
    """The key range of a scan, as bytes: start <= key < end."""
    low = codec.encode_key(start) if start is not None else b""
    high = codec.encode_key(end) if end is not None else None
    if prefix is not None:
        head = codec.encode_key(prefix)
        low = max(low, head)
        stem = head.rstrip(b"\xff")
        after = stem[:-1] + bytes([stem[-1] + 1]) if stem else None
        if after is not None and (high is None or after < high):
            high = after
    return low, high


class Namespace:
    """A named map of a cluster. Single operations are linearizable; a batch is atomic within each partition."""

    def __init__(self, database: Database, name: str, codec: Codec, backups: int | None) -> None:
        self.database = database
        self.name = name
        self.codec = codec
        self._backups = backups
        self._session = database.session

    async def get(self, key: Any, default: Any = None, *, stale: bool = False) -> Any:
        """The value of a key, or `default`. `stale`: from any in-sync copy, perhaps a moment old."""
        call = await self._session.call(GetCall(self.name, [self.codec.encode_key(key)], stale=stale))
        self._check_backups()
        value = call.values[0][2]
        return default if value is None else self.codec.decode(value)

    async def get_many(self, keys: Iterable[Any], *, stale: bool = False) -> dict[Any, Any]:
        """The values of the keys that exist."""
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        call = await self._session.call(GetCall(self.name, [self.codec.encode_key(k) for k in wanted], stale=stale))
        decode = self.codec.decode
        return {key: decode(value) for key, (_, _, value) in zip(wanted, call.values, strict=True) if value is not None}

    async def put(self, key: Any, value: Any) -> None:
        """Set a key; durable on every in-sync copy when it returns."""
        session = self._session
        keys: list[bytes] = [self.codec.encode_key(key)]
        values: list[bytes | None] = [self.codec.encode(value)]
        await session.call(PutCall(session.new_tx(), self.name, keys, values))
        if self._backups is not None:
            self._check_backups()

    async def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set keys; atomic within each partition only (use a transaction for more)."""
        pairs = items.items() if isinstance(items, Mapping) else items
        encode_key, encode = self.codec.encode_key, self.codec.encode
        await self._write_many({encode_key(key): encode(value) for key, value in pairs})

    async def delete_many(self, keys: Iterable[Any]) -> None:
        """Delete keys, whether or not they exist."""
        await self._write_many({self.codec.encode_key(key): None for key in keys})

    async def _write_many(self, writes: Mapping[bytes, bytes | None]) -> None:
        session = self._session
        keys: list[bytes] = []
        values: list[bytes | None] = []
        size = 0
        for key, value in writes.items():
            keys.append(key)
            values.append(value)
            size += len(key) + len(value or b"")
            if len(keys) >= BATCH_KEYS or size >= BATCH_BYTES:
                await session.call(PutCall(session.new_tx(), self.name, keys, values))
                keys, values, size = [], [], 0
        if keys:
            await session.call(PutCall(session.new_tx(), self.name, keys, values))
        self._check_backups()

    async def delete(self, key: Any) -> bool:
        """Delete a key; whether it existed."""
        return (await self._swap(key, "present", None, None)).applied

    async def put_if_absent(self, key: Any, value: Any) -> bool:
        """Set a key that has no value; whether it was set."""
        return (await self._swap(key, "absent", None, self.codec.encode(value))).applied

    async def replace(self, key: Any, old: Any, new: Any) -> bool:
        """Set a key to `new` if its value is `old`; whether it was."""
        return (await self._swap(key, "equals", self.codec.encode(old), self.codec.encode(new))).applied

    async def pop(self, key: Any, default: Any = None) -> Any:
        """Delete a key and return its value, or `default`."""
        call = await self._swap(key, "present", None, None)
        return self.codec.decode(call.found) if call.found is not None else default

    async def _swap(self, key: Any, when: str, old: bytes | None, new: bytes | None) -> SwapCall:
        session = self._session
        encoded = self.codec.encode_key(key)
        call = await session.call(SwapCall(session.new_tx(), self.name, encoded, when, old, new))
        self._check_backups()
        return call

    async def scan(
        self, *, prefix: Any = None, start: Any = None, end: Any = None, limit: int | None = None
    ) -> AsyncIterator[tuple[Any, Any]]:
        """(key, value) pairs with start <= key < end, ascending. Not a snapshot: pages are read one after another."""
        low, high = _range(self.codec, prefix, start, end)
        left = limit
        decode_key, decode = self.codec.decode_key, self.codec.decode
        async for page in self._pages(low, high, limit):
            for key, value in page:
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield decode_key(key), decode(value)

    async def _pages(
        self, low: bytes, high: bytes | None, limit: int | None = None
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        at: bytes | None = low
        while at is not None and (high is None or at < high):
            page = PAGE_ROWS if limit is None else max(1, min(PAGE_ROWS, limit))
            call = await self._session.call(ScanCall(self.name, at, high, page))
            yield call.rows
            at = call.next_start

    def _check_backups(self) -> None:
        topology = self._session.router.topology
        if self._backups is None or topology is None:
            return
        if self._backups != topology.backups:
            raise errors.UsageError(
                f"namespace {self.name!r} was asked for with backups={self._backups}; this cluster keeps "
                f"{topology.backups} synchronous backups of every namespace, and settings of their own come later"
            )


class TransactionNamespace:
    """A namespace inside a transaction."""

    def __init__(self, raw: RawTransaction, namespace: Namespace) -> None:
        self._raw = raw
        self._namespace = namespace
        self.name = namespace.name
        self.codec = namespace.codec

    async def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`; it stays what it is until the transaction ends."""
        encoded = self.codec.encode_key(key)
        found = await self._raw.get_many(self.name, [encoded])
        return self.codec.decode(found[encoded]) if encoded in found else default

    async def get_for_update(self, key: Any, default: Any = None) -> Any:
        """The same, saying that it will be written: nobody else can from now on (or the commit will tell)."""
        return await self.get(key, default)

    async def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """The values of the keys that exist."""
        wanted = {self.codec.encode_key(key): key for key in keys}
        found = await self._raw.get_many(self.name, wanted)
        return {wanted[key]: self.codec.decode(value) for key, value in found.items()}

    async def put(self, key: Any, value: Any) -> None:
        """Set a key when the transaction commits."""
        await self._raw.put_many(self.name, {self.codec.encode_key(key): self.codec.encode(value)})

    async def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set keys when the transaction commits."""
        pairs = items.items() if isinstance(items, Mapping) else items
        encode_key, encode = self.codec.encode_key, self.codec.encode
        await self._raw.put_many(self.name, {encode_key(key): encode(value) for key, value in pairs})

    async def delete(self, key: Any) -> None:
        """Delete a key when the transaction commits."""
        await self._raw.put_many(self.name, {self.codec.encode_key(key): None})

    async def scan(
        self, *, prefix: Any = None, start: Any = None, end: Any = None, limit: int | None = None
    ) -> AsyncIterator[tuple[Any, Any]]:
        """(key, value) pairs with start <= key < end, ascending, with this transaction's own writes."""
        low, high = _range(self.codec, prefix, start, end)
        rows = await self._raw.scan(
            self.name,
            self._namespace._pages(low, high),
            lambda key: low <= key and (high is None or key < high),
        )
        for key, value in rows[:limit]:
            yield self.codec.decode_key(key), self.codec.decode(value)


class Transaction:
    """A transaction: commits on a clean exit of `async with`, rolls back on an exception."""

    def __init__(self, database: Database, raw: RawTransaction) -> None:
        self.database = database
        self._raw = raw

    @property
    def id(self) -> str:
        """The id to ask `transaction_status` about."""
        return self._raw.id

    def namespace(self, namespace: Namespace | str, *, codec: str | Codec | None = None) -> TransactionNamespace:
        """A namespace inside this transaction; given as an object, with that one's codec."""
        if isinstance(namespace, str):
            namespace = self.database.namespace(namespace, codec=codec)
        return TransactionNamespace(self._raw, namespace)

    async def commit(self) -> None:
        """Commit now; the end of `async with` then does nothing."""
        await self._raw.commit()

    async def rollback(self) -> None:
        """Roll back now; the end of `async with` then does nothing."""
        await self._raw.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._raw.over:
            return
        await self._raw.__aexit__(kind, error, traceback)


class Database:
    """A cluster, or an embedded node, as an application sees it."""

    def __init__(self, session: Session, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self.session = session
        self._close = close

    def namespace(self, name: str, *, codec: str | Codec | None = None, backups: int | None = None) -> Namespace:
        """A named map; it exists as soon as it is written to. `backups` must be what the cluster keeps."""
        try:
            check_name("namespace", name)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
        return Namespace(self, name, codec_of(codec), backups)

    def transaction(
        self,
        *,
        concurrency: str = Concurrency.PESSIMISTIC,
        isolation: str | None = None,
        timeout: float = 30.0,
        label: str = "",
        lock_timeout: float = 5.0,
    ) -> Transaction:
        """Begin a transaction: PESSIMISTIC + REPEATABLE_READ, or OPTIMISTIC + SERIALIZABLE. Times in seconds."""
        chosen, _ = check_mode(concurrency, isolation)
        raw = RawTransaction(self.session, concurrency=chosen, timeout=timeout, label=label, lock_timeout=lock_timeout)
        return Transaction(self, raw)

    async def run(self, function: Callable[[Transaction], Awaitable[T]], *, attempts: int = 10, **options: Any) -> T:
        """Run `function` in a transaction, again while it fails for reasons that pass, `attempts` times at most.

        A commit whose answer was lost is asked about before anything is done again, so it is never done twice.
        """
        if attempts < 1:
            raise errors.UsageError(f"attempts is {attempts}: expected at least 1")
        for attempt in range(attempts):
            try:
                async with self.transaction(**options) as transaction:
                    return_value = await function(transaction)
            except errors.CommitUnknown as error:
                if error.tx_id is not None and await self.transaction_status(error.tx_id) == "committed":
                    return return_value
                if attempt + 1 == attempts:
                    raise
            except errors.Error as error:
                if not error.retryable or attempt + 1 == attempts:
                    raise
            else:
                return return_value
            pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # spreads retries, hides no secret
        raise AssertionError("the last attempt returns or raises")

    async def transaction_status(self, tx_id: str) -> str:
        """How a transaction ended: `committed` or `aborted`. One that has not begun to end is aborted."""
        name, at, partition = tx_id.partition("@")
        try:
            tx, number = bytes.fromhex(name), int(partition)
        except ValueError:
            at = ""
        if not at or len(tx) != 16:
            raise errors.UsageError(f"{tx_id!r} is not a transaction id: expected 32 hex digits, '@' and a partition")
        while True:
            try:
                return (await self.session.call(StatusCall(tx, number))).outcome
            except errors.Error as error:
                if not error.retryable or error.maybe_committed:
                    raise
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End everything that is under way and hang up."""
        await self.session.close()
        if self._close is not None:
            await self._close()
            self._close = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect(addresses: str, *, timeout: float = 10.0) -> Database:
    """Connect to a cluster by the `host:port` of some of its nodes, separated by commas.

    `timeout` (seconds) bounds every call. Raises Unavailable if no node answers within it, saying what each refused.
    """
    seeds = [address.strip() for address in addresses.split(",") if address.strip()]
    if not seeds:
        raise errors.UsageError("no address was given: expected host:port,host:port,...")
    for address in seeds:
        try:
            split_address(address)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
    session = Session(seeds, timeout=timeout)
    session.links = SocketLinks(session)
    session.begin()
    database = Database(session)
    if not await session.wait_for_table(timeout):
        await database.close()
        why = "; ".join(f"{address}: {reason}" for address, reason in session.refusals.items())
        raise errors.Unavailable(f"no node of a formed cluster answered within {timeout} s ({why or addresses})")
    return database


async def open(path: str | Path, **settings: Any) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port.

    `settings` are those of `engine.settings.Settings`. Raises UsageError, CorruptionError and DiskFull.
    """
    from engine.embedded import open_embedded  # noqa: PLC0415  # a remote client needs neither LMDB nor the node

    return await open_embedded(Path(path), settings)
