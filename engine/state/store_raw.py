"""The rows of a store as they lie in LMDB, unopened, and the one read transaction by which they are read.

What was in the way is told, and never passed over: `engine.state.store_lmdb` says what can be hidden, and how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from operator import gt, itemgetter, lt
from pathlib import Path
from threading import Lock
from typing import Any

import lmdb

from engine.state.held import FIT_BYTES, fitted
from engine.state.store_envelope import fragment_key, row_is_whole, row_seed
from engine.state.store_errors import StoreDamaged, damaged
from rebalance.ports import BYTES_OF_WORK
from wal.ids import Fragment

_KEY: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(0)
PROVEN_BYTES = 64 << 10
PROVEN_MAX = 1_024
"""Of a row with so many bytes it is known that it is whole, of so many of them: each neighbour of what is not found has to
be looked through, and one of 16 MiB takes as long as all else that a turn does."""
PREFIXES_KEPT = 4_096
"""Of so many fragments it is known with what their rows begin: it is made again in a microsecond."""


class RawReads:
    """The rows of one store, unopened. Invariant: `_txn` is a live read transaction from opening to closing.

    `_lock` is held for each read, and for a change of the map's size.
    """

    _rows: lmdb._Database
    _txn: lmdb.Transaction[bytes]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._large = False
        self._env: lmdb.Environment | None = None
        self._lock = Lock()
        self._prefixes: dict[Fragment, tuple[bytes, bytes, int]] = {}
        self._proven: dict[bytes, None] = {}  # large rows that were found whole in this transaction

    def prefix_of(self, fragment: Fragment) -> tuple[bytes, int]:
        """What the keys of a fragment's rows begin with, and the seed of their checksums."""
        prefix, _, seed = self._prefix(fragment)
        return prefix, seed

    def raw_rows(
        self, fragment: Fragment, start: bytes, limit: int, upper: bytes = b""
    ) -> tuple[list[tuple[bytes, bytes]], list[StoreDamaged]]:
        """Up to `limit` rows as they are stored, and what was in the way; a row with a changed key does not end it.

        Their keys are below `upper`, if that is given.

        The cursor does not outlive the call, so that a checkpoint may follow.
        """
        prefix, end, _ = self._prefix(fragment)
        if upper:
            end = prefix + upper
        seek = prefix + start
        whole = self._ascending(seek, end, limit)
        if whole is not None:
            return whole, []
        last = b""
        found: list[tuple[bytes, bytes]] = []
        damages: list[StoreDamaged] = []
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                if not cursor.set_range(seek):
                    return found, damages
                for full, raw in cursor.iternext():
                    if not (seek <= full < end and full > last):
                        if not row_is_whole(full, raw):
                            damages.append(damaged(self.path, f"expected one of its rows, found {full!r}", fragment))
                            damages[-1].found = full
                            continue
                        if full >= end:
                            break
                        if full < seek or row_is_whole(*found[-1]):
                            damages.append(damaged(self.path, f"expected ascending rows, found {full!r}", fragment))
                            break
                        # It is the row before that lies about its key; whoever opens that one is told.
                    last = full
                    found.append((full, raw))
                    if len(found) == limit:
                        break
        except lmdb.Error as error:
            damages.append(self._unreadable("LMDB cannot read on", error, fragment, last[len(prefix) :] or start))
        return found, damages

    def _raw_down(
        self, fragment: Fragment, start: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], list[StoreDamaged]]:
        """The rows below a key, descending, as they are stored, or what was in the way."""
        prefix = self._prefix(fragment)[0]
        seek = prefix + start
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                if not (cursor.prev() if cursor.set_range(seek) else cursor.last()):
                    return [], []
                found = list(islice(takewhile((prefix,).__le__, cursor.iterprev()), limit))
                before = cursor.item()
        except lmdb.Error as error:
            return [], [self._unreadable("LMDB cannot read on", error, fragment, start)]
        keys = list(map(_KEY, found))
        descend = not keys or (keys[0] < seek and all(map(gt, keys, islice(keys, 1, None))))
        if not descend or (len(found) < limit and before[0] and not row_is_whole(*before)):
            at = keys[-1][len(prefix) :] if keys else start
            return [], [damaged(self.path, "expected descending rows, found another, or a damaged one", fragment, at)]
        return found, []

    def _ascending(self, seek: bytes, end: bytes, limit: int, *, values: bool = True) -> list[Any] | None:
        """The same rows, or their keys alone, where nothing is in the way, which is nearly always, at half the cost; None
        where something is."""
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                if not cursor.set_range(seek):
                    return []
                found: list[Any]
                if values:
                    found = list(islice(takewhile((end,).__gt__, cursor.iternext()), limit))
                else:
                    found = list(islice(takewhile(end.__gt__, cursor.iternext(values=False)), limit))
                after = cursor.item()
        except lmdb.Error:
            return None
        keys: list[bytes] = list(map(_KEY, found)) if values else found
        if len(found) < limit and after[0] and not row_is_whole(*after):
            return None  # it may be one of these rows, under another name
        if keys and not (keys[0] >= seek and all(map(lt, keys, islice(keys, 1, None)))):
            return None
        return found

    def fitting(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> tuple[int, int]:
        """How many of the rows that such a scan reads are read at once, and what they weigh; 0 where all are small."""
        if not self._large:
            return limit, 0
        prefix = self._prefix(fragment)[0]
        seek, size = prefix + start, len(prefix)

        def measure(cursor: lmdb.Cursor[memoryview]) -> tuple[int, int]:
            total, there = 0, cursor.set_range(seek)
            if down:
                there = cursor.prev() if there else cursor.last()
            rows = cursor.iterprev() if down else cursor.iternext()
            for count, (key, value) in enumerate(islice(rows, limit if there else 0), 1):
                total += len(value)
                if key[:size] != prefix:
                    break  # its neighbour's: it is read, too, to be sure that it is none of these
                if total >= FIT_BYTES:
                    return count, total // BYTES_OF_WORK
            return limit, total // BYTES_OF_WORK

        return self._measured(measure, limit)

    def fitting_of(self, fragment: Fragment, keys: Sequence[bytes]) -> tuple[int, int]:
        """The same of the rows of these keys."""
        if not self._large:
            return len(keys), 0
        prefix = self._prefix(fragment)[0]
        wanted = [prefix + key for key in keys]

        def measure(cursor: lmdb.Cursor[memoryview]) -> tuple[int, int]:
            found = {bytes(key): len(value) for key, value in cursor.getmulti(wanted)}
            return fitted((found.get(key, 0) for key in wanted), len(wanted))

        return self._measured(measure, len(keys))

    def _measured(self, measure: Callable[[lmdb.Cursor[memoryview]], tuple[int, int]], limit: int) -> tuple[int, int]:
        """By the sizes of rows, none of which is copied, and no more of which are looked at than fit; whoever reads them is
        told what is wrong there."""
        try:
            with self._lock, self._environment().begin(db=self._rows, buffers=True) as txn, txn.cursor() as cursor:
                return measure(cursor)
        except lmdb.Error:
            return limit, 0

    def _held(self, fragment: Fragment, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Those of these keys under which something lies, and what; that of the others nothing does is not proven."""
        prefix = self._prefix(fragment)[0]
        wanted = [prefix + key for key in keys]
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                found: list[tuple[bytes, bytes]] = cursor.getmulti(wanted)
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read its rows", error, fragment) from error
        return found

    def _doubt(self, full: bytes, *, absent: bool, opened: bytes = b"") -> str:
        """Why the place where a key would lie cannot be trusted, or "".

        Its neighbours must embrace it, or a damaged page led the search astray; and they must be whole, or one of them
        may be the key itself under a changed name. The row of `opened` is.
        """
        with self._lock, self._txn.cursor(self._rows) as cursor:
            found = cursor.set_range(full)
            if found and not (opened and cursor.key() == opened):
                after = cursor.key()
                if after < full or (absent and after == full):
                    return "the rows are out of order there"
                if not self._is_whole(cursor):
                    return "the row after it is damaged, and may be it"
                if after == full:
                    return ""
            elif found and opened == full:
                return ""
            if cursor.prev() if found else cursor.last():
                if cursor.key() >= full:
                    return "the rows are out of order there"
                if not self._is_whole(cursor):
                    return "the row before it is damaged, and may be it"
        return ""

    def _is_whole(self, cursor: lmdb.Cursor[bytes]) -> bool:
        key = cursor.key()
        if key in self._proven:
            return True
        raw = cursor.value()
        whole = row_is_whole(key, raw)
        if whole and len(raw) >= PROVEN_BYTES:
            if len(self._proven) >= PROVEN_MAX:
                self._proven.clear()
            self._proven[key] = None
        return whole

    def _prefix(self, fragment: Fragment) -> tuple[bytes, bytes, int]:
        """What a fragment's rows begin with, what the next fragment's do, and the checksum of the beginning."""
        known = self._prefixes.get(fragment)
        if known is None:
            prefix, end = fragment_key(fragment), fragment_key((fragment[0], fragment[1] + 1))
            if len(self._prefixes) >= PREFIXES_KEPT:
                self._prefixes.clear()
            known = self._prefixes[fragment] = (prefix, end, row_seed(prefix))
        return known

    # The transaction.

    def _begin(self) -> None:
        env = self._environment()
        try:
            self._txn = env.begin(db=self._rows)
        except lmdb.MapResizedError:  # by the node beside us
            env.set_mapsize(0)
            self._txn = env.begin(db=self._rows)
        self._get, self._proven = self._txn.get, {}
        self._large = self._txn.stat(self._rows)["overflow_pages"] > 0  # some rows have more than half a page

    def _environment(self) -> lmdb.Environment:
        assert self._env is not None, "the store was closed"
        return self._env

    def _unreadable(
        self, what: str, error: Exception, fragment: Fragment | None = None, key: bytes | None = None
    ) -> StoreDamaged:
        """LMDB stumbled over a page. That spoils the transaction, and healthy pages need a new one."""
        with self._lock:
            self._txn.abort()
            self._begin()
        return damaged(self.path, f"{what}: {error}", fragment, key)
