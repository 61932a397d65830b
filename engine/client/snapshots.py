"""A snapshot: the whole database as it was at one moment, to be read for as long as it is open."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from engine import errors
from engine.client.calls import GetCall
from engine.client.codecs import Codec, CodecName, codec_of, key_of, keys_of, limit_of, range_of, read_rows, read_value
from engine.client.here import OfThisProcess
from engine.client.modes import check_flags
from engine.client.moments import HeldCut
from engine.client.namespace import Access
from engine.client.namespace import Namespace as RawNamespace
from engine.client.outside import CodedNamespace
from engine.client.running import check_run, pause, to_await
from wal.ids import NO_ERA, Era, check_name

D = TypeVar("D")
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class SnapshotNamespace(OfThisProcess, Generic[K, V]):
    """A namespace as it was when the snapshot began."""

    def __init__(self, snapshot: Snapshot, namespace: RawNamespace, codec: Codec[K, V]) -> None:
        self._snapshot = snapshot
        self._namespace = namespace
        self.name = namespace.name
        self.codec = codec

    def __repr__(self) -> str:
        return f"<Namespace {self.name} codec={self.codec.name} in {self._snapshot!r}>"

    @overload
    async def get(self, key: K, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    async def get(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def get(self, key: K, default: object = None, *, timeout: float | None = None) -> object:
        """The value that a key had, or `default`."""
        encoded = key_of(self, key)
        found = await self._read([encoded], timeout)
        return default if found[0] is None else read_value(self, encoded, found[0])

    async def get_many(self, keys: Iterable[K], *, timeout: float | None = None) -> dict[K, V]:
        """The values of the keys that there were."""
        wanted = keys_of(self, keys)
        if not wanted:
            return {}
        values = zip(wanted.items(), await self._read(list(wanted), timeout), strict=True)
        found = [(encoded, key, value) for (encoded, key), value in values if value is not None]
        return {key: read_value(self, encoded, value) for encoded, key, value in found}

    async def _read(self, keys: list[bytes], timeout: float | None) -> list[bytes | None]:
        cut = self._snapshot.cut
        if not self._namespace.known:
            await self._namespace.look(timeout)
        call = await self._namespace.session.call(GetCall(self.name, keys, cut=cut), timeout=timeout)
        return [value for _, _, value in call.values]

    async def count(self, *, timeout: float | None = None) -> int:
        """How many keys there were."""
        return await self._namespace.count(timeout, cut=self._snapshot.cut)

    async def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, or in `reverse`, all of the one moment; each page within
        `timeout`."""
        check_flags(reverse=reverse)
        low, high = range_of(self, prefix, start, end)
        left = limit_of(limit)
        async for page in self._namespace.pages(low, high, limit, timeout, cut=self._snapshot.cut, reverse=reverse):
            rows = page.rows[:left]
            for row in read_rows(self, rows):
                self.check_open()
                yield row
            if left is not None and (left := left - len(rows)) <= 0:
                return  # it is not asked whether there is more

    def check_open(self) -> None:
        """Raise UsageError if the snapshot is over."""
        self._snapshot.check_open()


class Snapshot(OfThisProcess):
    """The whole database as it was at one moment: when `async with` was entered. It blocks nobody, and nobody blocks it.

    All that was acknowledged before is in it, and no transaction in part. Reading raises SnapshotLost when a node on which
    it rests has failed, and SnapshotTooOld when too much was overwritten since: begin another one, as `Database.read` does.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._held: HeldCut | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Snapshot{' over' if self._over else ''}>"

    @property
    def cut(self) -> Era:
        """What the nodes call it. Raises UsageError when it is not open."""
        self.check_open()
        assert self._held is not None, "it is open"
        return self._held.cut

    def check_open(self) -> None:
        """Raise UsageError if it cannot be read."""
        if self._over:
            raise errors.UsageError("the snapshot is over: read it inside its `with`")
        if self._held is None or self._held.cut == NO_ERA:
            raise errors.UsageError("the snapshot has not begun: enter it by `with db.snapshot() as s`")

    @overload
    def namespace(self, namespace: CodedNamespace[K, V]) -> SnapshotNamespace[K, V]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["bytes"] | None = None) -> SnapshotNamespace[bytes, bytes]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["str"]) -> SnapshotNamespace[str, str]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Literal["json", "msgpack"]) -> SnapshotNamespace[str, Any]: ...

    @overload
    def namespace(self, namespace: str, *, codec: Codec[K, V]) -> SnapshotNamespace[K, V]: ...

    @overload
    def namespace(self, namespace: str, *, codec: type[V]) -> SnapshotNamespace[str, V]: ...

    def namespace(
        self, namespace: CodedNamespace[Any, Any] | str, *, codec: CodecName | Codec[Any, Any] | type[Any] | None = None
    ) -> SnapshotNamespace[Any, Any]:
        """A namespace as it was; given as an object, with that one's codec."""
        return self.inside(namespace, codec)

    def inside(
        self, namespace: CodedNamespace[Any, Any] | str, codec: CodecName | Codec[Any, Any] | type[Any] | None
    ) -> SnapshotNamespace[Any, Any]:
        """`namespace`, for whoever knows no more of its types than that."""
        if isinstance(namespace, str):
            try:
                check_name("namespace", namespace)
            except ValueError as error:
                raise errors.UsageError(str(error)) from None
            chosen = codec_of(codec)
            return SnapshotNamespace(self, RawNamespace(self._access, namespace, chosen.form), chosen)
        if not isinstance(namespace, CodedNamespace):
            raise errors.UsageError(f"expected a namespace of engine.aio, or its name, found {type(namespace).__name__}")
        if namespace._raw._access is not self._access:
            raise errors.UsageError(f"namespace {namespace.name!r} is of another database than the snapshot")
        if codec is not None:
            raise errors.UsageError(f"namespace {namespace.name!r} has its codec: name one with a namespace's name only")
        return SnapshotNamespace(self, namespace._raw, namespace.codec)

    async def __aenter__(self) -> Self:
        if self._over or self._held is not None:
            raise errors.UsageError("the snapshot was used already: begin another one")
        self._held = HeldCut(self._access.session)
        try:
            await self._held.take()
        except BaseException:
            self._held = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Nobody reads it any more."""
        self._over = True
        held, self._held = self._held, None
        if held is not None:
            held.let_go()


async def read(begin: Callable[[], Snapshot], function: Callable[[Snapshot], Awaitable[T]], attempts: int) -> T:
    """Run `function` on a snapshot, again on another one while it is lost."""
    check_run(function, attempts)
    for attempt in itertools.count(1):
        try:
            async with begin() as snapshot:
                return await to_await(function, function(snapshot))
        except errors.SnapshotLost:
            if attempt >= attempts:
                raise
            await pause(attempt, snapshot._access.session.chance)
    raise AssertionError("the last attempt returns or raises")
