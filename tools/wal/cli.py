"""`foreshore wal`: what a node's log says, read from its files beside the live node or after it, and never written.

DIR is a data directory, its `wal`, or a segment file. What is wrong with a log is told on stderr, in its place, and
everything that verifies is shown all the same; then the exit code says how bad it is (`tools.terminal.ExitCode`).
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tools.terminal import Row, program, show, word
from tools.wal.counters import counters
from tools.wal.diff import diff
from tools.wal.dump import AsJson, Directories, FromLsn, OfNamespace, OfPartition, ToLsn, check_range, dump
from tools.wal.export import export
from tools.wal.filters import Filter
from tools.wal.history import history
from tools.wal.key import key
from tools.wal.mend import cut, repair
from tools.wal.places import Place, losses_of, place_of
from tools.wal.times import time_text
from tools.wal.trouble import Trouble
from tools.wal.tx import tx
from tools.wal.verify import verify
from wal import Block, DirectoryDisk, SegmentInfo, list_segments
from wal import records as r
from wal.kept import Kept, read_kept
from wal.records import kind_of
from wal.retention import plan

TALLIED = ("writes", "updates", "deletes", "closed", "bytes")
_NOTHING: dict[str, Any] = {"from": None, "to": None, "goes": None, "pinned_by": [], "pinned_since": None}
ASIDE = re.compile(r".*\.(?:torn|lost)(?:\.\d+)?")

app = program(
    "wal", "Look at a node's log, live or stopped; only `repair` and `cut` write, and only where they are told to."
)
app.command()(verify)
app.command()(counters)
app.command()(dump)
app.command("key")(key)
app.command("tx")(tx)
app.command()(diff)
app.command("history")(history)
app.command()(cut)
app.command()(repair)
app.command()(export)


@app.command()
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
            share = f"{100 * size / whole:.1f}%"
            yield {"node": node, "type": kind, "records": self._by_type[kind], "bytes": size, "share": share}
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


@app.command()
def segments(directories: Directories, as_json: AsJson = False) -> None:
    """List the segment files of a log, who needs them, what goes next, and what was set aside beside them."""
    trouble = Trouble()
    show(_segment_rows([place_of(text) for text in directories], trouble), as_json=as_json)
    trouble.end()


def _segment_rows(places: list[Place], trouble: Trouble) -> Iterator[Row]:
    for place in places:
        infos = trouble.files(place)
        kept = _kept(place)
        going = set() if kept is None or not place.live else _going(infos, kept)
        for info in infos:
            empty = info.last_lsn < info.first_lsn
            pins = [pin for pin in kept.pins if place.live and pin.lsn <= info.last_lsn] if kept is not None else []
            yield {
                "node": place.name,
                "segment": info.name,
                "first_lsn": info.first_lsn,
                "last_lsn": None if empty else info.last_lsn,
                "bytes": info.bytes,
                "state": "archived" if info.archived else "sealed" if info.sealed else "open",
                "from": time_text(info.first_time_ms) if info.first_time_ms else None,
                "to": time_text(info.last_time_ms) if info.last_time_ms else None,
                "goes": "next" if info.name in going else None,
                "pinned_by": [pin.token for pin in pins],
                "pinned_since": time_text(min(pin.since_ms for pin in pins)) if pins else None,
            }
        if place.log is not None and place.log.is_dir():
            for loss in losses_of(place):
                at = {"first_lsn": loss.first_lsn, "last_lsn": loss.last_lsn, "bytes": None, "state": f"lost-by-{loss.by}"}
                yield {"node": place.name, "segment": None} | at | _NOTHING
            for file in sorted(filter(_is_aside, place.log.iterdir())):
                head: dict[str, Any] = {"node": place.name, "segment": file.name, "first_lsn": None, "last_lsn": None}
                yield head | {"bytes": file.stat().st_size, "state": "set-aside"} | _NOTHING


def _kept(place: Place) -> Kept | None:
    """Why its node keeps the log; None if it is not the log of a directory, or nobody said."""
    if place.log is None or not place.log.is_dir():
        return None
    with DirectoryDisk(place.log, read_only=True) as disk:
        return read_kept(disk)


def _going(infos: list[SegmentInfo], kept: Kept) -> set[str]:
    """What would go if its node finished a checkpoint now."""
    trim = plan(
        [info for info in infos if info.sealed],
        bytes_now=sum(info.bytes for info in infos),
        bytes_max=kept.bytes_max,
        pin_bytes=kept.pin_bytes,
        older_than_ms=time.time_ns() // 1_000_000 - kept.age_ms if kept.age_ms else 0,
        checkpoint_lsn=max((info.last_lsn for info in infos), default=0),
        open_lsn=None,
        pins={pin.token: pin.lsn for pin in kept.pins},
    )
    return {info.name for info in infos[: trim.count]} if trim is not None else set()


def _is_aside(file: Path) -> bool:
    return ASIDE.fullmatch(file.name) is not None
