"""A namespace outside a transaction, in its codec: what `engine.aio` gives out as `db.namespace(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Generic, TypeVar, overload

from engine.client.calls import PutCall
from engine.client.codecs import Codec, key_of, keys_of, limit_of, pairs_of, range_of, read_rows, read_value, value_of
from engine.client.here import OfThisProcess
from engine.client.modes import check_flags
from engine.client.namespace import Access, age_of, expiry_call, expiry_in, get_call
from engine.client.namespace import Namespace as RawNamespace
from engine.client.operations import ABSENT, MISSING, Change, Entry, Version, appended, condition, number, optional
from engine.client.running import at_once, check_update
from engine.client.timing import Aged, time_left, time_to_live

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")


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
        """The value of a key, or `default`. `stale`: as any copy has it, the nearest if it can be; with
        `max_age`, one that misses nothing that was acknowledged so many seconds ago."""
        encoded = key_of(self, key)
        call = get_call(self.name, [encoded], stale, max_age)
        if not self._raw.known:
            await self._raw.look(timeout)
        value = (await self._raw.session.call(call, timeout=timeout)).values[0][2]
        return default if value is None else self._read(encoded, value)

    def _read(self, encoded: bytes, value: bytes) -> V:
        return read_value(self, encoded, value)

    async def get_many(
        self, keys: Iterable[K], *, stale: bool = False, max_age: float | None = None, timeout: float | None = None
    ) -> dict[K, V]:
        """The values of the keys that exist; `stale` and `max_age` as with `get`."""
        wanted = keys_of(self, keys)
        if not wanted:
            return {}
        if not self._raw.known:
            await self._raw.look(timeout)
        call = await self._raw.session.call(get_call(self.name, list(wanted), stale, max_age), timeout=timeout)
        found = zip(wanted.items(), call.values, strict=True)
        return {key: self._read(encoded, value) for (encoded, key), (_, _, value) in found if value is not None}

    async def get_aged(self, key: K, *, max_age: float | None = None, timeout: float | None = None) -> Aged[V]:
        """The value of a key as any in-sync copy has it, and how old it is at most."""
        encoded = key_of(self, key)
        call = get_call(self.name, [encoded], True, max_age)
        call.any_age = False  # of an asynchronous copy nobody knows it
        if not self._raw.known:
            await self._raw.look(timeout)
        await self._raw.session.call(call, timeout=timeout)
        value, age_ms = call.values[0][2], call.answered_ms
        return Aged(None if value is None else self._read(encoded, value), age_ms / 1000 if age_ms >= 0 else None)

    async def put(self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None) -> None:
        """Set a key; durable on every in-sync copy when it returns. `ttl`: it expires after so many seconds. A value that
        is put without stays, whatever was there."""
        keys: list[bytes] = [key_of(self, key)]
        values: list[bytes | None] = [value_of(self, value)]
        call = PutCall(self._raw.session.new_tx(), self.name, keys, values, 0 if ttl is None else time_to_live(ttl))
        await self._raw.write(call, timeout)

    async def put_many(
        self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Set keys; atomic within each partition only (use a transaction for more). `ttl` as with `put`.

        A batch with more than 100,000 keys or 32 MiB in one partition is refused as a whole.
        """
        await self._raw.write_many(pairs_of(self, items), timeout, time_to_live(ttl))

    async def expires_at(self, key: K, *, timeout: float | None = None) -> float | None:
        """When a key expires, in seconds since 1970 (as `time.time` counts, by the clock of its primary); None: it stays,
        or there is none."""
        if not self._raw.known:
            await self._raw.look(timeout)
        call = await self._raw.session.call(expiry_call(self.name, key_of(self, key)), timeout=timeout)
        return expiry_in(call)

    async def persist(self, key: K, *, timeout: float | None = None) -> bool:
        """A key that has a value keeps it for good: it does not expire any more; whether there is one."""
        return (await self._raw.swap(key_of(self, key), "present", timeout, how="keep")).applied

    async def delete_many(self, keys: Iterable[K], *, timeout: float | None = None) -> None:
        """Delete keys, whether or not they exist."""
        await self._raw.write_many(dict.fromkeys(keys_of(self, keys)), timeout)

    async def delete(
        self, key: K, *, if_value: V | object = MISSING, if_version: Version | None = None, timeout: float | None = None
    ) -> bool:
        """Delete a key; whether it existed. `if_value`, `if_version`: only if it has this value, or is the entry of this
        version; whether it was deleted."""
        encoded = key_of(self, key)
        when, old, at = condition(self, if_value, if_version)
        return (await self._raw.swap(encoded, when, timeout, old=old, at=at)).applied

    async def put_if_absent(self, key: K, value: V, *, ttl: float | None = None, timeout: float | None = None) -> bool:
        """Set a key that has no value; whether it was set. `ttl` as with `put`."""
        encoded, new = key_of(self, key), value_of(self, value)
        return (await self._raw.swap(encoded, "absent", timeout, new=new, ttl_ms=time_to_live(ttl))).applied

    async def replace(self, key: K, old: V, new: V, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        was, will = value_of(self, old), value_of(self, new)
        return (await self._raw.swap(key_of(self, key), "equals", timeout, old=was, new=will)).applied

    async def get_entry(self, key: K, *, timeout: float | None = None) -> Entry[V] | None:
        """The value of a key with its version, for `put_if_version` and `delete`; None if there is none."""
        encoded = key_of(self, key)
        if not self._raw.known:
            await self._raw.look(timeout)
        call = await self._raw.session.call(get_call(self.name, [encoded], False, None), timeout=timeout)
        epoch, counter, value = call.values[0]
        return None if value is None else Entry(self._read(encoded, value), Version(epoch, counter))

    async def put_if_version(self, key: K, value: V, version: Version | None, *, timeout: float | None = None) -> bool:
        """Set a key that is the entry of this version still (None: that has no value); whether it was set."""
        encoded, new = key_of(self, key), value_of(self, value)
        when, _, at = condition(self, MISSING, version) if version is not None else ABSENT
        return (await self._raw.swap(encoded, when, timeout, new=new, at=at)).applied

    async def compare_and_set(self, key: K, expected: V | None, new: V | None, *, timeout: float | None = None) -> bool:
        """Set a key to `new` if its value is `expected`; whether it was. None stands for no value: a key that has none is
        expected, or the key is deleted. Values are equal if their bytes are."""
        encoded, will = key_of(self, key), optional(self, new)
        when, old, at = condition(self, expected, None) if expected is not None else ABSENT
        return (await self._raw.swap(encoded, when, timeout, old=old, new=will, at=at)).applied

    async def increment(self, key: K, by: int = 1, initial: int = 0, *, timeout: float | None = None) -> int:
        """Add to a whole number of 64 bits, which is `initial` where there is no value; the sum."""
        encoded, change = key_of(self, key), number(self, by, initial)
        return int(await self._change(encoded, change, timeout))

    async def append(self, key: K, value: V, *, timeout: float | None = None) -> int:
        """Append to a value of bytes or text; how many bytes it has then."""
        encoded, change = key_of(self, key), appended(self, value)
        return int(await self._change(encoded, change, timeout))

    async def _change(self, encoded: bytes, change: Change, timeout: float | None) -> bytes:
        made = await self._raw.swap(encoded, "always", timeout, old=change.old, new=change.new, how=change.how)
        assert made.applied, "it has no condition"
        assert made.found is not None, "it has an answer"
        return made.found

    @overload
    async def get_and_put(self, key: K, value: V, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    async def get_and_put(self, key: K, value: V, default: D, *, timeout: float | None = None) -> V | D: ...

    async def get_and_put(self, key: K, value: V, default: object = None, *, timeout: float | None = None) -> object:
        """Set a key; the value that it had, or `default`."""
        encoded, new = key_of(self, key), value_of(self, value)
        found = await self._exchange(encoded, "always", new, timeout)
        return default if found is None else found[0]

    @overload
    async def get_and_delete(self, key: K, default: None = None, *, timeout: float | None = None) -> V | None: ...

    @overload
    async def get_and_delete(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def get_and_delete(self, key: K, default: object = None, *, timeout: float | None = None) -> object:
        """Delete a key; the value that it had, or `default`."""
        encoded = key_of(self, key)
        found = await self._exchange(encoded, "present", None, timeout)
        return default if found is None else found[0]

    async def _exchange(self, encoded: bytes, when: str, new: bytes | None, timeout: float | None) -> tuple[V] | None:
        """What was there. What a codec may be unable to read is read before it is taken away."""
        if not self.codec.reads_all:
            return await self._raw.exchange_if_read(encoded, new, timeout, partial(self._read, encoded))
        found = await self._raw.exchange(encoded, when, new, timeout)
        return None if found is None else (self._read(encoded, found),)

    @overload
    async def pop(self, key: K, *, timeout: float | None = None) -> V: ...

    @overload
    async def pop(self, key: K, default: D, *, timeout: float | None = None) -> V | D: ...

    async def pop(self, key: K, default: object = MISSING, *, timeout: float | None = None) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        value = await self.get_and_delete(key, default, timeout=timeout)
        if value is MISSING:
            raise KeyError(key)
        return value

    async def update(self, key: K, function: Callable[[V | None], V | None], *, timeout: float | None = None) -> V | None:
        """Set a key to what `function` makes of its value (None: there is none, or is to be none), and return that.

        It is called again with the newer value where somebody else was quicker, and decides nothing but its result.
        """
        check_update(function)
        left = time_left(timeout, self._raw.session.seconds)
        while True:
            entry = await self.get_entry(key, timeout=left())
            new = at_once(function, function(entry.value if entry is not None else None))
            if await self._change_from(key, entry, new, timeout=left()):
                return new

    async def _change_from(self, key: K, entry: Entry[V] | None, new: V | None, *, timeout: float | None = None) -> bool:
        """Set a key that stands as `entry` says, or delete it; False if it does not stand so any more."""
        encoded, will = key_of(self, key), optional(self, new)
        if entry is None and will is None:
            return True
        when, _, at = condition(self, MISSING, entry.version) if entry is not None else ABSENT
        return (await self._raw.swap(encoded, when, timeout, new=will, at=at)).applied

    async def count(self, *, stale: bool = False, max_age: float | None = None, timeout: float | None = None) -> int:
        """How many keys there are, as a scan would find them, and without one: copies know how many they have. `stale` and
        `max_age` as with `get`."""
        anywhere, age_ms = age_of(stale, max_age)
        return await self._raw.count(timeout, stale=anywhere, age_ms=age_ms)

    async def scan(
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
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending, or in `reverse`, the last ones first. Not a snapshot:
        pages are read one after another, each within `timeout`; `stale` and `max_age` as with `get`, the age counted from
        when a page is asked for."""
        check_flags(reverse=reverse)
        low, high = range_of(self, prefix, start, end)
        left = limit_of(limit)
        anywhere, age_ms = age_of(stale, max_age)
        async for page in self._raw.pages(low, high, limit, timeout, stale=anywhere, age_ms=age_ms, reverse=reverse):
            rows = page.rows[:left]
            for row in read_rows(self, rows):
                yield row
            if left is not None and (left := left - len(rows)) <= 0:
                return  # it is not asked whether there is more
