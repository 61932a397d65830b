"""What the log expects of a disk, asked of the real one and of the one in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.memory_disk import MemoryDisk, PowerCut, Unsynced
from tests.support.small_files import files_up_to
from wal.disk import DirectoryDisk, Disk, DiskError, DiskFull, DiskMissing


@pytest.fixture(params=["directory", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
    else:
        with DirectoryDisk(tmp_path / "log") as real:
            yield real


def test_a_created_file_is_full_of_zeros_and_leaves_no_temporary_one(disk: Disk) -> None:
    disk.create("a.wal", 3000)
    assert disk.list() == ["a.wal"]
    assert disk.size("a.wal") == 3000
    assert disk.open("a.wal").read(0, 5000) == bytes(3000)


def test_a_file_that_is_not_filled_reads_as_zeros_too(disk: Disk) -> None:
    disk.create("a.wal", 3000, filled=False)
    assert (disk.list(), disk.size("a.wal")) == (["a.wal"], 3000)
    assert disk.open("a.wal").read(0, 5000) == bytes(3000)


def test_what_is_not_filled_has_its_room_all_the_same(tmp_path: Path) -> None:
    """Else a block would find the disk full when it is written, which is too late."""
    with DirectoryDisk(tmp_path / "log") as disk:
        disk.create("a.wal", 1 << 20, filled=False)
    assert (tmp_path / "log" / "a.wal").stat().st_blocks * 512 >= 1 << 20


def test_what_is_written_is_read_back_and_only_the_end_of_the_file_is_short(disk: Disk) -> None:
    disk.create("a.wal", 100)
    file = disk.open("a.wal", write=True)
    file.write(90, b"0123456789")
    assert file.read(88, 4) == b"\0\x0001"
    assert file.read(95, 100) == b"56789"
    assert file.read(200, 10) == b""
    file.write(95, b"abcdefghij")
    file.sync()
    assert file.size() == disk.size("a.wal") == 105
    file.truncate(110)
    assert file.read(100, 100) == b"fghij" + bytes(5)
    file.truncate(92)
    assert file.size() == 92
    file.close()
    file.close()


def test_a_file_that_is_not_there_is_missing(disk: Disk) -> None:
    for call in (
        lambda: disk.open("a.wal"),
        lambda: disk.size("a.wal"),
        lambda: disk.remove("a.wal"),
        lambda: disk.rename("a.wal", "b.wal"),
    ):
        with pytest.raises(DiskMissing):
            call()


def test_a_rename_takes_the_place_of_what_had_the_name(disk: Disk) -> None:
    disk.create("a.wal", 10)
    disk.create("b.wal", 20)
    disk.rename("a.wal", "b.wal")
    disk.sync_directory()
    assert disk.list() == ["b.wal"]
    assert disk.size("b.wal") == 10


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    disk.create("a.wal", 10)
    file = disk.open("a.wal", write=True)
    disk.rename("a.wal", "b.wal")
    file.write(0, b"x")
    disk.remove("b.wal")
    disk.sync_directory()
    assert file.read(0, 2) == b"x\0"
    assert disk.list() == []


def test_a_leftover_temporary_file_is_replaced(disk: Disk) -> None:
    disk.create("a.wal", 10)
    disk.rename("a.wal", "b.wal.tmp")
    disk.create("b.wal", 7)
    assert disk.list() == ["b.wal"]
    assert disk.size("b.wal") == 7


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/etc/passwd", ".hidden", "a..b", "a\0b", "ä", "x" * 201])
def test_a_name_that_could_lead_elsewhere_is_refused(disk: Disk, name: str) -> None:
    calls: list[Callable[[], object]] = [lambda: disk.open(name), lambda: disk.create(name, 1)]
    for call in calls:
        with pytest.raises(ValueError, match="not a plain file name"):
            call()


# The real one alone.


def test_directory_and_files_are_for_their_owner_only(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path / "deep" / "log") as disk:
        disk.create("a.wal", 1)
    assert stat.S_IMODE((tmp_path / "deep" / "log").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "log" / "a.wal").stat().st_mode) == 0o600


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"secret")
    with DirectoryDisk(tmp_path / "log") as disk:
        (tmp_path / "log" / "a.wal").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DiskError, match="ELOOP"):
            disk.open("a.wal")


def test_a_read_only_disk_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskMissing):
        DirectoryDisk(tmp_path / "log", read_only=True)
    assert list(tmp_path.iterdir()) == []
    with DirectoryDisk(tmp_path, read_only=True) as disk, pytest.raises(AssertionError, match="read-only"):
        disk.create("a.wal", 1)


def test_a_full_device_is_a_full_disk() -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("this system has no /dev/full")
    with DirectoryDisk("/dev", read_only=True) as look:
        file = look._open("full", os.O_RDWR)  # the one file that refuses every write for want of space
        with pytest.raises(DiskFull, match="free some space"):
            file.write(0, b"x")
        file.close()


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path) as disk:
        with files_up_to(64 << 10), pytest.raises(DiskFull, match="EFBIG") as full:
            disk.create("a.wal", 128 << 10)
        assert full.value.early
        assert disk.list() == []


# The one in memory alone.


def test_a_power_cut_keeps_any_chosen_subset_of_unsynced_sectors() -> None:
    disk = MemoryDisk()
    disk.create("a.wal", 2048)
    file = disk.open("a.wal", write=True)
    file.write(500, b"x" * 600)  # touches sectors 0, 1 and 2
    assert disk.unsynced() == [Unsynced("sector", "a.wal", at) for at in (0, 1, 2)]
    assert disk.crash(lambda _: False).image("a.wal") == bytes(2048)
    assert disk.crash(lambda _: True).image("a.wal") == disk.image("a.wal")
    middle = disk.crash(lambda item: item.at == 1).image("a.wal")
    assert middle == bytes(512) + b"x" * 512 + bytes(1024)
    file.sync()
    assert disk.unsynced() == []
    assert disk.crash(lambda _: False).image("a.wal") == disk.image("a.wal")


def test_a_name_is_durable_after_the_directory_was_synced() -> None:
    disk = MemoryDisk()
    disk.create("a.wal", 10)
    disk.rename("a.wal", "b.wal")
    disk.remove("b.wal")
    assert disk.crash(lambda _: False).names() == ["a.wal"]
    assert disk.crash(lambda item: item.at == 0).names() == ["b.wal"]
    assert disk.crash(lambda item: item.at == 1).names() == ["a.wal"]
    assert disk.crash(lambda _: True).names() == []
    disk.sync_directory()
    assert disk.crash(lambda _: False).names() == []


def test_a_file_that_grew_may_have_lost_its_size_and_what_lies_beyond() -> None:
    disk = MemoryDisk()
    disk.create("a.wal", 512)
    file = disk.open("a.wal", write=True)
    file.write(512, b"x" * 512)
    assert disk.crash(lambda item: item.kind == "sector").image("a.wal") == bytes(512)
    assert disk.crash(lambda item: item.kind == "size").image("a.wal") == bytes(1024)


def test_what_a_failed_sync_lost_stays_visible_and_is_never_written_by_the_next() -> None:
    disk = MemoryDisk()
    disk.create("a.wal", 512)
    file = disk.open("a.wal", write=True)
    file.write(0, b"lost")
    disk.fail("sync", 1)
    with pytest.raises(DiskError, match="injected EIO"):
        file.sync()
    assert file.read(0, 4) == b"lost"
    file.sync()
    assert disk.crash(lambda _: False).image("a.wal") == bytes(512)
    file.write(0, file.read(0, 4))
    file.sync()
    assert disk.crash(lambda _: False).image("a.wal")[:4] == b"lost"


def test_the_nth_call_of_a_kind_fails_and_the_next_does_not() -> None:
    disk = MemoryDisk()
    disk.create("a.wal", 512)
    disk.fail("write", 2, "ENOSPC")
    file = disk.open("a.wal", write=True)
    file.write(0, b"one")
    with pytest.raises(DiskFull):
        file.write(0, b"two")
    file.write(0, b"three")


def test_after_the_power_cut_nothing_answers() -> None:
    disk = MemoryDisk()
    disk.cut_power_after(2)
    disk.list()
    disk.list()
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.list()


def test_a_disk_with_a_capacity_is_full_when_it_is_reached_and_a_failed_create_gives_its_space_back() -> None:
    disk = MemoryDisk(capacity=1000)
    disk.create("a.wal", 800)
    with pytest.raises(DiskFull):
        disk.create("b.wal", 300)
    assert disk.list() == ["a.wal"]
    disk.create("c.wal", 200)
    assert disk.used == disk.capacity
