"""What a single write may do to its key: the conditions under which it is made, and how the value comes about.

A node computes with these what a client asks of a key that stands, and a client what its transaction asks of one that it
has locked. What is logged and shipped is the value that came out, never the operation; what its client is told beside that
it was done (`answer`) travels with it, so that whoever asks again is told the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from wal.ids import VALUE_BYTES_MAX

CONDITIONS = ("absent", "present", "equals", "always", "version")
ANSWER_BYTES_MAX = 512
"""An answer that is larger is not kept. What would give one is not done: its client says instead what the value must be."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

_DECIMAL = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_unpack = msgspec.msgpack.Decoder(int).decode


def holds(when: str, old: bytes | None, at: tuple[int, int], found: bytes | None, version: tuple[int, int]) -> bool:
    """Whether a condition holds where `found` stands as this version: see `engine.protocol.requests.Swap`."""
    match when:
        case "always":
            return True
        case "absent":
            return found is None
        case "present":
            return found is not None
        case "equals":
            return found is not None and found == old
        case "version":
            return found is not None and version == at
        case _:
            raise AssertionError(f"a request with the condition {when} was refused")


class Made(NamedTuple):
    """The value to be written (None: the key is deleted), and what its client is told of it."""

    value: bytes | None
    answer: bytes | None = None


class Refused(Exception):
    """The value that stands does not admit of the operation: it says why."""


class AnswerTooLarge(Exception):
    """What was there cannot be told twice, so nothing is done."""


def integer_of(text: bytes) -> int | None:
    """A whole number of 64 bits in its shortest decimal form; None for anything else.

    >>> integer_of(b"-12"), integer_of(b"007"), integer_of(b"1.0"), integer_of(b"9223372036854775808")
    (-12, None, None, None)
    """
    if not _DECIMAL.fullmatch(text):
        return None
    number = int(text)
    return number if INT_MIN <= number <= INT_MAX else None


def _unpacked(data: bytes) -> int | None:
    try:
        number = _unpack(data)
    except msgspec.MsgspecError:
        return None
    return number if INT_MIN <= number <= INT_MAX and data == msgspec.msgpack.encode(number) else None


def _decimal(number: int) -> bytes:
    return b"%d" % number


def _add(
    read: Callable[[bytes], int | None], write: Callable[[int], bytes], old: bytes | None, new: bytes, found: bytes | None
) -> Made:
    """The number that stands, or `old` if there is none, and `new`."""
    number = read(found) if found is not None else integer_of(old or b"0")
    if number is None:
        raise Refused(
            "the value that stands is no whole number of 64 bits: expected what an increment or a put of one wrote"
        )
    by = integer_of(new)
    assert by is not None, "a request with another was refused"
    total = number + by
    if not INT_MIN <= total <= INT_MAX:
        raise Refused(f"{number} and {by} are {total}: expected a whole number of 64 bits; nothing was changed")
    return Made(write(total), _decimal(total))


def _append(new: bytes, found: bytes | None) -> Made:
    """What stands, and `new` behind it; the answer is how long it is."""
    size = len(found or b"") + len(new)
    if size > VALUE_BYTES_MAX:
        raise Refused(f"the value would have {size} bytes: expected at most {VALUE_BYTES_MAX}; nothing was changed")
    return Made((found or b"") + new, _decimal(size))


def _exchange(new: bytes | None, found: bytes | None) -> Made:
    """`new`; the answer is what stood there."""
    if found is not None and len(found) > ANSWER_BYTES_MAX:
        raise AnswerTooLarge
    return Made(new, found)


OPERATIONS = ("set", "exchange", "add", "add-packed", "append", "keep")
"""Set a value; the same, and tell what was there; add to a number in decimal, or in MessagePack; append to a value; leave
what stands, so that it does not expire."""


def make(how: str, old: bytes | None, new: bytes | None, found: bytes | None) -> Made:
    """What comes of an operation where `found` stands. Raises Refused and AnswerTooLarge."""
    if how == "set":
        return Made(new)
    if how == "keep":
        return Made(found)
    if how == "exchange":
        return _exchange(new, found)
    assert new is not None, "a request without was refused"
    if how == "append":
        return _append(new, found)
    if how == "add-packed":
        return _add(_unpacked, msgspec.msgpack.encode, old, new, found)
    assert how == "add", f"{how} is no operation"
    return _add(integer_of, _decimal, old, new, found)


def problem_of(how: str, when: str, old: bytes | None, new: bytes | None) -> str:
    """What is wrong with an operation and its operands, or nothing."""
    if when not in CONDITIONS:
        return f"condition {when[:20]!r} is not known: expected one of {', '.join(CONDITIONS)}"
    if how not in OPERATIONS:
        return f"operation {how[:20]!r} is not known: expected one of {', '.join(OPERATIONS)}"
    if how == "append" and new is None:
        return "an append needs what is to be appended"
    if how in ("add", "add-packed"):
        if new is None or integer_of(new) is None or (old is not None and integer_of(old) is None):
            return f"an addition of {new!r:.40} from {old!r:.40}: expected whole numbers of 64 bits in decimal"
        if when == "equals":
            return "an addition has no value to compare: expected another condition than equals"
    return ""
