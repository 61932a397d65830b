"""What a segment says of itself as a whole, so that questions about all of it need none of its blocks, or few.

It is made block by block beside the index, and stands in the footer: how much there is of what (`wal.tally`), which blocks
may name a transaction, and which concern all of a partition. The second are filters, each of a *group* of neighbouring
blocks that name `GROUP_NAMES` transactions between them: two of `SLOTS` bits for each, so that of the groups that do not
have one a twentieth may seem to. They take a byte for each name.

A segment of less than `SUMMARY_FROM_BYTES` has none: it is read in the time that its footer takes. Neither has one of an
older version: who asks reads the blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, get_args
from zlib import crc32

import msgspec

from wal.ids import DECISIONS, TxId
from wal.index import Touched, touched_by
from wal.records import (
    EpochStart,
    Forget,
    FragmentClear,
    FragmentReady,
    History,
    Origin,
    Outcome,
    Preload,
    Prepare,
    Record,
    Results,
    Undo,
    Update,
    Write,
)
from wal.tally import Tally

SUMMARY_FROM_BYTES = 256 << 10
GROUP_NAMES = 2048
SLOTS = 1 << 14
FILTER_BYTES = SLOTS // 8
GATHERED_BYTES = 16 << 10

_MASK, _SHIFT = SLOTS - 1, 14
_NO, _YES = ord("0"), ord("1")
_GROWTH_MAX = 32 + 64 + 64 + 24
"""Of a fragment with the longest name, and what it may bring with it."""

_split: Callable[[bytes | memoryview], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class Noted(NamedTuple):
    """What index and summary want to know of a block."""

    touched: Touched
    records: Sequence[Record] = ()
    body: bytes | memoryview = b""


NOTHING = Noted({})

_Gathered: TypeAlias = tuple[int, int, int, int, Noted]
"""A block: its ordinal, first LSN, time and size, and what is noted of it."""


def note(records: Sequence[Record], body: bytes | memoryview) -> Noted:
    """The same, of the records that a block's body has."""
    return Noted(touched_by(records), records, body)


class Filters:
    """Transactions, by groups of blocks: `firsts` are the ordinals that groups begin with, `bits` their filters."""

    def __init__(self) -> None:
        self.firsts = array("I")
        self.bits: list[bytes] = []
        self.names = GROUP_NAMES  # in the group that is open: so the first block begins one
        self.open = bytearray()

    def begin(self, ordinal: int) -> None:
        """A group begins with this block."""
        if self.open:
            self.bits.append(packed(self.open))
        self.firsts.append(ordinal)
        self.open = bytearray(b"0") * SLOTS
        self.names = 0

    def all_bits(self) -> list[bytes]:
        """The filter of each group, the open one's too."""
        return [*self.bits, packed(self.open)] if self.open else self.bits


def packed(slots: bytearray) -> bytes:
    """Slots as bits, eight to a byte."""
    return int(slots, 2).to_bytes(FILTER_BYTES, "big")


def may_name(bits: bytes, name: TxId) -> bool:
    """Whether a filter may have this name."""
    at = crc32(name)
    return all(bits[slot >> 3] >> (7 - (slot & 7)) & 1 for slot in (at & _MASK, at >> _SHIFT & _MASK))


