"""`foreshore wal stat`: what a log holds, counted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tools.terminal import ExitCode, Row, show, word
from tools.wal.absent import absent
from tools.wal.filters import Filter, check_range
from tools.wal.places import Place, place_of
from tools.wal.times import time_text
from tools.wal.trouble import Trouble
from wal import Block, Finding, SegmentInfo, inspect, list_segments
from wal import records as r
from wal.footer import Ask, Span, Told
from wal.records import kind_of
from wal.tally import TALLIED, Tally, sum_up

if TYPE_CHECKING:
    import typer

    from tools.wal.jobs import Run
    from tools.wal.options import AsJson, Directories, FromLsn, Jobs, OfNamespace, OfPartition, ToLsn

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
    """Count what a log holds: records by type, updates by namespace, and the busiest partitions.

    Sealed segments are counted by their footers, where these tell: what was not read was not verified.
    """
    check_range(from_lsn, to_lsn)
    trouble = Trouble()
    rows: list[Row] = []
    places = [place_of(text) for text in directories]
    wanted = Filter(namespace=namespace, partition=partition)
    for place in places:
        counted = Counted()
        if jobs > 1:
            from tools.wal.jobs import in_parts  # noqa: PLC0415  # who reads alone does not wait for it

            trouble.meet(place, from_lsn, to_lsn)
            for part in in_parts(place, jobs, Counted, partial(_counted, place, wanted, from_lsn, to_lsn)):
                for finding in part.findings:
                    trouble.note(place, finding)
                counted.join(part)
        else:
            ask = counted.asker(wanted, from_lsn, to_lsn)
            passed = counted.pass_over
            for block in trouble.aside(place, from_lsn, to_lsn, choose=wanted.chooser(), ask=ask, passed=passed):
                counted.add(block, wanted)
        tally = counted.tally
        if to_lsn is not None:  # else all of them were passed
            counted.segments, counted.segment_bytes = 0, 0
            for file in list_segments(place.source):  # what is wrong was told
                counted.pass_over(file)
        rows.append(
            {
                "node": place.name,
                "live": place.live,
                "segments": counted.segments,
                "segment_bytes": counted.segment_bytes,
                "blocks": tally.blocks,
                "records": tally.records,
                "bytes": tally.bytes,
                "first_lsn": tally.first_lsn,
                "last_lsn": tally.last_lsn,
                "from": time_text(tally.since_ms) if tally.blocks else None,
                "to": time_text(tally.until_ms) if tally.blocks else None,
            }
        )
        rows += counted.rows(place.name, top)
    show(rows, as_json=as_json)
    found = any(row.get("records") for row in rows)
    trouble.end(ExitCode.OK if found else absent(places, wanted, from_lsn, to_lsn))


def _counted(place: Place, wanted: Filter, from_lsn: int, to_lsn: int | None, run: Run) -> Counted:
    """What some segments hold."""
    counted = Counted()
    blocks = inspect(
        place.source,
        from_lsn,
        to_lsn,
        owner=place.owner,
        choose=wanted.chooser(),
        ask=counted.asker(wanted, from_lsn, to_lsn),
        passed=counted.pass_over,
        **run._asdict(),
    )
    for found in blocks:
        if isinstance(found, Finding):
            counted.findings.append(found)
        else:
            counted.add(found, wanted)
    return counted


class Counted(msgspec.Struct):
    """What a log holds, or a part of it, counted; and what is wrong with it."""

    tally: Tally = msgspec.field(default_factory=Tally)
    findings: list[Finding] = []
    segments: int = 0
    segment_bytes: int = 0

    def pass_over(self, segment: SegmentInfo) -> None:
        """A segment's file."""
        self.segments += 1
        self.segment_bytes += segment.bytes

    def asker(self, wanted: Filter, from_lsn: int, to_lsn: int | None) -> Ask | None:
        """Counts a segment by its footer, where all of it is wanted and the footer tells."""

        def ask(footer: Told) -> list[Span] | None:
            trailer = footer.trailer
            if trailer.first_lsn < from_lsn or (to_lsn is not None and trailer.last_lsn > to_lsn):
                return None
            tally = footer.tally()
            if tally is None:
                return None
            self.tally.join(tally)
            return []

        return ask if wanted.plain and wanted.times is None else None

    def add(self, block: Block, wanted: Filter) -> None:
        """Count what is wanted of a block."""
        records = wanted.of(block.records)
        if not records:
            return
        tally = self.tally
        tally.block((block.first_lsn, block.last_lsn), len(records), time_ms=block.time_ms, size=block.bytes)
        for kind, run in groupby(records, type):
            alike: list[Any] = list(run)
            whole = len(alike) == len(block.records) and block.body
            size = (block.body if whole else len(_encode(alike))) - _array_header(len(alike))
            tally.kind(kind_of(alike[0]), len(alike), size)
            if kind is r.Update:
                tally.update(alike)
            elif issubclass(kind, r.Prepare | r.History):
                self._add(alike)

    def _add(self, records: list[Any]) -> None:
        count = self.tally.write
        for record in records:
            for write in record.writes:
                count(write)

    def join(self, behind: Counted) -> None:
        """What was counted behind it, too."""
        self.tally.join(behind.tally)
        self.segments += behind.segments
        self.segment_bytes += behind.segment_bytes

    def rows(self, node: str, top: int) -> Iterator[Row]:
        """The figures, the largest first."""
        whole = sum(size for _, size in self.tally.kinds.values()) or 1
        for kind, (records, size) in sorted(self.tally.kinds.items(), key=lambda at: -at[1][1]):
            percent = f"{100 * size / whole:.1f}%"
            yield {"node": node, "type": kind, "records": records, "bytes": size, "share": percent}
        by_namespace: dict[str, list[int]] = {}
        by_partition: dict[int, list[int]] = {}
        for (namespace, partition), tally in self.tally.writes.items():
            sum_up(by_namespace, namespace, tally)
            sum_up(by_partition, partition, tally)
        for namespace, tally in sorted(by_namespace.items(), key=lambda at: (-at[1][1], at[0])):
            head: dict[str, Any] = {"node": node, "namespace": word(namespace.encode("utf-8", "surrogatepass"))}
            yield head | dict(zip(TALLIED, tally, strict=True))
        busiest = sorted(by_partition.items(), key=lambda at: (-at[1][1], at[0]))
        for partition, tally in busiest[:top]:
            head = {"node": node, "partition": partition}
            yield head | dict(zip(TALLIED, tally, strict=True))


def _array_header(count: int) -> int:
    """The bytes before the elements of a MessagePack array."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5
