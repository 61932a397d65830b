"""What a sealed segment's footer says, for who reads: which blocks may concern what, and how much there is of it all.

```
summary, MessagePack, behind the index of the fragments
  tally      `wal.tally.Tally`
  firsts     u32 each: the ordinal of the block that a group begins with
  filters    `FILTER_BYTES` for each group
  about      partition -> ordinals of blocks, u32 each
```

It is believed as far as checksums go: `foreshore wal verify --logic` holds it against the blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias, TypeVar

import msgspec

from wal.checksum import Checksum, crc32c
from wal.codec import (
    TRAILER_BYTES,
    UNDECODABLE,
    FormatError,
    NewerFormat,
    SegmentHeader,
    Trailer,
    big_endian,
    map_of,
    native,
)
from wal.ids import Fragment, TxId
from wal.index import SegmentIndex
from wal.index_codec import NIL, SUMMARY_AT, check_index, decode_index
from wal.parts import Few, places, speaking
from wal.records import KINDS
from wal.register import Registers, register_of
from wal.scan import Readable
from wal.summary import FILTER_BYTES, Summary, kind_of_type, may_name
from wal.tally import Tally

T = TypeVar("T")
Span: TypeAlias = tuple[int, int]
"""Neighbouring blocks, by offsets: from the first of one to the end of one."""

_NAMES = frozenset(map(kind_of_type, KINDS))


class _Summary(msgspec.Struct, frozen=True, array_like=True):
    tally: msgspec.Raw
    firsts: bytes
    filters: bytes
    about: msgspec.Raw


_told = msgspec.msgpack.Decoder(list[msgspec.Raw])
_summary = msgspec.msgpack.Decoder(_Summary)


def encode_summary(summary: Summary) -> list[object]:
    """A summary as it stands in a footer."""
    filters = summary.filters
    about = {partition: big_endian(blocks) for partition, blocks in summary.about.items()}
    *tally, _ = msgspec.structs.astuple(summary.tally)
    tally.append(map_of(summary.counted(), summary.fragments))
    return [tally, big_endian(filters.firsts), b"".join(filters.all_bits()), about]


class Told(ABC):
    """What is known of the blocks of one segment, or of its first ones, up to the end that `trailer` says.

    What is asked for is None where nothing tells. Raises FormatError where it cannot be read.
    """

    def __init__(self, header: SegmentHeader, trailer: Trailer) -> None:
        self.header = header
        self.trailer = trailer

    @abstractmethod
    def index(self, only: Collection[Fragment] | None = None, *, parts: bool = False) -> SegmentIndex:
        """The index, or what of it is about `only` these; then with `parts` of blocks only if they are asked for."""

    def tally(self) -> Tally | None:
        """What there is in all of it."""
        return None

    def close(self) -> None:  # noqa: B027  # most have nothing to give back
        """Nobody asks any more for what was not asked for yet."""

    @abstractmethod
    def register(self) -> Registers | None:
        """Which blocks name what, told by itself. Who asks for it asks for nothing else, unless it cannot be read."""

    @abstractmethod
    def _filters(self) -> tuple[bytes, bytes] | None:
        """The first block of each group, and the filters of all of them."""

    @abstractmethod
    def _concerning(self, partitions: Iterable[int]) -> list[int] | None:
        """The ordinals of the blocks with what concerns all of these partitions."""

    def speaking_of(self, fragments: Collection[Fragment] | Mapping[Fragment, Sequence[int]]) -> list[Span] | None:
        """The blocks that speak of these fragments in any way, or came to counters of theirs first."""
        index = self.index(fragments)
        ordinals = index.speaking_of(fragments)
        return None if ordinals is None else self._spans(index, ordinals)

    def telling(self, fragment: Fragment, beside: Collection[Fragment]) -> tuple[list[Span | Few], list[Span]] | None:
        """The blocks that speak of this fragment, or of those `beside` it, or what parts of them; and which of these blocks
        may concern a key of it that they do not name."""
        index = self.index([fragment, *beside], parts=True)
        mine, others, concerning = (
            index.speaking_of([fragment]),
            index.speaking_of(beside),
            self._concerning([fragment[1]]),
        )
        if mine is None or others is None or concerning is None:
            return None
        among = set(mine)
        silent = {*others, *(ordinal for ordinal in concerning if ordinal in among)}
        few = speaking(index, fragment)
        found: list[Span | Few] = [*self._spans(index, sorted(silent.union(mine).difference(few)))]
        found += [self._few(index, ordinal, numbers) for ordinal, numbers in few.items() if ordinal not in silent]
        found += self._spans(index, sorted(silent.intersection(few)))
        return sorted(found, key=itemgetter(0)), self._spans(index, sorted(silent))

    def naming(self, txs: Iterable[TxId], beside: Collection[Fragment] = ()) -> tuple[list[Span], list[Span]] | None:
        """The blocks that may name one of these transactions, or speak of fragments `beside`; and which do the latter."""
        told, index = self._filters(), self.index(beside)
        if told is None:
            return None
        silent = index.speaking_of(beside) or []
        ordinals = set(silent)
        for tx in txs:
            for group in _groups(*told, tx, self.trailer.blocks):
                ordinals.update(group)
        return self._spans(index, sorted(ordinals)), self._spans(index, silent)

    def about(self, partitions: Iterable[int]) -> list[Span] | None:
        """The blocks in which a transaction ends in one of these partitions, or what concerns all of it happens."""
        ordinals = self._concerning(partitions)
        if not ordinals:
            return None if ordinals is None else []
        return self._spans(self.index(()), ordinals)

    def _few(self, index: SegmentIndex, ordinal: int, numbers: Iterable[int]) -> Few:
        assert index.parts is not None, "who has numbers of parts has parts"
        ((start, end),) = self._spans(index, [ordinal])
        parts, first, after = index.parts, index.parts.firsts[ordinal], index.parts.firsts[ordinal + 1]
        records, wanted = sum(parts.records[first:after]), places(parts, ordinal, numbers)
        return Few(start, end, records, parts, first=first, places=wanted)

    def _spans(self, index: SegmentIndex, wanted: Iterable[int]) -> list[Span]:
        starts, spans = index.starts, list[Span]()
        for ordinal in wanted:
            if ordinal >= len(starts):
                raise FormatError(f"the summary speaks of block {ordinal}: the segment has {len(starts)}")
            start = starts[ordinal]
            end = starts[ordinal + 1] if ordinal + 1 < len(starts) else self.trailer.end
            if spans and spans[-1][1] == start:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        return spans


class Footer(Told):
    """The footer of one sealed segment."""

    def __init__(self, file: Readable, header: SegmentHeader, trailer: Trailer, checksum: Checksum = crc32c) -> None:
        super().__init__(header, trailer)
        self._file = file
        self._checksum = checksum
        self._checked: bytes | None = None
        self._known: tuple[_Summary | None] | None = None

    def index(self, only: Collection[Fragment] | None = None, *, parts: bool = False) -> SegmentIndex:
        """The index, or what of it is about `only` these; then with `parts` of blocks only if they are asked for."""
        return decode_index(self._data(), self.trailer, None, only, parts=parts)

    def tally(self) -> Tally | None:
        """What there is in all of it."""
        told = self._summary()
        tally = _decoded(msgspec.msgpack.Decoder(Tally), told.tally) if told is not None else None
        return tally if tally is not None and tally.kinds.keys() <= _NAMES else None

    def register(self) -> Registers | None:
        """Which blocks name what, told by itself."""
        return register_of(self._file.read, self.header, self.trailer, self._checksum)

    def _filters(self) -> tuple[bytes, bytes] | None:
        told = self._summary()
        return (told.firsts, told.filters) if told is not None else None

    def _concerning(self, partitions: Iterable[int]) -> list[int] | None:
        told = self._summary()
        if told is None:
            return None
        about = _decoded(msgspec.msgpack.Decoder(dict[int, bytes]), told.about)
        return sorted({ordinal for at in partitions for ordinal in numbers(about.get(at, b""))})

    def _summary(self) -> _Summary | None:
        if self._known is None:
            told = _decoded(_told, self._data())
            said = len(told) > SUMMARY_AT and bytes(told[SUMMARY_AT]) != NIL
            self._known = (_decoded(_summary, told[SUMMARY_AT]) if said else None,)
        return self._known[0]

    def _data(self) -> bytes:
        """All of it, as long as the file is open, and from then on."""
        if self._checked is None:
            size = self.trailer.index_bytes
            data = self._file.read(self.header.capacity - TRAILER_BYTES - size, size)
            check_index(data, self.trailer, self._checksum)
            self._checked = data
        return self._checked


Ask: TypeAlias = Callable[[Told], Iterable[Span | Few] | None]
"""Which blocks of a segment are to be read, or parts of them, of those that are told of; None: all of them. They are asked
for one by one: who has taken one may know by then which other one is needed."""


def among(spans: Sequence[Span], offset: int) -> bool:
    """Whether the block at this offset is one of these."""
    at = bisect_right(spans, offset, key=itemgetter(0)) - 1
    return at >= 0 and offset < spans[at][1]


def naming(txs: Collection[TxId]) -> Ask:
    """The blocks that may name one of these."""

    def ask(told: Told) -> list[Span] | None:
        found = told.naming(txs)
        return found[0] if found is not None else None

    return ask


def speaking_of(fragments: Collection[Fragment] | Mapping[Fragment, Sequence[int]]) -> Ask:
    """The blocks that speak of these, or came to counters of theirs first."""
    return lambda footer: footer.speaking_of(fragments)


def _groups(begin: bytes, filters: bytes, tx: TxId, blocks: int) -> list[range]:
    """The blocks of the groups that may name a transaction."""
    firsts = numbers(begin)
    if len(filters) != FILTER_BYTES * len(firsts) or firsts != sorted(firsts) or firsts[-1:] >= [blocks]:
        raise FormatError(f"the summary has {len(filters)} bytes of filters for {len(firsts)} groups of blocks")
    ends = [*firsts[1:], blocks]
    return [
        range(first, min(end, blocks))
        for at, (first, end) in enumerate(zip(firsts, ends, strict=True))
        if may_name(filters[at * FILTER_BYTES : (at + 1) * FILTER_BYTES], tx)
    ]


def numbers(data: bytes) -> list[int]:
    """Numbers of 32 bits, as they stand in a file."""
    try:
        return native("I", data).tolist()
    except UNDECODABLE as error:
        raise _undecodable(error) from error


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise _undecodable(error) from error


def _undecodable(error: Exception) -> NewerFormat:
    return NewerFormat(f"the checksum is right and the summary in the footer cannot be decoded: {error}")
