"""A namespace inside a transaction, in its codec: what `engine.aio` gives out as `tx.namespace(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Generic, TypeVar, overload

from engine.client.codecs import Codec, key_of, keys_of, limit_of, pairs_of, range_of, value_of
from engine.client.here import OfThisProcess
from engine.client.namespace import Namespace
from engine.client.transaction import Transaction

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")


class TransactionNamespace(OfThisProcess, Generic[K, V]):
    """A namespace inside a transaction."""

    def __init__(self, raw: Transaction, namespace: Namespace, codec: Codec[K, V]) -> None:
        self._raw = raw
        self._namespace = namespace
        self.name = namespace.name
        self.codec = codec

    def __repr__(self) -> str:
        return f"<Namespace {self.name} codec={self.codec.name} in {self._raw.description}>"

    @overload
    async def get(self, key: K, default: None = None) -> V | None: ...

    @overload
    async def get(self, key: K, default: D) -> V | D: ...

    async def get(self, key: K, default: object = None) -> object:
        """The value of a key, or `default`; unless READ_COMMITTED, it stays so until the transaction ends."""
        return await self._get(key, default, update=False, nowait=False)

    @overload
    async def get_for_update(self, key: K, default: None = None, *, nowait: bool = False) -> V | None: ...

    @overload
    async def get_for_update(self, key: K, default: D, *, nowait: bool = False) -> V | D: ...

    async def get_for_update(self, key: K, default: object = None, *, nowait: bool = False) -> object:
        """The same, saying that it will be written: nobody else can from now on (or the commit will tell). `nowait`: who
        finds it locked is told LockTimeout at once."""
        return await self._get(key, default, update=True, nowait=nowait)

    async def _get(self, key: K, default: object, *, update: bool, nowait: bool) -> object:
        encoded = key_of(self.codec, key)
        await self._namespace.seen()
        found = await self._raw.get_many(self.name, [encoded], update=update, nowait=nowait)
        return self.codec.decode(found[encoded]) if encoded in found else default

    async def get_many(self, keys: Iterable[K], *, nowait: bool = False, skip_locked: bool = False) -> dict[K, V]:
        """The values of the keys that exist. `skip_locked`: but for those that another transaction has locked, so that
        many can claim from one list without waiting; `nowait`: if one is locked, LockTimeout at once."""
        wanted = keys_of(self.codec, keys)
        await self._namespace.seen()
        found = await self._raw.get_many(self.name, wanted, nowait=nowait, skip_locked=skip_locked)
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
        await self._namespace.seen(writing=True)
        await self._raw.put_many(self.name, writes)

    async def scan(
        self, *, prefix: K | None = None, start: K | None = None, end: K | None = None, limit: int | None = None
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, with this transaction's own writes."""
        low, high = range_of(self.codec, prefix, start, end)
        most = limit_of(limit)
        gone = sum(value is None for value in self._raw.own(self.name, low, high).values()) if most is not None else 0
        pages = self._namespace.pages(low, high, most and most + gone, marked=self._raw.serializable)
        for key, value in await self._raw.scan(pages, low, high, most):
            yield self.codec.decode_key(key), self.codec.decode(value)
