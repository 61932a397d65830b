"""A namespace inside a transaction, in its codec: what `engine.aio` gives out as `tx.namespace(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Generic, TypeVar, overload

from engine.client.claims import claimed, pages_of, scanned
from engine.client.codecs import Codec, key_of, keys_of, limit_of, pairs_of, range_of, read_rows, read_value, value_of
from engine.client.here import OfThisProcess
from engine.client.modes import check_flags, check_patience
from engine.client.namespace import Namespace, expiry_call, expiry_in
from engine.client.operations import (
    ABSENT,
    MISSING,
    Change,
    Condition,
    Entry,
    Version,
    appended,
    condition,
    holds_of,
    number,
    optional,
)
from engine.client.ranges import Seen
from engine.client.running import at_once, check_update
from engine.client.timing import time_to_live
from engine.client.transaction import Transaction
from engine.errors import UsageError
from engine.protocol.limits import FOR_GOOD_MS
from engine.protocol.operations import Refused, make
from engine.protocol.requests import SKIPPED

D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


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
    async def get(self, key: K, default: None = None, *, nowait: bool = False) -> V | None: ...

    @overload
    async def get(self, key: K, default: D, *, nowait: bool = False) -> V | D: ...

    async def get(self, key: K, default: object = None, *, nowait: bool = False) -> object:
        """The value of a key, or `default`; unless READ_COMMITTED, it stays so until the transaction ends. `nowait`: who
        finds it locked by one that writes it is told LockTimeout at once."""
        return await self._get(key, default, update=False, nowait=nowait)

    @overload
    async def get_for_update(self, key: K, default: None = None, *, nowait: bool = False) -> V | None: ...

    @overload
    async def get_for_update(self, key: K, default: D, *, nowait: bool = False) -> V | D: ...

    async def get_for_update(self, key: K, default: object = None, *, nowait: bool = False) -> object:
        """The same, saying that it will be written: nobody else can from now on (or the commit will tell). `nowait`: who
        finds it locked is told LockTimeout at once."""
        return await self._get(key, default, update=True, nowait=nowait)

    async def _get(self, key: K, default: object, *, update: bool, nowait: bool) -> object:
        encoded = key_of(self, key)
        await self._namespace.seen()
        found = await self._raw.get_many(self.name, [encoded], update=update, nowait=nowait)
        return self._decoded(encoded, found[encoded]) if encoded in found else default

    def _decoded(self, encoded: bytes, value: bytes) -> V:
        return read_value(self, encoded, value)

    async def get_many(self, keys: Iterable[K], *, nowait: bool = False, skip_locked: bool = False) -> dict[K, V]:
        """The values of the keys that exist. `skip_locked`: but for those that another transaction has locked, so that
        many can claim from one list without waiting; `nowait`: if one is locked, LockTimeout at once."""
        wanted = keys_of(self, keys)
        await self._namespace.seen()
        found = await self._raw.get_many(self.name, wanted, nowait=nowait, skip_locked=skip_locked)
        return {wanted[key]: self._decoded(key, value) for key, value in found.items()}

    async def put(self, key: K, value: V, *, ttl: float | None = None) -> None:
        """Set a key when the transaction commits. `ttl`: it expires so many seconds after that."""
        await self._put_many({key_of(self, key): value_of(self, value)}, time_to_live(ttl))

    async def put_many(self, items: Mapping[K, V] | Iterable[tuple[K, V]], *, ttl: float | None = None) -> None:
        """Set keys when the transaction commits; `ttl` as with `put`."""
        await self._put_many(pairs_of(self, items), time_to_live(ttl))

    async def expires_at(self, key: K) -> float | None:
        """When a key expires, in seconds since 1970; None: it stays, or there is none. It is not known yet of what this
        transaction has written itself: that is refused."""
        encoded = key_of(self, key)
        await self._namespace.seen()
        if encoded in self._raw.own(self.name, encoded, encoded + b"\0"):
            raise UsageError(
                f"{self.name}:{key!r} was written by this transaction: when it expires is known after the commit"
            )
        await self._raw.get_many(self.name, [encoded])  # protected as whatever it reads
        self._raw.check_open()
        return expiry_in(await self._raw.session.call(expiry_call(self.name, encoded)))

    async def persist(self, key: K) -> bool:
        """A key that has a value keeps it for good when the transaction commits; whether there is one."""

        def keep(seen: Seen) -> tuple[bool, bytes | None, bool]:
            return seen[2] is not None, seen[2], seen[2] is not None

        return await self._change(key_of(self, key), keep, ttl_ms=FOR_GOOD_MS)

    @overload
    async def delete(self, key: K) -> None: ...

    @overload
    async def delete(self, key: K, *, if_value: V) -> bool: ...

    @overload
    async def delete(self, key: K, *, if_version: Version) -> bool: ...

    async def delete(self, key: K, *, if_value: V | object = MISSING, if_version: Version | None = None) -> bool | None:
        """Delete a key when the transaction commits, and do not ask whether it exists: so None, and not a bool as outside
        (`get_and_delete` tells). `if_value`, `if_version`: only if it has this value or version; whether it had."""
        encoded = key_of(self, key)
        if if_value is MISSING and if_version is None:
            await self._put_many({encoded: None})
            return None
        return await self._set_if(encoded, condition(self, if_value, if_version), None)

    async def get_entry(self, key: K) -> Entry[V] | None:
        """The value of a key with its version, as `get_for_update` reads it; None if there is none.

        What this transaction has written itself has no version: that is refused.
        """

        encoded = key_of(self, key)

        def look(seen: Seen) -> tuple[bool, None, Entry[V] | None]:
            epoch, counter, value = seen
            if epoch == SKIPPED:
                raise UsageError(f"{self.name}:{key!r} was written by this transaction: it has a version when that commits")
            if value is None:
                return False, None, None
            return False, None, Entry(self._decoded(encoded, value), Version(epoch, counter))

        return await self._change(encoded, look, writing=False)

    async def put_if_absent(self, key: K, value: V, *, ttl: float | None = None) -> bool:
        """Set a key that has no value; whether it was set. `ttl` as with `put`."""
        return await self._set_if(key_of(self, key), ABSENT, value_of(self, value), time_to_live(ttl))

    async def put_if_version(self, key: K, value: V, version: Version | None) -> bool:
        """Set a key that is the entry of this version still (None: that has no value); whether it was set."""
        encoded, new = key_of(self, key), value_of(self, value)
        return await self._set_if(encoded, condition(self, MISSING, version) if version is not None else ABSENT, new)

    async def replace(self, key: K, old: V, new: V) -> bool:
        """Set a key to `new` if its value is `old`; whether it was. Values are equal if their bytes are."""
        return await self._set_if(key_of(self, key), condition(self, old, None), value_of(self, new))

    async def compare_and_set(self, key: K, expected: V | None, new: V | None) -> bool:
        """Set a key to `new` if its value is `expected`; whether it was. None stands for no value, both times."""
        when = condition(self, expected, None) if expected is not None else ABSENT
        return await self._set_if(key_of(self, key), when, optional(self, new))

    async def _set_if(self, encoded: bytes, when: Condition, new: bytes | None, ttl_ms: int = 0) -> bool:
        def decide(seen: Seen) -> tuple[bool, bytes | None, bool]:
            epoch, counter, found = seen
            holds = holds_of(when, found, (epoch, counter))
            return holds and not (found is None and new is None), new, holds

        return await self._change(encoded, decide, ttl_ms=ttl_ms)

    async def increment(self, key: K, by: int = 1, initial: int = 0) -> int:
        """Add to a whole number of 64 bits, which is `initial` where there is no value; the sum."""
        return int(await self._make(key_of(self, key), number(self, by, initial)))

    async def append(self, key: K, value: V) -> int:
        """Append to a value of bytes or text; how many bytes it has then."""
        return int(await self._make(key_of(self, key), appended(self, value)))

    async def _make(self, encoded: bytes, change: Change) -> bytes:
        def compute(seen: Seen) -> tuple[bool, bytes | None, bytes]:
            try:
                made = make(change.how, change.old, change.new, seen[2])
            except Refused as refused:
                raise UsageError(f"{self.name}:{encoded!r}: {refused}") from None
            assert made.answer is not None, "it has an answer"
            return True, made.value, made.answer

        return await self._change(encoded, compute)

    @overload
    async def get_and_put(self, key: K, value: V, default: None = None) -> V | None: ...

    @overload
    async def get_and_put(self, key: K, value: V, default: D) -> V | D: ...

    async def get_and_put(self, key: K, value: V, default: object = None) -> object:
        """Set a key; the value that it had, or `default`."""
        encoded, new = key_of(self, key), value_of(self, value)
        return await self._change(encoded, lambda seen: (True, new, self._read(encoded, seen, default)))

    @overload
    async def get_and_delete(self, key: K, default: None = None) -> V | None: ...

    @overload
    async def get_and_delete(self, key: K, default: D) -> V | D: ...

    async def get_and_delete(self, key: K, default: object = None) -> object:
        """Delete a key; the value that it had, or `default`."""
        encoded = key_of(self, key)
        return await self._change(encoded, lambda seen: (seen[2] is not None, None, self._read(encoded, seen, default)))

    def _read(self, encoded: bytes, seen: Seen, default: object) -> object:
        return default if seen[2] is None else self._decoded(encoded, seen[2])

    @overload
    async def pop(self, key: K) -> V: ...

    @overload
    async def pop(self, key: K, default: D) -> V | D: ...

    async def pop(self, key: K, default: object = MISSING) -> object:
        """Delete a key and return its value; KeyError, or `default`, if there is none."""
        value = await self.get_and_delete(key, default)
        if value is MISSING:
            raise KeyError(key)
        return value

    async def update(self, key: K, function: Callable[[V | None], V | None]) -> V | None:
        """Set a key to what `function` makes of its value (None: there is none, or is to be none), and return that."""
        check_update(function)
        encoded = key_of(self, key)

        def call(seen: Seen) -> tuple[bool, bytes | None, V | None]:
            found = seen[2]
            new = at_once(function, function(self._decoded(encoded, found) if found is not None else None))
            return not (found is None and new is None), optional(self, new), new

        return await self._change(encoded, call)

    async def _stands(self, key: K) -> bytes | None:
        """The value of a key as it is kept, read as one that will be written: what `_change_from` begins with."""
        return await self._change(key_of(self, key), lambda seen: (False, None, seen[2]))

    async def _change_from(self, key: K, found: bytes | None, new: V | None) -> bool:
        """Set a key, or delete it, if it is kept as that; False if it is not any more."""
        return await self._set_if(
            key_of(self, key), ("equals", found, (0, 0)) if found is not None else ABSENT, optional(self, new)
        )

    async def _change(
        self,
        encoded: bytes,
        make_of: Callable[[Seen], tuple[bool, bytes | None, T]],
        *,
        writing: bool = True,
        ttl_ms: int = 0,
    ) -> T:
        await self._namespace.seen(writing=writing)
        return await self._raw.change(self.name, encoded, make_of, ttl_ms)

    async def _put_many(self, writes: dict[bytes, bytes | None], ttl_ms: int = 0) -> None:
        await self._namespace.seen(writing=True)
        await self._raw.put_many(self.name, writes, ttl_ms)

    async def scan(
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
    ) -> AsyncIterator[tuple[K, V]]:
        """(key, value) pairs with start <= key < end, ascending or in `reverse`, with this transaction's own writes.

        `for_update`: they will be written, as with `get_for_update`; `nowait`: if one is locked, LockTimeout at once;
        `skip_locked`: rows that nobody else has locked, and now nobody else gets; the first ones, if they are free and no
        other one claims at the same moment.
        """
        low, high = range_of(self, prefix, start, end)
        most = limit_of(limit)
        gone = sum(value is None for value in self._raw.own(self.name, low, high).values()) if most is not None else 0
        check_flags(reverse=reverse, for_update=for_update)
        if nowait or skip_locked:
            check_patience(nowait, skip_locked, self._raw.concurrency, self._raw.name)
        if skip_locked:
            draws = self._raw.session.chance.sample
            rows = await claimed(self._raw, self._namespace, (low, high), most, reverse=reverse, sample=draws)
        else:
            pages = pages_of(self._raw, self._namespace, low, high, most and most + gone, reverse=reverse)
            rows = await scanned(self._raw, pages, (low, high), most, reverse=reverse, update=for_update, nowait=nowait)
        for row in read_rows(self, rows):
            self.check_open()
            yield row

    def check_open(self) -> None:
        """Raise UsageError if the transaction is over: nobody knows what has become of rows that it read."""
        if self._raw.over:
            self._raw.check_open()
