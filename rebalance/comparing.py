"""Whether a copy has the contents of its primary, asked before the primary vouches for it.

```
 primary                                         MOVING copy, caught up and waited for
 Compare(round), among its writes ------------>  sums up what it has, there and then
 sums up what it has, when that has counted
                                   <-----------  Settled(compared=round, contents)
 equal: vouches.  Another digest: Settle(wrong), and the copy takes the fragment in full again.
```

Writes go on all the while, so "now" means nothing: the record stands between the writes, and both sides look at what they
have when they come to it. Whoever does not stand at the same counters then (a batch was lost, and is sent again) cannot
be compared, and is asked anew. Summing up is cut into pieces; what was captured does not change meanwhile.

Mostly nobody has to ask. A copy that says it is settled says with it what it contains, if that takes a little, and if its
primary stands at the same counters then, it has been waited for from there on, and was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

import msgspec

from rebalance.contents import Walk
from rebalance.fragment import FragmentState
from rebalance.messages import Contents
from rebalance.partition import LocalPartition
from rebalance.ports import LITTLE, WORK_MAX, Node
from rebalance.telling import no_contents
from wal import records as r
from wal.ids import Digest, Fragment, Namespace, NodeId
from wal.probe import probe

ROWS_AT_ONCE = 500
RANGES_MAX = 64
"""With more gaps than this a copy is in no state to be compared."""

AT_ONCE = ROWS_AT_ONCE
"""Rows of a partition that were written since the last checkpoint: with no more a copy says what it contains unasked."""

CHANGED_MAX = 1_000
"""In the rounds of anti-entropy a fragment of which more keys were written since the last checkpoint is compared after the
next one, when its digest is at hand: to sum up in each round what is written all the time would cost as much as writing."""

Later: TypeAlias = Callable[[Callable[[], None]], None]
Told: TypeAlias = Callable[[list[Contents] | None], None]
"""Is told what a copy contains, or None: that cannot be said."""
Known: TypeAlias = Callable[[FragmentState], Digest | None]
"""What a fragment contains, where that is known already."""


def _unknown(_: FragmentState) -> Digest | None:
    return None


def sum_up(
    core: Node,
    partition: int,
    told: Told,
    *,
    changed_max: int | None = None,
    known: Known = _unknown,
    later: Later | None = None,
) -> None:
    """Sum up what this node has of a partition at this very moment, and tell, now or in one of the next turns.

    `changed_max`: nobody waits for it, and fragments of which more keys than that were written since the last checkpoint
    are left out. `later`: who has it go on, where not the node.

    One batch may ask about a hundred partitions: each is captured at its place among the writes, and summed up when a turn
    has room for it.
    """
    fragments = core.replica.partition(partition).fragments
    if any(f.loading or f.suspects or len(f.counter.ranges) > RANGES_MAX for f in fragments.values()):
        told(None)
        return
    core.work += len(fragments)
    walks: list[tuple[Contents, Callable[[], Walk | None]]] = []
    found: list[Contents] = []
    for fragment in fragments.values():
        counter = fragment.counter
        if (digest := known(fragment)) is not None:
            found.append(Contents(fragment.name[0], counter.lwm, [], digest, fragment.digest))
            continue
        if changed_max is not None and core.replica.store.changed(fragment.name) > changed_max:
            probe("contents.left_out")
            continue
        walk = core.replica.store.walk(fragment.name)
        walks.append((Contents(fragment.name[0], counter.lwm, list(counter.ranges), 0, fragment.digest), walk))
    room, usual = (WORK_MAX, core.resume) if changed_max is None else (LITTLE, core.put_off)
    summing = _Sum(core, walks, found, told, later or usual)
    if core.work < room:
        summing.go_on()
    else:
        probe("contents.summed_up_later")
        summing.later(summing.go_on)


def contents_now(core: Node, partition: int, *, most: int = AT_ONCE, known: Known = _unknown) -> list[Contents] | None:
    """What this node has of a partition at this very moment, where no more rows than `most` lie in no checkpoint, and fewer
    large ones; else None."""
    store, fragments = core.replica.store, core.replica.partition(partition).fragments
    found: list[Contents] = []
    left = most
    for name, fragment in fragments.items():
        if fragment.loading or fragment.suspects or fragment.counter.ranges:
            return None
        if (digest := known(fragment)) is not None:
            found.append(Contents(name, fragment.counter.lwm, [], digest, fragment.digest))
            continue
        if store.changed(fragment.name) > max(left, 0):
            return None
        walk = store.walk(fragment.name)()
        if walk is None:
            continue  # as in `_Sum`
        if not walk.done:
            work = walk.step(left)
            core.work += work
            left -= work
        if not walk.done:
            return None
        digest = store.walked(walk)
        if digest is None:
            return None
        found.append(Contents(name, fragment.counter.lwm, [], digest, fragment.digest))
    core.work += len(fragments)
    return found


def wrong_in(ours: list[Contents], said: list[Contents]) -> list[Namespace] | None:
    """The namespaces in which two copies have something else; None if they did not stand at the same counters."""
    mine, theirs = ({c.namespace: c for c in contents} for contents in (ours, said))
    pairs = [(mine.get(ns) or no_contents(ns), theirs.get(ns) or no_contents(ns)) for ns in mine | theirs]
    if any((a.lwm, a.ranges) != (b.lwm, b.ranges) for a, b in pairs):
        return None
    return [a.namespace for a, b in pairs if a.digest != b.digest]


class _Sum:
    """The contents of one partition, while they are summed up."""

    def __init__(
        self,
        core: Node,
        walks: Sequence[tuple[Contents, Callable[[], Walk | None]]],
        found: list[Contents],
        told: Told,
        later: Later,
    ) -> None:
        self.later = later
        self._core = core
        self._walks = walks
        self._told = told
        self._at = 0
        self._walk: Walk | None = None  # the one that is under way
        self._found = found

    def go_on(self) -> None:
        """Do a piece."""
        core, store, left = self._core, self._core.replica.store, ROWS_AT_ONCE
        while self._at < len(self._walks):
            if left <= 0:
                self.later(self.go_on)
                return
            there, begin = self._walks[self._at]
            walk = self._walk = self._walk or begin()
            if walk is None:
                probe("contents.unknown")
                self._at += 1
                continue  # an older version wrote it, and nothing has changed it since: there is nothing to compare with
            if store.overtaken(walk):
                probe("contents.overtaken_by_a_checkpoint")
                self._told(None)
                return
            seen = walk.step(left)
            core.work += seen + 1
            left -= seen + 1
            if not walk.done:
                self.later(self.go_on)
                return
            self._walk = None
            digest = store.walked(walk)
            assert digest is not None, "no checkpoint came in between"
            self._found.append(msgspec.structs.replace(there, digest=digest))
            self._at += 1
        self._told(self._found)


class OneByOne:
    """What partitions contain that are compared although nobody waits for it: one is summed up after the other.

    However many are asked about, they have the place of one in what a turn does of such things. With a place each they
    would keep all else of it from getting on, a checkpoint first of all, wherever more is asked than turns have room for.
    Of a partition the last question counts: whoever asked before is told that it cannot be said, and asks again.
    """

    def __init__(self, core: Node) -> None:
        self._core = core
        self._asked: dict[int, Told] = {}  # by partition: who is to be told
        self._waiting: dict[int, Callable[[], None]] = {}  # what a turn had no room for, in its order
        self._going = False
        self._left = False  # something, of the first one

    def sum_up(self, number: int, told: Told) -> None:
        """As `sum_up`, of what is not written all the time."""
        if (before := self._asked.pop(number, None)) is not None:
            probe("contents.asked_anew")
            before(None)

        def found(contents: list[Contents] | None) -> None:
            if self._asked.get(number) is told:
                del self._asked[number]
                told(contents)

        self._asked[number] = told
        sum_up(self._core, number, found, changed_max=CHANGED_MAX, later=lambda go_on: self._wait(number, go_on))

    def _wait(self, number: int, go_on: Callable[[], None]) -> None:
        """In the place of what was asked before, if there is one: so each has its turn, however often it is asked."""
        self._waiting[number] = go_on
        self._left = True
        if not self._going:
            self._going = True
            self._core.put_off(self._go_on)

    def _go_on(self) -> None:
        if self._waiting:
            number, go_on = next(iter(self._waiting.items()))
            self._left = False
            go_on()
            if not self._left:
                del self._waiting[number]
        self._going = bool(self._waiting)
        if self._going:
            self._core.put_off(self._go_on)

    def switch(self) -> None:
        """A new map: nobody takes the answers any more."""
        self._asked, self._waiting = {}, {}


class Comparison:
    """One question of a primary about one copy: its record travels between the writes, and marks a place in them."""

    __slots__ = (
        "_conclude",
        "_sum_up",
        "answered",
        "asked_at",
        "mine",
        "partition",
        "record",
        "round",
        "said",
        "theirs",
        "void",
    )

    def __init__(
        self,
        core: Node,
        local: LocalPartition,
        node: NodeId,
        round_: int,
        conclude: Callable[[Comparison], None],
        *,
        sum_up: Callable[[int, Told], None],
    ) -> None:
        self._sum_up = sum_up
        self._conclude = conclude
        self.partition = local.number
        self.round = round_
        self.record = r.Compare(local.number, local.epoch, node, round_)
        self.asked_at = core.now
        self.mine: list[Contents] | None = None
        self.theirs: list[Contents] | None = None
        self.answered = False
        self.said = 0  # the round in which the copy answered
        self.void = False  # nothing can come of it: ask anew

    def counted(self) -> None:
        """All writes before it count: what is here now is what the copy had when it came to it."""
        self._sum_up(self.partition, self._summed)

    def _summed(self, contents: list[Contents] | None) -> None:
        self.mine = contents
        self.void = contents is None
        if self.answered:
            self._conclude(self)

    def abandoned(self) -> None:
        """Another primary will ask."""
        self.void = True

    def answer(self, contents: list[Contents] | None, said: int) -> None:
        """The copy has said, in this round, what it has, or that it cannot say."""
        if self.answered:
            return
        self.theirs, self.answered, self.said = contents, True, said
        self.void = self.void or contents is None
        if self.mine is not None:
            self._conclude(self)

    def wrong(self) -> list[Namespace] | None:
        """The namespaces in which the copy has something else; None if the two did not stand at the same counters."""
        assert self.mine is not None
        assert self.theirs is not None
        return wrong_in(self.mine, self.theirs)


class Answers:
    """What the MOVING copies of one node have said, or are about to say, of their contents."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._rounds: dict[int, int] = {}  # the newest question about a partition
        self._answers: dict[int, tuple[int, list[Contents] | None]] = {}
        self.differed: dict[Fragment, int] = {}  # how often a primary said so

    def on_compare(self, asked: r.Compare, ready: Callable[[int], None]) -> None:
        """A primary asks; `ready` is told of the partition when there is an answer."""
        partition, round_ = asked.partition, asked.round
        if asked.node != self._core.node or self._rounds.get(partition, 0) >= round_:
            return
        self._rounds[partition] = round_

        def told(contents: list[Contents] | None) -> None:
            if self._rounds.get(partition) == round_:
                self._answers[partition] = (round_, contents)
                ready(partition)

        sum_up(self._core, partition, told)

    def of(self, partition: int) -> tuple[int, list[Contents] | None]:
        """The newest answer, with its round; round 0 if there is none."""
        return self._answers.get(partition, (0, None))

    def note_difference(self, name: Fragment) -> int:
        """A primary says that a fragment has something else here; how often it has."""
        often = self.differed[name] = self.differed.get(name, 0) + 1
        return often

    def forget(self, partition: int) -> None:
        """The copy begins again: what was said of it is over."""
        self._answers.pop(partition, None)
        self._rounds.pop(partition, None)

    def switch(self, gone: Container[int]) -> None:
        """A new map: so do these."""
        for number in [number for number in self._rounds if number in gone]:
            self.forget(number)
