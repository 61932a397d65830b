"""The rows of one fragment in one data directory, in runs: as bytes as long as nobody needs more of them.

Copies of a fragment that agree have the same bytes, so who compares them looks at bytes, and opens each row once and not
once for every copy (`Alike`). A run is opened as rows where it differs, or where the log has changed something since the
checkpoint. Either way each row's checksum is verified, and the digests of all that the checkpoint wrote are summed up:
once all are read they must be what was written with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, count
from operator import itemgetter, ne
from typing import NamedTuple, TypeAlias

from engine.state.store import GONE, Entry, Row
from engine.state.store_envelope import BadEnvelope, fragment_key, fragment_of, open_row, open_rows
from engine.state.store_errors import StoreDamaged, damaged
from engine.state.store_lmdb import LmdbStore
from rebalance.contents import MASK, row_digest
from wal.ids import DECISIONS, EXPIRIES, Fragment, partition_of

Raw: TypeAlias = tuple[bytes, bytes]
"""A row as it lies in the store: the whole key, and the envelope."""

Tell: TypeAlias = Callable[[bytes | None, str], None]
"""Told of damage: the key, where it is known, and what is wrong."""

ROWS_AT_ONCE = 1_000
ROWS_OPENED = 8
"""So few rows are opened for each copy, and not halved again, where something of them differs."""
_key: Callable[[Raw], bytes] = itemgetter(0)


class Alike(NamedTuple):
    """Rows that have the same bytes on all copies, opened once. `digests` are 0 for tombstones."""

    keys: Sequence[bytes]
    counters: Sequence[int]
    digests: Sequence[int]
    entry: Callable[[int], Entry]


class Reading:
    """One copy's rows of one fragment, read front to back, newest entries, tombstones included.

    `changes` are over the checkpoint's rows. `partitions` is into how many a key may hash, 0 if nobody knows. `done` is set
    once the checkpoint has no more. `sums` is what was written and what was found, set if they differ, once all is read.
    `lower` and `upper` are bounds of its keys, empty if there is none; then `sums` is set if all rows could be believed,
    for whoever adds up what was found in all ranges.
    """

    def __init__(
        self,
        store: LmdbStore,
        fragment: Fragment,
        changes: Mapping[bytes, Entry],
        tell: Tell,
        *,
        cleared: bool = False,
        partitions: int = 0,
        lower: bytes = b"",
        upper: bytes = b"",
    ) -> None:
        self._partitions = partitions
        self._part = bool(lower or upper)
        self._upper = upper
        self.done = cleared
        self.sums: tuple[int, int] | None = None
        self._store = store
        self._fragment = fragment
        self._prefix, self._seed = store.prefix_of(fragment)
        self._tell = tell
        self._start = lower
        self._found, self._whole = 0, not cleared
        self._changes = changes
        self._changed = sorted(changes)
        self._stated: int | None = None
        if not cleared:
            try:
                self._stated = store.contents(fragment)
            except StoreDamaged as damage:
                self._damaged(damage)

    def run(self) -> list[Raw]:
        """The next rows of the checkpoint as they are stored; fewer than ROWS_AT_ONCE at the end."""
        if self.done:
            return []
        found, damages = self._store.raw_rows(self._fragment, self._start, ROWS_AT_ONCE, self._upper)
        for damage in damages:
            if not self._belongs_elsewhere(damage.found):
                self._damaged(damage)
        self.done = len(found) < ROWS_AT_ONCE
        if found:
            self._start = found[-1][0][len(self._prefix) :] + b"\0"
        return found

    def all(self) -> Iterator[Row]:
        """Every row, and what is wrong with them."""
        while not self.done:
            run = self.run()
            yield from self.opened(run, None if self.done else run[-1][0])
        yield from self.opened([], None)
        self.finish()

    def changes_until(self, upper: bytes | None) -> int:
        """How many changed keys lie up to a whole key (None: all that are left), of those that were not given out."""
        return len(self._changed) if upper is None else bisect_right(self._changed, upper[len(self._prefix) :])

    def opened(self, run: Sequence[Raw], upper: bytes | None) -> list[Row]:
        """The rows of a run, with the changes up to `upper`. Rows that cannot be believed are told, and left out."""
        rows: list[Row] = []
        skip, seed = len(self._prefix), self._seed
        for full, raw in run:
            key = full[skip:]
            try:
                entry = open_row(seed, key, raw)
            except BadEnvelope as error:
                self._damaged(damaged(self._store.path, str(error), self._fragment, key))
            else:
                self._found += row_digest(key, entry)
                rows.append((key, entry))
        count = self.changes_until(upper)
        if not count:
            return rows
        changed, self._changed = self._changed[:count], self._changed[count:]
        return list(_overlaid(rows, {key: self._changes[key] for key in changed}))

    def alike(self, run: Sequence[Raw]) -> Alike | None:
        """The same run on all copies, opened; None if a row of it cannot be believed."""
        keys, counters, digests = open_rows(self._seed, len(self._prefix), run)
        if len(keys) < len(run):
            return None
        seed = self._seed
        return Alike(keys, counters, digests, lambda at: open_row(seed, keys[at], run[at][1]))

    def take(self, found: int) -> None:
        """A run went by whose digests add up to this."""
        self._found += found

    def finish(self) -> None:
        """All is read: do the rows add up?"""
        found = self._found & MASK
        if self._whole and self._stated is not None and (self._part or found != self._stated):
            self.sums = (self._stated, found)

    def _belongs_elsewhere(self, full: bytes) -> bool:
        """Whether a damaged row behind the last one has a key that hashes to the fragment that it stands in: then it is
        that one's, and no row of this one under another name."""
        if not self._partitions or not full or full.startswith(self._prefix):
            return False
        try:
            namespace, number = fragment_of(full)
        except BadEnvelope:
            return False
        key = full[len(fragment_key((namespace, number))) :]
        if namespace == EXPIRIES:
            key = key.partition(b"\0")[2]
        return namespace != DECISIONS and partition_of(key, self._partitions) == number % self._partitions

    def _damaged(self, damage: StoreDamaged) -> None:
        self._whole = False
        self._tell(damage.key, str(damage))


