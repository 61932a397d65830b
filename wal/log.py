"""The log of one node: blocks are appended at its end, synced, replayed, read as history, and trimmed at its beginning.

One writer thread calls `append`, `sync`, `trimmable`, `trim`, `forget` and `close`. At the same time other threads may
call `prepare_next`, `write_index`, `archive`, `remove`, `history`, `replay`, `pin`, `unpin`, `pins`, `segments` and
`reach`, and read cursors; a cursor reads only what was durable when it was made.

Stop rather than guess. After a write or a sync that failed, the log refuses every further call with that first error;
nothing is ever retried, because the kernel may have dropped what it could not write and say so once. A full disk is met
where the next segment is prepared, before a block needs it: that may be tried again, as nobody relied on the file yet. An
`append` that cannot do without it refuses before it has written anything, and the log can still be read.

How a segment follows another: the prepared file exists, zero-filled and synced; the full segment is synced, then gets
its trailer, synced; the prepared file gets its header, synced; it is renamed, and the directory synced. The full segment
gets its index by `write_index`, synced: that takes as long as there is in the segment, and the writer need not wait for it.
Whatever of this a crash cuts short, the log finishes or does again when it is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wal import retention
from wal.archiver import Archiver, finish
from wal.beside import NOTES
from wal.codec import EMPTY_BODY, SegmentHeader, Trailer, decode_header, encode_body, encode_header
from wal.disk import Disk, DiskError, DiskFull, File
from wal.errors import LogClosed
from wal.history import HistoryCursor, SegmentView, Wanted
from wal.ids import Fragment, Namespace, check_name
from wal.kept import KEPT, Kept, Reservation, write_kept
from wal.noting import NOTHING, Noted, note
from wal.probe import probe
from wal.records import Record, Trimmed
from wal.recovery import examine, require
from wal.repair import Torn, accept, repair
from wal.segment import PREPARED, Block, SegmentBuilder, SegmentInfo, capacity_for, next_header, segment_name
from wal.segments import Segments
from wal.settings import LogSettings
from wal.want import Want


class Log:
    """Made by `Log.open`. Invariants: LSNs rise by one; `durable_lsn < next_lsn`; only the last segment is written.

    `torn` says what was dropped at the end when it was opened, `set_aside` which files an accepted loss became, and
    `gave_way` which pins had to.
    """

    def __init__(self, disk: Disk, settings: LogSettings, segments: Segments) -> None:
        self.torn: Torn | None = None
        self.set_aside: list[str] = []
        self.gave_way: list[str] = []
        self._archiver = Archiver(disk, segments)
        self._disk = disk
        self._settings = settings
        self._segments = segments
        self._preparing = threading.Lock()  # held while the next segment's file is made, or taken
        self._prepared = 0  # its size, if it is there
        self._retaining = threading.Lock()  # guards the next two
        self._pins: dict[str, Reservation] = {}
        self._reach: dict[Fragment, int] = {}
        self._failure: DiskError | LogClosed | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        cluster: str,
        node: str,
        settings: LogSettings,
        from_lsn: int = 1,
        accept_loss: bool = False,
    ) -> Log:
        """Open the log, or create it where there is none, to replay from `from_lsn` and to append.

        Raises LogDamaged, LogBehindStore, LogForeign and LogTooNew, with the disk unchanged, and DiskError. With
        `accept_loss` the first two are overruled: what is damaged, and all behind it, is renamed to `*.lost`, and
        where nothing is left that serves `from_lsn`, an empty log begins there.
        """
        check_name("cluster", cluster)
        check_name("node", node)
        assert from_lsn >= 1, f"LSNs begin at 1, not {from_lsn}"
        found = examine(disk, cluster=cluster, node=node, from_lsn=from_lsn)
        set_aside: list[str] = []
        if accept_loss:
            set_aside = accept(disk, found, from_lsn)
        else:
            require(found, from_lsn)
        for name in disk.list():
            if name in {PREPARED, KEPT} or name.endswith((".tmp", NOTES)):
                disk.remove(name)
        finish(disk, found)
        torn: Torn | None = None
        if found.live is None:
            disk.create(PREPARED, settings.first_bytes)
            live, file = _begin(disk, SegmentHeader(cluster, node, from_lsn, settings.first_bytes))
        else:
            live = found.live
            file, torn = repair(disk, found)
        log = cls(disk, settings, Segments(disk, found.sealed, live, file, found.unsealed))
        log.torn = torn
        log.set_aside = set_aside
        if found.live_sealed is not None:
            probe("wal.log.sealed_without_successor")
            try:
                with log._preparing:
                    log._write_index()  # also the one before it may lack its index: damage took it
                    log._take_prepared(capacity := log.next_bytes)
                    log._follow(capacity, found.live_sealed)
            except BaseException:
                log._segments.close()
                raise
        return log

    # Writing: one thread.

    @property
    def next_lsn(self) -> int:
        """The LSN of the next record."""
        return self._segments.live.next_lsn

    @property
    def begins(self) -> int:
        """Its first LSN."""
        return self._segments.durable()[0][0]

    @property
    def durable_lsn(self) -> int:
        """Every record up to here survives a power cut."""
        return self._segments.durable_lsn

    @property
    def unsynced_bytes(self) -> int:
        """How much was written that a power cut may take."""
        return self._segments.live.end - self._segments.live.synced_to

    def append(self, records: Sequence[Record], *, now_ms: int, durable: bool) -> int:
        """Append the records as one block, and sync it if it is to be `durable`; return the last LSN.

        Raises ValueError for more than fits in one block, DiskFull where the next segment could not be prepared (both
        before anything is written), and DiskError, after which the log is stopped.
        """
        self._refuse()
        if not records:
            if durable:
                self.sync()
            return self.next_lsn - 1
        body = encode_body(records)
        noted = note(records, body)
        segments = self._segments
        if not segments.fits(len(body), noted):
            self._rotate(len(body), noted)
        try:
            segments.write(body, len(records), now_ms, noted)
            if durable:
                segments.sync()
        except BaseException as error:
            self._stop(error)
            raise
        return segments.live.last_lsn

    def sync(self) -> None:
        """Make all that was appended durable, and leave a marker behind it that proves it."""
        self._refuse()
        if self.durable_lsn < self._segments.live.last_lsn:
            with self._stopping():
                self._segments.sync()
                self._mark()

    def prepare_next(self) -> bool:
        """Make the next segment's file, if it is not there; True if it was made. From any thread, ahead of need: else
        `append` makes it, and takes as long. Raises DiskFull: if that is `early`, it may be tried again."""
        with self._preparing:
            self._refuse()
            if self._prepared:
                return False
            self._take_prepared(self.next_bytes)
            return True

    @property
    def wants_next(self) -> bool:
        """The live segment is half full and the next one is not prepared: time to call `prepare_next`."""
        live = self._segments.live
        return not self._prepared and 2 * live.end > live.header.capacity

    def write_index(self) -> None:
        """Give the last sealed segment its index, if it has none, and tell what there is to tell of the live one. From any
        thread; without it `append` does the first when the live segment is full, and takes as long as that takes."""
        with self._preparing:
            self._refuse()
            self._write_index()
            with self._stopping():
                self._segments.write_notes()

    @property
    def wants_index(self) -> bool:
        """Time to call `write_index`."""
        return self._segments.wants_index

    def close(self) -> None:
        """Sync everything, with a marker that proves it, and give the files back. Closing twice is harmless."""
        if self._failure is None:
            with self._stopping():
                live = self._segments.live
                if self.durable_lsn < live.last_lsn:
                    self._segments.sync()
                self._mark()
                if live.synced_to < live.end:
                    self._segments.sync()
            with self._preparing:
                self._write_index()
                with self._stopping():
                    self._segments.write_notes(all_of_it=True)
            self._failure = LogClosed("the log was closed: open it again")
        self._segments.close()

    # Reading: any thread.

    def replay(self, from_lsn: int) -> Iterator[Block]:
        """The blocks from `from_lsn` to what is appended now; the first is cut if `from_lsn` lies inside it.

        Raises LogDamaged where a block does not verify, or the log does not reach back so far.
        """
        self._refuse()
        return self._segments.replay(from_lsn)

    def history(self, wants: Sequence[Want]) -> HistoryCursor:
        """A cursor over the missing counters, as far as the log is durable now. Pin what it needs first."""
        self._refuse()
        segments, until_lsn = self._segments.durable()
        return HistoryCursor(segments, self._view, wants, until_lsn)

    def reach(self, namespace: Namespace, partition: int) -> int:
        """The highest counter of the fragment in segments that this process removed, 0 if none.

        History above it is in the log, as far as this process knows; what earlier ones removed, `Trimmed` records say.
        """
        with self._retaining:
            return self._reach.get((namespace, partition), 0)

    def segments(self) -> list[SegmentInfo]:
        """All segments, the oldest first; the last is the one that is written."""
        return self._segments.infos()

    # Retention.

    def pin(self, token: str, lsn: int, now_ms: int = 0) -> None:
        """Keep the log from `lsn` on, until `unpin`, or until the cap makes the pin give way. Replaces its token's.

        An eighth of the cap is kept free for pinned segments; what nobody has pinned goes before.
        """
        with self._retaining:
            known = self._pins.get(token)
            self._pins[token] = Reservation(token, lsn, now_ms if known is None else known.since_ms)

    def unpin(self, token: str) -> None:
        """Let go of a pin; one that gave way is gone already."""
        with self._retaining:
            self._pins.pop(token, None)

    def pins(self) -> dict[str, int]:
        """token -> the LSN from which on it keeps the log."""
        with self._retaining:
            return {token: pin.lsn for token, pin in self._pins.items()}

    def tell(self, checkpoint_lsn: int) -> None:
        """Say in `kept.json` who needs what of it, for whoever looks at its files. From any thread, one at a time."""
        settings = self._settings
        with self._retaining:
            pins = list(self._pins.values())
        write_kept(
            self._disk,
            Kept(
                bytes_max=settings.total_bytes,
                pin_bytes=settings.pin_bytes,
                age_ms=settings.age_ms,
                checkpoint_lsn=checkpoint_lsn,
                pins=pins,
            ),
        )

    def trimmable(self, checkpoint_lsn: int, now_ms: int = 0) -> Trimmed | None:
        """What may go, as the record to be logged before `trim`; None if the log is within its bounds, or nothing may.

        The store holds everything up to `checkpoint_lsn`, and with it what is in doubt. Pins that stand in the way of
        the cap are dropped here, and listed in `gave_way`.
        """
        self._refuse()
        infos = self._segments.infos()
        with self._retaining:
            trim = retention.plan(
                infos[:-1],
                bytes_now=sum(info.bytes for info in infos) + self.next_bytes,
                bytes_max=self._settings.total_bytes,
                pin_bytes=self._settings.pin_bytes,
                older_than_ms=now_ms - self._settings.age_ms if self._settings.age_ms else 0,
                checkpoint_lsn=checkpoint_lsn,
                pins={token: pin.lsn for token, pin in self._pins.items()},
            )
            if trim is None:
                return None
            for token in trim.gave_way:
                probe("wal.retention.pin_gave_way")
                self.gave_way.append(token)
                del self._pins[token]
        ends = self._segments.ends(self._segments.sealed()[: trim.count])
        return Trimmed(trim.first_lsn, [(name, partition, end) for (name, partition), end in sorted(ends.items())])

    def trim(self, first_lsn: int) -> None:
        """Remove the segments wholly below `first_lsn`, after the `Trimmed` that says so is durable."""
        self.remove(self.forget(first_lsn))

    def forget(self, first_lsn: int) -> list[str]:
        """The same, but for the files: nobody is led to them any more. Their names, to be given to `remove` in order."""
        self._refuse()
        going = [sealed for sealed in self._segments.sealed() if sealed.last_lsn < first_lsn]
        ends = self._segments.ends(going)
        with self._retaining:
            for fragment, end in ends.items():
                self._reach[fragment] = max(end, self._reach.get(fragment, 0))
        for _ in going:
            self._segments.forget_first()
        return [sealed.name for sealed in going]

    # Archives.

    def archive(self, below_lsn: int) -> int:
        """Do the next part of making archives of sealed segments that end below `below_lsn`, the oldest first.

        Returns how many bytes of the log it went through, 0 if there is nothing to archive, or `no_room` for it;
        `left_alone` could not be archived. From any thread, but not beside itself or `remove`.
        """
        self.write_index()
        with self._stopping():
            return self._archiver.step(below_lsn)

    @property
    def left_alone(self) -> dict[str, str]:
        """Segments that could not be archived: name -> why."""
        return self._archiver.left_alone

    @property
    def no_room(self) -> str:
        """Why the disk had none for the last archive, which may be tried again; empty if it had."""
        return self._archiver.no_room

    def remove(self, names: Sequence[str]) -> None:
        """Remove the files of forgotten segments, the oldest first. From any thread, but not beside itself or `archive`."""
        with self._stopping():
            for name in names:
                self._disk.remove(name)
                self._disk.sync_directory()  # one by one: a power cut must not leave a hole

    # How it is done.

    @property
    def next_bytes(self) -> int:
        """The size of the next segment, if its first block asks for no more."""
        settings = self._settings
        return min(settings.segment_bytes, max(settings.first_bytes, 2 * self._segments.live.header.capacity))

    def _rotate(self, length: int, noted: Noted) -> None:
        """Seal the live segment and begin another, in which a block with a body of `length` fits."""
        with self._preparing:
            self._refuse()  # what was waited for may have failed
            self._write_index()
            capacity = capacity_for(length, noted, self._prepared or self.next_bytes)
            self._take_prepared(capacity, filled=False)  # the writer waits, if it is not there
            with self._stopping():
                live = self._segments.live
                if live.synced_to < live.end:
                    self._segments.sync()
                if not live.empty:
                    self._segments.seal()
                self._follow(capacity)

    def _write_index(self) -> None:
        """Give the last sealed segment its index, if it has none. Called with `_preparing` held."""
        with self._stopping():
            self._segments.write_index()

    def _take_prepared(self, capacity: int, *, filled: bool = True) -> None:
        """See to it that the next segment's file is there, in this size. Called with `_preparing` held."""
        try:
            if self._prepared and capacity != self._prepared:
                self._prepared = 0
                self._disk.remove(PREPARED)
            if not self._prepared:
                self._disk.create(PREPARED, capacity, filled=filled)
        except DiskFull as error:
            probe("wal.log.full")
            if not error.early:
                self._stop(error)
            raise
        except BaseException as error:
            self._stop(error)
            raise
        self._prepared = capacity

    def _follow(self, capacity: int, trailer: Trailer | None = None) -> None:
        """Begin the next segment in the prepared file; `trailer` is what the live one was found to end with."""
        with self._stopping():
            live = self._segments.live
            header = live.header._replace(capacity=capacity) if live.empty else next_header(live, capacity)
            fresh, file = _begin(self._disk, header)
            self._segments.follow(fresh, file, trailer)
            self._prepared = 0

    def _mark(self) -> None:
        """End a group of blocks with the proof that they were synced, if there is room for it."""
        live = self._segments.live
        if not live.marked and self._segments.fits(len(EMPTY_BODY), NOTHING):
            self._segments.write(EMPTY_BODY, 0, live.last_time_ms, NOTHING)

    def _view(self, first_lsn: int, wanted: Wanted) -> SegmentView | None:
        self._refuse()
        return self._segments.view(first_lsn, wanted)

    def _refuse(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """What fails in here is the last thing that this log did."""
        try:
            yield
        except BaseException as error:
            self._stop(error)
            raise

    def _stop(self, error: BaseException) -> None:
        if self._failure is None:
            probe("wal.log.stopped")
            interrupted = DiskError("use", self._segments.live.name, f"{error!r} came in between: open the log again")
            self._failure = error if isinstance(error, DiskError) else interrupted


def _begin(disk: Disk, header: SegmentHeader) -> tuple[SegmentBuilder, File]:
    """Make the prepared file the segment with this header."""
    data = encode_header(header)
    file = disk.open(PREPARED, write=True)
    file.write(0, data)
    file.sync()
    disk.rename(PREPARED, segment_name(header.first_lsn))
    disk.sync_directory()
    return SegmentBuilder(decode_header(data)), file
