"""How many bytes some objects take, with all that they lead to: the same in each run, whatever else the process does.

It is what the interpreter says of each, and not what it takes from the system: that is more, by what lies between them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

NOBODYS = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType)
"""What is there once for all, however many objects lead to it."""


def weight(roots: Iterable[object], *, but: tuple[type, ...] = ()) -> int:
    """The bytes of all that can be reached from `roots`, and not only by way of objects of the types `but`."""
    met: dict[int, object] = {}
    left = list(roots)
    total = 0
    while left:
        thing = left.pop()
        if id(thing) in met or isinstance(thing, (*NOBODYS, *but)):
            continue
        met[id(thing)] = thing
        total += sys.getsizeof(thing)
        left += gc.get_referents(thing)
    return total
