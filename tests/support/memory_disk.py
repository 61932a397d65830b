"""A disk in memory that forgets as disks do, and refuses where it is told to. Deterministic; it draws nothing.

Of each file it knows what is synced and what is not, in sectors of 512 bytes; of the directory, which names are synced
and which changes are not. `crash` makes the disk that a power cut would leave, given a rule that says of each unsynced
thing whether it survived: any subset, in any combination, as real disks do. A sector survives whole or not at all, as
it was after one of the writes to it.

Every call has a number, in all and of its kind, and can be made to fail (`fail`) or to be the last before the power cut
(`cut_power_after`). A failed sync behaves as Linux does: what was not written stays visible, counts as clean, and never
reaches the disk unless it is written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from wal.disk import Disk, DiskError, DiskFull, DiskMissing, File, check_file_name

SECTOR = 512
MANY = 16
"""More unsynced sectors than this are synced by copying the whole file."""
Reason = Literal["EIO", "ENOSPC", "EROFS"]
Names: TypeAlias = list[str]


class Unsynced(NamedTuple):
    """One thing that a power cut may keep or lose. `at` is the sector, the size, or the number of the name's change."""

    kind: Literal["sector", "size", "name"]
    file: str
    at: int


Pending: TypeAlias = list[Unsynced]
Keep = Callable[[Unsynced], bool]


class PowerCut(BaseException):
    """The power is gone; the disk that is left is what `MemoryDisk.crash` returns. Nobody may catch this but a test."""


