"""The last checkpoint on disk: one LMDB environment that holds everything a checkpoint says, and checks what it reads.

A checkpoint is one LMDB transaction: rows, fragment states, partition states, named values and the applied LSN become
durable together or not at all.

```
<path>/                 0700
  data.mdb              0600, LMDB data format 1 (that of LMDB 0.9)
    rows                namespace | 00 | partition u16 | key  ->  the key's entry
    fragments           namespace | 00 | partition u16        ->  the fragment's state
    partitions          partition u16                         ->  the partition's state
    node                name                                  ->  a value of the node; 00 "lsn", 00 "format" are ours
  lock.mdb              0600, LMDB's table of readers; holds nothing of ours
```

Every value lies in an envelope with a checksum over database, key and value (`engine.store_envelope` draws it), because
LMDB has no checksums: no read returns a wrong value. That a row is *missing* can be hidden by damage all the same. So a
read that finds nothing, and a scan, make sure that the neighbours are whole and in order; `load` and `rows` make sure
that they found as many entries as LMDB counts; `structure_problems` walks every page of a file at rest. What remains,
an old page that came back whole, is for the digests that copies compare.

Threads: reads come from one thread and `write` from another. Reads go through one read transaction that is replaced at
each checkpoint (`renew`), so none pins old pages for longer. `_lock` is held for each read, and for a change of the
map's size, which LMDB allows only while the process has no transaction. LMDB gives up the interpreter at each operation
and Python gives it back late (`sys.getswitchinterval`): beside a busy node a checkpoint takes a multiple of its time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import NoReturn, TypeAlias

import lmdb
from lmdb.verify import VerifyError, verify

from engine.store import CheckpointImage, Entry, Loaded, Row
from engine.store_envelope import (
    DATABASES,
    FORMAT_KEY,
    FRAGMENTS,
    LSN_KEY,
    NODE,
    PARTITIONS,
    BadEnvelope,
    fragment_key,
    fragment_of,
    open_row,
    open_state,
    partition_key,
    partition_of,
    row_is_whole,
    row_seed,
    seal_rows,
    seal_state,
    u64,
)
from wal.ids import Fragment, fragment_name
from wal.probe import probe

FORMAT = 1
MAP_BYTES = 1 << 30
"""The map's first size: address space, not disk. It doubles when three quarters of it are used."""

Tell: TypeAlias = "Callable[[StoreDamaged], None]"

_ROWS_AT_ONCE = 1_000
_MAP_STEP_BYTES = 1 << 16  # the largest page that LMDB runs on
_PROBE_BYTES = 1 << 20
_READERS_MAX = 126
_LOCK_BYTES = 8192  # LMDB's table of 126 readers
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_LMDB_FORMATS = range(2, 16)  # later than ours; a larger number is damage


class StoreError(Exception):
    """The store cannot do what it promises; the message says what was expected, what was found and what to do."""


class StoreDamaged(StoreError):
    """Bytes on disk are not the ones that were written. `fragment` and `key` say whose, where that is known."""

    def __init__(self, message: str, fragment: Fragment | None = None, key: bytes | None = None) -> None:
        super().__init__(message)
        self.fragment = fragment
        self.key = key


class StoreFull(StoreError):
    """The disk, a quota or a limit on file sizes left no room for a checkpoint; nothing of it was applied."""


class StoreFailed(StoreError):
    """The disk refused, or it did so before and the store takes no more checkpoints."""


class StoreTooNew(StoreError):
    """A later version wrote this store."""


class StoreForeign(StoreError):
    """There is no store here."""


class StoreInUse(StoreError):
    """Somebody else has the store open."""


