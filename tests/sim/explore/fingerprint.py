"""A number for all that a node is: equal numbers, equal nodes.

It is taken over the whole graph of objects behind a node: containers in their order, values as their bytes, whatever is
met again by its place. What only leads elsewhere (functions, settings) and what is made anew in each turn is left out.
"""

from __future__ import annotations

import types
from collections import deque
from enum import Enum
from functools import partial
from hashlib import blake2b

import msgspec

from engine.turn.settings import Settings
from engine.turn.turns import Turns

_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_SKIPPED = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    partial,
    Settings,
    Turns,
)
_LEFT_OUT = {"effects", "affinity", "work", "alarm"}


_PLAIN = (int, str, bytes, float, bool, type(None))


def fingerprint(*roots: object) -> bytes:
    """16 bytes over everything that can be reached from here."""
    said: list[bytes] = []
    met: dict[int, int] = {}
    kept: list[object] = []  # whatever was met stays alive, so that its id is its own
    stack: list[object] = list(reversed(roots))
    while stack:
        value = stack.pop()
        kind = type(value)  # what is asked most often comes first
        if kind in _PLAIN or isinstance(value, Enum):
            said.append(repr(value).encode())
            continue
        if isinstance(value, _SKIPPED):
            continue
        if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
            said.append(kind.__name__.encode() + _encode(value))
            continue
        place = met.setdefault(id(value), len(met))
        if place < len(kept):
            said.append(b"@%d" % place)
            continue
        kept.append(value)
        said.append(b"%s(" % kind.__name__.encode())
        stack.extend(reversed(_parts(value)))
    return blake2b(b"\0".join(said), digest_size=16).digest()


def _parts(value: object) -> list[object]:
    """What an object consists of."""
    if isinstance(value, dict):
        return [part for item in value.items() for part in item] + [len(value)]
    if isinstance(value, list | tuple | deque):
        return [*value, len(value)]
    if isinstance(value, set | frozenset):
        return [*sorted(value, key=repr), len(value)]
    named: list[object] = [getattr(value, name) for name in _slots(value) if hasattr(value, name)]
    named += [part for name, part in getattr(value, "__dict__", {}).items() if name not in _LEFT_OUT]
    return named


_SLOTS: dict[str, tuple[str, ...]] = {}


def _slots(value: object) -> tuple[str, ...]:
    """The names of the slots of an object's class, and of what that is made of."""
    kind = type(value)
    known = _SLOTS.get(f"{kind.__module__}.{kind.__qualname__}")
    if known is None:
        found: list[str] = []
        for part in reversed(kind.__mro__):
            slots = part.__dict__.get("__slots__", ())
            found += [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in _LEFT_OUT]
        known = _SLOTS[f"{kind.__module__}.{kind.__qualname__}"] = tuple(found)
    return known
