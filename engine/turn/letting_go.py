"""What is not needed any more is freed in pieces: to free a million things takes as long as a turn may."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from rebalance.by_key import ByKey, InOrder, parts_of

FREED_AT_ONCE = 2_000
FREED_OF_WORK = 40
"""So many things that are freed are as much work as one thing that is decided."""
HOLDER = 8
"""What holds them is freed, too, and is so many more."""


def let_go(held: list[Sized]) -> Iterator[int]:
    """Drop what is held only in here, one after the other, and of a long list some at a time; yields how much work it was.

    Whatever somebody else holds as well stays as it is.
    """
    freed = 0
    while held:
        last: Any = held.pop()
        if isinstance(last, list) and len(last) > FREED_AT_ONCE:
            held += [last[at : at + FREED_AT_ONCE] for at in range(0, len(last), FREED_AT_ONCE)]
        freed += HOLDER + len(last)
        del last
        if freed >= FREED_AT_ONCE:
            yield freed // FREED_OF_WORK
            freed = 0


def empty(held: Iterable[dict[Any, Any]]) -> Iterator[int]:
    """Take out of dicts all that is in them, and in the dicts that they hold; yields how much work it was.

    For what nobody else has: of a dict of very many things not even what holds them is freed at once.
    """
    freed = 0
    for some in held:
        while some:
            value = some.popitem()[1]
            if isinstance(value, dict | ByKey) and len(value) > FREED_AT_ONCE:
                yield freed // FREED_OF_WORK
                freed = 0
                yield from empty(parts_of(value))
                if isinstance(value, InOrder):
                    yield from let_go(value.given_up())
            freed += HOLDER + (len(value) if isinstance(value, dict | list) else 0)
            if freed >= FREED_AT_ONCE:
                yield freed // FREED_OF_WORK
                freed = 0
