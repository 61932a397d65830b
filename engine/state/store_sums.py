"""The digests of contents that a checkpoint leaves in LMDB: each row that it replaces is read, in the same transaction.

Where the digest of before is not known (an older version wrote the state), or a row that goes cannot be believed, all
rows of the fragment are summed up anew, once they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lmdb

from engine.state.store import Entry
from engine.state.store_envelope import BadEnvelope, fragment_key, open_fragment, row_seed, stored_row_digest
from rebalance.contents import MASK, row_digest
from wal.ids import Fragment
from wal.probe import probe


def sum_of(
    txn: lmdb.Transaction[bytes],
    rows: lmdb._Database,
    fragments: lmdb._Database,
    fragment: Fragment,
    changes: Mapping[bytes, Entry | None],
    *,
    cleared: bool,
) -> int | None:
    """The digest of a fragment as it will be after its changes; None where its rows must be summed up anew."""
    if cleared:
        return sum(row_digest(key, entry) for key, entry in changes.items()) & MASK
    prefix = fragment_key(fragment)
    total = stored_in(txn.get(prefix, db=fragments), prefix)
    if total is None:
        return None
    seed, get = row_seed(prefix), txn.get
    try:
        for key, entry in changes.items():
            raw = get(prefix + key, db=rows)
            if raw is not None:
                total -= stored_row_digest(seed, key, raw)
            total += row_digest(key, entry)
    except BadEnvelope:
        probe("store.summed_up_anew")
        return None
    return total & MASK


def stored_in(raw: bytes | None, key: bytes) -> int | None:
    """The digest that lies with a fragment's state; None if there is none. Raises BadEnvelope."""
    return open_fragment(key, raw)[1] if raw is not None else None


def summed_up(
    txn: lmdb.Transaction[bytes], rows: lmdb._Database, fragment: Fragment, tell: Callable[[bytes, str], None]
) -> int:
    """The digest of all rows of a fragment, read one by one; one that cannot be believed is told, and left out."""
    prefix = fragment_key(fragment)
    seed, total = row_seed(prefix), 0
    with txn.cursor(rows) as cursor:
        more = cursor.set_range(prefix)
        while more:
            full, raw = cursor.item()
            if not full.startswith(prefix):
                break
            key = full[len(prefix) :]
            try:
                total += stored_row_digest(seed, key, raw)
            except BadEnvelope as error:
                tell(key, str(error))
            more = cursor.next()
    return total & MASK
