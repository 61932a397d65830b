"""Foreshore's write-ahead log: everything that survives a process is named here.

This is the public face; the modules behind it, from the bottom up: `ids`, `counters`, `records` (what is said),
`checksum`, `disk`, `codec` (bytes), `index`, `register`, `registering`, `index_codec`, `tally`, `summary`, `noting`,
`footer` (where what is in a segment), `segment`, `scan` (one segment), `beside` and `live_notes` (what is told of the one
that is written), `recovery`, `repair`, `retention`, `stored`, `archive_codec`, `archive`, `archiver` (sealed segments in
another order), `segments`, `log` (a node's log), `want` and `history` (what a supplier reads), `outline`, `segment_walk`,
`walk`, `reader` (what tools read), `whole` (whether all of it is there), `packed` (where they want little of it).
"""

import importlib
from typing import TYPE_CHECKING

from wal.checksum import crc32c, reference_crc32c, reference_xmodem
from wal.disk import DirectoryDisk, Disk, DiskError, DiskFull, DiskMissing, File
from wal.errors import Finding, LogBehindStore, LogClosed, LogDamaged, LogError, LogForeign, LogTooNew
from wal.reader import (
    Source,
    appended,
    asked,
    backwards,
    begins,
    follow,
    indexes,
    inspect,
    list_segments,
    parts,
    read,
)
from wal.scan import RawBlock
from wal.segment import Block, SegmentInfo
from wal.settings import LogSettings
from wal.walk import Owner

if TYPE_CHECKING:
    from wal.counters import CounterAhead, CounterError, CounterOverlap, PartitionCounter, TooManyRanges
    from wal.history import HistoryCursor
    from wal.log import Log
    from wal.repair import Torn
    from wal.want import Want
    from wal.whole import Report, joined, verify, verify_part

_WHERE = {
    "wal.counters": ("CounterAhead", "CounterError", "CounterOverlap", "PartitionCounter", "TooManyRanges"),
    "wal.history": ("HistoryCursor",),
    "wal.log": ("Log",),
    "wal.repair": ("Torn",),
    "wal.want": ("Want",),
    "wal.whole": ("Report", "joined", "verify", "verify_part"),
}
"""What who only looks for something has no use for, and does not wait for: imported when it is first asked for."""

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


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names:
            globals()[name] = found = getattr(importlib.import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
