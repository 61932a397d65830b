"""A tolerant walk over one segment: what verifies, and where that ends, what it means; see `wal.walk`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from wal.beside import notes_name
from wal.checksum import Checksum
from wal.codec import (
    BLOCK_HEADER_BYTES,
    TRAILER_BYTES,
    FormatError,
    NothingHere,
    SegmentHeader,
    Trailer,
    decode_block_header,
)
from wal.disk import File
from wal.errors import Finding, Kind, LogTooNew
from wal.footer import Span
from wal.index_codec import INDEX_FORMS
from wal.live_notes import LiveNotes
from wal.noting import NOTHING, Noted
from wal.parts import Few, PartsBuilder, check_part, opened, pieces
from wal.probe import probe
from wal.records import Record
from wal.scan import RawBlock, Scan, blocks_in, nonzero_end, survivors
from wal.segment import Archived, Block, SegmentBuilder, SegmentInfo, stored_bytes, stored_name
from wal.segment_file import Sealed, decode, noted_in, read_index, read_trailer, wrong_size

if TYPE_CHECKING:
    from wal.registering import RegisterBuilder

Found: TypeAlias = Block | Finding | SegmentInfo
"""A segment's info comes after its blocks."""

Choose: TypeAlias = Callable[[RawBlock], bool]
"""Which blocks are decoded: the others are verified all the same, and not told of."""


_AT_ONCE = 1 << 18
_BEYOND_BYTES = 1 << 18
"""Behind the end of what is still written so much is looked at for anything but zeros, by who does not verify it all."""
_AGAIN = "nothing: it is made again from the blocks"


