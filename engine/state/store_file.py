"""The files under a store: how an LMDB environment is made, opened, guarded and judged.

`engine.state.store_lmdb` says what lies in it. Whatever LMDB or the operating system says gets a name of
`engine.state.store_errors` here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

from engine.state.store_envelope import DATABASES, FORMAT_KEY, NODE, seal_state, u64
from engine.state.store_errors import (
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreInUse,
    StoreNoMemory,
    StoreTooNew,
    damaged,
)

FORMAT = 3
MAP_STEP_BYTES = 1 << 16
"""The largest page that LMDB runs on."""

_PROBE_BYTES = 1 << 20
_READERS_MAX = 126
_LOOK_SECONDS = 0.02
_LOCK_BYTES = 8192  # LMDB's table of 126 readers
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LMDB_MAGIC = b"\xde\xc0\xef\xbe"
_LMDB_FORMATS = range(2, 16)  # later than ours; a larger number is damage


def structure_problems(path: Path) -> list[str]:
    """What is wrong with the pages of a store *at rest* (a stopped node's, or a copy): [] if nothing is.

    It reads every page and takes no help from LMDB, which damage can bring down; so it goes before anything else that
    looks at a suspicious file. Raises StoreForeign if that is no LMDB file at all: neither of its two root pages is.
    """
    if path.exists() and not (path / "data.mdb").is_file():
        found = "none, or one that is no file" if path.is_dir() else "a file"
        raise StoreForeign(
            f"{path} is not a store: expected a directory with data.mdb, found {found}; name the directory of a store"
        )
    try:
        return [str(problem) for problem in verify(str(path))]  # type: ignore[no-untyped-call]  # not annotated there
    except (VerifyError, OSError) as error:
        if isinstance(error, VerifyError) and _magic_at(path / "data.mdb") >= 0:
            return [f"a root page is damaged: {error}"]
        raise StoreForeign(
            f"{path} is not a store: expected an LMDB file in data.mdb, found: {error}; name the directory of a store"
        ) from error


def check_length(path: Path, env: lmdb.Environment) -> None:
    """Raise StoreDamaged if the file was cut short: LMDB would end the process with SIGBUS at a page that is not there.

    A whole file may be shorter than LMDB's count of pages, by pages that were never written: so a short one is walked.
    """
    size = (path / "data.mdb").stat().st_size
    expected = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if size < expected:
        problems = structure_problems(path)
        if problems:
            raise damaged(path, f"expected {expected} bytes in data.mdb, found {size}: {problems[0]}")


def environment(path: Path, map_bytes: int, *, read_only: bool = False, lock: bool = True) -> lmdb.Environment:
    """The environment at `path`, which exists; `map_bytes` is rounded up to whole pages. Raises lmdb.Error."""
    if lock:
        _reserve(path / "lock.mdb", _LOCK_BYTES)
    return lmdb.open(
        str(path),
        map_size=-(-map_bytes // MAP_STEP_BYTES) * MAP_STEP_BYTES,
        mode=0o700,  # of files: without the x
        create=False,
        readonly=read_only,
        # A commit writes the pages, syncs them, and only then writes the meta page that makes them the truth. With
        # sync=False and one sync of our own after it, the kernel may write the meta page first, and a power cut leaves
        # half a checkpoint that looks whole. The safe order costs a quarter of a millisecond (`foreshore bench store`).
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


def databases(path: Path, env: lmdb.Environment) -> list[lmdb._Database]:
    """The databases of a store, in the order of `DATABASES`. Raises StoreDamaged, StoreForeign."""
    try:
        return [env.open_db(name, create=False) for name in DATABASES]
    except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
        with env.begin() as txn:
            names = [name for name, _ in txn.cursor()]
        expected = ", ".join(name.decode() for name in DATABASES)
        found = ", ".join(repr(name)[1:] for name in names[:5]) or "none"
        if not set(DATABASES).isdisjoint(names):
            raise damaged(path, f"expected the databases {expected}, found {found}") from error
        raise StoreForeign(
            f"{path} is not a store: expected the databases {expected}, found {found}; "
            "this LMDB environment belongs to another program"
        ) from error


def create(path: Path, map_bytes: int) -> None:
    """Make an empty store at `path`, missing or an empty directory. A crash leaves all of it or nothing there."""
    parent = path.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    fresh = parent / f"{path.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)  # of a crash
    fresh.mkdir(mode=0o700)
    env = environment(fresh, map_bytes)
    try:
        databases = {name: env.open_db(name) for name in DATABASES}
        with env.begin(write=True) as txn:
            txn.put(FORMAT_KEY, seal_state(NODE, FORMAT_KEY, u64(FORMAT)), db=databases[NODE])
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


def writable(path: Path) -> bool:
    """Whether a file is there and can be written, found by opening it: what `access` says of a file system that went
    read-only by itself, after an error of its disk, is not so."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def sole_writer(path: Path, patience_seconds: float = 0.0) -> int:
    """Lock the directory against a second writer, for as long as the descriptor, or one that shares it, lives.

    The process that wrote a checkpoint for a node that was killed may hold it for a moment more: wait for that.
    """
    guard = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
                continue
            os.close(guard)
            raise StoreInUse(
                f"store {path}: expected to be its only writer, found another; stop the node that runs here, "
                "or open it read-only"
            ) from None
        return guard


def give_back(lock: int, locker: int) -> None:
    """Close a descriptor of what the process `locker` has locked. If that is this one, nothing is locked then: each child
    that it has forked meanwhile has that descriptor, too, and would keep it so for as long as it lives."""
    if os.getpid() == locker:
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def leads_to(path: Path, guard: int) -> bool:
    """Whether a path is that of the directory which is open: it may have been moved, and another one put in its place."""
    try:
        found = path.stat()
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(guard))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def still_whole(env: lmdb.Environment, file: int) -> bool:
    """Whether a store may be written again after a transaction found no room: no root page was touched, and no sync failed
    since `file`, its data, was opened, as such a descriptor is told. What the transaction had added to the file is given
    back: nobody reads beyond the last checkpoint's pages. Called by the only writer. Raises lmdb.Error, OSError.
    """
    with env.begin(write=True):  # refused where a root page was not written
        length = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if os.fstat(file).st_size > length:
            os.ftruncate(file, length)
    try:
        os.fsync(file)
    except OSError:
        return False
    return True


