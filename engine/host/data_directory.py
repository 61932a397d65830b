"""A node's data directory: whose it is, that nobody else uses it, and what is in it.

```
 DIR/identity.json   format, cluster name, node id, allocation id
 DIR/lock            held by the process that uses the directory
 DIR/wal/            the log            (package wal)
 DIR/store/          the checkpoint     (engine.state.store_lmdb)
```

The allocation id is drawn when the directory is made. A wiped or replaced disk has another one, and so cannot pass for
the copy that the cluster knows.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from engine.errors import CorruptionError, DiskFull, Error, UsageError
from engine.host.duties import log_settings
from engine.state.identity import FORMAT, OWNER, Identity, check_owner, owner_value, read_identity
from engine.state.recover import recover
from engine.state.replica import Replica
from engine.state.store import CheckpointImage, LayeredStore
from engine.state.store_errors import (
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreInUse,
    StoreNoMemory,
    StoreTooNew,
)
from engine.state.store_file import give_back
from engine.state.store_lmdb import LmdbStore
from engine.state.store_writer import Writer
from engine.turn.lent import Room
from engine.turn.settings import Settings
from wal import (
    DirectoryDisk,
    Disk,
    DiskError,
    Log,
    LogBehindStore,
    LogDamaged,
    LogError,
    LogForeign,
    LogTooNew,
)
from wal import DiskFull as LogDiskFull
from wal.disk import FULL
from wal.ids import NodeId, check_name

ORPHAN_SECONDS = 30.0
"""So long a checkpoint of a node that was killed may take to end."""
MakeDisk: TypeAlias = Callable[[Path], Disk]


class DataDirectory:
    """An open data directory."""

    def __init__(self, path: Path, identity: Identity, log: Log, store: LmdbStore, replica: Replica, lock: int) -> None:
        self.path = path
        self.identity = identity
        self.log = log
        self.store = store
        self.replica = replica
        self._writer = Writer(store)
        self._lock, self._locker = lock, os.getpid()

    def write_checkpoint(self, image: CheckpointImage) -> None:
        """Apply a checkpoint to the store, out of the way of the turns. In any thread, one at a time.

        It says whose it is.
        """
        owner = owner_value((self.identity.cluster, self.identity.node))
        self._writer.write(image._replace(node={**image.node, OWNER: owner}))

    def hurry(self) -> None:
        """Somebody waits by now for the checkpoint that is being written, if one is."""
        self._writer.hurry()

    def moved(self) -> bool:
        """Whether it is not any more where it was opened. Raises Error if it was removed."""
        if self.store.removed:
            raise Error(
                f"the data directory {self.path} was removed while the node ran: what it promised is on no disk any more; "
                "start it with an empty one, so that it gets its copies from its peers"
            )
        return self.store.moved

    def room(self) -> Room | None:
        """What is left where the log and the store are, the less of the two; None if the system does not say."""
        try:
            found = [os.statvfs(self.path / part) for part in ("wal", "store")]
        except OSError:
            return None
        files = min((disk.f_favail for disk in found if disk.f_files), default=None)
        return Room(min(disk.f_bavail * disk.f_frsize for disk in found), self.log.next_bytes, files)

    def close(self) -> None:
        """Give everything back; another process may open the directory then."""
        self.log.close()
        self._writer.close()
        self.store.close()
        give_back(self._lock, self._locker)

    def abandon(self) -> None:
        """The node failed: let go of the directory without writing anything more to it."""
        self._writer.close()
        self.store.close()
        give_back(self._lock, self._locker)


def open_data_directory(
    path: Path,
    *,
    cluster: str,
    node: NodeId | None,
    settings: Settings,
    accept_loss: bool = False,
    disk: MakeDisk = DirectoryDisk,
) -> DataDirectory:
    """Open a data directory, or make it; recover what it holds.

    `node`: None takes the directory's own id, or draws one for a new directory. `disk` holds the log. Raises UsageError,
    CorruptionError and DiskFull, each with what to do next.
    """
    if not __debug__:  # an assertion would not be here to say so
        raise UsageError("assertions are part of a node: run Python without -O, and without PYTHONOPTIMIZE")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"cannot make the data directory {path}: {error.strerror}; expected a directory, or a place where this user "
            "may make one"
        ) from error
    path = path.absolute()  # whoever embeds a node may go to another directory
    try:
        lock = _take_lock(path)
        try:
            _check_log_is_here(path)
            identity = _identify(path, cluster, node)
            return _open(path, identity, settings, lock, accept_loss=accept_loss, disk=disk)
        except BaseException:
            give_back(lock, os.getpid())
            raise
    except OSError as error:
        raise _unusable(path, error) from error


def _check_log_is_here(path: Path) -> None:
    """Refuse a directory whose log was set aside by a tool that was killed then: it would begin with an empty one."""
    if not (path / "wal").exists() and any(path.glob("wal.*.tmp")):
        raise UsageError(
            f"{path} has no log, but a copy of it: `foreshore wal cut` or `repair` was cut short there; let it go on by "
            f"`foreshore wal repair {path} --in-place`, then start again"
        )


def _unusable(path: Path, error: OSError) -> Error:
    what = f"cannot use the data directory {path}: {error.filename or path}: {error.strerror}"
    if error.errno in FULL:
        return DiskFull(f"{what}: free some space and start again")
    return UsageError(f"{what}; expected files that this user may read and write")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Nobody uses this data directory, and nobody begins to meanwhile. Raises UsageError."""
    try:
        lock = _take_lock(path)
    except OSError as error:
        raise _unusable(path, error) from error
    locker = os.getpid()
    try:
        yield
    finally:
        give_back(lock, locker)


