"""Whether a log is whole, as far as its bytes can tell: all of it is read, or some of its segments by each of many.

A log is also held against where it may begin, and against its end; what it says is for those who know what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from wal.checksum import crc32c, reference_crc32c
from wal.codec import NewerFormat, SegmentHeader
from wal.errors import Finding
from wal.footer import Span, Told
from wal.outline import trims_in, vouched_by
from wal.reader import Source, source_disk
from wal.records import Trimmed
from wal.scan import RawBlock
from wal.segment import Block, SegmentInfo, segment_name
from wal.segment_file import newer
from wal.walk import Owner, Walk


class Report(msgspec.Struct, kw_only=True):
    """What `verify` found. `last_lsn` is one less than `first_lsn` where there are no records."""

    segments: list[SegmentInfo]
    findings: list[Finding]
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    first_lsn: int = 1
    last_lsn: int = 0
    trimmed: int = 1
    begins: SegmentHeader | None = None
    """Where the log begins: what its last `Trimmed` says, and its first segment's header, if that can be read."""

    @property
    def damaged(self) -> bool:
        """Whether promised records may be lost; a torn tail is no damage."""
        return any(finding.damage for finding in self.findings)


def verify(
    source: Source,
    *,
    reference: bool = False,
    indexes: bool = False,
    owner: Owner | None = None,
    look: Callable[[int], None] = lambda _: None,
) -> Report:
    """Read all of it: chain, checksums, LSNs, footers and unused space; of a directory, that it begins where it may.

    Each record is of a kind that this version knows, for which footers are believed, and what it says is not looked at;
    with `indexes` it is held against the footers, at several times the cost: an index that lies has the right checksum.
    With `reference` every checksum is computed by crcmod instead of the hardware: slower, and independent of it. `look` is
    shown how many bytes each block takes.
    """
    return joined(source, [verify_part(source, None, reference=reference, indexes=indexes, owner=owner, look=look)])


def verify_part(
    source: Source,
    segment: int | None,
    *,
    reference: bool = False,
    until: int = 0,
    indexes: bool = False,
    owner: Owner | None = None,
    look: Callable[[int], None] = lambda _: None,
) -> Report:
    """The same of one segment, which is one of the `parts`, of those from it on that begin before `until`, or of all;
    `joined` makes one report of them."""
    checking = _Checking(look)
    with source_disk(source) as disk:
        walk = Walk(
            disk,
            checksum=reference_crc32c if reference else crc32c,
            everything=True,
            indexes=indexes,
            owner=owner,
            choose=None if indexes else checking.pass_by,
            ask=None if indexes else checking.note,
            segment=segment,
            until=until,
        )
        report = checking.report
        for found in walk:
            match found:
                case Finding():
                    report.findings.append(found)
                case SegmentInfo():
                    report.segments.append(found)
                case Block(first_lsn, _, records):
                    trims = [record for record in records if isinstance(record, Trimmed)]
                    checking.count(first_lsn, len(records), found.bytes, trims)
        report.begins = walk.first
    return report


class _Checking:
    """The report while it is made."""

    def __init__(self, look: Callable[[int], None]) -> None:
        self.report = Report(segments=[], findings=[])
        self._look = look
        self._vouched: dict[int, Collection[str]] = {}  # by segment: what kinds of records its footer says there are

    def count(self, first_lsn: int, records: int, size: int, trims: Sequence[Trimmed]) -> None:
        """A block is whole."""
        report = self.report
        if not report.blocks:
            report.first_lsn = first_lsn
        report.blocks += 1
        report.records += records
        report.bytes += size
        report.last_lsn = first_lsn + records - 1
        for trim in trims:
            report.trimmed = max(report.trimmed, trim.first_lsn)
        self._look(size)

    def note(self, footer: Told) -> list[Span] | None:
        """All blocks are read; here is what the footer spares whoever does."""
        if (kinds := vouched_by(footer)) is not None:
            self._vouched[footer.header.first_lsn] = kinds
        return None

    def pass_by(self, raw: RawBlock) -> bool:
        """A block whose bytes are whole: its kinds of records are looked at, and no record."""
        header = raw.header
        try:
            trims = trims_in(header, raw.data, self._vouched.get(raw.segment))
            self.count(header.first_lsn, header.records, len(raw.data), trims)
        except NewerFormat as error:
            self.report.findings.append(newer(error, segment_name(raw.segment), raw.offset, header.first_lsn))
        return False


def joined(source: Source, reports: Sequence[Report]) -> Report:
    """The report of a whole log, of those of its parts in their order."""
    whole = Report(segments=[], findings=[])
    for report in reports:
        whole.segments += report.segments
        whole.findings += report.findings
        if report.blocks:
            whole.first_lsn = whole.first_lsn if whole.blocks else report.first_lsn
            whole.last_lsn = report.last_lsn
        whole.blocks += report.blocks
        whole.records += report.records
        whole.bytes += report.bytes
        whole.trimmed = max(whole.trimmed, report.trimmed)
        whole.begins = whole.begins or report.begins
    if isinstance(source, str) or not isinstance(source, Sequence):  # files that were picked out prove nothing missing
        whole.findings += _ends(whole.begins, whole.trimmed, whole.segments)
    return whole


def _ends(first: SegmentHeader | None, trimmed: int, segments: Sequence[SegmentInfo]) -> Iterator[Finding]:
    """What is wrong with where a log begins, of which the last `Trimmed` says that it is at `trimmed`, and ends."""
    if first is not None and first.previous_lsn and first.first_lsn > trimmed:
        lsn, name = first.first_lsn, segment_name(first.first_lsn)
        told = f"Trimmed speaks of LSN {trimmed} last" if trimmed > 1 else "it holds no Trimmed"
        what = f"the log begins at LSN {lsn} and {told}: expected a Trimmed record that explains it"
        cost = f"the records from LSN {trimmed} to {lsn - 1}, or the end of the log, where the Trimmed was"
        yield Finding(kind="missing", segment=name, offset=0, lsn=trimmed, what=what, cost=cost, until=lsn)
    if segments and segments[-1].sealed:
        last = segments[-1]
        what = "the last segment is sealed, and only a node that stopped at that very moment explains that none follows"
        cost = f"the records from LSN {last.last_lsn + 1} on, if a segment with them was removed"
        yield Finding(kind="unfollowed", segment=last.name, offset=last.bytes, lsn=last.last_lsn + 1, what=what, cost=cost)
