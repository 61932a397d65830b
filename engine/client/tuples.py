"""Tuples as bytes that sort as the tuples do.

Each part is a byte for its kind and what follows; text and bytes end with a zero, and a zero within them is followed by
255; a whole number says in its first byte how many bytes it has; of a float the sign is turned round, and all bits of a
negative one. A tuple that begins like another is that one's prefix, so that a scan finds what begins so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import isnan

from engine.errors import UsageError

Part = str | bytes | int | float | bool | None

_NONE, _BYTES, _TEXT, _ZERO, _FLOAT, _FALSE, _TRUE = 0x00, 0x01, 0x02, 0x14, 0x21, 0x26, 0x27
_SIGN = 1 << 63
_ALL = (1 << 64) - 1


def pack(key: tuple[Part, ...]) -> bytes:
    """A tuple as bytes. Raises UsageError for what cannot be in one.

    >>> pack(("ann", 1)) < pack(("ann", 2)) < pack(("ann", 300)) < pack(("anna", -1))
    True
    >>> unpack(pack(("ann", -7, 2.5, b"\\0", None, True)))
    ('ann', -7, 2.5, b'\\x00', None, True)
    """
    if not isinstance(key, tuple):
        raise UsageError(f"expected a tuple as a key, found {type(key).__name__}")
    return b"".join(map(_pack, key))


def _pack(part: Part) -> bytes:
    match part:
        case None:
            return bytes([_NONE])
        case bool():
            return bytes([_TRUE if part else _FALSE])
        case str():
            try:
                return bytes([_TEXT]) + part.encode().replace(b"\0", b"\0\xff") + b"\0"
            except UnicodeEncodeError as error:
                raise UsageError(f"a part of a key is no text: {error}") from None
        case bytes():
            return bytes([_BYTES]) + part.replace(b"\0", b"\0\xff") + b"\0"
        case int() if abs(part) <= _ALL:
            size = (abs(part).bit_length() + 7) // 8
            if part >= 0:
                return bytes([_ZERO + size]) + part.to_bytes(size, "big")
            return bytes([_ZERO - size]) + (part + (1 << 8 * size) - 1).to_bytes(size, "big")
        case float() if not isnan(part):
            (bits,) = struct.unpack(">Q", struct.pack(">d", part + 0.0))  # -0.0 is 0.0
            return bytes([_FLOAT]) + struct.pack(">Q", bits ^ (_ALL if bits & _SIGN else _SIGN))
        case _:
            raise UsageError(
                f"a part of a key is {part!r}: expected str, bytes, int of up to 64 bits, float, True, False or None"
            )


def unpack(data: bytes) -> tuple[Part, ...]:
    """The tuple of some bytes. Raises ValueError if they are none."""
    return tuple(_parts(data))


def _parts(data: bytes) -> Iterator[Part]:
    at = 0
    while at < len(data):
        kind, at = data[at], at + 1
        match kind:
            case 0x00:
                yield None
            case 0x26 | 0x27:
                yield kind == _TRUE
            case 0x01 | 0x02:
                end = at
                while (end := data.index(b"\0", end)) + 1 < len(data) and data[end + 1] == 0xFF:
                    end += 2
                whole, at = data[at:end].replace(b"\0\xff", b"\0"), end + 1
                yield whole.decode() if kind == _TEXT else whole
            case 0x21:
                (bits,) = struct.unpack(">Q", _exactly(data, at, 8))
                yield struct.unpack(">d", struct.pack(">Q", bits ^ (_SIGN if bits & _SIGN else _ALL)))[0]
                at += 8
            case _ if abs(kind - _ZERO) <= 8:
                size = abs(kind - _ZERO)
                number = int.from_bytes(_exactly(data, at, size), "big")
                yield number if kind >= _ZERO else number - (1 << 8 * size) + 1
                at += size
            case _:
                raise ValueError(f"a part of kind {kind} is none")


def _exactly(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("a number is cut off")
    return data[at : at + size]
