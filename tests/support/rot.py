"""What a disk does to a checkpoint, and nobody notices: a row changes, or goes, and the sums that are kept do not."""

from __future__ import annotations

from engine.state.store import Entry
from engine.state.store_memory import MemoryStore
from wal.ids import Fragment


def rot(store: MemoryStore, fragment: Fragment, key: bytes, value: bytes | None) -> None:
    """A row is another one at the same version; None: it is gone. Only a row of the last checkpoint can be meant."""
    rows = store._rows[fragment].copy()
    held = rows[key]
    if value is None:
        del rows[key]
    else:
        rows[key] = Entry(held.epoch, held.counter, value)
    store._rows[fragment] = rows
