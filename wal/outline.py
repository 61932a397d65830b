"""What kinds of records a block has: all that its checksums need beside them to be believed, without a value in it.

Whoever asks whether a log is whole asks for no key and no counter. Here MessagePack is walked from end to end, each record
is of a kind that this version knows, and nothing else is made of it: a third of what decoding takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Union

import msgspec

from wal import records as r
from wal.codec import BlockHeader, NewerFormat, decode_body_as

_BARE = [
    msgspec.defstruct(kind.__name__, [], frozen=True, array_like=True, tag=str(kind.__struct_config__.tag), gc=False)
    for kind in r.KINDS
    if kind is not r.Trimmed
]
_body: Callable[[memoryview], list[msgspec.Struct]] = msgspec.msgpack.Decoder(list[Union[(r.Trimmed, *_BARE)]]).decode  # type: ignore[valid-type]  # a union that is computed


def may_have(kinds: Collection[str], header: BlockHeader, block: bytes) -> bool:
    """Whether a block that was checked has a record of one of these kinds, or what only who decodes it can tell."""
    try:
        found = decode_body_as(_body, header, block)
    except NewerFormat:
        return True
    there: set[type[msgspec.Struct]] = set(map(type, found))
    return any(kind.__struct_config__.tag in kinds for kind in there)


def trims_in(header: BlockHeader, block: bytes) -> list[r.Trimmed]:
    """The `Trimmed` among the records of a block that was checked; NewerFormat if it holds what is no record."""
    found = decode_body_as(_body, header, block)
    return [record for record in found if isinstance(record, r.Trimmed)] if r.Trimmed in map(type, found) else []
