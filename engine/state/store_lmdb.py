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
same. So a read that finds nothing, and a scan, make sure that the neighbours are whole and in order; `load` and `rows`
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
from typing import NoReturn, TypeAlias

import lmdb

from engine.state.store import CheckpointImage, Entry, Loaded, Row
from engine.state.store_apply import Databases, apply_parts
from engine.state.store_envelope import (
    DATABASES,
    FORMAT_KEY,
    FRAGMENTS,
    LSN_KEY,
    NODE,
    PARTITIONS,
    BadEnvelope,
    fragment_key,
    fragment_of,
    open_fragment,
    open_row,
    open_state,
    partition_of,
    row_is_whole,
    row_seed,
)
from engine.state.store_errors import StoreDamaged, StoreError, StoreFailed, StoreForeign, StoreTooNew, damaged
from engine.state.store_file import FORMAT, check_length, create, environment, not_lmdb, sole_writer, trouble
from engine.state.store_parts import Begin, Part, parts_of
from engine.state.store_sums import stored_in
from wal.ids import Fragment
from wal.probe import probe

MAP_BYTES = 1 << 30
"""The map's first size: address space, not disk. It doubles when three quarters of it are used."""

Tell: TypeAlias = "Callable[[StoreDamaged], None]"

_ROWS_AT_ONCE = 1_000


