"""A store of checkpoints in memory."""

from __future__ import annotations

from itertools import islice

from sortedcontainers import SortedDict

from engine.state.store import GONE, NOTHING, CheckpointImage, Entry, Loaded, Row, Sums, is_row, summed
from rebalance.contents import MASK, Summed, row_digest
from wal.ids import Fragment


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
        self._sums: dict[Fragment, Sums] = {}
        self._written: list[CheckpointImage] = []  # and not seen by reads yet

    def load(self) -> Loaded:
        """What the last checkpoint holds."""
        return Loaded(self._lsn, dict(self._node), dict(self._fragments), dict(self._partitions))

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry."""
        rows = self._rows.get(fragment)
        return rows.get(key) if rows else None

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending; or `down`: < `start`, descending."""
        rows = self._rows.get(fragment)
        if not rows:
            return []
        keys = rows.irange(None, start, (True, False), reverse=True) if down else rows.irange(start)
        return [(key, rows[key]) for key in islice(keys, limit)]

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
            self._copied.pop(fragment, None)
            self._sums.pop(fragment, None)
        for fragment, changes in image.rows.items():
            rows = self._rows.setdefault(fragment, SortedDict())
            if fragment in self._copied:
                del self._copied[fragment]
                rows = self._rows[fragment] = rows.copy()
            contents, live = self._sums.get(fragment, NOTHING)
            for key, entry in changes.items():
                held = rows.get(key)
                contents += row_digest(key, entry) - row_digest(key, held)
                live += is_row(entry) - is_row(held)
                if entry is None or entry is GONE:
                    rows.pop(key, None)
                else:
                    rows[key] = entry
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
        twin._rows, twin._copied, self._copied = dict(self._rows), dict.fromkeys(self._rows), dict.fromkeys(self._rows)
        twin._sums, twin._written = dict(self._sums), list(self._written)
        twin.renew()
        return twin
