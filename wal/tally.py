"""What some blocks hold, counted: by who wrote them, for a segment's footer, and by who reads them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

import msgspec

from wal.codec import BlockHeader
from wal.ids import Fragment
from wal.records import Update, Write

TALLIED = ("writes", "updates", "deletes", "closed", "bytes")
"""What is counted of each fragment: ranges, the counters in them, deletes among these, closed gaps, keys and values."""

K = TypeVar("K")
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Pair = Annotated[list[_Count], msgspec.Meta(min_length=2, max_length=2)]
_Row = Annotated[list[_Count], msgspec.Meta(min_length=len(TALLIED), max_length=len(TALLIED))]


class Tally(msgspec.Struct, array_like=True):
    """Blocks with records, and what is in them. `kinds`: records of a kind, and their bytes; `writes`: TALLIED."""

    blocks: _Count = 0
    records: _Count = 0
    bytes: _Count = 0
    first_lsn: _Count = 0
    last_lsn: _Count = 0
    since_ms: _Count = 0
    until_ms: _Count = 0
    kinds: dict[str, _Pair] = {}
    writes: dict[Fragment, _Row] = {}

    def block(self, lsns: tuple[int, int], records: int, *, time_ms: int, size: int) -> None:
        """The next block, from the first to the last of these LSNs; so many of its records count."""
        self._span(*lsns, time_ms, time_ms)
        self.blocks += 1
        self.records += records
        self.bytes += size

    def add_blocks(self, headers: Sequence[BlockHeader]) -> None:
        """The next blocks, all records of which count."""
        if headers:
            times = [header.time_ms for header in headers]
            self._span(headers[0].first_lsn, headers[-1].last_lsn, min(times), max(times))
            self.blocks += len(headers)
            self.records += sum(header.records for header in headers)
            self.bytes += sum(header.size for header in headers)

    def kind(self, name: str, records: int, size: int) -> None:
        """So many records of a kind are in it."""
        known = self.kinds.get(name)
        if known is None:
            known = self.kinds[name] = [0, 0]
        known[0] += records
        known[1] += size

    def update(self, records: Iterable[Update]) -> None:
        """These are in it: the innermost loop of who counts a log, with its commonest case written out."""
        known = self.writes
        for record in records:
            for write in record.writes:
                row, keys = known.get((write.namespace, write.partition)), write.keys
                if row is None or write.closed or len(keys) != 1 or (value := write.values[0]) is None:
                    self.write(write)
                else:
                    row[0] += 1
                    row[1] += 1
                    row[4] += len(keys[0]) + len(value)

    def write(self, write: Write) -> None:
        """One write is in it."""
        keys, values = write.keys, write.values
        row = self.writes.get((write.namespace, write.partition))
        if row is None:
            row = self.writes[write.namespace, write.partition] = [0, 0, 0, 0, 0]
        row[0] += 1
        if write.closed:
            row[1] += write.closed
            row[3] += write.closed
            return
        if len(keys) == 1 == len(values):
            value = values[0]
            row[1] += 1
            if value is None:
                row[2] += 1
                row[4] += len(keys[0])
            else:
                row[4] += len(keys[0]) + len(value)
            return
        deletes = values.count(None)
        row[1] += len(keys)
        row[2] += deletes
        row[4] += sum(map(len, keys)) + sum(map(len, filter(None, values) if deletes else values))  # type: ignore[arg-type]

    def join(self, behind: Tally) -> None:
        """What was counted behind it, too."""
        if behind.blocks:
            self._span(behind.first_lsn, behind.last_lsn, behind.since_ms, behind.until_ms)
        self.blocks += behind.blocks
        self.records += behind.records
        self.bytes += behind.bytes
        for kind, pair in behind.kinds.items():
            sum_up(self.kinds, kind, pair)
        for fragment, row in behind.writes.items():
            sum_up(self.writes, fragment, row)

    def _span(self, first_lsn: int, last_lsn: int, since_ms: int, until_ms: int) -> None:
        self.first_lsn = self.first_lsn or first_lsn
        self.last_lsn = last_lsn
        if not self.since_ms or since_ms < self.since_ms:
            self.since_ms = since_ms
        if until_ms > self.until_ms:
            self.until_ms = until_ms


def sum_up(sums: dict[K, list[int]], name: K, more: Sequence[int]) -> None:
    """Add numbers to those that are known under a name."""
    sums[name] = [one + other for one, other in zip(sums.get(name, [0] * len(more)), more, strict=True)]
