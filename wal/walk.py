"""A tolerant walk over a log: everything that verifies, and, in its place, whatever is wrong, as values.

Where a block does not verify, the walk says so, looks for the next that does, and goes on from there. It is what tools
read with; a node reads with `wal.recovery` and stops instead. Both draw the line between a torn tail and damage alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Protocol, TypeAlias

import msgspec

from wal.archive import ArchiveFile, open_segment, stored_bytes, stored_name
from wal.checksum import Checksum, crc32c
from wal.codec import INDEX_FORMS, TRAILER_BYTES, FormatError, NewerFormat, NothingHere, SegmentHeader, Trailer
from wal.disk import DiskMissing, File
from wal.errors import Finding, Kind, LogTooNew
from wal.ids import Fragment
from wal.index import touched_by
from wal.probe import probe
from wal.records import Record
from wal.scan import RawBlock, Scan, nonzero_end, read_block, survivors
from wal.segment import Block, SegmentBuilder, SegmentInfo, segment_lsns, segment_name
from wal.segment_file import Sealed, decode, read_header, read_index, read_trailer, wrong_size

Found: TypeAlias = Block | Finding | SegmentInfo
"""A segment's info comes after its blocks."""

Owner: TypeAlias = tuple[str, str]
"""The cluster and the node that a log belongs to."""

Choose: TypeAlias = Callable[[RawBlock], bool]
"""Which blocks are decoded: the others are verified all the same, and not told of."""


class ReadableDisk(Protocol):
    """The half of `wal.disk.Disk` that a reader needs."""

    def list(self) -> list[str]:
        """All names, sorted."""
        ...

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        ...


