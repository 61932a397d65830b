"""`foreshore wal stat`: what a log holds, counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer

from tools.terminal import Row, show, word
from tools.wal.dump import AsJson, Directories, FromLsn, OfNamespace, OfPartition, ToLsn, check_range
from tools.wal.filters import Filter
from tools.wal.places import place_of
from tools.wal.times import time_text
from tools.wal.trouble import Trouble
from wal import Block, list_segments
from wal import records as r
from wal.records import kind_of

TALLIED = ("writes", "updates", "deletes", "closed", "bytes")


def stat(
    directories: Directories,
    from_lsn: FromLsn = 1,
    to_lsn: ToLsn = None,
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the busiest partitions to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Count what a log holds: records by type, updates by namespace, and the busiest partitions."""
    check_range(from_lsn, to_lsn)
    trouble = Trouble()
    rows: list[Row] = []
    for place in [place_of(text) for text in directories]:
        counted, wanted = _Counted(), Filter(namespace=namespace, partition=partition)
        for block in trouble.aside(place, from_lsn, to_lsn, choose=wanted.chooser()):
            counted.add(block, wanted)
        files = list_segments(place.source)  # what is wrong was told
        rows.append(
            {
                "node": place.name,
                "live": place.live,
                "segments": len(files),
                "segment_bytes": sum(file.bytes for file in files),
                "blocks": counted.blocks,
                "records": counted.records,
                "bytes": counted.bytes,
                "first_lsn": counted.first_lsn,
                "last_lsn": counted.last_lsn,
                "from": time_text(counted.since_ms) if counted.blocks else None,
                "to": time_text(counted.until_ms) if counted.blocks else None,
            }
        )
        rows += counted.rows(place.name, top)
    show(rows, as_json=as_json)
    trouble.end()


class _Counted:
    """What a log holds, counted."""

    def __init__(self) -> None:
        self.blocks = self.records = self.bytes = 0
        self.first_lsn = self.last_lsn = 0
        self.since_ms = self.until_ms = 0
        self._by_type: Counter[str] = Counter()
        self._bytes_by_type: Counter[str] = Counter()
        self._by_namespace: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(TALLIED))
        self._by_partition: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(TALLIED))
        self._encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode

    def add(self, block: Block, wanted: Filter) -> None:
        """Count what is wanted of a block."""
        records = wanted.of(block.records)
        if not records:
            return
        self.first_lsn = self.first_lsn or block.first_lsn
        self.last_lsn = block.last_lsn
        self.since_ms = min(self.since_ms or block.time_ms, block.time_ms)
        self.until_ms = max(self.until_ms, block.time_ms)
        self.blocks += 1
        self.bytes += block.bytes
        self.records += len(records)
        for kind, run in groupby(records, type):
            alike = list(run)
            name = kind_of(alike[0])
            self._by_type[name] += len(alike)
            self._bytes_by_type[name] += len(self._encode(alike)) - _array_header(len(alike))
            if issubclass(kind, r.Update | r.Prepare | r.History):
                self._add_writes(alike)

    def _add_writes(self, records: Iterable[Any]) -> None:
        """Count the writes of records: the innermost loop of all that is counted."""
        by_namespace, by_partition = self._by_namespace, self._by_partition
        for record in records:
            for write in record.writes:
                keys, values, closed = write.keys, write.values, write.closed
                if len(keys) == 1:
                    value = values[0]
                    size, deletes = (len(keys[0]), 1) if value is None else (len(keys[0]) + len(value), 0)
                else:
                    size = sum(map(len, keys)) + sum(len(value) for value in values if value is not None)
                    deletes = 0 if closed else values.count(None)
                updates = closed or len(keys)
                for tally in (by_namespace[write.namespace], by_partition[write.partition]):
                    tally[0] += 1
                    tally[1] += updates
                    tally[2] += deletes
                    tally[3] += closed
                    tally[4] += size

    def rows(self, node: str, top: int) -> Iterator[Row]:
        """The figures, the largest first."""
        whole = sum(self._bytes_by_type.values()) or 1
        for kind, size in self._bytes_by_type.most_common():
            percent = f"{100 * size / whole:.1f}%"
            yield {"node": node, "type": kind, "records": self._by_type[kind], "bytes": size, "share": percent}
        for namespace, tally in sorted(self._by_namespace.items(), key=lambda at: -at[1][1]):
            head: dict[str, Any] = {"node": node, "namespace": word(namespace.encode("utf-8", "surrogatepass"))}
            yield head | dict(zip(TALLIED, tally, strict=True))
        busiest = sorted(self._by_partition.items(), key=lambda at: (-at[1][1], at[0]))
        for partition, tally in busiest[:top]:
            head = {"node": node, "partition": partition}
            yield head | dict(zip(TALLIED, tally, strict=True))


def _array_header(count: int) -> int:
    """The bytes before the elements of a MessagePack array."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5