class MemoryDisk:
    """A `wal.disk.Disk`. `capacity` bounds the bytes of all files together, where a full disk is wanted."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.calls = 0
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[str, str]] = []
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        self._changes: list[_Change] = []
        self._faults: dict[tuple[str, int], Reason] = {}
        self._last_call: int | None = None
        self.before_call: Callable[[], None] | None = None  # where whoever calls may be made to wait

    # wal.disk.Disk

    def list(self) -> Names:
        """All names, sorted."""
        self._call("list", "")
        return sorted(self._names)

    def size(self, name: str) -> int:
        """A file's size."""
        self._call("size", name)
        return len(self._inode("size", name).now)

    def open(self, name: str, write: bool = False) -> File:
        """An existing file."""
        self._call("open", name)
        return MemoryFile(self, self._inode("open", name), name, write)

    def create(self, name: str, size: int, *, filled: bool = True) -> None:
        """As `wal.disk.DirectoryDisk` does it, step by step: a power cut can come between any two."""
        assert check_file_name(name) not in self._names, f"{name} exists already"
        temporary = f"{name}.tmp"
        if temporary in self._names:
            self.remove(temporary)
        self._call("create", temporary)
        inode = _Inode()
        self._names[temporary] = inode
        self._changes.append(_Change("link", temporary, "", inode))
        try:
            file = MemoryFile(self, inode, temporary, True)
            file.write(0, bytes(size))
            file.sync()
            self.rename(temporary, name)
        except DiskError:
            self._names.pop(temporary, None)
            self._changes.append(_Change("remove", temporary, "", inode))
            raise
        self.sync_directory()

    def rename(self, old: str, new: str) -> None:
        """Atomically, in place of what had the new name."""
        self._call("rename", old)
        inode = self._inode("rename", old)
        self._names[check_file_name(new)] = inode
        del self._names[old]
        self._changes.append(_Change("rename", old, new, inode))

    def remove(self, name: str) -> None:
        """Remove a name; open handles go on."""
        self._call("remove", name)
        inode = self._inode("remove", name)
        del self._names[name]
        self._changes.append(_Change("remove", name, "", inode))

    def sync_directory(self) -> None:
        """All names are durable."""
        self._call("sync_directory", "")
        for change in self._changes:
            change.apply(self._synced_names)
        self._changes.clear()

    # Cruelty.

    def fail(self, operation: str, nth: int, reason: Reason = "EIO") -> None:
        """The `nth` call (from 1) of this kind from now on fails; the kind `any` counts all calls."""
        base = self.calls if operation == "any" else self.counts[operation]
        self._faults[operation, base + nth] = reason

    def repair(self) -> None:
        """No call fails any more, and there is room."""
        self._faults.clear()
        self.capacity = None

    def cut_power_after(self, calls: int) -> None:
        """After this many more calls the next one raises PowerCut, and so does every later one."""
        self._last_call = self.calls + calls

    def restore_power(self) -> None:
        """Only the process was gone: the system went on with what it had, and another process may use it."""
        self._last_call = None

    def unsynced(self) -> Pending:
        """Everything that a power cut now may keep or lose, in the order in which it was done, names first."""
        found = [Unsynced("name", change.name, at) for at, change in enumerate(self._changes)]
        for name, inode in self._reachable().items():
            found += [Unsynced(kind, name, at) for kind, at, _ in inode.pending]
        return found

    def crash(self, keep: Keep) -> MemoryDisk:
        """The disk after a power cut now. `keep` is asked about each unsynced thing, in the order of `unsynced`."""
        names = dict(self._synced_names)
        for at, change in enumerate(self._changes):
            if keep(Unsynced("name", change.name, at)):
                change.apply(names)
        inodes: dict[int, _Inode] = {}
        for name, inode in self._reachable().items():
            inodes[id(inode)] = inode.crash(name, keep)
        left = MemoryDisk(self.capacity)
        left._names = {name: inodes[id(inode)] for name, inode in sorted(names.items())}
        left._synced_names = dict(left._names)
        return left

    # For tests to look and to meddle, without a call.

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """What is read through open files in here is not counted, and nothing of it fails."""
        kept = (self.calls, Counter(self.counts), len(self.trace), self._faults, self._last_call)
        self._faults, self._last_call = {}, None
        try:
            yield
        finally:
            self.calls, self.counts, traced, self._faults, self._last_call = kept
            del self.trace[traced:]

    @property
    def used(self) -> int:
        """The bytes of all files."""
        return sum(len(inode.now) for inode in self._names.values())

    @property
    def room(self) -> int | None:
        """What is left of its capacity, if that is bounded."""
        return max(0, self.capacity - self.used) if self.capacity is not None else None

    def copy(self) -> MemoryDisk:
        """The same files, all synced."""
        twin = MemoryDisk(self.capacity)
        for name, inode in self._names.items():
            twin.put(name, bytes(inode.now))
        return twin

    def image(self, name: str) -> bytes:
        """A file's bytes as a process sees them."""
        return bytes(self._names[name].now)

    def put(self, name: str, data: bytes) -> None:
        """A file with these bytes, synced."""
        inode = _Inode()
        inode.now = bytearray(data)
        inode.synced = bytearray(data)
        self._names[name] = self._synced_names[name] = inode

    def flip(self, name: str, bit: int) -> None:
        """One bit of a file changes, on the disk and in memory; flip it again to undo."""
        inode = self._names[name]
        for data in (inode.now, inode.synced):
            data[bit >> 3] ^= 1 << (bit & 7)

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """These bytes of a file change, on the disk and in memory, as a write that went astray changes them."""
        inode = self._names[name]
        for image in (inode.now, inode.synced):
            image[offset : offset + len(data)] = data[: max(0, len(image) - offset)]

    def names(self) -> Names:
        """All names, sorted."""
        return sorted(self._names)

    def _reachable(self) -> dict[str, _Inode]:
        """Every file that may still have a name after a power cut, under one that it has or had."""
        found: dict[int, tuple[str, _Inode]] = {}
        for name, inode in [*self._synced_names.items(), *self._names.items()]:
            found.setdefault(id(inode), (name, inode))
        for change in self._changes:
            found.setdefault(id(change.inode), (change.name, change.inode))
        return {f"{name}#{at}" if at else name: inode for name, inode, at in _numbered(found)}

    def _inode(self, operation: str, name: str) -> _Inode:
        inode = self._names.get(check_file_name(name))
        if inode is None:
            raise DiskMissing(operation, name, "there is no such file")
        return inode

    def _call(self, operation: str, name: str) -> None:
        """Count the call, and fail it if it is the one."""
        if self.before_call is not None:
            self.before_call()
        if self._last_call is not None and self.calls >= self._last_call:
            raise PowerCut
        self.calls += 1
        self.counts[operation] += 1
        self.trace.append((operation, name))
        if self._faults:
            reason = self._faults.get((operation, self.counts[operation])) or self._faults.get(("any", self.calls))
            if reason is not None:
                raise _refusal(operation, name, reason)

    def _grow(self, operation: str, name: str, by: int) -> None:
        if self.capacity is not None and self.used + by > self.capacity:
            raise _refusal(operation, name, "ENOSPC")


