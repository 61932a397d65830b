"""A store of checkpoints in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from engine.state.store import GONE, NOTHING, CheckpointImage, Entry, Loaded, Row, Sums, is_row, summed
from rebalance.contents import MASK, Summed, row_digest
from wal.ids import Fragment

_LEAF = 256  # rows


class _Leaf(NamedTuple):
    keys: list[bytes]  # ascending; never empty
    entries: dict[bytes, Entry]


class _Rows:
    """The rows of a fragment in the order of their keys. They never change: what `changed` returns shares every leaf in
    which nothing is new, so that an image of a disk costs what was written since, not what it holds."""

    def __init__(self, leaves: Sequence[_Leaf] = ()) -> None:
        self._leaves = leaves
        self._firsts = [leaf.keys[0] for leaf in leaves]

    def get(self, key: bytes) -> Entry | None:
        at = bisect_right(self._firsts, key) - 1
        return self._leaves[at].entries.get(key) if at >= 0 else None

    def up(self, start: bytes) -> Iterator[Row]:
        """From `start` on."""
        first = max(0, bisect_right(self._firsts, start) - 1)
        for at in range(first, len(self._leaves)):
            keys, entries = self._leaves[at]
            for key in keys[bisect_left(keys, start) if at == first else 0 :]:
                yield key, entries[key]

    def down(self, end: bytes) -> Iterator[Row]:
        """From the last one before `end` back."""
        last = bisect_left(self._firsts, end) - 1
        for at in range(last, -1, -1):
            keys, entries = self._leaves[at]
            for key in reversed(keys[: bisect_left(keys, end)] if at == last else keys):
                yield key, entries[key]

    def changed(self, changes: Mapping[bytes, Entry | None]) -> _Rows:
        """These rows after `changes`; None and GONE take a row away."""
        if not changes:
            return self
        touched: dict[int, list[bytes]] = {}
        for key in changes:
            touched.setdefault(max(0, bisect_right(self._firsts, key) - 1), []).append(key)
        leaves: list[_Leaf] = []
        for at, leaf in enumerate(self._leaves or (_Leaf([], {}),)):
            if (keys := touched.get(at)) is None:
                leaves.append(leaf)
                continue
            entries = dict(leaf.entries)
            for key in keys:
                entry = changes[key]
                if entry is None or entry is GONE:
                    entries.pop(key, None)
                else:
                    entries[key] = entry
            ordered = sorted(entries)
            size = _LEAF if len(ordered) > 2 * _LEAF else 2 * _LEAF
            parts = (ordered[begin : begin + size] for begin in range(0, len(ordered), size))
            leaves += [_Leaf(part, {key: entries[key] for key in part}) for part in parts]
        return _Rows(leaves)


_NO_ROWS = _Rows()


class MemoryStore:
    """A store of checkpoints in memory, for simulations and throwaway nodes: same meaning, nothing on disk.

    A copy shares the rows of every fragment with its original.
    """

    def __init__(self) -> None:
        self._lsn = 0
        self._node: dict[str, bytes] = {}
        self._fragments: dict[Fragment, bytes] = {}
        self._partitions: dict[int, bytes] = {}
        self._rows: dict[Fragment, _Rows] = {}
        self._sums: dict[Fragment, Sums] = {}
        self._written: list[CheckpointImage] = []  # and not seen by reads yet

    def load(self) -> Loaded:
        """What the last checkpoint holds."""
        return Loaded(self._lsn, dict(self._node), dict(self._fragments), dict(self._partitions))

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry."""
        return self._rows.get(fragment, _NO_ROWS).get(key)

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending; or `down`: < `start`, descending."""
        rows = self._rows.get(fragment, _NO_ROWS)
        return list(islice(rows.down(start) if down else rows.up(start), limit))

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """What up to `limit` rows with keys >= `start` contribute to the contents (0: a tombstone)."""
        return [(key, row_digest(key, entry)) for key, entry in self.scan(fragment, start, limit)]

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` keys >= `start`, ascending, each with a 0."""
        return [(key, 0) for key, _ in self.scan(fragment, start, limit)]

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment."""
        return self._sums.get(fragment, NOTHING).contents if fragment in self._fragments else None

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """What some rows add up to."""
        return summed(self.scan(fragment, start, limit), limit)

    def live(self, fragment: Fragment) -> int | None:
        """How many rows of a fragment are no tombstones."""
        return self._sums.get(fragment, NOTHING).live if fragment in self._fragments else None

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint, as soon as it is to be seen."""
        self._written.append(image)

    def _apply(self, image: CheckpointImage) -> None:
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
            self._sums.pop(fragment, None)
        for fragment, changes in image.rows.items():
            rows = self._rows.get(fragment, _NO_ROWS)
            contents, live = self._sums.get(fragment, NOTHING)
            for key, entry in changes.items():
                held = rows.get(key)
                contents += row_digest(key, entry) - row_digest(key, held)
                live += is_row(entry) - is_row(held)
            self._rows[fragment] = rows.changed(changes)
            self._sums[fragment] = Sums(contents & MASK, live)

    def renew(self) -> None:
        """A checkpoint was written: let reads see it."""
        for image in self._written:
            self._apply(image)
        self._written = []

    def close(self) -> None:
        """Nothing to release."""

    def copy(self) -> MemoryStore:
        """An independent store with the same contents: an old disk image."""
        twin = MemoryStore()
        twin._lsn, twin._node = self._lsn, dict(self._node)
        twin._fragments, twin._partitions = dict(self._fragments), dict(self._partitions)
        twin._rows, twin._sums, twin._written = dict(self._rows), dict(self._sums), list(self._written)
        twin.renew()
        return twin
