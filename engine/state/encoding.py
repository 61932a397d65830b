"""A state of a checkpoint as MessagePack, in pieces that a turn has room for.

What is prepared in one partition may be 256 MiB, what lies beyond a gap of one fragment very many updates, and a write of
either may have as many values as there may be, each of which is left to its row, if that has it. Each piece says how much
work it was. Joined they are what MessagePack makes of the whole image: the format knows of no pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, ItemsView, Iterable, Iterator, KeysView
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from engine.state.node_image import NodeImage
from rebalance.image import LARGE_BYTES, Pairs, Row, TakenFragment, TakenPartition
from wal import records as r

PIECE_BYTES = 256 << 10
"""So many bytes are a piece, and so much work is one; more only where a few keys or values have."""
PIECE_WORK = 64
FEWEST = 16
"""MessagePack says in one byte that a list has fewer than so many."""
FEW = 64
"""A state with fewer entries, of which none may be large, is encoded at once."""
OF_WORK = 16
"""So many entries are as much work as a state is, and so many bytes:"""
BYTES_OF_WORK = 16 << 10
AT_ONCE = 128
"""What is small and of which there are many, such as keys, or those with a number each which say what answers were given,
is encoded so many together: by itself it takes ten times as long to do anything with one as to encode it."""
LOOKED_OF_WORK = 128
"""To find that so many values are small is as much work as a state is."""
PARTS_OF_ENTRY = 8
"""An entry of many keys, values or locks counts as one for so many of these."""
MANY_PARTS = OF_WORK * PIECE_WORK
"""One that has more of them is encoded in pieces itself."""


class Piece(NamedTuple):
    """Some of a state, and how much work it was, which is all while rows are looked at. `kept`: entries."""

    data: bytes
    work: int
    kept: int = 0


def pieces_of_fragment(taken: TakenFragment, row: Row) -> Iterator[Piece]:
    """A fragment; of a large value `row` says whether the rows of the same checkpoint have it, where it stays then."""
    named = len(taken.suspects) + len(taken.tombstones)
    if not taken.tail and named < FEW:
        yield _at_once((*taken, []))
        return
    if named + _keys_of_small(taken.tail) < FEW:
        kept = named + sum([1 + 2 * len(write.keys) // PARTS_OF_ENTRY for write in taken.tail])
        yield _at_once((*taken, []), 1 + sum([bool(write.keys) for write in taken.tail]), kept)
        return
    out, held = _Pieces(), list[tuple[int, int]]()
    out.begin(len(taken) + 1)
    for value in taken:
        if value is not taken.tail:
            yield from out.put(value)
            continue
        out.begin(len(taken.tail))
        for at, write in enumerate(taken.tail):
            left = yield from _without_what_rows_have(write, row)
            held += [(at, position) for position in left]
            yield from out.add(_without(write, left) if left else write)
    yield from out.put(held)
    yield out.piece()


def pieces_of_partition(taken: TakenPartition) -> Iterator[Piece]:
    """A partition, with what is prepared in it, values and all, and the answers that were given."""
    if taken.prepared or len(taken.results) + len(taken.answers) >= FEW:
        yield from _one_by_one(taken)
    elif not taken.answers:
        yield _at_once(taken)
    elif max(map(len, taken.answers.values)) <= LARGE_BYTES:
        yield _at_once(taken, kept=len(taken.results) + len(taken.answers))
    else:
        yield from _one_by_one(taken)


def pieces_of_node(image: NodeImage) -> Iterator[Piece]:
    """The node's own part, with what is in its log and does not count yet."""
    yield from _one_by_one([getattr(image, name) for name in image.__struct_fields__])


