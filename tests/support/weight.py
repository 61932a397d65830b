"""How many bytes some objects take, with all that they lead to, and which are large: the same in each run, whatever else
the process does.

It is what the interpreter says of each, and not what it takes from the system: that is more, by what lies between them.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

NOBODYS = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType)
"""What is there once for all, however many objects lead to it."""


def weight(roots: Iterable[object], *, but: tuple[type, ...] = ()) -> int:
    """The bytes of all that can be reached from `roots`, and not only by way of objects of the types `but`."""
    return sum(sys.getsizeof(thing) for thing, _ in _all_of(roots, but))


def that_hold_more(most: int, roots: Iterable[object], *, but: tuple[type, ...] = ()) -> list[str]:
    """The containers among these that hold more than so many things and grow in one step, as a deque does not; and by way
    of what each is reached."""
    found = [(thing, way) for thing, way in _all_of(roots, but) if isinstance(thing, _IN_ONE_STEP) and len(thing) > most]
    return [f"{len(thing)} in a {type(thing).__name__} of {way}" for thing, way in found]


_IN_ONE_STEP = (dict, list, tuple, set, frozenset)


def _all_of(roots: Iterable[object], but: tuple[type, ...]) -> Iterator[tuple[object, str]]:
    """All that can be reached, each with the classes by way of which it is."""
    met: dict[int, object] = {}
    left = [(root, "") for root in roots]
    while left:
        thing, way = left.pop()
        if id(thing) in met or isinstance(thing, (*NOBODYS, *but)):
            continue
        met[id(thing)] = thing
        yield thing, way
        within = way if isinstance(thing, (*_IN_ONE_STEP, deque)) else f"{way} {type(thing).__name__}"
        left += [(inner, within) for inner in gc.get_referents(thing)]
