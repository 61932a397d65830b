"""The last checkpoint on disk: one LMDB environment that holds everything a checkpoint says, and checks what it reads.

A checkpoint is one LMDB transaction: rows, fragment states, partition states, named values and the applied LSN become
durable together or not at all.

```
<path>/                 0700
  data.mdb              0600, LMDB data format 1 (that of LMDB 0.9)
    rows                namespace | 00 | partition u16 | key  ->  the key's entry
    fragments           namespace | 00 | partition u16        ->  the fragment's state, and the digest of its contents
    partitions          partition u16                         ->  the partition's state
    node                name                                  ->  a value of the node; 00 "lsn", 00 "format" are ours
  lock.mdb              0600, LMDB's table of readers; holds nothing of ours
```

Every value lies in an envelope with a checksum over database, key and value (`engine.state.store_envelope` draws it),
because LMDB has no checksums: no read returns a wrong value. That a row is *missing* can be hidden by damage all the
same. So a read that finds nothing, and a scan, make sure that the neighbours are whole, a large one once in each
transaction, and in order; `load` and `rows`
make sure that they found as many entries as LMDB counts; `structure_problems` walks every page of a file at rest. What
remains, an old page that came back whole, is for the digests that copies compare.

Threads: reads come from one thread and `write` from another. Reads go through one read transaction that is replaced at
each checkpoint (`renew`), so none pins old pages for longer. `_lock` is held for each read, and for a change of the map's
size, which LMDB allows only while the process has no transaction; `_writing` while a checkpoint is written, here or by
another process (`engine.state.store_writer`). LMDB gives up the interpreter at each operation and Python gives it back
late (`sys.getswitchinterval`): beside a busy node a checkpoint of its own would take a multiple of its time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock

import lmdb

from engine.state.store import CheckpointImage
from engine.state.store_apply import Databases, apply_parts
from engine.state.store_errors import StoreError, StoreFailed, StoreForeign, StoreFull
from engine.state.store_file import (
    check_length,
    create,
    databases,
    environment,
    give_back,
    leads_to,
    not_lmdb,
    sole_writer,
    still_whole,
    trouble,
    writable,
)
from engine.state.store_parts import Begin, Part, parts_of
from engine.state.store_reads import StoreReads
from wal.probe import probe

MAP_BYTES = 1 << 30
"""The map's first size: address space, not disk. It doubles when three quarters of it are used."""


