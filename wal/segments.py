"""The segments of an open log, shared by the thread that writes and those that read: one lock, one place.

The writer adds blocks and forgets; readers take copies of what they need and read files on their own. What a reader may
see of the live segment is what its blocks were when it asked, never a block that is being written.

What the live segment's blocks say is told in a file beside it, in the background, for who reads the log from outside
(`wal.beside`).

A segment that was sealed may be without its index for a while: to write that takes as long as there is in it, and is done
beside the writer. Until then the segment is read by the index that is in memory.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from wal.archive import ArchiveFile, ArchiveView
from wal.archive_codec import Map
from wal.beside import Notes
from wal.codec import HEADER_BYTES, TRAILER_BYTES, FormatError, SegmentHeader, Trailer, array_of, encode_trailer
from wal.disk import Disk, File
from wal.errors import Finding, LogDamaged
from wal.history import BlockView, NothingWanted, SegmentView, Wanted
from wal.ids import Fragment
from wal.index import SegmentIndex
from wal.noting import Noted
from wal.parts import PartsBuilder, worth_it
from wal.registering import RegisterBuilder
from wal.scan import Scan
from wal.segment import Block, SegmentBuilder, SegmentInfo, segment_name
from wal.segment_file import Sealed, load_index, read_blocks
from wal.stored import open_segment

INDEXES_KEPT = 4
"""Of sealed segments: who reads history goes from one to the next, and some do at once."""
_first_lsn: Callable[[Sealed], int] = attrgetter("header.first_lsn")
_decode_ends = msgspec.msgpack.Decoder(list[tuple[Fragment, int]]).decode


class Segments:
    """All segments, the oldest first, the last one live. Invariant: each begins where the one before it ends.

    The index of a sealed segment is about 8% of the segment's size: it is read when it is asked for, and those that were
    asked for last are kept. What trimming asks of one is told when it gets its index, and kept in few bytes.
    """

    def __init__(
        self,
        disk: Disk,
        sealed: list[Sealed],
        live: SegmentBuilder,
        file: File,
        unsealed: SegmentBuilder | None = None,
    ) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._sealed = sealed
        self._live = live
        self._file = file
        self._unsealed: tuple[SegmentBuilder, File] | None = None  # the last of `sealed`, as long as it has no index
        self._notes = Notes(disk, live)
        self._over: Notes | None = None  # of `_unsealed`
        self._names = RegisterBuilder(live.header)
        self._names_over: RegisterBuilder | None = None  # of `_unsealed`
        self._durable_lsn = live.last_lsn
        self._indexes: dict[int, SegmentIndex] = {}  # the one that was asked for last is the last
        self._ends: dict[int, bytes] = {}
        self._maps: dict[int, Map] = {}
        if unsealed is not None:
            self._unsealed = unsealed, disk.open(unsealed.name, write=True)

    # The writer's.

    @property
    def live(self) -> SegmentBuilder:
        """The segment that is written."""
        return self._live

    @property
    def durable_lsn(self) -> int:
        """Every record up to here survives a power cut."""
        return self._durable_lsn

    def fits(self, length: int, noted: Noted) -> bool:
        """Whether a block with a body of `length` fits into the live segment."""
        with self._lock:
            return self._live.fits(length, noted)

    def write(self, body: bytes, records: int, time_ms: int, noted: Noted) -> None:
        """Write the next block, its head last if it is in pieces, and only then let anybody see it."""
        header, pieces = self._live.encode(body, records, time_ms=time_ms)
        end = self._live.end + header.size
        for piece in reversed(pieces):
            end -= len(piece)
            if piece:
                self._file.write(end, piece)
        with self._lock:
            self._live.add(header, noted)

    def sync(self) -> None:
        """Make everything written durable."""
        self._file.sync()
        with self._lock:
            self._live.synced_to = self._live.end
            self._durable_lsn = self._live.last_lsn

    def seal(self) -> None:
        """End the live segment, durably. Nothing may be added to it any more."""
        live = self._live
        assert live.synced_to == live.end, "a trailer says that all before it is synced"
        self._file.write(live.header.capacity - TRAILER_BYTES, encode_trailer(live.trailer()))
        self._file.sync()

    def follow(self, fresh: SegmentBuilder, file: File, trailer: Trailer | None = None) -> None:
        """`fresh` is the live segment from now on; the one before it is sealed, or was empty and is replaced.

        `trailer` is what that one ends with, if it was found on disk. It may still want its index.
        """
        old, live = self._file, self._live
        assert fresh.next_lsn == live.next_lsn, f"{fresh.name} does not follow {live.name}"
        assert self._unsealed is None, "one segment at a time is without its index"
        with self._lock:
            if not live.empty:
                sealed = Sealed(live.header, trailer or live.trailer())
                self._sealed.append(sealed)
                live.notes.go_through()
                if not sealed.whole:
                    self._unsealed = live, old
            self._live, self._file = fresh, file
            self._over, self._notes = self._notes, Notes(self._disk, fresh)
            self._names_over, self._names = self._names, RegisterBuilder(fresh.header)
        self._over.end()
        if self._unsealed is None:
            old.close()

    @property
    def wants_index(self) -> bool:
        """A sealed segment has no index yet, or of the live one there is much to go through, or enough to tell."""
        live = self._live
        return self._unsealed is not None or live.notes.waits or self._notes.due or self._names.behind(self._named_to)

    @property
    def _named_to(self) -> int:
        """Up to where the names of the live segment are wanted now."""
        return self._live.synced_to if self._live.notes.summarised else HEADER_BYTES

    def write_index(self) -> None:
        """Give the sealed segment that has no index one, durably. From any thread, one at a time."""
        if self._unsealed is None:
            return
        builder, file = self._unsealed
        first_lsn = builder.header.first_lsn
        with self._lock:
            forgotten = self._place(first_lsn) is None
        if not forgotten:
            self._part(builder, file)
            self._register(builder, file)
            trailer, offset, footer = builder.footer()
            file.write(offset, footer)
            file.sync()
            growing = builder.notes.growing
            ends = bytes(array_of(growing.ends(), len(growing.rows)))
            with self._lock:
                if (at := self._place(first_lsn)) is not None:
                    self._sealed[at] = Sealed(builder.header, trailer)
                    self._ends[first_lsn] = ends
            if self._over is not None:
                self._over.remove()
        self._unsealed = self._over = self._names_over = None
        file.close()

    def _place(self, first_lsn: int) -> int | None:
        """Where the sealed segment that begins with this LSN is, or None if it was forgotten. Called with the lock held."""
        at = bisect_left(self._sealed, first_lsn, key=_first_lsn)
        return at if at < len(self._sealed) and _first_lsn(self._sealed[at]) == first_lsn else None

    def _part(self, builder: SegmentBuilder, file: File) -> None:
        """Say to the index of a full segment where in its blocks what is. Where a block cannot be read, nothing is said."""
        if not (builder.notes.summarised and worth_it(builder.index, builder.next_lsn - builder.header.first_lsn)):
            return
        parts, scan = PartsBuilder(), Scan(file, builder.header, limit=builder.end)
        try:
            for raw in scan:
                parts.add(raw)
        except FormatError:
            return
        if scan.offset == builder.end:
            with self._lock:
                parts.attach(builder.index)

    def _register(self, builder: SegmentBuilder, file: File) -> None:
        """Gather the names in what is left of a full segment. Where a block cannot be read, there is no register."""
        names = self._names_over or RegisterBuilder(builder.header)
        if builder.notes.summarised and names.go_on(file, builder.end):
            builder.register = names.written()

    def write_notes(self, *, all_of_it: bool = False) -> None:
        """Tell of the live segment, if there is enough to tell, or of `all_of_it`. From any thread, one at a time."""
        notes, names, file = self._notes, self._names, self._file
        if names.behind(self._named_to):
            names.go_on(file, self._named_to, step=True)
        with self._lock:
            if self._live.notes.waits:
                self._live.notes.go_through()
        while notes.due or (all_of_it and notes.behind):
            with self._lock:
                entry = notes.gather()
            if entry is None:
                return
            notes.write(entry, names.written(notes.named) if names.go_on(file, entry.trailer.end) else None, names.reach)

    def forget_first(self) -> None:
        """The oldest sealed segment is about to be removed."""
        with self._lock:
            first_lsn = self._sealed.pop(0).header.first_lsn
            self._indexes.pop(first_lsn, None)
            self._ends.pop(first_lsn, None)
            self._maps.pop(first_lsn, None)

    def archived(self, sealed: Sealed, size: int) -> bool:
        """The segment has an archive of `size` bytes, which is read from now on; False if it was forgotten meanwhile."""
        with self._lock:
            at = next((at for at, one in enumerate(self._sealed) if one is sealed), None)
            if at is None:
                return False
            self._sealed[at] = sealed._replace(archived=size)
            self._indexes.pop(sealed.header.first_lsn, None)
        return True

    def close(self) -> None:
        """Give the files back."""
        self._file.close()
        self._notes.end()
        if self._unsealed is not None:
            self._unsealed[1].close()

    # Any thread's.

    def sealed(self) -> list[Sealed]:
        """The sealed segments, the oldest first."""
        with self._lock:
            return list(self._sealed)

    def infos(self) -> list[SegmentInfo]:
        """What to tell about all segments; the last is the live one."""
        with self._lock:
            return [*(sealed.info() for sealed in self._sealed), self._live.info()]

    def durable(self) -> tuple[list[int], int]:
        """The first LSN of each segment, and the highest durable LSN, as of one moment."""
        with self._lock:
            return [*(s.header.first_lsn for s in self._sealed), self._live.header.first_lsn], self._durable_lsn

    def replay(self, from_lsn: int) -> Iterator[Block]:
        """The blocks from `from_lsn` to what is written now; LogDamaged if the log begins later."""
        with self._lock:
            parts = [(s.header, s.trailer.end) for s in self._sealed]
            parts.append((self._live.header, self._live.end))
        begins = parts[0][0].first_lsn
        if from_lsn < begins:
            what = f"the log begins at LSN {begins}: expected LSN {from_lsn}, which was asked for"
            cost = f"the records from LSN {from_lsn} to {begins - 1}"
            name = segment_name(begins)
            raise LogDamaged(Finding(kind="missing", segment=name, offset=0, lsn=from_lsn, what=what, cost=cost))
        first = max(at for at, (header, _) in enumerate(parts) if header.first_lsn <= from_lsn)
        return self._replay(parts[first:], from_lsn)

    def view(self, first_lsn: int, wanted: Wanted) -> SegmentView | None:
        """The segment that begins at `first_lsn`, for a history cursor; None if it is gone.

        Where a return of little is read from a long log, most segments end below it. Of those that were sealed in this life
        that is known without their index, which takes a hundred times as long to open.
        """
        with self._lock:
            at = self._place(first_lsn)
            sealed = self._sealed[at] if at is not None else None
            builder = self._builder_of(first_lsn)
            if sealed is None and builder is None:
                return None
            index = builder.notes.growing.snapshot(wanted) if builder is not None else None
            end = builder.end if builder is not None else 0
            ends = self._ends.get(first_lsn)
        if ends is not None and not any(name in wanted and end > wanted[name][0] for name, end in _decode_ends(ends)):
            return NothingWanted()
        file = open_segment(self._disk, first_lsn)
        if isinstance(file, ArchiveFile):
            return self._view_of_archive(file, first_lsn)
        if builder is not None and index is not None:
            return BlockView(file, builder.header, index, end)
        assert sealed is not None, "it has no builder"
        return BlockView(file, sealed.header, self.index_of(sealed), sealed.trailer.end, last_lsn=sealed.last_lsn)

    def _builder_of(self, first_lsn: int) -> SegmentBuilder | None:
        """What is known in memory of a segment that has no index yet; None of any other."""
        over = self._unsealed[0] if self._unsealed is not None else None
        return next((one for one in (self._live, over) if one is not None and one.header.first_lsn == first_lsn), None)

    def _view_of_archive(self, file: ArchiveFile, first_lsn: int) -> ArchiveView:
        """An archive for a history cursor. Its map is read once, and then kept."""
        with self._lock:
            known = self._maps.get(first_lsn)
        view = ArchiveView(file, first_lsn, known)
        if known is None and view.map is not None:
            with self._lock:
                if self._place(first_lsn) is not None:
                    self._maps[first_lsn] = view.map
        return view

    def index_of(self, sealed: Sealed) -> SegmentIndex:
        """A sealed segment's index."""
        with self._lock:
            known = self._indexes.pop(sealed.header.first_lsn, None)
            if known is not None:
                self._indexes[sealed.header.first_lsn] = known
        if known is None:
            file = open_segment(self._disk, sealed.header.first_lsn)
            try:
                known = load_index(file, sealed)
            finally:
                file.close()
            with self._lock:
                if sealed in self._sealed:
                    self._indexes[sealed.header.first_lsn] = known
                while len(self._indexes) > INDEXES_KEPT:
                    del self._indexes[next(iter(self._indexes))]
        return known

    def ends(self, segments: Sequence[Sealed]) -> dict[Fragment, int]:
        """The highest counter of each fragment in these segments."""
        ends: dict[Fragment, int] = {}
        for sealed in segments:
            for fragment, end in self._ends_of(sealed):
                ends[fragment] = max(end, ends.get(fragment, 0))
        return ends

    def _ends_of(self, sealed: Sealed) -> Iterable[tuple[Fragment, int]]:
        first_lsn = sealed.header.first_lsn
        with self._lock:
            told, builder = self._ends.get(first_lsn), self._builder_of(first_lsn)
            if told is None and builder is not None:
                return list(builder.notes.growing.ends())
        return _decode_ends(told) if told is not None else self.index_of(sealed).ends()

    def _replay(self, parts: list[tuple[SegmentHeader, int]], from_lsn: int) -> Iterator[Block]:
        for header, end in parts:
            file = open_segment(self._disk, header.first_lsn)
            try:
                yield from read_blocks(file, header, end, from_lsn)
            finally:
                file.close()
