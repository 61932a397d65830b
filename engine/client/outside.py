"""A namespace outside a transaction, in its codec: what `engine.aio` gives out as `db.namespace(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Generic, TypeVar, overload

from engine.client.calls import GetCall, PutCall
from engine.client.codecs import Codec, key_of, keys_of, limit_of, pairs_of, range_of, value_of
from engine.client.here import OfThisProcess
from engine.client.namespace import Access, age_of, get_call
from engine.client.namespace import Namespace as RawNamespace
from engine.client.timing import Aged, time_left

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
_MISSING = object()


class CodedNamespace(OfThisProcess, Generic[K, V]):
    """What can be done with a named map outside of transactions."""

    def __init__(self, access: Access, name: str, codec: Codec[K, V]) -> None:
        self.name = name
        self.codec = codec
        self._raw = RawNamespace(access, name, codec.form)

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
        call = get_call(self.name, [key_of(self.codec, key)], stale, max_age)
        if not self._raw.known:
            await self._raw.look(timeout)
        value = (await self._raw.session.call(call, timeout=timeout)).values[0][2]
        return default if value is None else self.codec.decode(value)

    async def get_many(
        self, keys: Iterable[K], *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> dict[K, V]:
        """The values of the keys that exist; `stale` and `max_age` as with `get`."""
        wanted = keys_of(self.codec, keys)
        if not wanted:
            return {}
        if not self._raw.known:
            await self._raw.look(timeout)
        call = await self._raw.session.call(get_call(self.name, list(wanted), stale, max_age), timeout=timeout)
        decode = self.codec.decode
        found = zip(wanted.values(), call.values, strict=True)
        return {key: decode(value) for key, (_, _, value) in found if value is not None}

    async def get_aged(self, key: K, *, max_age: float | None = None, timeout: float | None = None) -> Aged[V]:
        """The value of a key as any in-sync copy has it, and how old it is at most."""
        call = get_call(self.name, [key_of(self.codec, key)], True, max_age)
        if not self._raw.known:
            await self._raw.look(timeout)
        await self._raw.session.call(call, timeout=timeout)
        value, age_ms = call.values[0][2], call.answered_ms
        return Aged(None if value is None else self.codec.decode(value), age_ms / 1000 if age_ms >= 0 else None)

    async def put(self, key: K, value: V, *, timeout: float | None = None) -> None:
        """Set a key; durable on every in-sync copy when it returns."""
        keys: list[bytes] = [key_of(self.codec, key)]
        values: list[bytes | None] = [value_of(self.codec, value)]
        await self._raw.write(PutCall(self._raw.session.new_tx(), self.name, keys, values), timeout)

    async def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, timeout: float | None = None) -> None:
        """Set keys; atomic within each partition only (use a transaction for more).

        A batch with more than 100,000 keys or 32 MiB in one partition is refused as a whole.
        """
        await self._raw.write_many(pairs_of(self.codec, items), timeout)

    async def delete_many(self, keys: Iterable[K], *, timeout: float | None = None) -> None:
        """Delete keys, whether or not they exist."""
        await self._raw.write_many(dict.fromkeys(keys_of(self.codec, keys)), timeout)

    async def delete(self, key: K, *, timeout: float | None = None) -> bool:
        """Delete a key; whether it existed."""
        return (await self._raw.swap(key_of(self.codec, key), "present", timeout)).applied

    async def put_if_absent(self, key: K, value: V, *, timeout: float | None = None) -> bool:
        """Set a key that has no value; whether it was set."""
        return (await self._raw.swap(key_of(self.codec, key), "absent", timeout, new=value_of(self.codec, value))).applied

    async def replace(self, key: K, old: V, new: V, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        was, will = value_of(self.codec, old), value_of(self.codec, new)
        return (await self._raw.swap(key_of(self.codec, key), "equals", timeout, old=was, new=will)).applied

    @overload
    async def pop(self, key: K, *, timeout: float | None = None) -> V: ...

    @overload
    async def pop(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def pop(self, key: K, default: object = _MISSING, *, timeout: float | None = None) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        encoded, left = key_of(self.codec, key), time_left(timeout)
        if not self._raw.known:
            await self._raw.look(timeout)
        while True:  # what is deleted is what was read: a delete that has to be asked for twice tells no value
            read = await self._raw.session.call(GetCall(self.name, [encoded]), timeout=left())
            value = read.values[0][2]
            if value is None:
                break
            if (await self._raw.swap(encoded, "equals", left(), old=value)).applied:
                return self.codec.decode(value)
        if default is _MISSING:
            raise KeyError(key)
        return default

    async def scan(
        self,
        *,
        prefix: K | None = None,
        start: K | None = None,
        end: K | None = None,
        limit: int | None = None,
        stale: bool = False,
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending. Not a snapshot: pages are read one after another, each
        within `timeout`; `stale` and `max_age` as with `get`, the age counted from when a page is asked for."""
        low, high = range_of(self.codec, prefix, start, end)
        left = limit_of(limit)
        anywhere, age_ms = age_of(stale, max_age)
        decode_key, decode = self.codec.decode_key, self.codec.decode
        async for page in self._raw.pages(low, high, limit, timeout, stale=anywhere, age_ms=age_ms):
            for key, value in page.rows:
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield decode_key(key), decode(value)
