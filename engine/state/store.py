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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from engine.state.held import FIT_WORK, Held, Weighing, sum_some_of
from engine.state.layer import Layer, RowsOf, merged
from engine.state.layers import Layers
from engine.state.loaded import Encoded, Loaded, Loading
from rebalance.by_fragment import ByFragment
from rebalance.by_key import FEW, copy_of
from rebalance.contents import Newest, Reading, Readings, Summed, Walk, row_digest
from wal.ids import Fragment, Namespace


class Entry(Struct, frozen=True, gc=False):
    """A key's newest version. A value of None is a tombstone: the key was deleted by this update."""

    epoch: int
    counter: int
    value: bytes | None


Row: TypeAlias = tuple[bytes, Entry]
Below: TypeAlias = "Callable[[Fragment, bytes, int], list[tuple[bytes, int]]]"

GONE = Entry(0, 0, None)
"""The key was removed without an update of its own (an undo, or a tombstone whose time is over)."""

ROW_OVERHEAD_BYTES = 120
"""What an entry weighs in memory beside its key and value; decides when a checkpoint is due by size."""

LOOKED_MAX = 1_000
"""Entries that one page of a scan passes, whatever it finds: tombstones may lie in its way by the ten thousand."""
ROWS_LEAST = 8
"""Of which a page looks at so many first, or more; then at four times as many, for what comes first may be deleted."""
SORTED_MAX = 4_000
"""New keys of a layer that one page puts in order."""


def is_row(entry: Entry | None) -> bool:
    """Whether a key has a value."""
    return entry is not None and entry.value is not None


def is_dead(entry: Entry | None) -> bool:
    """Whether it says of a key that it has none."""
    return entry is not None and entry.value is None


class Page(NamedTuple):
    """Some rows of a fragment, in order. `next`: where to go on, None if no row is left; `work`: entries looked at.

    A page may be empty and have a next one: what lies in between was deleted, or was not in order yet. Of a descending one
    `next` is the key above what is left, which is not itself.
    """

    rows: list[Row]
    next: bytes | None
    work: int


class Glance(NamedTuple):
    """What was asked of some entries of a fragment, in order of their keys; `next` and `work` as of a page."""

    found: list[tuple[bytes, int]]
    next: bytes | None
    work: int


class CheckpointImage(NamedTuple):
    """Everything one checkpoint changes, applied by a store in one atomic, durable transaction.

    `lsn`: the log up to here is contained. `node`: named values of the node as a whole. `fragments` and `partitions`:
    encoded states that changed (None: the fragment is gone). `cleared`: fragments whose rows go before `rows` come.
    `rows`: None or GONE as entry removes the key. `weight`: of these in memory, in bytes. `hurried`: somebody waits.
    """

    lsn: int
    node: Mapping[str, Encoded]
    fragments: Mapping[Fragment, Encoded | None]
    partitions: Mapping[int, Encoded]
    cleared: Collection[Fragment]
    rows: Mapping[Fragment, Mapping[bytes, Entry | None]]
    weight: int = 0
    hurried: bool = False


