"""What is read of a store: one read transaction over its four databases, in which nothing is believed unseen.

`engine.state.store_lmdb` opens it, writes it, and says what lies where.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import NoReturn, TypeAlias

import lmdb

from engine.state.held import summed
from engine.state.loaded import Loaded, Loading
from engine.state.store import Entry, Row
from engine.state.store_envelope import (
    FORMAT_KEY,
    FRAGMENTS,
    LSN_KEY,
    NODE,
    PARTITIONS,
    BadEnvelope,
    fragment_key,
    fragment_of,
    open_fragment,
    open_row,
    open_rows,
    open_state,
    partition_in,
    partition_of,
    row_is_whole,
)
from engine.state.store_errors import StoreDamaged, StoreTooNew, damaged
from engine.state.store_file import FORMAT
from engine.state.store_raw import RawReads
from engine.state.store_sums import stored_in
from rebalance.contents import Summed
from wal.ids import Fragment

Tell: TypeAlias = "Callable[[StoreDamaged], None]"

_ROWS_AT_ONCE = 1_000


class StoreReads(RawReads):
    """The reads of one store: what lies there is opened, and verified."""

    _fragments: lmdb._Database
    _partitions: lmdb._Database
    _node: lmdb._Database

    def load(self, wanted: Container[int] | None = None) -> Loaded:
        """What the last checkpoint holds; lsn 0 and empty if there is none. Raises StoreDamaged.

        With `wanted` only what it holds of these partitions is looked at, and of the node.
        """
        return self.loading(wanted).all()

    def loading(self, wanted: Container[int] | None = None) -> Loading:
        """The same, one state after the other."""
        node = dict(self._states(self._node, NODE))
        del node[FORMAT_KEY]
        return Loading(
            int.from_bytes(node.pop(LSN_KEY, b""), "big"),
            {key.decode(): data for key, data in node.items()},
            ((fragment_of(key), data) for key, data in self._states(self._fragments, FRAGMENTS, wanted)),
            ((partition_of(key), data) for key, data in self._states(self._partitions, PARTITIONS, wanted)),
        )

    def get(self, fragment: Fragment, key: bytes) -> Entry | None:
        """One key's entry; None if there is none. Raises StoreDamaged rather than return anything else."""
        known = self._prefixes.get(fragment)
        prefix, _, seed = known if known is not None else self._prefix(fragment)
        full = prefix + key
        try:
            with self._lock:
                raw = self._get(full)
            if raw is not None:
                return open_row(seed, key, raw)
            doubt = self._doubt(full, absent=True)
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment, key) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read it", error, fragment, key) from error
        if doubt:
            raise damaged(self.path, f"not found, but {doubt}", fragment, key)
        return None

    def scan(self, fragment: Fragment, start: bytes, limit: int, *, down: bool = False) -> list[Row]:
        """Up to `limit` rows with keys >= `start`, ascending; or `down`: < `start`, descending. Raises StoreDamaged rather
        than leave one out."""
        if limit <= 0:
            return []
        prefix, _, seed = self._prefix(fragment)
        found, damages = self._raw_down(fragment, start, limit) if down else self.raw_rows(fragment, start, limit)
        if damages:
            raise damages[0]
        size = len(prefix)
        key = start
        try:
            rows = [(key := full[size:], open_row(seed, key, raw)) for full, raw in found]
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment, key) from error
        self._check_begin(fragment, start, found)
        return rows

    def digests(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """What up to `limit` rows with keys >= `start` contribute to the contents (0: a tombstone). Raises StoreDamaged."""
        found, damages = self.raw_rows(fragment, start, limit)
        if damages:
            raise damages[0]
        digests = self._digests_of(fragment, found)
        self._check_begin(fragment, start, found)
        return digests

    def held(self, fragment: Fragment, keys: Iterable[bytes]) -> list[tuple[bytes, int]]:
        """The same of those of these keys, ascending, that are found. Of the others nothing is proven: `get` does that."""
        return self._digests_of(fragment, self._held(fragment, keys))

    def _digests_of(self, fragment: Fragment, found: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, int]]:
        prefix, seed = self.prefix_of(fragment)
        keys, _, digests = open_rows(seed, len(prefix), found)
        if len(keys) < len(found):
            at = found[len(keys)][0][len(prefix) :]
            raise damaged(self.path, "expected a row whose checksum matches", fragment, at)
        return list(zip(keys, digests, strict=True))

    def keys(self, fragment: Fragment, start: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` keys >= `start`, ascending, each with a 0. What lies under them is not opened."""
        prefix, end, _ = self._prefix(fragment)
        keys = self._ascending(prefix + start, end, limit, values=False)
        if keys is None:
            found, damages = self.raw_rows(fragment, start, limit)
            if damages:
                raise damages[0]
            keys = [full for full, _ in found]
        skip = len(prefix)
        return [(full[skip:], 0) for full in keys]

    def contents(self, fragment: Fragment) -> int | None:
        """The digest of all rows of a fragment; None if there is no state of it, or one that an older version wrote."""
        return self._sums(fragment)[0]

    def sum_some(self, fragment: Fragment, start: bytes, limit: int) -> Summed:
        """What some rows add up to; damage among them is told, and not raised."""
        try:
            return summed(self.scan(fragment, start, limit), limit)
        except StoreDamaged as damage:
            return Summed(0, 0, None, str(damage))

    def live(self, fragment: Fragment) -> int | None:
        """How many rows of a fragment are no tombstones; None as for `contents`."""
        return self._sums(fragment)[1]

    def _sums(self, fragment: Fragment) -> tuple[int | None, int | None]:
        prefix = self._prefix(fragment)[0]
        try:
            with self._lock:
                raw = self._txn.get(prefix, db=self._fragments)
            return stored_in(raw, prefix)
        except BadEnvelope as error:
            raise damaged(self.path, str(error), fragment) from error
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read its state", error, fragment) from error

    def rows(
        self, fragments: Iterable[Fragment] | None = None, on_damage: Tell | None = None
    ) -> Iterator[tuple[Fragment, bytes, Entry]]:
        """All rows, or those of some fragments, in order, each of them verified.

        With `on_damage` damage is told, and the walk goes on with the next row that can be found; without, it is
        raised. Nothing is held between two rows, so a node's checkpoints may pass meanwhile.
        """
        tell = on_damage if on_damage is not None else _raise
        at, seen = self._txn, 0
        for fragment in self._present(tell) if fragments is None else sorted(fragments, key=fragment_key):
            prefix, _, seed = self._prefix(fragment)
            start, more = b"", True
            while more:
                found, damages = self.raw_rows(fragment, start, _ROWS_AT_ONCE)
                for damage in damages:
                    tell(damage)
                more = len(found) == _ROWS_AT_ONCE
                seen += len(found)
                for full, raw in found:
                    key = full[len(prefix) :]
                    start = key + b"\0"
                    try:
                        entry = open_row(seed, key, raw)
                    except BadEnvelope as error:
                        tell(damaged(self.path, str(error), fragment, key))
                    else:
                        yield fragment, key, entry
        if fragments is None and self._txn is at:
            self._check_count(self._rows, "rows", seen, tell)

    def _check_begin(self, fragment: Fragment, start: bytes, found: Sequence[tuple[bytes, bytes]]) -> None:
        """Make sure that a scan began where its rows begin, of which these were found and opened. Raises StoreDamaged."""
        try:
            doubt = self._doubt(self._prefix(fragment)[0] + start, absent=False, opened=found[0][0] if found else b"")
        except lmdb.Error as error:
            raise self._unreadable("LMDB cannot read around it", error, fragment, start) from error
        if doubt:
            raise damaged(self.path, f"a scan begins here, but {doubt}", fragment, start)

    def _present(self, tell: Tell) -> Iterator[Fragment]:
        """The fragments that have rows, ascending, found by one seek each."""
        seek = b""
        while True:
            try:
                with self._lock, self._txn.cursor(self._rows) as cursor:
                    full = cursor.key() if cursor.set_range(seek) else None
                if full is None:
                    return
                if full < seek:
                    raise BadEnvelope(f"expected ascending rows, found {full!r}")
                fragment = fragment_of(full)
            except (lmdb.Error, BadEnvelope) as error:
                tell(self._unreadable(f"the fragments from {seek!r} on cannot be listed", error))
                yield from self._expected(seek, tell)
                return
            yield fragment
            seek = self._prefix(fragment)[1]

    def stateless(self, wanted: Collection[int] | None = None) -> list[Fragment]:
        """The fragments of some partitions that have rows, the first of them whole, and no state: no checkpoint leaves any.

        A seek for each namespace and partition; where rows cannot be read it ends, and whoever reads them is told.
        """
        numbers = sorted(wanted or ())
        found: list[Fragment] = []
        seek = b""
        try:
            with self._lock, self._txn.cursor(self._rows) as cursor:
                while cursor.set_range(seek):
                    full = cursor.key()
                    namespace, number = fragment_of(full)
                    at = bisect_left(numbers, number)
                    if wanted is None or (at < len(numbers) and numbers[at] == number):
                        prefix, end, _ = self._prefix((namespace, number))
                        if self._txn.get(prefix, db=self._fragments) is None and row_is_whole(full, cursor.value()):
                            found.append((namespace, number))
                        at += 1
                    behind = fragment_key((namespace, numbers[at])) if at < len(numbers) else namespace.encode() + b"\1"
                    seek, before = end if wanted is None else behind, seek
                    if seek <= before:
                        break
        except (lmdb.Error, BadEnvelope):
            pass
        return found

    def _expected(self, seek: bytes, tell: Tell) -> list[Fragment]:
        """The fragments from `seek` on that have states: these may have survived where rows have not."""
        try:
            return [fragment_of(key) for key, _ in self._states(self._fragments, FRAGMENTS) if key >= seek]
        except StoreDamaged as damage:
            tell(damage)
            return []

    def _states(
        self, db: lmdb._Database, name: bytes, wanted: Container[int] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Everything in one of the small databases, or what is about some partitions, verified, and verified to be all."""
        seen, found = 0, [(b"", b"")]
        while found:
            try:
                with self._lock, self._txn.cursor(db) as cursor:
                    there = cursor.set_range(found[-1][0] + b"\0" if seen else b"")
                    found = list(islice(cursor, _ROWS_AT_ONCE)) if there else []
            except lmdb.Error as error:
                raise self._unreadable(f"{name.decode()} cannot be read", error) from error
            seen += len(found)
            for key, raw in found:
                if wanted is None or partition_in(key) in wanted:
                    yield key, self._state(name, key, raw)
        self._check_count(db, name.decode(), seen, _raise)

    def _state(self, name: bytes, key: bytes, raw: bytes) -> bytes:
        try:
            return open_fragment(key, raw)[0] if name is FRAGMENTS else open_state(name, key, raw)
        except BadEnvelope as error:
            raise damaged(self.path, f"{name.decode()} {key!r}: {error}") from error

    def _check_count(self, db: lmdb._Database, name: str, seen: int, tell: Tell) -> None:
        with self._lock:
            entries = self._txn.stat(db)["entries"]
        if entries != seen:
            tell(damaged(self.path, f"{name}: expected {entries} entries, found {seen}"))

    def _check_format(self) -> None:
        raw = self._txn.get(FORMAT_KEY, db=self._node)
        if raw is None:
            raise damaged(self.path, "expected a record of the store's format, found none")
        found = int.from_bytes(self._state(NODE, FORMAT_KEY, raw), "big")
        if found > FORMAT:
            raise StoreTooNew(
                f"store {self.path}: expected format {FORMAT} or older, found {found}; "
                "open it with the version of foreshore that wrote it, or a later one; nothing was changed"
            )


def _raise(damage: StoreDamaged) -> NoReturn:
    raise damage
