"""The log for everybody who is not its node: the command line, Spark, tests. Read-only, of a stopped or a live node.

Works on a directory, on a list of files, or on a `Disk`; takes no lock and writes nothing. `read` is strict and raises
where the log is damaged; `inspect` is tolerant: it reports what is wrong as values, in their place, and goes on with
the next block that verifies. A live node's last block may be half written: that reads as a torn tail, and harms nobody.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from wal.checksum import crc32c
from wal.codec import HEADER_BYTES, FormatError, NewerFormat, SegmentHeader
from wal.disk import DirectoryDisk, DiskMissing, File
from wal.errors import Finding, LogDamaged, LogForeign, LogTooNew
from wal.footer import Ask, Footer, Span, Told
from wal.index import SegmentIndex
from wal.live_notes import read_notes
from wal.scan import RawBlock, Scan, read_block
from wal.segment import Block, SegmentInfo, segment_lsns, segment_name, stored_bytes
from wal.segment_file import Sealed, after, before, decode, load_index, newer, read_header, read_trailer, rebuild
from wal.segment_walk import Choose, SegmentWalk
from wal.stored import open_segment
from wal.walk import Owner, ReadableDisk, Walk

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ReadableDisk
"""A directory, segment files (of one log, from wherever), or a disk."""

Tell: TypeAlias = Callable[[Finding], None]


def read(
    source: Source,
    from_lsn: int = 1,
    to_lsn: int | None = None,
    *,
    owner: Owner | None = None,
    passed: Callable[[SegmentInfo | Finding], None] = lambda _: None,
    briefly: bool = False,
) -> Iterator[Block]:
    """The blocks that hold LSNs `from_lsn` to `to_lsn`, cut to these, as far as the log still has them.

    `briefly`: of the segment that is written, too, what ends below `from_lsn` is passed over, as far as its notes tell, and
    not verified. `passed` is told of each segment once its blocks were read, or passed over, and of damage that is. Raises
    LogDamaged, LogForeign or LogTooNew where it comes upon what they say; a torn tail is where the log ends, and damage
    that only costs what lies below `from_lsn` is passed over.
    """

    def ask(told: Told) -> list[Span] | None:
        return [] if told.trailer.last_lsn < from_lsn else None

    for found in inspect(source, from_lsn, to_lsn, owner=owner, passed=passed, ask=ask if briefly else None):
        if isinstance(found, Block):
            yield found
        elif found.kind == "foreign":
            raise LogForeign(found)
        elif found.kind == "newer":
            raise LogTooNew(found)
        elif found.costs(from_lsn):
            raise LogDamaged(found)
        else:
            passed(found)


def inspect(
    source: Source,
    from_lsn: int = 1,
    to_lsn: int | None = None,
    *,
    owner: Owner | None = None,
    choose: Choose | None = None,
    ask: Ask | None = None,
    segment: int | None = None,
    until: int = 0,
    passed: Callable[[SegmentInfo], None] = lambda _: None,
) -> Iterator[Block | Finding]:
    """The same, tolerantly: what is wrong comes as a `Finding` in its place, and everything that verifies is read.

    With `choose` only the blocks that it says yes to are decoded. Of sealed segments only those are read that `ask` finds
    in their footers, as far as these tell; what was not read is not verified. With `segment` only the one that begins at
    this LSN is read, as one of `parts`, or with `until` all from there on that begin before that. `passed` is told as with
    `read`.
    """
    with source_disk(source) as disk:
        for found in Walk(disk, from_lsn=from_lsn, owner=owner, choose=choose, ask=ask, segment=segment, until=until):
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
                    passed(found)


def asked(
    source: Source, ask: Ask, from_lsn: int = 1, *, but: Collection[int] = (), choose: Choose | None = None
) -> Iterator[Block | Finding]:
    """The blocks that `ask` finds in footers, or in the notes beside; nothing of segments of which none tell, nor of those
    that end before `from_lsn`, or begin with an LSN of `but`."""
    with source_disk(source) as disk:
        lsns = segment_lsns(disk.list())
        for lsn in lsns[max(0, bisect_right(lsns, from_lsn) - 1) :]:
            if lsn in but:
                continue
            try:
                with _opened(disk, lsn) as (file, header):
                    walk = SegmentWalk(file, header, crc32c, after=None, from_lsn=1, everything=False, choose=choose)
                    if walk.trailer is not None:
                        told: Told | None = Footer(file, header, walk.trailer)
                    else:
                        told = read_notes(disk, file, header) if lsn == lsns[-1] else None
                    if told is None:
                        continue
                    try:
                        for found in walk.only(ask(told) or ()):
                            if not isinstance(found, SegmentInfo):
                                yield found
                    except FormatError:
                        continue
                    finally:
                        told.close()
            except LogDamaged:
                continue  # whoever reads all of it is told


def backwards(
    source: Source,
    from_lsn: int = 1,
    to_lsn: int | None = None,
    *,
    owner: Owner | None = None,
    choose: Choose | None = None,
) -> Iterator[Block | Finding]:
    """The same blocks, the newest first, after all that is wrong. The log is verified once, forwards, and then read back.

    What is kept in between is the place of each block that is to be read. What is trimmed meanwhile is passed over.
    """
    places: list[tuple[int, array[int]]] = []  # (a segment's first LSN, where its blocks are)

    def note(raw: RawBlock) -> bool:
        if (to_lsn is None or raw.header.first_lsn <= to_lsn) and (choose is None or choose(raw)):
            if not places or places[-1][0] != raw.segment:
                places.append((raw.segment, array("Q")))
            places[-1][1].append(raw.offset)
        return False

    with source_disk(source) as disk:
        for found in Walk(disk, from_lsn=from_lsn, owner=owner, choose=note):
            if isinstance(found, Finding):
                yield found
        for segment, offsets in reversed(places):
            try:
                for block in _blocks_at(disk, segment, reversed(offsets)):
                    part = after(block, from_lsn)
                    yield part if to_lsn is None else before(part, to_lsn + 1)
            except LogDamaged:
                if segment < min(segment_lsns(disk.list()), default=segment):
                    return  # a node has trimmed its log meanwhile: it begins behind this one
                raise


def _blocks_at(disk: ReadableDisk, segment: int, offsets: Iterable[int]) -> Iterator[Block]:
    """The blocks at these places of one segment; LogDamaged where there is none any more."""
    with _opened(disk, segment) as (file, header):
        for offset in offsets:
            try:
                yield decode(read_block(file, header, offset), segment_name(segment))
            except FormatError as error:
                what = f"a block that had verified does not any more: {error}"
                raise LogDamaged(_lost(segment, 0, what)) from error


def parts(source: Source) -> list[int]:
    """The first LSNs of all segments: what can be read by many at a time, each one by itself."""
    with source_disk(source) as disk:
        return segment_lsns(disk.list())


def list_segments(source: Source, *, owner: Owner | None = None, tell: Tell = lambda _: None) -> list[SegmentInfo]:
    """All segments whose header can be read, the oldest first, and `tell` of what is wrong with their files.

    Reads the blocks of the last one only.
    """
    infos: list[SegmentInfo] = []
    with source_disk(source) as disk:
        for found in Walk(disk, from_lsn=2**63, owner=owner):
            if isinstance(found, SegmentInfo):
                infos.append(found)
            elif isinstance(found, Finding):
                tell(found)
    return infos


class Indexed(msgspec.Struct, frozen=True):
    """A segment's blocks and the fragments in them, and where its last block ends."""

    segment: str
    index: SegmentIndex
    end: int


