"""A tolerant walk over a log: everything that verifies, and, in its place, whatever is wrong, as values.

Where a block does not verify, the walk says so, looks for the next that does, and goes on from there. It is what tools
read with; a node reads with `wal.recovery` and stops instead. Both draw the line between a torn tail and damage alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Protocol, TypeAlias

import msgspec

from wal.checksum import Checksum, crc32c
from wal.codec import FormatError, NewerFormat, SegmentHeader
from wal.disk import DiskMissing, File
from wal.errors import Finding
from wal.footer import Ask, Footer, Span, Told
from wal.live_notes import LiveNotes, read_notes
from wal.parts import Few
from wal.segment import segment_lsns, segment_name, stored_name
from wal.segment_file import read_header
from wal.segment_walk import Choose, Found, SegmentWalk, finding
from wal.stored import open_segment

Owner: TypeAlias = tuple[str, str]
"""The cluster and the node that a log belongs to."""


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
    `ask` is asked of the footer of each sealed segment, and of the notes beside the one that is written: where it names
    blocks, only these are read, with all behind the notes, and what was not read is not verified. With `segment` only the
    one that begins at this LSN is walked, or with `until` those from there on that begin before that, and how it follows
    the one before it: so many walks, each of a part, find together what one of all finds.
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
        ask: Ask | None = None,
        segment: int | None = None,
        until: int = 0,
    ) -> None:
        assert everything or not indexes, "an index is a part of everything"
        assert choose is None or not indexes, "an index is held against all blocks"
        self._disk = disk
        self._indexes = indexes
        self._ask = ask
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
            yield finding("foreign", segment_name(one.first_lsn), 0, one.first_lsn, what=what, cost=cost)
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
                yield from self._segment(header, after, behind=len(lsns) - 1 - at)

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
            return finding("newer", name, 0, lsn, what=str(error), cost="nothing, with the version that wrote it")
        except FormatError as error:
            return finding("damaged", name, 0, lsn, what=str(error), cost=lost)
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
            return finding("foreign", segment_name(lsn), 0, lsn, what=what, cost=lost)
        if header.first_lsn != lsn:
            what = f"the segment begins at LSN {header.first_lsn}: expected {lsn}, by the file's name"
            return finding("replaced", segment_name(lsn), 0, lsn, what=what, cost=lost)
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
            return finding("missing", name, 0, lost, what=what, cost=cost, until=header.first_lsn)
        what = f"the segment follows LSN {known[0]}, end {known[1]}: {before} ends with LSN {ended[0]} at {ended[1]}"
        return finding("replaced", name, 0, lost, what=what, cost="which of the two belongs here cannot be told")

    def _pass_over(self, header: SegmentHeader | Finding | None, after: SegmentHeader | Finding | None) -> None:
        """Learn how the segment before the only one ended, of which somebody else tells."""
        if isinstance(header, SegmentHeader):
            try:
                with closing(open_segment(self._disk, header.first_lsn)) as file:
                    walk = SegmentWalk(
                        file, header, self._checksum, after=after, from_lsn=0, everything=False, choose=lambda _: False
                    )
                    if walk.trailer is None:
                        deque(walk, maxlen=0)
                    self._ended = walk.ended
            except DiskMissing:
                pass

    def _segment(self, header: SegmentHeader, after: SegmentHeader | Finding | None, *, behind: int) -> Iterator[Found]:
        try:
            file = open_segment(self._disk, header.first_lsn)
        except DiskMissing:
            self._ended = None
            return
        try:
            walk = SegmentWalk(
                file,
                header,
                self._checksum,
                after=after,
                from_lsn=0 if self._everything else self._from_lsn,
                everything=self._everything,
                indexes=self._indexes,
                choose=self._choose,
                behind=behind,
                notes=self._notes_to_check(file, header) if self._everything and after is None else None,
            )
            if walk.trailer is not None and walk.trailer.last_lsn < self._from_lsn and not self._everything:
                yield walk.sealed().info()
            else:
                yield from self._wanted(file, walk, header, last=after is None)
            self._ended = walk.ended
        finally:
            file.close()

    def _notes_to_check(self, file: File, header: SegmentHeader) -> LiveNotes | None:
        return read_notes(self._disk, file, header, self._checksum, registers=False)

    def _wanted(self, file: File, walk: SegmentWalk, header: SegmentHeader, *, last: bool) -> Iterator[Found]:
        """The blocks that are asked for, with all behind what is told of; or all there are."""
        if self._ask is None:
            told: Told | None = None
        elif walk.trailer is not None:
            told = Footer(file, header, walk.trailer, self._checksum)
        else:
            told = read_notes(self._disk, file, header, self._checksum) if last and not self._everything else None
        try:
            places = self._asked(told)
            if told is None or places is None:
                yield from walk
                return
            yield from walk.only(places)
            if walk.trailer is None:
                yield from walk.beyond(told.trailer)
            else:
                yield walk.sealed().info()
        finally:
            if told is not None:
                told.close()

    def _asked(self, told: Told | None) -> Iterable[Span | Few] | None:
        """Where the blocks are that are asked for; None if all are to be read."""
        if told is None or self._ask is None:
            return None
        try:
            return self._ask(told)
        except FormatError:
            return None  # the blocks say the same


def _owner(header: SegmentHeader) -> Owner:
    return header.cluster, header.node


def _named(owner: Owner | None) -> str:
    return f"{owner[1]!r} in {owner[0]!r}" if owner is not None else "nobody's"
