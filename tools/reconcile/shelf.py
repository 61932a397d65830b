"""A log by partition, so that each of many shares reads of it what is its own.

A log is in the order of time, and most of its blocks speak of most partitions: who reads a share of it decodes all of it.
So it is put down in a folder, sorted by partition, a segment at a time: by tasks of their own (`put_down_piece`), or by
the first share that asks it; shares read the runs of their partitions. What lies there is what `tools.wal.rows` listens
to, and nothing else. It only spares work: where the folder is not to be seen, has no room, or anything is odd about a
segment, there is no such file, and the log itself is read from there on.

```
HASH-LSN         of a segment, runs, one behind the other: of each partition, ascending, its entries, each a block's LSN
                 and a record
HASH-LSN.index   how far it reaches, and where in each run a partition lies
```
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from xxhash import xxh3_128_hexdigest

from tools.reconcile.fetched import here
from tools.reconcile.uncollected import uncollected
from tools.wal.rows import HEARD
from wal import begins, parts
from wal.ids import NodeId
from wal.packed import PackedBlock, PackedHistory, PackedUpdate, Skimmed, SkimmedType, skim

RUN_BYTES = 32 << 20
"""So much is sorted in memory at a time."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where the entries of one partition lie in a run, and how many they are."""

    offset: int
    length: int
    entries: int


class Index(msgspec.Struct, frozen=True):
    """A segment up to `last_lsn`, 0 if it is to be read as it is; and of each run, where partitions lie."""

    last_lsn: int = 0
    runs: list[dict[int, Place]] = []


class Piece(msgspec.Struct, frozen=True):
    """A segment of a node's log, by the LSN it begins at; and the folder where it is to lie by partition."""

    path: str
    node: NodeId
    shelf: str
    segment: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record of one partition, and the first LSN of its block."""

    lsn: int
    record: SkimmedType


_encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(list[Entry]).decode
_index = msgspec.msgpack.Decoder(Index).decode


def put_down(wal: Path, shelf: Path, node: NodeId, segment: int, run_bytes: int = RUN_BYTES) -> Index:
    """A segment by partition: as whoever came first has put it down, or put down now. Raises OSError."""
    place = _place(shelf, node, segment)
    index = place.with_suffix(".index")
    with _alone(place.with_suffix(".lock")):
        if index.exists():
            return _index(index.read_bytes())
        with place.open("wb") as file:
            found = _put_down(wal, segment, _Sorting(file, run_bytes, segment))
        index.write_bytes(_encode(found))
        return found


@uncollected
def put_down_piece(piece: Piece) -> None:
    """Put a segment down, so that no share has to while others wait for it; where it cannot be, it is read as it is."""
    if Path(piece.shelf).is_dir():
        with suppress(OSError):
            put_down(here(piece.path) / "wal", Path(piece.shelf), piece.node, piece.segment)


def of_partitions(
    shelf: Path, node: NodeId, segments: Mapping[int, Index], partitions: Iterable[int]
) -> Iterator[list[Entry]]:
    """What some segments have of these partitions, in the log's order for each of them, a run at a time."""
    wanted = sorted(set(partitions))
    for segment, index in segments.items():
        with _place(shelf, node, segment).open("rb") as file:
            for run in index.runs:
                for number in wanted:
                    place = run.get(number)
                    if place is not None:
                        file.seek(place.offset)
                        yield _entries(b"\xdd" + place.entries.to_bytes(4, "big") + file.read(place.length))


def _of(node: NodeId) -> str:
    """A name of ours: that of a node is whatever stands in a file of somebody's directory."""
    return xxh3_128_hexdigest(node.encode())


def _place(shelf: Path, node: NodeId, segment: int) -> Path:
    return shelf / f"{_of(node)}-{segment}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else is in here meanwhile; who dies leaves it."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _put_down(wal: Path, segment: int, sorting: _Sorting) -> Index:
    """Sort a segment. One that is trimmed meanwhile, or of which anything is not understood, is left alone."""
    found = skim(wal, sorting.take, segment=segment)
    if begins(wal) > segment or any(one.damage or one.kind == "newer" for one in found):
        return Index()
    sorting.end_run()
    return Index(sorting.last_lsn, sorting.runs)


class _Sorting:
    """Takes a segment block by block, and writes what it has by partition whenever that is much."""

    def __init__(self, file: BinaryIO, run_bytes: int, segment: int) -> None:
        self.last_lsn = segment - 1
        self.runs: list[dict[int, Place]] = []
        self._file, self._run_bytes = file, run_bytes
        self._held: dict[int, list[bytes]] = {}
        self._bytes = 0

    def take(self, block: PackedBlock) -> None:
        """Read on."""
        lsn = block.first_lsn
        for record in block.records:
            if isinstance(record, PackedUpdate | PackedHistory):
                for write in record.writes:
                    self._keep(write.partition, lsn, PackedUpdate([write]))
            elif isinstance(record, HEARD):
                self._keep(record.partition, lsn, record)
        self.last_lsn = lsn + len(block.records) - 1
        if self._bytes >= self._run_bytes:
            self.end_run()

    def _keep(self, partition: int, lsn: int, record: Skimmed) -> None:
        data = _encode((lsn, record))
        self._bytes += len(data)
        held = self._held.get(partition)
        if held is None:
            self._held[partition] = [data]
        else:
            held.append(data)

    def end_run(self) -> None:
        """Write what there is."""
        run: dict[int, Place] = {}
        offset = self._file.tell()
        for number in sorted(self._held):
            entries = self._held[number]
            data = b"".join(entries)
            self._file.write(data)
            run[number] = Place(offset, len(data), len(entries))
            offset += len(data)
        self.runs.append(run)
        self._held, self._bytes = {}, 0


def shelved(wal: Path, shelf: str, node: NodeId) -> dict[int, Index]:
    """The first segments of a log by partition, without a gap between them; none where that cannot be."""
    found: dict[int, Index] = {}
    if not shelf or not Path(shelf).is_dir():
        return found
    with suppress(OSError):  # no room, or not our folder: then each share reads the log
        there = {int(one.stem.rpartition("-")[2]) for one in Path(shelf).glob(f"{_of(node)}-*.index")}
        following = 0
        for segment in sorted(there | set(parts(wal))):
            if following and segment != following:
                break
            index = put_down(wal, Path(shelf), node, segment)
            if not index.last_lsn:
                break
            found[segment] = index
            following = index.last_lsn + 1
    if found and begins(wal) > following:
        return {}  # what lies between was trimmed since
    return found


def split(entries: Sequence[Entry], lsn: int) -> tuple[list[Skimmed], list[Skimmed]]:
    """The records up to an LSN, where a block ends, and those behind it."""
    if not entries or entries[-1].lsn <= lsn:
        return [entry.record for entry in entries], []
    return [e.record for e in entries if e.lsn <= lsn], [e.record for e in entries if e.lsn > lsn]