def indexes(source: Source) -> Iterator[Indexed]:
    """The index of each segment, the oldest first: from its footer, or from its blocks up to the first that is broken."""
    with source_disk(source) as disk:
        for lsn in segment_lsns(disk.list()):
            with _opened(disk, lsn) as (file, header):
                try:
                    sealed = Sealed(header, read_trailer(file, header), archived=stored_bytes(file))
                    yield Indexed(sealed.name, load_index(file, sealed), sealed.trailer.end)
                except FormatError:
                    builder, scan = rebuild(file, header, min(file.size(), header.capacity))
                    yield Indexed(builder.name, builder.index, scan.offset)


def begins(source: Source) -> int:
    """The LSN that the log begins with, by its files' names; 1 if there are none."""
    with source_disk(source) as disk:
        return min(segment_lsns(disk.list()), default=1)


def follow(source: Source, from_lsn: int = 1, *, wait: Callable[[], bool]) -> Iterator[Block]:
    """The blocks from `from_lsn` on, as far as the log has them, and then those that are appended, across rotations.

    At the end of the log `wait` is called: it sleeps as long as it likes, and returns False to stop. Raises LogDamaged
    where the log was trimmed under it, or does not go on where it was.
    """
    for found in appended(source, from_lsn):
        if isinstance(found, Finding):
            raise LogDamaged(found)
        if found is not None:
            yield found
        elif not wait():
            return