class LmdbStore:
    """A store of checkpoints in one LMDB environment.

    Invariants: the file holds exactly one checkpoint image, whole; `_txn` is a live read transaction from opening to
    closing; after a failed `write` there is no other, because a retried fsync may succeed without the data.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, read_only: bool = False) -> None:
        """Open the store at `path`, creating it if that is missing or empty.

        `read_only` opens it for tools, beside a live node or on a copy, and creates nothing. Beside a live node it
        keeps the checkpoint that it reads from being overwritten and the file grows, so `renew` or close it within
        minutes. A directory without a writable lock file is read without locks, and must be at rest.

        Raises StoreForeign, StoreTooNew, StoreDamaged, StoreInUse, StoreFull, StoreFailed.
        """
        self.path = path
        self.read_only = read_only
        self._lock = Lock()
        self._failed: StoreError | None = None
        self._prefixes: dict[Fragment, tuple[bytes, bytes, int]] = {}
        self._guard: int | None = None
        self._env: lmdb.Environment | None = None
        try:
            self._find(map_bytes)
            if not read_only:
                self._guard = _sole_writer(path)
            # A copy has no lock file, or one that we may not write: then nobody can be told that we read.
            locked = not read_only or os.access(path / "lock.mdb", os.W_OK)
            self._env = _environment(path, map_bytes, read_only=read_only, lock=locked)
            self._rows, self._fragments, self._partitions, self._node = self._databases(self._env)
            self._env.reader_check()
            self._begin()
            self._check_format()
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            self.close()
            raise self._not_lmdb(error) from error
        except (lmdb.Error, OSError) as error:
            self.close()
            raise self._trouble("opening it", error) from error
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
        _create(self.path, map_bytes)

    def _databases(self, env: lmdb.Environment) -> list[lmdb._Database]:
        try:
            return [env.open_db(name, create=False) for name in DATABASES]
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            with env.begin() as txn:
                names = [name for name, _ in txn.cursor()]
            expected = ", ".join(name.decode() for name in DATABASES)
            found = ", ".join(repr(name)[1:] for name in names[:5]) or "none"
            if not set(DATABASES).isdisjoint(names):
                raise self._damaged(f"expected the databases {expected}, found {found}") from error
            raise StoreForeign(
                f"{self.path} is not a store: expected the databases {expected}, found {found}; "
                "this LMDB environment belongs to another program"
            ) from error

    def _check_format(self) -> None:
        raw = self._txn.get(FORMAT_KEY, db=self._node)
        if raw is None:
            raise self._damaged("expected a record of the store's format, found none")
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
            raise self._damaged(str(error), fragment, key) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read it", error, fragment, key) from error
        if doubt:
            raise self._damaged(f"not found, but {doubt}", fragment, key)
        return None

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending. Raises StoreDamaged rather than leave one out."""
        if limit <= 0:
            return []
        prefix, _, seed = self._prefix(fragment)
        found, damages = self._raw_rows(fragment, start, limit)
        if damages:
            raise damages[0]
        size = len(prefix)
        key = start
        try:
            doubt = self._doubt(prefix + start, absent=False)
            rows = [(key := full[size:], open_row(seed, key, raw)) for full, raw in found]
        except BadEnvelope as error:
            raise self._damaged(str(error), fragment, key) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read around it", error, fragment, start) from error
        if doubt:
            raise self._damaged(f"a scan begins here, but {doubt}", fragment, start)
        return rows

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
                found, damages = self._raw_rows(fragment, start, _ROWS_AT_ONCE)
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
                        tell(self._damaged(str(error), fragment, key))
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

    def _raw_rows(
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
                            damages.append(self._damaged(f"expected one of its rows, found {full!r}", fragment))
                            continue
                        if full >= end:
                            break
                        if full < seek or row_is_whole(*found[-1]):
                            damages.append(self._damaged(f"expected ascending rows, found {full!r}", fragment))
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
            return open_state(name, key, raw)
        except BadEnvelope as error:
            raise self._damaged(f"{name.decode()} {key!r}: {error}") from error

    def _check_count(self, db: lmdb._Database, name: str, seen: int, tell: Tell) -> None:
        with self._lock:
            entries = self._txn.stat(db)["entries"]
        if entries != seen:
            tell(self._damaged(f"{name}: expected {entries} entries, found {seen}"))

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
        assert not self.read_only, "a tool does not write"
        env = self._environment()
        if self._failed is not None:
            raise StoreFailed(
                f"store {self.path}: takes no checkpoint, because an earlier one failed ({self._failed}); "
                "remove the cause and restart the node"
            ) from self._failed
        try:
            env.reader_check()  # a tool that was killed while it read would hold old pages for ever
            info = env.info()
            if (info["last_pgno"] + 1) * env.stat()["psize"] > info["map_size"] * 3 // 4:
                self._grow(env)
            while not self._apply(env, image):
                self._grow(env)
        except (lmdb.Error, OSError) as error:
            self._failed = self._trouble(f"writing the checkpoint up to lsn {image.lsn}", error)
            raise self._failed from error

    def _apply(self, env: lmdb.Environment, image: CheckpointImage) -> bool:
        """One transaction with the whole image; False, and nothing applied, if the map was too small for it."""
        removed: list[bytes] = []
        try:
            with env.begin(write=True) as txn:
                self._put_states(txn, image)
                with txn.cursor(self._rows) as cursor:
                    for fragment in image.cleared:
                        _delete_prefix(cursor, fragment_key(fragment))
                    ordered = sorted((fragment_key(fragment), fragment) for fragment in image.rows)
                    cursor.putmulti(
                        chain.from_iterable(seal_rows(prefix, image.rows[name], removed) for prefix, name in ordered)
                    )
                for full in removed:
                    txn.delete(full, db=self._rows)
        except lmdb.MapFullError:
            probe("store.map_full")
            return False
        return True

    def _put_states(self, txn: lmdb.Transaction[bytes], image: CheckpointImage) -> None:
        _put_state(txn, self._node, NODE, LSN_KEY, u64(image.lsn))
        for name, data in image.node.items():
            assert name, "a value of the node has a name"
            assert name[0] != "\0", "names that begin with NUL are the store's"
            _put_state(txn, self._node, NODE, name.encode(), data)
        for fragment, state in image.fragments.items():
            key = fragment_key(fragment)
            if state is None:
                txn.delete(key, db=self._fragments)
            else:
                _put_state(txn, self._fragments, FRAGMENTS, key, state)
        for partition, data in image.partitions.items():
            _put_state(txn, self._partitions, PARTITIONS, partition_key(partition), data)

    def _grow(self, env: lmdb.Environment) -> None:
        """Double the map. Reads wait, and go on in a new transaction that sees the same checkpoint."""
        probe("store.map_grown")
        with self._lock:
            self._txn.abort()
            env.set_mapsize(env.info()["map_size"] * 2)
            self._begin()

    # Between checkpoints, and the end.

    def renew(self) -> None:
        """A checkpoint was written: let reads see it. Beside a live node: see its last one."""
        try:
            with self._lock:
                self._txn.abort()
                self._begin()
        except lmdb.Error as error:
            raise self._trouble("renewing the read transaction", error) from error

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

    def _damaged(self, what: str, fragment: Fragment | None = None, key: bytes | None = None) -> StoreDamaged:
        where, copies = f"store {self.path}", "this node's copies"
        if fragment is not None:
            copies = fragment_name(fragment)
            where += f", {copies}"
        if key is not None:
            where += f", key {key!r}"
        advice = f"`foreshore wal verify {self.path}` shows all of the damage; take {copies} from a peer"
        return StoreDamaged(f"{where}: {what}; {advice}", fragment, key)

    def _unreadable(
        self, what: str, error: Exception, fragment: Fragment | None = None, key: bytes | None = None
    ) -> StoreDamaged:
        """LMDB stumbled over a page. That spoils the transaction, and healthy pages need a new one."""
        with self._lock:
            self._txn.abort()
            self._begin()
        return self._damaged(f"{what}: {error}", fragment, key)

    def _not_lmdb(self, error: lmdb.Error) -> StoreError:
        with (self.path / "data.mdb").open("rb") as file:
            head = file.read(_MAP_STEP_BYTES * 2)
        at = head.find(_LMDB_MAGIC)
        if at < 0:
            return StoreForeign(
                f"{self.path} is not a store: expected an LMDB file in data.mdb, found something else; "
                "name the directory of a store"
            )
        version = int.from_bytes(head[at + 4 : at + 8], "little")
        if version in _LMDB_FORMATS:
            return StoreTooNew(
                f"store {self.path}: expected LMDB data format 1, found {version}; "
                "open it with the version of foreshore that wrote it; nothing was changed"
            )
        return self._damaged(f"LMDB cannot read its first pages: {error}")

    def _trouble(self, doing: str, error: lmdb.Error | OSError) -> StoreError:
        """Our name for what LMDB or the operating system said."""
        where = f"store {self.path}: {doing}: {error}"
        code = error.code if isinstance(error, lmdb.Error) else error.errno
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.BadTxnError):
            return self._damaged(f"{doing}: {error}")
        if isinstance(error, lmdb.ReadersFullError):
            return StoreInUse(f"{where}; expected at most {_READERS_MAX} readers: close a tool that reads here")
        if "already open in this process" in str(error):
            return StoreInUse(f"{where}; expected one user in a process: close the other one first")
        # LMDB calls a write that came back short EIO, and a disk that just filled up gives exactly that.
        if code in _NO_ROOM or (code == errno.EIO and _no_room(self.path)):
            return StoreFull(f"{where}; expected room for it, found none: make room and restart the node")
        return StoreFailed(f"{where}; see what the system's log says about this disk before you restart the node")


