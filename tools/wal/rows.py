"""What a log says of each key, against what a store has: the same wrong value in every store is found by nothing else.

A reading of the log keeps, for each key of the wanted fragments, the newest entry that it tells of: who issued it, and its
row digest, which says the value as well. It is no second fold: what a log does not tell (rows of a
transfer that began before it, keys whose undoing it saw and whose fetching it did not) is *unknown*, and nothing is said
about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec
from xxhash import xxh3_64_intdigest

from engine.state.store import Entry
from rebalance.contents import row_digest
from wal import records as r
from wal.ids import Fragment, TxId
from wal.packed import PackedHistory, PackedUpdate, Skimmed

DELETED = 0
"""The digest of a row that is not there."""


class Said(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The newest that a log tells of a key. `value` is its row digest, or DELETED.

    There is one for each key of a log, so it is nothing that the collector has to look at.
    """

    epoch: int
    counter: int
    value: int

    @property
    def version(self) -> tuple[int, int]:
        """Who issued it."""
        return self.epoch, self.counter


HEARD = (r.Prepare, r.Outcome, r.EpochStart, r.Undo, r.Preload, r.FragmentClear, r.FragmentReady)
"""Beside updates, and each of one partition: the records that `LogRows.take` makes anything of."""

NOTHING = Said(0, 0, DELETED)
"""What a log says that has no record of a key."""


class Rows:
    """One fragment's keys, as its node's log tells of them."""

    __slots__ = ("above", "before", "filled", "highest", "later", "live", "loading", "said", "unknown")

    def __init__(self, *, loading: bool = False, above: int | None = None) -> None:
        self.above = above
        self.later: dict[bytes, list[Said]] = {}  # what was written above that, all of it
        self.before: dict[bytes, Said] = {}  # and what `said` was before
        self.said: dict[bytes, Said] = {}
        self.unknown: set[bytes] = set()
        self.loading = loading
        self.live: set[bytes] = set()  # written while it was loading: the transfer may not confirm them
        self.highest = 0
        self.filled: int | None = None  # up to which counter a transfer told of all rows

    def put(self, key: bytes, said: Said) -> None:
        """The log tells of an entry; the newest counts."""
        held = self.said.get(key)
        if held is None or held.version < said.version:
            self.said[key] = said
            self.highest = max(self.highest, said.counter)
        self.unknown.discard(key)

    def write(self, key: bytes, said: Said, *, beyond: bool) -> None:
        """An update of a fragment whose later ones are all kept; `beyond` what the store was folded with, only there."""
        assert self.above is not None, "later updates are not kept"
        if said.counter > self.above:
            held = self.said.get(key)
            if held is not None and held.counter <= self.above:
                self.before[key] = held
            self.later.setdefault(key, []).append(said)
        if not beyond:
            self.put(key, said)

    def at(self, key: bytes, applied: Callable[[int], bool], history_from: int) -> Said | None:
        """The newest that was said of a key among the counters that a copy has applied; None if that is not known."""
        if key in self.unknown or self.above is None:
            return None
        found = max((said for said in self.later.get(key, ()) if applied(said.counter)), default=None)
        if found is not None:
            return found
        said = self.before.get(key) or self.said.get(key)
        if said is None:
            return None if history_from else NOTHING
        return said if said.counter <= self.above else None

    def cut(self, above: int) -> None:
        """What lies above is undone, and what was there before it is for the next transfer to say."""
        for key, later in self.later.items():
            self.later[key] = [said for said in later if said.counter <= above]
        if self.highest > above:
            for key in [key for key, said in self.said.items() if said.counter > above]:
                del self.said[key]
                self.unknown.add(key)
            self.highest = above

    def forget(self, begins: int) -> None:
        """The log was trimmed up to this counter while it was read: of what lay there, only a part was heard."""
        self.said = {key: said for key, said in self.said.items() if said.counter > begins}
        self.before = {key: said for key, said in self.before.items() if said.counter > begins}
        if self.above is not None and begins > self.above:
            self.above, self.later = None, {}

    def keep(self) -> None:
        """They count for nothing any more, and are still there: which of them stay, and as of when, a transfer will say."""
        self.above = None
        self.later, self.before = {}, {}
        self.loading, self.live = True, set()

    def judge(self, key: bytes, entry: Entry | None, history_from: int) -> str:
        """Why a store's entry is not what the log says; empty if it is, or if the log does not tell."""
        said = self.said.get(key)
        if key in self.unknown or (entry is not None and entry.counter <= history_from and said is None):
            return ""
        if entry is None and said is not None and self.filled is not None and said.counter <= self.filled < history_from:
            return ""  # what was written during the transfer that told of it may have been trimmed: its delete, too
        if entry is None:
            gone = said is None or said.value == DELETED
            return "" if gone else f"the log has {_named(said)}, and the row is gone"
        have = (entry.epoch, entry.counter)
        if said is None:
            return f"no record of the log is about it, and the log has all above counter {history_from}"
        if have < said.version:
            return f"the log has {_named(said)}, which came later"
        if have > said.version:
            return "" if entry.counter <= history_from else f"the newest in the log is {_named(said)}"
        return "" if row_digest(key, entry) == said.value else f"the log has another value at {_named(said)}"

    def sure(self, key: bytes, entry: Entry | None, history_from: int) -> bool | None:
        """Whether a store's entry is what the log says; None where the log does not tell."""
        if self.judge(key, entry, history_from):
            return False
        said = self.said.get(key)
        if said is None:
            gone = entry is None and not history_from and key not in self.unknown
            return True if gone else None
        return True if entry is None or (entry.epoch, entry.counter) == said.version else None

    def deleted(self, key: bytes) -> bool:
        """Whether the log's newest word about a key is its delete."""
        said = self.said.get(key)
        return said is not None and said.value == DELETED


