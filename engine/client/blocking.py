"""What blocking code sees of an asynchronous thing: rows as a dict has them, and a namespace inside a transaction.

`engine.api` gives both out. What is asked is done on the event loop of its database.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, Generic, TypeVar, overload

from engine.client import inside
from engine.client.here import OfThisProcess
from engine.client.loop import iterate

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")


class Rows(MutableMapping[K, V]):
    """A mapping that is walked by a scan, and not by a question for each key."""

    @abstractmethod
    def scan(self) -> Iterator[tuple[K, V]]:
        """(key, value) pairs, ascending."""

    def __iter__(self) -> Iterator[K]:
        """The keys, ascending."""
        for key, _ in self.scan():
            yield key

    def __len__(self) -> int:
        """How many keys there are. O(n): they are counted."""
        return sum(1 for _ in self.scan())

    def items(self) -> ItemsView[K, V]:
        """(key, value) pairs, ascending, read in pages."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """The values in the order of their keys, read in pages."""
        return _Values(self)


class _Items(ItemsView[K, V]):
    """`dict.items` of a namespace: a scan, and not a question for each key."""

    _mapping: Rows[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.scan()


class _Values(ValuesView[V]):
    """`dict.values` of a namespace."""

    _mapping: Rows[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.scan())

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
    def get(self, key: K, default: None = None) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: object = None) -> object:
        """The value of a key, or `default`; unless READ_COMMITTED, it stays so until the transaction ends."""
        return self._run(self._native.get(key, default))

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
        found: dict[Any, Any] = self._run(self._native.get_many(keys, nowait=nowait, skip_locked=skip_locked))
        return found

    def put(self, key: K, value: V) -> None:
        """Set a key when the transaction commits."""
        self._run(self._native.put(key, value))

    def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set keys when the transaction commits."""
        self._run(self._native.put_many(items))

    def delete(self, key: K) -> None:
        """Delete a key when the transaction commits."""
        self._run(self._native.delete(key))

    def scan(
        self, *, prefix: K | None = None, start: K | None = None, end: K | None = None, limit: int | None = None
    ) -> Iterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, with this transaction's own writes."""
        return iterate(self._run, self._native.scan(prefix=prefix, start=start, end=end, limit=limit))
