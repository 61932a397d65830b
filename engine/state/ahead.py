"""What a large write makes of its fragment, worked out before it is applied.

To apply a write is one step, so that nobody ever sees half of it. Of many keys that step would be a long turn. But nearly
all of it depends on nothing but the write itself: which rows come of it, and what the digest of history takes in of each
key. So that is worked out first, in pieces, by whoever is about to apply it: a primary while its copies answer, a copy
before it logs the write and answers. The step that is left is to put it in, an order of magnitude quicker.

Nothing rests on it. What it says of the fragment is only which digest comes after which, so that whatever happens
meanwhile makes none of it wrong; it is dropped at will; and what is applied without it, as by recovery, comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from engine.state.store import ROW_OVERHEAD_BYTES, Entry, LayeredStore
from rebalance.fragment import FragmentState, digest_of, entries_of
from rebalance.partition import PartitionState
from wal.ids import Fragment
from wal.records import Outcome, Record, Update, Write

LARGE_KEYS = 2_000
"""A write of more keys is worked out before it is applied."""
PIECE_KEYS = 1_000
KEYS_OF_WORK = 4
"""So many keys of what is worked out are as much work as one thing that is decided."""


class Ahead:
    """One write, as far as it is worked out. `rows` and `deleted` are in the order of its keys.

    `before`: the digest of history where it is next, if it is known, and then `after` is what it will be.
    """

    __slots__ = ("after", "before", "deleted", "digested", "rows", "weight", "write")

    def __init__(self, write: Write, before: int | None = None) -> None:
        self.write = write
        self.before = self.after = before
        self.rows: dict[bytes, Entry] = {}
        self.deleted: dict[bytes, int] = {}  # the counter of each tombstone
        self.digested: list[bytes] = []  # what the digest takes in, key by key
        self.weight = 0

    def pieces(self) -> Iterator[int]:
        """Work it out; yields how much work each piece was."""
        write, rows = self.write, self.rows
        epoch, keys, values = write.epoch, write.keys, write.values
        for at in range(0, len(keys), PIECE_KEYS):
            some, theirs = keys[at : at + PIECE_KEYS], values[at : at + PIECE_KEYS]
            counter = write.start + at
            entries = entries_of(write, at, at + PIECE_KEYS)
            self.digested += entries
            if self.after is not None:
                self.after = digest_of(entries, self.after)
            for key, value in zip(some, theirs, strict=True):
                counter += 1
                rows[key] = Entry(epoch, counter, value)
                if value is None:
                    self.deleted[key] = counter
                else:
                    self.weight += len(value)
            self.weight += sum(map(len, some)) + ROW_OVERHEAD_BYTES * len(some)
            yield len(some) // KEYS_OF_WORK

    @property
    def whole(self) -> bool:
        """Whether all of it is worked out."""
        return 0 < len(self.digested) == len(self.write.keys)

    def spare(self, keys: Iterable[bytes]) -> None:
        """These keys have something newer already."""
        for key in keys:
            entry = self.rows.pop(key, None)
            if entry is not None:
                self.deleted.pop(key, None)
                self.weight -= ROW_OVERHEAD_BYTES + len(key) + len(entry.value or b"")

    def put_in(self, store: LayeredStore, fragment: FragmentState) -> None:
        """The write was marked as applied: its rows are there, all at once."""
        fragment.tombstones.update(self.deleted)
        rows, dead = store.layer_of(fragment.name)
        rows.update(self.rows)
        if dead:
            for key in [key for key in self.rows if key in dead]:
                del dead[key]
        for first in islice(self.deleted, 1):
            store.bury(fragment.name, first).update(dict.fromkeys(self.deleted))
        store.weigh(self.weight)


AllAhead: TypeAlias = dict[tuple[Fragment, int], Ahead]
"""What was worked out of some writes, by fragment and start."""


def work_out(writes: Sequence[Write], into: AllAhead, fragments: Mapping[Fragment, FragmentState]) -> Iterator[int]:
    """Work out some writes of these fragments; yields how much work each piece was."""
    for write in writes:
        fragment = fragments.get(write.fragment)
        before = fragment.digest if fragment is not None and fragment.counter.lwm == write.start else None
        ahead = into[(write.fragment, write.start)] = Ahead(write, before)
        yield from ahead.pieces()


def ahead_of(known: AllAhead, fragment: FragmentState, write: Write) -> Ahead | None:
    """What is known of a write that is applied now, without what has something newer; None where rows are in doubt."""
    ahead = known.pop((fragment.name, write.start), None)
    if ahead is None or ahead.write is not write or not ahead.whole or fragment.loading or fragment.suspects:
        return None
    end = write.end
    for later in fragment.beyond.values():  # whatever is newer lies above the gap which this write fills
        if later.start >= end:
            ahead.spare(later.keys)
    fragment.note_digested(write, ahead.digested, ahead.before, ahead.after)
    return ahead


def large_in(records: Sequence[Record], partition: Callable[[int], PartitionState]) -> list[Write]:
    """The large writes that come to count with some records, which of a commit were prepared in a `partition`."""
    writes: list[Write] = []
    for record in records:
        if isinstance(record, Update):
            writes += record.writes
        elif isinstance(record, Outcome) and record.commit:
            prepared = partition(record.partition).prepared.get(record.tx)
            writes += prepared.writes if prepared is not None else ()
    return [write for write in writes if len(write.keys) > LARGE_KEYS]
