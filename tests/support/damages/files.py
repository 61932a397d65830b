"""Damages of files: stores, logs, and what says whose they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias, TypeVar

from engine.state.store import CheckpointImage
from engine.state.store_lmdb import LmdbStore
from tests.support.directories import append, cut_in_half, lose_the_log, zero_last_blocks
from tests.support.reconciled import ALL, NOW_MS, Damage, told_of_fragment, unreadable, write
from wal import list_segments
from wal import records as r

Do: TypeAlias = Callable[[Path], None]
PAGE = 4096
T = TypeVar("T")


def _log_of(directory: Path) -> Path:
    """The file of the last segment."""
    return directory / "wal" / list_segments(directory / "wal")[-1].name


def _damage_log(*nodes: str) -> Do:
    """A bit of a block below the checkpoint is another one."""

    def do(root: Path) -> None:
        for node in nodes:
            segment = _log_of(root / node)
            data = bytearray(segment.read_bytes())
            data[300] ^= 1
            segment.write_bytes(data)

    return do


def _damage_what_was_logged_since(root: Path) -> None:
    """All have an update above their checkpoints; the block that has it is damaged on one of them, and another follows."""
    write(root, ALL, b"k341", b"to be damaged")
    segment = _log_of(root / "n2")
    data = segment.read_bytes()
    at = data.rindex(b"to be damaged")
    segment.write_bytes(data[:at] + b"T" + data[at + 1 :])


def _torn(root: Path) -> None:
    """The last block is half there, as after a crash while it was written."""
    for node in ALL:
        append(root / node, [r.Checkpoint(0)], now_ms=NOW_MS)
    segment = _log_of(root / "n2")
    data = segment.read_bytes()
    end = len(data.rstrip(b"\0"))
    segment.write_bytes(data[: end - 8] + bytes(len(data) - end + 8))


def _cut_store(size: int) -> Do:
    def do(root: Path) -> None:
        with (root / "n2" / "store" / "data.mdb").open("r+b") as file:
            file.truncate(size)

    return do


def _cut_all(root: Path) -> None:
    for node in ALL:
        with (root / node / "store" / "data.mdb").open("r+b") as file:
            file.truncate(20_000)


def _zero_roots(root: Path) -> None:
    with (root / "n2" / "store" / "data.mdb").open("r+b") as file:
        file.write(bytes(2 * PAGE))


def _remove(*path: str) -> Do:
    def do(root: Path) -> None:
        found = root.joinpath("n2", *path)
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink()

    return do


def _swap_log(root: Path) -> None:
    """The log of n1 lies in the directory of n2."""
    shutil.rmtree(root / "n2" / "wal")
    shutil.copytree(root / "n1" / "wal", root / "n2" / "wal")


def _swap_store(root: Path) -> None:
    """The store of n1 lies in the directory of n2, and is at the LSN where that of n2 was; its rows are the same."""
    here = root / "n2" / "store"
    lsn = _at(here, lambda store: store.load().lsn)
    shutil.rmtree(here)
    shutil.copytree(root / "n1" / "store", here)
    _at(here, lambda store: store.write(CheckpointImage(lsn, {}, {}, {}, cleared=[], rows={})))


def _at(path: Path, do: Callable[[LmdbStore], T]) -> T:
    with closing(LmdbStore(path)) as store:
        return do(store)


def _garble_identity(root: Path) -> None:
    (root / "n2" / "identity.json").write_bytes(b"{")


def _alien(root: Path) -> None:
    """Files that are none of ours lie beside those that are."""
    for directory in (root / "n2", root / "n2" / "wal", root / "n2" / "store"):
        (directory / "README.txt").write_text("do not touch\n")


FILES = {
    "files of others": Damage(_alien, [], 0),
    "a torn last block": Damage(_torn, [], 0),
    "a damaged log": Damage(_damage_log("n3"), unreadable("n3"), 3),
    "a damaged log on every node": Damage(_damage_log(*ALL), unreadable(*ALL), 3),
    "a damaged block above the checkpoint": Damage(
        _damage_what_was_logged_since, [*unreadable("n2"), told_of_fragment("BEHIND", b"k341", "n2")]
    ),
    "a log cut in half": Damage(lambda root: _ignored(cut_in_half(root / "n2")), unreadable("n2"), 3),
    "a log without its last blocks": Damage(lambda root: _ignored(zero_last_blocks(root / "n2", 30)), unreadable("n2"), 3),
    "a log without its segments": Damage(lambda root: lose_the_log(root / "n2"), unreadable("n2"), 3),
    "no log": Damage(_remove("wal"), unreadable("n2"), 3),
    "the log of another node": Damage(_swap_log, unreadable("n2"), 3),
    "the store of another node": Damage(_swap_store, unreadable("n2"), 3),
    "a store cut short": Damage(_cut_store(20_000), unreadable("n2"), 3),
    "an empty store": Damage(_cut_store(0), unreadable("n2"), 3),
    "every store cut short": Damage(_cut_all, unreadable(*ALL), 3),
    "a store without its roots": Damage(_zero_roots, unreadable("n2"), 3),
    "no store": Damage(_remove("store"), unreadable("n2"), 3),
    "no file in the store": Damage(_remove("store", "data.mdb"), unreadable("n2"), 3),
    "a directory without a name": Damage(_remove("identity.json"), unreadable("n2"), 3),
    "a directory with half a name": Damage(_garble_identity, unreadable("n2"), 3),
}


def _ignored(_: object) -> None:
    """What was done says how much, and nobody asks."""
