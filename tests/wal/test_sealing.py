"""A full segment is sealed at once, and gets its index later, beside the writer."""

from __future__ import annotations

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import SMALL, append, filled, open_log, records_of, update
from wal import Log, LogDamaged, PartitionCounter, Want, inspect, verify
from wal.codec import TRAILER_BYTES
from wal.errors import Finding
from wal.reader import indexes
from wal.records import Record, Trimmed
from wal.segment import segment_name
from wal.segment_file import read_header, read_trailer
from wal.segments import INDEXES_KEPT

BLOCKS: list[list[Record]] = [[update(n)] for n in range(1, 41)]


def followed() -> tuple[MemoryDisk, Log, str]:
    """A log whose live segment has just followed one that has no index yet, and that one's name."""
    disk = MemoryDisk()
    log = open_log(disk)
    n = 0
    while not log.wants_index:
        n += 1
        append(log, update(n))
    return disk, log, disk.names()[-2]


def index_bytes(disk: MemoryDisk, name: str) -> int:
    """How many bytes of index a segment's trailer tells of."""
    file = disk.open(name)
    return read_trailer(file, read_header(file)).index_bytes


def history_of(log: Log) -> list[int]:
    """The counters that the log has of the one fragment that is written here."""
    cursor = log.history([Want(("acc", 0), PartitionCounter(), log.next_lsn - 1, [(1, 1)])])
    found = [write.end for write in cursor.read(1 << 20)]
    assert cursor.done
    cursor.close()
    return found


def test_the_writer_writes_the_trailer_and_no_index() -> None:
    disk, log, name = followed()
    assert index_bytes(disk, name) == 0
    report = verify(disk)
    assert report.findings == []
    assert [info.sealed for info in report.segments] == [True, False] == [info.sealed for info in log.segments()]
    log.write_index()
    assert not log.wants_index
    assert index_bytes(disk, name) > 0
    assert verify(disk, indexes=True).findings == []


def test_a_segment_without_its_index_gives_all_that_it_has() -> None:
    disk, log, _ = followed()
    known = [n + 1 for n in range(log.next_lsn - 1)]
    assert history_of(log) == known
    assert [index.index.fragments.keys() for index in indexes(disk)] == [{("acc", 0)}] * 2
    again = open_log(disk.copy())
    assert history_of(again) == known
    assert records_of(again) == records_of(log)


def test_what_a_crash_left_without_its_index_gets_it_when_the_log_is_open_again() -> None:
    disk, _, name = followed()
    again = open_log(disk)
    assert again.wants_index
    again.write_index()
    assert index_bytes(disk, name)
    assert verify(disk, indexes=True).findings == []
    assert not open_log(disk).wants_index


def test_the_next_segment_waits_for_the_index_of_the_one_before() -> None:
    """There is one at most that has none, however late the background is."""
    disk = filled(BLOCKS)
    *sealed, last = disk.names()[:-1]
    assert sealed
    assert all(index_bytes(disk, name) for name in sealed)
    assert index_bytes(disk, last) == 0
    assert verify(disk, indexes=True).findings == []


def test_an_index_whose_writing_was_cut_short_is_told_costs_nothing_and_is_written_again() -> None:
    disk, _, name = followed()
    disk.overwrite(name, SMALL.segment_bytes - TRAILER_BYTES - 40, b"half of it")
    found = verify(disk).findings
    assert [(finding.kind, finding.segment) for finding in found] == [("index", name)]
    assert found[0].cost.startswith("nothing")
    again = open_log(disk)
    again.write_index()
    assert verify(disk, indexes=True).findings == []


def test_an_index_that_is_missing_elsewhere_is_told() -> None:
    """Two segments further on it was written, or another one could not have been begun."""
    disk, log, name = followed()
    bare = disk.image(name)
    while len(disk.names()) < 3:
        append(log, update(log.next_lsn))
    disk.put(name, bare)
    assert [(finding.kind, finding.segment) for finding in verify(disk).findings] == [("index", name)]


def test_without_its_index_a_segment_is_held_against_its_trailer_and_its_successor() -> None:
    disk, _, name = followed()
    broken = disk.copy()
    broken.flip(name, 8 * 300)
    with pytest.raises(LogDamaged):
        open_log(broken)
    alone = disk.copy()
    alone.remove(disk.names()[-1])
    assert [found.kind for found in inspect(alone) if isinstance(found, Finding)] == []
    assert [finding.kind for finding in verify(alone).findings] == ["unfollowed"]
    again = open_log(alone)
    assert (again.next_lsn, again.wants_index) == (int(disk.names()[-1][:20]), True)
    again.write_index()
    assert verify(alone, indexes=True).findings == []


def test_a_segment_may_be_forgotten_before_its_index_is_written() -> None:
    disk, log, name = followed()
    image = disk.image(name)
    append(log, Trimmed(int(disk.names()[-1][:20]), []))
    names = log.forget(int(disk.names()[-1][:20]))
    assert names == [name]
    log.write_index()
    assert disk.image(name) == image
    log.remove(names)
    assert disk.names() == [segment_name(int(disk.names()[-1][:20]))]
    log.close()


def test_closing_writes_the_index() -> None:
    disk, log, name = followed()
    log.close()
    assert index_bytes(disk, name)
    assert verify(disk, indexes=True).findings == []


def test_of_sealed_segments_few_indexes_stay_in_memory_and_what_trimming_asks_needs_none() -> None:
    log = open_log(MemoryDisk())
    while len(log.segments()) < 3 * INDEXES_KEPT:
        append(log, update(log.next_lsn), update(log.next_lsn + 1, partition=1))
        log.write_index()
    segments = log._segments
    assert not segments._indexes, "nobody has read any history"
    told = segments.ends(segments.sealed())
    assert not segments._indexes
    assert told == {("acc", 0): segments.sealed()[-1].last_lsn - 1, ("acc", 1): segments.sealed()[-1].last_lsn}
    again = open_log(log._disk)  # which reads the footers
    assert again._segments.ends(again._segments.sealed()) == told
    assert len(history_of(log)) == (log.next_lsn - 1) // 2
    assert 0 < len(segments._indexes) <= INDEXES_KEPT
