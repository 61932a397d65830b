"""The rows of one fragment that are not simply written: brought by a transfer, in doubt until it ends, or gone.

Plain functions over a fragment's state and the store of its rows; `engine.state.replica` says when.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.state.store import GONE, ROW_OVERHEAD_BYTES, Entry, LayeredStore, is_dead
from rebalance.fragment import NEWEST, NOTHING, FragmentState
from rebalance.links import writes_between
from wal import records as r
from wal.ids import COUNTER_MAX, Fragment
from wal.probe import probe


def put_one_by_one(store: LayeredStore, fragment: FragmentState, write: r.Write, how: int) -> None:
    """The rows of a write that was marked as applied; where that is not the newest, what is newer stays."""
    name, epoch, at, weight, loading = fragment.name, write.epoch, write.start, 0, fragment.loading
    rows, dead = store.layer_of(name)
    buried = 0
    for key, value in zip(write.keys, write.values, strict=True):
        at += 1
        if how != NEWEST:
            held = store.get(name, key)
            sure = loading or key not in fragment.suspects
            if sure and held is not None and (held.epoch, held.counter) >= (epoch, at):
                continue
        if value is None or dead or buried:
            buried += (value is None) - is_dead(rows.get(key))
        rows[key] = Entry(epoch, at, value)
        if value is None:
            fragment.bury(key, at)
            weight += ROW_OVERHEAD_BYTES + len(key)
        else:
            weight += ROW_OVERHEAD_BYTES + len(key) + len(value)
        if loading:
            fragment.doubt_live(key, at)  # until the transfer tells of the key
    if fragment.suspects and not loading:
        fragment.confirm(write.keys)
    if buried:
        store.bury(name, buried)
    store.weigh(weight)


def preload(store: LayeredStore, fragment: FragmentState, record: r.Preload) -> None:
    """Rows of a transfer; what is newer here stays, and what was written live while loading does until it is told of."""
    name = fragment.name
    rows, _ = store.layer_of(name, len(record.keys))
    if _are_simply_put(store, fragment, record):
        rows.update(zip(record.keys, map(Entry, record.epochs, record.counters, record.values), strict=True))
        values = sum([len(value) for value in record.values if value is not None])
        store.weigh(ROW_OVERHEAD_BYTES * len(record.keys) + sum(map(len, record.keys)) + values)
        return
    weight = buried = 0
    for epoch, counter, key, value in zip(record.epochs, record.counters, record.keys, record.values, strict=True):
        makes_room = fragment.loading and not counter
        suspect = key in fragment.suspects
        if makes_room and suspect != bool(epoch):
            continue  # it is in doubt, and is told of later; or it is said to be so, and is not
        if suspect:
            fragment.confirm((key,))
        if not makes_room and (fragment.loading or not suspect):
            held = store.get(name, key)
            if held is not None and (held.epoch, held.counter) >= (epoch, counter):
                continue
        buried += (value is None or not counter) - is_dead(rows.get(key))
        rows[key] = Entry(epoch, counter, value) if counter else GONE
        if value is None and counter:
            fragment.bury(key, counter)
            fragment.pruned = 0  # it may be an old one
        elif suspect and makes_room:
            fragment.drop_tombstone(key)
        weight += ROW_OVERHEAD_BYTES + len(key) + (len(value) if value is not None else 0)
    store.bury(name, buried)
    store.weigh(weight)


def _are_simply_put(store: LayeredStore, fragment: FragmentState, record: r.Preload) -> bool:
    """Whether what follows comes to that: all are rows, nothing stands under their keys, and none is in doubt. So it is
    nearly always where a copy is filled, and it takes a quarter of the time; a test holds the two against each other."""
    keys = record.keys
    columns = len(keys) == len(record.epochs) == len(record.counters) == len(record.values)
    if not columns or fragment.suspects or 0 in record.counters or None in record.values:
        return False
    return len(set(keys)) == len(keys) and has_none_of(store, fragment.name, keys)


def has_none_of(store: LayeredStore, name: Fragment, keys: Sequence[bytes]) -> bool:
    """Whether nothing stands under any of these keys, not even that something was deleted; False, too, where it would take
    a look at each of them to say so."""
    for layer in store.layers:
        rows = layer.rows.get(name)
        if rows and not rows.keys().isdisjoint(keys):
            return False
        if name in layer.cleared:
            return True
    following = store.base.keys(name, min(keys), 1) if keys else []
    return not following or following[0][0] > max(keys)


def unconfirmed(fragment: FragmentState, lwm: int, *, only_live: bool) -> list[bytes]:
    """Of the keys in doubt those that a transfer, complete up to `lwm`, would have to tell of: nothing was written to them
    above that. Very many may be in doubt, so they are only told apart; and where they came live, the writes up to there
    name those, which are few: what came since the transfer began lies above."""
    suspects = fragment.suspects
    if not only_live:
        return [key for key, counter in suspects.items() if counter <= lwm]
    keys = dict.fromkeys(key for write in writes_between(fragment, 0, lwm) for key in write.keys)
    return [key for key in keys if suspects.get(key, COUNTER_MAX) <= lwm]


def drop_unconfirmed(store: LayeredStore, fragment: FragmentState, keys: list[bytes], lwm: int) -> None:
    """A live write came before the transfer that covers it, and the transfer did not tell of its key: it was deleted.

    Its delete came before the transfer began, and the supplier needed the tombstone no more.
    """
    for key in keys:
        held = store.get(fragment.name, key)
        if held is not None and held.counter <= lwm:
            probe("replica.unconfirmed_row_dropped")
            store.set(fragment.name, key, GONE)
            fragment.drop_tombstone(key)
    fragment.suspects = NOTHING


def drop_tombstones(store: LayeredStore, fragment: FragmentState, keys: Sequence[bytes]) -> int:
    """A delete that every in-sync copy has needs no tombstone: nothing older can arrive any more. How many went."""
    stable, tombstones = fragment.stable, fragment.tombstones
    droppable = [key for key in keys if 0 < tombstones.get(key, 0) <= stable]
    for key in droppable:
        counter = fragment.drop_tombstone(key)
        fragment.dropped = max(fragment.dropped, counter)
        held = store.get(fragment.name, key)
        if held is not None and held.counter == counter and held.value is None:
            store.set(fragment.name, key, GONE)
    return len(droppable)
