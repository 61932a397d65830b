"""How little of a log is read: a disk that counts it, and lets nobody write."""

from __future__ import annotations

from tests.support.memory_disk import MemoryDisk
from wal import File


class CountingDisk:
    """A disk that counts what is read of it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.bytes_read = 0

    def list(self) -> list[str]:
        return self._disk.list()

    def open(self, name: str, write: bool = False) -> File:
        file = self._disk.open(name, write)
        counting = self

        class Counting:
            def read(self, offset: int, n: int) -> bytes:
                data = file.read(offset, n)
                counting.bytes_read += len(data)
                return data

            def size(self) -> int:
                return file.size()

            def write(self, offset: int, data: bytes) -> None:
                raise AssertionError("a reader writes")

            def sync(self) -> None:
                raise AssertionError("a reader writes")

            def truncate(self, size: int) -> None:
                raise AssertionError("a reader writes")

            def close(self) -> None:
                file.close()

        return Counting()
