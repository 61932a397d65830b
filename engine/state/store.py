"""What a node can read: the last checkpoint, and over it everything that was applied since.

```
 reads ->  active   applied since the checkpoint that is being written, or the last one
           frozen   being written by the checkpoint under way (None at other times)
           base     the last finished checkpoint: LMDB, or a memory store of the same meaning
```

The node reads and changes this synchronously inside a turn; only a checkpoint touches the disk, and it does so with
values that no longer change. So the store lags behind the log by as much as one checkpoint, and never leads it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct
from sortedcontainers import SortedDict, SortedList

from rebalance.contents import MASK, Walk, row_digest
from wal.ids import Fragment


class Entry(Struct, frozen=True, gc=False):
    """A key's newest version. A value of None is a tombstone: the key was deleted by this update."""

    epoch: int
    counter: int
    value: bytes | None


Row: TypeAlias = tuple[bytes, Entry]

GONE = Entry(0, 0, None)
"""The key was removed without an update of its own (an undo, or a tombstone whose time is over)."""

_KEY: Callable[[Row], bytes] = itemgetter(0)

ROW_OVERHEAD_BYTES = 120
"""What an entry weighs in memory beside its key and value; decides when a checkpoint is due by size."""

LOOKED_MAX = 1_000
"""Entries that one page of a scan passes, whatever it finds: tombstones may lie in its way by the ten thousand."""
ROWS_LEAST = 64
"""Of which a page looks at so many at a time, or more: what comes first may have been deleted."""
SORTED_MAX = 4_000
"""New keys of a layer that one page puts in order."""


class Page(NamedTuple):
    """Some rows of a fragment, in order. `next`: where to go on, None if no row is left; `work`: entries looked at.

    A page may be empty and have a next one: what lies in between was deleted, or was not in order yet.
    """

    rows: list[Row]
    next: bytes | None
    work: int


class CheckpointImage(NamedTuple):
    """Everything one checkpoint changes, applied by a store in one atomic, durable transaction.

    `lsn`: the log up to here is contained. `node`: named values of the node as a whole. `fragments` and `partitions`:
    encoded states that changed (None: the fragment is gone). `cleared`: fragments whose rows go before `rows` come.
    `rows`: None or GONE as entry removes the key. `weight`: of the rows in memory, about, in bytes.
    """

    lsn: int
    node: dict[str, bytes]
    fragments: dict[Fragment, bytes | None]
    partitions: dict[int, bytes]
    cleared: list[Fragment]
    rows: Mapping[Fragment, Mapping[bytes, Entry | None]]
    weight: int = 0


class Loaded(NamedTuple):
    """What a store held when it was opened."""

    lsn: int
    node: dict[str, bytes]
    fragments: dict[Fragment, bytes]
    partitions: dict[int, bytes]


