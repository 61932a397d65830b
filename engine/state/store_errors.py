"""What can go wrong with the checkpoints on disk, by name.

A message says what was expected, what was found and what to do.
"""

from __future__ import annotations

from pathlib import Path

from wal.ids import Fragment, fragment_name


class StoreError(Exception):
    """The store cannot do what it promises; the message says what was expected, what was found and what to do."""


class StoreDamaged(StoreError):
    """Bytes on disk are not the ones that were written. `fragment` and `key` say whose, where that is known.

    `found` is the whole key of a row that may be one of the fragment's, under another name.
    """

    found: bytes = b""

    def __init__(self, message: str, fragment: Fragment | None = None, key: bytes | None = None) -> None:
        super().__init__(message)
        self.fragment = fragment
        self.key = key


class StoreFull(StoreError):
    """The disk, a quota or a limit on file sizes left no room for a checkpoint; nothing of it was applied, and it may be
    written again. A sync that failed, for whatever reason, is another thing: `StoreFailed`."""


class StoreFailed(StoreError):
    """The disk refused, or it did so before and the store takes no more checkpoints."""


class StoreNoMemory(StoreFailed):
    """There was no memory for it, or no address space; the disk has nothing to do with it."""


class StoreTooNew(StoreError):
    """A later version wrote this store."""


class StoreForeign(StoreError):
    """There is no store here."""


class StoreInUse(StoreError):
    """Somebody else has the store open."""


def damaged(path: Path, what: str, fragment: Fragment | None = None, key: bytes | None = None) -> StoreDamaged:
    """The store at `path` holds something else than was written there: `what` was expected and found."""
    where, copies = f"store {path}", "this node's copies"
    if fragment is not None:
        copies = fragment_name(fragment)
        where += f", {copies}"
    if key is not None:
        where += f", key {key!r}"
    advice = f"`foreshore wal verify {path}` shows all of the damage; take {copies} from a peer"
    return StoreDamaged(f"{where}: {what}; {advice}", fragment, key)
