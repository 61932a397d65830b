"""What tools see: of a stopped log, a live one, a damaged one, of files that lie about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.counting_disk import CountingDisk
from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import SMALL, append, filled, open_log, update
from wal import (
    Block,
    DirectoryDisk,
    Finding,
    Log,
    LogDamaged,
    LogForeign,
    LogSettings,
    backwards,
    follow,
    inspect,
    list_segments,
    read,
    verify,
)
from wal.codec import (
    HEADER_BYTES,
    SegmentHeader,
    Trailer,
    decode_body,
    decode_header,
)
from wal.disk import File
from wal.index import SegmentIndex
from wal.index_codec import encode_footer
from wal.records import Record
from wal.scan import Scan
from wal.segment_file import Sealed, read_header, read_index, read_trailer


@pytest.fixture
def disk() -> MemoryDisk:
    """Sixty updates in five segments and more, by a node that was killed."""
    return filled([[update(n, 60)] for n in range(1, 61)])


def numbers(blocks: list[Block]) -> list[int]:
    """The LSNs of all records, which are their counters too."""
    return [lsn for block in blocks for lsn in range(block.first_lsn, block.last_lsn + 1)]


def blocks_of(found: list[Block | Finding]) -> list[Block]:
    """The blocks among what was found."""
    return [item for item in found if isinstance(item, Block)]


def findings_of(found: list[Block | Finding]) -> list[Finding]:
    """The findings among what was found."""
    return [item for item in found if isinstance(item, Finding)]


def test_a_range_of_lsns_is_read_exactly(disk: MemoryDisk) -> None:
    assert numbers(list(read(disk))) == list(range(1, 61))
    assert numbers(list(read(disk, 17, 33))) == list(range(17, 34))
    assert numbers(list(read(disk, 61))) == []
    for block in read(disk, 17, 33):
        assert block.records == [update(block.first_lsn, 60)]


def test_blocks_are_cut_to_the_range() -> None:
    disk = filled([[update(n) for n in range(1, 6)], [update(n) for n in range(6, 11)]])
    assert [block.records for block in read(disk, 4, 7)] == [[update(4), update(5)], [update(6), update(7)]]


def test_a_directory_and_a_list_of_files_read_alike(disk: MemoryDisk, tmp_path: Path) -> None:
    scattered = []
    for at, name in enumerate(disk.names()):
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / str(at)).mkdir()
        for path in (tmp_path / "log" / name, tmp_path / str(at) / name):
            path.write_bytes(disk.image(name))
        scattered.append(path)
    (tmp_path / "log" / "lock").write_bytes(b"")
    expected = list(read(disk))
    assert list(read(tmp_path / "log")) == list(read(str(tmp_path / "log"))) == list(read(scattered)) == expected
    assert numbers(list(read(scattered[1:3]))) == [
        block.first_lsn for block in expected if block.segment in disk.names()[1:3]
    ]
    assert verify(tmp_path / "log").findings == []


def test_reading_writes_nothing_and_needs_no_write_permission(disk: MemoryDisk) -> None:
    before = len(disk.trace)
    list(read(disk))
    verify(disk)
    list_segments(disk)
    assert {operation for operation, _ in disk.trace[before:]} == {"list", "open", "read", "size"}


def test_a_log_that_was_trimmed_is_read_from_where_it_begins(disk: MemoryDisk) -> None:
    names = disk.names()
    for name in names[:2]:
        disk.remove(name)
    begins = int(names[2][:20])
    assert numbers(list(read(disk))) == list(range(begins, 61))
    report = verify(disk)
    assert (report.first_lsn, report.last_lsn, [f.kind for f in report.findings]) == (begins, 60, ["missing"])


def test_a_report_counts_what_is_there(disk: MemoryDisk) -> None:
    report = verify(disk)
    assert (report.blocks, report.records, report.first_lsn, report.last_lsn) == (60, 60, 1, 60)
    assert report.bytes == sum(block.bytes for block in read(disk))
    assert report.segments == list_segments(disk) == open_log(disk).segments()
    assert not report.damaged
    assert verify(MemoryDisk()).records == 0


def test_a_torn_tail_is_reported_and_is_no_damage(disk: MemoryDisk) -> None:
    last = list(read(disk))[-1]
    disk.flip(last.segment, 8 * (last.offset + 70))
    assert numbers(list(read(disk))) == list(range(1, 60))
    report = verify(disk)
    (finding,) = report.findings
    assert (finding.kind, finding.lsn, finding.offset) == ("torn", 60, last.offset)
    assert not report.damaged


def test_behind_damage_reading_goes_on_with_the_next_block(disk: MemoryDisk) -> None:
    for first_lsn in (30, 7, 1):
        block = next(read(disk, first_lsn, first_lsn))
        disk.flip(block.segment, 8 * (block.offset + 70))
    found = list(inspect(disk))
    assert numbers(blocks_of(found)) == [n for n in range(1, 61) if n not in {1, 7, 30}]
    assert [(f.kind, f.lsn, f.cost) for f in findings_of(found)] == [
        ("damaged", lsn, f"the records from LSN {lsn} to {lsn}") for lsn in (1, 7, 30)
    ]
    assert verify(disk).damaged
    with pytest.raises(LogDamaged) as refusal:
        list(read(disk))
    assert refusal.value.lsn == 1


def test_a_gap_between_segments_is_reported_where_it_is(disk: MemoryDisk) -> None:
    names = disk.names()
    disk.remove(names[2])
    found = list(inspect(disk))
    (gap,) = findings_of(found)
    assert (gap.kind, gap.lsn) == ("missing", int(names[2][:20]))
    assert gap.cost == f"the records from LSN {int(names[2][:20])} to {int(names[3][:20]) - 1}"
    at = found.index(gap)
    assert [item.last_lsn for item in blocks_of(found[:at])][-1] == int(names[2][:20]) - 1
    assert next(item.first_lsn for item in blocks_of(found[at:])) == int(names[3][:20])


def test_a_foreign_segment_is_named_and_left_out(disk: MemoryDisk) -> None:
    other = MemoryDisk()
    Log.open(other, cluster="tests", node="n2", settings=SMALL).close()
    names = disk.names()
    disk.put(names[1], other.image(other.names()[0]))
    found = list(inspect(disk))
    assert [finding.kind for finding in findings_of(found)] == ["foreign"]
    with pytest.raises(LogForeign):
        list(read(disk))


def test_a_log_of_another_node_is_named_once_and_read_all_the_same(disk: MemoryDisk) -> None:
    found = list(inspect(disk, owner=("tests", "n2")))
    assert [(f.kind, f.lsn) for f in findings_of(found)] == [("foreign", 1)]
    assert numbers(blocks_of(found)) == list(range(1, 61))
    assert [f.kind for f in verify(disk, owner=("tests", "n2")).findings] == ["foreign"]
    told: list[Finding] = []
    assert list_segments(disk, owner=("tests", "n2"), tell=told.append) == list_segments(disk)
    assert [f.kind for f in told] == ["foreign"]
    with pytest.raises(LogForeign):
        list(read(disk, owner=("other", "n1")))
    assert verify(disk, owner=("tests", "n1")).findings == []


def test_damage_below_what_is_asked_for_is_passed_over_by_who_asks_and_told_by_who_looks(disk: MemoryDisk) -> None:
    names = disk.names()
    begins = [int(name[:20]) for name in names]
    inside = next(read(disk, begins[-1] + 1, begins[-1] + 1))
    disk.flip(inside.segment, 8 * (inside.offset + 70))  # in the last segment, which has to be read from its beginning
    disk.flip(names[1], 8 * 20)  # a header
    disk.remove(names[3])
    assert numbers(list(read(disk, begins[-1] + 2))) == list(range(begins[-1] + 2, 61))
    for lsn in (begins[-1] + 1, begins[3], begins[1]):
        with pytest.raises(LogDamaged):
            list(read(disk, lsn))
    told = findings_of(list(inspect(disk)))
    assert [(f.kind, f.lsn, f.until) for f in told] == [
        ("damaged", begins[1], begins[2]),
        ("missing", begins[3], begins[4]),
        ("damaged", begins[-1] + 1, begins[-1] + 2),
    ]


@pytest.mark.parametrize("size", [HEADER_BYTES, 700, 2047, 2048 + 512])
def test_a_segment_file_of_another_size_than_it_was_made_with_is_damage(disk: MemoryDisk, size: int) -> None:
    names = disk.names()
    for at in (0, len(names) - 1):
        changed = disk.copy()
        changed.open(names[at], write=True).truncate(size)
        findings = [f for f in verify(changed).findings if f.kind != "index"]
        assert findings, f"{names[at]} has {size} bytes"
        assert {(f.kind, f.segment) for f in findings} == {("damaged", names[at])}
        told = findings_of(list(inspect(changed)))
        assert [f.kind for f in told if f.damage and f.segment == names[at]] or at == 0
        if at:
            with pytest.raises(LogDamaged):
                list(read(changed))


def test_a_log_that_begins_later_than_it_says_has_lost_its_beginning_or_its_end(disk: MemoryDisk) -> None:
    settings = LogSettings(segment_bytes=2048, total_bytes=3 * 2048)
    log = open_log(disk, settings)
    trimmed = log.trimmable(60)
    assert trimmed is not None
    lsn = append(log, trimmed)
    log.trim(trimmed.first_lsn)
    assert verify(disk).findings == []
    untold = disk.copy()
    block = next(read(disk, lsn, lsn))
    untold.flip(block.segment, 8 * (block.offset + 70))
    assert {(f.kind, f.lsn, f.until) for f in verify(untold).findings} == {
        ("torn", lsn, 0),
        ("missing", 1, trimmed.first_lsn),
    }
    log.close()
    further = disk.copy()
    first, second = further.names()[:2]
    further.remove(first)
    (finding,) = verify(further).findings
    assert (finding.kind, finding.lsn, finding.until) == ("missing", trimmed.first_lsn, int(second[:20]))
    assert verify(MemoryDisk()).findings == []


def test_a_sealed_last_segment_without_a_successor_is_told_and_costs_nobody_his_reading(disk: MemoryDisk) -> None:
    names = disk.names()
    disk.remove(names[-1])
    report = verify(disk)
    assert [(f.kind, f.segment, f.lsn) for f in report.findings] == [("unfollowed", names[-2], int(names[-1][:20]))]
    assert not report.damaged
    assert numbers(list(read(disk))) == list(range(1, int(names[-1][:20])))


def test_an_index_that_disagrees_with_the_blocks_is_reported_and_costs_nothing(disk: MemoryDisk) -> None:
    name = disk.names()[0]
    disk.flip(name, 8 * (SMALL.segment_bytes - 100))
    report = verify(disk)
    assert [finding.kind for finding in report.findings] == ["index"]
    assert not report.damaged
    disk.flip(name, 8 * (SMALL.segment_bytes - 100))
    disk.flip(name, 8 * (SMALL.segment_bytes - 3))
    report = verify(disk)
    assert [finding.kind for finding in report.findings] == ["index"]
    assert report.records == 60


def footer_of(disk: MemoryDisk, name: str) -> tuple[SegmentHeader, Trailer, SegmentIndex]:
    """What a sealed segment says of itself."""
    file = disk.open(name)
    header = read_header(file)
    trailer = read_trailer(file, header)
    return header, trailer, read_index(file, Sealed(header, trailer))


def tell(disk: MemoryDisk, name: str, header: SegmentHeader, trailer: Trailer, index: SegmentIndex) -> None:
    """Let it say this, with the right checksums."""
    _, told = encode_footer(trailer, index)
    disk.open(name, write=True).write(header.capacity - len(told), told)


def test_an_index_that_lies_with_the_right_checksum_is_found_by_who_holds_it_against_the_records(disk: MemoryDisk) -> None:
    name = disk.names()[0]
    header, trailer, index = footer_of(disk, name)
    assert index.fragments["acc", 0].low == 1
    index.fragments["acc", 0].low = 2  # the first update of the fragment would never be supplied again
    tell(disk, name, header, trailer, index)
    assert verify(disk).findings == [], "what it says of fragments is not looked at"
    assert [finding.kind for finding in verify(disk, indexes=True).findings] == ["index"]
    assert [finding.kind for finding in verify(disk, indexes=True, reference=True).findings] == ["index"]


def test_an_index_or_a_trailer_that_lies_about_blocks_is_always_found(disk: MemoryDisk) -> None:
    name = disk.names()[0]
    header, trailer, index = footer_of(disk, name)
    index.starts[1] += 8
    tell(disk, name, header, trailer, index)
    assert [finding.kind for finding in verify(disk).findings] == ["index"]
    index.starts[1] -= 8
    for wrong in (trailer._replace(last_time_ms=1), trailer._replace(records=trailer.records + 1)):
        tell(disk, name, header, wrong, index)
        assert [finding.kind for finding in verify(disk).findings] == ["index"]
    tell(disk, name, header, trailer, index)
    assert verify(disk, indexes=True).findings == []


# A live log.


def test_a_log_is_read_while_its_node_writes_it(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path) as real:
        log = open_log(real)
        for n in range(1, 40):
            append(log, update(n), durable=False)
            assert numbers(list(read(tmp_path))) == list(range(1, n + 1))
        assert verify(tmp_path).findings == []
        log.close()


class _Growing:
    """A disk whose log grows behind the first window that is read of its blocks, as that of a live node does."""

    def __init__(self, disk: MemoryDisk, grow: Callable[[], None]) -> None:
        self._disk = disk
        self._grow: Callable[[], None] | None = grow

    def list(self) -> list[str]:
        return self._disk.list()

    def open(self, name: str, write: bool = False) -> File:
        file = self._disk.open(name, write)
        read = file.read

        def read_then_grow(offset: int, n: int) -> bytes:
            data = read(offset, n)
            if offset == HEADER_BYTES and self._grow is not None:
                grow, self._grow = self._grow, None
                grow()
            return data

        file.read = read_then_grow  # type: ignore[method-assign]  # of this one file
        return file


def test_what_is_written_behind_a_window_that_was_read_is_no_damage() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=64 << 10, total_bytes=1 << 20))
    append(log, update(1))

    def grow() -> None:
        append(log, update(2))
        append(log, update(3))  # proves that the one before was synced

    found = list(inspect(_Growing(disk, grow)))
    assert findings_of(found) == []
    assert numbers(blocks_of(found)) == [1, 2, 3]


def test_following_a_log_gives_every_block_once_across_rotations() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    written = 1

    def wait() -> bool:
        nonlocal written
        for _ in range(written % 7):
            written += 1
            append(log, update(written, 50), durable=False)
        written += 1
        append(log, update(written, 50), durable=False)
        return written < 200

    found = list(follow(disk, wait=wait))
    assert len(log.segments()) > 5
    assert numbers(found) == list(range(1, len(found) + 1))
    assert len(found) >= 190


def test_following_begins_where_it_is_told_even_if_that_is_not_written_yet() -> None:
    disk = MemoryDisk()
    log = None

    def wait() -> bool:
        nonlocal log
        if log is None:
            log = open_log(disk)
        append(log, update(log.next_lsn), update(log.next_lsn + 1))
        return log.next_lsn < 20

    assert numbers(list(follow(disk, 8, wait=wait))) == list(range(8, 19))


def test_following_waits_for_a_block_that_is_half_written() -> None:
    disk = filled([[update(1)], [update(2)]])
    (name,) = disk.names()
    whole = disk.image(name)
    cut = HEADER_BYTES + 112 + 60
    disk.put(name, whole[:cut] + bytes(len(whole) - cut))
    waits = 0

    def wait() -> bool:
        nonlocal waits
        waits += 1
        if waits == 2:
            disk.put(name, whole)
        return waits < 4

    assert numbers(list(follow(disk, wait=wait))) == [1, 2]


def test_following_a_log_that_is_trimmed_away_says_what_is_lost() -> None:
    disk = filled([[update(n, 60)] for n in range(1, 61)])
    names = disk.names()
    following = follow(disk, wait=lambda: False)
    next(following)
    for name in names[:3]:
        disk.remove(name)
    with pytest.raises(LogDamaged, match="trimmed before this was read") as refusal:
        list(following)
    assert refusal.value.finding.kind == "missing"


def test_following_sees_an_empty_segment_being_replaced_by_a_larger_one() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=1024, total_bytes=1 << 20))
    records: list[Record] = [update(1, 3000), update(2, 10), update(3, 5000)]
    waiting = iter(records)

    def wait() -> bool:
        record = next(waiting, None)
        if record is None:
            return False
        append(log, record)
        return True

    assert [block.records for block in follow(disk, wait=wait)] == [[record] for record in records]


def test_of_large_blocks_little_is_read_twice() -> None:
    sizes = [530 << 10] * 8 + [40, 20] + [1500 << 10, 200 << 10, 130 << 10] + [530 << 10] * 8
    wanted = [[update(number, size)] for number, size in enumerate(sizes, start=1)]
    disk = filled(wanted, LogSettings(segment_bytes=64 << 20, total_bytes=256 << 20))
    counting, found, ends = CountingDisk(disk), list[list[Record]](), 0
    for name in sorted(n for n in disk.names() if n.endswith(".wal")):
        file = disk.open(name)
        header = decode_header(file.read(0, HEADER_BYTES))
        scan = Scan(counting.open(name), header, limit=header.capacity)
        found += [decode_body(raw.header, raw.data) for raw in scan if raw.header.records]
        ends += scan.offset
    assert found == wanted
    assert counting.bytes_read < 1.3 * ends


def test_who_reads_backwards_ends_where_the_log_begins_by_then() -> None:
    disk = filled([[update(n, 60)] for n in range(1, 61)])
    oldest, second, *_, newest = disk.names()
    blocks = backwards(disk)
    last = next(blocks)
    disk.remove(oldest)
    disk.remove(second)
    read_back = [last, *blocks]
    assert all(isinstance(found, Block) for found in read_back)
    assert [b.first_lsn for b in read_back if isinstance(b, Block)] == sorted(
        (b.first_lsn for b in read(disk)), reverse=True
    )
    blocks = backwards(disk)
    next(blocks)
    disk.remove(disk.names()[1])
    with pytest.raises(LogDamaged):
        list(blocks)  # nobody trims what lies in between
    assert newest in disk.names()
