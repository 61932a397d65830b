"""The transactional key-value API in its native, asynchronous form: `connect` to a cluster, or `open` a directory.

`engine.api` is the same for blocking code, a thin face over this one.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, Unpack, overload

from engine import errors
from engine.client.codecs import Codec, CodecName, codec_of
from engine.client.ends import StatusCall, place_of
from engine.client.entered import enter, leave
from engine.client.here import OfThisProcess
from engine.client.inside import TransactionNamespace
from engine.client.modes import Concurrency, Isolation, check_label, check_mode
from engine.client.namespace import Access
from engine.client.namespaces import WithNamespaces, check_name_of
from engine.client.oneshot import Operation, transact
from engine.client.outside import CodedNamespace
from engine.client.running import Level, Mode, TransactionOptions, check_run, pause, to_await
from engine.client.session import Session
from engine.client.snapshots import Snapshot, SnapshotNamespace, read
from engine.client.sockets import reached
from engine.client.timing import check_seconds
from engine.client.transaction import Transaction as RawTransaction
from engine.client.unclosed import close_soon, warn_unclosed
from engine.protocol.addresses import addresses_of

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Setting = str | int | bool

_node: ModuleType | None = None

__all__ = ["Concurrency", "Database", "Isolation", "Level", "Mode", "Namespace", "Transaction", "connect", "open"]
__all__ += ["Snapshot", "SnapshotNamespace", "TransactionNamespace"]


class Namespace(CodedNamespace[K, V]):
    """A named map of a cluster. Single operations are linearizable; a batch is atomic within each partition."""

    def __init__(self, database: Database, name: str, codec: Codec[K, V]) -> None:
        super().__init__(database, name, codec)
        self.database = database


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
        enter(self._raw, asyncio.current_task())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave(self._raw)
        if self._raw.over:
            return
        await self._raw.__aexit__(kind, error, traceback)


class Within(Protocol):
    """A node in this process. `let_go`: it is stopped next, says whichever thread."""

    def let_go(self) -> None: ...

    async def stop(self) -> None: ...


async def _end(session: Session, node: Within | None) -> None:
    try:
        await session.close()
    finally:
        if node is not None:
            await node.stop()


class Database(OfThisProcess, Access, WithNamespaces):
    """A cluster, or an embedded node, as an application sees it."""

    _opened_in: int | None = None  # a process; None: it ends with whoever made it

    def __init__(self, session: Session, where: str, node: Within | None = None) -> None:
        super().__init__(session)
        self.where = where
        self._node = node
        self._closing: asyncio.Task[None] | None = None

    def _opened(self) -> Self:
        """It is an application's from now on, which should close it."""
        self._opened_in = os.getpid()
        return self

    def _owned(self) -> Self:
        """It ends with whoever has it: of a circle that nobody has each part is told so, and one closes this."""
        self._opened_in = None
        return self

    def _adopt(self, other: Database) -> None:
        """In the child of a fork: go on with another one's session."""
        self.session = other._owned().session

    @property
    def embedded(self) -> bool:
        """Whether the node is in this process."""
        return self._node is not None

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._opened_in is None or ends() or self._opened_in != os.getpid():
            return
        if self._closing is None:
            named = repr(self)
            self._let_go()
            close_soon(self.session.loop, partial(_end, self.session, self._node))
            warn_unclosed(self, named)

    def _let_go(self) -> None:
        """Nobody has it any more, says whichever thread, and it is closed next."""
        if self._node is not None:
            self._node.let_go()

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
        """A named map; it exists as soon as it is written to. `codec`: `bytes` (if none is said), `str`, `json`, `msgpack`,
        a type such as `int` or a dataclass, or `engine.by_tuple(...)`; it is kept. `backups`, if any: what it must have."""
        check_name_of(name)
        topology = self.session.router.topology
        if backups is not None and topology is not None:
            kept = topology.group_of(topology.first_of(name)).backups
            if backups != kept:
                raise errors.UsageError(
                    f"namespace {name!r} was asked for with backups={backups}, and has {kept}: expected that, or none; a "
                    "namespace has the cluster's number unless `create_namespace` gives it another one"
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
        if self.session.closed:
            raise errors.UsageError("the database was closed")
        chosen, level = check_mode(concurrency, isolation)
        check_label(label)
        timeout, lock_timeout = check_seconds("timeout", timeout), check_seconds("lock_timeout", lock_timeout)
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
        check_run(function, attempts, options)
        before: tuple[RawTransaction, errors.Error] | None = None
        for attempt in itertools.count(1):
            transaction, returned = self.transaction(**options), False
            if before is not None:
                transaction._raw.follow(*before)
            elif attempts > 1:
                transaction._raw.lock_late()
            try:
                async with transaction:
                    result = await to_await(function, function(transaction))
                    returned = True
            except errors.Error as error:
                if not await self.did_commit(error, transaction, returned=returned, last=attempt >= attempts):
                    await pause(attempt, self.session.chance)
                    before = transaction._raw, error
                    continue
            return result
        raise AssertionError("the last attempt returns or raises")

    async def transact(self, operations: Iterable[Operation], *, attempts: int = 10, timeout: float | None = None) -> bool:
        """Do all of `operations`, or nothing, in one request: `engine.Put`, `engine.Delete` and `engine.Check`, in any
        namespaces. False: a condition did not hold, and nothing was done.

        Where another transaction came in between it is tried again, `attempts` times at most. It is done once, however
        often it has to be sent; an answer that was lost is asked for.
        """
        return await transact(self, operations, attempts, timeout)

    def snapshot(self) -> Snapshot:
        """The whole database as it is when `async with` is entered."""
        return Snapshot(self)

    async def read(self, function: Callable[[Snapshot], Awaitable[T]], *, attempts: int = 10) -> T:
        """Run `function` on a snapshot, again on another one while it is lost, `attempts` times at most."""
        return await read(self.snapshot, function, attempts)

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
        """End everything that is under way and hang up. Whoever is cancelled meanwhile may close it again, and waits."""
        self.session.check_loop()
        if self._closing is None:
            self._closing = self.session.loop.create_task(_end(self.session, self._node))
        await asyncio.shield(self._closing)

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
    timeout = check_seconds("timeout", timeout)
    check_label(client_name)
    if not isinstance(addresses, Iterable) or not isinstance(domain, str):
        raise errors.UsageError(
            f"expected texts of the form host:port, found {addresses!r}, and a domain, found {domain!r}"
        )
    try:
        seeds = addresses_of(addresses)
    except ValueError as error:
        raise errors.UsageError(str(error)) from None
    return Database(await reached(seeds, timeout, domain=domain, name=client_name), ",".join(seeds))._opened()


async def open(path: str | Path, **settings: Setting) -> Database:  # noqa: A001  # named for what it does, as `dbm.open`
    """Open an embedded node: a cluster of one, in this process, without a port. A directory that is not there is made.

    `settings` are those that `foreshore node config` prints, such as `partitions=64` (for good; a new directory has 16)
    or `durability="LOG_ONLY"`. Raises UsageError (also where another process has it open), CorruptionError and DiskFull.
    """
    return await open_embedded(path, settings)


async def _import_node() -> None:
    """The node is 175 modules, read when the first one is opened: in a thread, so that the caller's loop goes on."""
    global _node  # noqa: PLW0603  # what it says is of the process
    if _node is None:
        thread = ThreadPoolExecutor(1, "foreshore-import")
        try:
            _node = await asyncio.get_running_loop().run_in_executor(
                thread, importlib.import_module, "engine.host.embedded"
            )
        finally:
            thread.shutdown(wait=False)


async def open_embedded(path: str | Path, settings: dict[str, Any], **how: Any) -> Database:
    """`open`, where `how` may say on which disk the log is: for those who try out what happens when one fails."""
    try:
        await _import_node()
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
    database = Database(session, f"embedded {path}", node)
    try:
        if not await session.wait_for_table(30.0):
            raise errors.Unavailable(f"the node in {path} did not start")
    except BaseException:
        await database.close()
        raise
    return database._opened()
