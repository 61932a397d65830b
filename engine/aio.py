"""The transactional key-value API in its native, asynchronous form: `connect` to a cluster, or `open` a directory.

`engine.api` is the same for blocking code, a thin face over this one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from engine import errors
from engine.client.calls import GetCall, PutCall
from engine.client.codecs import Codec, CodecName, codec_of, key_of, keys_of, limit_of, pairs_of, range_of, value_of
from engine.client.ends import StatusCall
from engine.client.here import OfThisProcess
from engine.client.inside import TransactionNamespace
from engine.client.modes import Concurrency, Isolation, check_mode
from engine.client.namespace import Access, age_of, get_call
from engine.client.namespace import Namespace as RawNamespace
from engine.client.running import Level, Mode, TransactionOptions, check_run, pause, to_await
from engine.client.session import Session, reached
from engine.client.timing import Aged, check_seconds, time_left
from engine.client.transaction import Transaction as RawTransaction
from engine.client.transaction import check_label, entered, place_of
from engine.protocol.addresses import addresses_of
from wal.ids import check_name

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
_MISSING = object()

Setting = str | int | bool


__all__ = ["Concurrency", "Database", "Isolation", "Level", "Mode", "Namespace", "Transaction", "connect", "open"]
__all__ += ["TransactionNamespace"]


class Namespace(OfThisProcess, Generic[K, V]):
    """A named map of a cluster. Single operations are linearizable; a batch is atomic within each partition."""

    def __init__(self, database: Database, name: str, codec: Codec[K, V]) -> None:
        self.database = database
        self.name = name
        self.codec = codec
        self._raw = RawNamespace(database, name, codec.form)

    def __repr__(self) -> str:
        return f"<Namespace {self.name} codec={self.codec.name}>"

    @overload
    async def get(
        self,
        key: K,
        default: None = None,
        *,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> V | None: ...

    @overload
    async def get(
        self, key: K, default: D, *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> V | D: ...

    async def get(
        self,
        key: K,
        default: object = None,
        *,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> object:
        """The value of a key, or `default`. `stale`: as any in-sync copy has it, the nearest if it can be; with
        `max_age`, one that misses nothing that was acknowledged so many seconds ago."""
        call = get_call(self.name, [key_of(self.codec, key)], stale, max_age)
        if not self._raw.known:
            await self._raw.look(timeout)
        value = (await self._raw.session.call(call, timeout=timeout)).values[0][2]
        return default if value is None else self.codec.decode(value)

    async def get_many(
        self, keys: Iterable[K], *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> dict[K, V]:
        """The values of the keys that exist; `stale` and `max_age` as with `get`."""
        wanted = keys_of(self.codec, keys)
        if not wanted:
            return {}
        if not self._raw.known:
            await self._raw.look(timeout)
        call = await self._raw.session.call(get_call(self.name, list(wanted), stale, max_age), timeout=timeout)
        decode = self.codec.decode
        found = zip(wanted.values(), call.values, strict=True)
        return {key: decode(value) for key, (_, _, value) in found if value is not None}

    async def get_aged(self, key: K, *, max_age: float | None = None, timeout: float | None = None) -> Aged[V]:
        """The value of a key as any in-sync copy has it, and how old it is at most."""
        call = get_call(self.name, [key_of(self.codec, key)], True, max_age)
        if not self._raw.known:
            await self._raw.look(timeout)
        await self._raw.session.call(call, timeout=timeout)
        value, age_ms = call.values[0][2], call.answered_ms
        return Aged(None if value is None else self.codec.decode(value), age_ms / 1000 if age_ms >= 0 else None)

    async def put(self, key: K, value: V, *, timeout: float | None = None) -> None:
        """Set a key; durable on every in-sync copy when it returns."""
        keys: list[bytes] = [key_of(self.codec, key)]
        values: list[bytes | None] = [value_of(self.codec, value)]
        await self._raw.write(PutCall(self._raw.session.new_tx(), self.name, keys, values), timeout)

    async def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, timeout: float | None = None) -> None:
        """Set keys; atomic within each partition only (use a transaction for more).

        A batch with more than 100,000 keys or 32 MiB in one partition is refused as a whole.
        """
        await self._raw.write_many(pairs_of(self.codec, items), timeout)

    async def delete_many(self, keys: Iterable[K], *, timeout: float | None = None) -> None:
        """Delete keys, whether or not they exist."""
        await self._raw.write_many(dict.fromkeys(keys_of(self.codec, keys)), timeout)

    async def delete(self, key: K, *, timeout: float | None = None) -> bool:
        """Delete a key; whether it existed."""
        return (await self._raw.swap(key_of(self.codec, key), "present", timeout)).applied

    async def put_if_absent(self, key: K, value: V, *, timeout: float | None = None) -> bool:
        """Set a key that has no value; whether it was set."""
        return (await self._raw.swap(key_of(self.codec, key), "absent", timeout, new=value_of(self.codec, value))).applied

    async def replace(self, key: K, old: V, new: V, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        was, will = value_of(self.codec, old), value_of(self.codec, new)
        return (await self._raw.swap(key_of(self.codec, key), "equals", timeout, old=was, new=will)).applied

    @overload
    async def pop(self, key: K, *, timeout: float | None = None) -> V: ...

    @overload
    async def pop(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def pop(self, key: K, default: object = _MISSING, *, timeout: float | None = None) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        encoded, left = key_of(self.codec, key), time_left(timeout)
        if not self._raw.known:
            await self._raw.look(timeout)
        while True:  # what is deleted is what was read: a delete that has to be asked for twice tells no value
            read = await self._raw.session.call(GetCall(self.name, [encoded]), timeout=left())
            value = read.values[0][2]
            if value is None:
                break
            if (await self._raw.swap(encoded, "equals", left(), old=value)).applied:
                return self.codec.decode(value)
        if default is _MISSING:
            raise KeyError(key)
        return default

    async def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending. Not a snapshot: pages are read one after another, each
        within `timeout`; `stale` and `max_age` as with `get`, the age counted from when a page is asked for."""
        low, high = range_of(self.codec, prefix, start, end)
        left = limit_of(limit)
        anywhere, age_ms = age_of(stale, max_age)
        decode_key, decode = self.codec.decode_key, self.codec.decode
        async for page in self._raw.pages(low, high, limit, timeout, stale=anywhere, age_ms=age_ms):
            for key, value in page.rows:
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield decode_key(key), decode(value)


