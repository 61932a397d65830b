"""The digest of contents: a number over the rows of one fragment, whatever their order and however they came.

Each live row has a digest: a hash of its key, epoch, counter and value. That of the fragment is their sum modulo 2^64,
so a change of one row costs two hashes and no look at the others. Tombstones have none, because copies drop them at
different times. It stands beside the digest of history (`rebalance.fragment`): that one tells whether two copies were told
the same, this one whether they have the same, and it is never taken over from another copy. A transfer that loses a row
ends with equal histories and unequal contents.

A put pays nothing for it. A checkpoint reads each row that it replaces, and keeps the digest of what the store holds
then; what was applied since is summed up when somebody asks (`Walk`), a bounded number of rows at a time. Whether the
rows of the store are still those of which its digest was made is found out by reading them (`Reading`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from wal.ids import Fragment

MASK = (1 << 64) - 1


class Sums(NamedTuple):
    """What a checkpoint keeps of all rows of a fragment: the digest of their contents, and how many are no tombstones."""

    contents: int
    live: int


NOTHING = Sums(0, 0)
READINGS_MAX = 16
"""Of one store at a time; two are wanted."""
HASHED_MAX = 8 << 20
"""Of the values of one piece of a sum; the one with which it is more is its last."""
HASHED_OF_WORK = 16 << 10
"""So many bytes of a value are as much work to hash as one thing that is decided."""

_pack = struct.Struct(">QQ").pack  # epoch, counter


class Entry(Protocol):
    """What a key has: the update that it is of, and a value, or None where it was deleted."""

    @property
    def epoch(self) -> int:
        """The epoch that issued it."""
        ...

    @property
    def counter(self) -> int:
        """The counter of its update."""
        ...

    @property
    def value(self) -> bytes | None:
        """None: a tombstone."""
        ...


def row_digest(key: bytes, entry: Entry | None) -> int:
    """What one key contributes; nothing if it is not there, or deleted."""
    if entry is None or (value := entry.value) is None:
        return 0
    return xxh3_64_intdigest(value, xxh3_64_intdigest(_pack(entry.epoch, entry.counter) + key))


def rows_digest(rows: Iterable[tuple[bytes, Entry]]) -> int:
    """What many keys contribute, not reduced modulo 2^64: one by one it takes half as long again."""
    digest, pack = xxh3_64_intdigest, _pack
    return sum(
        [
            digest(value, digest(pack(entry.epoch, entry.counter) + key))
            for key, entry in rows
            if (value := entry.value) is not None
        ]
    )


def packed_row_digest(key: bytes, version: bytes, value: bytes) -> int:
    """The same of a live row, whose epoch and counter are packed already, big-endian, as a store keeps them."""
    return xxh3_64_intdigest(value, xxh3_64_intdigest(version + key))


class Held(Protocol):
    """What the store below has of some keys."""

    def fit(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """Of how many of these, from the first one on, it is to be asked at once, and how much work that is beside."""
        ...

    def __call__(self, keys: Sequence[bytes]) -> int:
        """The sum of what each of these contributes, not reduced."""
        ...


class Newest:
    """The newest entries above a store, as they were: so many are looked at at a time, however many there are.

    `over`: what is changed since, so it is a copy; `under`: what was frozen, and is not.
    """

    def __init__(self, over: Mapping[bytes, Entry], under: Mapping[bytes, Entry]) -> None:
        self.left = len(over) + len(under)
        self._over = over
        self._of_over = len(over)  # that are left
        self._rows = chain(over.items(), under.items())

    def take(self, most: int) -> list[tuple[bytes, Entry]]:
        """The next ones of them, fewer than so many where some of what was frozen is not the newest."""
        some = list(islice(self._rows, most))
        self.left -= len(some)
        own, self._of_over = self._of_over, max(0, self._of_over - len(some))
        return some if own >= len(some) else some[:own] + [row for row in some[own:] if row[0] not in self._over]


def _hashed_at_once(rows: Sequence[tuple[bytes, Entry]]) -> tuple[Sequence[tuple[bytes, Entry]], int]:
    """So many of these, the first one in any case, as have `HASHED_MAX` bytes; and how much work their bytes are."""
    sizes = [len(entry.value or b"") for _, entry in rows]
    if (size := sum(sizes)) > HASHED_MAX:
        rows = rows[: 1 + bisect_right(list(accumulate(sizes)), HASHED_MAX)]
        size = sum(sizes[: len(rows)])
    return rows, size // HASHED_OF_WORK


class Walk:
    """Sums up what one fragment held when the walk began, so many rows at a time, while it goes on changing.

    `stored` is the digest of the store below (None: nothing of that is left), `changes` the newest entries of the keys
    that differ from it, and `held` what some keys contribute to it (None: it has nothing at all). `thawed`: how many
    checkpoints there were when it was asked for (None: it rests on none).
    """

    def __init__(self, stored: int | None, changes: Newest, held: Held | None, thawed: int | None = None) -> None:
        self.thawed = thawed
        self._sum = stored or 0
        self._changes = changes
        self._held = held
        self._taken: list[tuple[bytes, Entry]] = []  # of the changes, and not summed up

    def step(self, work: int) -> int:
        """Look at up to so many rows, or fewer large ones; how much work it was."""
        looked = 0
        if not self._taken:
            before = self._changes.left
            self._taken = self._changes.take(work)
            looked = before - self._changes.left - len(self._taken)
        changes, beside = _hashed_at_once(self._taken[:work])
        if self._held is not None:
            keys = [key for key, _ in changes]
            fit, below = self._held.fit(keys)
            changes, beside = changes[:fit], beside + below
            found = self._sum - self._held(keys[:fit])
        else:
            found = self._sum
        self._sum = (found + rows_digest(changes)) & MASK
        del self._taken[: len(changes)]
        return looked + len(changes) + beside

    @property
    def done(self) -> bool:
        """Whether all rows were looked at."""
        return not (self._taken or self._changes.left)

    @property
    def digest(self) -> int:
        """The digest, once it is done."""
        assert self.done, f"{len(self._taken) + self._changes.left} rows were not looked at"
        return self._sum


class Summed(NamedTuple):
    """Some rows that a store holds: what they add up to, how many it were, and where to go on (None: none is left).

    `damage`: what was found in place of one of them. `work`: what it was beside the rows, where they are large.
    """

    digest: int
    rows: int
    next: bytes | None
    damage: str = ""
    work: int = 0


class Reading:
    """Reads what a store holds of one fragment, so many rows at a time, and holds it against the digest that it keeps.

    `kept` says what that is (None: it is not known, or means nothing any more), and `some` reads. `overtaken`: a checkpoint
    has changed the fragment meanwhile. The digest does not tell that: if what was put is deleted, it is what it was before.
    """

    def __init__(self, kept: Callable[[], int | None], some: Callable[[bytes, int], Summed]) -> None:
        self.overtaken = False
        self._kept = kept
        self._some = some
        self._expected = kept()
        self._sum = 0
        self._rows = 0
        self._at: bytes | None = b""
        self._damage = ""

    def step(self, work: int) -> int:
        """Look at up to so many rows, or fewer large ones; how much work it was."""
        assert self._at is not None, "all rows were looked at"
        read = self._some(self._at, work)
        self._at = read.next
        self._sum += read.digest
        self._rows += read.rows
        if read.damage:
            self._damage, self._at = read.damage, None
        return read.rows + read.work

    @property
    def done(self) -> bool:
        """Whether nothing is left to be read."""
        return self._at is None

    @property
    def found(self) -> str:
        """What is wrong, where they do not prove it."""
        if self._damage:
            return self._damage
        return f"its {self._rows} rows add up to {self._sum & MASK:016x}, and {self._expected or 0:016x} was kept of them"

    @property
    def proves(self) -> bool | None:
        """Whether the rows are those of which the digest was made; None: a checkpoint came between, or nobody knows."""
        assert self.done, "some rows were not looked at"
        if self.overtaken or self._kept() != self._expected:
            return None
        if self._damage:
            return False
        if self._expected is None:
            return None if self._rows else True
        return self._sum & MASK == self._expected


class Readings:
    """Those of one store that are under way."""

    def __init__(self) -> None:
        self._all: deque[tuple[Fragment, Reading]] = deque()

    def begin(self, name: Fragment, kept: Callable[[], int | None], some: Callable[[bytes, int], Summed]) -> Reading:
        """One more. Of very many the oldest was given up, most likely, or is to begin again."""
        reading = Reading(kept, some)
        self._all.append((name, reading))
        if len(self._all) > READINGS_MAX:
            self._all.popleft()[1].overtaken = True
        return reading

    def overtake(self, changes: Callable[[Fragment], bool]) -> None:
        """A checkpoint `changes` some fragments in the store."""
        for name, reading in self._all:
            reading.overtaken |= changes(name)
        self._all = deque(each for each in self._all if not (each[1].overtaken or each[1].done))
