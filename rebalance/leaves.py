"""What the rows of a fragment add up to, leaf by leaf: two copies that compare these know which rows to look at.

The keys are spread over so many leaves by their hash, and a leaf is the sum of the digests of its rows
(`rebalance.contents`): the digest of the contents is the sum of all leaves. Nothing is kept up to date by a write. Who is
asked walks the rows, in pieces, while they go on changing: a leaf that is equal on both sides is of rows that both have
seen alike, and one that a write has come between is taken for one that differs, which costs its rows and nothing else.

There are `LEAVES_A_ROW` for each row, so that a row that differs takes few others with it. On the wire a leaf is 32 bits:
of two that differ one pair in 2^32 passes for equal, and what is wrong then is found by the 64 bits of all contents before
the copy counts (`rebalance.comparing`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest as _hash

from rebalance.ports import Rows
from wal.ids import Fragment

LEAVES_A_ROW = 3
LEAVES_MAX = 1 << 16
"""All leaves of a fragment go in one message, and are kept until they are compared: 256 KiB at most."""
LEAF_BYTES = 4

KEYS_A_WORK = 4
"""So many keys that are looked at, and nothing under them, are as much work as a row."""

SUMMED_A_WORK = 4
"""And so many rows that are summed up, which are read in order and of which nothing is made."""

_TWIG_BITS = 17
"""Rows are summed up finer than any leaf, because how many there are is known at the end."""
_TWIG_SHIFT = 64 - _TWIG_BITS
_ONE = ord("1")


def leaf_count(rows: int) -> int:
    """How many leaves so many rows have.

    >>> leaf_count(0), leaf_count(100), leaf_count(1_000_000)
    (1, 300, 65536)
    """
    return max(1, min(LEAVES_A_ROW * rows, LEAVES_MAX))


def leaf_of(key: bytes, count: int) -> int:
    """Of so many leaves, that of a key."""
    return _twig_of(key) * count >> _TWIG_BITS


def _twig_of(key: bytes) -> int:
    return _hash(key) >> _TWIG_SHIFT


class Survey:
    """Sums up the rows of one fragment, some at a time. Each row counts as it was when it was come to."""

    def __init__(self, store: Rows, name: Fragment) -> None:
        self._store = store
        self._name = name
        self._twigs: dict[int, int] = {}
        self._at: bytes | None = b""
        self.rows = 0

    def step(self, rows: int) -> int:
        """Look at about so many; how much work it was."""
        assert self._at is not None, "all rows were looked at"
        glance = self._store.digests(self._name, self._at, rows)
        self._at = glance.next
        twigs = self._twigs
        for key, digest in glance.found:
            if digest:
                self.rows += 1
                twig = _twig_of(key)
                twigs[twig] = twigs.get(twig, 0) + digest
        return glance.work // SUMMED_A_WORK + 1

    @property
    def done(self) -> bool:
        """Whether all rows were looked at."""
        return self._at is None

    def leaves(self, count: int) -> bytes:
        """The sums, as so many leaves."""
        assert self.done, "some rows were not looked at"
        sums = [0] * count
        for twig, digest in self._twigs.items():
            leaf = twig * count >> _TWIG_BITS
            sums[leaf] = sums[leaf] + digest & 0xFFFF_FFFF
        return struct.pack(f">{count}I", *sums)


def are_leaves(told: bytes) -> bool:
    """Whether what a peer told can be leaves."""
    return 0 < len(told) <= LEAF_BYTES * LEAVES_MAX and not len(told) % LEAF_BYTES


def differing(mine: bytes, theirs: bytes) -> bytes:
    """Which leaves differ, a bit for each, the first one highest.

    >>> differing(bytes(12), bytes(11) + b"x").hex()
    '20'
    """
    assert len(mine) == len(theirs), f"{len(mine)} bytes of leaves, expected {len(theirs)}"
    count = len(mine) // LEAF_BYTES
    bits = bytearray((count + 7) // 8)
    pairs = zip(memoryview(mine).cast("I"), memoryview(theirs).cast("I"), strict=True)
    for at in [at for at, (a, b) in enumerate(pairs) if a != b]:
        bits[at >> 3] |= 0x80 >> (at & 7)
    return bytes(bits)


class Under:
    """The keys under some leaves of a fragment: those whose bit is set."""

    __slots__ = ("_count", "_differs")

    def __init__(self, count: int, bits: bytes) -> None:
        self._count = count
        self._differs = f"{int.from_bytes(bits):0{8 * len(bits)}b}".encode()  # a digit for each

    def of(self, found: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """Those of some keys, in their order."""
        count, differs = self._count, self._differs
        return [key for key, _ in found if differs[(_hash(key) >> _TWIG_SHIFT) * count >> _TWIG_BITS] == _ONE]
