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


class _How(Enum):
    """How a kind of thing is told."""

    PLAIN = 1
    SKIPPED = 2
    FROZEN = 3
    IN_PARTS = 4


_HOW: dict[type, _How] = {}


def _how(kind: type) -> _How:
    """Found out once: a node is thousands of things, of some dozens of kinds."""
    if kind in _PLAIN or issubclass(kind, Enum):
        found = _How.PLAIN
    elif issubclass(kind, _SKIPPED):
        found = _How.SKIPPED
    elif issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen:
        found = _How.FROZEN
    else:
        found = _How.IN_PARTS
    _HOW[kind] = found
    return found


def fingerprint(*roots: object) -> bytes:
    """16 bytes over everything that can be reached from here."""
    said: list[bytes] = []
    met: dict[int, int] = {}
    kept: list[object] = []  # whatever was met stays alive, so that its id is its own
    stack: list[object] = list(reversed(roots))
    plain, skipped, frozen, known = _How.PLAIN, _How.SKIPPED, _How.FROZEN, _HOW
    while stack:
        value = stack.pop()
        kind = type(value)
        how = known[kind] if kind in known else _how(kind)
        if how is plain:
            said.append(repr(value).encode())
            continue
        if how is skipped:
            continue
        if how is frozen:
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


_SLOTS: dict[type, tuple[str, ...]] = {}


def _slots(value: object) -> tuple[str, ...]:
    """The names of the slots of an object's class, and of what that is made of."""
    kind = type(value)
    known = _SLOTS.get(kind)
    if known is None:
        found: list[str] = []
        for part in reversed(kind.__mro__):
            slots = part.__dict__.get("__slots__", ())
            found += [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in _LEFT_OUT]
        known = _SLOTS[kind] = tuple(found)
    return known
