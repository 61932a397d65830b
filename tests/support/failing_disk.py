"""A real directory that fails as a real disk does: it is full, or it cannot keep what was written to it.

What it does is said in a file beside it, so that a test can break and repair the disk of a process that runs:
`full`, `crammed` (what is there can be written, but no file be made), `sync` (writes seem to go well, and then the sync
fails), `slow` (a sync takes long), or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from wal import DirectoryDisk, Disk, DiskError, DiskFull, File

SLOW_SECONDS = 0.3
FULL = "No space left on device (ENOSPC): free some space"


class FailingDisk(DirectoryDisk):
    """A directory, and the file that says what is the matter with it."""

    def __init__(self, path: Path, control: Path) -> None:
        super().__init__(path)
        self._control = control

    def create(self, name: str, size: int, *, filled: bool = True) -> None:
        self.check_room("write", name)
        if self._trouble() == "crammed":
            raise DiskFull("write", name, FULL)
        super().create(name, size, filled=filled)

    def open(self, name: str, write: bool = False) -> File:
        return _FailingFile(super().open(name, write), self, name)

    def check_room(self, operation: str, name: str) -> None:
        """Raise DiskFull if there is none."""
        if self._trouble() == "full":
            raise DiskFull(operation, name, FULL)

    def check_sync(self, name: str) -> None:
        """Raise DiskError if the disk cannot keep what it was given."""
        trouble = self._trouble()
        if trouble == "slow":
            time.sleep(SLOW_SECONDS)
        if trouble == "sync":
            raise DiskError("sync", name, "Input/output error (EIO)")

    def _trouble(self) -> str:
        try:
            return self._control.read_text(encoding="ascii")
        except FileNotFoundError:
            return ""


def failing(control: Path) -> Callable[[Path], Disk]:
    """Makes the disk of a node; it is well for as long as there is no `control`."""
    return lambda path: FailingDisk(path, control)


class _FailingFile:
    """A file on it."""

    def __init__(self, file: File, disk: FailingDisk, name: str) -> None:
        self._file = file
        self._disk = disk
        self._name = name

    def read(self, offset: int, n: int) -> bytes:
        return self._file.read(offset, n)

    def write(self, offset: int, data: bytes) -> None:
        self._disk.check_room("write", self._name)
        self._file.write(offset, data)

    def sync(self) -> None:
        self._disk.check_sync(self._name)
        self._file.sync()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
