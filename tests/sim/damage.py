"""Frames as a member sends them whose memory is broken, or whose code is another one: with a checksum that is right.

Bytes are flipped, or what they say is exchanged for what no sane member would say: numbers beyond all that count, more
nested than anything is, lists of a hundred thousand, and such as claim to have billions. Most of it is no message, and
ends that conversation; the rest is a lie like any other (`tests.sim.nonsense`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from tests.sim.nonsense import EDGES

LONG = 100_000
DEEP = 200_000
MARK = "@@damaged@@"
_MARKED = msgspec.msgpack.encode(MARK)
CLAIMS = (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff")
"""An array, bytes, a map and a string of 4 GiB, of which nothing is there."""

_Place = tuple[list[Any], int]


class Damage:
    """What becomes of payloads."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def __call__(self, payload: bytes) -> bytes:
        """The same payload, damaged."""
        ways: list[Callable[[bytes], bytes]] = [self._flip, self._cut, self._number, self._number, self._shape]
        return self._draw.choice(ways)(payload)

    def _flip(self, payload: bytes) -> bytes:
        draw, damaged = self._draw, bytearray(payload)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(damaged))
            damaged[at] = draw.choice((damaged[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        return bytes(damaged)

    def _cut(self, payload: bytes) -> bytes:
        return payload[: self._draw.randrange(len(payload))]

    def _number(self, payload: bytes) -> bytes:
        """A number is another one."""
        said = msgspec.msgpack.decode(payload)
        places = [(inside, at) for inside, at in _places(said) if isinstance(inside[at], int)]
        if not places:
            return self._flip(payload)
        inside, at = self._draw.choice(places)
        inside[at] = self._draw.choice(EDGES)
        return msgspec.msgpack.encode(said)

    def _shape(self, payload: bytes) -> bytes:
        """Something is of another length, depth or kind."""
        draw, said = self._draw, msgspec.msgpack.decode(payload)
        inside, at = draw.choice(list(_places(said)))
        found = inside[at]
        if isinstance(found, list) and found and draw.random() < 0.5:
            inside[at] = [found[0]] * LONG
            return msgspec.msgpack.encode(said)
        inside[at] = draw.choice((MARK, MARK, None, True, "", b"", [], [found], {"k": found}, -1, 0.5))
        raw = draw.choice((*CLAIMS, b"\x91" * DEEP + b"\xc0", b"\x81\xa1k" * DEEP + b"\xc0"))
        return msgspec.msgpack.encode(said).replace(_MARKED, raw)


def _places(said: list[Any]) -> Iterator[_Place]:
    """Everything that is in a list, in a list or by itself."""
    left = [said]
    while left:
        inside = left.pop()
        for at, found in enumerate(inside):
            yield inside, at
            if isinstance(found, list):
                left.append(found)
