"""Archives: another order of the same bytes, which every reader reads, and a way there that can be cut anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import takewhile

import pytest

from tests.support.memory_disk import Keep, MemoryDisk, PowerCut, Unsynced
from tests.wal.logs import append, filled, no_op, open_log, outcome, prepare, records_of, reopened, update
from tests.wal.test_history import supplied, want
from wal import (
    Block,
    DiskError,
    Finding,
    Log,
    LogDamaged,
    LogSettings,
    appended,
    backwards,
    follow,
    inspect,
    list_segments,
    read,
    verify,
)
from wal.archive import ArchiveFile
from wal.archiver import make_archive, temporary_name
from wal.footer import speaking_of
from wal.records import Checkpoint, History, Preload, Record, Update, Write
from wal.recovery import examine
from wal.segment import archive_name, segment_lsns, segment_name
from wal.stored import open_segment

SETTINGS = LogSettings(segment_bytes=4 << 10, total_bytes=1 << 20)


def assorted(blocks: int) -> list[list[Record]]:
    """Blocks with every kind of piece: writes of many fragments, whole records of one, of several, and of none."""
    found: list[list[Record]] = []
    for at in range(blocks):
        n = at + 1
        two = [Write("acc", 1, 1, at, [b"k%d" % at], [b"v" * 40]), Write("bcc", 1, 1, at, [b"k%d" % at], [None])]
        vote = prepare(bytes([at]) * 16, two)
        many = Update([Write(name, p, 1, at, [b"key"], [b"x" * 9], at) for name in ("acc", "zoo") for p in (2, 3)])
        rows = Preload("acc", 4, [1], [n], [b"row"], [b"r" * 30])
        missed = History([Write("acc", 5, 1, at, [b"h"], [b"old"])])
        closing = outcome(vote, commit=at % 2 == 0)
        found.append([update(n), vote, many, closing, no_op(at, 1, partition=6), rows, missed, Checkpoint(n)])
    return found


BLOCKS = assorted(40)


def archived(log: Log, below_lsn: int = 1 << 40) -> int:
    """Archive all that may be; how many steps that took."""
    steps = 0
    while log.archive(below_lsn):
        steps += 1
    return steps


def both() -> tuple[MemoryDisk, MemoryDisk]:
    """A log, and the same with archives."""
    plain = filled(BLOCKS, SETTINGS)
    open_log(plain, SETTINGS).close()  # the last sealed one has its index then, too
    twin = plain.copy()
    archived(open_log(twin, SETTINGS))
    return plain, twin


def test_all_sealed_segments_become_archives_and_give_back_the_very_bytes() -> None:
    plain, twin = both()
    sealed = plain.names()[:-1]
    assert len(sealed) > 3
    assert twin.names() == [*(name + "z" for name in sealed), plain.names()[-1]]
    for lsn in segment_lsns(plain.names()[:-1]):
        file = open_segment(twin, lsn)
        assert isinstance(file, ArchiveFile)
        image = plain.image(segment_name(lsn))
        assert file.size() == len(image)
        assert file.read(0, len(image)) == image
        assert not file.problems
        for at, size in ((0, 300), (250, 20), (700, 1), (len(image) - 100, 100), (len(image) - 10, 50), (len(image), 5)):
            assert file.read(at, size) == image[at : at + size]


def test_every_reader_reads_both() -> None:
    plain, twin = both()

    def blocks(disk: MemoryDisk) -> list[tuple[int, int, list[Record]]]:
        return [(block.first_lsn, block.offset, block.records) for block in read(disk)]

    assert blocks(twin) == blocks(plain)
    assert [b.records for b in backwards(twin) if hasattr(b, "records")] == [r for _, _, r in reversed(blocks(plain))]
    assert [block.records for block in follow(twin, wait=lambda: False)] == [records for _, _, records in blocks(plain)]
    told, known = verify(twin), verify(plain)
    assert told.findings == known.findings == []
    assert (told.blocks, told.records, told.bytes) == (known.blocks, known.records, known.bytes)
    infos = list_segments(twin)
    assert [info.archived for info in infos] == [True] * (len(infos) - 1) + [False]
    assert [info.bytes for info in infos] == [len(twin.image(name)) for name in twin.names()]
    assert reopened(twin.copy(), SETTINGS) == reopened(plain.copy(), SETTINGS)
    only = {("acc", 3)}
    assert [b for b in inspect(twin, ask=speaking_of(only)) if hasattr(b, "records")]


def test_history_comes_out_of_archives_as_it_does_of_segments() -> None:
    plain, twin = both()
    logs = [open_log(disk, SETTINGS) for disk in (plain, twin)]
    fragments = [("acc", 0), ("acc", 1), ("bcc", 1), ("zoo", 3), ("acc", 5), ("acc", 6)]
    for have, up_to in ((0, 40), (7, 30), (38, 40)):
        wanted = [[want(have, up_to, fragment=fragment) for fragment in fragments] for _ in logs]
        found = [supplied(log, *wants) for log, wants in zip(logs, wanted, strict=True)]
        assert found[0][1] == found[1][1] == []
        for fragment in fragments:
            mine = [[write for write in writes if write.fragment == fragment] for writes, _ in found]
            assert mine[0] == mine[1]
            assert sum(write.delta for write in mine[0]) == up_to - have


def test_what_is_read_of_archives_is_at_most_twice_what_is_supplied() -> None:
    """A hundredth of a log, in fragments or in counters, whose values cannot be compressed."""
    chance = random.Random(1)
    counters = [0] * 10
    blocks: list[list[Record]] = []
    for _ in range(400):
        block: list[Record] = []
        for _ in range(50):
            p = chance.randrange(10)
            counters[p] += 1
            block.append(
                Update([Write("acc", p, 1, counters[p] - 1, [b"%08d" % chance.randrange(10**6)], [chance.randbytes(100)])])
            )
        blocks.append(block)
    settings = LogSettings(segment_bytes=1 << 20, total_bytes=1 << 30)
    disk = filled(blocks, settings, durable=False)
    log = open_log(disk, settings)
    archived(log)
    ends = max(info.last_lsn for info in log.segments() if info.archived)
    in_archives = [0] * 10
    for found in read(disk, 1, ends):
        for record in found.records:
            assert isinstance(record, Update)
            in_archives[record.writes[0].partition] = record.writes[0].end
    for wants in (
        [want(0, in_archives[7], fragment=("acc", 7))],
        [want(have - max(1, have // 100), have, fragment=("acc", p)) for p, have in enumerate(in_archives)],
    ):
        cursor = log.history(wants)
        size = 0
        while batch := cursor.read(1 << 20):
            size += sum(len(write.keys[0]) + len(write.values[0] or b"") + 48 for write in batch)
        assert cursor.missed == []
        assert cursor.bytes_read <= 2 * size, f"{cursor.bytes_read} bytes were read for {size}"


# The way there, cut anywhere.


def none(_: Unsynced) -> bool:
    """Nothing that was not synced is kept."""
    return False


def everything(_: Unsynced) -> bool:
    """All of it is."""
    return True


def some(seed: int) -> Keep:
    """Some of it is."""
    chance = random.Random(seed)
    return lambda _: chance.random() < 0.5


FEW = assorted(14)


def test_a_kill_or_a_power_cut_at_every_step_loses_nothing_and_is_taken_up_again() -> None:
    disk = filled(FEW, SETTINGS)
    known = reopened(disk.copy(), SETTINGS)
    twin = disk.copy()
    log = open_log(twin, SETTINGS)
    begun = twin.calls
    first = log.segments()[0].last_lsn + 1
    archived(log, first)
    steps = twin.calls - begun
    assert steps > 20
    for cut in range(steps):
        for keep in (None, none, everything, some(cut), some(1000 + cut)):
            twin = disk.copy()
            log = open_log(twin, SETTINGS)
            twin.cut_power_after(cut)
            with pytest.raises(PowerCut):
                archived(log, first)
            if keep is None:
                twin.restore_power()
            else:
                twin = twin.crash(keep)
            assert [record for block in read(twin) for record in block.records] == known, f"cut at {cut}"
            again = open_log(twin, SETTINGS)
            assert records_of(again) == known, f"cut at {cut}"
            archived(again, first)
            assert [name.endswith(".walz") for name in twin.names()][:2] == [True, False]
            assert segment_lsns(twin.names()) == segment_lsns(disk.names())
            assert records_of(again) == known
            assert not verify(twin).findings


@pytest.mark.parametrize("reason", ["EIO", "ENOSPC"])
def test_a_disk_that_refuses_leaves_the_segment_or_stops_the_log(reason: str) -> None:
    disk = filled(FEW, SETTINGS)
    known = reopened(disk.copy(), SETTINGS)
    twin = disk.copy()
    log = open_log(twin, SETTINGS)
    begun = twin.calls
    archived(log)
    went_on = stopped = 0
    for nth in range(1, twin.calls - begun + 1):
        twin = disk.copy()
        log = open_log(twin, SETTINGS)
        twin.fail("any", nth, reason)  # type: ignore[arg-type]
        try:
            archived(log)
        except DiskError:
            stopped += 1
        else:
            went_on += 1
            append(log, update(1, partition=9))
        twin.repair()
        assert reopened(twin, SETTINGS)[: len(known)] == known
    assert went_on > stopped > 0


def test_a_segment_that_found_no_room_for_its_archive_is_archived_when_there_is_some() -> None:
    disk = filled(FEW, SETTINGS)
    log = open_log(disk, SETTINGS)
    before, disk.capacity = disk.names(), disk.used
    for _ in range(3):
        assert log.archive(1 << 40) == 0
        assert "stays as it is" in log.no_room
        assert disk.names() == before, "nothing is left of it"
    disk.capacity = None
    archived(log)
    assert (log.no_room, log.left_alone) == ("", {})
    assert all(info.archived for info in log.segments()[:-1])


def test_a_segment_that_went_meanwhile_leaves_no_archive() -> None:
    for steps in range(1, 4):
        disk = filled(FEW, SETTINGS)
        log = open_log(disk, SETTINGS)
        for _ in range(steps):
            assert log.archive(1 << 40)
        first = log.segments()[1].first_lsn
        names = log.forget(first)
        log.archive(1 << 40)
        log.remove(names)
        assert segment_lsns(disk.names())[0] == first
        archived(log)
        assert not [name for name in disk.names() if name.endswith(".tmp")]
        assert segment_lsns(disk.names())[0] == first


def test_only_what_the_checkpoint_has_is_archived() -> None:
    disk = filled(FEW, SETTINGS)
    log = open_log(disk, SETTINGS)
    second = log.segments()[1]
    archived(log, second.last_lsn)
    assert [info.archived for info in log.segments()][:3] == [True, False, False]


def test_a_segment_that_is_not_whole_is_left_alone_and_told() -> None:
    disk = filled(FEW, SETTINGS)
    log = open_log(disk, SETTINGS)
    name = disk.names()[0]
    disk.flip(name, 8 * 600)
    archived(log)
    assert list(log.left_alone) == [name]
    assert "does not verify" in log.left_alone[name]
    assert name in disk.names()


def test_the_last_segment_of_a_log_is_one_that_can_be_written() -> None:
    _, twin = both()
    last = twin.names()[-1]
    with_it = [record for block in read(twin) for record in block.records]
    twin.remove(last)
    log = open_log(twin, SETTINGS)
    assert records_of(log) == with_it[: int(last.removesuffix(".wal")) - 1]
    append(log, update(1))
    assert len([name for name in twin.names() if name.endswith(".wal")]) == 2


def test_a_trim_removes_archives_and_says_what_went() -> None:
    _, twin = both()
    log = open_log(twin, LogSettings(segment_bytes=4 << 10, total_bytes=12 << 10))
    trimmed = log.trimmable(1 << 40)
    assert trimmed is not None
    assert {name: end for name, _, end in trimmed.dropped}["acc"] > 0
    log.trim(trimmed.first_lsn)
    assert segment_lsns(twin.names())[0] == trimmed.first_lsn == log.segments()[0].first_lsn


def test_who_follows_a_log_goes_on_through_archiving_and_is_told_what_was_trimmed() -> None:
    disk = filled(FEW, SETTINGS)
    log = open_log(disk, SETTINGS)
    following = appended(disk)
    seen = [block.first_lsn for block in takewhile(lambda found: found is not None, following) if isinstance(block, Block)]
    assert seen == [block.first_lsn for block in read(disk)]
    archived(log)
    append(log, update(15))
    assert [
        block.records for block in takewhile(lambda found: found is not None, following) if isinstance(block, Block)
    ] == [[update(15)]]
    late = appended(disk)
    first = next(late)
    assert isinstance(first, Block)
    assert first.first_lsn == 1
    cursor = follow(disk, wait=lambda: False)
    next(cursor)
    third = log.segments()[2].first_lsn
    log.trim(third)
    rest = list(takewhile(lambda found: found is not None, late))
    (gone,) = [found for found in rest if isinstance(found, Finding)]
    assert gone.until == third
    assert [found.first_lsn for found in rest if isinstance(found, Block)][-1] == log.next_lsn - 1
    with pytest.raises(LogDamaged, match="trimmed"):
        list(cursor)


# Damage.


def judged(read_all: Callable[[], list[Record]]) -> list[Record] | None:
    """All records, or None for a refusal."""
    try:
        return read_all()
    except LogDamaged:
        return None


def test_whatever_byte_of_an_archive_changes_is_found_and_nothing_false_is_read() -> None:
    disk = filled(FEW, SETTINGS)
    known = [record for block in read(disk) for record in block.records]
    log = open_log(disk, SETTINGS)
    archived(log)
    name = disk.names()[1]
    for at in range(len(disk.image(name))):
        whole = open_log(disk, SETTINGS, from_lsn=len(known))
        disk.flip(name, 8 * at + at % 8)
        report = verify(disk)
        found = judged(lambda: [record for block in read(disk) for record in block.records])
        assert report.damaged or found == known, f"byte {at}"
        assert report.damaged == (found is None), f"byte {at}"
        if not at % 5:
            writes, missed = supplied(whole, want(0, 14))
            assert missed or len(writes) == 14
        disk.flip(name, 8 * at + at % 8)
    assert not verify(disk).findings


@pytest.mark.parametrize("size", [0, 1, 100, 256, 300, -25, -24, -1])
def test_an_archive_that_is_cut_is_damage(size: int) -> None:
    disk = filled(FEW, SETTINGS)
    log = open_log(disk, SETTINGS)
    archived(log)
    name = disk.names()[1]
    image = disk.image(name)
    disk.put(name, image[:size] if size >= 0 else image[: len(image) + size])
    report = verify(disk)
    assert report.damaged
    lost = {lsn for block in read(filled(FEW, SETTINGS)) for lsn in [block.first_lsn]}
    kept = {block.first_lsn for block in inspect(disk) if hasattr(block, "first_lsn") and hasattr(block, "records")}
    assert kept < lost


def test_damage_in_one_chunk_costs_that_chunk() -> None:
    disk = filled(FEW, SETTINGS)
    sealed = examine(disk, cluster="tests", node="n1", from_lsn=1).sealed[0]
    for _ in make_archive(disk, sealed, chunk_bytes=400):
        pass
    disk.rename(temporary_name(sealed), archive_name(1))
    disk.remove(sealed.name)
    blocks = [block for block in read(disk) if block.segment.endswith(".walz")]
    assert len(blocks) > 2
    file = open_segment(disk, 1)
    assert isinstance(file, ArchiveFile)
    chunks = file.directory.chunks
    assert len(chunks) > 2
    disk.flip(archive_name(1), 8 * file.map.at[chunks[1].first_frame])
    kept = [found.offset for found in inspect(disk) if hasattr(found, "records") and found.segment.endswith(".walz")]
    assert kept == [b.offset for b in blocks if not chunks[1].start <= b.offset < chunks[1].end]