class BaseStore(Weighing, Protocol):
    """A store of checkpoints. `write` is called from another thread than the rest, one call at a time."""

    def load(self) -> Loaded:
        """What the last checkpoint holds; lsn 0 and empty if there is none. Raises CorruptionError."""
        ...

    def loading(self) -> Loading:
        """The same, one state after the other, while nothing is written. Raises CorruptionError where it meets damage."""
        ...

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry. Raises CorruptionError if its checksum does not match."""
        ...

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending; or `down`: < `start`, descending."""
        ...

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """What up to `limit` rows with keys >= `start` contribute to the contents (0: a tombstone)."""
        ...

    def held(self, fragment: Fragment, keys: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """The same of those of these keys, ascending, that are found; that the others are not there is not proven."""
        ...

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` keys >= `start`, ascending, each with a 0. Their rows are not opened."""
        ...

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment; None if it is not known (no state of it, or one of an older version)."""
        ...

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """What up to `limit` rows with keys >= `start` add up to; damage is told, and not raised."""
        ...

    def live(self, fragment: Fragment) -> int | None:
        """How many of a fragment's rows are no tombstones; None if it is not known (an older version wrote its state)."""
        ...

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint: all of it durably, or nothing. Reads do not see it before `renew`."""
        ...

    def renew(self) -> None:
        """A checkpoint was written: let reads see it."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


class LayeredStore(Layers[Entry]):
    """The node's view: base, frozen, active, newest wins."""

    base: BaseStore

    def __init__(self, base: BaseStore) -> None:
        base.renew()
        super().__init__(base, Entry)
        self._thawed, self._readings = 0, Readings()  # how often; and what is read meanwhile

    @property
    def active_bytes(self) -> int:
        """What was applied since the last checkpoint began, as it weighs in memory."""
        return self._active.bytes

    def begin(self, fragment: Fragment, counter: int) -> None:
        """A fragment, to which nothing above a counter was applied, may change."""
        self._active.since.setdefault(fragment, counter)

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """A key's newest entry, tombstones included; None if there is none."""
        active = self._active
        part = active.opened.parts.get(fragment[1])  # as `look` has it: each read comes through here
        rows = part.get(fragment[0]) if part is not None else None
        entry = rows.get(key) if rows is not None else active.find(fragment, key) if active.packed.parts else None
        if entry is not None:
            return entry if entry is not GONE else None
        if fragment in active.cleared:
            return None
        frozen = self._frozen
        if frozen is not None:
            rows = frozen.opened.get(fragment)
            entry = rows.get(key) if rows is not None else frozen.find(fragment, key)
            if entry is not None:
                return entry if entry is not GONE else None
            if fragment in frozen.cleared:
                return None
        return self.base.get(fragment, key)

    def put(self, fragment: Fragment, key: bytes, entry: Entry) -> None:
        """Give a key its newest entry, with a value."""
        active = self._active
        part = active.opened.parts.get(fragment[1])  # as `get` has it: each update of each copy comes through here
        rows = part.get(fragment[0]) if part is not None else None
        if rows is None or (len(rows) >= FEW and isinstance(rows, dict)):
            rows = active.begin(fragment, 1)
        if active.dead.parts and fragment in active.dead:
            active.bury(fragment, -is_dead(rows.get(key)))
        rows[key] = entry
        active.bytes += ROW_OVERHEAD_BYTES + len(key) + len(entry.value or b"")

    def layer_of(self, fragment: Fragment, more: int = 0) -> tuple[RowsOf[Entry], int]:
        """The fragment's active rows, and how many are dead, for who applies so many `more`: `bury` what dies, `weigh` what
        comes."""
        active = self._active
        rows = active.opened.get(fragment)
        if rows is None or len(rows) + more > FEW:
            rows = active.begin(fragment, more)
        return rows, active.dead.get(fragment, 0)

    def pack(self, fragment: Fragment) -> None:
        """Nothing comes to a fragment for now: what lies above the last checkpoint is to take little memory."""
        self._active.pack(fragment)

    def bury(self, fragment: Fragment, more: int) -> None:
        """Of so many more keys the newest entry is no row, among those of the active layer; or of so many fewer."""
        if more:
            self._active.bury(fragment, more)

    def set(self, fragment: Fragment, key: bytes, entry: Entry) -> None:
        """Give a key any entry, also one that is no row: a tombstone, or `GONE`."""
        rows, _ = self.layer_of(fragment, 1)
        self.bury(fragment, (entry.value is None) - is_dead(rows.get(key)))
        rows[key] = entry

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

    def page(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> Page:
        """The same as far as one turn may go: it looks at no more than `LOOKED_MAX` entries, and `limit`, and of the store
        below at no more than about `engine.state.held.FIT_BYTES`. `down`: the keys below `start`, descending."""
        seen = self._in_order(fragment)
        if seen is None:
            return Page([], start, SORTED_MAX)
        layers, below, work = seen
        sources: list[Callable[..., list[Row]]] = [layer.some_from for layer in layers]
        if below:
            sources.append(self.base.scan)
        found: list[Row] = []
        looked, least, beside = 0, ROWS_LEAST, 0
        at: bytes | None = start
        while at is not None and len(found) < limit and looked < LOOKED_MAX + limit and beside < FIT_WORK:
            some = min(max(limit - len(found), least), LOOKED_MAX + limit - looked)
            least *= 4
            if below:
                some, large = self.base.fitting(fragment, at, some, down=down)
                beside += large
            rows, at = merged([source(fragment, at, some, down=down) for source in sources], some, down=down)
            looked += len(rows)
            found += [row for row in rows if row[1] is not GONE and row[1].counter]
        if len(found) > limit:
            at = found[limit - 1][0] + (b"" if down else b"\0")
            del found[limit:]
        return Page(found, at, work + looked + beside)

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> Glance:
        """What up to `limit` entries with keys >= `start` contribute to the contents, 0 where there is no row.

        For who needs no row itself: nothing is made of those that lie in the store below.
        """
        limit, large = self.base.fitting(fragment, start, limit)
        return self._glance(fragment, start, limit, self.base.digests, row_digest, large=large)

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> Glance:
        """Up to `limit` keys >= `start`, each with a 0, whatever became of them. No row of the store below is opened."""
        return self._glance(fragment, start, limit, self.base.keys, lambda _key, _entry: 0)

    def _glance(
        self,
        fragment: Fragment,
        start: bytes,
        limit: int,
        below: Below,
        above: Callable[[bytes, Entry], int],
        *,
        large: int = 0,
    ) -> Glance:
        seen = self._in_order(fragment)
        if seen is None:
            return Glance([], start, SORTED_MAX)
        layers, has_below, work = seen
        sources = [[(key, above(key, entry)) for key, entry in it.some_from(fragment, start, limit)] for it in layers]
        if has_below:
            sources.append(below(fragment, start, limit))
        found, at = merged(sources, limit, down=False)
        return Glance(found, at, work + len(found) + large)

    def _in_order(self, fragment: Fragment) -> tuple[list[Layer[Entry]], bool, int] | None:
        """The layers that have some of a fragment, the newest first, whether the store below is seen, and how many keys
        were put in order; None if some are left to be."""
        there: list[Layer[Entry]] = []
        work = 0
        for layer in self.layers:
            if layer.has(fragment):
                new = layer.put_in_order(fragment, SORTED_MAX)
                if new > SORTED_MAX:
                    return None
                work += new
                there.append(layer)
            if layer.cleared.parts and fragment in layer.cleared:
                return there, False, work  # whatever lies below
        return there, True, work

    def walk(self, fragment: Fragment) -> Callable[[], Walk | None]:
        """What a fragment contains now, to be summed up by who asks; None: the store below does not know its own.

        What changed since the last checkpoint began is copied, part by part; nothing is hashed, or looked up below, before
        that. `walked` says the sum; of a walk that is `overtaken` no step is taken.
        """
        alone = fragment in self._active.cleared
        over: Mapping[bytes, Entry] = copy_of(self._active.rows.get(fragment, {}))
        under: Mapping[bytes, Entry] = {}
        if self._frozen is not None and not alone:
            under = self._frozen.rows.get(fragment, {})
            alone = fragment in self._frozen.cleared
        changes = Newest(over, under)
        if alone:
            return partial(Walk, None, changes, None, self._thawed if under else None)
        return partial(self._begin, fragment, changes, self._thawed)

    def _begin(self, fragment: Fragment, changes: Newest, thawed: int) -> Walk | None:
        stored = self.base.contents(fragment)
        if not stored and ((stored == 0 and not changes.left) or not self.base.scan(fragment, b"", 1)):
            return Walk(0, changes, None, thawed)
        if stored is None:
            return None
        return Walk(stored, changes, Held(self.base, fragment), thawed)

    def overtaken(self, walk: Walk) -> bool:
        """Whether it rests on the store below, or on what a checkpoint was to take down, and one has come since."""
        return walk.thawed not in (None, self._thawed)

    def walked(self, walk: Walk) -> int | None:
        """The digest that a walk came to; None if it was overtaken."""
        return None if self.overtaken(walk) else walk.digest

    def changed(self, fragment: Fragment) -> int:
        """How many entries of a fragment lie above the store below."""
        return sum(len(layer.rows.get(fragment, ())) for layer in self.layers)

    def prove(self, fragment: Fragment) -> Reading:
        """Begin to read what the store below holds of a fragment; of one that was cleared here that is nothing."""
        if self._is_cleared(fragment):
            return Reading(lambda: None, lambda _start, _limit: Summed(0, 0, None))
        return self._readings.begin(
            fragment,
            lambda: None if self._is_cleared(fragment) else self.base.contents(fragment),
            partial(sum_some_of, self.base, fragment),
        )

    # Checkpoints.

    def freeze(self) -> tuple[Collection[Fragment], Mapping[Fragment, Mapping[bytes, Entry]]]:
        """Begin a checkpoint: what to clear and what to write. The layer stays readable until `thaw`."""
        assert self._frozen is None, "a checkpoint is under way"
        self._frozen, self._active = self._active, Layer(Entry)
        return self._frozen.cleared, self._frozen.rows

    def thaw(self) -> Iterator[dict[Namespace, Any]]:
        """The checkpoint is in the base: forget the frozen layer. What it had, for whoever empties it in pieces."""
        assert self._frozen is not None, "no checkpoint is under way"
        self._readings.overtake(self._frozen.changes)
        gone = chain(self._frozen.parts(), self._live.taken())
        self._frozen, self._live, self._thawed = None, ByFragment(), self._thawed + 1
        self.base.renew()
        return gone