class Transaction(OfThisProcess):
    """A transaction: commits on a clean exit of `async with`, rolls back on an exception."""

    def __init__(self, database: Database, raw: RawTransaction) -> None:
        self.database = database
        self._raw = raw
        self._entered = False

    def __repr__(self) -> str:
        return f"<Transaction {self._raw.description}>"

    @property
    def id(self) -> str:
        """The id to ask `transaction_status` about."""
        return self._raw.id

    @overload
    def namespace(self, namespace: Namespace[K, V]) -> TransactionNamespace[K, V]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["bytes"] | None = None) -> TransactionNamespace[bytes, bytes]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["str"]) -> TransactionNamespace[str, str]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["json", "msgpack"]) -> TransactionNamespace[str, Any]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Codec[K, V]) -> TransactionNamespace[K, V]: ...

    @overload
    def namespace(self, namespace: str, *, codec: type[V]) -> TransactionNamespace[str, V]: ...

    def namespace(
        self, namespace: Namespace[Any, Any] | str, *, codec: CodecName | Codec[Any, Any] | type[Any] | None = None
    ) -> TransactionNamespace[Any, Any]:
        """A namespace inside this transaction; given as an object, with that one's codec."""
        return self.inside(namespace, codec)

    def inside(
        self, namespace: Namespace[Any, Any] | str, codec: CodecName | Codec[Any, Any] | type[Any] | None
    ) -> TransactionNamespace[Any, Any]:
        """`namespace`, for whoever knows no more of its types than that."""
        if isinstance(namespace, str):
            named = self.database.namespace(namespace, codec=codec)
            return TransactionNamespace(self._raw, named._raw, named.codec)
        if not isinstance(namespace, Namespace):
            raise errors.UsageError(f"expected a namespace of engine.aio, or its name, found {type(namespace).__name__}")
        if namespace.database is not self.database:
            raise errors.UsageError(
                f"namespace {namespace.name!r} is of another database than the transaction: a transaction is within one"
            )
        if codec is not None:
            raise errors.UsageError(f"namespace {namespace.name!r} has its codec: name one with a namespace's name only")
        return TransactionNamespace(self._raw, namespace._raw, namespace.codec)

    async def commit(self) -> None:
        """Commit now; the end of `async with` then does nothing."""
        await self._raw.commit()

    async def rollback(self) -> None:
        """Roll back now; the end of `async with` then does nothing."""
        await self._raw.rollback()

    async def __aenter__(self) -> Self:
        if self._entered or self._raw.over:
            raise errors.UsageError(f"transaction {self.id} was used already: begin another one, or join it without `with`")
        self._entered = True
        entered.set((*entered.get(), (self._raw, asyncio.current_task())))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entered.set(tuple(pair for pair in entered.get() if pair[0] is not self._raw))
        if self._raw.over:
            return
        await self._raw.__aexit__(kind, error, traceback)


