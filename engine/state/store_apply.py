"""What a checkpoint changes, put into LMDB within one transaction: rows as they come, then states with their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, assert_never

import lmdb

from engine.state.loaded import Encoded
from engine.state.store import Entry
from engine.state.store_envelope import (
    FORMAT_KEY,
    LSN_KEY,
    NODE,
    PARTITIONS,
    BadEnvelope,
    fragment_key,
    open_fragment,
    partition_key,
    seal_fragment,
    seal_rows,
    seal_state,
    u64,
)
from engine.state.store_errors import damaged
from engine.state.store_file import FORMAT
from engine.state.store_parts import Begin, End, Part, Rows, State, entries_of
from engine.state.store_sums import sum_of, summed_up, sums_of
from rebalance.contents import NOTHING, Sums
from wal.ids import Fragment

GATHERED_BYTES = 8 << 20
"""Rows of a fragment are put in order, and put, so many bytes at a time: what is in a page need not be held twice."""


_Name = TypeVar("_Name")


class Databases(NamedTuple):
    """The databases of a store."""

    rows: lmdb._Database
    fragments: lmdb._Database
    partitions: lmdb._Database
    node: lmdb._Database


def apply_parts(path: Path, txn: lmdb.Transaction[bytes], dbs: Databases, parts: Iterable[Part]) -> None:
    """Apply all parts of one checkpoint. The caller commits, or, if this raises, does not. Raises StoreDamaged."""
    removed: list[bytes] = []
    cleared: dict[Fragment, None] = {}
    states = _States(txn, dbs)
    sums: dict[Fragment, Sums | None] = {}

    def sum_up(fragment: Fragment, changes: Mapping[bytes, Entry | None]) -> None:
        try:
            if fragment not in sums:
                sums[fragment] = NOTHING if fragment in cleared else sums_of(txn, dbs.fragments, fragment)
            if (before := sums[fragment]) is not None:
                sums[fragment] = sum_of(txn, dbs.rows, fragment, before, changes, cleared=fragment in cleared)
        except BadEnvelope as error:
            raise damaged(path, str(error), fragment) from error

    of, gathered, size = ("", 0), dict[bytes, Entry | None](), 0
    with txn.cursor(dbs.rows) as cursor:
        for part in parts:
            if gathered and not (isinstance(part, Rows) and part.fragment == of and size < GATHERED_BYTES):
                sum_up(of, gathered)
                cursor.putmulti(seal_rows(fragment_key(of), gathered, removed))
                gathered, size = {}, 0
            match part:
                case Begin():
                    cleared = states.begin(part)
                    for fragment in cleared:
                        _delete_prefix(cursor, fragment_key(fragment))
                case State():
                    states.take(part)
                case Rows():
                    of = part.fragment
                    gathered.update(entries_of(part))
                    size += part.size
                case End():
                    break
                case _:
                    assert_never(part)
        else:
            raise AssertionError("a checkpoint has an end")
    states.end()
    for fragment in (*states.fragments, *cleared):
        if fragment not in sums:
            sum_up(fragment, {})
    for full in removed:
        txn.delete(full, db=dbs.rows)
    _put_states(path, txn, dbs, states.fragments, sums)


class _States:
    """The states of a checkpoint as they come. Those of fragments are put at its end, with what their rows add up to."""

    def __init__(self, txn: lmdb.Transaction[bytes], dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs
        self.fragments: dict[Fragment, Encoded | None] = {}
        put_partition, put_node = partial(_put_partition, txn, dbs), partial(_put_node, txn, dbs)  # nothing of its own
        self._coming = _Coming(self.fragments.__setitem__), _Coming(put_partition), _Coming(put_node)

    def begin(self, part: Begin) -> dict[Fragment, None]:
        """What the checkpoint begins with; which fragments are cleared."""
        _put(self._txn, self._dbs.node, NODE, FORMAT_KEY, u64(FORMAT))
        _put(self._txn, self._dbs.node, NODE, LSN_KEY, u64(part.lsn))
        self.fragments.update(dict.fromkeys(part.gone))
        return dict.fromkeys(part.cleared)

    def take(self, part: State) -> None:
        """Some more."""
        fragments, partitions, node = self._coming
        fragments.take(part.fragments)
        partitions.take(part.partitions)
        node.take(part.node)

    def end(self) -> None:
        """That was all."""
        for last in self._coming:
            last.end()


def _put_partition(txn: lmdb.Transaction[bytes], dbs: Databases, number: int, pieces: list[bytes]) -> None:
    _put(txn, dbs.partitions, PARTITIONS, partition_key(number), pieces)


def _put_node(txn: lmdb.Transaction[bytes], dbs: Databases, name: str, pieces: list[bytes]) -> None:
    assert name, "a value of the node has a name"
    assert name[0] != "\0", "names that begin with NUL are the store's"
    _put(txn, dbs.node, NODE, name.encode(), pieces)


class _Coming(Generic[_Name]):
    """States of one kind as they come, piece by piece: each is handed on when the next one begins."""

    def __init__(self, take: Callable[[_Name, list[bytes]], None]) -> None:
        self._take = take
        self._name: _Name | None = None
        self._pieces: list[bytes] = []

    def take(self, states: Iterable[tuple[_Name, bytes]]) -> None:
        """Some more, in their order."""
        for name, piece in states:
            if name != self._name:
                self.end()
                self._name = name
            self._pieces.append(piece)

    def end(self) -> None:
        """There are no more of the one that came last."""
        if self._name is not None:
            self._take(self._name, self._pieces)
        self._name, self._pieces = None, []


def _put_states(
    path: Path,
    txn: lmdb.Transaction[bytes],
    dbs: Databases,
    states: Mapping[Fragment, Encoded | None],
    sums: Mapping[Fragment, Sums | None],
) -> None:
    for fragment, known in sums.items():
        key = fragment_key(fragment)
        state = states.get(fragment)
        if state is None and fragment not in states and (raw := txn.get(key, db=dbs.fragments)) is not None:
            state = open_fragment(key, raw)[0]  # it was read a moment ago, for its sums
        if state is None:
            txn.delete(key, db=dbs.fragments)
            continue
        total = known if known is not None else summed_up(txn, dbs.rows, fragment, partial(_tell, path, fragment))
        txn.put(key, seal_fragment(key, state, total), db=dbs.fragments)


def _tell(path: Path, fragment: Fragment, key: bytes, what: str) -> None:
    raise damaged(path, what, fragment, key)


def _put(txn: lmdb.Transaction[bytes], db: lmdb._Database, name: bytes, key: bytes, data: Encoded) -> None:
    txn.put(key, seal_state(name, key, data), db=db)


def _delete_prefix(cursor: lmdb.Cursor[bytes], prefix: bytes) -> None:
    found = cursor.set_range(prefix)
    while found and cursor.key().startswith(prefix):
        found = cursor.delete()  # which steps to the next, and says whether there is one
