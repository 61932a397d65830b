"""What a sealed segment's file ends with, as bytes: its index, what is said beside that, and the trailer once more.

A footer is one MessagePack array, of which the trailer has the checksum (`wal.codec`). Elements are only added at the end:
offsets of the blocks, fragments, mentions, all marks, the summary (`wal.footer`), the parts (`wal.parts`), the register
(`wal.register`), which is read by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat

import msgspec

from wal.checksum import Checksum, crc32c
from wal.codec import (
    UNDECODABLE,
    FormatError,
    NewerFormat,
    Trailer,
    array_of,
    big_endian,
    bytes_head,
    encode_trailer,
    native,
)
from wal.ids import Fragment
from wal.index import COARSE, MARK_EVERY, FragmentIndex, SegmentIndex
from wal.parts import PartsTold, check_runs, decode_parts, told_parts
from wal.register import Written

NIL = b"\xc0"
_NOTHING = msgspec.Raw(NIL)


class _IndexEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    namespace: str
    partition: int
    low: int
    high: int
    blocks: bytes  # u32 each
    marks: bytes  # u64 each


class _Mentions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    namespace: str
    partition: int
    blocks: bytes  # u32 each


class _Index(msgspec.Struct, frozen=True, array_like=True):
    starts: bytes  # u32 each
    fragments: list[_IndexEntry]
    mentions: list[_Mentions] | None = None
    marks: list[bytes] | None = None  # u64 each: all marks of each fragment, of which its entry has every fourth
    summary: msgspec.Raw = _NOTHING
    parts: PartsTold | None = None


class _Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The name of an entry, or of mentions: what follows it is passed over."""

    namespace: str
    partition: int


class _Closed(msgspec.Struct, frozen=True, array_like=True):
    """An index of which nothing is opened yet."""

    starts: bytes
    fragments: msgspec.Raw
    mentions: msgspec.Raw = _NOTHING
    marks: msgspec.Raw = _NOTHING
    summary: msgspec.Raw = _NOTHING
    parts: msgspec.Raw = _NOTHING


_encoder = msgspec.msgpack.Encoder()
_closed = msgspec.msgpack.Decoder(_Closed)
_names = msgspec.msgpack.Decoder(list[_Named] | None)
_elements = msgspec.msgpack.Decoder(list[msgspec.Raw])
_index_entry = msgspec.msgpack.Decoder(_IndexEntry)
_mentions = msgspec.msgpack.Decoder(_Mentions)
_parts = msgspec.msgpack.Decoder(PartsTold)
_all_marks = msgspec.msgpack.Decoder(list[bytes] | None)

SUMMARY_AT = 4
"""Where the summary stands in what a footer says: behind blocks, fragments, mentions and marks."""
INDEX_FORMS = 7
"""0: all of it; 1: without parts; 2: without a register; 3: without both; 4: without a summary; 5: without the marks that
the second version did not write; 6: without what only mentions a fragment, as the first version wrote it."""
_PARTED, _REGISTERED = (0, 2), (0, 1)


def encode_footer(
    trailer: Trailer, index: SegmentIndex, form: int = 0, summary: object = None, register: Written | None = None
) -> tuple[Trailer, bytes]:
    """What a sealed segment's file ends with: `trailer`, with the index's size and crc filled in, and the bytes.

    `summary` is what `wal.footer` makes of a segment's summary, if it has one, and `register` that of its blocks.
    """
    entries = index.fragments
    assert all(entry.every == MARK_EVERY for entry in entries.values()), "an index of an older version is not written again"
    told: list[object] = [
        big_endian(index.starts),
        array_of((_told(name, entry) for name, entry in entries.items()), len(entries)),
    ]
    names = register.encode(trailer) if register is not None and form in _REGISTERED else b""
    if form < 6 and index.mentions is not None:
        mentions = (_Mentions(name, at, big_endian(blocks)) for (name, at), blocks in index.mentions.items())
        told.append(array_of(mentions, len(index.mentions)))
        if form < 5 and any(entry.marks for entry in entries.values()):
            told.append(array_of((big_endian(entry.marks) for entry in entries.values()), len(entries)))
        parts = told_parts(index) if form in _PARTED else None
        if form < 4 and (summary is not None or parts is not None or names):
            told += [None] * (SUMMARY_AT - len(told))
            told.append(summary)
        if parts is not None or names:
            told.append(parts)
        if names:
            told.append(names)
    body = _encoder.encode(told)
    if register is not None and names:
        body = register.placed(body, len(names), 1 + bytes_head(4 * len(index.starts)), trailer)
    trailer = trailer._replace(index_bytes=len(body), index_crc=crc32c(body, 0))
    return trailer, body + encode_trailer(trailer)


