"""What blocking code sees of an asynchronous thing: rows as a dict has them, and a namespace inside a transaction.

`engine.api` gives both out. What is asked is done on the event loop of its database.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from functools import partial
from typing import Any, Generic, TypeVar, overload

from engine.client import inside
from engine.client.codecs import key_of
from engine.client.here import OfThisProcess
from engine.client.loop import iterate, walked
from engine.client.operations import MISSING, Entry, Version
from engine.client.running import at_once, check_update

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")


class ReadRows(Mapping[K, V]):
    """A mapping that is walked by a scan, and not by a question for each key."""

    @abstractmethod
    def scan(self, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """(key, value) pairs, ascending, or in `reverse`."""

    def __iter__(self) -> Iterator[K]:
        """The keys, ascending."""
        for key, _ in self.scan():
            yield key

    def __reversed__(self) -> Iterator[K]:
        """The keys, descending."""
        for key, _ in self.scan(reverse=True):
            yield key

    @abstractmethod
    def count(self) -> int:
        """How many keys there are: `len`, for whoever has more to say."""

    def __len__(self) -> int:
        """How many keys there are. O(partitions): copies know how many they have."""
        return self.count()

    def __bool__(self) -> bool:
        """Whether there is a key."""
        return self.count() > 0

    def items(self) -> ItemsView[K, V]:
        """(key, value) pairs, ascending, read in pages."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """The values in the order of their keys, read in pages."""
        return _Values(self)


class Rows(ReadRows[K, V], MutableMapping[K, V]):
    """The same, of what can be changed."""


class _Items(ItemsView[K, V]):
    """`dict.items` of a namespace: a scan, and not a question for each key."""

    _mapping: ReadRows[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()

    def __reversed__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan(reverse=True)


class _Values(ValuesView[V]):
    """`dict.values` of a namespace."""

    _mapping: ReadRows[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())

    def __reversed__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan(reverse=True))

    def __contains__(self, value: object) -> bool:
        return any(value == found for found in self)


class TransactionNamespace(OfThisProcess, Generic[K, V]):
    """A namespace inside a transaction."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], native: inside.TransactionNamespace[K, V]) -> None:
        self._run = run
        self._native = native
        self.name = native.name
        self.codec = native.codec

    def __repr__(self) -> str:
        return repr(self._native)

    @overload
    def get(self, key: K, default: None = None, *, nowait: bool = False) -> V | None: ...

    @overload
    def get(self, key: K, default: D, *, nowait: bool = False) -> V | D: ...

    def get(self, key: K, default: object = None, *, nowait: bool = False) -> object:
        """The value of a key, or `default`; unless READ_COMMITTED, it stays so until the transaction ends. `nowait`: who
        finds it locked by one that writes it is told LockTimeout at once."""
        return self._run(self._native.get(key, default, nowait=nowait))

    @overload
    def get_for_update(self, key: K, default: None = None, *, nowait: bool = False) -> V | None: ...

    @overload
    def get_for_update(self, key: K, default: D, *, nowait: bool = False) -> V | D: ...

    def get_for_update(self, key: K, default: object = None, *, nowait: bool = False) -> object:
        """The same, saying that it will be written. `nowait`: who finds it locked is told LockTimeout at once."""
        return self._run(self._native.get_for_update(key, default, nowait=nowait))

    def get_many(self, keys: Iterable[K], *, nowait: bool = False, skip_locked: bool = False) -> dict[K, V]:
        """The values of the keys that exist. `skip_locked`: but for those that another transaction has locked, so that
        many can claim from one list without waiting; `nowait`: if one is locked, LockTimeout at once."""
        found: dict[Any, Any] = self._run(self._native.get_many(walked(keys), nowait=nowait, skip_locked=skip_locked))
        return found

    def put(self, key: K, value: V, *, ttl: float | None = None) -> None:
        """Set a key when the transaction commits. `ttl`: it expires so many seconds after that."""
        self._run(self._native.put(key, value, ttl=ttl))

    def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, ttl: float | None = None) -> None:
        """Set keys when the transaction commits; `ttl` as with `put`."""
        self._run(self._native.put_many(walked(items, pairs=True), ttl=ttl))

    def expires_at(self, key: K) -> float | None:
        """When a key expires, in seconds since 1970; None: it stays, or there is none. It is not known yet of what this
        transaction has written itself: that is refused."""
        when: float | None = self._run(self._native.expires_at(key))
        return when

    def persist(self, key: K) -> bool:
        """A key that has a value keeps it for good when the transaction commits; whether there is one."""
        return bool(self._run(self._native.persist(key)))

    @overload
    def delete(self, key: K) -> None: ...

    @overload
    def delete(self, key: K, *, if_value: V) -> bool: ...

    @overload
    def delete(self, key: K, *, if_version: Version) -> bool: ...

    def delete(self, key: K, *, if_value: V | object = MISSING, if_version: Version | None = None) -> bool | None:
        """Delete a key when the transaction commits, and do not ask whether it exists: so None, and not a bool as outside
        (`get_and_delete` tells). `if_value`, `if_version`: only if it has this value or version; whether it had."""
        done: bool | None = self._run(self._native.delete(key, if_value=if_value, if_version=if_version))  # type: ignore[call-overload]  # it says which
        return done

    def get_entry(self, key: K) -> Entry[V] | None:
        """The value of a key with its version, as `get_for_update` reads it; None if there is none.

        What this transaction has written itself has no version: that is refused.
        """
        entry: Entry[V] | None = self._run(self._native.get_entry(key))
        return entry

    def put_if_absent(self, key: K, value: V, *, ttl: float | None = None) -> bool:
        """Set a key that has no value; whether it was set. `ttl` as with `put`."""
        return bool(self._run(self._native.put_if_absent(key, value, ttl=ttl)))

    def put_if_version(self, key: K, value: V, version: Version | None) -> bool:
        """Set a key that is the entry of this version still (None: that has no value); whether it was set."""
        return bool(self._run(self._native.put_if_version(key, value, version)))

    def replace(self, key: K, old: V, new: V) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        return bool(self._run(self._native.replace(key, old, new)))

    def compare_and_set(self, key: K, expected: V | None, new: V | None) -> bool:
        """Set a key to `new` if its value is `expected`; whether it was. None stands for no value, both times."""
        return bool(self._run(self._native.compare_and_set(key, expected, new)))

    def increment(self, key: K, by: int = 1, initial: int = 0) -> int:
        """Add to a whole number of 64 bits, which is `initial` where there is no value; the sum."""
        return int(self._run(self._native.increment(key, by, initial)))

    def append(self, key: K, value: V) -> int:
        """Append to a value of bytes or text; how many bytes it has then."""
        return int(self._run(self._native.append(key, value)))

    @overload
    def get_and_put(self, key: K, value: V, default: None = None) -> V | None: ...

    @overload
    def get_and_put(self, key: K, value: V, default: D) -> V | D: ...

    def get_and_put(self, key: K, value: V, default: object = None) -> object:
        """Set a key; the value that it had, or `default`."""
        return self._run(self._native.get_and_put(key, value, default))

    @overload
    def get_and_delete(self, key: K, default: None = None) -> V | None: ...

    @overload
    def get_and_delete(self, key: K, default: D) -> V | D: ...

    def get_and_delete(self, key: K, default: object = None) -> object:
        """Delete a key; the value that it had, or `default`."""
        return self._run(self._native.get_and_delete(key, default))

    @overload
    def pop(self, key: K) -> V: ...

    @overload
    def pop(self, key: K, default: D) -> V | D: ...

    def pop(self, key: K, default: object = MISSING) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        return self._run(self._native.pop(key, default))

    def update(self, key: K, function: Callable[[V | None], V | None]) -> V | None:
        """Set a key to what `function` makes of its value (None: there is none, or is to be none), and return that."""
        check_update(function)
        while True:
            found: bytes | None = self._run(self._native._stands(key))
            old = self._native._decoded(key_of(self, key), found) if found is not None else None
            new = at_once(function, function(old))
            if self._run(self._native._change_from(key, found, new)):
                return new

    def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        reverse: bool = False,
        for_update: bool = False,
        nowait: bool = False,
        skip_locked: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending or in `reverse`, with this transaction's own writes.

        `for_update`: they will be written, as with `get_for_update`; `nowait`: if one is locked, LockTimeout at once;
        `skip_locked`: rows that nobody else has locked, and now nobody else gets; the first ones, if they are free and no
        other one claims at the same moment.
        """
        scan = partial(self._native.scan, prefix=prefix, start=start, end=end, limit=limit, reverse=reverse)
        rows = scan(for_update=for_update, nowait=nowait, skip_locked=skip_locked)
        return iterate(self._run, rows, self._native.check_open)
