"""The names in a segment's blocks, gathered for its register (`wal.register`) beside whoever writes them.

A block is gone through once more, some `STEP_BYTES` of them at a time, in the background: that and the register take about
a microsecond for each update. Who appends does nothing for it.
"""

from __future__ import annotations

from array import array
from binascii import crc32
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import msgspec

from wal import records as r
from wal.checksum import crc32c
from wal.codec import HEADER_BYTES, FormatError, SegmentHeader, big_endian, decode_body_as, opening
from wal.disk import DiskError
from wal.ids import DECISIONS, whole_of
from wal.register import HASH_BITS, PAGE_BITS, End, Written, key_name, mention_name, width_for, worth_it
from wal.scan import RawBlock, Readable, Scan

STEP_BYTES = 1 << 20
"""Who wants the next segment waits for no more than it takes to go through so much, or one block."""


class _Keys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A write, as far as it is opened here."""

    namespace: str
    partition: int
    epoch: int
    start: int
    keys: list[bytes]


class _Update(msgspec.Struct, frozen=True, array_like=True, tag="update", gc=False):
    writes: list[_Keys]


class _History(msgspec.Struct, frozen=True, array_like=True, tag="history", gc=False):
    writes: list[_Keys]


class _Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare", gc=False):
    tx: bytes
    partition: int
    epoch: int
    writes: list[_Keys]


class _Outcome(msgspec.Struct, frozen=True, array_like=True, tag="outcome", gc=False):
    tx: bytes


class _Preload(msgspec.Struct, frozen=True, array_like=True, tag="preload", gc=False):
    namespace: str
    partition: int
    epochs: msgspec.Raw
    counters: msgspec.Raw
    keys: list[bytes]


_WRITING = frozenset((_Update, _History, _Prepare))
_MENTIONING = (r.EpochStart, r.Undo, r.FragmentClear, r.FragmentReady, r.Origin, r.Committed)
"""Records that concern a key which they do not name, or say where its transactions come from."""
_OPENED = (_Update, _History, _Prepare, _Outcome, _Preload, *_MENTIONING)
_body = opening(_OPENED)


class Reach(NamedTuple):
    """Up to where blocks were gone through: how many, what they name, where they end, and the last crc."""

    blocks: int
    names: int
    mentions: int
    end: int
    crc: int


class RegisterBuilder:
    """Goes through all blocks of a segment, in their order. For one thread at a time."""

    def __init__(self, header: SegmentHeader) -> None:
        self.reach = self.begin = Reach(0, 0, 0, HEADER_BYTES, header.crc)
        self._header = header
        self._lsn = header.first_lsn
        self._starts = array("I")
        self._names = array("I")  # of one block after the other
        self._counts = array("I")  # how many each has
        self._seeds: dict[str, int] = {}
        self._stuck = False

    def behind(self, end: int) -> bool:
        """There is enough up to an offset to go on with it."""
        return end - self.reach.end >= STEP_BYTES and not self._stuck

    def go_on(self, file: Readable, end: int, *, step: bool = False) -> bool:
        """Go through the blocks up to an offset, or a `step` of them; False where one cannot be read, or is a newer
        version's: that is the end of it."""
        reach = self.reach
        try:
            for raw in Scan(file, self._header, limit=end, place=(reach.end, self._lsn, reach.crc)):
                self.add(raw)
                if step and self.reach.end - reach.end >= STEP_BYTES:
                    return True
        except (FormatError, DiskError):
            pass
        self._stuck = self._stuck or self.reach.end != end
        return not self._stuck

    def add(self, raw: RawBlock) -> None:
        """The next block. Raises NewerFormat."""
        keys, mentions = self._named(raw) if raw.header.records else (set[int](), set[int]())
        self._names.extend(keys)
        self._names.extend(mentions)
        self._counts.append(len(keys) + len(mentions))
        self._starts.append(raw.offset)
        self._lsn = raw.header.last_lsn + 1
        self.reach = Reach(
            len(self._starts),
            len(self._names),
            self.reach.mentions + len(mentions),
            end=raw.offset + len(raw.data),
            crc=raw.header.crc,
        )

    def _named(self, raw: RawBlock) -> tuple[set[int], set[int]]:
        """What a block names: the innermost loop. Nearly all blocks have writes only, of one namespace."""
        writes: list[_Keys] = []
        keys, mentions = set[int](), set[int]()
        for record in decode_body_as(_body, raw.header, raw.data):
            kind = type(record)
            if kind in _WRITING:
                writes += record.writes
            elif kind is _Outcome:
                keys.add(key_name(DECISIONS, whole_of(record.tx)))
            elif kind is _Preload:
                keys.update(self._hashed(record.namespace, [record.keys]))
            elif kind in _MENTIONING:
                mentions.update(map(mention_name, r.mentions(record)))
        namespaces = dict.fromkeys([write.namespace for write in writes])
        for namespace in namespaces:
            mine = writes if len(namespaces) == 1 else [write for write in writes if write.namespace == namespace]
            keys.update(self._hashed(namespace, [write.keys for write in mine]))
        return keys, mentions

    def _hashed(self, namespace: str, keys: list[list[bytes]]) -> Iterator[int]:
        """As `key_name` has them."""
        seed = self._seeds.get(namespace)
        if seed is None:
            seed = self._seeds[namespace] = key_name(namespace, b"")
        return map(crc32, chain.from_iterable(keys), repeat(seed))

    def written(self, since: Reach | None = None) -> Written | None:
        """The register of the blocks that were gone through since then; None where it would take too much."""
        begin, reach = since or self.begin, self.reach
        names, starts = self._names[begin.names :], self._starts[begin.blocks :]
        if not starts or not worth_it(len(names), len(starts), reach.end - begin.end):
            return None
        end = End(
            0,
            len(starts),
            reach.mentions - begin.mentions,
            first=begin.end,
            previous_crc=begin.crc,
            last=starts[-1],
            starts=0,
            starts_crc=crc32c(big_endian(starts)),
            pages=max(0, len(names).bit_length() - PAGE_BITS),
            width=width_for(len(starts)),
        )
        return Written(end, _paged(names, self._counts[begin.blocks :], end))


def _paged(names: array[int], counts: Iterable[int], end: End) -> list[array[int]]:
    """The entries of each page. `counts` says how many of the names each block has."""
    bits, rest = end.ordinal_bits, end.rest_bits
    pages = [array("I") for _ in range(1 << end.pages)]
    of_page, drop, mask, at = HASH_BITS - end.pages, HASH_BITS - end.pages - rest, (1 << rest) - 1, 0
    for ordinal, count in enumerate(counts):
        for name in names[at : at + count]:
            pages[name >> of_page].append((name >> drop & mask) << bits | ordinal)
        at += count
    return pages