def appended(source: Source, from_lsn: int = 1) -> Iterator[Block | Finding | None]:
    """The same for who follows several logs: None at the end, each time it is reached, and then on from there.

    What was trimmed before it was read comes as a `Finding`, and then what is there still. Archives are read as the
    segments that they are. Raises LogDamaged where the log does not go on where it was.
    """
    with source_disk(source) as disk:
        segment = 0
        place: tuple[int, int, int] | None = None  # where the last scan stood: offset, LSN, crc
        while True:
            lsns = segment_lsns(disk.list())
            if segment and segment not in lsns and lsns and lsns[0] > segment:
                known, segment, place = place[1] if place is not None else segment, lsns[0], None
                if segment > known:
                    gone = _lost(segment, known, "the log was trimmed before this was read")
                    yield msgspec.structs.replace(
                        gone, cost=f"the records from LSN {known} to {segment - 1}", until=segment
                    )
            segment = segment or max((lsn for lsn in lsns if lsn <= from_lsn), default=min(lsns, default=0))
            if segment:
                successor = next((lsn for lsn in lsns if lsn > segment), None)  # listed first: then this one is complete
                try:
                    with _opened(disk, segment) as (file, header):
                        if place is not None and place[0] == HEADER_BYTES:
                            place = None  # nothing was in it yet, and it may have been replaced by a larger one
                        scan = Scan(file, header, limit=min(file.size(), header.capacity), place=place)
                        for raw in scan:
                            place = scan.offset, scan.lsn, scan.crc
                            if raw.header.records and raw.header.last_lsn >= from_lsn:
                                yield after(decode(raw, segment_name(segment)), from_lsn)
                        place = scan.offset, scan.lsn, scan.crc
                    if successor is not None:
                        with _opened(disk, successor) as (_, header):
                            known_by = header.previous_end, header.previous_lsn + 1, header.previous_crc
                        if known_by != place:
                            what = f"the segment follows {known_by}: expected {place}"
                            raise LogDamaged(_lost(successor, place[1], what))
                        segment, place = successor, None
                        continue
                except LogDamaged:
                    left = segment_lsns(disk.list())
                    if not left or left[0] <= (successor or segment):
                        raise
                    continue  # it was trimmed just now
            yield None


@contextmanager
def _opened(disk: ReadableDisk, lsn: int) -> Iterator[tuple[File, SegmentHeader]]:
    """The segment that begins at `lsn`; LogDamaged or LogTooNew if it cannot be used."""
    try:
        file = open_segment(disk, lsn)
    except DiskMissing as error:
        raise LogDamaged(_lost(lsn, lsn, "the segment was removed while it was followed")) from error
    try:
        yield file, read_header(file)
    except NewerFormat as error:
        raise LogTooNew(newer(error, segment_name(lsn), 0, lsn)) from error
    except FormatError as error:
        raise LogDamaged(msgspec.structs.replace(_lost(lsn, lsn, str(error)), kind="damaged")) from error
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
        path = self._paths.get(name)
        if path is None:
            raise DiskMissing("open", name, "it was not given")
        with DirectoryDisk(path.parent, read_only=True) as disk:
            return disk.open(path.name)


@contextmanager
def source_disk(source: Source) -> Iterator[ReadableDisk]:
    """A source as a disk; what is opened for that is closed again."""
    if isinstance(source, str | os.PathLike):
        with DirectoryDisk(source, read_only=True) as disk:
            yield disk
    elif isinstance(source, Sequence):
        yield _Files(source)
    else:
        yield source