class BaseStore(Protocol):
    """A store of checkpoints. `write` is called from another thread than the rest, one call at a time."""

    def load(self) -> Loaded:
        """What the last checkpoint holds; lsn 0 and empty if there is none. Raises CorruptionError."""
        ...

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry. Raises CorruptionError if its checksum does not match."""
        ...

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending."""
        ...

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment; None if it is not known (no state of it, or one of an older version)."""
        ...

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint: all of it durably, or nothing."""
        ...

    def renew(self) -> None:
        """A checkpoint was written: let reads see it."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


class MemoryStore:
    """A store of checkpoints in memory, for simulations and throwaway nodes: same meaning, nothing on disk.

    A copy shares the rows of every fragment with its original, until one of the two writes to it.
    """

    def __init__(self) -> None:
        self._lsn = 0
        self._node: dict[str, bytes] = {}
        self._fragments: dict[Fragment, bytes] = {}
        self._partitions: dict[int, bytes] = {}
        self._rows: dict[Fragment, SortedDict[bytes, Entry]] = {}
        self._copied: dict[Fragment, None] = {}  # of these the rows are a copy's, too, and not to be changed
        self._contents: dict[Fragment, int] = {}

    def load(self) -> Loaded:
        """What the last checkpoint holds."""
        return Loaded(self._lsn, dict(self._node), dict(self._fragments), dict(self._partitions))

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry."""
        rows = self._rows.get(fragment)
        return rows.get(key) if rows else None

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending."""
        rows = self._rows.get(fragment)
        if not rows:
            return []
        found: list[Row] = []
        for key in rows.irange(start):
            if len(found) >= limit:
                break
            found.append((key, rows[key]))
        return found

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment."""
        return self._contents.get(fragment, 0) if fragment in self._fragments else None

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint."""
        self._lsn = image.lsn
        self._node.update(image.node)
        self._partitions.update(image.partitions)
        for fragment, data in image.fragments.items():
            if data is None:
                self._fragments.pop(fragment, None)
            else:
                self._fragments[fragment] = data
        for fragment in image.cleared:
            self._rows.pop(fragment, None)
            self._copied.pop(fragment, None)
            self._contents.pop(fragment, None)
        for fragment, changes in image.rows.items():
            rows = self._rows.setdefault(fragment, SortedDict())
            if fragment in self._copied:
                del self._copied[fragment]
                rows = self._rows[fragment] = rows.copy()
            contents = self._contents.get(fragment, 0)
            for key, entry in changes.items():
                contents += row_digest(key, entry) - row_digest(key, rows.get(key))
                if entry is None or entry is GONE:
                    rows.pop(key, None)
                else:
                    rows[key] = entry
            self._contents[fragment] = contents & MASK

    def renew(self) -> None:
        """Reads see a checkpoint as soon as it is written."""

    def close(self) -> None:
        """Nothing to release."""

    def copy(self) -> MemoryStore:
        """An independent store with the same contents: an old disk image."""
        twin = MemoryStore()
        twin._lsn, twin._node = self._lsn, dict(self._node)
        twin._fragments, twin._partitions = dict(self._fragments), dict(self._partitions)
        twin._rows, twin._copied, self._copied = dict(self._rows), dict.fromkeys(self._rows), dict.fromkeys(self._rows)
        twin._contents = dict(self._contents)
        return twin


class _Layer:
    """Entries applied since a point in time, over a store that lacks them."""

    __slots__ = ("_fresh", "_order", "bytes", "cleared", "rows")

    def __init__(self) -> None:
        self.rows: dict[Fragment, dict[bytes, Entry]] = {}
        self.cleared: dict[Fragment, None] = {}
        self.bytes = 0
        self._order: dict[Fragment, SortedList[bytes]] = {}
        self._fresh: dict[Fragment, list[bytes]] = {}  # known to be new, and not in order yet

    def clear(self, fragment: Fragment) -> None:
        """Forget all rows of a fragment, here and below."""
        self.cleared[fragment] = None
        self.rows.pop(fragment, None)
        self._order.pop(fragment, None)
        self._fresh.pop(fragment, None)

    def put_in_order(self, fragment: Fragment, most: int) -> int:
        """Sort up to `most` of the keys that came since the last scan; how many there were, above `most` if more are left.

        Keys are never taken out of a layer, and a dict keeps them as they came: so the new ones are the last ones.
        """
        rows = self.rows.get(fragment)
        if not rows:
            return 0
        order = self._order.get(fragment)
        if order is None:
            order = self._order[fragment] = SortedList()
        fresh = self._fresh.get(fragment, [])
        new = len(rows) - len(order) - len(fresh)
        if new:
            fresh.extend(islice(reversed(rows), new))
        if not fresh:
            return 0
        order.update(fresh[-most:])
        count = len(fresh)
        del fresh[-most:]
        if fresh:
            self._fresh[fragment] = fresh
        else:
            self._fresh.pop(fragment, None)
        return count

    def some_from(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` of the layer's rows of one fragment with keys >= start, ascending; they were put in order."""
        rows = self.rows.get(fragment)
        if not rows:
            return []
        order = self._order[fragment]
        assert len(order) == len(rows), "a layer is put in order before it is walked"
        return [(key, rows[key]) for key in islice(order.irange(start), limit)]