def _no_room(path: Path) -> bool:
    """Whether a file of a megabyte finds no room here."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            os.posix_fallocate(file.fileno(), 0, _PROBE_BYTES)
    except OSError as error:
        return error.errno in _NO_ROOM
    return False


def _magic_at(file: Path) -> int:
    """Where one of the two root pages of LMDB is in a file; -1 if none is there."""
    with file.open("rb") as opened:
        return opened.read(MAP_STEP_BYTES * 2).find(_LMDB_MAGIC)


def not_lmdb(path: Path, error: lmdb.Error) -> StoreError:
    """Why LMDB does not take the file for one of its own."""
    at = _magic_at(path / "data.mdb")
    if at < 0:
        return StoreForeign(
            f"{path} is not a store: expected an LMDB file in data.mdb, found something else; name the directory of a store"
        )
    with (path / "data.mdb").open("rb") as file:
        file.seek(at + len(_LMDB_MAGIC))
        version = int.from_bytes(file.read(4), "little")
    if version in _LMDB_FORMATS:
        return StoreTooNew(
            f"store {path}: expected LMDB data format 1, found {version}; "
            "open it with the version of foreshore that wrote it; nothing was changed"
        )
    return damaged(path, f"LMDB cannot read its first pages: {error}")


def trouble(path: Path, doing: str, error: lmdb.Error | OSError) -> StoreError:
    """Our name for what LMDB or the operating system said."""
    where = f"store {path}: {doing}: {error}"
    code = error.code if isinstance(error, lmdb.Error) else error.errno
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.BadTxnError):
        return damaged(path, f"{doing}: {error}")
    if isinstance(error, lmdb.ReadersFullError):
        return StoreInUse(f"{where}; expected at most {_READERS_MAX} readers: close a tool that reads here")
    if "already open in this process" in str(error):
        return StoreInUse(f"{where}; expected one user in a process: close the other one first")
    # LMDB calls a write that came back short EIO, and a disk that just filled up gives exactly that.
    if code in _NO_ROOM or (code == errno.EIO and _no_room(path)):
        return StoreFull(f"{where}; expected room for it, found none: free some space")
    if code == errno.ENOMEM:
        return StoreNoMemory(
            f"{where}; expected memory, and address space for a map of the whole file: raise what limits it (`ulimit -v`, "
            "a container's memory) and start the node again"
        )
    if code in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StoreFailed(f"{where}; expected files that this user may read and write")
    return StoreFailed(f"{where}; see what the system's log says about this disk before you restart the node")
