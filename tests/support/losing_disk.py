"""A real directory that can lose what was not synced, although its process was only killed and the kernel has it all.

Beside it lies what has become durable: the contents of each file at its last sync, and the names at the last sync of the
directory. `cut_power` makes of both what a disk may have after a power cut: of the sectors that were written since, any.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from wal import DirectoryDisk, Disk
from wal.disk import Flush

SECTOR = 512
NAMES = "names.json"


class Keeper(Flush):
    """Keeps in `kept` what was synced of `live`: each file under its inode, which it holds so that no other one has it."""

    def __init__(self, live: Path, kept: Path) -> None:
        self._live = live
        self._kept = kept
        self._held: dict[int, int] = {}
        self._lock = threading.Lock()  # a file is prepared in a thread of its own

    def begin(self) -> None:
        """What is there is durable."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for path in self._live.iterdir():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.file(descriptor)
            os.close(descriptor)
        self._keep_names()

    def file(self, descriptor: int) -> None:
        """Keep a file as it is now; a process that is killed meanwhile was not told that it is durable."""
        inode = os.fstat(descriptor).st_ino
        with self._lock:
            if inode not in self._held:
                self._held[inode] = os.dup(descriptor)
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            _write(self._kept / str(inode), data)

    def directory(self, descriptor: int) -> None:
        """Keep the names, where it is this directory and not one above it."""
        if os.path.sameopenfile(descriptor, self._opened()):
            with self._lock:
                self._keep_names()

    def _opened(self) -> int:
        if -1 not in self._held:
            self._held[-1] = os.open(self._live, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._held[-1]

    def _keep_names(self) -> None:
        names, before = self._names(), None
        while names != before:  # another thread may be renaming or removing files
            names, before = self._names(), names
        _write(self._kept / NAMES, json.dumps(names).encode())

    def _names(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in self._live.iterdir():
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_ino
        return found


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(data)
    beside.replace(path)


def losing(kept: Path, opened: Callable[[Path], None]) -> Callable[[Path], Disk]:
    """Makes the disk of a log; `opened` is told where that is."""

    def make(live: Path) -> Disk:
        live.mkdir(mode=0o700, parents=True, exist_ok=True)
        keeper = Keeper(live, kept)
        keeper.begin()
        opened(live)
        return DirectoryDisk(live, flush=keeper)

    return make


def cut_power(live: Path, kept: Path, draw: Random) -> int:
    """Nobody writes any more. How many sectors were lost."""
    there = {path.stat().st_ino: path for path in live.iterdir()}
    synced: dict[str, int] = json.loads((kept / NAMES).read_bytes())
    names = {path.name: inode for inode, path in there.items()} if draw.random() < 0.5 else synced
    found: dict[str, bytes] = {}
    lost = 0
    for name, inode in sorted(names.items()):
        if not (kept / str(inode)).exists():
            continue  # it was never synced, and is gone
        data = bytearray((kept / str(inode)).read_bytes())
        written = there[inode].read_bytes() if inode in there else bytes(data)
        for at in range(0, len(data), SECTOR):
            if data[at : at + SECTOR] == written[at : at + SECTOR]:
                continue
            if draw.random() < 0.5:
                data[at : at + SECTOR] = written[at : at + SECTOR].ljust(len(data[at : at + SECTOR]), b"\0")
            else:
                lost += 1
        found[name] = bytes(data)
    for path in there.values():
        path.unlink()
    for name, contents in found.items():
        (live / name).write_bytes(contents)
    return lost
