"""The rows of one fragment that are not simply written: brought by a transfer, in doubt until it ends, or gone.

Plain functions over a fragment's state and the store of its rows; `engine.state.replica` says when.
"""

from __future__ import annotations

from engine.state.store import GONE, ROW_OVERHEAD_BYTES, Entry, LayeredStore
from rebalance.fragment import FragmentState
from wal import records as r
from wal.probe import probe


def preload(store: LayeredStore, fragment: FragmentState, record: r.Preload) -> None:
    """Rows of a transfer; what is newer here stays, and what was written live while loading does until it is told of."""
    name = fragment.name
    rows, dead = store.layer_of(name)
    weight = 0
    for epoch, counter, key, value in zip(record.epochs, record.counters, record.keys, record.values, strict=True):
        makes_room = fragment.loading and not counter
        if makes_room and key in fragment.suspects:
            continue
        suspect = fragment.suspects.pop(key, 0) is None
        if not makes_room and (fragment.loading or not suspect):
            held = store.get(name, key)
            if held is not None and (held.epoch, held.counter) >= (epoch, counter):
                continue
        rows[key] = Entry(epoch, counter, value) if counter else GONE
        if value is None or not counter:
            dead = store.bury(name, key)
        elif dead:
            dead.pop(key, None)
        if value is None and counter:
            fragment.tombstones[key] = counter
        weight += ROW_OVERHEAD_BYTES + len(key) + (len(value) if value is not None else 0)
    store.weigh(weight)


def drop_unconfirmed(store: LayeredStore, fragment: FragmentState, lwm: int) -> None:
    """A live write came before the transfer that covers it, and the transfer did not tell of its key: it was deleted.

    Its delete came before the transfer began, and the supplier needed the tombstone no more.
    """
    if not fragment.suspects:
        return
    for key in fragment.suspects:
        held = store.get(fragment.name, key)
        if held is not None and held.counter <= lwm:
            probe("replica.unconfirmed_row_dropped")
            store.set(fragment.name, key, GONE)
            fragment.tombstones.pop(key, None)
    fragment.suspects = {}


def drop_tombstones(store: LayeredStore, fragment: FragmentState, most: int) -> int:
    """A delete that every in-sync copy has needs no tombstone: nothing older can arrive any more. How many went."""
    droppable = fragment.droppable(most)
    for key in droppable:
        counter = fragment.tombstones.pop(key)
        fragment.dropped = max(fragment.dropped, counter)
        held = store.get(fragment.name, key)
        if held is not None and held.counter == counter and held.value is None:
            store.set(fragment.name, key, GONE)
    return len(droppable)
