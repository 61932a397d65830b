"""What a node keeps of each of very many keys of one fragment or partition: in parts, none of which grows to be large.

A dict grows in one step now and then, in which all that it has is moved: of a million keys that takes as long as a turn
may, and a turn that deletes some fills several dicts of the same keys, which grow together. Here a key's part is that of
its hash, so that a step moves what one part has. Some parts are twice as large as others, and those between them of all
sizes in between: so they do not grow at the same time either.

Few keys are kept in a dict, which is quicker: whoever owns one asks `roomy`, before it grows, what it is to be from now on.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, Sized, ValuesView
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar, overload
from zlib import crc32

T = TypeVar("T")
V = TypeVar("V")

FEW = 10_000
"""So many are few: a dict that has as many is moved in a few milliseconds, and grows next."""
PARTS = 64
_SLOTS = 1 << 10


def _parts_of_slots() -> bytes:
    """Of each slot which part it is of: the last one has twice as many as the first, and each as much more than the one
    before it."""
    sizes = [2 ** (at / PARTS) for at in range(PARTS)]
    slots, so_far = bytearray(), 0.0
    for at, size in enumerate(sizes):
        so_far += size
        slots += bytes([at]) * (round(_SLOTS * so_far / sum(sizes)) - len(slots))
    return bytes(slots)


_PART = _parts_of_slots()
_MASK = _SLOTS - 1


class ByKey(MutableMapping[bytes, V]):
    """A mapping of keys. It is walked part after part, and those of a part in the order in which they came.

    The hash is the same in all processes, and so is the order.
    """

    __slots__ = ("parts",)

    def __init__(self, some: Mapping[bytes, V] | Iterable[tuple[bytes, V]] = ()) -> None:
        self.parts: list[dict[bytes, V]] = [{} for _ in range(PARTS)]
        ByKey.update(self, some)

    @overload
    def get(self, key: bytes, /) -> V | None: ...
    @overload
    def get(self, key: bytes, /, default: V | T) -> V | T: ...
    def get(self, key: bytes, /, default: V | T | None = None) -> V | T | None:
        """What is kept of one."""
        return self.parts[_PART[crc32(key) & _MASK]].get(key, default)

    def __getitem__(self, key: bytes) -> V:
        return self.parts[_PART[crc32(key) & _MASK]][key]

    def __setitem__(self, key: bytes, value: V) -> None:
        self.parts[_PART[crc32(key) & _MASK]][key] = value

    def __delitem__(self, key: bytes) -> None:
        del self.parts[_PART[crc32(key) & _MASK]][key]

    def pop(self, key: bytes, default: Any = None) -> Any:
        """Take out what is kept of one."""
        return self.parts[_PART[crc32(key) & _MASK]].pop(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self.parts[_PART[crc32(key) & _MASK]]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bool__(self) -> bool:
        return any(self.parts)

    def mapped(self, of: Callable[[V], T]) -> ByKey[T]:
        """What is `of` each value, by the same keys."""
        found = ByKey[T]()
        found.parts = [{key: of(value) for key, value in part.items()} for part in self.parts]
        return found

    def items(self) -> ItemsView[bytes, V]:
        """All of it."""
        return _Items(self, self.parts)

    def values(self) -> ValuesView[V]:
        """What is kept of all."""
        return _Values(self, self.parts)

    def update(self, some: Any = (), /) -> None:
        """Take in others; see `put_in`."""
        if isinstance(some, ByKey):
            for mine, theirs in zip(self.parts, some.parts, strict=True):
                mine.update(theirs)
            return
        parts, part, mask, hash_of = self.parts, _PART, _MASK, crc32
        for key, value in some.items() if isinstance(some, Mapping) else some:
            parts[part[hash_of(key) & mask]][key] = value


class _Items(ItemsView[bytes, V]):
    def __init__(self, table: ByKey[V], parts: list[dict[bytes, V]]) -> None:
        super().__init__(table)
        self._parts = parts

    def __iter__(self) -> Iterator[tuple[bytes, V]]:
        return chain.from_iterable(map(dict.items, self._parts))


class _Values(ValuesView[V]):
    def __init__(self, table: ByKey[V], parts: list[dict[bytes, V]]) -> None:
        super().__init__(table)
        self._parts = parts

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(map(dict.values, self._parts))


class InOrder(ByKey[V]):
    """The same of keys none of which is ever taken out; it knows in which order they `came`, and is walked so."""

    __slots__ = ("came",)

    def __init__(self, some: Mapping[bytes, V]) -> None:
        super().__init__(some)
        self.came = list(some)

    def __setitem__(self, key: bytes, value: V) -> None:
        part = self.parts[_PART[crc32(key) & _MASK]]
        if key not in part:
            self.came.append(key)
        part[key] = value

    def given_up(self) -> list[Sized]:
        """The order in which they came, for who frees it: nobody else has it, and it names all keys."""
        came: list[Sized] = [self.came]
        self.came = []
        return came

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.came)

    def __len__(self) -> int:
        return len(self.came)

    def update(self, some: Any = (), /) -> None:
        """Take in others; see `put_in`, by which the new ones come one part after the other."""
        if isinstance(some, ByKey):
            for mine, theirs in zip(self.parts, some.parts, strict=True):
                before = len(mine)
                mine.update(theirs)
                self.came += islice(reversed(mine), len(mine) - before)
            return
        parts, part, mask, hash_of, came = self.parts, _PART, _MASK, crc32, self.came.append
        for key, value in some.items() if isinstance(some, Mapping) else some:
            lies = parts[part[hash_of(key) & mask]]
            if key not in lies:
                came(key)
            lies[key] = value


Table: TypeAlias = dict[bytes, V] | ByKey[V]


def roomy(table: Mapping[bytes, V], more: int = 0) -> Table[V]:
    """What is to be a table from now on that is to have so many `more`; a new one where it was none that can change."""
    if isinstance(table, ByKey):
        return table
    few = len(table) + more <= FEW
    if isinstance(table, dict):
        return table if few else ByKey(table)
    return {} if few else ByKey()


def parts_of(table: Mapping[bytes, V]) -> list[dict[bytes, V]]:
    """The dicts that a table is made of, to be emptied; none where it was none that can change."""
    return table.parts if isinstance(table, ByKey) else [table] if isinstance(table, dict) else []


def copy_of(table: Mapping[bytes, V]) -> Table[V]:
    """What it has now: it takes no look at each, and a tenth of the time."""
    if not isinstance(table, ByKey):
        return dict(table)
    found = ByKey[V]()
    found.parts = [part.copy() for part in table.parts]
    return found


def put_in(table: Table[V], some: Mapping[bytes, V]) -> None:
    """Put some into a table; of those that lie in parts it takes no look at each."""
    if isinstance(table, ByKey) or isinstance(some, dict):
        table.update(some)
        return
    for part in parts_of(some):
        table.update(part)


def in_parts(keys: Sequence[bytes], *tables: Table[Any]) -> Iterator[tuple[Sequence[bytes], list[dict[bytes, Any]]]]:
    """Some keys, and of each of some tables the dict where they lie, if they do: all are asked for that at once."""
    wide = any(isinstance(table, ByKey) for table in tables)
    at_once: list[list[bytes]] = [[] for _ in range(PARTS if wide else 0)]
    for key in keys if wide else ():
        at_once[_PART[crc32(key) & _MASK]].append(key)
    for at, some in enumerate(at_once if wide else [keys]):
        if some:
            yield some, [table.parts[at] if isinstance(table, ByKey) else table for table in tables]