def side_by_side(copies: Sequence[Reading]) -> Iterator[Alike | list[list[Row]]]:
    """The rows of several copies in runs of ascending keys: those that all have alike, else those of each copy."""
    held: list[list[Raw]] = [[] for _ in copies]
    while copies:
        for at, copy in enumerate(copies):
            if not held[at]:
                held[at] = copy.run()
        upper = min((run[-1][0] for run, copy in zip(held, copies, strict=True) if not copy.done), default=None)
        parts: list[list[Raw]] = []
        for at, run in enumerate(held):
            count = len(run) if upper is None else bisect_right(run, upper, key=_key)
            parts.append(run[:count])
            held[at] = run[count:]
        yield from _halved(copies, parts, upper)
        if upper is None:
            break
    for copy in copies:
        copy.finish()


def _halved(copies: Sequence[Reading], parts: list[list[Raw]], upper: bytes | None) -> Iterator[Alike | list[list[Row]]]:
    """The runs of keys up to `upper`: what differs is halved, so that few rows are opened for each copy."""
    changed = any(copy.changes_until(upper) for copy in copies)
    others = [part for part in parts[1:] if part != parts[0]]
    longest = max(parts, key=len)
    if not (changed or others):
        yield from _equal(copies, parts, upper)
    elif odd := [] if changed else _odd_ones(parts[0], others):
        before = 0
        for at in (*odd, len(longest)):
            if before < at:
                yield from _equal(copies, [part[before:at] for part in parts], longest[at - 1][0])
            if at < len(longest):
                yield [copy.opened(part[at : at + 1], longest[at][0]) for part, copy in zip(parts, copies, strict=True)]
            before = at + 1
    elif len(longest) > ROWS_OPENED:
        middle = longest[len(longest) // 2][0]
        counts = [bisect_right(part, middle, key=_key) for part in parts]
        yield from _halved(copies, [part[:count] for part, count in zip(parts, counts, strict=True)], middle)
        yield from _halved(copies, [part[count:] for part, count in zip(parts, counts, strict=True)], upper)
    else:
        yield [copy.opened(part, upper) for part, copy in zip(parts, copies, strict=True)]


def _equal(copies: Sequence[Reading], parts: list[list[Raw]], upper: bytes | None) -> Iterator[Alike | list[list[Row]]]:
    """Runs that have the same bytes on all copies: opened once, but for the few rows around one that cannot be believed."""
    if not parts[0]:
        return
    found = copies[0].alike(parts[0])
    if found is not None:
        added = sum(found.digests)
        for copy in copies:
            copy.take(added)
        yield found
    elif len(parts[0]) > ROWS_OPENED:
        half = len(parts[0]) // 2
        yield from _equal(copies, [part[:half] for part in parts], parts[0][half - 1][0])
        yield from _equal(copies, [part[half:] for part in parts], upper)
    else:
        yield [copy.opened(part, upper) for part, copy in zip(parts, copies, strict=True)]


def _odd_ones(first: Sequence[Raw], others: Sequence[Sequence[Raw]]) -> list[int]:
    """The few rows of a run that differ from those of others, where all copies have the same keys; none else."""
    if any(len(other) != len(first) for other in others):
        return []
    odd = sorted({at for other in others for at in compress(count(), map(ne, first, other))})
    same = all(first[at][0] == other[at][0] for at in odd for other in others)
    return odd if same and len(odd) * ROWS_OPENED < len(first) else []


def _overlaid(stored: Sequence[Row], changes: Mapping[bytes, Entry]) -> Iterator[Row]:
    """Rows with their changes, which are in order: what a checkpoint would leave."""
    changed = iter(changes)
    ahead = next(changed, None)
    for key, entry in stored:
        while ahead is not None and ahead < key:
            yield from _unless_gone(ahead, changes[ahead])
            ahead = next(changed, None)
        if ahead == key:
            yield from _unless_gone(key, changes[key])
            ahead = next(changed, None)
        else:
            yield key, entry
    while ahead is not None:
        yield from _unless_gone(ahead, changes[ahead])
        ahead = next(changed, None)


def _unless_gone(key: bytes, entry: Entry) -> Iterator[Row]:
    if entry is not GONE and entry.counter:
        yield key, entry
