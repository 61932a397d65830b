"""The one seam to the file system: everything the log asks of a disk, and nothing else.

All that durability depends on passes through here, so that one simulated disk can lose, tear and refuse it, and a test
can inject an error at each call by its number. A disk is one directory of plain files; it has no subdirectories and no
idea of what is in them. `DirectoryDisk` is the real one.

What makes a byte survive a power cut: `File.sync` for a file's contents, `Disk.sync_directory` for names. `create`
brings a file into being with all its blocks allocated, zero-filled and synced, so that later writes inside it change no
metadata and their sync is one flush.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_NAME_MAX = 200
_CHUNK = 1 << 20
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # the last: `ulimit -f`; Python ignores its SIGXFSZ
_EARLY = frozenset({"create", "open", "allocate", "write"})
Names: TypeAlias = list[str]  # named here, because inside a class with a method `list` the type is out of sight


class DiskError(Exception):
    """The disk refused. Never retried: after a failed sync the kernel may have dropped what it could not write."""

    def __init__(self, operation: str, path: str, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.operation = operation
        self.path = path
        self.reason = reason


class DiskFull(DiskError):
    """No space, or no quota, left, or no file may be so large."""

    @property
    def early(self) -> bool:
        """Of a file that was to be made: whether that may be tried again, since nothing was to be relied on yet."""
        return self.operation in _EARLY


class DiskMissing(DiskError):
    """No such file."""


class File(Protocol):
    """One open file. Offsets and sizes are bytes; threads may share it."""

    def read(self, offset: int, n: int) -> bytes:
        """The `n` bytes at `offset`, fewer only where the file ends."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`; it survives a power cut after `sync` only, before that any part of it may."""
        ...

    def sync(self) -> None:
        """Make everything written to this file durable, its size included."""
        ...

    def truncate(self, size: int) -> None:
        """Set the size; what is added reads as zeros."""
        ...

    def size(self) -> int:
        """The size now."""
        ...

    def close(self) -> None:
        """Give the handle back. Nothing becomes durable by it. Closing twice is harmless."""
        ...


class Disk(Protocol):
    """One directory of files."""

    def list(self) -> Names:
        """All names, sorted."""
        ...

    def size(self, name: str) -> int:
        """A file's size; DiskMissing if there is none."""
        ...

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        ...

    def create(self, name: str, size: int, *, filled: bool = True) -> None:
        """A durable file of `size` bytes that read as zeros, which did not exist. After a failure that is `early` it still
        does not; after another, of a sync, nobody knows: it may be there, and is in no log.

        Not `filled`: for who waits for it, and is about to write most of it. It is made sooner, later syncs take longer.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, atomically in place of what had it; durable after `sync_directory`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; durable after `sync_directory`. Handles that are open go on reading it."""
        ...

    def sync_directory(self) -> None:
        """Make all names durable."""
        ...


def check_file_name(name: str) -> str:
    """Return `name` if it is a plain file name; raise ValueError if it could lead anywhere else."""
    if not _is_file_name(name):
        raise ValueError(
            f"{name!r} is not a plain file name: expected letters, digits, '.', '_' or '-', no '..', and no separator"
        )
    return name


def _is_file_name(name: str) -> bool:
    return 0 < len(name) <= _NAME_MAX and name[0] in _LETTERS and not name.strip(_LETTERS + "_.-") and ".." not in name


class Flush:
    """How the kernel is told to bring what it was given to the disk. Every promised sync is one of these."""

    def file(self, descriptor: int) -> None:
        """A file's contents and size. Raises OSError."""
        os.fdatasync(descriptor)

    def directory(self, descriptor: int) -> None:
        """A directory's names. Raises OSError."""
        os.fsync(descriptor)


FLUSH = Flush()


