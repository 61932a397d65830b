"""What a checkpoint leaves in LMDB of all rows of a fragment, the digest of their contents and how many there are: each row
that it replaces is read, in the same transaction.

Where either is not known of before (an older version wrote the state), or a row that goes cannot be believed, all rows of
the fragment are summed up anew, once they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lmdb

from engine.state.store import Entry, is_row
from engine.state.store_envelope import BadEnvelope, fragment_key, open_fragment, row_seed, stored_row_sums
from rebalance.contents import MASK, NOTHING, Sums, row_digest
from wal.ids import Fragment
from wal.probe import probe


def sums_of(txn: lmdb.Transaction[bytes], fragments: lmdb._Database, fragment: Fragment) -> Sums | None:
    """What is kept of a fragment's rows; None where they must be summed up anew. Raises BadEnvelope."""
    prefix = fragment_key(fragment)
    contents, live = stored_in(txn.get(prefix, db=fragments), prefix)
    return Sums(contents, live) if contents is not None and live is not None else None


def sum_of(
    txn: lmdb.Transaction[bytes],
    rows: lmdb._Database,
    fragment: Fragment,
    before: Sums,
    changes: Mapping[bytes, Entry | None],
    *,
    cleared: bool,
) -> Sums | None:
    """What a fragment's rows add up to after some changes of keys that did not change yet; None where they must be summed
    up anew. Of one that was cleared nothing else is left."""
    contents, live = before
    if cleared:
        contents += sum(row_digest(key, entry) for key, entry in changes.items())
        return Sums(contents & MASK, live + sum(map(is_row, changes.values())))
    prefix = fragment_key(fragment)
    seed, get = row_seed(prefix), txn.get
    try:
        for key, entry in changes.items():
            raw = get(prefix + key, db=rows)
            held = stored_row_sums(seed, key, raw) if raw is not None else NOTHING
            contents += row_digest(key, entry) - held.contents
            live += is_row(entry) - held.live
    except BadEnvelope:
        probe("store.summed_up_anew")
        return None
    return Sums(contents & MASK, live)


def stored_in(raw: bytes | None, key: bytes) -> tuple[int | None, int | None]:
    """The digest and the count that lie with a fragment's state; None for what does not. Raises BadEnvelope."""
    return open_fragment(key, raw)[1:] if raw is not None else (None, None)


def summed_up(
    txn: lmdb.Transaction[bytes], rows: lmdb._Database, fragment: Fragment, tell: Callable[[bytes, str], None]
) -> Sums:
    """What all rows of a fragment add up to, read one by one; one that cannot be believed is told, and left out."""
    prefix = fragment_key(fragment)
    seed, contents, live = row_seed(prefix), 0, 0
    with txn.cursor(rows) as cursor:
        more = cursor.set_range(prefix)
        while more:
            full, raw = cursor.item()
            if not full.startswith(prefix):
                break
            key = full[len(prefix) :]
            try:
                sums = stored_row_sums(seed, key, raw)
            except BadEnvelope as error:
                tell(key, str(error))
            else:
                contents, live = contents + sums.contents, live + sums.live
            more = cursor.next()
    return Sums(contents & MASK, live)