class Walk:
    """Iterates once over all segments. Segments that end before `from_lsn` are passed over, unless `everything`.

    `everything` also compares footers with blocks and looks for bytes where zeros should be; `indexes`, which needs all
    blocks decoded, compares what footers say of fragments as well. `owner` is whose log this should be: that it is
    another's is told once, and then it is read all the same. Segments of yet other logs are not.
    With `fragments` a segment whose footer tells which blocks speak of these is read there only, and what was not read is
    not verified. With `segment` only the one that begins at this LSN is walked, or with `until` those from there on that
    begin before that, and how it follows the one before it: so many walks, each of a part, find together what one of all
    finds.
    """

    def __init__(
        self,
        disk: ReadableDisk,
        *,
        from_lsn: int = 1,
        checksum: Checksum = crc32c,
        everything: bool = False,
        indexes: bool = False,
        owner: Owner | None = None,
        choose: Choose | None = None,
        fragments: Collection[Fragment] | None = None,
        segment: int | None = None,
        until: int = 0,
    ) -> None:
        assert everything or not indexes, "an index is a part of everything"
        assert choose is None or not indexes, "an index is held against all blocks"
        self._disk = disk
        self._indexes = indexes
        self._fragments = fragments
        self._only = segment
        self._before = until or (segment or 0) + 1
        self._choose = choose
        self._from_lsn = from_lsn
        self._checksum = checksum
        self._everything = everything
        self._owner = owner
        self._log: Owner | None = None  # whose segments are read: the owner's if there are any, else the first one's
        self.first: SegmentHeader | None = None
        """The first segment's header, once the walk has begun, if it can be read."""
        self._ended: tuple[str, int, int, int] | None = None  # name, last LSN, end, last crc of the segment before

    def __iter__(self) -> Iterator[Found]:
        lsns = segment_lsns(self._disk.list())
        known: dict[int, SegmentHeader | Finding | None] = {}  # read when they are asked for: a part of a log needs few

        def header_at(at: int) -> SegmentHeader | Finding | None:
            if at not in known and at < len(lsns):
                known[at] = self._header(lsns[at])
            return known.get(at)

        read = (header for at in range(len(lsns)) if isinstance(header := header_at(at), SegmentHeader))
        one = next(read, None)
        mine = next((header for header in chain([one] if one else [], read) if self._owner in (None, _owner(header))), one)
        self._log = _owner(mine) if mine is not None else None
        self.first = one if one is not None and header_at(0) == one else None
        if self._owner not in (None, self._log) and one is not None and self._only in (None, *lsns[:1]):
            what = f"a log of node {one.node!r} in cluster {one.cluster!r}: expected {_named(self._owner)}"
            cost = "nothing, where it belongs; what its node had here is not here"
            yield _finding("foreign", segment_name(one.first_lsn), 0, one.first_lsn, what=what, cost=cost)
        begin, end = 0, len(lsns)
        if self._only is not None:
            begin, end = bisect_left(lsns, self._only), bisect_left(lsns, self._before)
            if 0 < begin < end:
                self._pass_over(self._ours(lsns[begin - 1], header_at(begin - 1)), header_at(begin))
        for at in range(begin, end):
            header, after = self._ours(lsns[at], header_at(at)), header_at(at + 1)
            known.pop(at)
            if isinstance(header, Finding):
                until = after.first_lsn if isinstance(after, SegmentHeader) else 0
                yield msgspec.structs.replace(header, until=until)
                self._ended = None
            elif header is not None:
                link = self._link(header)
                if link is not None:
                    yield link
                yield from self._segment(header, after)

    def _header(self, lsn: int) -> SegmentHeader | Finding | None:
        """A segment's header, or what is wrong with it; None if it was removed meanwhile."""
        lost = f"the records from LSN {lsn} on that were in this segment"
        try:
            file = open_segment(self._disk, lsn)
        except DiskMissing:
            return None
        name = stored_name(file, lsn)
        try:
            header = read_header(file, self._checksum)
        except NewerFormat as error:
            return _finding("newer", name, 0, lsn, what=str(error), cost="nothing, with the version that wrote it")
        except FormatError as error:
            return _finding("damaged", name, 0, lsn, what=str(error), cost=lost)
        finally:
            file.close()
        return header

    def _ours(self, lsn: int, header: SegmentHeader | Finding | None) -> SegmentHeader | Finding | None:
        """A segment's header, or that it is no segment of the log that is read, or none of this place in it."""
        if not isinstance(header, SegmentHeader):
            return header
        lost = f"the records from LSN {lsn} on that were in this segment"
        if _owner(header) != self._log:
            what = f"a segment of node {header.node!r} in cluster {header.cluster!r}: expected {_named(self._log)}"
            return _finding("foreign", segment_name(lsn), 0, lsn, what=what, cost=lost)
        if header.first_lsn != lsn:
            what = f"the segment begins at LSN {header.first_lsn}: expected {lsn}, by the file's name"
            return _finding("replaced", segment_name(lsn), 0, lsn, what=what, cost=lost)
        return header

    def _link(self, header: SegmentHeader) -> Finding | None:
        if self._ended is None:
            return None
        before, *ended = self._ended
        known = [header.previous_lsn, header.previous_end, header.previous_crc]
        if ended == known:
            return None
        name, lost = segment_name(header.first_lsn), ended[0] + 1
        if known[0] > ended[0]:
            what = f"the segment follows LSN {known[0]}: the log before it ends with LSN {ended[0]} in {before}"
            cost = f"the records from LSN {lost} to {known[0]}"
            return _finding("missing", name, 0, lost, what=what, cost=cost, until=header.first_lsn)
        what = f"the segment follows LSN {known[0]}, end {known[1]}: {before} ends with LSN {ended[0]} at {ended[1]}"
        return _finding("replaced", name, 0, lost, what=what, cost="which of the two belongs here cannot be told")

    def _pass_over(self, header: SegmentHeader | Finding | None, after: SegmentHeader | Finding | None) -> None:
        """Learn how the segment before the only one ended, of which somebody else tells."""
        if isinstance(header, SegmentHeader):
            try:
                with closing(open_segment(self._disk, header.first_lsn)) as file:
                    walk = _SegmentWalk(
                        file, header, self._checksum, after=after, from_lsn=0, everything=False, choose=lambda _: False
                    )
                    if walk.trailer is None:
                        deque(walk, maxlen=0)
                    self._ended = walk.ended
            except DiskMissing:
                pass

    def _segment(self, header: SegmentHeader, after: SegmentHeader | Finding | None) -> Iterator[Found]:
        try:
            file = open_segment(self._disk, header.first_lsn)
        except DiskMissing:
            self._ended = None
            return
        try:
            walk = _SegmentWalk(
                file,
                header,
                self._checksum,
                after=after,
                from_lsn=0 if self._everything else self._from_lsn,
                everything=self._everything,
                indexes=self._indexes,
                choose=self._choose,
            )
            if walk.trailer is not None and walk.trailer.last_lsn < self._from_lsn and not self._everything:
                yield walk.sealed().info()
            elif walk.trailer is not None and (places := self._places(file, walk.sealed())) is not None:
                yield from walk.only(places)
            else:
                yield from walk
            self._ended = walk.ended
        finally:
            file.close()

    def _places(self, file: File, sealed: Sealed) -> list[int] | None:
        """Where the blocks are that speak of the fragments; None if all are to be read."""
        if self._fragments is None:
            return None
        try:
            index = read_index(file, sealed, self._checksum, self._fragments)
        except FormatError:
            return None  # the blocks say the same
        ordinals = index.speaking_of(self._fragments)
        return None if ordinals is None else [index.starts[ordinal] for ordinal in ordinals]