class LmdbStore(StoreReads):
    """A store of checkpoints in one LMDB environment.

    Invariants: the file holds exactly one checkpoint image, whole; `_txn` is a live read transaction from opening to
    closing; after a failed `write` there is no other, because a retried fsync may succeed without the data. One that found
    no room is no such: none of its pages is part of the store, and another writes all of its own anew.
    """

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int = MAP_BYTES,
        read_only: bool = False,
        lock: int | None = None,
        patience_seconds: float = 0.0,
    ) -> None:
        """Open the store at `path`, creating it if that is missing or empty.

        `read_only` opens it for tools, beside a live node or on a copy, and creates nothing. Beside a live node it
        keeps the checkpoint that it reads from being overwritten and the file grows, so `renew` or close it within
        minutes. A directory without a writable lock file is read without locks, and must be at rest.

        `lock` is the sole writer's, from a process that opened the store and shares it: what lies at `path` now is opened
        if it is that store. Who does not have it waits for `patience_seconds` for a writer that may be about to end.

        Raises StoreForeign, StoreTooNew, StoreDamaged, StoreInUse, StoreFull, StoreFailed.
        """
        super().__init__(path)
        self.read_only = read_only
        self._writing = Lock()
        self._failed: StoreError | None = None
        self._lsn = 0  # of the checkpoint that is being written
        self._guard: int | None = None
        self._locker = 0  # the process that has locked it, if it is the one that opened the store
        self._file: int | None = None  # its data, opened before anything is written: it is told of each sync that failed
        try:
            if lock is not None:
                self._guard = lock
                self._check_place()
            self._find(map_bytes)
            if not read_only and lock is None:
                self._guard, self._locker = sole_writer(path, patience_seconds), os.getpid()
            # A copy has no lock file, or one that we may not write: then nobody can be told that we read.
            locked = not read_only or writable(path / "lock.mdb")
            self._env = environment(path, map_bytes, read_only=read_only, lock=locked)
            if self._guard is not None:
                self._file = os.open("data.mdb", os.O_RDWR | os.O_CLOEXEC, dir_fd=self._guard)
            if lock is not None:
                self._check_place()
            check_length(path, self._env)
            self._rows, self._fragments, self._partitions, self._node = databases(self.path, self._env)
            self._env.reader_check()
            self._begin()
            self._check_format()
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            self.close()
            raise not_lmdb(self.path, error) from error
        except (lmdb.Error, OSError) as error:
            self.close()
            raise trouble(self.path, "opening it", error) from error
        except BaseException:
            self.close()
            raise

    # Opening.

    def _find(self, map_bytes: int) -> None:
        """Make sure that a store's files are there, creating them where that is asked for."""
        found, empty = "no such directory", True
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            found, empty = "a file", False
        else:
            if "data.mdb" in names and (self.path / "data.mdb").is_file():
                return
            found, empty = ", ".join(names[:5]) or "an empty directory", not names
            found = found if "data.mdb" not in names else "one that is no file"
        if self.read_only or not empty:
            raise StoreForeign(
                f"{self.path} is not a store: expected a directory with data.mdb, found {found}; "
                "name the directory of a store, or, to create one, a directory that is empty or not there"
            )
        create(self.path, map_bytes)

    @property
    def moved(self) -> bool:
        """Whether its directory is somewhere else by now: it is written and read where it is, and not opened anew."""
        return self._guard is not None and not leads_to(self.path, self._guard)

    @property
    def removed(self) -> bool:
        """Whether its directory is nowhere any more."""
        return self._guard is not None and not os.fstat(self._guard).st_nlink

    def _check_place(self) -> None:
        if self.moved:
            raise StoreFailed(f"store {self.path}: expected the directory that was opened, found another, or none")

    # Writing.

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint: all of it durably, or nothing. Raises StoreFull, StoreFailed, StoreDamaged.

        After a StoreFull it may be tried again. After any other of these the store takes no other checkpoint; reads go on
        with the last one. The log holds what the image held, so a restart with the cause removed loses nothing.
        """
        while not self.write_parts(parts_of(image)):
            pass

    def write_parts(self, parts: Iterable[Part]) -> bool:
        """The same, for the parts of an image; False if the map was too small: it has grown, and nothing was applied."""
        assert not self.read_only, "a tool does not write"
        env = self._environment()
        self._check_failed()
        with self._writing:
            try:
                return self._write_parts(env, parts)
            except (lmdb.Error, OSError) as error:
                raise self._refused(env, error) from error

    def _write_parts(self, env: lmdb.Environment, parts: Iterable[Part]) -> bool:
        env.reader_check()  # a tool that was killed while it read would hold old pages for ever
        info = env.info()
        if (info["last_pgno"] + 1) * env.stat()["psize"] > info["map_size"] * 3 // 4:
            self._grow(env)
        if not self._apply(env, parts):
            self._grow(env)
            return False
        return True

    def _refused(self, env: lmdb.Environment, error: lmdb.Error | OSError) -> StoreError:
        """What a checkpoint met; whether another one may be written is known after it."""
        why = trouble(self.path, f"writing the checkpoint up to lsn {self._lsn}", error)
        if isinstance(why, StoreFull):
            assert self._file is not None, "a tool does not write"
            try:
                if still_whole(env, self._file):
                    probe("store.no_room")
                    return why
            except (lmdb.Error, OSError) as another:
                why = trouble(self.path, f"going on after {error}", another)
            if isinstance(why, StoreFull):
                why = StoreFailed(f"{why}; and a sync of it failed")
        self._failed = why
        return why

    def written_elsewhere(self, write: Callable[[int], None]) -> None:
        """Let another process write a checkpoint: `write` gets the lock that it shares until that is done.

        A StoreError that it raises counts as if it had happened here.
        """
        assert self._guard is not None, "a tool does not write"
        self._check_failed()
        with self._writing:
            try:
                write(self._guard)
            except StoreError as error:
                if not isinstance(error, StoreFull):
                    self._failed = error
                raise

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise StoreFailed(
                f"store {self.path}: takes no checkpoint, because an earlier one failed ({self._failed}); "
                "remove the cause and restart the node"
            ) from self._failed

    @property
    def map_bytes(self) -> int:
        """The map's size now."""
        size: int = self._environment().info()["map_size"]
        return size

    def _apply(self, env: lmdb.Environment, parts: Iterable[Part]) -> bool:
        """One transaction with the whole image; False, and nothing applied, if the map was too small for it."""
        try:
            with env.begin(write=True) as txn:
                dbs = Databases(self._rows, self._fragments, self._partitions, self._node)
                apply_parts(self.path, txn, dbs, self._noted(parts))
        except lmdb.MapFullError:
            probe("store.map_full")
            return False
        return True

    def _noted(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, Begin):
                self._lsn = part.lsn
            yield part

    def _grow(self, env: lmdb.Environment) -> None:
        """Double the map. Reads wait, and go on in a new transaction that sees the same checkpoint, also where there is no
        memory for a larger map: LMDB has given up the old one by then, so it is opened anew."""
        probe("store.map_grown")
        with self._lock:
            self._txn.abort()
            map_bytes = env.info()["map_size"]
            try:
                env.set_mapsize(map_bytes * 2)
            except lmdb.Error:
                self._open_anew(env, map_bytes)
                self._begin()
                raise
            self._begin()

    # Between checkpoints, and the end.

    def renew(self) -> None:
        """A checkpoint was written: let reads see it. Beside a live node: see its last one.

        The node opens the environment anew for that. LMDB keeps every page that it ever wrote at once, and the mapping
        every page that was ever touched: after a checkpoint that is most of the file, twice. One that was moved keeps its.
        """
        try:
            with self._lock:
                self._txn.abort()
                if not self.read_only and self._writing.acquire(blocking=False):
                    try:
                        self._reopen()
                    finally:
                        self._writing.release()
                self._begin()
        except (lmdb.Error, OSError) as error:
            raise trouble(self.path, "renewing the read transaction", error) from error

    def _reopen(self) -> None:
        """Give memory back. Nothing is read or written meanwhile."""
        if self.moved:
            probe("store.moved")
            self._environment().set_mapsize(0)  # as large as another process has made it
            return
        old = self._environment()
        self._open_anew(old, old.info()["map_size"])

    def _open_anew(self, old: lmdb.Environment, map_bytes: int) -> None:
        self._env = None
        old.close()
        self._env = environment(self.path, map_bytes)
        self._check_place()
        self._rows, self._fragments, self._partitions, self._node = databases(self.path, self._env)

    def close(self) -> None:
        """Release the files. Closing twice is harmless."""
        with self._lock:
            if self._env is not None:
                self._env.close()
                self._env = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._guard is not None:
            rests = self._writing.acquire(blocking=False)  # else it stays locked until whoever writes is gone
            give_back(self._guard, self._locker if rests else 0)
            self._guard = None
            if rests:
                self._writing.release()
