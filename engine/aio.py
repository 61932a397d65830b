"""The transactional key-value API in its native, asynchronous form: `connect` to a cluster, or `open` a directory.

`engine.api` is the same for blocking code, a thin face over this one.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

from engine import errors
from engine.client.batches import batches_of
from engine.client.calls import GetCall, PutCall, ScanCall, StatusCall, SwapCall
from engine.client.codecs import Codec, CodecName, codec_of, key_of, keys_of, limit_of, pairs_of, range_of, value_of
from engine.client.session import Session, SocketLinks
from engine.client.timing import Aged, check_seconds, milliseconds, time_left
from engine.client.transaction import Concurrency, Isolation, check_label, check_mode, entered
from engine.client.transaction import Transaction as RawTransaction
from engine.protocol.addresses import split_address
from wal.ids import CODECS, check_name, partition_of

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
_Writer = TypeVar("_Writer", PutCall, SwapCall)
_MISSING = object()

Mode = Concurrency | Literal["PESSIMISTIC", "OPTIMISTIC"]
Level = Isolation | Literal["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"]
Setting = str | int | bool


class TransactionOptions(TypedDict, total=False):
    """What `transaction` takes, and `run` for each transaction that it begins."""

    concurrency: Mode
    isolation: Level | None
    timeout: float
    label: str
    lock_timeout: float


PAGE_ROWS = 1000
FORMS_MAX = 10_000
"""Of so many namespaces it is remembered that their codec is right."""
Form = Literal["", "looked", "agreed"]
"""That a namespace is kept in a codec: nobody looked; none is on record; it is that one."""
RETRY_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

__all__ = ["Concurrency", "Database", "Isolation", "Namespace", "Transaction", "connect", "open"]


class Namespace(Generic[K, V]):
    """A named map of a cluster. Single operations are linearizable; a batch is atomic within each partition."""

    def __init__(self, database: Database, name: str, codec: Codec[K, V]) -> None:
        self.database = database
        self.name = name
        self.codec = codec
        self._known: Form = database.forms.get((name, codec.form), "")

    async def _look(self, timeout: float | None) -> None:
        """See that it is this codec in which the namespace is kept, if any is on record."""
        read = await self._session.call(GetCall(CODECS, [self.name.encode()], stale=True), timeout=timeout)
        self._compare(read.values[0][2])

    async def _agree(self, timeout: float | None) -> None:
        """The same, and put it on record before the first write. Bytes as they are have no codec."""
        if self.codec.form == "bytes":
            await self._look(timeout)
            return
        tx, ours = self._session.new_tx(), self.codec.form.encode()
        try:
            made = await self._session.call(SwapCall(tx, CODECS, self.name.encode(), "absent", None, ours), timeout=timeout)
        except errors.CommitUnknown as error:
            raise errors.Unavailable(f"the codec of namespace {self.name!r} could not be put on record: {error}") from error
        self._compare(ours if made.applied else made.found)

    async def _seen(self, *, writing: bool = False) -> None:
        """What a transaction needs to know before it reads or writes here."""
        if self._known != "agreed" and writing:
            await self._agree(None)
        elif not self._known:
            await self._look(None)

    def _compare(self, recorded: bytes | None) -> None:
        form = self.codec.form
        if recorded is not None and recorded != form.encode():
            raise errors.UsageError(
                f"namespace {self.name!r} is kept in {recorded.decode(errors='replace')!r}, and was asked for in {form!r}: "
                "ask for it in that codec, or use another namespace"
            )
        self._known = "agreed" if recorded is not None or form == "bytes" else "looked"
        if len(self.database.forms) < FORMS_MAX:
            self.database.forms[(self.name, form)] = self._known

    @property
    def _session(self) -> Session:
        return self.database.session  # another one in the child of a fork

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
        call = _get_call(self.name, [key_of(self.codec, key)], stale, max_age)
        if not self._known:
            await self._look(timeout)
        value = (await self._session.call(call, timeout=timeout)).values[0][2]
        return default if value is None else self.codec.decode(value)

    async def get_many(
        self, keys: Iterable[K], *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> dict[K, V]:
        """The values of the keys that exist; `stale` and `max_age` as with `get`."""
        wanted = keys_of(self.codec, keys)
        if not wanted:
            return {}
        if not self._known:
            await self._look(timeout)
        call = await self._session.call(_get_call(self.name, list(wanted), stale, max_age), timeout=timeout)
        decode = self.codec.decode
        found = zip(wanted.values(), call.values, strict=True)
        return {key: decode(value) for key, (_, _, value) in found if value is not None}

    async def get_aged(self, key: K, *, max_age: float | None = None, timeout: float | None = None) -> Aged[V]:
        """The value of a key as any in-sync copy has it, and how old it is at most."""
        call = _get_call(self.name, [key_of(self.codec, key)], True, max_age)
        if not self._known:
            await self._look(timeout)
        await self._session.call(call, timeout=timeout)
        value, age_ms = call.values[0][2], call.answered_ms
        return Aged(None if value is None else self.codec.decode(value), age_ms / 1000 if age_ms >= 0 else None)

    async def put(self, key: K, value: V, *, timeout: float | None = None) -> None:
        """Set a key; durable on every in-sync copy when it returns."""
        keys: list[bytes] = [key_of(self.codec, key)]
        values: list[bytes | None] = [value_of(self.codec, value)]
        await self._write(PutCall(self._session.new_tx(), self.name, keys, values), timeout)

    async def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, timeout: float | None = None) -> None:
        """Set keys; atomic within each partition only (use a transaction for more).

        A batch with more than 100,000 keys or 32 MiB in one partition is refused as a whole.
        """
        await self._write_many(pairs_of(self.codec, items), timeout)

    async def delete_many(self, keys: Iterable[K], *, timeout: float | None = None) -> None:
        """Delete keys, whether or not they exist."""
        await self._write_many(dict.fromkeys(keys_of(self.codec, keys)), timeout)

    async def _write_many(self, writes: Mapping[bytes, bytes | None], timeout: float | None) -> None:
        topology = self._session.router.topology
        assert topology is not None, "a database is open when its client has a table"
        left = time_left(timeout)
        for keys in batches_of(writes, topology.partitions):
            await self._write(PutCall(self._session.new_tx(), self.name, keys, [writes[key] for key in keys]), left())

    async def delete(self, key: K, *, timeout: float | None = None) -> bool:
        """Delete a key; whether it existed."""
        return (await self._swap(key, "present", None, None, timeout)).applied

    async def put_if_absent(self, key: K, value: V, *, timeout: float | None = None) -> bool:
        """Set a key that has no value; whether it was set."""
        return (await self._swap(key, "absent", None, value_of(self.codec, value), timeout)).applied

    async def replace(self, key: K, old: V, new: V, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        return (await self._swap(key, "equals", value_of(self.codec, old), value_of(self.codec, new), timeout)).applied

    @overload
    async def pop(self, key: K, *, timeout: float | None = None) -> V: ...

    @overload
    async def pop(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def pop(self, key: K, default: object = _MISSING, *, timeout: float | None = None) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        encoded, left = key_of(self.codec, key), time_left(timeout)
        if not self._known:
            await self._look(timeout)
        while True:  # what is deleted is what was read: a delete that has to be asked for twice tells no value
            read = await self._session.call(GetCall(self.name, [encoded]), timeout=left())
            value = read.values[0][2]
            if value is None:
                break
            if (await self._swap(key, "equals", value, None, left())).applied:
                return self.codec.decode(value)
        if default is _MISSING:
            raise KeyError(key)
        return default

    async def _swap(self, key: Any, when: str, old: bytes | None, new: bytes | None, timeout: float | None) -> SwapCall:
        encoded = key_of(self.codec, key)
        return await self._write(SwapCall(self._session.new_tx(), self.name, encoded, when, old, new), timeout)

    async def _write(self, call: _Writer, timeout: float | None) -> _Writer:
        """Do a write. If its answer is lost, the error names whom to ask, as far as that is one partition."""
        if self._known != "agreed":
            await self._agree(timeout)
        if inside := entered.get():
            self._check_own_locks(call.keys, inside)
        try:
            return await self._session.call(call, timeout=timeout)
        except errors.CommitUnknown as error:
            topology = self._session.router.topology
            assert topology is not None, "a write was sent by it"
            numbers = {partition_of(key, topology.partitions) for key in call.keys}
            if len(numbers) == 1:
                error.tx_id = f"{call.tx.hex()}@{numbers.pop()}"
            raise

    def _check_own_locks(self, keys: Iterable[bytes], inside: tuple[tuple[RawTransaction, object], ...]) -> None:
        """Refuse a write that would wait for a transaction which waits for it."""
        for raw, task in inside:
            mine = raw.session is self._session and (task is None or task is asyncio.current_task())
            if mine and (key := raw.holds(self.name, keys)) is not None:
                raise errors.UsageError(
                    f"{self.name}:{key!r} is locked by transaction {raw.name}, in whose `with` this is: a write "
                    "outside it would wait for its end, in vain; write with tx.namespace(...), or after it"
                )

    async def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending. Not a snapshot: pages are read one after another, each
        within `timeout`."""
        low, high = range_of(self.codec, prefix, start, end)
        left = limit_of(limit)
        decode_key, decode = self.codec.decode_key, self.codec.decode
        async for page in self._pages(low, high, limit, timeout):
            for key, value in page:
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield decode_key(key), decode(value)

    async def _pages(
        self, low: bytes, high: bytes | None, limit: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        if not self._known:
            await self._look(timeout)
        at: bytes | None = low
        while at is not None and (high is None or at < high):
            page = PAGE_ROWS if limit is None else max(1, min(PAGE_ROWS, limit))
            call = await self._session.call(ScanCall(self.name, at, high, page), timeout=timeout)
            yield call.rows
            at = call.next_start


def _get_call(name: str, keys: list[bytes], stale: bool, max_age: float | None) -> GetCall:
    if not isinstance(stale, bool):
        raise errors.UsageError(f"stale is {stale!r}: expected True or False")
    if max_age is None:
        return GetCall(name, keys, stale=stale)
    age_ms = milliseconds("max_age", max_age)
    return GetCall(name, keys, stale=True, age_ms=age_ms)


class TransactionNamespace(Generic[K, V]):
    """A namespace inside a transaction."""

    def __init__(self, raw: RawTransaction, namespace: Namespace[K, V]) -> None:
        self._raw = raw
        self._namespace = namespace
        self.name = namespace.name
        self.codec = namespace.codec

    def __repr__(self) -> str:
        return f"<Namespace {self.name} codec={self.codec.name} in {self._raw.description}>"

    @overload
    async def get(self, key: K, default: None = None) -> V | None: ...

    @overload
    async def get(self, key: K, default: D) -> V | D: ...

    async def get(self, key: K, default: object = None) -> object:
        """The value of a key, or `default`; it stays what it is until the transaction ends."""
        encoded = key_of(self.codec, key)
        await self._namespace._seen()
        found = await self._raw.get_many(self.name, [encoded])
        return self.codec.decode(found[encoded]) if encoded in found else default

    @overload
    async def get_for_update(self, key: K, default: None = None) -> V | None: ...

    @overload
    async def get_for_update(self, key: K, default: D) -> V | D: ...

    async def get_for_update(self, key: K, default: object = None) -> object:
        """The same, saying that it will be written: nobody else can from now on (or the commit will tell)."""
        return await self.get(key, default)

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of the keys that exist."""
        wanted = keys_of(self.codec, keys)
        await self._namespace._seen()
        found = await self._raw.get_many(self.name, wanted)
        return {wanted[key]: self.codec.decode(value) for key, value in found.items()}

    async def put(self, key: K, value: V) -> None:
        """Set a key when the transaction commits."""
        await self._put_many({key_of(self.codec, key): value_of(self.codec, value)})

    async def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set keys when the transaction commits."""
        await self._put_many(pairs_of(self.codec, items))

    async def delete(self, key: K) -> None:
        """Delete a key when the transaction commits."""
        await self._put_many({key_of(self.codec, key): None})

    async def _put_many(self, writes: dict[bytes, bytes | None]) -> None:
        await self._namespace._seen(writing=True)
        await self._raw.put_many(self.name, writes)

    async def scan(
        self, *, prefix: K | None = None, start: K | None = None, end: K | None = None, limit: int | None = None
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, with this transaction's own writes."""
        low, high = range_of(self.codec, prefix, start, end)
        last = limit_of(limit)
        rows = await self._raw.scan(
            self.name,
            self._namespace._pages(low, high),
            lambda key: low <= key and (high is None or key < high),
        )
        for key, value in rows[:last]:
            yield self.codec.decode_key(key), self.codec.decode(value)


class Transaction:
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
            return TransactionNamespace(self._raw, self.database.namespace(namespace, codec=codec))
        if not isinstance(namespace, Namespace):
            raise errors.UsageError(f"expected a namespace of engine.aio, or its name, found {type(namespace).__name__}")
        if namespace.database is not self.database:
            raise errors.UsageError(
                f"namespace {namespace.name!r} is of another database than the transaction: a transaction is within one"
            )
        if codec is not None:
            raise errors.UsageError(f"namespace {namespace.name!r} has its codec: name one with a namespace's name only")
        return TransactionNamespace(self._raw, namespace)

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


class Database:
    """A cluster, or an embedded node, as an application sees it."""

    def __init__(self, session: Session, where: str, close: Callable[[], Awaitable[None]] | None = None) -> None:
        self.session = session
        self.where = where
        self._close = close
        self.forms: dict[tuple[str, str], Form] = {}  # (namespace, form of its codec) -> what is known of it

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
        """Begin a transaction: PESSIMISTIC + REPEATABLE_READ, or OPTIMISTIC + SERIALIZABLE. Times in seconds."""
        chosen, _ = check_mode(concurrency, isolation)
        check_label(label)
        for what, seconds in (("timeout", timeout), ("lock_timeout", lock_timeout)):
            check_seconds(what, seconds)
        raw = RawTransaction(self.session, concurrency=chosen, timeout=timeout, label=label, lock_timeout=lock_timeout)
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
                    began = function(transaction)
                    if not inspect.isawaitable(began):
                        raise errors.UsageError(
                            f"{name_of(function)} gave a {type(began).__name__}: expected an `async def` that returns what "
                            "it found; a plain function belongs to the blocking form, and rows are returned as a list"
                        )
                    result = await began
                    returned = True
            except errors.Error as error:
                if not await self.did_commit(error, transaction, returned=returned, last=attempt >= attempts):
                    await self.pause(attempt)
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

    async def pause(self, attempt: int) -> None:
        """The pause after a failed attempt: longer after later ones, and never the same for two that met."""
        pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS)) - 1]
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # spreads retries, hides no secret

    async def transaction_status(self, tx_id: str, *, timeout: float | None = None) -> Literal["committed", "aborted"]:
        """How a transaction ended: `committed` or `aborted`. One that has not begun to end is aborted."""
        name, at, partition = str(tx_id).partition("@")
        try:
            tx, number = bytes.fromhex(name), int(partition)
        except ValueError:
            at = ""
        if not at or len(tx) != 16:
            raise errors.UsageError(f"{tx_id!r} is not a transaction id: expected 32 hex digits, '@' and a partition")
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


