"""What a node keeps of each of its fragments, of which there may be hundreds of thousands: by partition.

One dict of them all grows in one step now and then, which takes 9 ms where there are 175,000; and as a turn that makes
fragments fills several such dicts, of the same fragments, they grow together. To list its names takes as long, for each is
touched. Here nothing is larger than there are partitions, or namespaces in one of them, so that a step costs no more than
that; and whoever goes through all of it takes partition after partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from wal.ids import Fragment, Namespace

T = TypeVar("T")
V = TypeVar("V")

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class ByFragment(MutableMapping[Fragment, V]):
    """A mapping of fragments.

    Invariant: `parts` has no empty part, so that it is empty when this is.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[int, dict[Namespace, V]] = {}

    @overload
    def get(self, name: Fragment, /) -> V | None: ...
    @overload
    def get(self, name: Fragment, /, default: V | T) -> V | T: ...
    def get(self, name: Fragment, /, default: V | T | None = None) -> V | T | None:
        """What is kept of one."""
        part = self.parts.get(name[1])
        return default if part is None else part.get(name[0], default)

    def __getitem__(self, name: Fragment) -> V:
        return self.parts[name[1]][name[0]]

    def __setitem__(self, name: Fragment, value: V) -> None:
        part = self.parts.get(name[1])
        if part is None:
            part = self.parts[name[1]] = {}
        part[name[0]] = value

    def setdefault(self, name: Fragment, default: V) -> V:
        """What is kept of one; of which nothing is, that from now on."""
        part = self.parts.get(name[1])
        if part is None:
            part = self.parts[name[1]] = {}
        return part.setdefault(name[0], default)

    def pop(self, name: Fragment, default: Any = None) -> Any:
        """Take out what is kept of one."""
        part = self.parts.get(name[1])
        if part is None or name[0] not in part:
            return default
        value = part[name[0]]
        del self[name]
        return value

    def __delitem__(self, name: Fragment) -> None:
        part = self.parts[name[1]]
        del part[name[0]]
        if not part:
            self.drop(name[1])

    def __contains__(self, name: Any) -> bool:
        part = self.parts.get(name[1])
        return part is not None and name[0] in part

    def __iter__(self) -> Iterator[Fragment]:
        return ((namespace, number) for number, part in self.parts.items() for namespace in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def of(self, number: int) -> Mapping[Namespace, V]:
        """What is kept of those of one partition."""
        return self.parts.get(number, _NOTHING)

    def drop(self, number: int) -> None:
        """Take out what is kept of those of one partition."""
        self.parts.pop(number, None)
        self.parts = self.parts or {}  # an empty one takes what it took when it was at its largest

    def names(self) -> Iterator[Fragment]:
        """Those of the partitions there are now, each as it is when its turn comes: all may change meanwhile."""
        for number in list(self.parts):
            for namespace in list(self.of(number)):
                yield namespace, number

    def taken(self) -> Iterator[dict[Namespace, V]]:
        """All parts, each taken out of it."""
        while self.parts:
            yield self.parts.popitem()[1]
