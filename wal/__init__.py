"""Foreshore's write-ahead log: everything that survives a process is named here.

This is the public face; the modules behind it, from the bottom up: `ids`, `counters`, `records` (what is said),
`checksum`, `disk`, `codec` (bytes), `index`, `tally`, `summary`, `footer` (where what is in a segment), `segment`, `scan`
(one segment), `recovery`, `repair`, `retention`, `archive_codec`, `archive`, `archiver` (sealed segments in another order),
`segments`, `log` (a node's log), `want` and `history` (what a supplier reads), `outline`, `segment_walk`, `walk`, `reader`
(what tools read), `packed` (where they want little of it).
"""

from wal.checksum import crc32c, reference_crc32c, reference_xmodem
from wal.counters import CounterAhead, CounterError, CounterOverlap, PartitionCounter, TooManyRanges
from wal.disk import DirectoryDisk, Disk, DiskError, DiskFull, DiskMissing, File
from wal.errors import Finding, LogBehindStore, LogClosed, LogDamaged, LogError, LogForeign, LogTooNew
from wal.history import HistoryCursor
from wal.log import Log
from wal.reader import (
    Report,
    Source,
    appended,
    asked,
    backwards,
    begins,
    follow,
    indexes,
    inspect,
    joined,
    list_segments,
    parts,
    read,
    verify,
    verify_part,
)
from wal.repair import Torn
from wal.scan import RawBlock
from wal.segment import Block, SegmentInfo
from wal.settings import LogSettings
from wal.walk import Owner
from wal.want import Want

__all__ = [
    "Block",
    "CounterAhead",
    "CounterError",
    "CounterOverlap",
    "DirectoryDisk",
    "Disk",
    "DiskError",
    "DiskFull",
    "DiskMissing",
    "File",
    "Finding",
    "HistoryCursor",
    "Log",
    "LogBehindStore",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogForeign",
    "LogSettings",
    "LogTooNew",
    "Owner",
    "PartitionCounter",
    "RawBlock",
    "Report",
    "SegmentInfo",
    "Source",
    "TooManyRanges",
    "Torn",
    "Want",
    "appended",
    "asked",
    "backwards",
    "begins",
    "crc32c",
    "follow",
    "indexes",
    "inspect",
    "joined",
    "list_segments",
    "parts",
    "read",
    "reference_crc32c",
    "reference_xmodem",
    "verify",
    "verify_part",
]
