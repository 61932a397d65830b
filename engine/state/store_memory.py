"""A store of checkpoints in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from engine.state.held import fitted, summed
from engine.state.loaded import Loaded, Loading, whole
from engine.state.store import GONE, CheckpointImage, Entry, Row, is_row
from rebalance.contents import MASK, NOTHING, Summed, Sums, row_digest, rows_digest
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

    def held(self, keys: Iterable[bytes]) -> list[Row]:
        """Those of these keys that are there."""
        firsts, leaves, found = self._firsts, self._leaves, list[Row]()
        for key in keys if leaves else ():
            at = bisect_right(firsts, key) - 1
            if at >= 0 and (entry := leaves[at].entries.get(key)) is not None:
                found.append((key, entry))
        return found

    def up(self, start: bytes, limit: int) -> list[Row]:
        """So many, from `start` on."""
        found: list[Row] = []
        at = max(0, bisect_right(self._firsts, start) - 1)
        while at < len(self._leaves) and len(found) < limit:
            keys, entries = self._leaves[at]
            begin = 0 if found else bisect_left(keys, start)
            found += [(key, entries[key]) for key in keys[begin : begin + limit - len(found)]]
            at += 1
        return found

    def down(self, end: bytes, limit: int) -> list[Row]:
        """So many, from the last one before `end` back."""
        found: list[Row] = []
        at = bisect_left(self._firsts, end) - 1
        while at >= 0 and len(found) < limit:
            keys, entries = self._leaves[at]
            upto = len(keys) if found else bisect_left(keys, end)
            found += [(key, entries[key]) for key in reversed(keys[max(0, upto - limit + len(found)) : upto])]
            at -= 1
        return found

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
            if leaf.keys and entries.keys() == leaf.entries.keys():
                leaves.append(_Leaf(leaf.keys, entries))
                continue
            ordered = sorted(entries)
            if len(ordered) > 2 * _LEAF:
                parts = (ordered[begin : begin + _LEAF] for begin in range(0, len(ordered), _LEAF))
                leaves += [_Leaf(part, {key: entries[key] for key in part}) for part in parts]
            elif ordered:
                leaves.append(_Leaf(ordered, entries))
        return _Rows(leaves)


_NO_ROWS = _Rows()


def _size(entry: Entry | None) -> int:
    return len(entry.value) if entry is not None and entry.value is not None else 0


def _size_of(rows: list[Row]) -> int:
    return sum([len(entry.value or b"") for _, entry in rows])


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
        self.bytes_read = 0  # of values, so far: for who asks what that would take of a disk's pages

    def load(self) -> Loaded:
        """What the last checkpoint holds."""
        return self.loading().all()

    def loading(self) -> Loading:
        """The same, one state after the other."""
        return Loading(self._lsn, dict(self._node), self._fragments.items(), self._partitions.items())

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry."""
        entry = self._rows.get(fragment, _NO_ROWS).get(key)
        self.bytes_read += _size(entry)
        return entry

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending; or `down`: < `start`, descending."""
        found = self._some(fragment, start, limit, down=down)
        if found:
            self.bytes_read += _size_of(found)
        return found

    def _some(self, fragment: Fragment, start: bytes, limit: int, *, down: bool) -> list[Row]:
        rows = self._rows.get(fragment)
        if rows is None:
            return []
        return rows.down(start, limit) if down else rows.up(start, limit)

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """What up to `limit` rows with keys >= `start` contribute to the contents (0: a tombstone)."""
        return [(key, row_digest(key, entry)) for key, entry in self.scan(fragment, start, limit)]

    def held(self, fragment: Fragment, keys: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """The same of those of these keys that are there."""
        rows = self._rows.get(fragment, _NO_ROWS)
        found = rows.held(keys)
        self.bytes_read += _size_of(found)
        return [(key, row_digest(key, entry)) for key, entry in found]

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` keys >= `start`, ascending, each with a 0."""
        return [(key, 0) for key, _ in self._some(fragment, start, limit, down=False)]

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment."""
        return self._sums.get(fragment, NOTHING).contents if fragment in self._fragments else None

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """What some rows add up to."""
        return summed(self.scan(fragment, start, limit), limit)

    def fitting(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> tuple[int, int]:
        """How many of the rows that such a scan reads are read at once, and what they weigh."""
        if fragment not in self._rows:
            return limit, 0
        return fitted([len(entry.value or b"") for _, entry in self._some(fragment, start, limit, down=down)], limit)

    def fitting_of(self, fragment: Fragment, keys: Sequence[bytes]) -> tuple[int, int]:
        """The same of the rows of these keys."""
        rows = self._rows.get(fragment, _NO_ROWS)
        return fitted([_size(rows.get(key)) for key in keys], len(keys))

    def live(self, fragment: Fragment) -> int | None:
        """How many rows of a fragment are no tombstones."""
        return self._sums.get(fragment, NOTHING).live if fragment in self._fragments else None

    def write(self, image: CheckpointImage) -> None:
        """Apply a checkpoint, as soon as it is to be seen."""
        self._written.append(image)

    def _apply(self, image: CheckpointImage) -> None:
        self._lsn = image.lsn
        self._node.update({name: whole(data) for name, data in image.node.items()})
        self._partitions.update({number: whole(data) for number, data in image.partitions.items()})
        for fragment, data in image.fragments.items():
            if data is None:
                self._fragments.pop(fragment, None)
            else:
                self._fragments[fragment] = whole(data)
        for fragment in image.cleared:
            self._rows.pop(fragment, None)
            self._sums.pop(fragment, None)
        for fragment, changes in image.rows.items():
            rows = self._rows.get(fragment, _NO_ROWS)
            contents, live = self._sums.get(fragment, NOTHING)
            held, come = rows.held(changes), [(key, entry) for key, entry in changes.items() if entry is not None]
            contents += rows_digest(come) - rows_digest(held)
            live += sum(is_row(entry) for _, entry in come) - sum(is_row(entry) for _, entry in held)
            self._rows[fragment] = rows.changed(changes)
            self._sums[fragment] = Sums(contents & MASK, live)

    def renew(self) -> None:
        """A checkpoint was written: let reads see it."""
        for image in self._written:
            self._apply(image)
        self._written = []

    def close(self) -> None:
        """Nothing to release."""

    def copy(self) -> Self:
        """An independent store with the same contents: an old disk image."""
        twin = type(self)()
        twin._lsn, twin._node = self._lsn, dict(self._node)
        twin._fragments, twin._partitions = dict(self._fragments), dict(self._partitions)
        twin._rows, twin._sums, twin._written = dict(self._rows), dict(self._sums), list(self._written)
        twin.renew()
        return twin
