"""The log for everybody who is not its node: the command line, Spark, tests. Read-only, of a stopped or a live node.

Works on a directory, on a list of files, or on a `Disk`; takes no lock and writes nothing. `read` is strict and raises
where the log is damaged; `inspect` is tolerant: it reports what is wrong as values, in their place, and goes on with
the next block that verifies. A live node's last block may be half written: that reads as a torn tail, and harms nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from wal.checksum import crc32c, reference_crc32c
from wal.codec import HEADER_BYTES, FormatError, SegmentHeader
from wal.disk import DirectoryDisk, DiskMissing, File
from wal.errors import Finding, LogDamaged, LogForeign, LogTooNew
from wal.scan import Scan
from wal.segment import Block, SegmentInfo, segment_lsn, segment_name
from wal.segment_file import after, before, decode, read_header
from wal.walk import ReadableDisk, Walk

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ReadableDisk
"""A directory, segment files (of one log, from wherever), or a disk."""


class Report(msgspec.Struct, kw_only=True):
    """What `verify` found. `last_lsn` is one less than `first_lsn` where there are no records."""

    segments: list[SegmentInfo]
    findings: list[Finding]
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    first_lsn: int = 1
    last_lsn: int = 0

    @property
    def damaged(self) -> bool:
        """Whether promised records may be lost; a torn tail is no damage."""
        return any(finding.damage for finding in self.findings)


def read(source: Source, from_lsn: int = 1, to_lsn: int | None = None) -> Iterator[Block]:
    """The blocks that hold LSNs `from_lsn` to `to_lsn`, cut to these, as far as the log still has them.

    Raises LogDamaged, LogForeign or LogTooNew where it comes upon what they say; a torn tail is where the log ends.
    """
    for found in inspect(source, from_lsn, to_lsn):
        if isinstance(found, Block):
            yield found
        elif found.kind == "foreign":
            raise LogForeign(found)
        elif found.kind == "newer":
            raise LogTooNew(found)
        elif found.damage:
            raise LogDamaged(found)


def inspect(source: Source, from_lsn: int = 1, to_lsn: int | None = None) -> Iterator[Block | Finding]:
    """The same, tolerantly: what is wrong comes as a `Finding` in its place, and everything that verifies is read."""
    for found in Walk(_disk_of(source), from_lsn=from_lsn):
        match found:
            case Finding():
                yield found
            case Block(first_lsn):
                if to_lsn is not None and first_lsn > to_lsn:
                    return
                if found.last_lsn >= from_lsn:
                    block = after(found, from_lsn)
                    yield block if to_lsn is None else before(block, to_lsn + 1)
            case SegmentInfo():
                pass


def verify(source: Source, *, reference: bool = False) -> Report:
    """Read all of it: chain, checksums, LSNs, footers and unused space.

    With `reference` every checksum is computed by crcmod instead of the hardware: slower, and independent of it.
    """
    report = Report(segments=[], findings=[])
    for found in Walk(_disk_of(source), checksum=reference_crc32c if reference else crc32c, everything=True):
        match found:
            case Finding():
                report.findings.append(found)
            case SegmentInfo():
                report.segments.append(found)
            case Block(first_lsn, _, records):
                if not report.blocks:
                    report.first_lsn, report.last_lsn = first_lsn, first_lsn - 1
                report.blocks += 1
                report.records += len(records)
                report.bytes += found.bytes
                report.last_lsn = found.last_lsn
    return report


def list_segments(source: Source) -> list[SegmentInfo]:
    """All segments whose header can be read, the oldest first. Reads the blocks of the last one only."""
    return [found for found in Walk(_disk_of(source), from_lsn=2**63) if isinstance(found, SegmentInfo)]


def follow(source: Source, from_lsn: int = 1, *, wait: Callable[[], bool]) -> Iterator[Block]:
    """The blocks from `from_lsn` on, as far as the log has them, and then those that are appended, across rotations.

    At the end of the log `wait` is called: it sleeps as long as it likes, and returns False to stop. Raises LogDamaged
    where the log was trimmed under it, or does not go on where it was.
    """
    disk = _disk_of(source)
    segment = 0
    place: tuple[int, int, int] | None = None  # where the last scan stood: offset, LSN, crc
    while True:
        lsns = sorted(lsn for lsn in map(segment_lsn, disk.list()) if lsn is not None)
        segment = segment or max((lsn for lsn in lsns if lsn <= from_lsn), default=min(lsns, default=0))
        if segment:
            successor = next((lsn for lsn in lsns if lsn > segment), None)  # listed first: then this one is complete
            with _opened(disk, segment) as (file, header):
                if place is not None and place[0] == HEADER_BYTES:
                    place = None  # nothing was in it yet, and it may have been replaced by a larger one
                scan = Scan(file, header, limit=min(file.size(), header.capacity), place=place)
                for raw in scan:
                    if raw.header.records and raw.header.last_lsn >= from_lsn:
                        yield after(decode(raw, segment_name(segment)), from_lsn)
                place = scan.offset, scan.lsn, scan.crc
            if successor is not None:
                with _opened(disk, successor) as (_, header):
                    known = header.previous_end, header.previous_lsn + 1, header.previous_crc
                if known != place:
                    raise LogDamaged(_lost(successor, place[1], f"the segment follows {known}: expected {place}"))
                segment, place = successor, None
                continue
        if not wait():
            return


@contextmanager
def _opened(disk: ReadableDisk, lsn: int) -> Iterator[tuple[File, SegmentHeader]]:
    """The segment that begins at `lsn`; LogDamaged if it cannot be used."""
    try:
        file = disk.open(segment_name(lsn))
    except DiskMissing as error:
        raise LogDamaged(_lost(lsn, lsn, "the segment was removed while it was followed")) from error
    try:
        yield file, read_header(file)
    except FormatError as error:
        raise LogDamaged(_lost(lsn, lsn, str(error))) from error
    finally:
        file.close()


def _lost(segment: int, lsn: int, what: str) -> Finding:
    cost = f"the records from LSN {lsn} on"
    return Finding(kind="missing", segment=segment_name(segment), offset=0, lsn=lsn, what=what, cost=cost)


class _Files:
    """Segment files from anywhere, as one disk; of files with the same name the last counts."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._paths = {Path(path).name: Path(path) for path in paths}

    def list(self) -> list[str]:
        return sorted(self._paths)

    def open(self, name: str, write: bool = False) -> File:
        assert not write, f"{name} was opened for writing by a reader"
        path = self._paths[name]
        with DirectoryDisk(path.parent, read_only=True) as disk:
            return disk.open(path.name)


def _disk_of(source: Source) -> ReadableDisk:
    if isinstance(source, str | os.PathLike):
        return DirectoryDisk(source, read_only=True)
    if isinstance(source, Sequence):
        return _Files(source)
    return source
