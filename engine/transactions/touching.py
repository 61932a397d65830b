"""What a transaction touches in one partition: taken, looked at, and held until its outcome.

A pessimistic transaction has its locks, an optimistic one takes them now, and either looks whether what it rests on is as
it was. What is found so is pinned, so that nothing but its outcome changes it. Of very many keys each turn does a piece: a
piece that is pinned stays what it was found to be, so that all of them are when the last one is. If it comes to nothing
they are let go of in pieces, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from engine.data.holdings import Key, Passing
from engine.data.locking import Locking
from engine.data.waiter import Ring
from engine.data.writes import Writes
from engine.messages import Part
from engine.protocol.operations import holds
from engine.state.ahead import LARGE_KEYS
from engine.state.store import GONE as NOTHING
from engine.turn.core import Core
from rebalance.ports import MS, WORK_MAX
from wal.ids import TxId
from wal.probe import probe


class Want(NamedTuple):
    """What is to be held, in whose name. `votes`: nobody is to be told meanwhile what the keys hold that it writes."""

    tx: TxId
    owner: TxId
    part: Part
    optimistic: bool
    votes: bool


class Refusal(NamedTuple):
    """Why it cannot be. `unmet`: a condition does not hold."""

    reason: str
    unmet: bool = False


INTERRUPTED = Refusal("another map came, or its end, before all was held")
"""Nothing is to be said: whoever asked asks again, or wants it no more."""

Then: TypeAlias = Callable[[Refusal | None], None]
"""Told None when all is held and as it was; otherwise nothing is held in the partition, but what a pessimistic transaction
that was interrupted has locked."""
Still: TypeAlias = Callable[[], bool]
"""Whether it is wanted as it was when it was asked for: asked where a turn, or more, came in between."""


class _Large:
    """One of very many keys, on its way."""

    __slots__ = ("ended", "epoch", "left", "still", "taken", "then", "want")

    def __init__(self, want: Want, epoch: int, still: Still, then: Then) -> None:
        self.want = want
        self.epoch = epoch  # in which it began: in another one its keys were anybody's
        self.ended = False
        self.still = still
        self.then = then
        self.left = deque(pieces_of(want.part))
        self.taken: list[Part] = []


class Touching:
    """Of all transactions in the partitions that one node leads."""

    def __init__(self, core: Core, writes: Writes, locking: Locking) -> None:
        self.core = core
        self.writes = writes
        self.locking = locking
        self.locks = locking.locks
        self._in_line: dict[tuple[TxId, int], TxId] = {}  # whose keys, of this owner, wait for the outcomes of others
        self._rests: dict[tuple[TxId, int], TxId] = {}  # what these have read is of a commit that does not count yet
        self._large: dict[tuple[TxId, int], _Large] = {}

    def is_under_way(self, tx: TxId, number: int) -> bool:
        """Whether it is being held, and whoever asked will be told."""
        at = (tx, number)
        return at in self._in_line or at in self._large or at in self._rests

    def end(self, tx: TxId, number: int, owner: TxId) -> None:
        """The transaction is aborted: what it holds there is given up, and what it does not hold yet is not wanted."""
        if (large := self._large.get((tx, number))) is not None:
            large.ended = True
        if (waits := self._in_line.get((tx, number))) is not None:
            self.locks.give_way(waits, ())
        self._rests.pop((tx, number), None)
        self._give_up(owner, number)

    def _give_up(self, owner: TxId, number: int) -> None:
        """Release a transaction's locks in one partition, where it does not wait for an outcome."""
        self.core.in_pieces(self.locks.giving_up_in(owner, number))

    def pin_all(self, want: Want, *, still: Still, then: Then) -> None:
        """Hold all that a part touches, or nothing of it."""
        part = want.part
        if self._large and (want.tx, part.partition) in self._large:
            probe("tx.asked_while_it_is_let_go_of")
            then(INTERRUPTED)  # it was asked for before: what it held then is being let go of
            return
        count = sum([len(keys) for _, keys, _ in part.writes]) + len(part.locks) + len(part.reads) + len(part.conditions)
        if count > LARGE_KEYS:
            epoch = self.core.local[part.partition].epoch
            large = self._large[(want.tx, part.partition)] = _Large(want, epoch, still, then)
            self.core.in_pieces(self._go_on(large))
            return
        self.core.work += count
        if (before := self._rests_on(want, part)) is not None:
            probe("tx.waits_for_the_one_before")
            self._rests[want.tx, part.partition] = want.owner
            before.behind.append(partial(self._counts, want, still, then))
        elif want.optimistic and (blocked := self._take(want, part)) is not None:
            self._take_later(want, part, blocked, lambda refusal: then(self._waited(want, still, refusal)))
        else:
            then(self._pin(want, part))

    def _waited(self, want: Want, still: Still, refusal: Refusal | None) -> Refusal | None:
        if not still():
            self._give_up(want.owner, want.part.partition)
            return INTERRUPTED
        return refusal or self._pin(want, want.part)

    def _rests_on(self, want: Want, part: Part) -> Passing | None:
        """What must count before a part is looked at: whose commit it has read before it did."""
        return self.locks.rests_on(want.owner, [*part.written, *part.seen]) if self.locks.handed else None

    def _counts(self, want: Want, still: Still, then: Then, counts: bool) -> None:
        """What a part rests on counts by now, as far as it lies in this partition; or another node is to lead that."""
        if self._rests.pop((want.tx, want.part.partition), None) is None:
            return  # it was aborted
        if counts and still():
            self.pin_all(want, still=still, then=then)
            return
        probe("tx.rested_in_vain")
        if want.optimistic:
            self._give_up(want.owner, want.part.partition)
        then(INTERRUPTED)

    def _pin(self, want: Want, part: Part) -> Refusal | None:
        """Look at what is taken, and pin it; or give all up."""
        refusal = self._objection(want, part)
        if refusal is None:
            self.locks.pin(want.owner, part.written, part.seen, in_doubt=want.votes, sure=not want.optimistic)
        else:
            self._give_up(want.owner, part.partition)
        return refusal

    # Very many.

    def _go_on(self, large: _Large) -> Iterator[int]:
        want, refusal = large.want, None
        while (wanted := self._is_wanted(large)) and large.left:
            piece = large.left[0]
            if (before := self._rests_on(want, piece)) is not None:
                before.behind.append(lambda counts: self._piece_waited(large, None if counts else INTERRUPTED))
                return
            if want.optimistic and (blocked := self._take(want, piece)) is not None:
                probe("tx.a_piece_is_blocked")
                self._take_later(want, piece, blocked, lambda refused: self._piece_waited(large, refused))
                return
            refusal = self._objection(want, piece)
            if refusal is not None:
                break
            self.locks.pin(want.owner, piece.written, piece.seen, in_doubt=want.votes, sure=not want.optimistic)
            large.taken.append(large.left.popleft())
            yield len(piece.reads) + LARGE_KEYS // 4 if large.left else WORK_MAX  # what is done with all is another turn
        if wanted and refusal is None:
            del self._large[want.tx, want.part.partition]
            large.then(None)
        else:
            yield from self._undo(large, refusal or INTERRUPTED)

    def _is_wanted(self, large: _Large) -> bool:
        return not large.ended and large.epoch == self.core.local[large.want.part.partition].epoch and large.still()

    def _piece_waited(self, large: _Large, refusal: Refusal | None) -> None:
        if refusal is None:
            self.core.in_pieces(self._go_on(large))
        else:
            self.core.in_pieces(self._undo(large, refusal))

    def _undo(self, large: _Large, refusal: Refusal) -> Iterator[int]:
        """Nothing came of it: what was pinned is no more, and goes with the rest, but for what is to be asked again."""
        want, number = large.want, large.want.part.partition
        probe("tx.pinned_in_vain")
        for piece in large.taken:
            self.locks.unpin(want.owner, piece.written, piece.seen)
            if want.votes:
                self.locking.reads.outcome_known(piece.written)
            yield LARGE_KEYS // 4
        if want.optimistic or large.ended or refusal is not INTERRUPTED:
            yield from self.locks.giving_up_in(want.owner, number)
        del self._large[want.tx, number]
        if not large.ended:
            large.then(refusal)

    # What is taken.

    def _take(self, want: Want, part: Part) -> Key | None:
        """Have all that an optimistic transaction touches; or nothing, and what stood in the way."""
        return self.locks.try_all(want.owner, part.written, part.seen)

    def _take_later(self, want: Want, part: Part, blocked: Key, then: Then) -> None:
        """The same where `blocked` stood in the way; `then` is told why it cannot be had at all, or nothing.

        It does not wait for others, but for what ends by itself: who was told that a transaction is done meets the keys of
        that one where its outcome does not count yet. What it has read and they change is changed.
        """
        locks, at = self.locks, (want.tx, part.partition)
        seen = dict.fromkeys((ns, key) for ns, key, _, _ in part.reads)
        late = [key for key in part.written if locks.ends_by_itself(key) and not (key in seen and locks.owned(key))]

        def refuse() -> None:
            probe("tx.optimistic_lock_conflict")
            self.locks.give_up(want.owner, [*part.written, *part.seen])
            then(Refusal(f"{blocked[0]}:{blocked[1]!r} is being changed by another transaction"))

        def granted() -> None:
            self._in_line.pop(at, None)
            if self._take(want, part) is None:
                then(None)
            else:
                refuse()

        def expired(_held: str, _ring: Ring) -> None:
            self._in_line.pop(at, None)
            refuse()

        if blocked not in late:
            refuse()
            return
        probe("tx.waits_for_an_outcome")
        self._in_line[at] = want.owner
        until = self.core.now + self.core.settings.in_doubt_ms * MS
        locks.wait_all(want.owner, late, until, granted, expired, holding=want.votes)  # it may have voted elsewhere

    # What it rests on.

    def _objection(self, want: Want, part: Part) -> Refusal | None:
        """Why a part cannot be voted for, though it is taken; or nothing."""
        stale, owner = "", want.owner
        if not want.optimistic:
            stale = self.locking.conflict(owner, part.locks, part.reads, part.written)
        elif part.reads:
            stale = self.locking.conflict(owner, [], part.reads)
        if part.conditions and not stale:
            stale = self._expired(owner, part)
        if self.core.namespaces and not stale:
            stale = next(filter(None, (self.writes.admission.unusable(ns) for ns, _, _ in part.writes)), "")
        if stale:
            probe("tx.conflict")
            return Refusal(stale)
        return self._unmet(part) if part.conditions else None

    def _expired(self, owner: TxId, part: Part) -> str:
        """Which key of a condition has expired and is there still: it is being deleted, and will be absent; or nothing."""
        expiry = self.writes.expiry
        for namespace, key, *_ in part.conditions:
            if over := expiry.over(namespace, [key], owner):
                probe("tx.condition_on_what_expired")
                expiry.delete_first(over, lambda: None, owner=owner)
                return f"{namespace}:{key!r} has expired, and is being deleted"
        return ""

    def _unmet(self, part: Part) -> Refusal | None:
        """Which condition of a part does not hold."""
        for namespace, key, when, old, *at in part.conditions:
            held = self.core.replica.store.get((namespace, part.partition), key)
            there = held if held is not None and held.value is not None else NOTHING
            if not holds(when, old, (at[0], at[1]), there.value, (there.epoch, there.counter)):
                probe("tx.condition_unmet")
                return Refusal(f"{namespace}:{key!r} does not meet the condition {when}", unmet=True)
        return None


def pieces_of(part: Part) -> Iterator[Part]:
    """A part in pieces that a turn can look at. Each is of one kind: nothing is in two of them but where it was twice."""
    number = part.partition
    for namespace, keys, values in part.writes:
        for at in range(0, len(keys), LARGE_KEYS):
            end = at + LARGE_KEYS
            yield Part(number, [(namespace, keys[at:end], values[at:end])], [], [], conditions=[], ttls=[])
    for at in range(0, len(part.locks), LARGE_KEYS):
        yield Part(number, [], part.locks[at : at + LARGE_KEYS], [], conditions=[], ttls=[])
    for at in range(0, len(part.reads), LARGE_KEYS):
        yield Part(number, [], [], part.reads[at : at + LARGE_KEYS], conditions=[], ttls=[])
    for at in range(0, len(part.conditions), LARGE_KEYS):
        yield Part(number, [], [], [], conditions=part.conditions[at : at + LARGE_KEYS], ttls=[])
