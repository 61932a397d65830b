"""What a blocking namespace can do with one key beside get, put and what a dict has: `engine.api.Namespace` is this too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from engine.client.blocking import Rows
from engine.client.operations import MISSING, Entry, Version
from engine.client.outside import CodedNamespace
from engine.client.running import at_once, check_update
from engine.errors import UsageError

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Run(Protocol):
    """Does something on the event loop, and waits for it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """What came of it."""
        ...


class SingleKeys(Rows[K, V]):
    """A mapping in which single keys are changed in one round trip, each time as one step."""

    _native: CodedNamespace[K, V]
    _run: Run

    def delete(
        self, key: K, *, if_value: V | object = MISSING, if_version: Version | None = None, timeout: float | None = None
    ) -> bool:
        """Delete a key; whether it existed. `if_value`, `if_version`: only if it has this value, or is the entry of this
        version; whether it was deleted."""
        return self._run(self._native.delete(key, if_value=if_value, if_version=if_version, timeout=timeout))

    def get_entry(self, key: K, *, timeout: float | None = None) -> Entry[V] | None:
        """The value of a key with its version, for `put_if_version` and `delete`; None if there is none."""
        return self._run(self._native.get_entry(key, timeout=timeout))

    def put_if_absent(self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None) -> bool:
        """Set a key that has no value; whether it was set. `ttl` as with `put`."""
        return self._run(self._native.put_if_absent(key, value, ttl=ttl, timeout=timeout))

    def expires_at(self, key: K, *, timeout: float | None = None) -> float | None:
        """When a key expires, in seconds since 1970 (as `time.time` counts, by the clock of its primary); None: it stays,
        or there is none."""
        return self._run(self._native.expires_at(key, timeout=timeout))

    if not TYPE_CHECKING:  # its type is that of `MutableMapping`, which says it in two overloads

        def setdefault(self, key, default=None, /):
            """The value of a key, which is set to `default` first if it has none; of several callers, one sets it."""
            while not self.put_if_absent(key, default):
                value = self.get(key, MISSING)
                if value is not MISSING:
                    return value
            return default

    def persist(self, key: K, *, timeout: float | None = None) -> bool:
        """A key that has a value keeps it for good: it does not expire any more; whether there is one."""
        return self._run(self._native.persist(key, timeout=timeout))

    def put_if_version(self, key: K, value: V, version: Version | None, *, timeout: float | None = None) -> bool:
        """Set a key that is the entry of this version still (None: that has no value); whether it was set."""
        return self._run(self._native.put_if_version(key, value, version, timeout=timeout))

    def replace(self, key: K, old: V, new: V, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `old`; whether it was."""
        return self._run(self._native.replace(key, old, new, timeout=timeout))

    def compare_and_set(self, key: K, expected: V | None, new: V | None, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `expected`; whether it was. None stands for no value: a key that has none is
        expected, or the key is deleted. Values are equal if their bytes are."""
        return self._run(self._native.compare_and_set(key, expected, new, timeout=timeout))

    def increment(self, key: K, by: int = 1, initial: int = 0, *, timeout: float | None = None) -> int:
        """Add to a whole number of 64 bits, which is `initial` where there is no value; the sum."""
        return self._run(self._native.increment(key, by, initial, timeout=timeout))

    def append(self, key: K, value: V, *, timeout: float | None = None) -> int:
        """Append to a value of bytes or text; how many bytes it has then."""
        return self._run(self._native.append(key, value, timeout=timeout))

    @overload
    def get_and_put(self, key: K, value: V, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    def get_and_put(self, key: K, value: V, default: D, *, timeout: float | None = None) -> V | D: ...

    def get_and_put(self, key: K, value: V, default: object = None, *, timeout: float | None = None) -> object:
        """Set a key; the value that it had, or `default`."""
        return self._run(self._native.get_and_put(key, value, default, timeout=timeout))

    @overload
    def get_and_delete(self, key: K, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    def get_and_delete(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    def get_and_delete(self, key: K, default: object = None, *, timeout: float | None = None) -> object:
        """Delete a key; the value that it had, or `default`."""
        return self._run(self._native.get_and_delete(key, default, timeout=timeout))

    @overload
    def pop(self, key: K, *, timeout: float | None = None) -> V: ...

    @overload
    def pop(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    def pop(self, key: K, default: object = MISSING, *, timeout: float | None = None) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        return self._run(self._native.pop(key, default, timeout=timeout))

    @abstractmethod
    def put_many(self, items: Any, *, timeout: float | None = None) -> None:
        """Set keys."""

    @overload  # type: ignore[override]  # a dict has no functions for values; what it has is here, too
    def update(self, key: K, function: Callable[[V | None], V | None], /) -> V | None: ...

    @overload
    def update(self, other: Mapping[K, V] | Iterable[tuple[K, V]] = (), /, **more: V) -> None: ...

    def update(self, first: Any = (), function: Callable[[V | None], V | None] | None = None, /, **more: V) -> V | None:
        """`update(other)`: set keys, as `put_many` does. `update(key, function)`: set a key to what `function` makes of its
        value (None: there is none, or is to be none), and return that; it is called again with the newer value where
        somebody else was quicker."""
        if function is None:
            self.put_many(first)
            if more:
                self.put_many(more)
            return None
        check_update(function)
        if more:
            raise UsageError(f"a function came with values of other keys, {', '.join(more)}: expected one or the others")
        while True:
            entry = self._run(self._native.get_entry(first))
            new = at_once(function, function(entry.value if entry is not None else None))
            if self._run(self._native._change_from(first, entry, new)):
                return new
