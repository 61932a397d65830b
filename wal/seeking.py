"""What stands at counters that a reader knows: little more than that is read of a log.

Who seeks a counter each of many fragments would find one in nearly every block. Where the footer of a segment knows parts
of its blocks (`wal.parts`), only the parts that speak of such a fragment are read, in the few blocks that came to its
counter first; of other segments these blocks. What is not there was brought out of order, or is told in another way, and
who seeks it has to look again: `wal.packed.skim`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from wal.codec import (
    BLOCK_BYTES_MAX,
    BlockHeader,
    FormatError,
    SegmentHeader,
    decode_block_header,
    decode_body_as,
)
from wal.disk import DiskMissing, File
from wal.errors import Finding
from wal.footer import Footer, Span, Told
from wal.ids import Fragment
from wal.index import SegmentIndex
from wal.packed import PackedBlock, decode_packed, skim
from wal.parts import opened_as, pieces, places, reaching
from wal.reader import Source, source_disk
from wal.scan import read_block
from wal.segment import segment_lsns
from wal.segment_file import read_header, read_trailer
from wal.stored import open_segment
from wal.walk import ReadableDisk


def seek(
    source: Source,
    counters: Mapping[Fragment, Sequence[int]],
    take: Callable[[PackedBlock], None],
    to_lsn: int | None = None,
) -> list[Finding]:
    """Take the blocks that came to these counters first, or parts of them, in order; what is wrong with other blocks."""
    sought, found = sum(map(len, counters.values())), list[Finding]()

    def ask(told: Told) -> list[Span] | None:
        return told.speaking_of(counters) if sought < told.trailer.blocks else None  # nearly all of them

    with source_disk(source) as disk:
        for lsn in segment_lsns(disk.list()):
            parts = _parts(disk, lsn, counters)
            if parts is None:
                found += skim(disk, take, to_lsn=to_lsn, ask=ask, segment=lsn)
                continue
            for part in parts:
                if to_lsn is None or part.first_lsn <= to_lsn:
                    take(part)
    return found


def _parts(disk: ReadableDisk, lsn: int, counters: Mapping[Fragment, Sequence[int]]) -> list[PackedBlock] | None:
    """The parts of one segment, each as if it were a block; None where its blocks are to be read."""
    try:
        with closing(open_segment(disk, lsn)) as file:
            header = read_header(file)
            index = Footer(file, header, read_trailer(file, header)).index()
            wanted = reaching(index, counters)
            if wanted is None:
                return None
            found: list[PackedBlock] = []
            for ordinal in sorted(wanted):
                found += _parts_of(file, index, ordinal, wanted[ordinal]) or [_block(file, header, index.starts[ordinal])]
            return found
    except (DiskMissing, FormatError):
        return None


def _parts_of(file: File, index: SegmentIndex, ordinal: int, numbers: set[int]) -> list[PackedBlock]:
    """Some parts of a block, none if it has no parts. Raises FormatError where they cannot be believed."""
    parts, start = index.parts, index.starts[ordinal]
    assert parts is not None, "who has numbers of parts has parts"
    wanted = places(parts, ordinal, numbers)
    found: list[PackedBlock] = []
    block: BlockHeader | None = None
    for number, header, data in pieces(file.read, start, wanted):
        records = opened_as(decode_packed, parts, number, header, data)
        block = block or decode_block_header(header, 0, 2 * BLOCK_BYTES_MAX)  # which the checksum of a part is over as well
        before = sum(parts.records[parts.firsts[ordinal] : number])
        found.append(PackedBlock(block.first_lsn + before, block.time_ms, records))
    return found


def _block(file: File, header: SegmentHeader, offset: int) -> PackedBlock:
    """A whole block. Raises FormatError where it does not verify."""
    raw = read_block(file, header, offset)
    return PackedBlock(raw.header.first_lsn, raw.header.time_ms, decode_body_as(decode_packed, raw.header, raw.data))