def _told(name: Fragment, entry: FragmentIndex) -> _IndexEntry:
    blocks, marks = big_endian(entry.blocks), big_endian(entry.marks[COARSE - 1 :: COARSE])
    return _IndexEntry(*name, entry.low, entry.high, blocks=blocks, marks=marks)


def decode_index(
    data: bytes,
    trailer: Trailer,
    checksum: Checksum | None = crc32c,
    only: Collection[Fragment] | None = None,
    *,
    parts: bool = False,
) -> SegmentIndex:
    """The index that `trailer` describes, or what of it is about `only` these, with their `parts` or without.

    No `checksum`: it was checked.
    """
    if checksum is not None:
        check_index(data, trailer, checksum)
    try:
        body = msgspec.msgpack.decode(data, type=_Index) if only is None else _part_of(data, only, parts=parts)
        index = SegmentIndex()
        index.starts = native("I", body.starts)
        all_marks = body.marks if body.marks is not None else repeat(None, len(body.fragments))
        for entry, marks in zip(body.fragments, all_marks, strict=True):
            index.fragments[entry.namespace, entry.partition] = _entry(entry, marks)
        if body.parts is not None:
            index.parts = decode_parts(body.parts)
            for one, runs in zip(index.fragments.values(), body.parts.runs, strict=True):
                one.runs = runs
        index.mentions = None
        if body.mentions is not None:
            index.mentions = {(one.namespace, one.partition): native("I", one.blocks) for one in body.mentions}
    except UNDECODABLE as error:
        raise NewerFormat(f"the checksum is right and the index cannot be decoded: {error}") from error
    ordinals = [*(entry.blocks for entry in index.fragments.values()), *(index.mentions or {}).values()]
    if len(index.starts) != trailer.blocks or any(some and max(some) >= trailer.blocks for some in ordinals):
        raise FormatError(f"the index speaks of other blocks than the {trailer.blocks} of its segment")
    check_runs(index)
    return index


def _part_of(data: bytes, only: Collection[Fragment], *, parts: bool) -> _Index:
    """An index, of which the rest is not opened: a hundred times as much, where little of it is asked for."""
    body = _closed.decode(data)
    entries = _chosen(body.fragments, only)
    mentions = _chosen(body.mentions, only)
    marks: list[bytes] | None = None
    if entries and (known := _all_marks.decode(body.marks)) is not None:
        if entries[-1][0] >= len(known):
            raise ValueError(f"{len(known)} rows of marks: expected one for each fragment")
        marks = [known[at] for at, _ in entries]
    elif bytes(body.marks) != NIL:
        marks = []
    told = _parts.decode(body.parts) if parts and entries and bytes(body.parts) != NIL else None
    if told is not None and entries[-1][0] >= len(told.runs):
        raise ValueError(f"{len(told.runs)} runs of parts: expected one for each fragment")
    return _Index(
        body.starts,
        [_index_entry.decode(entry) for _, entry in entries],
        None if bytes(body.mentions) == NIL else [_mentions.decode(one) for _, one in mentions],
        marks,
        parts=msgspec.structs.replace(told, runs=[told.runs[at] for at, _ in entries]) if told is not None else None,
    )


def _chosen(rows: msgspec.Raw, only: Collection[Fragment]) -> list[tuple[int, msgspec.Raw]]:
    """Of rows those with these names, and where they stand."""
    at = [at for at, row in enumerate(_names.decode(rows) or ()) if (row.namespace, row.partition) in only] if only else ()
    if not at:
        return []
    elements = _elements.decode(rows)
    return [(one, elements[one]) for one in at]


def check_index(data: bytes, trailer: Trailer, checksum: Checksum = crc32c) -> None:
    """Raise FormatError unless these are the bytes of which the trailer has the checksum."""
    found = checksum(data, 0)
    if len(data) != trailer.index_bytes or found != trailer.index_crc:
        raise FormatError(f"the index has the checksum {found:08x}, expected {trailer.index_crc:08x}")


def _entry(entry: _IndexEntry, marks: bytes | None) -> FragmentIndex:
    """Raises FormatError for marks that are not as many as they should be."""
    every = MARK_EVERY if marks is not None else MARK_EVERY * COARSE
    blocks, found = native("I", entry.blocks), native("Q", entry.marks if marks is None else marks)
    if len(found) != len(blocks) // every:
        raise FormatError(f"the index has {len(found)} marks for {len(blocks)} blocks: expected one for every {every}")
    return FragmentIndex(entry.low, entry.high, blocks, found, every)
