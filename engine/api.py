"""The transactional key-value API for blocking code: the same as `engine.aio`, over a private event loop in a thread.

```python
import engine

with engine.open("/tmp/accounts") as db:
    accounts = db.namespace("accounts", codec="json")
    accounts["ann"] = 100
    with db.transaction() as tx:
        inside = tx.namespace(accounts)
        inside.put("ann", inside.get_for_update("ann") - 10)
```
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from engine import aio, errors
from engine.aio import Setting
from engine.client.blocking import TransactionNamespace
from engine.client.blocking_namespaces import BlockingNamespaces
from engine.client.blocking_snapshots import Snapshot, SnapshotNamespace, read
from engine.client.codecs import Codec, CodecName
from engine.client.entered import enter, leave
from engine.client.here import OfThisProcess
from engine.client.loop import Held, Loop, immortal, iterate, opened, walked
from engine.client.modes import Concurrency
from engine.client.namespace import PAGE_ROWS
from engine.client.oneshot import Operation
from engine.client.running import Level, Mode, TransactionOptions, at_once, check_function, check_run, joined, pause
from engine.client.single import SingleKeys
from engine.client.timing import Aged
from engine.client.transaction import Transaction as RawTransaction

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
_MISSING = object()

__all__ = ["Database", "Namespace", "Snapshot", "SnapshotNamespace", "Transaction", "TransactionNamespace"]
__all__ += ["connect", "open", "transactional"]


class Namespace(OfThisProcess, SingleKeys[K, V]):
    """A named map, as a dict: with any codec but `bytes`, keys are text."""

    def __init__(self, database: Database, native: aio.Namespace[K, V]) -> None:
        self._native: aio.Namespace[K, V] = native
        self._run = database._loop.run
        self.database = database
        self.name = native.name
        self.codec = native.codec

    def __getitem__(self, key: K) -> V:
        value = self._run(self._native.get(key, _MISSING))
        if value is _MISSING:
            raise KeyError(key)
        return cast("V", value)

    def __setitem__(self, key: K, value: V) -> None:
        self._run(self._native.put(key, value))

    def __delitem__(self, key: K) -> None:
        if not self._run(self._native.delete(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._run(self._native.get(cast("K", key), _MISSING)) is not _MISSING

    @overload
    def get(
        self,
        key: K,
        default: None = None,
        *,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> V | None: ...

    @overload
    def get(
        self, key: K, default: D, *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> V | D: ...

    def get(
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
        return self._run(self._native.get(key, default, stale=stale, max_age=max_age, timeout=timeout))

    def get_aged(self, key: K, *, max_age: float | None = None, timeout: float | None = None) -> Aged[V]:
        """The value of a key as any in-sync copy has it, and how old it is at most."""
        return self._run(self._native.get_aged(key, max_age=max_age, timeout=timeout))

    def put(self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """Set a key; durable on every in-sync copy when it returns. `ttl`: it expires after so many seconds. A value that
        is put without stays, whatever was there."""
        self._run(self._native.put(key, value, ttl=ttl, timeout=timeout))

    def get_many(
        self, keys: Iterable[K], *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> dict[K, V]:
        """The values of the keys that exist; `stale` and `max_age` as with `get`."""
        return self._run(self._native.get_many(walked(keys), stale=stale, max_age=max_age, timeout=timeout))

    def put_many(
        self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Set keys; atomic within each partition only (use a transaction for more). `ttl` as with `put`."""
        self._run(self._native.put_many(walked(items, pairs=True), ttl=ttl, timeout=timeout))

    def delete_many(self, keys: Iterable[K], *, timeout: float | None = None) -> None:
        """Delete keys, whether or not they exist."""
        self._run(self._native.delete_many(walked(keys), timeout=timeout))

    def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; KeyError if there is none."""
        while first := next(self.scan(limit=1), None):
            value = self.get_and_delete(first[0], _MISSING)
            if value is not _MISSING:
                return first[0], cast("V", value)
        raise KeyError(f"namespace {self.name} is empty")

    def clear(self) -> None:
        """Delete all keys there are, page by page."""
        rows = self.scan()
        while page := [key for key, _ in itertools.islice(rows, PAGE_ROWS)]:
            self.delete_many(page)

    def count(self, *, stale: bool = False, max_age: float | None = None, timeout: float | None = None) -> int:
        """How many keys there are, as a scan would find them, and without one: copies know how many they have. `stale` and
        `max_age` as with `get`."""
        return self._run(self._native.count(stale=stale, max_age=max_age, timeout=timeout))

    def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        reverse: bool = False,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, or in `reverse`, the last ones first. Not a snapshot; each
        page comes within `timeout`, and may be as old as `stale` and `max_age` say, as with `get`."""
        scan = partial(self._native.scan, prefix=prefix, start=start, end=end, limit=limit, reverse=reverse)
        return iterate(self._run, scan(stale=stale, max_age=max_age, timeout=timeout))

    def __repr__(self) -> str:
        return repr(self._native)