class Database(OfThisProcess, Access):
    """A cluster, or an embedded node, as an application sees it."""

    def __init__(self, session: Session, where: str, close: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(session)
        self.where = where
        self._close = close

    @property
    def embedded(self) -> bool:
        """Whether the node is in this process."""
        return self._close is not None

    def __repr__(self) -> str:
        return f"<Database {self.where}{' closed' if self.session.closed else ''}>"

    @overload
    def namespace(
        self, name: str, *, codec: Literal["bytes"] | None = None, backups: int | None = None
    ) -> Namespace[bytes, bytes]: ...

    @overload
    def namespace(self, name: str, *, codec: Literal["str"], backups: int | None = None) -> Namespace[str, str]: ...

    @overload
    def namespace(
        self, name: str, *, codec: Literal["json", "msgpack"], backups: int | None = None
    ) -> Namespace[str, Any]: ...

    @overload
    def namespace(self, name: str, *, codec: Codec[K, V], backups: int | None = None) -> Namespace[K, V]: ...

    @overload
    def namespace(self, name: str, *, codec: type[V], backups: int | None = None) -> Namespace[str, V]: ...

    def namespace(
        self, name: str, *, codec: CodecName | Codec[Any, Any] | type[Any] | None = None, backups: int | None = None
    ) -> Namespace[Any, Any]:
        """A named map; it exists as soon as it is written to. `backups` must be what the cluster keeps."""
        if not isinstance(name, str):
            raise errors.UsageError(f"the name of a namespace is {name!r}: expected a str")
        try:
            check_name("namespace", name)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
        topology = self.session.router.topology
        if backups is not None and topology is not None and backups != topology.backups:
            raise errors.UsageError(
                f"namespace {name!r} was asked for with backups={backups}; this cluster keeps {topology.backups} "
                "synchronous backups of every namespace, and settings of their own come later"
            )
        return Namespace(self, name, codec_of(codec))

    def transaction(
        self,
        *,
        concurrency: Mode = Concurrency.PESSIMISTIC,
        isolation: Level | None = None,
        timeout: float = 30.0,
        label: str = "",
        lock_timeout: float = 5.0,
    ) -> Transaction:
        """Begin a transaction, PESSIMISTIC + REPEATABLE_READ or OPTIMISTIC + SERIALIZABLE unless more is said. Times in
        seconds."""
        chosen, level = check_mode(concurrency, isolation)
        check_label(label)
        for what, seconds in (("timeout", timeout), ("lock_timeout", lock_timeout)):
            check_seconds(what, seconds)
        raw = RawTransaction(
            self.session, concurrency=chosen, isolation=level, timeout=timeout, label=label, lock_timeout=lock_timeout
        )
        return Transaction(self, raw)

    async def run(
        self, function: Callable[[Transaction], Awaitable[T]], *, attempts: int = 10, **options: Unpack[TransactionOptions]
    ) -> T:
        """Run `function` in a transaction, again while it fails for reasons that pass, `attempts` times at most.

        A commit whose answer was lost is asked about before anything is done again, so it is never done twice.
        """
        check_run(function, attempts)
        for attempt in itertools.count(1):
            transaction, returned = self.transaction(**options), False
            try:
                async with transaction:
                    result = await to_await(function, function(transaction))
                    returned = True
            except errors.Error as error:
                if not await self.did_commit(error, transaction, returned=returned, last=attempt >= attempts):
                    await pause(attempt)
                    continue
            return result
        raise AssertionError("the last attempt returns or raises")

    async def did_commit(self, error: errors.Error, transaction: Transaction, *, returned: bool, last: bool) -> bool:
        """What `run` does about an error: True if the transaction is committed all the same, False if it is to be run
        again; or raises the error. `returned`: the function came to its end; `last`: there is no other attempt."""
        if isinstance(error, errors.CommitUnknown) and error.tx_id == transaction.id and returned:
            try:
                if await self.transaction_status(transaction.id) == "committed":
                    return True
            except errors.Error as unanswered:
                raise error from unanswered
        elif not error.retryable:
            raise error
        if last:
            raise error
        return False

    async def transaction_status(self, tx_id: str, *, timeout: float | None = None) -> Literal["committed", "aborted"]:
        """How a transaction ended: `committed` or `aborted`. One that has not begun to end is aborted."""
        tx, number = place_of(tx_id)
        if self.session.router.identity.gave_up(tx):
            return "aborted"
        outcome = (await self.session.call(StatusCall(tx, number), timeout=timeout)).outcome
        return "committed" if outcome == "committed" else "aborted"

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


async def connect(
    addresses: str | Iterable[str], *, timeout: float = 10.0, domain: str = "", client_name: str = ""
) -> Database:
    """Connect to a cluster by the `host:port` of some of its nodes, in one text with commas or one by one.

    `timeout` (seconds) bounds every call that says nothing else. Stale reads prefer copies of nodes in `domain`. What
    this client writes is on record under `client_name` and its address (`foreshore wal key`). Raises Unavailable if no
    node answers within `timeout`, saying what each refused.
    """
    check_seconds("timeout", timeout)
    check_label(client_name)
    if not isinstance(addresses, Iterable) or not isinstance(domain, str):
        raise errors.UsageError(
            f"expected texts of the form host:port, found {addresses!r}, and a domain, found {domain!r}"
        )
    try:
        seeds = addresses_of(addresses)
    except ValueError as error:
        raise errors.UsageError(str(error)) from None
    return Database(await reached(seeds, timeout, domain=domain, name=client_name), ",".join(seeds))


async def open(path: str | Path, **settings: Setting) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port.

    `settings` are those of `engine.turn.settings.Settings`; a new directory has 16 partitions unless they say
    otherwise. Raises UsageError, CorruptionError and DiskFull.
    """
    return await open_embedded(path, settings)


async def open_embedded(path: str | Path, settings: dict[str, Any], **how: Any) -> Database:
    """`open`, where `how` may say on which disk the log is: for those who try out what happens when one fails."""
    try:
        from engine.host.embedded import ADDRESS, open_node  # noqa: PLC0415  # a remote client needs neither LMDB nor the node
    except ModuleNotFoundError as error:
        raise errors.UsageError(
            f"a node in this process needs {error.name}, which is not installed: pip install 'foreshore[node]'"
        ) from error

    node = await open_node(path, settings, **how)
    session = Session([ADDRESS], timeout=60.0)
    session.links = node
    node.begin(session)
    session.begin()
    if not await session.wait_for_table(30.0):
        await node.stop()
        raise errors.Unavailable(f"the node in {path} did not start")
    return Database(session, f"embedded {path}", node.stop)
