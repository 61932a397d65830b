"""What an application says of one key beside get and put, in the terms of a request: conditions, versions, operations."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from engine.client.codecs import Named, value_of
from engine.errors import UsageError
from engine.protocol.operations import INT_MAX, INT_MIN, holds

V = TypeVar("V")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands for a value that was not given, where None may be one."""
Condition = tuple[str, bytes | None, tuple[int, int]]
"""When a write is made, the value that must be there, and the version that must."""
ABSENT: Condition = ("absent", None, (0, 0))


class Version(NamedTuple):
    """Which update of its fragment an entry is: the counter, and the epoch of the primary that gave it.

    No other value of the key ever has it. The same value may come to have a later one when another node takes over.
    """

    epoch: int
    counter: int


class Entry(NamedTuple, Generic[V]):
    """What stands at a key: its value, and which version of the key it is."""

    value: V
    version: Version


class Change(NamedTuple):
    """An operation with its operands, as `engine.protocol.operations` has them."""

    how: str
    old: bytes | None
    new: bytes


def condition(place: Named[Any, Any], value: object, version: object) -> Condition:
    """That a key exists, has this value (unless it is MISSING) or this version (unless it is None). Raises UsageError."""
    if version is None:
        return ("present", None, (0, 0)) if value is MISSING else ("equals", value_of(place, value), (0, 0))
    if value is not MISSING:
        raise UsageError("a value and a version were given: expected one of them")
    if not isinstance(version, Version):
        raise UsageError(f"a version is {version!r}: expected what `get_entry` gave")
    return ("version", None, version)


def holds_of(when: Condition, found: bytes | None, version: tuple[int, int]) -> bool:
    """Whether it holds where `found` stands as this version."""
    return holds(when[0], when[1], when[2], found, version)


def optional(place: Named[Any, V], value: V | None) -> bytes | None:
    """A value as bytes; None: no value. Raises UsageError."""
    return None if value is None else value_of(place, value)


def number(place: Named[Any, Any], by: int, initial: int) -> Change:
    """An addition. Raises UsageError for what cannot be added, or cannot be added to."""
    for what, given in (("by", by), ("initial", initial)):
        if not isinstance(given, int) or isinstance(given, bool) or not INT_MIN <= given <= INT_MAX:
            raise UsageError(f"{what} is {given!r}: expected a whole number of 64 bits")
    if not place.codec.adds:
        raise UsageError(
            f"{place.name}: values of codec {place.codec.name!r} are no whole numbers: an increment needs a namespace of "
            "codec 'json', 'msgpack', 'str', 'bytes' or int; for anything else there is `update`"
        )
    return Change(place.codec.adds, b"%d" % initial, b"%d" % by)


def appended(place: Named[Any, V], value: V) -> Change:
    """What is appended. Raises UsageError where values cannot be joined."""
    if not place.codec.joins:
        raise UsageError(
            f"{place.name}: values of codec {place.codec.name!r} cannot be appended to: expected a namespace of codec "
            "'bytes' or 'str'; for anything else there is `update`"
        )
    return Change("append", None, value_of(place, value))