class LayeredStore:
    """The node's view: base, frozen, active, newest wins."""

    def __init__(self, base: BaseStore) -> None:
        self.base = base
        self._active = _Layer()
        self._frozen: _Layer | None = None

    @property
    def active_bytes(self) -> int:
        """What was applied since the last checkpoint began, as it weighs in memory."""
        return self._active.bytes

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """A key's newest entry, tombstones included; None if there is none."""
        active = self._active
        rows = active.rows.get(fragment)
        if rows is not None:
            entry = rows.get(key)
            if entry is not None:
                return entry if entry is not GONE else None
        if fragment in active.cleared:
            return None
        frozen = self._frozen
        if frozen is not None:
            rows = frozen.rows.get(fragment)
            if rows is not None:
                entry = rows.get(key)
                if entry is not None:
                    return entry if entry is not GONE else None
            if fragment in frozen.cleared:
                return None
        return self.base.get(fragment, key)

    def put(self, fragment: Fragment, key: bytes, entry: Entry) -> None:
        """Give a key its newest entry, with a value."""
        active = self._active
        rows = active.rows.get(fragment)
        if rows is None:
            rows = active.rows[fragment] = {}
        rows[key] = entry
        value = entry.value
        active.bytes += ROW_OVERHEAD_BYTES + len(key) + (len(value) if value is not None else 0)

    def layer_of(self, fragment: Fragment) -> dict[bytes, Entry]:
        """The fragment's active rows, to be changed by whoever applies; account for them with `weigh`."""
        rows = self._active.rows.get(fragment)
        if rows is None:
            rows = self._active.rows[fragment] = {}
        return rows

    def weigh(self, size: int) -> None:
        """`size` more bytes lie in the active layer."""
        self._active.bytes += size

    def clear(self, fragment: Fragment) -> None:
        """Forget all rows of a fragment."""
        self._active.clear(fragment)

    def scan(self, fragment: Fragment, start: bytes, limit: int) -> list[Row]:
        """Up to `limit` rows with keys >= start, ascending, tombstones included, however much lies in the way."""
        found: list[Row] = []
        at: bytes | None = start
        while at is not None and len(found) < limit:
            page = self.page(fragment, at, limit - len(found))
            found += page.rows
            at = page.next
        return found

    def page(self, fragment: Fragment, start: bytes, limit: int) -> Page:
        """The same as far as one turn may go: it looks at no more than `LOOKED_MAX` entries, and `limit`."""
        active, frozen = self._active, self._frozen
        layers = [active]
        if frozen is not None and fragment not in active.cleared:
            layers.append(frozen)
        work = 0
        for layer in layers:
            new = layer.put_in_order(fragment, SORTED_MAX)
            if new > SORTED_MAX:
                return Page([], start, SORTED_MAX)
            work += new
        sources = [layer.some_from for layer in layers]
        if not any(fragment in layer.cleared for layer in layers):
            sources.append(self.base.scan)
        found: list[Row] = []
        looked = 0
        at: bytes | None = start
        while at is not None and len(found) < limit and looked < LOOKED_MAX + limit:
            some = min(max(limit - len(found), ROWS_LEAST), LOOKED_MAX + limit - looked)
            rows, at = _merged([source(fragment, at, some) for source in sources], some)
            looked += len(rows)
            found += [row for row in rows if row[1] is not GONE and row[1].counter]
        if len(found) > limit:
            at = found[limit - 1][0] + b"\0"
            del found[limit:]
        return Page(found, at, work + looked)

    def walk(self, fragment: Fragment) -> Walk | None:
        """Begin to sum up the contents of a fragment as they are now; None if the store below does not know its own.

        O(rows that were changed since the last checkpoint), and nothing is hashed yet. `walked` says what came of it.
        """
        changes = dict(self._active.rows.get(fragment, ()))
        alone = fragment in self._active.cleared
        if self._frozen is not None and not alone:
            changes = self._frozen.rows.get(fragment, {}) | changes
            alone = fragment in self._frozen.cleared
        if alone:
            return Walk(None, list(changes.items()), _nothing)
        stored = self.base.contents(fragment)
        if not stored and not self.base.scan(fragment, b"", 1):
            return Walk(0, list(changes.items()), _nothing)
        return Walk(stored, list(changes.items()), partial(self.base.get, fragment)) if stored is not None else None

    def walked(self, fragment: Fragment, walk: Walk) -> int | None:
        """The digest that a walk came to; None if a checkpoint has changed the store below meanwhile."""
        if walk.stored is not None and (self.base.contents(fragment) or 0) != walk.stored:
            return None
        return walk.digest

    # Checkpoints.

    def freeze(self) -> tuple[list[Fragment], dict[Fragment, dict[bytes, Entry]]]:
        """Begin a checkpoint: what to clear and what to write. The layer stays readable until `thaw`."""
        assert self._frozen is None, "a checkpoint is under way"
        self._frozen, self._active = self._active, _Layer()
        return list(self._frozen.cleared), self._frozen.rows

    def thaw(self) -> None:
        """The checkpoint is in the base: forget the frozen layer."""
        assert self._frozen is not None, "no checkpoint is under way"
        self._frozen = None
        self.base.renew()


def _nothing(_: bytes) -> Entry | None:
    return None


def _merged(sources: list[list[Row]], limit: int) -> tuple[list[Row], bytes | None]:
    """The newest entry of each key, ascending, and where to go on; the newest source comes first.

    Each source was asked for `limit` rows: the others may have more only below the last one of those who gave as many.
    """
    full = [rows[-1][0] for rows in sources if len(rows) == limit]
    last = min(full) if full else None
    there = [rows for rows in sources if rows]
    if len(there) == 1:
        found = there[0]
    else:
        newest: dict[bytes, Entry] = {}
        for rows in reversed(there):
            newest.update(rows)
        found = sorted(newest.items(), key=_KEY)
        if last is not None:
            del found[bisect_right(found, last, key=_KEY) :]
    return found, last + b"\0" if last is not None else None
