"""What kinds of records a block has: all that its checksums need beside them to be believed, without a value in it.

Whoever asks whether a log is whole asks for no key and no counter. Here MessagePack is walked from end to end, each record
is of a kind that this version knows, and nothing else is made of it: a third of what decoding takes. Of a sealed segment
the footer says which kinds there are, and its blocks need not be walked for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Union

import msgspec

from wal import records as r
from wal.codec import BlockHeader, NewerFormat, decode_body_as
from wal.footer import Told

_BARE = [
    msgspec.defstruct(kind.__name__, [], frozen=True, array_like=True, tag=str(kind.__struct_config__.tag), gc=False)
    for kind in r.KINDS
    if kind is not r.Trimmed
]
_body: Callable[[memoryview], list[msgspec.Struct]] = msgspec.msgpack.Decoder(list[Union[(r.Trimmed, *_BARE)]]).decode  # type: ignore[valid-type]  # a union that is computed

_TRIMMED = str(r.Trimmed.__struct_config__.tag)
_TRIM = msgspec.msgpack.encode(_TRIMMED)


def may_have(kinds: Collection[str], header: BlockHeader, block: bytes) -> bool:
    """Whether a block that was checked has a record of one of these kinds, or what only who decodes it can tell."""
    try:
        found = decode_body_as(_body, header, block)
    except NewerFormat:
        return True
    there: set[type[msgspec.Struct]] = set(map(type, found))
    return any(kind.__struct_config__.tag in kinds for kind in there)


def vouched_by(footer: Told) -> Collection[str] | None:
    """The kinds of all records in a segment, each of which this version knows; None where the footer does not say.

    Raises FormatError.
    """
    tally = footer.tally()
    if tally is None or not tally.records == footer.trailer.records == sum(count for count, _ in tally.kinds.values()):
        return None
    return tally.kinds


def trims_in(header: BlockHeader, block: bytes, vouched: Collection[str] | None = None) -> list[r.Trimmed]:
    """The `Trimmed` among the records of a block that was checked; NewerFormat if it holds what is no record.

    `vouched`: what kinds there are in its segment, where that is known, so that only what may be one is looked at.
    """
    if vouched is not None and (_TRIMMED not in vouched or _TRIM not in block):
        return []
    found = decode_body_as(_body, header, block)
    return [record for record in found if isinstance(record, r.Trimmed)] if r.Trimmed in map(type, found) else []