class LmdbStore:
    """A store of checkpoints in one LMDB environment.

    Invariants: the file holds exactly one checkpoint image, whole; `_txn` is a live read transaction from opening to
    closing; after a failed `write` there is no other, because a retried fsync may succeed without the data.
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

        `lock` is the sole writer's, from a process that opened the store and shares it. Who does not have it waits for
        `patience_seconds` for a writer that may be about to end.

        Raises StoreForeign, StoreTooNew, StoreDamaged, StoreInUse, StoreFull, StoreFailed.
        """
        self.path = path
        self.read_only = read_only
        self._lock = Lock()
        self._writing = Lock()
        self._failed: StoreError | None = None
        self._lsn = 0  # of the checkpoint that is being written
        self._prefixes: dict[Fragment, tuple[bytes, bytes, int]] = {}
        self._guard: int | None = None
        self._env: lmdb.Environment | None = None
        try:
            self._find(map_bytes)
            if not read_only:
                self._guard = lock if lock is not None else sole_writer(path, patience_seconds)
            # A copy has no lock file, or one that we may not write: then nobody can be told that we read.
            locked = not read_only or os.access(path / "lock.mdb", os.W_OK)
            self._env = environment(path, map_bytes, read_only=read_only, lock=locked)
            check_length(path, self._env)
            self._rows, self._fragments, self._partitions, self._node = self._databases(self._env)
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
            if "data.mdb" in names:
                return
            found, empty = ", ".join(names[:5]) or "an empty directory", not names
        if self.read_only or not empty:
            raise StoreForeign(
                f"{self.path} is not a store: expected a directory with data.mdb, found {found}; "
                "name the directory of a store, or, to create one, a directory that is empty or not there"
            )
        create(self.path, map_bytes)

    def _databases(self, env: lmdb.Environment) -> list[lmdb._Database]:
        try:
            return [env.open_db(name, create=False) for name in DATABASES]
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            with env.begin() as txn:
                names = [name for name, _ in txn.cursor()]
            expected = ", ".join(name.decode() for name in DATABASES)
            found = ", ".join(repr(name)[1:] for name in names[:5]) or "none"
            if not set(DATABASES).isdisjoint(names):
                raise damaged(self.path, f"expected the databases {expected}, found {found}") from error
            raise StoreForeign(
                f"{self.path} is not a store: expected the databases {expected}, found {found}; "
                "this LMDB environment belongs to another program"
            ) from error

    def _check_format(self) -> None:
        raw = self._txn.get(FORMAT_KEY, db=self._node)
        if raw is None:
            raise damaged(self.path, "expected a record of the store's format, found none")
        found = int.from_bytes(self._state(NODE, FORMAT_KEY, raw), "big")
        if found > FORMAT:
            raise StoreTooNew(
                f"store {self.path}: expected format {FORMAT} or older, found {found}; "
                "open it with the version of foreshore that wrote it, or a later one; nothing was changed"
            )

    # Reading.

    def load(self) -> Loaded:
        """What the last checkpoint holds; lsn 0 and empty if there is none. Raises StoreDamaged."""
        node = dict(self._states(self._node, NODE))
        del node[FORMAT_KEY]
        lsn = int.from_bytes(node.pop(LSN_KEY, b""), "big")
        return Loaded(
            lsn,
            {key.decode(): data for key, data in node.items()},
            {fragment_of(key): data for key, data in self._states(self._fragments, FRAGMENTS)},
            {partition_of(key): data for key, data in self._states(self._partitions, PARTITIONS)},
        )

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry; None if there is none. Raises StoreDamaged rather than return anything else."""
        known = self._prefixes.get(fragment)
        prefix, _, seed = known if known is not None else self._prefix(fragment)
        full = prefix + key
        try:
            with self._lock:
                raw = self._get(full)
            if raw is not None:
                return open_row(seed, key, raw)
            doubt = self._doubt(full, absent=True)
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment, key) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read it", error, fragment, key) from error
        if doubt:
            raise damaged(self.path, f"not found, but {doubt}", fragment, key)
        return None

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending. Raises StoreDamaged rather than leave one out."""
        if limit <= 0:
            return []
        prefix, _, seed = self._prefix(fragment)
        found, damages = self.raw_rows(fragment, start, limit)
        if damages:
            raise damages[0]
        size = len(prefix)
        key = start
        try:
            doubt = self._doubt(prefix + start, absent=False)
            rows = [(key := full[size:], open_row(seed, key, raw)) for full, raw in found]
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment, key) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read around it", error, fragment, start) from error
        if doubt:
            raise damaged(self.path, f"a scan begins here, but {doubt}", fragment, start)
        return rows

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment; None if there is no state of it, or one that an older version wrote."""
        prefix = self._prefix(fragment)[0]
        try:
            with self._lock:
                raw = self._txn.get(prefix, db=self._fragments)
            return stored_in(raw, prefix)
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read its state", error, fragment) from error

    def rows(
        self, fragments: Iterable[Fragment] | None = None, on_damage: Tell | None = None
    ) -> Iterator[tuple[Fragment, bytes, Entry]]:
        """All rows, or those of some fragments, in order, each of them verified.

        With `on_damage` damage is told, and the walk goes on with the next row that can be found; without, it is
        raised. Nothing is held between two rows, so a node's checkpoints may pass meanwhile.
        """
        tell = on_damage if on_damage is not None else _raise
        at, seen = self._txn, 0
        for fragment in self._present(tell) if fragments is None else sorted(fragments, key=fragment_key):
            prefix, _, seed = self._prefix(fragment)
            start, more = b"", True
            while more:
                found, damages = self.raw_rows(fragment, start, _ROWS_AT_ONCE)
                for damage in damages:
                    tell(damage)
                more = len(found) == _ROWS_AT_ONCE
                seen += len(found)
                for full, raw in found:
                    key = full[len(prefix) :]
                    start = key + b"\0"
                    try:
                        entry = open_row(seed, key, raw)
                    except BadEnvelope as error:
                        tell(damaged(self.path, str(error), fragment, key))
                    else:
                        yield fragment, key, entry
        if fragments is None and self._txn is at:
            self._check_count(self._rows, "rows", seen, tell)

    def _doubt(self, full: bytes, *, absent: bool) -> str:
        """Why the place where a key would lie cannot be trusted, or "".

        Its neighbours must embrace it, or a damaged page led the search astray; and they must be whole, or one of them
        may be the key itself under a changed name.
        """
        with self._lock, self._txn.cursor(self._rows) as cursor:
            found = cursor.set_range(full)
            if found:
                after, raw = cursor.item()
                if after < full or (absent and after == full):
                    return "the rows are out of order there"
                if not row_is_whole(after, raw):
                    return "the row after it is damaged, and may be it"
                if after == full:
                    return ""
            if cursor.prev() if found else cursor.last():
                before, raw = cursor.item()
                if before >= full:
                    return "the rows are out of order there"
                if not row_is_whole(before, raw):
                    return "the row before it is damaged, and may be it"
        return ""

    def prefix_of(self, fragment: Fragment) -> tuple[bytes, int]:
        """What the keys of a fragment's rows begin with, and the seed of their checksums."""
        prefix, _, seed = self._prefix(fragment)
        return prefix, seed

    def raw_rows(
        self, fragment: Fragment, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], list[StoreDamaged]]:
        """Up to `limit` rows as they are stored, and what was in the way; a row with a changed key does not end it.

        The cursor does not outlive the call, so that a checkpoint may follow.
        """
        prefix, end, _ = self._prefix(fragment)
        seek = prefix + start
        last = b""
        found: list[tuple[bytes, bytes]] = []
        damages: list[StoreDamaged] = []
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                if not cursor.set_range(seek):
                    return found, damages
                for full, raw in cursor.iternext():
                    if not (seek <= full < end and full > last):
                        if not row_is_whole(full, raw):
                            damages.append(damaged(self.path, f"expected one of its rows, found {full!r}", fragment))
                            damages[-1].found = full
                            continue
                        if full >= end:
                            break
                        if full < seek or row_is_whole(*found[-1]):
                            damages.append(damaged(self.path, f"expected ascending rows, found {full!r}", fragment))
                            break
                        # It is the row before that lies about its key; whoever opens that one is told.
                    last = full
                    found.append((full, raw))
                    if len(found) == limit:
                        break
        except lmdb.Error as error:
            damages.append(self._unreadable("LMDB cannot read on", error, fragment, last[len(prefix) :] or start))
        return found, damages

    def _present(self, tell: Tell) -> Iterator[Fragment]:
        """The fragments that have rows, ascending, found by one seek each."""
        seek = b""
        while True:
            try:
                with self._lock, self._txn.cursor(self._rows) as cursor:
                    full = cursor.key() if cursor.set_range(seek) else None
                if full is None:
                    return
                if full < seek:
                    raise BadEnvelope(f"expected ascending rows, found {full!r}")
                fragment = fragment_of(full)
            except (lmdb.Error, BadEnvelope) as error:
                tell(self._unreadable(f"the fragments from {seek!r} on cannot be listed", error))
                yield from self._expected(seek, tell)
                return
            yield fragment
            seek = self._prefix(fragment)[1]

    def _expected(self, seek: bytes, tell: Tell) -> list[Fragment]:
        """The fragments from `seek` on that have states: these may have survived where rows have not."""
        try:
            return [fragment_of(key) for key, _ in self._states(self._fragments, FRAGMENTS) if key >= seek]
        except StoreDamaged as damage:
            tell(damage)
            return []

    def _states(self, db: lmdb._Database, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Everything in one of the small databases, verified, and verified to be all."""
        try:
            with self._lock, self._txn.cursor(db) as cursor:
                found = list(cursor)
        except lmdb.Error as error:
            raise self._unreadable(f"{name.decode()} cannot be read", error) from error
        self._check_count(db, name.decode(), len(found), _raise)
        for key, raw in found:
            yield key, self._state(name, key, raw)

    def _state(self, name: bytes, key: bytes, raw: bytes) -> bytes:
        try:
            return open_fragment(key, raw)[0] if name is FRAGMENTS else open_state(name, key, raw)
        except BadEnvelope as error:
            raise damaged(self.path, f"{name.decode()} {key!r}: {error}") from error

    def _check_count(self, db: lmdb._Database, name: str, seen: int, tell: Tell) -> None:
        with self._lock:
            entries = self._txn.stat(db)["entries"]
        if entries != seen:
            tell(damaged(self.path, f"{name}: expected {entries} entries, found {seen}"))

    def _prefix(self, fragment: Fragment) -> tuple[bytes, bytes, int]:
        """What a fragment's rows begin with, what the next fragment's do, and the checksum of the beginning."""
        known = self._prefixes.get(fragment)
        if known is None:
            prefix, end = fragment_key(fragment), fragment_key((fragment[0], fragment[1] + 1))
            known = self._prefixes[fragment] = (prefix, end, row_seed(prefix))
        return known

    # Writing.

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint: all of it durably, or nothing. Raises StoreFull, StoreFailed, StoreDamaged.

        After any of these the store takes no other checkpoint; reads go on with the last one. The log holds what the
        image held, so a restart with the cause removed loses nothing.
        """
        while not self.write_parts(parts_of(image)):
            pass

    def write_parts(self, parts: Iterable[Part]) -> bool:
        """The same, for the parts of an image; False if the map was too small: it has grown, and nothing was applied."""
        assert not self.read_only, "a tool does not write"
        env = self._environment()
        self._check_failed()
        try:
            with self._writing:
                env.reader_check()  # a tool that was killed while it read would hold old pages for ever
                info = env.info()
                if (info["last_pgno"] + 1) * env.stat()["psize"] > info["map_size"] * 3 // 4:
                    self._grow(env)
                if not self._apply(env, parts):
                    self._grow(env)
                    return False
        except (lmdb.Error, OSError) as error:
            self._failed = trouble(self.path, f"writing the checkpoint up to lsn {self._lsn}", error)
            raise self._failed from error
        return True

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
        """Double the map. Reads wait, and go on in a new transaction that sees the same checkpoint."""
        probe("store.map_grown")
        with self._lock:
            self._txn.abort()
            env.set_mapsize(env.info()["map_size"] * 2)
            self._begin()

    # Between checkpoints, and the end.

    def renew(self) -> None:
        """A checkpoint was written: let reads see it. Beside a live node: see its last one.

        The node opens the environment anew for that. LMDB keeps every page that it ever wrote at once, and the mapping
        every page that was ever touched: after a checkpoint that is most of the file, twice.
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
        old = self._environment()
        map_bytes = old.info()["map_size"]
        self._env = None
        old.close()
        self._env = environment(self.path, map_bytes)
        self._rows, self._fragments, self._partitions, self._node = self._databases(self._env)

    def close(self) -> None:
        """Release the files. Closing twice is harmless."""
        with self._lock:
            if self._env is not None:
                self._env.close()
                self._env = None
        if self._guard is not None:
            os.close(self._guard)
            self._guard = None

    def _begin(self) -> None:
        env = self._environment()
        try:
            self._txn = env.begin(db=self._rows)
        except lmdb.MapResizedError:  # by the node beside us
            env.set_mapsize(0)
            self._txn = env.begin(db=self._rows)
        self._get = self._txn.get

    def _environment(self) -> lmdb.Environment:
        assert self._env is not None, "the store was closed"
        return self._env

    # What went wrong.

    def _unreadable(
        self, what: str, error: Exception, fragment: Fragment | None = None, key: bytes | None = None
    ) -> StoreDamaged:
        """LMDB stumbled over a page. That spoils the transaction, and healthy pages need a new one."""
        with self._lock:
            self._txn.abort()
            self._begin()
        return damaged(self.path, f"{what}: {error}", fragment, key)


def _raise(damage: StoreDamaged) -> NoReturn:
    raise damage
