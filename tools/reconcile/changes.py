"""Rows changed through the transactional API, each only if it still is what was seen: the version, and the value's hash.

A plan's lines (`apply`) and the rows of a Spark table (`writer`) are carried out alike. Doing one twice does no harm: what
is as it shall be already is told so, whatever version it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import engine
from engine import Entry
from engine.errors import UsageError
from tools.reconcile.findings import Facts, facts_text
from tools.reconcile.plans import gone
from tools.shown import HASH_BYTES
from wal.ids import Namespace

AT_ONCE = 256
"""So many rows are changed in one transaction."""
_COLUMNS = ("node", "namespace", "partition", "key", "epoch", "counter", "tombstone", "size", "hash", "value")


class Outcome(StrEnum):
    """What became of an action on one node, or in the cluster."""

    APPLIED = "applied"
    ALREADY = "already"  # it is what it shall be
    CHANGED = "changed"  # it is not what was seen: nothing was done
    FAILED = "failed"
    SKIPPED = "skipped"  # by --no-deletes, or because this is no way to do it


class Change(NamedTuple):
    """What a key shall be, None for nothing, if it still is what was `seen`; None: whatever it is."""

    namespace: Namespace
    key: bytes
    value: bytes | None
    seen: Facts | None = None


class Done(NamedTuple):
    """What became of a change."""

    change: Change
    outcome: Outcome
    why: str = ""


def perform(database: engine.Database, changes: Sequence[Change], *, write: bool = True, whole: bool = False) -> list[Done]:
    """Carry out some changes, of different keys, in one transaction; without `write` only say what would be done.

    `whole`: all of them, or none if one key is not what was seen. Raises Error where nothing of it happened, or where
    nobody can tell.
    """

    def within(tx: engine.Transaction) -> list[Done]:
        if whole and write:
            looked = [_performed(tx, change, write=False) for change in changes]
            if any(one.outcome is Outcome.CHANGED for one in looked):
                return looked
        return [_performed(tx, change, write=write) for change in changes]

    return database.run(within, label="reconcile")


def _performed(tx: engine.Transaction, change: Change, *, write: bool) -> Done:
    namespace = tx.namespace(change.namespace)
    entry = namespace.get_entry(change.key)
    if (entry.value if entry is not None else None) == change.value:
        return Done(change, Outcome.ALREADY)
    if change.seen is not None and not as_seen(entry, change.seen):
        found = facts_text(_facts(entry))
        return Done(change, Outcome.CHANGED, f"expected what was seen, {facts_text(change.seen)}, found {found}")
    if write and change.value is None:
        namespace.delete(change.key)
    elif write and change.value is not None:
        namespace.put(change.key, change.value)
    return Done(change, Outcome.APPLIED)


def as_seen(entry: Entry[bytes] | None, seen: Facts) -> bool:
    """Whether a row is what a copy had: of the same version and, if that is told, with the same value."""
    if entry is None or gone(seen):
        return entry is None and gone(seen)
    found = _facts(entry)
    told = [name for name in ("epoch", "counter", "hash") if name in seen]
    return bool(told) and all(found[name] == seen[name] for name in told)


def _facts(entry: Entry[bytes] | None) -> Facts:
    if entry is None:
        return {"absent": True}
    hashed = hashlib.blake2b(entry.value, digest_size=HASH_BYTES).hexdigest()
    return {"epoch": entry.version.epoch, "counter": entry.version.counter, "hash": hashed}


# Rows of a table.


class Columns:
    """How the rows of a table say what to change. Raises UsageError for a table that does not.

    `key`, `value` (null: the key goes) and `namespace`, unless one is given for all. With `epoch` and `counter` a row is
    changed only if it still has that version, and where they are null, or `tombstone` is true, only if it is not there.
    What else the table `state` has may be there as well.
    """

    def __init__(self, names: Sequence[str], namespace: Namespace = "") -> None:
        stray = [name for name in names if name not in _COLUMNS]
        missing = [name for name in ("key", "value", *([] if namespace else ["namespace"])) if name not in names]
        if missing:
            raise UsageError(f"the table has no column {missing[0]!r}: expected key, value and namespace (or that option)")
        if stray:
            raise UsageError(f"column {stray[0]!r} says nothing of a row: expected some of {', '.join(_COLUMNS)}")
        if ("epoch" in names) != ("counter" in names):
            raise UsageError("a version is an epoch and a counter: expected both columns, or neither")
        self.if_seen = "epoch" in names
        self._namespace = namespace

    def change(self, row: dict[str, object]) -> Change:
        """What a row says."""
        key, value = _bytes(row["key"]), _bytes(row["value"])
        namespace = row.get("namespace") or self._namespace
        if key is None or not isinstance(namespace, str) or not namespace:
            raise UsageError(f"a row has key {row['key']!r} and namespace {namespace!r}: expected both")
        if value is None and row.get("size") is not None:
            raise UsageError("the table was read without values, and would remove its keys: read it with values=full")
        if not self.if_seen:
            return Change(namespace, key, value)
        epoch, counter = row["epoch"], row["counter"]
        if row.get("tombstone") or epoch is None or counter is None:
            return Change(namespace, key, value, {"absent": True})
        assert isinstance(epoch, int), "a whole number, by the type of its column"
        assert isinstance(counter, int), "as above"
        return Change(namespace, key, value, {"epoch": epoch, "counter": counter})


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise UsageError(f"a key or a value is {type(value).__name__}: expected binary or string columns")


def in_runs(changes: Iterable[Change], at_once: int = AT_ONCE) -> Iterator[list[Change]]:
    """Changes in runs, a transaction each: no key twice in one, and in an order in which no two wait for each other."""
    run: dict[tuple[Namespace, bytes], Change] = {}
    for change in changes:
        place = change.namespace, change.key
        if place in run or len(run) == at_once:
            yield [run[at] for at in sorted(run)]
            run = {}
        run[place] = change
    if run:
        yield [run[at] for at in sorted(run)]
