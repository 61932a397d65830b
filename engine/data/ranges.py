"""Whether a range that a transaction has scanned is still as it was: nothing in it has a counter above what was read.

A transaction that writes is asked about when all that it writes is prepared, and one that does not when it has read all;
in between nobody holds the range. That is enough, as in Silo (Tu and others, SOSP 2013): let each transaction stand at the
moment at which all that it writes is prepared. What another one that stands before it has written into the range is
prepared here still, or counts: either is seen. What is prepared here only after this look stands after it, too, and will
look at its own ranges even later, where it meets what this one has prepared.

A fragment that nothing came into since is not looked at. Where rows are looked at, in pieces, each need be as it was only
when it is looked at, since all of that comes later than the moment at which the transaction stands.
"""

from __future__ import annotations

from collections.abc import Generator

from engine.protocol.requests import Scanned
from engine.turn.core import Core
from wal.ids import Fragment, TxId, tx_name, whole_of
from wal.probe import probe

LOOKED_AT_ONCE = 500
"""So many rows are looked at before a turn may end."""
MARK_WORK = 4
"""So many fragments into which nothing came are as much work as a row."""


def moved(core: Core, tx: TxId, scanned: Scanned) -> Generator[int, None, str]:
    """Say what came into a range, or nothing; in pieces: yields how much work the last one was.

    `tx` is what the transaction is prepared as, which is no stranger to itself. Every partition's primary must be here,
    and have been confirmed. It ends at once, and says nothing, when there is another map: that is for who asked to see.
    """
    work, version = 0, core.reign
    known = dict.fromkeys(scanned.known)
    for number, epoch, counter in scanned.marks:
        fragment: Fragment = (scanned.namespace, number)
        work += 1
        if work >= MARK_WORK * LOOKED_AT_ONCE:
            yield work // MARK_WORK
            work = 0
            if core.reign != version:
                return ""
        if core.local[number].epoch != epoch:
            probe("range.of_another_primary")
            return f"partition {number} has another primary than when {scanned.namespace} was scanned"
        for other, prepare in core.replica.partition(number).prepared.items():
            for write in prepare.writes if whole_of(other) != tx else ():
                if write.namespace != scanned.namespace:
                    continue
                work += len(write.keys)
                key = next((key for key in write.keys if _inside(scanned, key)), None)
                if key is not None:
                    probe("range.being_written")
                    return f"{scanned.namespace}:{key!r} is being written by transaction {tx_name(other)}"
        state = core.replica.fragments.get(fragment)
        if state is None or state.counter.highest_applied <= counter:
            continue
        if state.dropped > counter:
            probe("range.forgotten")
            return f"{scanned.namespace}/{number} has forgotten deletes since it was scanned at {counter}"
        at: bytes | None = scanned.start
        while at is not None and (scanned.end is None or at < scanned.end):
            page = core.replica.store.page(fragment, at, LOOKED_AT_ONCE)
            for key, entry in page.rows:
                if scanned.end is not None and key >= scanned.end:
                    break
                if entry.counter > counter and key not in known:
                    probe("range.moved")
                    return f"{scanned.namespace}:{key!r} was written since its range was scanned at {counter}"
            at = page.next
            yield page.work
            if core.reign != version:
                return ""
    yield work // MARK_WORK
    return ""


def _inside(scanned: Scanned, key: bytes) -> bool:
    return scanned.start <= key and (scanned.end is None or key < scanned.end)