class DirectoryDisk:
    """A directory of the operating system: 0700, files 0600, symbolic links never followed.

    `read_only` neither creates nor changes anything; it is how tools look at a directory that is not theirs.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, flush: Flush = FLUSH) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._flush = flush
        if not read_only:
            with _translated("create directory", self.path):
                self._make()
        with _translated("open directory", self.path):
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def list(self) -> Names:
        """All plain file names, sorted; names that we would never give are not ours and are left out."""
        with _translated("list", self.path):
            return sorted(filter(_is_file_name, os.listdir(self._fd)))

    def size(self, name: str) -> int:
        """A file's size; DiskMissing if there is none."""
        with _translated("stat", self.path / check_file_name(name)):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size

    def open(self, name: str, write: bool = False) -> File:
        """An existing file; DiskMissing if there is none."""
        assert not (write and self._read_only), f"{name} was opened for writing on a read-only disk"
        return self._open(name, os.O_RDWR if write else os.O_RDONLY | os.O_NONBLOCK)  # nobody waits at a named pipe

    def create(self, name: str, size: int, *, filled: bool = True) -> None:
        """Zero-fill `name.tmp`, or only allocate its blocks, sync it, rename it, sync the directory."""
        assert not self._read_only, f"{name} was created on a read-only disk"
        assert not self._exists(name), f"{name} exists already"
        temporary = f"{name}.tmp"
        if self._exists(temporary):
            self.remove(temporary)
        try:
            file = self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                if filled or not file.allocate(size):
                    zeros = bytes(min(size, _CHUNK))
                    for offset in range(0, size, _CHUNK):
                        file.write(offset, zeros[: min(_CHUNK, size - offset)])
                file.sync()
            finally:
                file.close()
            self.rename(temporary, name)
        except DiskError:
            with suppress(OSError):  # give the space back if we can; a leftover *.tmp is removed at the next open
                os.unlink(temporary, dir_fd=self._fd)
            raise
        self.sync_directory()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, atomically in place of what had it; durable after `sync_directory`."""
        assert not self._read_only, f"{old} was renamed on a read-only disk"
        check_file_name(new)
        with _translated("rename", self.path / check_file_name(old)):
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file; durable after `sync_directory`."""
        assert not self._read_only, f"{name} was removed on a read-only disk"
        with _translated("remove", self.path / check_file_name(name)):
            os.unlink(name, dir_fd=self._fd)

    def sync_directory(self) -> None:
        """Make all names durable."""
        with _translated("sync directory", self.path):
            self._flush.directory(self._fd)

    def close(self) -> None:
        """Give the directory handle back; open files stay usable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DirectoryDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        """Create the directory durably: a directory that its parent has forgotten takes the log along."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700)
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._flush.directory(parent)
            finally:
                os.close(parent)

    def _exists(self, name: str) -> bool:
        with _translated("stat", self.path / check_file_name(name)), suppress(FileNotFoundError):
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            return True
        return False

    def _open(self, name: str, flags: int) -> _DirectoryFile:
        path = self.path / check_file_name(name)
        with _translated("open", path):
            fd = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._fd)
        return _DirectoryFile(fd, path, self._flush)


class _DirectoryFile:
    """An open file. Python itself repeats calls that a signal interrupts; short reads and writes are ours to finish."""

    def __init__(self, fd: int, path: Path, flush: Flush) -> None:
        self._fd = fd
        self._path = path
        self._flush = flush

    def read(self, offset: int, n: int) -> bytes:
        try:
            data = os.pread(self._fd, n, offset)
            if len(data) == n:
                return data
            parts = [data]
            missing = n - len(data)
            while data and missing:
                data = os.pread(self._fd, missing, offset + n - missing)
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)
        except OSError as error:
            raise _ours("read", self._path, error) from error

    def write(self, offset: int, data: bytes) -> None:
        try:
            written = os.pwrite(self._fd, data, offset)
            if written == len(data):
                return
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._fd, rest[written:], offset + written)
        except OSError as error:
            raise _ours("write", self._path, error) from error

    def allocate(self, size: int) -> bool:
        """Have room for so many bytes, which read as zeros; False where this system cannot."""
        if not hasattr(os, "posix_fallocate"):
            return False
        with _translated("allocate", self._path):
            os.posix_fallocate(self._fd, 0, size)
        return True

    def sync(self) -> None:
        with _translated("sync", self._path):
            self._flush.file(self._fd)

    def truncate(self, size: int) -> None:
        with _translated("truncate", self._path):
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        with _translated("stat", self._path):
            return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextmanager
def _translated(operation: str, path: Path) -> Iterator[None]:
    """Turn the operating system's errors into ours."""
    try:
        yield
    except OSError as error:
        raise _ours(operation, path, error) from error


def _ours(operation: str, path: Path, error: OSError) -> DiskError:
    """An error of the operating system, as ours."""
    if isinstance(error, FileNotFoundError):
        return DiskMissing(operation, str(path), "there is no such file")
    reason = f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    if error.errno in FULL:
        return DiskFull(operation, str(path), f"{reason}: free some space")
    return DiskError(operation, str(path), reason)
