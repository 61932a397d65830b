"""Snapshots for blocking code: a dict that nobody changes, in each namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from engine import errors
from engine.client import snapshots
from engine.client.blocking import ReadRows
from engine.client.codecs import Codec, CodecName
from engine.client.here import OfThisProcess
from engine.client.loop import Held, Loop, iterate, walked
from engine.client.running import at_once, check_run, pause

D = TypeVar("D")
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
_MISSING = object()

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class SnapshotNamespace(OfThisProcess, ReadRows[K, V]):
    """A namespace as it was when the snapshot began: a dict that stays as it is."""

    def __init__(self, run: Run, native: snapshots.SnapshotNamespace[K, V]) -> None:
        self._run = run
        self._native = native
        self.name = native.name
        self.codec = native.codec

    def __repr__(self) -> str:
        return repr(self._native)

    def __getitem__(self, key: K) -> V:
        value = self._run(self._native.get(key, _MISSING))
        if value is _MISSING:
            raise KeyError(key)
        return cast("V", value)

    def __contains__(self, key: object) -> bool:
        return self._run(self._native.get(cast("K", key), _MISSING)) is not _MISSING

    @overload
    def get(self, key: K, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    def get(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    def get(self, key: K, default: object = None, *, timeout: float | None = None) -> object:
        """The value that a key had, or `default`."""
        return self._run(self._native.get(key, default, timeout=timeout))

    def get_many(self, keys: Iterable[K], *, timeout: float | None = None) -> dict[K, V]:
        """The values of the keys that there were."""
        found: dict[K, V] = self._run(self._native.get_many(walked(keys), timeout=timeout))
        return found

    def count(self, *, timeout: float | None = None) -> int:
        """How many keys there were."""
        return int(self._run(self._native.count(timeout=timeout)))

    def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        reverse: bool = False,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, or in `reverse`, all of the one moment; each page within
        `timeout`."""
        rows = self._native.scan(prefix=prefix, start=start, end=end, limit=limit, reverse=reverse, timeout=timeout)
        return iterate(self._run, rows, self._native.check_open)


class Snapshot(Held):
    """The whole database as it was at one moment: when `with` was entered. It blocks nobody, and nobody blocks it.

    All that was acknowledged before is in it, and no transaction in part. Reading raises SnapshotLost when a node on which
    it rests has failed, and SnapshotTooOld when too much was overwritten since: begin another one, as `Database.read` does.
    One that nobody has any more is over, too.
    """

    def __init__(self, loop: Loop, native: snapshots.Snapshot) -> None:
        super().__init__(loop, native._leave)
        self._native = native

    def __repr__(self) -> str:
        return repr(self._native)

    @overload
    def namespace(self, namespace: ReadRows[K, V]) -> SnapshotNamespace[K, V]: ...

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
        self, namespace: ReadRows[Any, Any] | str, *, codec: CodecName | Codec[Any, Any] | type[Any] | None = None
    ) -> SnapshotNamespace[Any, Any]:
        """A namespace as it was; given as an object, with that one's codec."""
        given = namespace if isinstance(namespace, str) else getattr(namespace, "_native", None)
        if given is None:
            raise errors.UsageError(f"expected a namespace of engine, or its name, found {type(namespace).__name__}")
        return SnapshotNamespace(self._run, self._native.inside(given, codec))

    def __enter__(self) -> Self:
        self._held = True
        self._run(self._native.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._native._leave())
        self._held = False


def read(run: Run, begin: Callable[[], Snapshot], function: Callable[[Snapshot], T], attempts: int) -> T:
    """Run `function` on a snapshot, again on another one while it is lost."""
    check_run(function, attempts)
    for attempt in itertools.count(1):
        try:
            with begin() as snapshot:
                return at_once(function, function(snapshot))
        except errors.SnapshotLost:
            if attempt >= attempts:
                raise
            run(pause(attempt))
    raise AssertionError("the last attempt returns or raises")
