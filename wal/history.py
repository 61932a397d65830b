"""What a supplier reads: the missing counters of many fragments, each exactly once, in one pass over the log.

A cursor visits the segments in order, in each the blocks that the index says can hold a missing counter, and folds
them: an update is a write; a prepare is one when its outcome says so, and a closed gap when it was rolled back; a no-op
is a closed gap. What comes out is complete: the asker can log it as `History` and supply it again.

Which of several histories? A log may hold writes of an epoch that was not continued: they were undone, or the copy was
cleared. The epoch table of the supplier says which epoch issued each counter, and a counter is issued once in an epoch;
so a write is supplied if and only if its epoch is the table's for its counters. `Undo` and `FragmentClear` need no
treatment of their own, and neither does a prepare that was re-issued: it counts with the epoch of the record that holds
its entries, as the replica applies it, while a rollback counts with the epoch of the outcome that closed it.

A want whose counters were not all found is `missed`, never silently short: the asker falls back to a full transfer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Protocol

from wal.codec import FormatError, SegmentHeader, check_block, decode_block_header
from wal.counters import CounterError
from wal.disk import DiskMissing, File
from wal.errors import Finding, LogDamaged, LogTooNew
from wal.ids import COUNTER_MAX, Fragment, TxId
from wal.index import SegmentIndex
from wal.parts import holding, opened, pieces, places
from wal.probe import probe
from wal.records import History, NoOp, Outcome, Prepare, Record, Update, Write
from wal.scan import RawBlock
from wal.segment import segment_name
from wal.segment_file import decode
from wal.want import Want

WRITE_OVERHEAD_BYTES = 48
_RUN_BYTES_MAX = 1 << 20
_GAP_BYTES_MAX = 4096
"""A gap up to this is read over: one more system call costs more than a page that is thrown away."""

Wanted = Mapping[Fragment, tuple[int, int]]
"""fragment -> (above, up_to): the counters that may still be missing."""


class SegmentView(Protocol):
    """One segment, as history reads it."""

    bytes_read: int
    findings: list[Finding]

    def records(self, wanted: Wanted, until_lsn: int) -> Iterator[list[Record]]:
        """The records that can speak of wanted counters, in the order of the log for each fragment."""
        ...


ViewOf = Callable[[int, Wanted], SegmentView | None]
"""(a segment's first LSN, what is wanted) -> the segment; None if it is gone."""


class NothingWanted:
    """A segment that ends, for each wanted fragment, below all that is wanted: nothing of it is read."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.findings: list[Finding] = []

    def records(self, wanted: Wanted, until_lsn: int) -> Iterator[list[Record]]:  # it has none
        """None."""
        return iter(())


class BlockView:
    """A segment in its blocks. Blocks that do not verify are reported and left out: their counters will be missed."""

    def __init__(self, file: File, header: SegmentHeader, index: SegmentIndex, end: int, last_lsn: int = 0) -> None:
        self.bytes_read = 0
        self.findings: list[Finding] = []
        self._file = file
        self._header = header
        self._index = index
        self._end = end
        self._last_lsn = last_lsn  # of a sealed segment

    def records(self, wanted: Wanted, until_lsn: int) -> Iterator[list[Record]]:
        """The records of each block that holds a wanted fragment, up to the block that ends with `until_lsn`.

        Of a sealed segment that is durable only the parts that speak of it are read, where little is wanted.
        """
        try:
            parts = holding(self._index, wanted) if 0 < self._last_lsn <= until_lsn else None
            if parts is not None:
                for ordinal in sorted(parts):
                    records = self._parts(ordinal, parts[ordinal])
                    if records is None:
                        yield from self._blocks([ordinal], until_lsn)
                    else:
                        yield records
                return
            yield from self._blocks(self._index.holding(wanted), until_lsn)
        finally:
            self._file.close()

    def _blocks(self, ordinals: Sequence[int], until_lsn: int) -> Iterator[list[Record]]:
        for start, end, offsets in self._runs(ordinals):
            data = self._file.read(start, end - start)
            self.bytes_read += len(data)
            for offset in offsets:
                raw = self._checked(data, offset, start)
                if raw is None:
                    continue
                if raw.header.last_lsn > until_lsn:
                    return
                yield decode(raw, segment_name(self._header.first_lsn)).records

    def _parts(self, ordinal: int, numbers: Collection[int]) -> list[Record] | None:
        """The records of some parts of a block; None where the block is to be read instead."""
        parts, start = self._index.parts, self._index.starts[ordinal]
        assert parts is not None, "who has numbers of parts has parts"
        wanted = places(parts, ordinal, numbers)
        if not wanted:
            return None
        records: list[Record] = []
        try:
            for number, header, data in pieces(self._read, start, wanted):
                records += opened(parts, number, header, data)
        except FormatError:
            probe("wal.history.part_is_not_believed")
            return None
        return records

    def _read(self, offset: int, n: int) -> bytes:
        data = self._file.read(offset, n)
        self.bytes_read += len(data)
        return data

    def _runs(self, ordinals: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
        """(start, end, offsets of the wanted blocks) of each read: neighbours and near neighbours together."""
        starts = self._index.starts
        start = end = 0
        offsets: list[int] = []
        for ordinal in ordinals:
            at = starts[ordinal]
            block_end = starts[ordinal + 1] if ordinal + 1 < len(starts) else self._end
            if offsets and (at - end > _GAP_BYTES_MAX or block_end - start > _RUN_BYTES_MAX):
                yield start, end, offsets
                offsets = []
            if not offsets:
                start = at
            offsets.append(at)
            end = block_end
        if offsets:
            yield start, end, offsets

    def _checked(self, data: bytes, offset: int, start: int) -> RawBlock | None:
        at = offset - start
        try:
            header = decode_block_header(data, at, len(data) - at)
            block = data[at : at + header.size]
            check_block(self._header.first_lsn, header, block)
        except FormatError as error:
            name = segment_name(self._header.first_lsn)
            cost = "the history of the fragments in this block"
            self.findings.append(Finding(kind="damaged", segment=name, offset=offset, lsn=0, what=str(error), cost=cost))
            return None
        return RawBlock(offset, header, block, self._header.first_lsn)


class HistoryCursor:
    """Reads what is wanted, as far as it was durable when the cursor was made. For one thread, not the log's own.

    `findings` is damage that was met on the way; the fragments concerned will be in `missed`.
    """

    def __init__(
        self,
        segments: Sequence[int],
        view_of: ViewOf,
        wants: Sequence[Want],
        until_lsn: int,
    ) -> None:
        self.findings: list[Finding] = []
        self._wants = {want.fragment: _Wanted(want) for want in wants}
        assert len(self._wants) == len(wants), "a fragment is wanted twice"
        self._active = {fragment: want for fragment, want in self._wants.items() if want.left}
        self._prepared: dict[tuple[TxId, int], dict[int, Prepare]] = {}
        self._ready: deque[Write] = deque()
        self._until_lsn = until_lsn
        self._bytes_read = 0
        self.at_lsn = segments[0] if segments else 1
        """What lies below is not needed any more: the first LSN of the segment that is being read."""
        self._view: SegmentView | None = None
        self._batches = self._read(segments, view_of)
        self._exhausted = False

    @property
    def bytes_read(self) -> int:
        """How many bytes of the log were read for it so far, the index not counted."""
        return self._bytes_read + (self._view.bytes_read if self._view is not None else 0)

    @property
    def done(self) -> bool:
        """Everything was read, and given out."""
        return self._exhausted and not self._ready

    @property
    def missed(self) -> list[Fragment]:
        """The wants whose counters were not all found. Known when it is done."""
        assert self.done, "what is missed is known at the end: read until it is done"
        return [fragment for fragment, want in self._wants.items() if want.left]

    def read(self, max_bytes: int, max_updates: int = COUNTER_MAX) -> list[Write]:
        """The next writes, in the order of the log for each fragment, about `max_bytes` and `max_updates` of them; [] when
        done.

        It may overstep both by one write. Raises DiskError if the disk does.
        """
        writes: list[Write] = []
        ready = self._ready
        size = updates = 0
        while size < max_bytes and updates < max_updates:
            if not ready and not self._fill():
                break
            write = ready.popleft()
            writes.append(write)
            updates += write.closed or len(write.keys)
            for key, value in zip(write.keys, write.values, strict=True):
                size += len(key) + (len(value) if value is not None else 0)
            size += WRITE_OVERHEAD_BYTES
        if not ready and not self._active:
            self._fill()  # nothing is left to look for: say so with this batch
        return writes

    def close(self) -> None:
        """Stop early and give the files back."""
        self._batches.close()
        self._exhausted = True
        self._ready.clear()

    def _fill(self) -> bool:
        """Fold on until a write is ready; False at the end."""
        while not self._ready and not self._exhausted:
            records = next(self._batches, None)
            if records is None:
                self._exhausted = True
            else:
                self._fold(records)
        return bool(self._ready)

    def _read(self, segments: Sequence[int], view_of: ViewOf) -> Generator[list[Record], None, None]:
        """The records of all segments that can matter, as long as anything is wanted."""
        for segment in segments:
            if not self._active:
                return
            self.at_lsn = segment
            try:
                wanted = {fragment: (want.have.lwm, want.up_to) for fragment, want in self._active.items()}
                self._view = view_of(segment, wanted)
                if self._view is None:  # it was trimmed since the cursor was made
                    probe("wal.history.trimmed_under_cursor")
                    continue
                for records in self._view.records(wanted, self._until_lsn):
                    yield records
                    if not self._active:
                        break
            except DiskMissing:
                probe("wal.history.trimmed_under_cursor")
            except (LogDamaged, LogTooNew) as error:
                self.findings.append(error.finding)
            finally:
                if self._view is not None:
                    self._bytes_read += self._view.bytes_read
                    self.findings += self._view.findings
                    self._view = None

    def _fold(self, records: list[Record]) -> None:
        for record in records:
            kind = type(record)
            if kind is Update or kind is History:  # nearly every record is one
                self._offer(record.writes)  # type: ignore[union-attr]
                continue
            match record:
                case Prepare(tx, partition, epoch):
                    self._prepared.setdefault((tx, partition), {})[epoch] = record
                case Outcome():
                    self._outcome(record)
                case NoOp(partition, epoch, gaps):
                    self._close_gaps(partition, epoch, gaps)
                case _:
                    pass

    def _outcome(self, record: Outcome) -> None:
        issues = self._prepared.pop((record.tx, record.partition), None)
        if not record.commit:
            self._close_gaps(record.partition, record.epoch, record.ranges)
        elif issues is not None:
            prepare = issues.get(record.epoch) or issues[max(issues)]
            self._offer(prepare.writes)

    def _close_gaps(self, partition: int, epoch: int, gaps: Sequence[tuple[str, int, int]]) -> None:
        for namespace, start, delta in gaps:
            if (namespace, partition) in self._active:
                self._offer([Write(namespace, partition, epoch, start, keys=[], values=[], closed=delta)])

    def _offer(self, writes: Sequence[Write]) -> None:
        """Supply those of the writes that are wanted."""
        active = self._active
        for write in writes:
            fragment = (write.namespace, write.partition)
            want = active.get(fragment)
            if want is not None and want.takes(write):
                self._ready.append(write)
                if not want.left:
                    del active[fragment]


class _Wanted:
    """A want and what of it was found. `left` counters are missing; `_epoch` is the table's for `_first` to `_last`."""

    __slots__ = ("_epoch", "_first", "_last", "_table", "have", "left", "up_to")

    def __init__(self, want: Want) -> None:
        assert want.epochs == sorted(want.epochs), f"the epoch table of {want.fragment} does not ascend: {want.epochs}"
        self.have = want.have
        self.up_to = want.up_to
        self.left = sum(delta for _, delta in want.have.missing(want.up_to))
        self._table = want.epochs
        self._first = self._last = self._epoch = 0

    def takes(self, write: Write) -> bool:
        """Whether the write is missing, and of the history that was continued; if so it counts as found."""
        start = write.start
        delta = write.closed or len(write.keys)
        end = start + delta
        if end > self.up_to:
            return False
        if not self._first <= start < self._last:
            self._look_up(start + 1)
        if write.epoch != self._epoch or end > self._last:
            return False
        try:
            new = self.have.step(start, delta) or self.have.update(start, delta)
        except CounterError:  # the asker has a part of a range, or too many ranges: this want will be missed
            probe("wal.history.partial_range")
            return False
        if new:
            self.left -= delta
        return new

    def _look_up(self, counter: int) -> None:
        """Find the run of the table that holds `counter`; epoch 0, which nobody has, below the first."""
        at = bisect_right(self._table, counter, key=_first_of)
        self._epoch, self._first = self._table[at - 1] if at else (0, 0)
        self._last = self._table[at][1] - 1 if at < len(self._table) else COUNTER_MAX


def _first_of(run: tuple[int, int]) -> int:
    return run[1]
