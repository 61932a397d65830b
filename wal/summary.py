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
from binascii import crc32
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec

from wal.growing import GrowingIndex
from wal.ids import DECISIONS, Fragment, TxId, whole_of
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

MASK, SHIFT = SLOTS - 1, 14
YES = ord("1")
"""A transaction with the checksum `at` has the slots `at & MASK` and `at >> SHIFT & MASK`."""
_split: Callable[[bytes | memoryview], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


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
    return all(bits[slot >> 3] >> (7 - (slot & 7)) & 1 for slot in (at & MASK, at >> SHIFT & MASK))


class Summary:
    """Of the segment that is being written. `bytes_max` is never less than what it takes in a footer.

    `tally` has no `writes`: they are `counted`, one after the other, for who asks. `about`: the blocks, by ordinals, with
    what concerns all of a partition or fragment, or ends a transaction in it. `keys` is how many keys there are, but for
    those of records of one key that somebody else counts.
    """

    __slots__ = ("_index", "about", "bytes_max", "filters", "keys", "tally")

    def __init__(self, index: GrowingIndex) -> None:
        self._index = index  # which counts what is in each fragment
        self.tally = Tally()
        self.filters = Filters()
        self.about: dict[int, array[int]] = {}
        self.keys = 0
        self.bytes_max = 1024  # all kinds of records, with their figures

    def begin(self, ordinal: int) -> bytearray:
        """The slots of the group that this block belongs to."""
        filters = self.filters
        if filters.names >= GROUP_NAMES:
            filters.begin(ordinal)
            self.bytes_max += FILTER_BYTES + 12
        return filters.open

    def add(self, ordinal: int, records: Sequence[Record], body: bytes | memoryview) -> None:
        """A block with these records, of any kind. O(records, and what they name)."""
        self.begin(ordinal)
        kind = self.tally.kind
        for record, encoded in zip(records, _split(body), strict=True):
            kind(_KINDS[type(record)], 1, len(encoded))
        self._go_through(ordinal, records)

    def counted(self) -> Iterator[tuple[Fragment, list[int]]]:
        """What the tally has of each of so many `fragments`. O(fragments)."""
        return self._index.tallied()

    @property
    def fragments(self) -> int:
        """Of how many fragments something was counted."""
        return self._index.counted

    def add_kind(self, kind: type[Record], records: int, size: int) -> None:
        """So many records of a kind are in blocks that have nothing else, and were gone through."""
        self.tally.kind(_KINDS[kind], records, size)

    def name(self, names: Collection[TxId]) -> None:
        """Note the transactions that a block names, also by pieces of them."""
        slots = self.filters.open
        self.filters.names += len(names)
        for at in map(crc32, map(whole_of, names)):
            slots[at & MASK] = slots[at >> SHIFT & MASK] = YES

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
            if kind is Preload:
                self.keys += len(record.keys)  # type: ignore[union-attr]
            if kind in _CONCERNING:
                about[record.partition] = None  # type: ignore[union-attr]
        names += _named_by(writes)
        self.name(dict.fromkeys(names))  # a prepare, its writes and the decision are of one
        for partition in about:
            blocks = self.about.get(partition)
            if blocks is None:
                blocks = self.about[partition] = array("I")
                self.bytes_max += 16
            blocks.append(ordinal)
        self.bytes_max += 4 * len(about)
        for write in writes:
            self.count(write)

    def count(self, write: Write) -> None:
        """One write is in it; its block was added to the index."""
        self.keys += len(write.keys)
        if self._index.count(write):
            self.bytes_max += 64 + len(write.namespace.encode())


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
