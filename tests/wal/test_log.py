"""The log's conversations: append, crash, open, rotate, pin, trim, refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.called import called
from tests.support.memory_disk import MemoryDisk, PowerCut
from tests.support.patience import joined
from tests.wal.logs import SMALL, append, filled, open_log, records_of, reopened, update
from wal import (
    DirectoryDisk,
    DiskError,
    DiskFull,
    Log,
    LogBehindStore,
    LogClosed,
    LogDamaged,
    LogForeign,
    LogSettings,
    PartitionCounter,
    Want,
    verify,
)
from wal.codec import HEADER_BYTES, LARGE_BODY_BYTES
from wal.records import Checkpoint, Record, Trimmed
from wal.segment import PREPARED, segment_name
from wal.segment_file import Sealed, decode


def test_a_new_log_is_empty_and_begins_at_lsn_1() -> None:
    log = open_log(MemoryDisk())
    assert (log.next_lsn, log.durable_lsn, log.torn) == (1, 0, None)
    assert records_of(log) == []
    assert [info.name for info in log.segments()] == ["00000000000000000001.wal"]


def test_what_was_appended_is_there_after_opening_again_on_a_real_disk(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path / "log") as disk:
        log = open_log(disk)
        assert append(log, update(1), update(2)) == 2
        assert append(log, update(3)) == 3
        log.close()
    with DirectoryDisk(tmp_path / "log") as disk:
        log = open_log(disk)
        assert (log.next_lsn, log.durable_lsn, log.torn) == (4, 3, None)
        blocks = list(log.replay(1))
        assert [block.records for block in blocks] == [[update(1), update(2)], [update(3)]]
        assert [(block.first_lsn, block.last_lsn, block.time_ms) for block in blocks] == [(1, 2, 1000), (3, 3, 3000)]
        log.close()


def test_replay_begins_inside_a_block_if_it_is_asked_to() -> None:
    log = open_log(MemoryDisk())
    append(log, update(1), update(2), update(3))
    (block,) = log.replay(2)
    assert (block.first_lsn, block.records) == (2, [update(2), update(3)])
    assert list(log.replay(4)) == []


def test_a_block_without_records_is_not_written() -> None:
    log = open_log(MemoryDisk())
    append(log, update(1), durable=False)
    assert append(log, durable=False) == 1
    assert log.durable_lsn == 0
    assert append(log, durable=True) == 1
    assert log.durable_lsn == 1


def test_segments_follow_each_other_and_replay_crosses_them() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    records: list[Record] = [update(n) for n in range(1, 101)]
    for record in records:
        append(log, record)
    infos = log.segments()
    assert len(infos) > 3
    assert [info.sealed for info in infos] == [True] * (len(infos) - 1) + [False]
    assert all(left.last_lsn + 1 == right.first_lsn for left, right in pairwise(infos))
    assert infos[0].first_time_ms == 1000
    assert infos[-1].last_time_ms == 100_000
    assert records_of(log) == records == reopened(disk)
    assert records_of(log, 50) == records[49:]
    assert verify(disk).findings == []


def test_the_next_segment_exists_before_it_is_needed() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    wanted = [log.wants_next]
    while not wanted[-1]:
        append(log, update(log.next_lsn))
        wanted.append(log.wants_next)
    assert len(wanted) > 3
    assert log.prepare_next()
    assert not log.prepare_next()
    assert log.wants_next is False
    assert PREPARED in disk.names()
    creations = disk.counts["create"]
    while len(log.segments()) == 1:
        append(log, update(log.next_lsn))
    assert disk.counts["create"] == creations, "the append that rotated made no file"
    assert PREPARED not in disk.names()


def test_a_segment_that_the_writer_waits_for_is_not_filled_first() -> None:
    made: list[bool] = []

    class Watched(MemoryDisk):
        def create(self, name: str, size: int, *, filled: bool = True) -> None:
            made.append(filled)
            super().create(name, size, filled=filled)

    log = open_log(Watched())
    assert log.prepare_next()
    assert made == [True, True]
    append(log, update(1, 1000))
    append(log, update(2, 1000))
    assert made == [True, True], "the prepared one is taken"
    append(log, update(3, 10_000))
    assert made == [True, True, False]


def test_a_leftover_of_a_prepared_segment_is_removed_at_the_next_open() -> None:
    disk = filled([[update(1)]])
    disk.put(PREPARED, b"x" * 2048)
    disk.put(f"{PREPARED}.tmp", b"x")
    log = open_log(disk)
    assert disk.names() == [segment_name(1)]
    assert records_of(log) == [update(1)]


def test_a_segment_that_is_still_empty_is_replaced_by_one_that_fits() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1, 5000))
    append(log, update(2))
    assert [info.bytes for info in log.segments()] == [8192]
    assert reopened(disk) == [update(1, 5000), update(2)]


def test_only_what_was_synced_is_durable() -> None:
    log = open_log(MemoryDisk())
    append(log, update(1), durable=False)
    append(log, update(2), durable=False)
    assert (log.next_lsn, log.durable_lsn) == (3, 0)
    log.sync()
    assert log.durable_lsn == 2
    append(log, update(3), durable=True)
    assert log.durable_lsn == 3


def test_a_rotation_makes_everything_before_it_durable() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    while len(log.segments()) < 3:
        append(log, update(log.next_lsn), durable=False)
    sealed = log.segments()[1].last_lsn
    assert log.durable_lsn == sealed
    assert len(reopened(disk.crash(lambda _: False))) >= sealed


def test_a_torn_tail_is_set_aside_reported_and_never_overwritten() -> None:
    disk = filled([[update(1)], [update(2)], [update(3, 600)]])
    name = segment_name(1)
    image = disk.image(name)
    end = len(image.rstrip(b"\0"))
    file = disk.open(name, write=True)
    for attempt, kept_as in enumerate([f"{name}.torn", f"{name}.torn.2"]):
        file.write(end - 40, bytes(40))
        log = open_log(disk)
        assert records_of(log) == [update(1), update(2)]
        assert log.torn is not None
        assert (log.torn.segment, log.torn.lsn, log.torn.kept_as) == (name, 3, kept_as)
        assert disk.image(kept_as) == image[log.torn.offset : end - 40].rstrip(b"\0")
        assert not disk.image(name)[log.torn.offset :].strip(b"\0")
        assert open_log(disk).torn is None
        file.write(log.torn.offset, image[log.torn.offset :])
        assert attempt < 2


def test_a_large_block_is_written_without_being_copied_and_is_there_when_its_head_is() -> None:
    large, settings = update(2, LARGE_BODY_BYTES), LogSettings(segment_bytes=256 << 10, total_bytes=1 << 20)
    seen: list[bool] = []
    for cut in range(20):
        disk = filled([[update(1)]], settings)
        log = open_log(disk, settings)
        disk.cut_power_after(cut)
        try:
            append(log, large)
        except PowerCut:
            found = reopened(disk.crash(lambda _: True), settings)
            assert found in ([update(1)], [update(1), large])
            seen.append(found != [update(1)])
        else:
            break
    assert seen == [False, False, False, True], "three pieces, and a sync"


def test_a_sealed_end_without_a_successor_is_followed_though_the_segment_before_it_lost_its_index() -> None:
    """Power went between the two, and then a sector (seed 81024)."""
    wanted = [[update(number, 600)] for number in range(1, 31)]
    disk = filled(wanted)
    names = sorted(name for name in disk.names() if name.endswith(".wal"))
    disk.remove(names[-1])
    before = names[-3]
    disk.flip(before, 8 * (disk.open(before).size() - 3))
    log = open_log(disk)
    append(log, update(99))
    found = records_of(log)
    log.close()
    assert found[:-1] == [one for some in wanted for one in some][: len(found) - 1]
    assert found[-1] == update(99)
    assert len(found) > 10
    assert reopened(disk) == found
    assert verify(disk).findings == []


def test_what_open_calls_durable_and_what_it_set_aside_survive_a_power_cut() -> None:
    disk = filled([[update(1)], [update(2)], [update(3, 600)]], durable=False)
    disk.open(segment_name(1), write=True).write(HEADER_BYTES + 112 + 112 + 300, b"torn")
    log = open_log(disk)
    assert log.durable_lsn == 2
    assert log.torn is not None
    left = disk.crash(lambda _: False)
    assert left.image(log.torn.kept_as) == disk.image(log.torn.kept_as)
    assert reopened(left) == [update(1), update(2)]


def test_a_log_can_be_written_after_its_torn_tail_was_dropped() -> None:
    disk = filled([[update(1)], [update(2)]])
    disk.open(segment_name(1), write=True).write(HEADER_BYTES + 180, b"\xff")
    log = open_log(disk)
    assert records_of(log) == [update(1)]
    assert append(log, update(2, 99)) == 2
    assert reopened(disk) == [update(1), update(2, 99)]


@pytest.mark.parametrize("size", [2047, 600, 400, 4096])
def test_a_file_of_another_size_than_it_was_made_with_is_damage_and_gets_its_size_back_if_that_is_accepted(
    size: int,
) -> None:
    disk = filled([[update(1)], [update(2)]])
    disk.open(segment_name(1), write=True).truncate(size)
    before = disk.copy()
    with pytest.raises(LogDamaged, match=f"the file has {size} bytes: expected the 2048") as refusal:
        open_log(disk)
    assert refusal.value.lsn == (3 if size >= 600 else 2)
    assert disk.image(segment_name(1)) == before.image(segment_name(1))
    log = open_log(disk, accept_loss=True)
    assert log.torn is not None
    assert (log.torn.gone, log.torn.why) == (
        2048 - size,
        f"the file has {size} bytes: expected the 2048 that it was made with",
    )
    assert disk.size(segment_name(1)) == 2048
    assert records_of(log) == [update(1), update(2)][: refusal.value.lsn - 1]
    assert reopened(disk) == records_of(log)


def test_the_blocks_of_a_damaged_segment_are_decoded_once_whatever_is_wrong_with_it() -> None:
    """Of another size; without its trailer, and broken before the place that its successor knows of; closed, and broken."""
    short = filled([[update(1)], [update(2)]])
    short.open(segment_name(1), write=True).truncate(600)
    untold = filled([[update(n)] for n in range(1, 60)])
    (first, *_) = (name for name in untold.names() if name.endswith(".wal"))
    untold.flip(first, 8 * (untold.size(first) - 20))
    untold.flip(first, 8 * (HEADER_BYTES + 400))
    closed = MemoryDisk()
    log = open_log(closed)
    append(log, update(1))
    append(log, update(2))
    log.close()
    closed.flip(segment_name(1), 8 * (HEADER_BYTES + 180))
    for disk, whole in ((short, 2), (untold, 3), (closed, 1)):
        with called(decode.__code__) as times, pytest.raises(LogDamaged) as refusal:
            open_log(disk)
        assert (times[decode.__code__], refusal.value.lsn) == (whole, whole + 1)


def test_damage_behind_which_synced_blocks_follow_is_refused_with_the_disk_unchanged() -> None:
    disk = filled([[update(n)] for n in range(1, 6)])
    disk.flip(segment_name(1), 8 * (HEADER_BYTES + 100))
    before = disk.copy()
    with pytest.raises(LogDamaged, match="foreshore wal verify") as refusal:
        open_log(disk)
    assert (refusal.value.segment, refusal.value.offset, refusal.value.lsn) == (segment_name(1), HEADER_BYTES, 1)
    assert refusal.value.finding.cost == "the records from LSN 1 on"
    assert disk.names() == before.names()
    assert disk.image(segment_name(1)) == before.image(segment_name(1))


def test_damage_to_the_last_block_of_a_closed_log_is_refused_because_its_marker_proves_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    append(log, update(2))
    end = HEADER_BYTES + sum(block.bytes for block in log.replay(1))
    log.close()
    disk.flip(segment_name(1), 8 * (end - 10))
    with pytest.raises(LogDamaged):
        open_log(disk)


def test_damage_to_a_marker_costs_nothing() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    log.close()
    end = len(disk.image(segment_name(1)).rstrip(b"\0"))
    disk.flip(segment_name(1), 8 * (end - 20))
    log = open_log(disk)
    assert records_of(log) == [update(1)]
    assert log.torn is not None


def test_opening_and_closing_again_adds_no_second_marker() -> None:
    disk = filled([[update(1)]])
    open_log(disk).close()
    image = disk.image(segment_name(1))
    for _ in range(3):
        open_log(disk).close()
    assert disk.image(segment_name(1)) == image


def test_an_unsynced_block_behind_a_lost_one_is_dropped_with_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1, 100), durable=True)
    append(log, update(2, 1000), durable=False)
    append(log, update(3, 100), durable=False)
    lost = disk.crash(lambda item: item.at == 3)  # the last sector: LSN 3 is whole, LSN 2 is not
    log = open_log(lost)
    assert records_of(log) == [update(1, 100)]
    assert log.torn is not None
    append(log, update(2, 50), durable=True)
    assert reopened(lost) == [update(1, 100), update(2, 50)]


def test_a_dropped_block_does_not_come_back_when_the_same_bytes_are_written_before_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1, 400), durable=False)
    append(log, update(2, 400), durable=False)
    lost = disk.crash(lambda item: item.kind == "name" or item.at != 0)
    log = open_log(lost)
    assert records_of(log) == []
    append(log, update(1, 400), durable=True)
    assert reopened(lost) == [update(1, 400)]


def test_synced_blocks_behind_a_lost_one_prove_damage_in_log_only_mode_too() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for n in range(1, 5):
        append(log, update(n), durable=False)
    log.sync()
    append(log, update(5), durable=False)
    disk.flip(segment_name(1), 8 * (HEADER_BYTES + 60))
    with pytest.raises(LogDamaged, match="was synced"):
        open_log(disk)


def test_a_store_that_is_ahead_of_the_log_is_a_refusal() -> None:
    disk = filled([[update(1)], [update(2)]])
    assert reopened(disk, from_lsn=3) == []
    with pytest.raises(LogBehindStore, match="the log ends before LSN 3"):
        open_log(disk, from_lsn=4)
    with pytest.raises(LogBehindStore):
        open_log(MemoryDisk(), from_lsn=2)


def test_a_torn_tail_that_the_store_already_holds_is_a_refusal_with_nothing_dropped() -> None:
    disk = filled([[update(1)], [update(2)]])
    disk.flip(segment_name(1), 8 * (HEADER_BYTES + 180))
    image = disk.image(segment_name(1))
    with pytest.raises(LogBehindStore):
        open_log(disk, from_lsn=3)
    assert disk.image(segment_name(1)) == image
    assert disk.names() == [segment_name(1)]


@pytest.mark.parametrize(("cluster", "node"), [("other", "n1"), ("tests", "n2")])
def test_the_log_of_another_cluster_or_node_is_refused(cluster: str, node: str) -> None:
    disk = filled([[update(1)]])
    with pytest.raises(LogForeign, match="expected"):
        Log.open(disk, cluster=cluster, node=node, settings=SMALL)
    with pytest.raises(LogForeign):
        Log.open(disk, cluster=cluster, node=node, settings=SMALL, accept_loss=True)


def test_a_loss_that_is_accepted_leaves_the_prefix_and_deletes_nothing() -> None:
    disk = filled([[update(n)] for n in range(1, 60)])
    names = [name for name in disk.names() if name.endswith(".wal")]
    assert len(names) >= 3
    disk.flip(names[1], 8 * (HEADER_BYTES + 60))
    kept_to = int(names[1][:20]) - 1
    log = open_log(disk, accept_loss=True)
    assert records_of(log) == [update(n) for n in range(1, kept_to + 1)]
    assert log.set_aside == [f"{name}.lost" for name in reversed(names[2:])]
    assert log.torn is not None
    assert log.torn.lsn == kept_to + 1
    assert log.torn.kept_as in disk.names()
    append(log, update(kept_to + 1, 33))
    assert reopened(disk) == [*(update(n) for n in range(1, kept_to + 1)), update(kept_to + 1, 33)]
    assert not verify(disk).damaged


def test_a_segment_whose_successor_is_lost_is_written_again() -> None:
    disk = filled([[update(n)] for n in range(1, 60)])
    names = [name for name in disk.names() if name.endswith(".wal")]
    disk.flip(names[1], 3)
    log = open_log(disk, accept_loss=True)
    kept = [update(n) for n in range(1, int(names[1][:20]))]
    assert records_of(log) == kept
    assert log.set_aside == [f"{name}.lost" for name in reversed(names[1:])]
    append(log, update(100))
    assert reopened(disk) == [*kept, update(100)]


def test_if_nothing_reaches_the_store_any_more_the_log_begins_anew_where_the_store_is() -> None:
    disk = filled([[update(1)], [update(2)]])
    log = open_log(disk, from_lsn=10, accept_loss=True)
    assert (log.next_lsn, log.set_aside) == (10, [f"{segment_name(1)}.lost"])
    append(log, update(10))
    assert reopened(disk, from_lsn=10) == [update(10)]
    assert log.segments()[0].first_lsn == 10


def test_accepting_a_loss_where_there_is_none_changes_nothing() -> None:
    disk = filled([[update(n)] for n in range(1, 60)])
    log = open_log(disk, accept_loss=True)
    assert log.set_aside == []
    assert log.torn is None
    assert len(records_of(log)) == 59


# Stopping.


def test_after_a_failed_sync_everything_is_refused_with_that_error_and_nothing_is_retried() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    disk.fail("sync", 1)
    with pytest.raises(DiskError, match="injected EIO") as first:
        append(log, update(2))
    syncs = disk.counts["sync"]
    refusals: list[Callable[[], object]] = [
        lambda: append(log, update(3)),
        log.sync,
        log.prepare_next,
        lambda: log.replay(1),
        lambda: log.history([]),
        lambda: log.trimmable(1),
        lambda: log.trim(1),
    ]
    for refused in refusals:
        with pytest.raises(DiskError) as later:
            refused()
        assert later.value is first.value
    log.close()
    assert disk.counts["sync"] == syncs


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again_before_it_is_built_on() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    disk.fail("sync", 1)
    with pytest.raises(DiskError):
        append(log, update(2))
    log = open_log(disk)  # the process is back, the power never went: LSN 2 can be read
    assert records_of(log) == [update(1), update(2)]
    append(log, update(3))
    assert reopened(disk.crash(lambda _: False)) == [update(1), update(2), update(3)]


def test_a_full_disk_is_met_before_anything_is_written_and_the_log_goes_on_where_there_is_room_again() -> None:
    disk = MemoryDisk(capacity=3000)
    log = open_log(disk)
    appended: list[Record] = [update(n) for n in range(1, 13)]
    for record in appended:
        append(log, record)
    for _ in range(2):
        with pytest.raises(DiskFull) as full:
            append(log, update(13))
        assert full.value.early
        assert records_of(log) == appended
    with pytest.raises(DiskFull):
        log.prepare_next()
    assert records_of(open_log(disk.copy())) == appended
    disk.capacity = None
    append(log, update(13))
    log.close()
    assert records_of(open_log(disk)) == [*appended, update(13)]


def test_a_full_disk_met_in_the_background_stops_no_append_that_does_not_need_the_space() -> None:
    disk = MemoryDisk(capacity=3000)
    log = open_log(disk)
    append(log, update(1))
    with pytest.raises(DiskFull):
        log.prepare_next()
    append(log, update(2))
    assert records_of(log) == [update(1), update(2)]


@pytest.mark.parametrize("call", ["sync", "rename", "sync_directory"])
def test_what_is_full_when_a_file_is_to_last_stops_the_log(call: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1))
    disk.fail(call, 1, "ENOSPC")
    with pytest.raises(DiskFull) as full:
        log.prepare_next()
    assert not full.value.early
    with pytest.raises(DiskFull):
        append(log, update(2))


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_writer_that_waited_for_a_preparation_which_failed_goes_no_further(call: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    append(log, update(1, 1000))
    append(log, update(2, 1000))

    class Waiting:
        """The lock of who prepares, when the writer comes for it just before that fails."""

        begun = False

        def __enter__(self) -> None:
            if not self.begun:
                self.begun = True
                disk.fail(call, 1)
                with pytest.raises(DiskError):
                    log.prepare_next()

        def __exit__(self, *_: object) -> None:
            """Nobody else waits."""

    log._preparing = Waiting()  # type: ignore[assignment]
    with pytest.raises(DiskError):
        append(log, update(3, 10_000))
    assert reopened(disk) == [update(1, 1000), update(2, 1000)]


def test_a_closed_log_says_so() -> None:
    log = open_log(MemoryDisk())
    log.close()
    log.close()
    with pytest.raises(LogClosed, match="open it again"):
        append(log, update(1))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="segment_bytes is 10"):
        LogSettings(segment_bytes=10)
    with pytest.raises(ValueError, match="at least three segments"):
        LogSettings(segment_bytes=2048, total_bytes=4096)


# Retention.


def test_trimming_logs_what_goes_and_then_removes_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=2048, total_bytes=3 * 2048))
    for n in range(1, 60):
        append(log, update(n, partition=n % 2))
    assert log.trimmable(0) is None, "no checkpoint, nothing may go"
    trimmed = log.trimmable(log.durable_lsn)
    assert trimmed is not None
    assert trimmed.dropped == [
        ("acc", 0, trimmed.first_lsn - 1 - (trimmed.first_lsn - 1) % 2),
        ("acc", 1, trimmed.first_lsn - 1 - trimmed.first_lsn % 2),
    ]
    append(log, trimmed)
    assert log.reach("acc", 0) == 0
    log.trim(trimmed.first_lsn)
    assert log.segments()[0].first_lsn == trimmed.first_lsn
    assert [log.reach("acc", 0), log.reach("acc", 1), log.reach("acc", 2)] == [*(d[2] for d in trimmed.dropped), 0]
    assert sum(info.bytes for info in log.segments()) + 2048 <= 3 * 2048
    with pytest.raises(LogDamaged, match="begins at LSN"):
        log.replay(1)
    assert reopened(disk, from_lsn=trimmed.first_lsn)[-1] == trimmed
    with pytest.raises(LogDamaged, match="the log begins at LSN"):
        open_log(disk)


def test_a_log_begins_small_and_grows_with_what_is_written() -> None:
    disk, settings = MemoryDisk(), LogSettings(segment_bytes=8 << 20, total_bytes=1 << 30)
    log = open_log(disk, settings)
    log.append([update(1)], now_ms=0, durable=True)
    assert disk.used == 1 << 20, "one key, one megabyte"
    log.prepare_next()
    assert disk.used == 3 << 20
    at = 1
    while len(log.segments()) < 6:
        at += 1
        log.append([update(at, 200_000)], now_ms=0, durable=True)
    assert [info.bytes >> 20 for info in log.segments()] == [1, 2, 4, 8, 8, 8]
    log.close()
    log = open_log(disk, settings)
    assert log.next_lsn == at + 1
    assert [info.bytes >> 20 for info in log.segments()] == [1, 2, 4, 8, 8, 8]


def test_a_pin_holds_its_segments_as_long_as_there_is_room_for_it() -> None:
    log = open_log(MemoryDisk(), LogSettings(segment_bytes=2048, total_bytes=16 * 2048))
    log.pin("supply n2", 1)
    at = 0
    while len(log.segments()) < 15:  # and the prepared one: within the cap, and above what is not pinned may take
        at += 1
        log.append([update(at)], now_ms=0, durable=True)
    assert log.trimmable(at) is None
    log.pin("supply n2", log.segments()[1].first_lsn)
    trimmed = log.trimmable(at)
    assert trimmed is not None
    assert trimmed.first_lsn == log.segments()[1].first_lsn, "its reader has passed that segment"
    log.unpin("supply n2")
    trimmed = log.trimmable(at)
    assert trimmed is not None
    assert trimmed.first_lsn == log.segments()[2].first_lsn


def test_a_pin_gives_way_to_the_cap_and_is_listed() -> None:
    log = open_log(MemoryDisk(), LogSettings(segment_bytes=2048, total_bytes=3 * 2048))
    log.pin("supply n2", 1)
    log.pin("supply n3", 10**6)
    for n in range(1, 60):
        append(log, update(n))
    assert log.trimmable(log.durable_lsn) is not None
    assert log.gave_way == ["supply n2"]
    assert log.pins() == {"supply n3": 10**6}
    log.unpin("supply n2")
    log.unpin("supply n3")
    assert log.pins() == {}


def test_a_trim_after_opening_again_reads_the_counters_from_the_footers() -> None:
    disk = MemoryDisk()
    settings = LogSettings(segment_bytes=2048, total_bytes=3 * 2048)
    log = open_log(disk, settings)
    for n in range(1, 60):
        append(log, update(n))
    expected = log.trimmable(40)
    log.close()
    assert open_log(disk, settings, from_lsn=40).trimmable(40) == expected == Trimmed(*_fields(expected))


def _fields(trimmed: Trimmed | None) -> tuple[int, list[tuple[str, int, int]]]:
    assert trimmed is not None
    return trimmed.first_lsn, trimmed.dropped


# Threads.


def test_readers_see_whole_blocks_while_another_thread_appends(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path) as disk:
        log = open_log(disk, LogSettings(segment_bytes=16384, total_bytes=1 << 24))
        append(log, Checkpoint(0))
        stop = threading.Event()
        problems: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    durable = log.durable_lsn
                    cursor = log.history([Want(("acc", 0), PartitionCounter(), 10**6, [(1, 1)])])
                    found = []
                    while batch := cursor.read(5000):
                        found += [write.end for write in batch]
                    assert found == list(range(1, len(found) + 1))
                    assert len(found) >= durable - 1
                    lsns = [block.first_lsn for block in log.replay(1)]
                    assert lsns == list(range(1, len(lsns) + 1))
                    log.prepare_next()
                    log.segments()
            except BaseException as error:
                problems.append(error)

        readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
        for reader in readers:
            reader.start()
        for n in range(1, 1500):
            append(log, update(n), durable=n % 50 == 0)
        stop.set()
        joined(*readers)
        assert problems == []
        assert len(log.segments()) > 3
        log.close()


def test_a_segment_gets_its_index_without_a_look_at_all_others() -> None:
    settings = LogSettings(segment_bytes=1 << 10, total_bytes=1 << 30)
    log = open_log(filled([[update(at + 1, 400)] for at in range(200)], settings), settings)
    looked = Looked(log._segments._sealed)
    assert len(looked) == 199
    log._segments._sealed = looked
    append(log, update(201, 400))
    append(log, update(202, 400))
    assert len(looked) == 201
    assert looked.at <= 2 * 2 * 9, "two segments, each looked for twice"


class Looked(list[Sealed]):
    """Counts what is looked at."""

    at = 0

    def __iter__(self) -> Iterator[Sealed]:
        self.at += len(self)
        return super().__iter__()

    def __getitem__(self, place: Any) -> Any:
        self.at += 1
        return super().__getitem__(place)
