"""Rows of a stopped node's store put right behind its back: what a tool may write into a data directory, and nothing else.

A row is set to the very version that the history says it has, never to a new one, so the log stays true: replaying it
over the repaired checkpoint gives what it would have given over a whole one. All rows of the fragment are written anew,
in one transaction, because the digest of contents that lies with them may be of rows that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.errors import CorruptionError, Error
from engine.offline.live import is_live
from engine.offline.rows import Reading
from engine.state.store import CheckpointImage, Entry
from engine.state.store_errors import StoreError
from engine.state.store_lmdb import LmdbStore
from wal.ids import Fragment


class Unrepaired(Error):
    """Nothing was changed; the message says why."""


def set_right(path: Path, fragment: Fragment, rows: Mapping[bytes, Entry | None], partitions: int) -> None:
    """Make these rows of a stopped node's checkpoint what they must be; None: the row goes. Of `partitions` it is one.

    Durable when it returns, all of it or nothing. Raises Unrepaired where a node runs, or where more of the fragment is
    damaged than these rows; CorruptionError if the store cannot be read.
    """
    if is_live(path):
        raise Unrepaired(f"a node runs in {path}: stop it, and apply again, or name the cluster with --at")
    try:
        store = LmdbStore(path / "store")
    except StoreError as error:
        raise CorruptionError(str(error)) from error
    try:
        damaged: dict[bytes | None, str] = {}

        def tell(key: bytes | None, what: str) -> None:
            damaged[key] = what

        held = dict(Reading(store, fragment, {}, tell, partitions=partitions).all())
        left = [what for key, what in damaged.items() if key is None or key not in rows]
        if left:
            raise Unrepaired(f"{path}: {left[0]}; more of {fragment[0]}/{fragment[1]} is damaged than would be repaired")
        held |= {key: entry for key, entry in rows.items() if entry is not None}
        kept = {key: entry for key, entry in held.items() if key not in rows or rows[key] is not None}
        store.write(
            CheckpointImage(store.load().lsn, {}, fragments={}, partitions={}, cleared=[fragment], rows={fragment: kept})
        )
    except StoreError as error:
        raise CorruptionError(str(error)) from error
    finally:
        store.close()
