"""Whose a data directory is, as `identity.json` says; and whose the store in it is, as its checkpoints say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine.errors import CorruptionError, UsageError
from engine.state.store_errors import StoreForeign
from wal import Owner
from wal.ids import NodeId

FORMAT = 1
OWNER = "owner"
"""The value of a checkpoint that says whose it is; those of older versions have none."""
INSIDE_MAX = 10
"""Of the data directories in one that is none, so many are named."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose directory it is."""

    format: int
    cluster: str
    node: NodeId
    allocation: str


def directory_of(path: object) -> Path:
    """The directory that a caller means. Raises UsageError for what names none on any disk."""
    said = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(said, str) or not said or "\0" in said or any("\ud800" <= letter <= "\udfff" for letter in said):
        raise UsageError(f"the directory is {path!r}: expected a path")
    return Path(said)


def no_directory(path: Path) -> str:
    """That this is not a node's, for a person."""
    found = "a directory without identity.json" if path.is_dir() else "no directory"
    return f"{path} is not a data directory: expected identity.json, store and wal, found {found}{directories_in(path)}"


def directories_in(path: Path) -> str:
    """What a person may have meant who named the place where data directories lie; empty where none does."""
    inside = sorted(str(entry.parent) for entry in path.glob("*/identity.json"))
    return f"; did you mean {' '.join(inside[:INSIDE_MAX])}?" if inside else ""


def read_identity(path: Path) -> Identity | None:
    """Whose directory it is, or None if it is new. Raises UsageError and CorruptionError."""
    file = path / "identity.json"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        if (path / "wal").exists() or (path / "store").exists():
            raise CorruptionError(
                f"{path} holds a log or a store and no identity.json: put the file back, or name another directory"
            ) from None
        return None
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"{file} cannot be read: {error}; put the file back, or move the directory away and start with an empty one, "
            "so that the node gets its copies from its peers"
        ) from error
    if identity.format > FORMAT:
        raise UsageError(f"{path} has format {identity.format}, this version knows {FORMAT}: upgrade foreshore")
    return identity


def owner_value(owner: Owner) -> bytes:
    """Whose a checkpoint is, as it says itself."""
    return msgspec.msgpack.encode(owner)


def check_owner(path: Path, node: Mapping[str, bytes], owner: Owner) -> None:
    """A store that says whose it is must be its directory's: the same LSN proves nothing. Raises StoreForeign."""
    said = node.get(OWNER)
    if said is not None and said != owner_value(owner):
        cluster, name = msgspec.msgpack.decode(said, type=tuple[str, str])
        raise StoreForeign(
            f"{path} is the store of node {name!r} in cluster {cluster!r}: expected {owner[1]!r} in {owner[0]!r}, as in "
            "identity.json; put the node's own store back, or start it with an empty directory, and its peers fill it"
        )
