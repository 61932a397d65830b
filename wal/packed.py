"""A log for whoever wants little of what was written: writes whose keys and values are opened only if somebody asks.

Who follows transactions, or reads a share of the partitions, passes most of a log by. Half of what it costs to decode a
block is the objects for keys and values; here they stay bytes (`Packed`), and everything else is as `wal.reader` gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, Union

import msgspec

from wal import records as r
from wal.codec import NewerFormat, decode_body_as
from wal.errors import Finding
from wal.footer import Ask
from wal.ids import Fragment, Namespace, TxId
from wal.reader import Source, source_disk
from wal.scan import RawBlock
from wal.segment import segment_name
from wal.segment_file import newer
from wal.walk import Owner, Walk

ARRAY_16 = 0xDC
"""MessagePack's array with a length of 16 bits; shorter ones begin below it, 32 bits follow it."""

_keys = msgspec.msgpack.Decoder(list[bytes]).decode
_values = msgspec.msgpack.Decoder(list[bytes | None]).decode


def _length(packed: msgspec.Raw) -> int:
    """How many elements an array has."""
    data = memoryview(packed)
    if data[0] < ARRAY_16:
        return data[0] & 0x0F
    return int.from_bytes(data[1 : 3 if data[0] == ARRAY_16 else 5], "big")


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `wal.records.Write`, whose keys and values are as the log has them."""

    namespace: Namespace
    partition: int
    epoch: int
    start: int
    keys: msgspec.Raw
    values: msgspec.Raw
    stable: int = 0
    tx: TxId = b""
    closed: int = 0
    origin: int = 0
    answer: bytes | None = None

    @property
    def fragment(self) -> Fragment:
        """The fragment it belongs to."""
        return (self.namespace, self.partition)

    @property
    def end(self) -> int:
        """The counter of its last update, as `Write.end`; how many keys there are stands before them."""
        return self.start + (self.closed or _length(self.keys))

    def opened(self) -> r.Write:
        """The write. Raises NewerFormat."""
        try:
            keys, values = _keys(self.keys), _values(self.values)
        except (msgspec.MsgspecError, ValueError) as error:
            raise NewerFormat(f"the checksum is right and a write cannot be decoded ({error})") from error
        return r.Write(
            self.namespace,
            self.partition,
            self.epoch,
            self.start,
            keys=keys,
            values=values,
            stable=self.stable,
            tx=self.tx,
            closed=self.closed,
            origin=self.origin,
            answer=self.answer,
        )


class PackedUpdate(msgspec.Struct, frozen=True, array_like=True, tag="update", gc=False):
    """An `Update`."""

    writes: list[Packed]


class PackedHistory(msgspec.Struct, frozen=True, array_like=True, tag="history", gc=False):
    """A `History`."""

    writes: list[Packed]


Skimmed: TypeAlias = r.Record | PackedUpdate | PackedHistory
"""What a packed block says: never an `Update` or a `History` themselves."""

_OPENED = (PackedUpdate, PackedHistory, *(kind for kind in r.KINDS if kind not in (r.Update, r.History)))
SkimmedType: Any = Union[_OPENED]  # noqa: UP007  # a union that is computed
"""The same, for who decodes one."""
decode_packed: Callable[[bytes | memoryview], list[Skimmed]] = msgspec.msgpack.Decoder(list[SkimmedType]).decode
"""The body of a block that was checked, or of a part of one."""


def kind_of(record: Skimmed) -> str:
    """As `wal.records.kind_of`."""
    return str(record.__struct_config__.tag)


class PackedBlock(msgspec.Struct, frozen=True):
    """A block, with its records as far as they are opened."""

    first_lsn: int
    time_ms: int
    records: list[Skimmed]


def skim(
    source: Source,
    take: Callable[[PackedBlock], None],
    from_lsn: int = 1,
    to_lsn: int | None = None,
    *,
    owner: Owner | None = None,
    ask: Ask | None = None,
    segment: int | None = None,
) -> list[Finding]:
    """`wal.reader.inspect`, packed: each block that verifies is taken, in order; returns what is wrong with the others.

    Where `ask` is for the blocks that came to a counter first, who does not find it there has to look again, without.

    A write that cannot be opened ends the taking of its block, and is a finding as well.
    """
    found: list[Finding] = []
    ended = False

    def choose(raw: RawBlock) -> bool:
        nonlocal ended
        header = raw.header
        ended = ended or (to_lsn is not None and header.first_lsn > to_lsn)
        if ended:
            return False
        try:
            records = decode_body_as(decode_packed, header, raw.data)
            first, after = max(from_lsn, header.first_lsn), header.last_lsn + 1 if to_lsn is None else to_lsn + 1
            part = records[first - header.first_lsn : after - header.first_lsn]
            take(PackedBlock(first, header.time_ms, part))
        except NewerFormat as error:
            found.append(newer(error, segment_name(raw.segment), raw.offset, header.first_lsn))
        return False

    with source_disk(source) as disk:
        for one in Walk(disk, from_lsn=from_lsn, owner=owner, choose=choose, ask=ask, segment=segment):
            if ended:
                break
            if isinstance(one, Finding):
                found.append(one)
    return found