def structure_problems(path: Path) -> list[str]:
    """What is wrong with the pages of a store *at rest* (a stopped node's, or a copy): [] if nothing is.

    It reads every page and takes no help from LMDB, which damage can bring down; so it goes before anything else that
    looks at a suspicious file. Raises StoreForeign if that is no LMDB file at all.
    """
    try:
        return [str(problem) for problem in verify(str(path))]  # type: ignore[no-untyped-call]  # not annotated there
    except (VerifyError, OSError) as error:
        raise StoreForeign(
            f"{path} is not a store: expected an LMDB file in data.mdb, found: {error}; name the directory of a store"
        ) from error


def _environment(path: Path, map_bytes: int, *, read_only: bool = False, lock: bool = True) -> lmdb.Environment:
    if lock:
        _reserve(path / "lock.mdb", _LOCK_BYTES)
    return lmdb.open(
        str(path),
        map_size=-(-map_bytes // _MAP_STEP_BYTES) * _MAP_STEP_BYTES,
        mode=0o700,  # of files: without the x
        create=False,
        readonly=read_only,
        # A commit writes the pages, syncs them, and only then writes the meta page that makes them the truth. With
        # sync=False and one sync of our own after it, the kernel may write the meta page first, and a power cut leaves
        # half a checkpoint that looks whole. The safe order costs a quarter of a millisecond (tests.bench.store_bench).
        sync=True,
        metasync=True,
        # A writable map is open to stray pointers, and answers a full disk with SIGBUS.
        writemap=False,
        max_dbs=len(DATABASES),
        max_readers=_READERS_MAX,
        max_spare_txns=1,  # `renew` keeps its slot
        lock=lock,
        lib_version=0,  # one data format, whatever LMDB_DEFAULT_LIB_VERSION says
    )


def _create(path: Path, map_bytes: int) -> None:
    """An empty store at `path`, missing or an empty directory. A crash leaves all of it or nothing there."""
    parent = path.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    fresh = parent / f"{path.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)  # of a crash
    fresh.mkdir(mode=0o700)
    env = _environment(fresh, map_bytes)
    try:
        databases = {name: env.open_db(name) for name in DATABASES}
        with env.begin(write=True) as txn:
            _put_state(txn, databases[NODE], NODE, FORMAT_KEY, u64(FORMAT))
    finally:
        env.close()
    _sync_directory(fresh)
    fresh.rename(path)
    _sync_directory(parent)


def _reserve(path: Path, size: int) -> None:
    """Give a file the disk space that it will need; LMDB maps this one writable, and a full disk would be a SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_blocks * 512 < size:
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def _sole_writer(path: Path) -> int:
    """Lock the directory against a second writer, for as long as the descriptor lives."""
    guard = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(guard)
        raise StoreInUse(
            f"store {path}: expected to be its only writer, found another; stop the node that runs here, "
            "or open it read-only"
        ) from None
    return guard


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_room(path: Path) -> bool:
    """Whether a file of a megabyte finds no room here."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            os.posix_fallocate(file.fileno(), 0, _PROBE_BYTES)
    except OSError as error:
        return error.errno in _NO_ROOM
    return False


def _put_state(txn: lmdb.Transaction[bytes], db: lmdb._Database, name: bytes, key: bytes, data: bytes) -> None:
    txn.put(key, seal_state(name, key, data), db=db)


def _delete_prefix(cursor: lmdb.Cursor[bytes], prefix: bytes) -> None:
    found = cursor.set_range(prefix)
    while found and cursor.key().startswith(prefix):
        found = cursor.delete()  # which steps to the next, and says whether there is one


def _raise(damage: StoreDamaged) -> NoReturn:
    raise damage