def _take_lock(path: Path) -> int:
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "another process"
        os.close(lock)
        if owner == str(os.getpid()):
            raise UsageError(f"{path} is open in this process: use the database that it has, or close that first") from None
        raise UsageError(f"{path} is in use by process {owner}: stop it first, or name another directory") from None
    try:
        os.pwrite(lock, b"%-32d" % os.getpid(), 0)  # in the place of the one before: on a full disk there is no other
    except OSError:
        os.ftruncate(lock, 0)  # nobody can say whose it is; it is taken all the same
    return lock


def _identify(path: Path, cluster: str, node: NodeId | None) -> Identity:
    known = read_identity(path)
    if known is not None:
        if node is not None and node != known.node:
            raise UsageError(f"{path} belongs to node {known.node!r}, not {node!r}: give its own --node, or none")
        if cluster != known.cluster:
            raise UsageError(f"{path} belongs to cluster {known.cluster!r}, not {cluster!r}: check --cluster and --data")
        return known
    try:
        check_name("cluster", cluster)
        chosen = check_name("node", node) if node is not None else f"n-{secrets.token_hex(3)}"
    except ValueError as error:
        raise UsageError(str(error)) from None
    identity = Identity(format=FORMAT, cluster=cluster, node=chosen, allocation=secrets.token_hex(8))
    new = path / "identity.json.tmp"
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(identity)))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path / "identity.json")
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return identity


def _open(
    path: Path, identity: Identity, settings: Settings, lock: int, *, accept_loss: bool, disk: MakeDisk
) -> DataDirectory:
    try:
        base = LmdbStore(path / "store", patience_seconds=ORPHAN_SECONDS)
        try:
            loading = base.loading()
            check_owner(base.path, loading.node, (identity.cluster, identity.node))
            log = Log.open(
                disk(path / "wal"),
                cluster=identity.cluster,
                node=identity.node,
                settings=log_settings(settings),
                from_lsn=loading.lsn + 1,
                accept_loss=accept_loss,
            )
            replica = recover(LayeredStore(base), log)
        except BaseException:
            base.close()
            raise
    except (LogError, StoreError, DiskError, ValueError) as error:
        raise _refusal(path, error) from error
    return DataDirectory(path, identity, log=log, store=base, replica=replica, lock=lock)


def _refusal(path: Path, error: Exception) -> Error:
    """Why a node cannot start on this directory, and what to do."""
    match error:
        case LogDiskFull() | StoreFull():
            return DiskFull(f"{error} and start again")
        case LogDamaged() | LogBehindStore():
            return CorruptionError(
                f"the log of {path} is not whole: {error.finding}. `foreshore wal verify {path}` shows all of it. Move the "
                "directory away and start the node with an empty one, so that it gets its copies from its peers; or, if it "
                "is alone, as one that a program opens is, accept the loss: `foreshore node start --accept-loss --data "
                f"{path}` sets aside everything from there on, deletes nothing, and may be stopped then"
            )
        case LogTooNew() | StoreTooNew() | LogForeign() | StoreForeign() | StoreInUse():
            return UsageError(f"cannot use the data directory {path}: {error}")
        case StoreDamaged():
            return CorruptionError(
                f"{error}: move the directory away and start the node with an empty one; or, if it is alone, move only "
                f"{path / 'store'} away: a log that begins with LSN 1 makes it anew, and one that begins later is refused"
            )
        case StoreFailed() | DiskError():
            return Error(f"cannot use the data directory {path}: {error}")
        case _:
            return CorruptionError(f"the data directory {path} contradicts itself: {error}")


def as_engine_error(error: BaseException) -> Error | None:
    """The error of a log or a store as an application sees it, if it is one."""
    if isinstance(error, LogDiskFull | StoreFull):
        return DiskFull(f"{error} and start the node again")
    if isinstance(error, StoreNoMemory):
        return Error(f"{error}; what was promised is in the log")
    if isinstance(error, StoreFailed | DiskError):
        return Error(
            f"{error}; the node stopped, as nobody knows what the disk holds: see to the disk, then start it again"
        )
    if isinstance(error, LogError | StoreError):
        return CorruptionError(str(error))
    return None