class _Change(NamedTuple):
    """A change of the directory that is not synced."""

    kind: Literal["link", "rename", "remove"]
    name: str
    new: str
    inode: _Inode

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.kind == "link":
            names[self.name] = self.inode
        elif names.get(self.name) is self.inode:
            del names[self.name]
            if self.kind == "rename":
                names[self.new] = self.inode


class _Inode:
    """A file: what is synced, what a process sees, and between them (kind, sector or size, the sector's bytes)."""

    __slots__ = ("now", "pending", "synced", "whole")

    def __init__(self) -> None:
        self.synced = bytearray()
        self.now = bytearray()
        self.whole = True  # what is not pending is synced: no sync has failed
        self.pending: list[tuple[Literal["sector", "size"], int, bytes]] = []

    def resize(self, size: int) -> None:
        if size < len(self.now):
            del self.now[size:]
        else:
            self.now.extend(bytes(size - len(self.now)))
        self.pending.append(("size", size, b""))

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.now):
            self.resize(end)
        self.now[offset:end] = data
        for sector in range(offset // SECTOR, -(-end // SECTOR)):
            self.pending.append(("sector", sector, bytes(self.now[sector * SECTOR : (sector + 1) * SECTOR])))

    def sync(self) -> None:
        if self.whole and len(self.pending) > MANY:
            self.synced[:] = self.now
        else:
            for kind, at, data in self.pending:
                _settle(self.synced, kind, at, data)
        self.pending.clear()

    def forget(self) -> None:
        """A sync failed: what was not written counts as clean."""
        self.whole = self.whole and not self.pending
        self.pending.clear()

    def crash(self, name: str, keep: Keep) -> _Inode:
        left = _Inode()
        left.synced = bytearray(self.synced)
        for kind, at, data in self.pending:
            if keep(Unsynced(kind, name, at)):
                _settle(left.synced, kind, at, data)
        left.now = bytearray(left.synced)
        return left


def _settle(image: bytearray, kind: str, at: int, data: bytes) -> None:
    """Bring one unsynced thing to the disk. A sector beyond the size that survived is not part of the file."""
    if kind == "size":
        if at < len(image):
            del image[at:]
        else:
            image.extend(bytes(at - len(image)))
        return
    room = max(0, len(image) - at * SECTOR)
    image[at * SECTOR : at * SECTOR + min(len(data), room)] = data[:room]


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, inode: _Inode, name: str, writable: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._name = name
        self._writable = writable

    def read(self, offset: int, n: int) -> bytes:
        self._disk._call("read", self._name)
        return bytes(self._inode.now[offset : offset + n])

    def write(self, offset: int, data: bytes) -> None:
        assert self._writable, f"{self._name} was opened for reading"
        try:
            self._disk._call("write", self._name)
            self._disk._grow("write", self._name, max(0, offset + len(data) - len(self._inode.now)))
        except DiskError:
            self._inode.write(offset, data[: len(data) // 2])  # a failed write may have written anything
            raise
        self._inode.write(offset, data)

    def sync(self) -> None:
        try:
            self._disk._call("sync", self._name)
        except DiskError:
            self._inode.forget()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        assert self._writable, f"{self._name} was opened for reading"
        self._disk._call("truncate", self._name)
        self._inode.resize(size)

    def size(self) -> int:
        self._disk._call("size", self._name)
        return len(self._inode.now)

    def close(self) -> None:
        pass


def _numbered(found: dict[int, tuple[str, _Inode]]) -> list[tuple[str, _Inode, int]]:
    seen: Counter[str] = Counter()
    numbered = []
    for name, inode in found.values():
        numbered.append((name, inode, seen[name]))
        seen[name] += 1
    return numbered


def _refusal(operation: str, name: str, reason: Reason) -> DiskError:
    kind = DiskFull if reason == "ENOSPC" else DiskError
    return kind(operation, name, f"injected {reason}")


_: type[Disk] = MemoryDisk  # checked by mypy: the whole protocol is here