class LogRows:
    """All wanted fragments of one log, read from its first record on, in order."""

    def __init__(
        self,
        wanted: Callable[[Fragment], bool],
        above: Mapping[Fragment, int] | None = None,
        ranges: Mapping[Fragment, tuple[bytes, bytes]] = MappingProxyType({}),
    ) -> None:
        """`ranges`: of these fragments only keys from the first one on to below the second, if that is not empty."""
        self._ranges = ranges
        self.fragments: dict[Fragment, Rows] = {}
        self.beyond = False
        """Set this where the log goes on beyond what the store was folded with: then only later updates are noted."""
        self.unopened = ""
        """Why some write of it could not be opened."""
        self._above = above if above is not None else {}
        self._wanted = wanted
        self._prepared: dict[tuple[TxId, int], list[r.Write]] = {}

    def take(self, records: Iterable[r.Record | Skimmed]) -> None:
        """Read on."""
        for record in records:
            match record:
                case PackedUpdate() | PackedHistory():
                    wanted = self._wanted
                    for packed in [w for w in record.writes if wanted((w.namespace, w.partition))]:
                        self._write(packed.opened())
                case r.Update() | r.History():
                    for write in record.writes:
                        self._write(write)
                case r.Prepare(tx, partition, _, writes):
                    self._prepared[tx, partition] = [write for write in writes if self._wanted(write.fragment)]
                case r.Outcome(tx, partition, _, commit):
                    for write in self._prepared.pop((tx, partition), []):
                        if commit:
                            self._write(write)
                case r.EpochStart(partition, _, firsts):
                    for namespace, first in firsts:
                        self._cut((namespace, partition), first - 1)
                case r.Undo(namespace, partition, above):
                    self._cut((namespace, partition), above)
                case r.Preload() | r.FragmentClear() | r.FragmentReady() if self.beyond:
                    self.fragments.pop((record.namespace, record.partition), None)
                case r.Preload():
                    self._preload(record)
                case r.FragmentClear(namespace, partition):
                    if self._wanted((namespace, partition)):
                        self._clear((namespace, partition), record)
                case r.FragmentReady(namespace, partition, lwm, full=full):
                    if full and self._wanted((namespace, partition)):
                        self._ready(self._rows((namespace, partition)), lwm)
                case _:
                    pass

    def _rows(self, fragment: Fragment) -> Rows:
        found = self.fragments.get(fragment)
        if found is None:
            found = self.fragments[fragment] = Rows(above=self._above.get(fragment))
        return found

    def _write(self, write: r.Write) -> None:
        if write.closed or not self._wanted(write.fragment):
            return
        rows, counter, epoch = self._rows(write.fragment), write.start, write.epoch
        if write.fragment in self._ranges:
            self._write_range(rows, write, *self._ranges[write.fragment])
            return
        if self.beyond or (rows.above is not None and write.end > rows.above and not rows.loading):
            for counter, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
                if rows.above is not None:
                    rows.write(key, Said(epoch, counter, row_digest(key, Entry(epoch, counter, value))), beyond=self.beyond)
            return
        said, unknown, digest, issued = rows.said, rows.unknown, xxh3_64_intdigest, epoch << 64
        for key, value in zip(write.keys, write.values, strict=True):
            counter += 1
            held = said.get(key)
            if held is None or held.version < (epoch, counter):  # `Rows.put`, written out, and `row_digest`
                found = DELETED if value is None else digest(value, digest((issued + counter).to_bytes(16, "big") + key))
                said[key] = Said(epoch, counter, found)
            if unknown:
                unknown.discard(key)
        rows.highest = max(rows.highest, counter)
        if rows.loading:
            rows.live.update(write.keys)

    def _write_range(self, rows: Rows, write: r.Write, lower: bytes, upper: bytes) -> None:
        """The same of those keys that are asked for."""
        later = self.beyond or (rows.above is not None and write.end > rows.above and not rows.loading)
        for counter, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
            if key < lower or (upper and key >= upper):
                continue
            said = Said(write.epoch, counter, row_digest(key, Entry(write.epoch, counter, value)))
            if not later:
                rows.put(key, said)
                if rows.loading:
                    rows.live.add(key)
            elif rows.above is not None:
                rows.write(key, said, beyond=self.beyond)

    def _preload(self, record: r.Preload) -> None:
        fragment = (record.namespace, record.partition)
        if not self._wanted(fragment):
            return
        rows = self._rows(fragment)
        lower, upper = self._ranges.get(fragment, (b"", b""))
        for epoch, counter, key, value in zip(record.epochs, record.counters, record.keys, record.values, strict=True):
            if key < lower or (upper and key >= upper):
                continue
            if not counter and not epoch and rows.loading and key in rows.live:
                continue
            rows.live.discard(key)
            if counter:
                entry = Entry(epoch, counter, value)
                rows.put(key, Said(epoch, counter, row_digest(key, entry)))
            else:
                rows.said.pop(key, None)
                rows.unknown.discard(key)

    def _clear(self, fragment: Fragment, record: r.FragmentClear) -> None:
        if record.kept:
            self._rows(fragment).keep()
        else:
            self.fragments[fragment] = Rows(loading=not record.gone)

    def _ready(self, rows: Rows, lwm: int) -> None:
        for key in rows.live:
            rows.said.pop(key, None)
            rows.unknown.add(key)
        rows.loading, rows.live, rows.filled = False, set(), lwm

    def _cut(self, fragment: Fragment, above: int) -> None:
        rows = self.fragments.get(fragment)
        if rows is not None:
            rows.cut(above)


def audited(rows: Iterable[tuple[bytes, Entry]], said: Rows, history_from: int) -> Iterator[tuple[bytes, str]]:
    """The keys of a fragment that a store has otherwise than the log, and why; `rows` are all that it has."""
    seen: set[bytes] = set()
    for key, entry in rows:
        seen.add(key)
        why = said.judge(key, entry, history_from)
        if why:
            yield key, why
    for key in sorted(said.said.keys() - seen):
        why = said.judge(key, None, history_from)
        if why:
            yield key, why


def _named(said: Said | None) -> str:
    if said is None:
        return "nothing"
    return f"{'the delete at ' if said.value == DELETED else ''}epoch {said.epoch} counter {said.counter}"
