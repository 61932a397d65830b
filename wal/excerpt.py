"""The blocks of a log that can speak of some counters of some fragments, for tools that ask about a few of them.

Sealed segments are read by the index in their footers, so it costs what is asked and not what was written; the one that
is not sealed yet is read whole. It serves questions, not recovery: what does not verify is left out, and `verify` tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal.codec import FormatError, NothingHere, SegmentHeader
from wal.disk import DiskMissing, File
from wal.errors import LogError
from wal.history import BlockView, Wanted
from wal.reader import Source, disk_of
from wal.scan import Scan
from wal.segment import Block, segment_lsn, segment_name
from wal.segment_file import Sealed, decode, load_index, read_header, read_trailer


class Excerpt:
    """Iterates once over these blocks, oldest first, up to the block that ends with `to_lsn`. `bytes_read` without indexes.

    Records that have no counters (an epoch, a transfer) come only where a block has others that do.
    """

    def __init__(self, source: Source, wanted: Wanted, to_lsn: int | None = None) -> None:
        self.bytes_read = 0
        self._disk = disk_of(source)
        self._wanted = wanted
        self._to_lsn = to_lsn if to_lsn is not None else (1 << 63)

    def __iter__(self) -> Iterator[Block]:
        for lsn in sorted(lsn for lsn in map(segment_lsn, self._disk.list()) if lsn is not None and lsn <= self._to_lsn):
            try:
                file = self._disk.open(segment_name(lsn))
            except DiskMissing:
                continue
            try:
                yield from self._segment(file)
            except (FormatError, LogError):
                continue
            finally:
                file.close()

    def _segment(self, file: File) -> Iterator[Block]:
        header = read_header(file)
        try:
            sealed = Sealed(header, read_trailer(file, header), whole=True)
        except (NothingHere, FormatError):
            yield from self._scanned(file, header)
            return
        index = load_index(file, sealed)
        if index.holding(self._wanted):
            view = BlockView(file, header, index, sealed.trailer.end)
            try:
                yield from view.blocks(self._wanted, self._to_lsn)
            finally:
                self.bytes_read += view.bytes_read

    def _scanned(self, file: File, header: SegmentHeader) -> Iterator[Block]:
        for raw in Scan(file, header, limit=min(file.size(), header.capacity)):
            self.bytes_read += len(raw.data)
            if raw.header.records and raw.header.last_lsn <= self._to_lsn:
                yield decode(raw, segment_name(header.first_lsn))
