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
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from engine import aio, errors
from engine.client.transaction import Concurrency
from engine.codecs import Codec

T = TypeVar("T")
_MISSING = object()


class _Loop:
    """A thread that runs an event loop, for the calls of one database."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="foreshore-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the loop, and wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise errors.UsageError("a blocking call was made on the database's own thread: use engine.aio there")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  # optional: where it is not there, asyncio's own loop serves as well
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Namespace(MutableMapping[Any, Any]):
    """A named map, as a dict: with any codec but `bytes`, keys are text."""

    def __init__(self, database: Database, native: aio.Namespace) -> None:
        self._native = native
        self._run = database._loop.run
        self.database = database
        self.name = native.name

    def __getitem__(self, key: Any) -> Any:
        value = self._run(self._native.get(key, _MISSING))
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._run(self._native.put(key, value))

    def __delitem__(self, key: Any) -> None:
        if not self._run(self._native.delete(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._run(self._native.get(key, _MISSING)) is not _MISSING

    def __iter__(self) -> Iterator[Any]:
        """The keys, ascending."""
        for key, _ in self.scan():
            yield key

    def __len__(self) -> int:
        """How many keys there are. O(n): they are counted."""
        return sum(1 for _ in self.scan())

    def get(self, key: Any, default: Any = None, *, stale: bool = False) -> Any:
        """The value of a key, or `default`. `stale`: from any in-sync copy, perhaps a moment old."""
        return self._run(self._native.get(key, default, stale=stale))

    def put(self, key: Any, value: Any) -> None:
        """Set a key; durable on every in-sync copy when it returns."""
        self._run(self._native.put(key, value))

    def delete(self, key: Any) -> bool:
        """Delete a key; whether it existed."""
        return self._run(self._native.delete(key))

    def get_many(self, keys: Iterable[Any], *, stale: bool = False) -> dict[Any, Any]:
        """The values of the keys that exist."""
        return self._run(self._native.get_many(keys, stale=stale))

    def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set keys; atomic within each partition only (use a transaction for more)."""
        self._run(self._native.put_many(items))

    def delete_many(self, keys: Iterable[Any]) -> None:
        """Delete keys, whether or not they exist."""
        self._run(self._native.delete_many(keys))

    def put_if_absent(self, key: Any, value: Any) -> bool:
        """Set a key that has no value; whether it was set."""
        return self._run(self._native.put_if_absent(key, value))

    def replace(self, key: Any, old: Any, new: Any) -> bool:
        """Set a key to `new` if its value is `old`; whether it was."""
        return self._run(self._native.replace(key, old, new))

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        value = self._run(self._native.pop(key, _MISSING))
        if value is not _MISSING:
            return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def scan(
        self, *, prefix: Any = None, start: Any = None, end: Any = None, limit: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """(key, value) pairs with start <= key < end, ascending. Not a snapshot."""
        return _iterate(self._run, self._native.scan(prefix=prefix, start=start, end=end, limit=limit))

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"


class TransactionNamespace:
    """A namespace inside a transaction."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], native: aio.TransactionNamespace) -> None:
        self._run = run
        self._native = native

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`; it stays what it is until the transaction ends."""
        return self._run(self._native.get(key, default))

    def get_for_update(self, key: Any, default: Any = None) -> Any:
        """The same, saying that it will be written."""
        return self._run(self._native.get_for_update(key, default))

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """The values of the keys that exist."""
        found: dict[Any, Any] = self._run(self._native.get_many(keys))
        return found

    def put(self, key: Any, value: Any) -> None:
        """Set a key when the transaction commits."""
        self._run(self._native.put(key, value))

    def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set keys when the transaction commits."""
        self._run(self._native.put_many(items))

    def delete(self, key: Any) -> None:
        """Delete a key when the transaction commits."""
        self._run(self._native.delete(key))

    def scan(
        self, *, prefix: Any = None, start: Any = None, end: Any = None, limit: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """(key, value) pairs with start <= key < end, ascending, with this transaction's own writes."""
        return _iterate(self._run, self._native.scan(prefix=prefix, start=start, end=end, limit=limit))


class Transaction:
    """A transaction: commits on a clean exit of `with`, rolls back on an exception."""

    def __init__(self, database: Database, native: aio.Transaction) -> None:
        self.database = database
        self._native = native
        self._run = database._loop.run

    @property
    def id(self) -> str:
        """The id to ask `transaction_status` about."""
        return self._native.id

    def namespace(self, namespace: Namespace | str, *, codec: str | Codec | None = None) -> TransactionNamespace:
        """A namespace inside this transaction; given as an object, with that one's codec."""
        given = namespace._native if isinstance(namespace, Namespace) else namespace
        return TransactionNamespace(self._run, self._native.namespace(given, codec=codec))

    def commit(self) -> None:
        """Commit now; the end of `with` then does nothing."""
        self._run(self._native.commit())

    def rollback(self) -> None:
        """Roll back now; the end of `with` then does nothing."""
        self._run(self._native.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._native.__aexit__(kind, error, traceback))


class Database:
    """A cluster, or an embedded node, as an application sees it."""

    def __init__(self, loop: _Loop, native: aio.Database) -> None:
        self._loop = loop
        self._native = native

    def namespace(self, name: str, *, codec: str | Codec | None = None, backups: int | None = None) -> Namespace:
        """A named map; it exists as soon as it is written to. `backups` must be what the cluster keeps."""
        return Namespace(self, self._native.namespace(name, codec=codec, backups=backups))

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

        async def begin() -> aio.Transaction:
            return self._native.transaction(
                concurrency=concurrency, isolation=isolation, timeout=timeout, label=label, lock_timeout=lock_timeout
            )

        return Transaction(self, self._loop.run(begin()))

    def run(self, function: Callable[[Transaction], T], *, attempts: int = 10, **options: Any) -> T:
        """Run `function` in a transaction, again while it fails for reasons that pass, `attempts` times at most."""

        async def inside(native: aio.Transaction) -> T:
            transaction = Transaction(self, native)
            return await asyncio.get_running_loop().run_in_executor(None, function, transaction)

        return self._loop.run(self._native.run(inside, attempts=attempts, **options))

    def transaction_status(self, tx_id: str) -> str:
        """How a transaction ended: `committed` or `aborted`. One that has not begun to end is aborted."""
        return self._loop.run(self._native.transaction_status(tx_id))

    def close(self) -> None:
        """End everything that is under way and hang up."""
        if not self._loop.loop.is_closed():
            try:
                self._loop.run(self._native.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _iterate(run: Callable[[Coroutine[Any, Any, Any]], Any], rows: AsyncIterator[T]) -> Iterator[T]:
    """An asynchronous iterator, a chunk at a time."""

    async def chunk() -> list[T]:
        taken: list[T] = []
        async for row in rows:
            taken.append(row)
            if len(taken) >= aio.PAGE_ROWS:
                break
        return taken

    while page := run(chunk()):
        yield from page


def connect(addresses: str, *, timeout: float = 10.0) -> Database:
    """Connect to a cluster by the `host:port` of some of its nodes, separated by commas. `timeout` bounds every call."""
    return _start(lambda: aio.connect(addresses, timeout=timeout))


def open(path: str | Path, **settings: Any) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port."""
    return _start(lambda: aio.open(path, **settings))


def _start(begin: Callable[[], Coroutine[Any, Any, aio.Database]]) -> Database:
    loop = _Loop()
    try:
        return Database(loop, loop.run(begin()))
    except BaseException:
        loop.stop()
        raise


def transactional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function(tx, ...)` run in a transaction of its own, with retries; or join the one that it is given.

    Called with a Database it begins a transaction, commits it and retries it as `Database.run` does; called with a
    Transaction it joins it, and commits nothing. So such functions compose. For asynchronous functions too.
    """
    if asyncio.iscoroutinefunction(function):

        @wraps(function)
        async def native(first: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, aio.Database):
                return await first.run(lambda tx: function(tx, *args, **kwargs))
            return await function(_transaction(first, aio.Transaction, aio.Database), *args, **kwargs)

        return native

    @wraps(function)
    def blocking(first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, Database):
            return first.run(lambda tx: function(tx, *args, **kwargs))
        return function(_transaction(first, Transaction, Database), *args, **kwargs)

    return blocking


def _transaction(first: Any, transaction: type, database: type) -> Any:
    if not isinstance(first, transaction):
        raise errors.UsageError(
            f"expected a {database.__name__} or a {transaction.__name__} of {database.__module__}, "
            f"found {type(first).__name__}"
        )
    return first