class Transaction(Held):
    """A transaction: commits on a clean exit of `with`, rolls back on an exception, and when nobody has it any more."""

    def __init__(self, database: Database, native: aio.Transaction) -> None:
        super().__init__(database._loop, native._raw.drop)
        self.database = database
        self._native = native
        self._held = True

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._run(work)
        except errors.Error:
            self._held = not self._native._raw.over
            raise
        self._held = False

    def __repr__(self) -> str:
        return repr(self._native)

    @property
    def id(self) -> str:
        """The id to ask `transaction_status` about."""
        if self._native._raw.named:
            return self._native.id

        async def drawn() -> str:
            return self._native.id  # drawn where its session lives

        return self._run(drawn())

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
        if not isinstance(namespace, Namespace | str):
            raise errors.UsageError(f"expected a namespace of engine, or its name, found {type(namespace).__name__}")
        given = namespace if isinstance(namespace, str) else namespace._native
        return TransactionNamespace(self._run, self._native.inside(given, codec))

    def commit(self) -> None:
        """Commit now; the end of `with` then does nothing."""
        self._end(self._native.commit())

    def rollback(self) -> None:
        """Roll back now; the end of `with` then does nothing."""
        self._end(self._native.rollback())

    def __enter__(self) -> Self:
        self._run(self._native.__aenter__())
        enter(self._native._raw, None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self._native._raw)
        self._end(self._native.__aexit__(kind, error, traceback))