def check_run(function: object, attempts: int) -> None:
    """Raise UsageError for what cannot be run."""
    if not callable(function):
        raise errors.UsageError(f"expected a function of a transaction, found {type(function).__name__}")
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise errors.UsageError(f"attempts is {attempts!r}: expected a whole number, at least 1")


def name_of(function: Callable[..., object]) -> str:
    """A function as a message names it."""
    return str(getattr(function, "__qualname__", repr(function)))


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
    given = [addresses] if isinstance(addresses, str) else list(addresses)
    wrong = [address for address in given if not isinstance(address, str)]
    if wrong:
        raise errors.UsageError(f"an address is {wrong[0]!r}: expected texts of the form host:port")
    seeds = [part.strip() for address in given for part in address.split(",") if part.strip()]
    if not seeds:
        raise errors.UsageError("no address was given: expected host:port,host:port,...")
    for address in seeds:
        try:
            split_address(address)
        except ValueError as error:
            raise errors.UsageError(str(error)) from None
    session = Session(seeds, timeout=timeout, domain=domain, name=client_name)
    session.links = SocketLinks(session)
    session.begin()
    database = Database(session, ",".join(seeds))
    if not await session.wait_for_table(timeout):
        await database.close()
        why = "; ".join(f"{address}: {reason}" for address, reason in session.refusals.items())
        raise errors.Unavailable(f"no node of a formed cluster answered within {timeout} s ({why or ','.join(seeds)})")
    return database


async def open(path: str | Path, **settings: Setting) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port.

    `settings` are those of `engine.turn.settings.Settings`; a new directory has 16 partitions unless they say
    otherwise. Raises UsageError, CorruptionError and DiskFull.
    """
    if not isinstance(path, str | PathLike):
        raise errors.UsageError(f"the directory is {path!r}: expected a path")
    return await open_embedded(Path(path), settings)


async def open_embedded(path: Path, settings: dict[str, Any], **how: Any) -> Database:
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
