"""A number for all that a node is: equal numbers, equal nodes.

It is taken over the whole graph of objects behind a node: containers in their order, values as they are, whatever has
parts by its place, of which it is told once what they are. A function is what it has closed over: what is done when an
answer comes waits in one, with the era or the session that it is for. What only leads elsewhere (settings, modules) and
what is made anew in each turn is left out.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from engine.turn.settings import Settings
from engine.turn.turns import Turns

_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_SKIPPED = (
    types.ModuleType,
    type,
    Settings,
    Turns,
)
_LEFT_OUT = {"effects", "affinity", "work", "alarm"}


_PLAIN = {int, str, bytes, float, bool, type(None)}
_CONTAINERS = {dict, list, deque, set, OrderedDict}
"""Most of those that a node has are empty."""

Parts = Callable[[Any], Iterable[object]]


class _How(Enum):
    """How a kind of thing is told, if not in its parts."""

    PLAIN = 1
    NAMED = 2
    SKIPPED = 3
    FROZEN = 4


_HOW: dict[type, _How | Parts] = {}


def _how(kind: type) -> _How | Parts:
    """Found out once: a node is thousands of things, of some dozens of kinds."""
    found: _How | Parts
    if kind in _PLAIN:
        found = _How.PLAIN
    elif issubclass(kind, Enum):
        found = _How.NAMED
    elif issubclass(kind, _SKIPPED):
        found = _How.SKIPPED
    elif issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
        found = _How.FROZEN
    elif issubclass(kind, dict):
        found = lambda value: (len(value), *value.keys(), *value.values())  # noqa: E731  # chosen by kind
    elif issubclass(kind, list | tuple | deque):
        found = lambda value: (len(value), *value)  # noqa: E731
    elif issubclass(kind, set | frozenset):
        found = lambda value: (len(value), *sorted(value, key=repr))  # noqa: E731
    elif kind is types.FunctionType:
        found = _closed_over
    elif kind in (types.MethodType, types.BuiltinMethodType):
        found = lambda value: (value.__name__, value.__self__)  # noqa: E731
    elif kind is partial:
        found = lambda value: (value.func, value.args, value.keywords)  # noqa: E731
    else:
        found = _attributes(kind)
    _HOW[kind] = found
    return found


def _closed_over(function: types.FunctionType) -> list[object]:
    """Which function it is, and what it reckons with beside what it is given."""
    found: list[object] = [function.__qualname__, *(function.__defaults__ or ())]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is set later, and was not yet
            found.append("empty")
    return found


def _attributes(kind: type) -> Parts:
    """What such an object has, in slots of its class and of what that is made of, and beside them."""
    names: list[str] = []
    for part in reversed(kind.__mro__):
        slots = part.__dict__.get("__slots__", ())
        names += [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in _LEFT_OUT]

    def parts(value: object) -> list[object]:
        found: list[object] = [getattr(value, name) for name in names if hasattr(value, name)]
        found += [part for name, part in getattr(value, "__dict__", _NOTHING).items() if name not in _LEFT_OUT]
        return found

    return parts


_NOTHING: dict[str, object] = {}


def fingerprint(*roots: object) -> bytes:
    """16 bytes over everything that can be reached from here."""
    said: list[object] = []  # encoded at the end, all at once
    met: dict[int, int] = {}
    kept: list[object] = []  # whatever was met stays alive, so that its id is its own
    plain, named, skipped, frozen, known = _How.PLAIN, _How.NAMED, _How.SKIPPED, _How.FROZEN, _HOW
    say = said.append
    to_tell: list[tuple[type, Parts, object]] = [(tuple, _how(tuple), roots)]  # type: ignore[list-item]  # it has parts
    for of_kind, parts, whole in to_tell:  # grows on the way
        say(of_kind.__name__)
        for part in parts(whole):
            kind = type(part)
            how = known[kind] if kind in known else _how(kind)
            if how is plain:
                say(part)
            elif how is skipped:
                continue
            elif how is frozen:
                say((kind.__name__, part))
            elif how is named:
                say(repr(part))
            else:
                new = len(kept)
                place = met.setdefault(id(part), new)
                if place < new:
                    say((place,))
                    continue
                kept.append(part)
                if kind in _CONTAINERS and not part:
                    say((place, kind.__name__))
                else:
                    say((place,))
                    to_tell.append((kind, how, part))  # type: ignore[arg-type]  # it has parts
    return blake2b(_encode(said), digest_size=16).digest()
