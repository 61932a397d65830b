"""The log that format 1 is kept by: `python -m tests.wal.golden` writes it to `tests/testdata/wal/format-1`.

It holds a record of every kind, in sealed segments and one that is open. Kinds of records, and fields at the end of a
record, are added to a format, and with them this log is written anew; so `format-1-first` keeps the bytes that the first
version wrote, which every later one must read as they stand here (`FIRST`). What changes anything else is another format,
with a number and a log of its own. `format-1-archive` is the same log with its sealed segments in archives: what a
compressor makes of the same bytes may change, and what comes out of these may not. `format-1-noted` has all of it in a
segment that is still open, with notes beside it; `format-1-parted` has that sealed, with a footer that tells of parts.
`format-1-noted-names` and `format-1-registered` are the same two again, with registers of the names in their blocks.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import append, open_log
from wal import LogSettings
from wal.beside import Notes
from wal.ids import Ballot, Version
from wal.parts import PartsBuilder
from wal.records import (
    Accepted,
    Boot,
    Checkpoint,
    Claim,
    Claimed,
    Committed,
    Compare,
    EpochStart,
    Forget,
    FragmentClear,
    FragmentReady,
    History,
    NoOp,
    Origin,
    Outcome,
    Preload,
    Prepare,
    Promised,
    Record,
    Results,
    Stable,
    Trimmed,
    Undo,
    Update,
    Write,
)
from wal.registering import RegisterBuilder
from wal.scan import Scan
from wal.segment import segment_name
from wal.segment_file import read_header, rebuild

DIRECTORY = Path(__file__).parent.parent / "testdata" / "wal" / "format-1"
FIRST_DIRECTORY = DIRECTORY.with_name("format-1-first")
ARCHIVE_DIRECTORY = DIRECTORY.with_name("format-1-archive")
NOTED_DIRECTORY = DIRECTORY.with_name("format-1-noted")
PARTED_DIRECTORY = DIRECTORY.with_name("format-1-parted")
NAMED_DIRECTORY = DIRECTORY.with_name("format-1-noted-names")
REGISTERED_DIRECTORY = DIRECTORY.with_name("format-1-registered")
FIRST = 9
"""So many of the blocks are in the log of the first version."""
SETTINGS = LogSettings(segment_bytes=1024, total_bytes=1 << 20)
TX = bytes(range(16))
BLOCKS: list[list[Record]] = [
    [Boot(1), Promised(Version(0, 0), Ballot(1, "n1")), Accepted(Version(0, 0), Ballot(1, "n1"), b"map")],
    [Committed(Version(1, 0), b"map"), EpochStart(7, 1, [("acc", 1), ("~tx", 1)], [TX])],
    [
        Update([Write("acc", 7, 1, 0, [b"a", b"b"], [b"1", None], 0, TX)]),
        Update([Write("acc", 7, 1, 2, [b"c"], [b"\x00" * 40], stable=2), Write("names", 9, 1, 0, [b""], [b""])]),
    ],
    [Prepare(TX, 7, 1, [Write("acc", 7, 1, 3, [b"d"], [b"4"], tx=TX)], [("acc", b"e")], [7, 9], 9)],
    [Outcome(TX, 7, 1, True, [("acc", 3, 1)]), NoOp(7, 2, [("acc", 4, 3)])],
    [History([Write("acc", 7, 2, 7, [], [], closed=2), Write("acc", 7, 2, 9, [b"f"], [b"10"], origin=1)])],
    [Preload("acc", 8, [1, 2], [5, 0], [b"g", b"h"], [b"5", None]), Results(8, [TX], [1], TX[:8] + bytes(8))],
    [FragmentReady("acc", 8, 5, 2**64 - 1, [(1, 1), (2, 5)], True), Checkpoint(12)],
    [FragmentClear("acc", 7, "behind"), Undo("acc", 9, 4, [b"i"]), Trimmed(3, [("acc", 7, 2)])],
    [Forget(8, 3, [(TX[:10], 5), (TX[1:11], 2**48 - 1)])],
    [Boot(3, 21, [(1, 0), (2, 17)]), Claimed(Version(1, 0), [Claim("n2", "d2", 5, 99)])],
    [Stable(7, 2, [("acc", 10)]), Compare(7, 2, "n3", 1)],
    [
        Update([Write("acc", 7, 2, 10, [b"n"], [b"42"], stable=9, tx=TX, answer=b"42")]),
        Results(8, [TX], [1], answers=[(TX, b"42")]),
    ],
    [Origin(7, 2, TX, "n1", "salary", "web-3", "127.0.0.1:51234"), Origin(7, 2, TX, "n1", client="web-3")],
    [FragmentClear("acc", 7, "the log is trimmed", kept=True)],
    [Origin(7, 2, TX[::-1], "n1", "pay", "web-3", "127.0.0.1:51234", labels_all=True)],
    [Accepted(Version(1, 0), Ballot(2, "n1"), b"", b"step", 2**64 - 1), Committed(Version(1, 1), b"", b"step", 2**64 - 1)],
]


def write() -> MemoryDisk:
    """The log as it is written today."""
    disk = MemoryDisk()
    log = open_log(disk, SETTINGS)
    for at, block in enumerate(BLOCKS):
        append(log, *block, now_ms=1_700_000_000_000 + 1_000 * at)
    log.close()
    return disk


def archived() -> MemoryDisk:
    """The same, with archives."""
    disk = write()
    log = open_log(disk, SETTINGS)
    while log.archive(log.next_lsn):
        pass
    log.close()
    return disk


def noted(*, names: bool = False) -> MemoryDisk:
    """The same in one segment, of which the notes beside tell twice, not of its last block; with registers of `names`."""
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=8192, total_bytes=1 << 20))
    notes, register = Notes(disk, log._segments.live), RegisterBuilder(log._segments.live.header)
    for at, block in enumerate(BLOCKS):
        append(log, *block, now_ms=1_700_000_000_000 + 1_000 * at)
        if at in (len(BLOCKS) // 2, len(BLOCKS) - 2):
            entry = notes.gather()
            assert entry is not None
            if names:
                assert register.go_on(disk.open(segment_name(1)), entry.trailer.end)
                notes.write(entry, register.written(notes.named), register.reach)
            else:
                notes.write(entry)
    log.close()
    return disk


def named() -> MemoryDisk:
    """That with registers."""
    return noted(names=True)


def parted(*, names: bool = False) -> MemoryDisk:
    """That segment, sealed, though it is smaller than those that tell of parts; with a register of `names`."""
    disk, name = MemoryDisk(), segment_name(1)
    disk.put(name, noted().image(name))
    file = disk.open(name, write=True)
    header, parts = read_header(file), PartsBuilder()
    builder, scan = rebuild(file, header, header.capacity)
    for raw in Scan(file, header, limit=scan.offset):
        parts.add(raw)
    assert parts.attach(builder.index)
    if names:
        register = RegisterBuilder(header)
        assert register.go_on(file, scan.offset)
        builder.register = register.written()
    _, offset, footer = builder.footer()
    file.write(offset, footer)
    return disk


def registered() -> MemoryDisk:
    """That with a register."""
    return parted(names=True)


if __name__ == "__main__":
    for directory, golden in (
        (DIRECTORY, write()),
        (ARCHIVE_DIRECTORY, archived()),
        (NOTED_DIRECTORY, noted()),
        (PARTED_DIRECTORY, parted()),
        (NAMED_DIRECTORY, named()),
        (REGISTERED_DIRECTORY, registered()),
    ):
        directory.mkdir(parents=True, exist_ok=True)
        for name in golden.names():
            (directory / name).write_bytes(golden.image(name))
