"""`foreshore wal stat`: what a log holds, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from tools.terminal import ExitCode, Row, show, word
from tools.wal.absent import absent
from tools.wal.dump import AsJson, Directories, FromLsn, OfNamespace, OfPartition, ToLsn, check_range
from tools.wal.filters import Filter
from tools.wal.jobs import Jobs, Run, in_parts
from tools.wal.places import Place, place_of
from tools.wal.times import time_text
from tools.wal.trouble import Trouble
from wal import Block, Finding, inspect, list_segments
from wal import records as r
from wal.ids import Fragment
from wal.records import kind_of

TALLIED = ("writes", "updates", "deletes", "closed", "bytes")

K = TypeVar("K")
_encode = msgspec.msgpack.Encoder().encode


def stat(
    directories: Directories,
    from_lsn: FromLsn = 1,
    to_lsn: ToLsn = None,
    namespace: OfNamespace = None,
    partition: OfPartition = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the busiest partitions to show.")] = 5,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Count what a log holds: records by type, updates by namespace, and the busiest partitions."""
    check_range(from_lsn, to_lsn)
    trouble = Trouble()
    rows: list[Row] = []
    places = [place_of(text) for text in directories]
    wanted = Filter(namespace=namespace, partition=partition)
    for place in places:
        counted = Counted()
        if jobs > 1:
            for part in in_parts(place, jobs, Counted, partial(_counted, place, wanted, from_lsn, to_lsn)):
                for finding in part.findings:
                    trouble.note(place, finding)
                counted.join(part)
        else:
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
    found = any(row.get("records") for row in rows)
    trouble.end(ExitCode.OK if found else absent(places, wanted))


def _counted(place: Place, wanted: Filter, from_lsn: int, to_lsn: int | None, run: Run) -> Counted:
    """What some segments hold."""
    counted = Counted()
    chosen = wanted.chooser()
    for found in inspect(place.source, from_lsn, to_lsn, owner=place.owner, choose=chosen, **run._asdict()):
        if isinstance(found, Finding):
            counted.findings.append(found)
        else:
            counted.add(found, wanted)
    return counted


class Counted(msgspec.Struct):
    """What a log holds, or a part of it, counted. `types`: records and their bytes; `writes`: of each fragment, TALLIED."""

    blocks: int = 0
    records: int = 0
    bytes: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    since_ms: int = 0
    until_ms: int = 0
    types: dict[str, list[int]] = {}
    writes: dict[Fragment, list[int]] = {}
    findings: list[Finding] = []

    def add(self, block: Block, wanted: Filter) -> None:
        """Count what is wanted of a block."""
        records = wanted.of(block.records)
        if not records:
            return
        self.blocks += 1
        self.bytes += block.bytes
        self.records += len(records)
        self._span(block.first_lsn, block.last_lsn, block.time_ms, block.time_ms)
        for kind, run in groupby(records, type):
            alike = list(run)
            whole = len(alike) == len(block.records) and block.body
            size = (block.body if whole else len(_encode(alike))) - _array_header(len(alike))
            _sum_up(self.types, kind_of(alike[0]), (len(alike), size))
            if issubclass(kind, r.Update | r.Prepare | r.History):
                self._add_writes(alike)

    def join(self, behind: Counted) -> None:
        """What was counted behind it, too."""
        if behind.blocks:
            self._span(behind.first_lsn, behind.last_lsn, behind.since_ms, behind.until_ms)
        self.blocks += behind.blocks
        self.bytes += behind.bytes
        self.records += behind.records
        for kind, tally in behind.types.items():
            _sum_up(self.types, kind, tally)
        for fragment, tally in behind.writes.items():
            _sum_up(self.writes, fragment, tally)

    def _span(self, first_lsn: int, last_lsn: int, since_ms: int, until_ms: int) -> None:
        self.first_lsn = self.first_lsn or first_lsn
        self.last_lsn = last_lsn
        self.since_ms = min(self.since_ms or since_ms, since_ms)
        self.until_ms = max(self.until_ms, until_ms)

    def _add_writes(self, records: Iterable[Any]) -> None:
        """Count the writes of records: the innermost loop of all that is counted."""
        known = self.writes
        for record in records:
            for write in record.writes:
                tally = known.get((write.namespace, write.partition))
                if tally is None:
                    tally = known[write.namespace, write.partition] = [0] * len(TALLIED)
                keys, values, closed = write.keys, write.values, write.closed
                tally[0] += 1
                if len(keys) == 1:
                    value = values[0]
                    tally[1] += 1
                    if value is None:
                        tally[2] += 1
                        tally[4] += len(keys[0])
                    else:
                        tally[4] += len(keys[0]) + len(value)
                else:
                    tally[1] += closed or len(keys)
                    tally[2] += 0 if closed else values.count(None)
                    tally[3] += closed
                    tally[4] += sum(map(len, keys)) + sum(len(value) for value in values if value is not None)

    def rows(self, node: str, top: int) -> Iterator[Row]:
        """The figures, the largest first."""
        whole = sum(size for _, size in self.types.values()) or 1
        for kind, (records, size) in sorted(self.types.items(), key=lambda at: -at[1][1]):
            percent = f"{100 * size / whole:.1f}%"
            yield {"node": node, "type": kind, "records": records, "bytes": size, "share": percent}
        by_namespace: dict[str, list[int]] = {}
        by_partition: dict[int, list[int]] = {}
        for (namespace, partition), tally in self.writes.items():
            _sum_up(by_namespace, namespace, tally)
            _sum_up(by_partition, partition, tally)
        for namespace, tally in sorted(by_namespace.items(), key=lambda at: (-at[1][1], at[0])):
            head: dict[str, Any] = {"node": node, "namespace": word(namespace.encode("utf-8", "surrogatepass"))}
            yield head | dict(zip(TALLIED, tally, strict=True))
        busiest = sorted(by_partition.items(), key=lambda at: (-at[1][1], at[0]))
        for partition, tally in busiest[:top]:
            head = {"node": node, "partition": partition}
            yield head | dict(zip(TALLIED, tally, strict=True))


def _sum_up(sums: dict[K, list[int]], name: K, more: Sequence[int]) -> None:
    sums[name] = [one + other for one, other in zip(sums.get(name, [0] * len(more)), more, strict=True)]


def _array_header(count: int) -> int:
    """The bytes before the elements of a MessagePack array."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5