def _at_once(fields: Collection[Any], work: int = 1, kept: int = 0) -> Piece:
    """Few and small ones."""
    data = _encode([[*value] if isinstance(value, Pairs | KeysView | ItemsView) else value for value in fields])
    return Piece(data, work + kept // OF_WORK + len(data) // BYTES_OF_WORK, kept)


def _keys_of_small(tail: list[r.Write]) -> int:
    """How many keys the writes of a tail have, if there are few, and all is small; else as many as are not few."""
    keys = 0
    for write in tail:
        keys += len(write.keys) or 1
        if keys >= FEW:
            return FEW
        for value in write.values:
            if value is not None and len(value) > LARGE_BYTES:
                return FEW
    return keys


def _one_by_one(fields: Collection[Any]) -> Iterator[Piece]:
    out = _Pieces()
    out.begin(len(fields))
    for value in fields:
        yield from out.put(value)
    yield out.piece()


def _without_what_rows_have(write: r.Write, row: Row) -> Generator[Piece, None, list[int]]:
    """Which of the values of a write are large, and are what the rows of their keys have; that is looked at in pieces."""
    left, work = list[int](), 0
    for position, (key, value) in enumerate(zip(write.keys, write.values, strict=True)):
        if value is not None and len(value) > LARGE_BYTES:
            found = row(key)
            if found is not None and found[:2] == (write.epoch, write.start + position + 1):
                left.append(position)
            work += 1 + len(value) // BYTES_OF_WORK
        elif position % LOOKED_OF_WORK:
            continue
        else:
            work += 1
        if work >= PIECE_WORK:
            yield Piece(b"", work)
            work = 0
    yield Piece(b"", work)
    return left


def _without(write: r.Write, left: list[int]) -> r.Write:
    values = list(write.values)
    for position in left:
        values[position] = b""
    return msgspec.structs.replace(write, values=values)


class _Pieces:
    """What is encoded, entry by entry, and given away when it is enough."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._kept = 0
        self._more = 1  # work: a state is one

    def begin(self, count: int) -> None:
        """A list of so many follows."""
        if count < FEWEST:
            self._data.append(0x90 | count)
        elif count < 1 << 16:
            self._data += b"\xdc" + count.to_bytes(2, "big")
        else:
            self._data += b"\xdd" + count.to_bytes(4, "big")

    def put(self, value: object) -> Iterator[Piece]:
        """A field; of what there may be many one after the other."""
        if not isinstance(value, list | Pairs | KeysView | ItemsView):
            _encode_into(value, self._data, -1)
            return
        self.begin(len(value))
        if isinstance(value, ItemsView) or (isinstance(value, Pairs) and isinstance(next(iter(value.values), None), int)):
            yield from self._numbers(value)
            return
        for entry in value:
            yield from self.add(entry)

    def _numbers(self, pairs: Iterable[tuple[bytes, int]]) -> Iterator[Piece]:
        """The entries of a list that has begun: a key and a number each."""
        left = iter(pairs)
        while some := list(islice(left, AT_ONCE)):
            self._some(some)
            self._kept += len(some)
            if self._full:
                yield self.piece()

    def add(self, entry: object) -> Iterator[Piece]:
        """An entry of a list that has begun."""
        parts = _parts_of(entry)
        self._kept += 1
        if parts > MANY_PARTS:
            yield from self._in_parts(entry)
            return
        _encode_into(entry, self._data, -1)
        self._kept += parts // PARTS_OF_ENTRY
        if self._full:
            yield self.piece()

    def _in_parts(self, value: object) -> Iterator[Piece]:
        """What has many of something, somewhere in it."""
        if isinstance(value, msgspec.Struct):
            tag = value.__struct_config__.tag
            fields = [getattr(value, name) for name in value.__struct_fields__]
            value = fields if tag is None else [tag, *fields]
        if not isinstance(value, list):
            _encode_into(value, self._data, -1)
            return
        self.begin(len(value))
        if any(isinstance(part, list | msgspec.Struct) for part in value[:FEWEST]):
            for part in value:
                yield from self._in_parts(part)
            return
        for at in range(0, len(value), AT_ONCE):
            some = value[at : at + AT_ONCE]
            self._some(some)
            self._kept += len(some) // PARTS_OF_ENTRY
            if self._full:
                yield self.piece()

    def _some(self, entries: list[Any]) -> None:
        """Some entries of a list that has begun, small ones."""
        self._data += memoryview(_encode(entries))[1 if len(entries) < FEWEST else 3 :]

    @property
    def _full(self) -> bool:
        return len(self._data) >= PIECE_BYTES or self._kept >= OF_WORK * PIECE_WORK

    def piece(self) -> Piece:
        """What there is, not given away yet."""
        data, kept, more = bytes(self._data), self._kept, self._more
        self._data.clear()
        self._kept = self._more = 0
        return Piece(data, more + kept // OF_WORK + len(data) // BYTES_OF_WORK, kept)


def _parts_of(entry: object) -> int:
    match entry:
        case r.Write():
            return 2 * len(entry.keys)
        case r.Prepare(writes=writes, locks=locks):
            return 2 * (sum([len(write.keys) for write in writes]) + len(locks))
        case r.Update(writes) | r.History(writes):
            return 2 * sum([len(write.keys) for write in writes])
        case _:
            return 0


_encode = msgspec.msgpack.Encoder().encode
_encode_into = msgspec.msgpack.Encoder().encode_into
