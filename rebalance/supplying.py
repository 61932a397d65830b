"""What a supplier owes one demander: what was demanded and is not planned yet, what is planned, and what was sent of it;
and by which transfer one fragment goes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import msgspec

from rebalance.choice import Amount, Choice, choose
from rebalance.contents import Entry
from rebalance.fragment import FragmentState
from rebalance.leaves import KEYS_A_WORK, LEAF_BYTES, Survey, Under, differing
from rebalance.messages import BYTES_A_WORK, ROW_BYTES, Demand, Differing, Have, Supply, work_of_writes
from rebalance.mutations import Mutations, Remembered
from rebalance.partition import PREPARED_MAX, PartitionState, bytes_prepared
from rebalance.ports import BYTES_OF_WORK, Node
from rebalance.telling import have_of
from rebalance.travelling import travels_ns
from rebalance.vouching import Awaited
from wal import records as r
from wal.ids import Fragment, Namespace, NodeId, TxId, Version
from wal.probe import probe
from wal.want import Want

PREPARED_OF_WORK = 2
"""So many votes are as much work to tell, or to name, as one thing that is decided."""
ROW_WEIGHS = 1 << 10
"""What a row weighs, before some were seen, in bytes."""
BATCH_WORK = 1_000
"""Rows and answers of a batch of a full transfer, whatever they weigh: a batch is made in one turn, and taken in one."""


MANY = 1 << 62
ROWS_COUNTED_MAX = 4096
"""Rows are counted up to here to compare a full transfer with the missing updates; more than this is many."""
LOOK_WORK = 5
ROWS_WEIGHED = 16


class Rows(NamedTuple):
    """What a batch says of fragments that are taken as rows; `done` end with it, `differing` begin."""

    rows: list[r.Preload]
    results: list[r.Results]
    done: list[Fragment]
    differing: list[Differing]


class Session:
    """One demander's demand. Its number orders the demands of one life; a wiped node counts from the beginning."""

    def __init__(self, node: NodeId, life: Awaited, demand: Demand, *, returning: bool) -> None:
        self.node = node
        self.life = life
        self.heard_at = 0
        self.number = demand.session
        self.credit = demand.credit
        self.returning = returning
        self.parts = demand.parts
        self.taken: dict[int, None] = {}  # parts of the demand that came
        self._named: dict[int, None] = {}  # partitions that are demanded
        self.demanded: deque[tuple[list[int], dict[int, dict[Namespace, Have]]]] = deque()  # and are not planned yet
        self.planning = False
        self.planned = False  # all of it
        self.in_full = 0  # updates of the partitions that go in full
        self.many = 0  # of these partitions
        self.batch = 0  # the last batch sent
        self.sent: dict[int, Supply] = {}  # not answered yet
        self.again: deque[int] = deque()  # of these, in order: to be said once more
        self.moved_at = 0  # when the first of what was sent left, was answered, or was said again; 0: it does not come
        self.asked_under = demand.version
        self.partitions: list[int] = []
        self.firsts: deque[Supply] = deque()  # the epochs and transfers of what was planned
        self.prepared: deque[tuple[int, TxId]] = deque()  # what is too much to come with the first batch
        self.wants: list[Want] = []  # of the log
        self.history: dict[Fragment, None] = {}  # being read from it
        self.reading = False
        self.history_over = False
        self.read: deque[r.Write] = deque()
        self.missed: list[Fragment] = []
        self.full: deque[Fragment] = deque()  # still to be scanned, in order
        self.cursor: bytes | None = None  # where the scan of full[0] stands
        self._weight = ROW_WEIGHS  # of a row, as the last ones were
        self.leaves: dict[Fragment, bytes] = {}  # those of the demander, where they are not compared yet
        self.to_compare: deque[Fragment] = deque()  # these, in order
        self._survey: Survey | None = None  # of the first of them
        self._under: dict[Fragment, Under] = {}  # of what was compared, only these rows go
        self.changed: dict[Fragment, Remembered] = {}  # of these, only what is under these keys goes, from the end on
        self.fetch: list[tuple[Fragment, list[bytes]]] = []  # keys to send as they are now
        self.results_sent: dict[int, None] = {}  # partitions, the answers of which were sent
        self.answers: deque[TxId] | None = None  # of the partition of full[0]: still to be sent
        self.over = False
        self.resumed = False  # there is credit, and more to be sent than the turn had room for

    def note_sent(self, batch: Supply, now: int) -> None:
        """A batch leaves."""
        if not self.sent:
            self.moved_at = now
        self.batch = batch.batch
        self.credit -= 1
        self.sent[batch.batch] = batch

    def took(self, batch: int, now: int) -> None:
        """All up to there was taken; the rest follows, unless it was on its way over a connection that is no more."""
        for came in [b for b in self.sent if b <= batch]:
            del self.sent[came]
            self.moved_at = now if self.moved_at else 0

    def say_again(self, now: int) -> None:
        """What was not answered is said once more."""
        probe("supply.sent_again")
        self.moved_at = now
        self.again.clear()
        self.again.extend(self.sent)

    def comes_yet(self, core: Node, asked_under: Version) -> bool:
        """Whether what was sent may be on its way, and will be taken: not by a node that had another map until now."""
        before, self.asked_under = self.asked_under, asked_under
        if not self.moved_at or before != asked_under:
            return False
        time = travels_ns(sum(batch.size for batch in self.sent.values()), core.settings)
        return core.now < self.moved_at + time

    def new_ones(self, partitions: list[int]) -> list[int]:
        """Those of these that were not demanded in this session before, each once; the first one comes last."""
        new = [number for number in dict.fromkeys(partitions) if number not in self._named]
        self._named |= dict.fromkeys(new)
        return new[::-1]

    def keep(self, holds: Callable[[int], bool]) -> None:
        """Go on without the partitions that are supplied by others now, or not wanted; what is sent of them is not taken.

        What is read from the log for them is read with the rest.
        """
        self.partitions = [number for number in self.partitions if holds(number)]
        if self.full and not holds(self.full[0][1]):
            self.cursor = self.answers = None
        if self.to_compare and not holds(self.to_compare[0][1]):
            self._survey = None
        self.full = deque(name for name in self.full if holds(name[1]))
        self.to_compare = deque(name for name in self.to_compare if holds(name[1]))
        self.prepared = deque(each for each in self.prepared if holds(each[0]))
        self.fetch = [(name, keys) for name, keys in self.fetch if holds(name[1])]
        if not self.planned:  # the log is not opened yet
            self.wants = [want for want in self.wants if holds(want.fragment[1])]
            self.history = {name: None for name in self.history if holds(name[1])}

    def forget_history(self) -> None:
        """Nothing more is read from the log for it."""
        self.history, self.history_over, self.missed = {}, True, []
        self.read.clear()

    def next_fetched(self, core: Node, most: int) -> r.Preload:
        """The next keys as they are now, for a copy that undid what it had of them, as far as `most` bytes hold."""
        name, keys = self.fetch[-1]
        rows, size = some_as_they_are(core, name, keys, BATCH_WORK, most)
        if not keys:
            self.fetch.pop()
        core.work += size // BYTES_A_WORK
        return preload_of(name, rows)

    def say_prepared(self, state: PartitionState, first: Supply, most: int) -> None:
        """What is prepared in a partition comes with its first batch if it is few votes, of `most` bytes; else after it."""
        if len(state.prepared) <= PREPARED_MAX and state.prepared_bytes <= most:
            first.prepares.extend(state.prepared.values())
            return
        probe("supply.prepared_comes_later")
        named = [(state.number, tx) for tx in state.prepared]
        first.open.extend(named)
        self.prepared.extend(named)

    def was_read(self, core: Node, writes: list[r.Write], most: int) -> None:
        """This was read. It ends with the first write of more than `most` keys, which is said in another turn."""
        self.reading = False
        self.read.extend(writes)
        if writes and writes[-1].delta > most:
            probe("supply.large_write_was_read")
            core.work += work_of_writes(writes[-1:])

    def next_again(self) -> Supply | None:
        """The next of the batches that are said once more, if it was not answered meanwhile."""
        return self.sent.get(self.again.popleft())

    def next_first(self) -> Supply:
        """The next of the first batches."""
        return msgspec.structs.replace(self.firsts.popleft(), batch=self.batch + 1)

    def next_prepared(self, core: Node, most: int) -> Supply:
        """Some of the votes still to be told, of about `most` bytes. What has ended meanwhile the copy was told."""
        batch, size = Supply(core.fence, self.number, self.batch + 1), 0
        while self.prepared and size < most and len(batch.prepares) < PREPARED_MAX:
            number, tx = self.prepared.popleft()
            prepare = core.replica.partition(number).prepared.get(tx)
            if prepare is not None:
                batch.prepares.append(prepare)
                size += bytes_prepared(prepare)
        core.work += len(batch.prepares) // PREPARED_OF_WORK + size // BYTES_OF_WORK
        return batch

    def next_writes(self, core: Node, most: int, work_max: int) -> list[r.Write]:
        """The next of what is to be said of history, up to about so many keys, and so much work."""
        writes, keys, work = list[r.Write](), 0, 0
        while self.read and keys < most and work < work_max:
            writes.append(write := self.read.popleft())
            keys += write.delta
            work += work_of_writes([write])
        core.work += work
        return writes

    def next_rows(self, core: Node, most: int) -> Rows:
        """The next of what is taken as rows: the end of one fragment, and others as far as `most` bytes hold.

        Before the rows of a partition the answers that were given there. With what is left of the turn's work the next
        fragments are compared: their rows come in a later batch than that, when room was made for them.
        """
        size, enough = 0, core.work + BATCH_WORK
        next_ = Rows([], [], [], [])
        while self.full and self.full[0] not in self.leaves and size < most and core.work < enough:
            name = self.full[0]
            if name[1] not in self.results_sent:
                next_.results.append(self._next_answers(core, name[1], enough - core.work))
                continue
            rows, following = self._some_of(core, name, enough - core.work, most - size)
            if rows:
                weights = weights_of(rows)
                taken = len(rows)
                if size + sum(weights) >= most:
                    taken = 1 + bisect_left(list(accumulate(weights[:-1])), most - size)
                    rows, following = rows[:taken], following if taken == len(rows) else rows[taken - 1][0] + b"\0"
                weight = sum(weights[:taken])
                size += weight
                self._weight = max(ROW_BYTES, weight // taken)
                next_.rows.append(preload_of(name, rows))
            self.cursor = following
            if following is None:
                self.full.popleft()
                self._under.pop(name, None)
                self.changed.pop(name, None)
                next_.done.append(name)
        core.work += size // BYTES_A_WORK
        while self.to_compare and core.work < enough:
            next_.differing.extend(self._compare(core))
        return next_

    def _some_of(
        self, core: Node, name: Fragment, limit: int, room: int
    ) -> tuple[Sequence[tuple[bytes, Entry | None]], bytes | None]:
        """Some rows of a fragment from the cursor on: all, those that were changed, or those under the leaves that differ;
        and where to go on.

        No more than `limit`, and of all rows hardly more than there is `room` for, in bytes: else they are read once more.
        """
        store, start, under = core.replica.store, self.cursor or b"", self._under.get(name)
        if (changed := self.changed.get(name)) is not None:
            core.work += changed.sift()
            some, _ = some_as_they_are(core, name, changed.keys, limit, room)
            return some, b"" if changed.keys or changed.left else None
        if under is None:
            page = store.page(name, start, min(limit, 1 + room // self._weight))
            core.work += page.work + 1
            return page.rows, page.next
        glance = store.keys(name, start, limit)
        rows = [(key, entry) for key in under.of(glance.found) if (entry := store.get(name, key)) is not None]
        core.work += glance.work // KEYS_A_WORK + len(rows) + 1
        return rows, glance.next

    def _compare(self, core: Node) -> list[Differing]:
        """Sum up some more of the next fragment that is to be compared; where it differs, if that is known now."""
        name = self.to_compare[0]
        survey = self._survey = self._survey or Survey(core.replica.store, name)
        core.work += survey.step(BATCH_WORK)
        if not survey.done:
            return []
        self._survey = None
        self.to_compare.popleft()
        theirs = self.leaves.pop(name)
        count = len(theirs) // LEAF_BYTES
        bits = differing(survey.leaves(count), theirs)
        self._under[name] = Under(count, bits)
        return [Differing(*name, bits)]

    def _next_answers(self, core: Node, number: int, most: int) -> r.Results:
        """Some of the answers that a partition had when the first of them were asked for.

        What is noted since travels with the writes that note it. What is forgotten since is not said any more: the copy
        was told to forget it, and does so once.
        """
        known = core.replica.partition(number).results
        if self.answers is None:
            self.answers = deque(known.outcomes())
        some = [self.answers.popleft() for _ in range(min(most, len(self.answers)))]
        core.work += len(some) + 1
        if self.answers:
            probe("supply.answers_cut")
        else:
            self.results_sent[number], self.answers = None, None
        said, told = known.known_of(some)
        return r.Results(number, list(said), list(said.values()), known.floor, answers=told)


def at_version(batch: Supply, version: Version) -> Supply:
    """The same batch, said in another version."""
    return msgspec.structs.replace(batch, version=version)


def weight_of(key: bytes, entry: Entry | None) -> int:
    """What a row weighs in a batch, in bytes."""
    return len(key) + len((entry.value if entry is not None else None) or b"") + ROW_BYTES


def weights_of(rows: Sequence[tuple[bytes, Entry | None]]) -> list[int]:
    """The same of many."""
    return [ROW_BYTES + len(key) + (len(entry.value or b"") if entry is not None else 0) for key, entry in rows]


def preload_of(name: Fragment, rows: Sequence[tuple[bytes, Entry | None]]) -> r.Preload:
    """Rows as a batch has them; of a key under which nothing stands, that."""
    keys, entries = [key for key, _ in rows], [entry for _, entry in rows]
    return r.Preload(
        *name,
        epochs=[e.epoch if e else 0 for e in entries],
        counters=[e.counter if e else 0 for e in entries],
        keys=keys,
        values=[e.value if e else None for e in entries],
    )


def work_of_prepared(state: PartitionState) -> int:
    """How much work it is to say what is prepared in a partition, or to log it once more: it may be large. Very many are
    said later, and are only named at first."""
    many = len(state.prepared)
    return many // PREPARED_OF_WORK + (state.prepared_bytes // BYTES_OF_WORK if 0 < many <= PREPARED_MAX else 0)


def some_as_they_are(
    core: Node, name: Fragment, keys: list[bytes], limit: int, room: int
) -> tuple[list[tuple[bytes, Entry | None]], int]:
    """What stands under the last ones of these keys, which are taken out: up to `limit`, and hardly more than there is
    `room` for, in bytes; and how many bytes it is."""
    some, size = list[tuple[bytes, Entry | None]](), 0
    while keys and len(some) < limit and size < room:
        some.append((key := keys.pop(), entry := core.replica.store.get(name, key)))
        size += weight_of(key, entry)
    core.work += len(some) + 1
    return some, size


def amount_of(core: Node, fragment: FragmentState) -> Amount:
    """How many rows a fragment has (where nobody knows, as many as updates), and what one of its first ones weighs."""
    store, name = core.replica.store, fragment.name
    page = store.page(name, b"", ROWS_WEIGHED)
    rows, looked = store.count(name, ROWS_COUNTED_MAX)
    core.work += page.work + looked + LOOK_WORK
    weight = sum(len(key) + len(entry.value or b"") + ROW_BYTES for key, entry in page.rows)
    return Amount(fragment.counter.lwm if rows is None else rows, weight // max(1, len(page.rows)))


def count_rows(core: Node, name: Fragment, limit: int) -> int:
    """How many rows a fragment has; what is above the limit is many."""
    store, core.work = core.replica.store, core.work + LOOK_WORK
    if store.least(name) > limit:
        return MANY
    glance = store.keys(name, b"", min(limit, ROWS_COUNTED_MAX))
    core.work += glance.work // KEYS_A_WORK
    return len(glance.found) if glance.next is None else MANY


def choose_for(
    core: Node, mutations: Mutations, have: Have, *, changed: dict[Namespace, Remembered], returning: bool
) -> Choice:
    """How one fragment is transferred to who has this of it; which keys were `changed` is noted, where that counts. A node
    in its first life has no history to prefer: rows are all it can need."""
    fragment = core.replica.fragment(have.name)
    mine = have_of(fragment, [(c, d) for c, _ in have.digests if (d := fragment.digest_at(c)) is not None])
    rows = None if core.settings.prefer_history and returning else partial(count_rows, core, have.name)

    def remembered(counter: int) -> int | None:
        if (keys := mutations.since(have.name, counter)) is None:
            return None
        changed[have.namespace] = keys
        return len(keys)

    amount = partial(amount_of, core, fragment)
    return choose(have, mine, fragment.history_from, rows, amount=amount, changed=remembered)
