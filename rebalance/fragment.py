"""One copy of one fragment: its counter, its epochs, its digest, and the tail that is not yet known to be everywhere.

```
        stable                lwm          highest
 ---------|===================|....====...|       === applied and kept in the tail, ... gap
  stable           tail           tail
```

Everything at or below `stable` is durable on every in-sync copy (the primary says so with each write: `Write.stable`).
What lies above is kept here, write by write, because it may still be needed: a new primary fetches from the survivors
what it lacks of it, re-issues it in its own epoch, and a copy whose suffix was not continued undoes it. So the tail is
small (what was in flight), it is all that a failover needs, and neither reads the log.

The epoch table says which epoch issued each counter up to LWM: it is the run-length encoding of the epochs of the
applied writes, and a primary's `EpochStart` adds the run that begins now. The digest is chained over (counter, issuing
epoch, outcome, key, value) as LWM advances: equal epoch table and LWM mean equal contents, and the digest would tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeAlias, TypeVar

from xxhash import xxh3_64_intdigest

from rebalance.by_key import FEW, put_in, roomy
from rebalance.chained import DIGEST_EVERY, DIGESTS_KEPT, PUT, chain, digest_of, pack
from rebalance.epochs import Epochs, epoch_at, noted, one_table
from rebalance.links import Links, writes_between
from wal.counters import PartitionCounter
from wal.ids import COUNTER_MAX, Fragment, fragment_name
from wal.records import Write


class CannotUndo(Exception):
    """The suffix to undo reaches below what the tail remembers: the copy must be cleared and taken in full."""


KNOWN, NEW, NEWEST = range(3)
"""What `FragmentState.apply` says of a write."""
_Digested: TypeAlias = tuple[Write, list[bytes], int | None, int | None]
"""See `FragmentState.note_digested`."""
_K = TypeVar("_K")
_V = TypeVar("_V")

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""What is mostly empty is this one, and not a dict for each of very many fragments."""


