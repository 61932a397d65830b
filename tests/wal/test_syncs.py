"""Every sync that the log promises reaches the kernel, through the real disk; and each of them may fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import open_log, update
from wal import DiskError, Log, LogSettings
from wal.disk import DirectoryDisk, Disk, Flush
from wal.records import Record

SETTINGS = LogSettings(segment_bytes=1024, total_bytes=4096)
PROMISES = {"sync": ["file"], "sync_directory": ["directory"]}
"""What the disk in memory calls each promise, and what the real one must ask the kernel for."""


class Counted(Flush):
    """Counts what the kernel is asked for, and fails it once."""

    def __init__(self, fails: int = 0) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def file(self, descriptor: int) -> None:
        self._count("file")
        super().file(descriptor)

    def directory(self, descriptor: int) -> None:
        self._count("directory")
        super().directory(descriptor)

    def _count(self, what: str) -> None:
        self.asked.append(what)
        if len(self.asked) == self._fails:
            raise OSError(errno.EIO, "injected")


def live(disk: Disk, promised: list[Record]) -> None:
    """All that a log does: begin, write, prepare, rotate, sync, trim, close, and open again. What is durable is noted."""
    log: Log | None = None
    try:
        log = open_log(disk, SETTINGS)
        for at in range(1, 25):
            log.append([update(at)], now_ms=0, durable=at % 3 != 0)
            if at % 3:
                promised[:] = map(update, range(1, at + 1))
            if at % 5 == 0:
                log.prepare_next()
        log.sync()
        promised[:] = map(update, range(1, 25))
        trimmed = log.trimmable(12)
        assert trimmed is not None
        log.trim(trimmed.first_lsn)
        log.close()
        log = None
        log = open_log(disk, SETTINGS, from_lsn=13)
        log.append([update(25)], now_ms=0, durable=True)
        promised.append(update(25))
        log.close()
    finally:
        if log is not None:
            log._segments.close()


def test_the_kernel_is_asked_for_every_sync_that_is_promised(tmp_path: Path) -> None:
    memory, flush = MemoryDisk(), Counted()
    live(memory, [])
    with DirectoryDisk(tmp_path, flush=flush) as real:
        live(real, [])
    assert flush.asked == [asked for operation, _ in memory.trace for asked in PROMISES.get(operation, [])]
    assert len(flush.asked) > 40


def test_a_new_directory_is_made_durable_in_its_parent(tmp_path: Path) -> None:
    flush = Counted()
    with DirectoryDisk(tmp_path / "a" / "b", flush=flush):
        assert flush.asked == ["directory", "directory"]


def test_each_of_them_fails_once_and_nothing_that_was_promised_is_lost(tmp_path: Path) -> None:
    whole = Counted()
    with DirectoryDisk(tmp_path, flush=whole) as real:
        live(real, [])
    for fails in range(1, len(whole.asked) + 1):
        path, promised = tmp_path / f"{fails}", list[Record]()
        path.mkdir()
        with DirectoryDisk(path, flush=Counted(fails)) as real, pytest.raises(DiskError, match="EIO"):
            live(real, promised)
        with DirectoryDisk(path) as real:
            begins = min((int(name[:-4]) for name in real.list() if name.endswith(".wal")), default=1)
            log = open_log(real, SETTINGS, from_lsn=begins)
            found = [record for block in log.replay(begins) for record in block.records]
            kept = promised[begins - 1 :]
            assert found[: len(kept)] == kept, f"sync {fails} failed"
            log.close()