class Summary:
    """Of the segment that is being written.

    `about`: the blocks, by ordinals, with what concerns all of a partition or fragment, or ends a transaction in it.

    Blocks are gone through some `GATHERED_BYTES` at a time, since for a block of one or two records to begin takes as long
    as to do it. So whoever wants to know `tally`, `filters` or `about` calls `sum_up` first.
    """

    __slots__ = ("_bytes_max", "_gathered", "_gathered_bytes", "_growth", "about", "filters", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.filters = Filters()
        self.about: dict[int, array[int]] = {}
        self._bytes_max = 1024  # what all that was gone through takes at most: all kinds of records, with their figures
        self._gathered: list[_Gathered] = []
        self._gathered_bytes = 0
        self._growth = 0  # what they bring at most

    def bytes_max(self, noted: Noted) -> int:
        """What it takes in a footer at most, once a block like this is added."""
        return self._bytes_max + self._growth + (_growth(noted) if noted.records else 0)

    def add(self, ordinal: int, first_lsn: int, *, time_ms: int, size: int, noted: Noted) -> None:
        """The next block, which has records."""
        self._gathered.append((ordinal, first_lsn, time_ms, size, noted))
        self._growth += _growth(noted)
        self._gathered_bytes += size
        if self._gathered_bytes >= GATHERED_BYTES:
            self.sum_up()

    def sum_up(self) -> bool:
        """Go through the blocks that were gathered; False if there are none."""
        gathered, self._gathered, self._gathered_bytes, self._growth = self._gathered, [], 0, 0
        if not gathered:
            return False
        tally, filters, known = self.tally, self.filters, len(self.tally.writes)
        tally.join(_spanned(gathered))
        updates = bytes_of_updates = 0  # in blocks that have nothing else, as nearly all
        for ordinal, _, _, _, noted in gathered:
            records = noted.records
            if filters.names >= GROUP_NAMES:
                filters.begin(ordinal)
                self._bytes_max += FILTER_BYTES + 12
            if set(map(type, records)) == _UPDATES:
                updates += len(records)
                bytes_of_updates += len(noted.body) - _array_head(len(records))
                self._go_through_updates(records)  # type: ignore[arg-type]  # which they are
            else:
                self._count_kinds(records, noted.body)
                self._go_through(ordinal, records)
        if updates:
            tally.kind(_KINDS[Update], updates, bytes_of_updates)
        if len(tally.writes) != known:
            for name, _ in islice(reversed(tally.writes), len(tally.writes) - known):  # the new ones
                self._bytes_max += 64 + len(name.encode())
        return True

    def _count_kinds(self, records: Sequence[Record], body: bytes | memoryview) -> None:
        kind = self.tally.kind
        for record, encoded in zip(records, _split(body), strict=True):
            kind(_KINDS[type(record)], 1, len(encoded))

    def _go_through_updates(self, records: Sequence[Update]) -> None:
        """Note the writes of a block that has nothing else, and whose they are: the innermost loop of who writes a log.

        What `_name` and `Tally.write` do for nearly every write is written out, once for each.
        """
        known, slots = self.tally.writes, self.filters.open
        for record in records:
            for write in record.writes:
                namespace, keys, at = write.namespace, write.keys, crc32(write.tx)
                slots[at & _MASK] = slots[at >> _SHIFT & _MASK] = _YES
                row = known.get((namespace, write.partition))
                if (
                    row is None
                    or write.closed
                    or len(keys) != 1
                    or (value := write.values[0]) is None
                    or namespace == DECISIONS
                ):
                    self.tally.write(write)
                    if namespace == DECISIONS:
                        self._name(keys)
                else:
                    row[0] += 1
                    row[1] += 1
                    row[4] += len(keys[0]) + len(value)
            self.filters.names += len(record.writes)

    def _name(self, names: Collection[TxId]) -> None:
        """Note the transactions that a block names."""
        slots = self.filters.open
        self.filters.names += len(names)
        for at in map(crc32, names):
            slots[at & _MASK] = slots[at >> _SHIFT & _MASK] = _YES

    def _go_through(self, ordinal: int, records: Sequence[Record]) -> None:
        """Note what records of all kinds name and concern, and the writes in them."""
        writes: list[Write] = []
        names: list[TxId] = []
        about: dict[int, None] = {}
        for record in records:
            kind = type(record)
            if kind in _WRITING:
                writes += record.writes  # type: ignore[union-attr]
            if kind in _OF_ONE:
                names.append(record.tx)  # type: ignore[union-attr]
            elif (naming := _OF_MANY.get(kind)) is not None:
                names += naming(record)
            if kind in _CONCERNING:
                about[record.partition] = None  # type: ignore[union-attr]
        names += _named_by(writes)
        self._name(dict.fromkeys(names))  # a prepare, its writes and the decision are of one
        for partition in about:
            blocks = self.about.get(partition)
            if blocks is None:
                blocks = self.about[partition] = array("I")
                self._bytes_max += 16
            blocks.append(ordinal)
        self._bytes_max += 4 * len(about)
        count = self.tally.write
        for write in writes:
            count(write)


def _spanned(blocks: Sequence[_Gathered]) -> Tally:
    """So many blocks, from when to when, without what they hold."""
    _, lsns, times, sizes, noted = zip(*blocks, strict=True)
    records = [len(one.records) for one in noted]
    last_lsn = lsns[-1] + records[-1] - 1
    return Tally(
        blocks=len(blocks),
        records=sum(records),
        bytes=sum(sizes),
        first_lsn=lsns[0],
        last_lsn=last_lsn,
        since_ms=min(times),
        until_ms=max(times),
    )


def _array_head(length: int) -> int:
    """How many bytes stand before the elements of a MessagePack array."""
    return 1 if length < 16 else 3 if length < 1 << 16 else 5


def _growth(noted: Noted) -> int:
    """More than a block like this brings."""
    return FILTER_BYTES + 32 + _GROWTH_MAX * len(noted.touched) + 32 * len(noted.records)


def kind_of_type(kind: type[Record]) -> str:
    """The name of the records of this type."""
    return str(kind.__struct_config__.tag)


def _named_by(writes: Sequence[Write]) -> list[TxId]:
    """The transactions of writes, and those whose decisions they write."""
    decisions = [key for write in writes if write.namespace == DECISIONS for key in write.keys]
    return [write.tx for write in writes] + decisions


def _of_rows(record: Preload | Undo) -> Sequence[TxId]:
    return record.keys if record.namespace == DECISIONS else ()


_KINDS: dict[type[Record], str] = {kind: kind_of_type(kind) for kind in get_args(Record)}
_UPDATES = {Update}
_WRITING = frozenset((Update, Prepare, History))
_OF_ONE = frozenset((Prepare, Outcome, Origin))
_OF_MANY: dict[type[Record], Callable[[Any], Iterable[TxId]]] = {
    Results: lambda record: record.txs,
    EpochStart: lambda record: record.ended,
    Preload: _of_rows,
    Undo: _of_rows,
}
"""The transactions that a record names, but for its writes. Keys of decisions are such."""
_CONCERNING = frozenset((Outcome, EpochStart, Forget, FragmentClear, FragmentReady, Undo, Preload))
"""Records that may concern keys and transactions of a partition which they do not name."""
