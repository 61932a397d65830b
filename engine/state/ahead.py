"""What a large write makes of its fragment, worked out before it is applied.

To apply a write is one step, so that nobody ever sees half of it. Of many keys that step would be a long turn. But nearly
all of it depends on nothing but the write itself: which rows come of it, and what the digest of history takes in of each
key. So that is worked out first, in pieces, by whoever is about to apply it: a primary while its copies answer, a copy
before it logs the write and answers. The step that is left is to put it in, an order of magnitude quicker.

Nothing rests on it: it is dropped at will, and what is applied without it, as by recovery, comes to the same. Of the
fragment it says which digest comes after which, which whatever happens meanwhile makes none of it wrong. Only where rows
may be newer than the write without having come with a later one, in a copy that is being filled or has some in doubt, they
are looked at ahead, too: what a transfer brings then is looked at again, and where rows were emptied or undone all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TypeAlias

from engine.state.layer import RowsOf
from engine.state.store import ROW_OVERHEAD_BYTES, Entry, LayeredStore, is_dead
from rebalance.by_key import ByKey, put_in
from rebalance.chained import digest_of, entries_of
from rebalance.fragment import FragmentState
from rebalance.links import AllLinks
from rebalance.partition import PartitionState
from wal.ids import NO_ERA, Era, Fragment
from wal.probe import probe
from wal.records import History, Outcome, Record, Update, Write

LARGE_KEYS = 2_000
"""A write of more keys is worked out before it is applied."""
PIECE_KEYS = 1_000
KEYS_OF_WORK = 4
"""So many keys of what is worked out are as much work as one thing that is decided."""


class Ahead:
    """One write, as far as it is worked out. `rows` and `deleted` lie in parts, so to put them in takes no look at each.

    `before`: the digest of history where it is next, if it is known, and then `after` is what it will be. `newer`: of its
    keys those that have something at least as new already; None: nobody has looked. `noted`: the cut for which it is noted
    what it overwrites.
    """

    __slots__ = ("after", "again", "before", "deleted", "digested", "newer", "noted", "rows", "weight", "write")

    def __init__(self, write: Write, before: int | None = None) -> None:
        self.write = write
        self.before = self.after = before
        self.rows = ByKey[Entry]()
        self.deleted = ByKey[int]()  # the counter of each tombstone
        self.digested: list[bytes] = []  # what the digest takes in, key by key
        self.weight = 0
        self.newer: dict[bytes, None] | None = None
        self.noted: Era = NO_ERA
        self.again: dict[bytes, None] = {}  # what a transfer has brought of them since it was looked

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

    def look(self, store: LayeredStore, fragment: FragmentState) -> Iterator[int]:
        """Find out which of its rows are not to be written; yields how much work each piece was."""
        found = self.newer = {}
        self.again = {}
        keys = self.write.keys
        for at in range(0, len(keys), PIECE_KEYS):
            found |= self._newer_of(keys[at : at + PIECE_KEYS], store, fragment)
            yield PIECE_KEYS // 2
            if self.newer is not found:
                return  # it is void

    def look_again(self, store: LayeredStore, fragment: FragmentState) -> None:
        """The same of what a transfer has brought meanwhile."""
        if self.newer is not None:
            self.newer |= self._newer_of([key for key in self.again if key in self.rows], store, fragment)

    def _newer_of(self, keys: Iterable[bytes], store: LayeredStore, fragment: FragmentState) -> dict[bytes, None]:
        name, rows, doubt = fragment.name, self.rows, {} if fragment.loading else fragment.suspects
        found: dict[bytes, None] = {}
        for key in keys:
            if key in doubt:
                continue
            held, mine = store.get(name, key), rows[key]
            if held is not None and (held.epoch, held.counter) >= (mine.epoch, mine.counter):
                found[key] = None
        return found

    def spare(self, keys: Iterable[bytes]) -> None:
        """These keys have something newer already."""
        for key in keys:
            entry = self.rows.pop(key, None)
            if entry is not None:
                self.deleted.pop(key, None)
                self.weight -= ROW_OVERHEAD_BYTES + len(key) + len(entry.value or b"")

    def put_in(self, store: LayeredStore, fragment: FragmentState) -> None:
        """The write was marked as applied: its rows are there, all at once."""
        if fragment.loading:
            fragment.doubt(self.rows.mapped(attrgetter("counter")))  # until the transfer tells of the keys
        elif fragment.suspects:
            fragment.confirm([key for key in fragment.suspects if key in self.rows])
        fragment.bury_all(self.deleted)
        rows, dead = store.layer_of(fragment.name, len(self.rows))
        were = self._dead_in(rows) if dead else 0
        put_in(rows, self.rows)
        store.bury(fragment.name, len(self.deleted) - were)
        store.weigh(self.weight)

    def _dead_in(self, rows: RowsOf[Entry]) -> int:
        """Of how many of its keys it stands in a layer that they have no row."""
        theirs = rows.parts if isinstance(rows, ByKey) else repeat(rows)
        return sum(sum(map(is_dead, map(held.get, mine))) for held, mine in zip(theirs, self.rows.parts, strict=False))


AllAhead: TypeAlias = dict[tuple[Fragment, int], Ahead]
"""What was worked out of some writes, by fragment and start."""


class Watch:
    """Large writes whose rows are looked at ahead, by their fragments: what else happens to these they have to be told.

    So have the `links` to what a transfer brings.
    """

    def __init__(self, store: LayeredStore, links: AllLinks) -> None:
        self.store = store
        self._links = links
        self._writes: dict[Fragment, list[Ahead]] = {}

    def look(self, ahead: Ahead, fragment: FragmentState) -> Iterator[int]:
        """Look at the rows of one of them, and tell it until it is `done` or has to look anew."""
        probe("ahead.looked")
        self._writes.setdefault(fragment.name, []).append(ahead)
        yield from ahead.look(self.store, fragment)

    def done(self, ahead: Ahead) -> None:
        """It is applied."""
        name = ahead.write.fragment
        left = [each for each in self._writes.pop(name, ()) if each is not ahead]
        if left:
            self._writes[name] = left

    def brought(self, name: Fragment, keys: Iterable[bytes]) -> None:
        """A transfer has brought these rows."""
        for ahead in self._writes.get(name, ()):
            ahead.again |= dict.fromkeys(keys)

    def void(self, name: Fragment) -> None:
        """Rows were emptied, or are in doubt from now on."""
        self._links.void(name)
        self._look_anew(name)

    def _look_anew(self, name: Fragment) -> None:
        for ahead in self._writes.pop(name, ()):
            probe("ahead.looked_in_vain")
            ahead.newer = None

    def forget(self) -> None:
        """Another map came: all of them are begun anew."""
        for name in list(self._writes):
            self._look_anew(name)


def work_out(
    writes: Sequence[Write], into: AllAhead, fragments: Mapping[Fragment, FragmentState], watch: Watch
) -> Iterator[int]:
    """Work out some writes of these fragments; yields how much work each piece was."""
    for write in writes:
        fragment = fragments.get(write.fragment)
        before = fragment.digest if fragment is not None and fragment.counter.lwm == write.start else None
        ahead = into[(write.fragment, write.start)] = Ahead(write, before)
        yield from ahead.pieces()
    while unseen := [ahead for ahead in into.values() if ahead.newer is None and _in_doubt(fragments, ahead.write)]:
        for ahead in unseen:
            if (fragment := fragments.get(ahead.write.fragment)) is not None:
                yield from watch.look(ahead, fragment)


def _in_doubt(fragments: Mapping[Fragment, FragmentState], write: Write) -> bool:
    fragment = fragments.get(write.fragment)
    return fragment is not None and (fragment.loading or bool(fragment.suspects))


def ahead_of(known: AllAhead, fragment: FragmentState, write: Write, watch: Watch) -> Ahead | None:
    """What is known of a write that is applied now, without what has something newer; None where that is not known."""
    ahead = known.pop((fragment.name, write.start), None)
    if ahead is None or ahead.write is not write or not ahead.whole:
        return None
    if ahead.newer is not None:
        watch.done(ahead)
        ahead.look_again(watch.store, fragment)
    elif fragment.loading or (fragment.suspects and not ahead.rows.keys() <= fragment.suspects.keys()):
        return None  # what was undone is in doubt by every key, and issued again it stands in the place of all of them
    end = write.end
    for later in fragment.beyond.values():  # whatever is newer lies above the gap which this write fills
        if later.start >= end:
            ahead.spare(later.keys)
    ahead.spare(ahead.newer or ())
    fragment.note_digested(write, ahead.digested, ahead.before, ahead.after)
    return ahead


def large_in(records: Sequence[Record], partition: Callable[[int], PartitionState]) -> list[Write]:
    """The large writes that come to count with some records, which of a commit were prepared in a `partition`."""
    writes: list[Write] = []
    for record in records:
        if isinstance(record, Update | History):
            writes += record.writes
        elif isinstance(record, Outcome) and record.commit:
            prepared = partition(record.partition).prepared.get(record.tx)
            writes += prepared.writes if prepared is not None else ()
    return [write for write in writes if len(write.keys) > LARGE_KEYS]


def updates_of(records: Sequence[Record], known: AllAhead) -> Iterator[Ahead]:
    """Of what is worked out of some records that which is decided with them; of what era an outcome is, only it says."""
    for record in records:
        for write in record.writes if isinstance(record, Update) else ():
            if (ahead := known.get((write.fragment, write.start))) is not None:
                yield ahead