class SegmentWalk:
    """One segment, which has so many `behind` it.

    `notes` are held against what is read. `ended` is how it ended, if that can be told: name, last LSN, end, last crc.
    """

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
        behind: int = 0,
        notes: LiveNotes | None = None,
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
        self._awaits_index = self.trailer is not None and not self.trailer.index_bytes and behind <= 1
        self._choose = choose
        self._notes = notes
        self._size = min(file.size(), header.capacity)
        self._resized = wrong_size(file, header)
        self._until = after.first_lsn if isinstance(after, SegmentHeader) else 0
        self._limit = self._size if self.trailer is None else self.trailer.end
        self._builder = SegmentBuilder(header)
        self._parts = PartsBuilder()
        self._names = _names_of(header) if indexes else None
        self._briefly = False
        self._whole = True  # so far every block verified, and the builder has them all, if it is needed
        self._builds = everything or self.trailer is None  # else the trailer says all that is asked
        self.ended: tuple[str, int, int, int] | None = None
        if self.trailer is not None:
            self.ended = (self.name, self.trailer.last_lsn, self.trailer.end, self.trailer.last_crc)

    def __iter__(self) -> Iterator[Found]:
        yield from self._walk(Scan(self._file, self._header, limit=self._limit, checksum=self._checksum))

    def beyond(self, known: Trailer) -> Iterator[Found]:
        """What follows the end that is known of a segment that is still written, and a little behind that."""
        assert self.trailer is None, f"{self.name} is sealed"
        self._briefly = True
        self._builder.resume(known)
        place = known.end, known.last_lsn + 1, known.last_crc
        yield from self._walk(Scan(self._file, self._header, limit=self._limit, checksum=self._checksum, place=place))

    def _walk(self, scan: Scan) -> Iterator[Found]:
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
            probe("wal.segment_walk.resumed_behind_damage")
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
        if isinstance(self._file, Archived):
            yield from self._archive(self._file, scan)
        if self._notes is not None and self._whole and not self._notes.agrees(self._builder, indexes=self._indexes):
            what = "the notes beside it say other than the blocks"
            yield finding("index", notes_name(self._header.first_lsn), 0, self._header.first_lsn, what=what, cost=_AGAIN)
        yield self._info(scan)

    def only(self, spans: Iterable[Span | Few]) -> Iterator[Found]:
        """The blocks at these places, or some parts of them, which a footer or notes know, and nothing else."""
        builds, self._builds = self._builds, False
        for span in spans:
            if isinstance(span, Few) and (found := self._few(span)) is not None:
                yield from found
                continue
            start, end = span[:2]
            try:
                if end - start <= _AT_ONCE:
                    data = self._file.read(start, end - start)
                    yield from self._blocks(blocks_in(data, start, self._header, self._checksum))
                    if len(data) != end - start:
                        raise FormatError(f"the file ends at offset {start + len(data)}: expected blocks up to {end}")
                    continue
                first = decode_block_header(self._file.read(start, BLOCK_HEADER_BYTES), 0, end - start)
                place = start, first.first_lsn, first.previous_crc
                scan = Scan(self._file, self._header, limit=end, checksum=self._checksum, place=place)
                yield from self._blocks(scan)
                if scan.offset != end:
                    raise FormatError(scan.stop or "zeros where a block should be")
            except FormatError as error:
                cost = "what is said there, or the footer lies that led to it: `foreshore wal verify` tells which"
                yield finding("damaged", self.name, start, self._header.first_lsn, what=str(error), cost=cost)
        self._builds = builds

    def _few(self, few: Few) -> list[Block] | None:
        """Some parts of a block, those that are chosen; None where they cannot be believed, so that the block is read."""
        found: list[Block] = []
        parts, segment, header = few.parts, self._header.first_lsn, None
        try:
            for number, head, data in pieces(self._file.read, few.start, few.places):
                header = header or decode_block_header(head, 0, few.end - few.start)
                if header.records != few.records:
                    raise FormatError(f"the block has {header.records} records: expected {few.records}, in all its parts")
                check_part(parts, number, head, data)
                if self._choose is None or self._choose(RawBlock(few.start, header, data, segment)):
                    lsn = header.first_lsn + sum(parts.records[few.first : number])
                    records = opened(parts, number, head, data)
                    found.append(Block(lsn, header.time_ms, records, self.name, offset=few.start, bytes=len(data)))
        except FormatError:
            probe("wal.segment_walk.part_is_not_believed")
            return None
        return [block for block in found if block.last_lsn >= self._from_lsn]

    def sealed(self) -> Sealed:
        """It, with its trailer, which can be read."""
        assert self.trailer is not None, f"{self.name} is not sealed"
        return Sealed(self._header, self.trailer, archived=stored_bytes(self._file))

    def _from(self, scan: Scan) -> Scan:
        """A scan that goes on where another one ended, with what is in the file now."""
        place = scan.offset, scan.lsn, scan.crc
        return Scan(self._file, self._header, limit=self._limit, checksum=self._checksum, place=place)

    def _grew(self, scan: Scan) -> bool:
        """Whether the next block is there by now: a live log grows while it is read, and what lay behind it told."""
        grew = next(iter(self._from(scan)), None) is not None
        if grew:
            probe("wal.segment_walk.grew_meanwhile")
        return grew

    def _blocks(self, scan: Iterable[RawBlock]) -> Iterator[Found]:
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
                self._builder.add(raw.header, self._noted(raw, records))
                if self._indexes:
                    self._parts.add(raw)
                if self._names is not None:
                    self._names.add(raw)

    def _noted(self, raw: RawBlock, records: list[Record]) -> Noted | None:
        """What of a block is to be held against a footer: all that is in it, where it is, or nothing."""
        if self._indexes:
            return noted_in(raw, records)
        return NOTHING if self._everything else None

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
            limit = self._size if scan.stop or not self._briefly else min(self._size, scan.offset + _BEYOND_BYTES)
            torn_end = nonzero_end(self._file, scan.offset, limit)
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
        if self._awaits_index:
            yield from self._unwritten()
            return
        ends = self._footer_begins(self.trailer)
        if ends is None:
            yield self._footer_problem(self._header, "the index says other than the blocks")
        elif (stray := nonzero_end(self._file, self._builder.end, ends)) > self._builder.end:
            what = f"bytes up to offset {stray} that are no block: expected zeros up to {ends}"
            name, end = self.name, self._builder.end
            yield finding("stray", name, end, self._builder.next_lsn, what=what, cost="nothing")

    def _unwritten(self) -> Iterator[Finding]:
        """What is wrong where an index is yet to be written, unless it was written meanwhile."""
        ends = self._header.capacity - TRAILER_BYTES
        if (stray := nonzero_end(self._file, self._builder.end, ends)) > self._builder.end:
            try:
                if read_trailer(self._file, self._header, self._checksum) != self.trailer:
                    return
            except FormatError:
                pass  # so it was found a moment ago
            what = f"bytes up to offset {stray} where the index belongs, which is not there: its writing was cut short"
            yield self._footer_problem(self._header, what)

    def _footer_begins(self, trailer: Trailer) -> int | None:
        """Where a footer begins that says what the blocks do, as far as they were looked at; None for any other."""
        if self._indexes:
            self._parts.attach(self._builder.index)
            self._builder.register = self._names.written() if self._names is not None else None
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

    def _archive(self, file: Archived, scan: Scan) -> Iterator[Finding]:
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
        return finding(kind, self.name, scan.offset, scan.lsn, what=what, cost=cost, until=until)

    def _footer_problem(self, header: SegmentHeader, what: str) -> Finding:
        return finding("index", self.name, header.capacity, header.first_lsn, what=what, cost=_AGAIN)


def _names_of(header: SegmentHeader) -> RegisterBuilder:
    from wal.registering import RegisterBuilder  # noqa: PLC0415  # who holds no footer against the blocks does not wait for it

    return RegisterBuilder(header)


def finding(kind: Kind, segment: str, offset: int, lsn: int, what: str, cost: str, *, until: int = 0) -> Finding:
    """What is wrong, and what it costs."""
    return Finding(kind=kind, segment=segment, offset=offset, lsn=lsn, what=what, cost=cost, until=until)
