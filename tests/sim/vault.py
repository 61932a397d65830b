"""Where a simulated machine keeps its checkpoints: the memory store, or the real LMDB in a directory of its own.

A checkpoint is in a vault when it is durable; a crash takes nothing out of it. What the vault hands out is opened by one
process at a time, as a node does it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from engine.state.store import BaseStore
from engine.state.store_lmdb import LmdbStore
from engine.state.store_memory import MemoryStore
from tests.sim.calls import uncounted

LMDB_MAP_BYTES = 8 << 20


class Vault(Protocol):
    """One machine's checkpoints."""

    def open(self) -> BaseStore:
        """For a process that starts."""
        ...

    def close(self) -> None:
        """The process is gone."""
        ...

    def copy(self) -> Vault:
        """An independent vault with the same contents: part of a disk image."""
        ...

    def wipe(self) -> None:
        """Nothing is left."""
        ...


class Kept(MemoryStore):
    """What a process of its own writes for a real node, the memory store does when it is to be seen: no turn pays."""

    def renew(self) -> None:
        """Let reads see it."""
        with uncounted():
            super().renew()


class MemoryVault:
    """Checkpoints in memory."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or Kept()

    def open(self) -> BaseStore:
        """The store itself: a checkpoint is in it when it is durable, whether or not the process of before had seen it."""
        self._store.renew()
        return self._store

    def close(self) -> None:
        """Nothing to give back."""

    def copy(self) -> MemoryVault:
        """An independent one."""
        return MemoryVault(self._store.copy())

    def wipe(self) -> None:
        """An empty store."""
        self._store = Kept()


class LmdbVault:
    """Checkpoints in LMDB, under a directory that belongs to the world."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._copies = 0
        self._store: LmdbStore | None = None

    @property
    def path(self) -> Path:
        """Where the files are."""
        return self._directory / self._name

    def open(self) -> BaseStore:
        """The real store."""
        assert self._store is None, f"{self._name} is open"
        self._store = LmdbStore(self.path, map_bytes=LMDB_MAP_BYTES)
        return self._store

    def close(self) -> None:
        """Close the environment: the files are what a crash would leave, since each checkpoint is synced."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def copy(self) -> LmdbVault:
        """The files, copied between two checkpoints."""
        self._copies += 1
        twin = LmdbVault(self._directory, f"{self._name}-copy{self._copies}")
        if twin.path.exists():
            shutil.rmtree(twin.path)
        if self.path.exists():
            shutil.copytree(self.path, twin.path)
        return twin

    def wipe(self) -> None:
        """No files."""
        assert self._store is None, f"{self._name} is open"
        if self.path.exists():
            shutil.rmtree(self.path)