class Database(OfThisProcess, BlockingNamespaces):
    """A cluster, or an embedded node, as an application sees it."""

    def __init__(self, loop: Loop, native: aio.Database, again: Callable[[], Coroutine[Any, Any, aio.Database]]) -> None:
        self._loop = loop
        self._native: aio.Database = native
        loop.owner = native._owned()
        loop.forked = partial(_in_child, native, again)  # it has not this: nobody would ever lose it

    def __repr__(self) -> str:
        return repr(self._native)

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
        """A named map; it exists as soon as it is written to. `codec`: `bytes` (if none is said), `str`, `json`, `msgpack`,
        a type such as `int` or a dataclass, or `engine.by_tuple(...)`; it is kept. `backups`, if any: what it must have."""
        return Namespace(self, self._native.namespace(name, codec=codec, backups=backups))

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

        async def begin() -> aio.Transaction:
            return self._native.transaction(
                concurrency=concurrency, isolation=isolation, timeout=timeout, label=label, lock_timeout=lock_timeout
            )

        return Transaction(self, self._loop.run(begin()))

    def run(self, function: Callable[[Transaction], T], *, attempts: int = 10, **options: Unpack[TransactionOptions]) -> T:
        """Run `function` in a transaction, again while it fails for reasons that pass, `attempts` times at most.

        It runs in the caller's thread. A commit whose answer was lost is asked about before anything is done again, so
        it is never done twice.
        """
        check_run(function, attempts, options)
        before: tuple[RawTransaction, errors.Error] | None = None
        for attempt in itertools.count(1):
            transaction, returned = self.transaction(**options), False
            if before is not None:
                transaction._native._raw.follow(*before)
            elif attempts > 1:
                transaction._native._raw.lock_late()
            try:
                with transaction:
                    result = at_once(function, function(transaction))
                    returned = True
            except errors.Error as error:
                asked = self._native.did_commit(error, transaction._native, returned=returned, last=attempt >= attempts)
                if not self._loop.run(asked):
                    self._loop.run(pause(attempt))
                    before = transaction._native._raw, error
                    continue
            return result
        raise AssertionError("the last attempt returns or raises")

    def transact(self, operations: Iterable[Operation], *, attempts: int = 10, timeout: float | None = None) -> bool:
        """Do all of `operations`, or nothing, in one request: `engine.Put`, `engine.Delete` and `engine.Check`, in any
        namespaces. False: a condition did not hold, and nothing was done.

        Where another transaction came in between it is tried again, `attempts` times at most. It is done once, however
        often it has to be sent; an answer that was lost is asked for.
        """
        return self._loop.run(self._native.transact(walked(operations), attempts=attempts, timeout=timeout))

    def snapshot(self) -> Snapshot:
        """The whole database as it is when `with` is entered."""
        return Snapshot(self._loop, self._native.snapshot())

    def read(self, function: Callable[[Snapshot], T], *, attempts: int = 10) -> T:
        """Run `function` on a snapshot, again on another one while it is lost, `attempts` times at most."""
        return read(self._loop.run, self.snapshot, function, attempts)

    def transaction_status(self, tx_id: str, *, timeout: float | None = None) -> Literal["committed", "aborted"]:
        """How a transaction ended: `committed` or `aborted`. One that has not begun to end is aborted."""
        return self._loop.run(self._native.transaction_status(tx_id, timeout=timeout))

    def close(self) -> None:
        """End everything that is under way and hang up."""
        if self._loop.open:
            try:
                if not self._loop.in_child:
                    self._loop.run(self._native.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(addresses: str | Iterable[str], *, timeout: float = 10.0, domain: str = "", client_name: str = "") -> Database:
    """Connect to a cluster by the `host:port` of some of its nodes, in one text with commas or one by one.

    `timeout` (seconds) bounds every call that says nothing else. Stale reads prefer copies of nodes in `domain`.
    What this client writes is on record under `client_name` and its address. Raises Unavailable if no node answers within
    `timeout`, saying what each refused, and UsageError.
    """
    as_it_is = isinstance(addresses, str | bytes | bytearray) or not isinstance(addresses, Iterable)
    given = addresses if as_it_is else list(addresses)
    return _start(lambda: aio.connect(given, timeout=timeout, domain=domain, client_name=client_name))


def open(path: str | Path, **settings: Setting) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port. A directory that is not there is made.

    `settings` are those that `foreshore node config` prints, such as `partitions=64` (for good; a new directory has 16)
    or `durability="LOG_ONLY"`. Raises UsageError (also where another process has it open), CorruptionError and DiskFull.
    """
    return _start(lambda: aio.open(path, **settings))


def _in_child(native: aio.Database, again: Callable[[], Coroutine[Any, Any, aio.Database]], loop: Loop) -> None:
    """A child of `os.fork()`: connect anew, under the same names; transactions of the parent stay the parent's."""
    if native.embedded:
        raise errors.UsageError(
            f"{native.where} was opened before os.fork(), and the node lives in the parent: open it in a process that is "
            "begun when the parent has closed it, or run nodes (`foreshore node start`) and connect to them"
        )
    immortal(native.session)
    native.session.leave_to_parent()
    loop.begin()
    native._adopt(loop.run(again()))


def _start(begin: Callable[[], Coroutine[Any, Any, aio.Database]]) -> Database:
    loop = Loop()
    return Database(loop, opened(loop, begin), begin)


@overload
def transactional(
    function: Callable[Concatenate[aio.Transaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[aio.Database | aio.Transaction, P], Coroutine[Any, Any, T]]: ...


@overload
def transactional(
    function: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Database | Transaction, P], T]: ...


def transactional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function(tx, ...)` run in a transaction of its own, with retries; or join the one that it is given.

    Called with a Database it begins a transaction, commits it and retries it as `Database.run` does; called with a
    Transaction it joins it, and commits nothing. So such functions compose. For asynchronous functions too.
    """
    check_function(function)
    if asyncio.iscoroutinefunction(function):

        @wraps(function)
        async def native(first: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, aio.Database):
                return await first.run(lambda tx: function(tx, *args, **kwargs))
            return await function(joined(first, aio.Transaction, aio.Database), *args, **kwargs)

        return native

    @wraps(function)
    def blocking(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, Database):
            return first.run(lambda tx: function(tx, *args, **kwargs))
        return function(joined(first, Transaction, Database), *args, **kwargs)

    return blocking