class FragmentState:
    """One copy of one fragment. It changes only by the methods below, in the order of the log.

    Invariants: stable <= lwm; the tail (`unstable` up to lwm, `beyond` above a gap) holds every applied write above stable
    and nothing else; the epoch table ascends in both epoch and first counter; `digest` is the digest at lwm.

    A node has very many of them, and at rest nearly all have no tail, no suspects and no tombstones. So these are nothing
    at all while they are empty, and whoever looks may not change them.
    """

    __slots__ = (
        "beyond",
        "changed_for",
        "counter",
        "digest",
        "digested",
        "digests",
        "dropped",
        "epochs",
        "history_from",
        "loading",
        "name",
        "pruned",
        "stable",
        "stable_digest",
        "suspects",
        "tombstones",
        "unstable",
    )

    def __init__(self, name: Fragment) -> None:
        self.name = name
        self.counter = PartitionCounter()
        self.epochs: Epochs = ()
        self.stable = 0
        self.stable_digest = 0
        self.digest = 0
        self.unstable: list[tuple[int, int, Write]] | tuple[()] = ()  # (end, digest there, write), to lwm; short
        self.beyond: Mapping[int, Write] = NOTHING  # by start, above a gap
        self.digests: tuple[tuple[int, int], ...] = ()
        self.digested: dict[int, _Digested] | None = None  # of large writes, what was worked out
        self.loading = False  # emptied, and not whole yet: its counters count for nothing
        self.history_from = 0  # the log holds every write above this counter
        self.suspects: Mapping[bytes, int] = NOTHING  # rows that may be wrong: undone, or of a counter, live while loading
        self.changed_for = 0  # the checkpoint that is the first to have it as it is now, by number
        self.tombstones: Mapping[bytes, int] = NOTHING  # deletes in the store that may go when stable has passed them
        self.pruned = 0  # each delete that may go when this counter is stable has gone
        self.dropped = 0  # no delete above this counter has gone from the store

    # The life of a copy.

    def follow(self, write: Write) -> bool:
        """What `apply` does for a put of one key that is simply the next update; else False, and nothing changes.

        Where the tail is empty it is not taken: that a fragment has one is noted by whoever goes the general way.
        Nearly every update is of this kind, and this is several times quicker; a test holds the two against each other.
        """
        keys, values, start, epochs = write.keys, write.values, write.start, self.epochs
        if (
            len(keys) != 1
            or len(values) != 1
            or write.closed
            or self.loading
            or self.suspects
            or not self.unstable
            or not epochs
            or epochs[-1][0] != write.epoch
            or (value := values[0]) is None
            or not self.counter.step(start, 1)
        ):
            return False
        end, before, unstable, stable = start + 1, self.digest, self.unstable, write.stable
        entry = pack(end, write.origin or write.epoch, PUT, xxh3_64_intdigest(value))
        digest = self.digest = xxh3_64_intdigest(entry + keys[0], before)
        if stable == start:  # all that was here before is on every in-sync copy
            unstable.clear()
            self.stable, self.stable_digest = start, before
        unstable.append((end, digest, write))
        if not end % DIGEST_EVERY:
            self._keep_digest()
        if stable > self.stable:
            self._forget_tail(stable)
        return True

    def apply(self, write: Write) -> int:
        """Mark a write applied: KNOWN if it was already, NEWEST if nothing later is here, else NEW.

        Raises CounterOverlap if histories clash.
        """
        counter = self.counter
        start = write.start
        stable = write.stable
        delta = write.closed or len(write.keys)
        if counter.step(start, delta):  # the next one, and nothing beyond a gap: how it nearly always is
            how = NEW if self.loading else NEWEST
            self._pass_over(write, start, start + delta)
        else:
            how = NEW
            lwm = counter.lwm
            if not counter.update(start, delta):
                return KNOWN
            self._put_beyond(write)
            if start == lwm:
                stable = max(stable, self._pass(lwm))
        if stable > self.stable:
            self._forget_tail(stable)
        return how

    def _pass_over(self, write: Write, start: int, end: int) -> None:
        """LWM moved over one write: so do the epoch table and the digest."""
        epochs = self.epochs
        if not epochs or epochs[-1][0] != write.epoch:
            self.epochs = noted(epochs, write.epoch, write.start + 1, self)
        digest = self.digest = chain(self.digest, write) if not self.digested else self.digest_after(self.digest, write)
        if self.unstable:
            self.unstable.append((end, digest, write))
        else:
            self.unstable = [(end, digest, write)]
        if end // DIGEST_EVERY != start // DIGEST_EVERY:
            self._keep_digest()

    def _keep_digest(self) -> None:
        assert self.unstable, "a write was just put there"
        end, digest, _ = self.unstable[-1]
        self.digests = (*self.digests[1 - DIGESTS_KEPT :], (end, digest))

    def _pass(self, at: int) -> int:
        """LWM moved from `at` over the writes that lie between; what they said of those before them holds here now."""
        lwm, stable, beyond = self.counter.lwm, 0, own(self.beyond)
        while at < lwm:
            write = beyond.pop(at)
            end = write.end
            self._pass_over(write, at, end)
            at, stable = end, max(stable, write.stable)
        assert at == lwm, f"{self}: a write crosses lwm"
        self.beyond = beyond or NOTHING
        return stable

    def _put_beyond(self, write: Write) -> None:
        beyond = self.beyond
        if isinstance(beyond, dict):
            beyond[write.start] = write
        else:
            self.beyond = {write.start: write}

    def note_digested(self, write: Write, entries: list[bytes], before: int | None, after: int | None) -> None:
        """Somebody has worked out what the digest takes in of a write that is about to be applied: `entries_of` it all, and
        which digest comes `after` which, if that is known."""
        self.digested = {**(self.digested or {}), write.start: (write, entries, before, after)}

    def digest_after(self, digest: int, write: Write) -> int:
        """As `chain` has it; with what was worked out of this write, and of no other one at the same counters."""
        if not self.digested:
            return chain(digest, write)
        known, entries, before, after = self.digested.pop(write.start, (None, [], None, None))
        if known is not write:
            return chain(digest, write)
        return after if after is not None and before == digest else digest_of(entries, digest)

    def note_stable(self, stable: int) -> bool:
        """Everything up to `stable` is on every in-sync copy: forget the tail up to there. True if there was some.

        Not while loading: a transfer may still say that less than that is whole here.
        """
        forgot = self._forget_tail(stable)
        if not self.unstable:
            self.unstable = ()  # for how long, nobody knows
        return forgot

    def _forget_tail(self, stable: int) -> bool:
        if self.loading:
            return False
        unstable, count = self.unstable, 0
        for end, digest, _ in unstable:
            if end > stable:
                break
            self.stable, self.stable_digest = end, digest
            count += 1
        if unstable:
            del unstable[:count]
        return count > 0

    def begin_epoch(self, epoch: int, first: int) -> list[Write]:
        """The counters from `first` on belong to `epoch`; return what was applied there in older epochs, now undone.

        An epoch older than one that is known already says nothing (a replayed or repeated record).
        """
        if self.epochs and self.epochs[-1][0] >= epoch:
            return []
        undone = self.cut(first - 1)
        kept = self.epochs[:-1] if self.epochs and self.epochs[-1][1] >= first else self.epochs
        self.epochs = one_table((*kept, (epoch, first)))
        return undone

    def cut(self, above: int) -> list[Write]:
        """Undo every write above `above`, and return them in order; their keys become suspects.

        Raises CannotUndo, and changes nothing, if some of them are forgotten already.
        """
        if self.counter.highest_applied <= above:
            return []
        if above < self.stable:
            raise CannotUndo(f"{self}: cannot undo down to {above}, the tail begins at {self.stable}")
        undone = [write for write in self.tail() if write.end > above]
        assert all(w.start >= above for w in undone), f"{self}: a cut at {above} would split a write"
        lwm = self.counter.lwm
        self.counter.cut(above)
        self.unstable = [each for each in self.unstable if each[0] <= above] or ()
        self.beyond = {start: w for start, w in self.beyond.items() if w.end <= above} or NOTHING
        self.doubt(dict.fromkeys((key for write in undone for key in write.keys), 0))
        if above < lwm:
            self.digest = self.unstable[-1][1] if self.unstable else self.stable_digest
            self.digests = tuple(d for d in self.digests if d[0] <= above)
        self.epochs = one_table(tuple(e for e in self.epochs if e[1] <= above))
        return undone

    def clear(self, *, loading: bool) -> None:
        """Forget everything; while `loading`, the counters count for nothing until `ready`."""
        self.__init__(self.name)  # type: ignore[misc]  # a cleared fragment is a new one
        self.loading = loading

    def ready(
        self, lwm: int, digest: int, epochs: Iterable[tuple[int, int]], *, full: bool, links: Links | None = None
    ) -> int:
        """A transfer up to `lwm` is complete: what the supplier had there holds here.

        `links`: how some of what came live follows on that. Returns how many keys were still to be linked.
        """
        linked = 0
        if full:
            for start, delta in self.counter.missing(lwm):
                self.counter.update(start, delta)
            if links is None or links.after != (lwm, digest):
                links = Links(lwm, digest)
            linked = links.go_on(self, COUNTER_MAX)
            end = self.counter.lwm
            assert links.at == end, f"{self}: a write crosses {lwm}, or lwm"
            if self.counter.highest_applied == end:
                self.beyond = NOTHING
            else:
                self.beyond = {write.start: write for write in writes_between(self, end, COUNTER_MAX)}
            self.unstable = links.writes
            self.stable, self.stable_digest, self.digest = links.stable, links.stable_digest, links.digest
            self.digests = links.digests
            self.epochs = one_table(tuple(epochs))
            for write in links.begins:
                self.epochs = noted(self.epochs, write.epoch, write.start + 1, self)
            self.history_from = max(lwm, self.history_from)  # the log may have lost live writes since
            self.loading = False
            self.note_stable(links.said)
        assert not self.loading, f"{self}: a fragment that was cleared needs a full transfer"
        return linked

    @classmethod
    def from_stable(cls, name: Fragment, stable: tuple[int, int], epochs: list[tuple[int, int]], tail: list[Write]) -> Self:
        """A copy as a checkpoint kept it: the counter that was stable and the digest there, and what lies above.

        Raises ValueError if a counter was kept twice.
        """
        state = cls(name)
        state.stable, state.stable_digest = stable
        state.digest = state.stable_digest
        state.counter = PartitionCounter(state.stable)
        for write in tail:
            if not state.counter.update(write.start, write.delta):
                raise ValueError(f"{fragment_name(name)}: the checkpoint holds {write.start} twice")
            state._put_beyond(write)
        state.epochs = one_table(tuple(epochs))
        state._pass(state.stable)
        return state

    # Its rows, as far as they are not simply there.

    def doubt(self, rows: Mapping[bytes, int]) -> None:
        """The rows of these keys may be wrong: each with the counter that it has by a live write, while loading; or 0."""
        suspects = roomy(self.suspects, len(rows))
        put_in(suspects, rows)
        self.suspects = suspects or NOTHING

    def doubt_live(self, key: bytes, counter: int) -> None:
        """The same of a key that was written live while loading."""
        suspects = self.suspects
        if not isinstance(suspects, dict) or len(suspects) >= FEW:
            self.suspects = suspects = roomy(suspects, 1)
        suspects[key] = counter

    def confirm(self, keys: Iterable[bytes]) -> None:
        """They are right."""
        if self.suspects:
            suspects = roomy(self.suspects)
            for key in keys:
                suspects.pop(key, None)
            self.suspects = suspects or NOTHING

    def bury(self, key: bytes, counter: int) -> None:
        """A key was deleted by the update with this counter."""
        tombstones = self.tombstones
        if not isinstance(tombstones, dict) or len(tombstones) >= FEW:
            self.tombstones = tombstones = roomy(tombstones, 1)
        tombstones[key] = counter

    def bury_all(self, deleted: Mapping[bytes, int]) -> None:
        """The same of many keys."""
        tombstones = roomy(self.tombstones, len(deleted))
        put_in(tombstones, deleted)
        self.tombstones = tombstones or NOTHING

    def drop_tombstone(self, key: bytes) -> int:
        """A delete need not be remembered any more; its counter, 0 if it was not."""
        tombstones = roomy(self.tombstones)
        counter = tombstones.pop(key, 0)
        self.tombstones = tombstones or NOTHING
        return counter

    # What it says of itself.

    def tail(self) -> list[Write]:
        """Every applied write above stable, in order."""
        return [*(write for _, _, write in self.unstable), *self.above_lwm()]

    def above_lwm(self) -> list[Write]:
        """Of these what lies above a gap."""
        return sorted(self.beyond.values(), key=_start)

    @property
    def history(self) -> list[tuple[int, int]]:
        """The epoch table without epochs in which nothing was written: what two copies compare."""
        lwm = self.counter.lwm
        return [e for e in self.epochs if e[1] <= lwm]

    def epoch_at(self, counter: int) -> int:
        """The epoch that issued `counter`."""
        return epoch_at(self.epochs, counter)

    def digest_at(self, counter: int) -> int | None:
        """The digest at `counter`, if it is still known."""
        if counter == self.counter.lwm:
            return self.digest
        if counter == self.stable:
            return self.stable_digest
        if counter == 0:
            return 0
        known = next((d for c, d in self.digests if c == counter), None)
        if known is None and counter > self.stable:
            known = next((d for c, d, _ in self.unstable if c == counter), None)
        return known

    def recent_digests(self) -> list[tuple[int, int]]:
        """(counter, digest) pairs to compare with a supplier, oldest first, lwm last."""
        return [*self.digests[-4:], (self.stable, self.stable_digest), (self.counter.lwm, self.digest)]

    def lacking(self, lwm: int, ranges: list[tuple[int, int]]) -> list[Write]:
        """The writes of the tail that a copy with this lwm and these ranges lacks, in order."""
        if self.counter.highest_applied <= lwm:
            return []
        covered = PartitionCounter(lwm)
        for start, delta in ranges:
            covered.update(start, delta)
        return [w for w in self.tail() if not covered.covers(w.start, w.delta)]

    def check(self) -> None:
        """Assert the whole invariant; for tests and the simulator."""
        self.counter.check()
        assert self.stable <= self.counter.lwm, f"{self}: stable {self.stable} is above lwm"
        covered = PartitionCounter(self.stable)
        for write in self.tail():
            assert covered.update(write.start, write.delta), f"{self}: {write.start} is in the tail twice"
        assert (covered.lwm, covered.ranges) == (self.counter.lwm, self.counter.ranges), f"{self}: tail says {covered}"
        for (epoch, first), (next_epoch, next_first) in zip(self.epochs, self.epochs[1:], strict=False):
            assert epoch < next_epoch, f"{self}: epochs do not ascend: {self.epochs}"
            assert first < next_first, f"{self}: first counters do not ascend: {self.epochs}"
        digest = self.stable_digest
        for end, there, write in self.unstable:
            digest = chain(digest, write)
            assert digest == there, f"{self}: the digest at {end} is not that of its history"
        assert digest == self.digest, f"{self}: the digest is not that of its history"

    def __str__(self) -> str:
        flags = " loading" if self.loading else ""
        return f"{fragment_name(self.name)} {self.counter}{flags}"

    def __repr__(self) -> str:
        return f"<FragmentState {self}>"


def own(found: Mapping[_K, _V]) -> dict[_K, _V]:
    """What a fragment has, to be changed: a new one where it has `NOTHING`."""
    return found if isinstance(found, dict) else {}


def _start(write: Write) -> int:
    return write.start