class _SegmentWalk:
    """One segment. `ended` is how it ended, if that can be told: name, last LSN, end, last crc."""

    def __init__(
        self,
        file: File,
        header: SegmentHeader,
        checksum: Checksum,
        *,
        after: SegmentHeader | Finding | None,
        from_lsn: int,
        everything: bool,
        choose: Choose | None,
        indexes: bool = False,
    ) -> None:
        last = after is None
        self.name = stored_name(file, header.first_lsn)
        self.problem: Finding | None = None
        self.trailer: Trailer | None = None
        try:
            self.trailer = read_trailer(file, header, checksum)
        except NothingHere as error:
            if not last:
                self.problem = self._footer_problem(header, str(error))
        except FormatError as error:
            self.problem = self._footer_problem(header, str(error))
        self._file = file
        self._header = header
        self._checksum = checksum
        self._last = last and self.trailer is None
        self._from_lsn = from_lsn
        self._everything = everything
        self._indexes = indexes
        self._choose = choose
        self._size = min(file.size(), header.capacity)
        self._resized = wrong_size(file, header)
        self._until = after.first_lsn if isinstance(after, SegmentHeader) else 0
        self._limit = self._size if self.trailer is None else self.trailer.end
        self._builder = SegmentBuilder(header)
        self._whole = True  # so far every block verified, and the builder has them all, if it is needed
        self._builds = everything or self.trailer is None  # else the trailer says all that is asked
        self.ended: tuple[str, int, int, int] | None = None
        if self.trailer is not None:
            self.ended = (self.name, self.trailer.last_lsn, self.trailer.end, self.trailer.last_crc)

    def __iter__(self) -> Iterator[Found]:
        scan = Scan(self._file, self._header, limit=self._limit, checksum=self._checksum)
        stop: Finding | None = None
        while True:
            yield from self._blocks(scan)
            stop = self._judge(scan)
            if stop is None:
                break
            if self._last and self._grew(scan):
                scan = self._from(scan)
                continue
            yield stop
            if not stop.damage:
                break
            self._whole = False
            onward = next(self._survivors(scan), None)
            if onward is None:
                break
            probe("wal.walk.resumed_behind_damage")
            place = onward.offset, onward.header.first_lsn, onward.header.previous_crc
            scan = Scan(self._file, self._header, limit=self._limit, checksum=self._checksum, place=place)
        if self._resized and stop is None:
            cost = f"the records from LSN {scan.lsn} on, and nobody can tell from here whether there were any"
            if self._until == scan.lsn:
                cost = "nothing: the segment behind it follows what is here"
            yield self._finding("damaged", scan, self._resized, cost, until=self._until)
        if self.trailer is None and self._whole and not self._resized:
            self.ended = (self.name, scan.lsn - 1, scan.offset, scan.crc)
        if self._everything and not self._last:
            yield from self._footer()
        if isinstance(self._file, ArchiveFile):
            yield from self._archive(self._file, scan)
        yield self._info(scan)

    def only(self, offsets: Iterable[int]) -> Iterator[Found]:
        """The blocks at these places, which a footer knows, and nothing else."""
        assert self.trailer is not None, "only a sealed segment has a footer"
        for offset in offsets:
            try:
                raw = read_block(self._file, self._header, offset)
                if (
                    raw.header.records
                    and raw.header.last_lsn >= self._from_lsn
                    and (self._choose is None or self._choose(raw))
                ):
                    yield decode(raw, self.name)
            except FormatError as error:
                cost = "what this block says, or the footer lies that led to it: `foreshore wal verify` tells which"
                yield _finding("damaged", self.name, offset, self._header.first_lsn, what=str(error), cost=cost)
            except LogTooNew as error:
                yield error.finding
        yield self.sealed().info()

    def sealed(self) -> Sealed:
        """It, with its trailer, which can be read."""
        assert self.trailer is not None, f"{self.name} is not sealed"
        return Sealed(self._header, self.trailer, whole=True, archived=stored_bytes(self._file))

    def _from(self, scan: Scan) -> Scan:
        """A scan that goes on where another one ended, with what is in the file now."""
        place = scan.offset, scan.lsn, scan.crc
        return Scan(self._file, self._header, limit=self._limit, checksum=self._checksum, place=place)

    def _grew(self, scan: Scan) -> bool:
        """Whether the next block is there by now: a live log grows while it is read, and what lay behind it told."""
        grew = next(iter(self._from(scan)), None) is not None
        if grew:
            probe("wal.walk.grew_meanwhile")
        return grew

    def _blocks(self, scan: Scan) -> Iterator[Found]:
        for raw in scan:
            records: list[Record] = []
            wanted = raw.header.records and raw.header.last_lsn >= self._from_lsn
            if wanted and (self._choose is None or self._choose(raw)):
                try:
                    block = decode(raw, self.name)
                except LogTooNew as error:
                    self._whole = False
                    yield error.finding
                    continue
                records = block.records
                yield block
            if self._whole and self._builds:
                self._builder.add(raw.header, touched_by(records) if self._indexes else {})

    def _judge(self, scan: Scan) -> Finding | None:
        """What it means that the scan ended here; None if that is as it should be."""
        trailer = self.trailer
        if trailer is not None:
            if (scan.offset, scan.lsn - 1, scan.crc) == (trailer.end, trailer.last_lsn, trailer.last_crc):
                return None
        elif not self._last and not scan.stop:
            return None  # its successor knows where it ended
        what = scan.stop or "zeros where a block should be"
        if scan.newer is not None:
            return self._finding("newer", scan, what, "nothing, with the version that wrote it")
        if self._last:
            torn_end = nonzero_end(self._file, scan.offset, self._size)
            if torn_end == scan.offset:
                return None
            proven = any(raw.header.synced_to > scan.offset for raw in self._survivors(scan))
            if not proven and self._resized:
                return None  # that is said, and it is worse
            if not proven:
                what = f"{what}; {torn_end - scan.offset} bytes"
                return self._finding("torn", scan, what, "nothing that was promised, unless it was the last sync")
        onward = next(self._survivors(scan), None)
        until = onward.header.first_lsn if onward is not None else self._until
        cost = f"the records from LSN {scan.lsn} {f'to {until - 1}' if until else 'on'}"
        if until == scan.lsn:
            cost = "nothing: there were no records in it"
        return self._finding("damaged", scan, what, cost, until=until)

    def _survivors(self, scan: Scan) -> Iterator[RawBlock]:
        return survivors(self._file, self._header, offset=scan.offset, limit=self._limit, lsn=scan.lsn)

    def _footer(self) -> Iterator[Finding]:
        """What is wrong with the footer of a segment that has one, and with the space before it."""
        if self.problem is not None:
            yield self.problem
        if self.trailer is None or not self._whole:
            return
        ends = self._footer_begins(self.trailer)
        if ends is None:
            yield self._footer_problem(self._header, "the index says other than the blocks")
        elif (stray := nonzero_end(self._file, self._builder.end, ends)) > self._builder.end:
            what = f"bytes up to offset {stray} that are no block: expected zeros up to {ends}"
            name, end = self.name, self._builder.end
            yield _finding("stray", name, end, self._builder.next_lsn, what=what, cost="nothing")

    def _footer_begins(self, trailer: Trailer) -> int | None:
        """Where a footer begins that says what the blocks do, as far as they were looked at; None for any other."""
        if self._indexes:
            known = map(self._builder.footer, range(INDEX_FORMS))
            return next((offset for _, offset, footer in known if self._file.read(offset, len(footer)) == footer), None)
        try:
            index = read_index(self._file, self.sealed(), self._checksum, only=())
        except FormatError:
            return None
        alike = trailer._replace(index_bytes=0, index_crc=0) == self._builder.trailer()
        return (
            self._header.capacity - TRAILER_BYTES - trailer.index_bytes
            if alike and index.starts == self._builder.index.starts
            else None
        )

    def _archive(self, file: ArchiveFile, scan: Scan) -> Iterator[Finding]:
        """What of an archive cannot be given back."""
        for problem in file.problems:
            cost = "the records in it, which a reader of the segment finds to be zeros"
            yield self._finding("newer" if file.newer else "damaged", scan, problem, cost)

    def _info(self, scan: Scan) -> SegmentInfo:
        if self.trailer is not None:
            return self.sealed().info()
        info = self._builder.info()
        return info if self._whole else msgspec.structs.replace(info, last_lsn=scan.lsn - 1)

    def _finding(self, kind: Kind, scan: Scan, what: str, cost: str, until: int = 0) -> Finding:
        return _finding(kind, self.name, scan.offset, scan.lsn, what=what, cost=cost, until=until)

    def _footer_problem(self, header: SegmentHeader, what: str) -> Finding:
        cost = "nothing: it is made again from the blocks"
        return _finding("index", self.name, header.capacity, header.first_lsn, what=what, cost=cost)


def _finding(kind: Kind, segment: str, offset: int, lsn: int, what: str, cost: str, *, until: int = 0) -> Finding:
    return Finding(kind=kind, segment=segment, offset=offset, lsn=lsn, what=what, cost=cost, until=until)


def _owner(header: SegmentHeader) -> Owner:
    return header.cluster, header.node


def _named(owner: Owner | None) -> str:
    return f"{owner[1]!r} in {owner[0]!r}" if owner is not None else "nobody's"
