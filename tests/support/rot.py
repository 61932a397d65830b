"""What a disk does to a checkpoint, and nobody notices: a row changes, or goes, and the sums that are kept do not."""

from __future__ import annotations

from engine.state.store import Entry
from engine.state.store_memory import MemoryStore
from wal.ids import Fragment


def rot(store: MemoryStore, fragment: Fragment, key: bytes, value: bytes | None) -> None:
    """A row is another one at the same version; None: it is gone. Only a row of the last checkpoint can be meant."""
    rows = store._rows[fragment]
    held = rows.get(key)
    assert held is not None, f"{key!r} is in no row of {fragment}"
    store._rows[fragment] = rows.changed({key: None if value is None else Entry(held.epoch, held.counter, value)})
