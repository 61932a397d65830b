"""What expires is deleted by its primary when its time has come, as by a client, and before anybody is told so.

When a key is to expire stands in a row of the engine's namespace `~ttl`, in the key's own partition: `namespace\\0key ->
when, and at which counter the entry stands that it is said of`. It is written by the same record as the entry, and is
counted, replicated, transferred and compared as any other row is. A later write of the key is another entry, so that the
row says nothing of it: whoever puts without a time to live pays nothing for those who do.

An entry is over when the wall clock of its primary has passed that time. Then it is deleted by a record that counts like
any other, and both rows go with it. A read that meets such an entry has it deleted, and is answered after that: so
what was seen to be gone is gone on every in-sync copy, and no clock of a later primary brings it back. A key that a
transaction holds stays until that lets it go: nothing changes under a transaction but by another one.

Whoever reads pays for what it meets. What nobody reads is found by a heap of deadlines, which is read from the rows, in
pieces, when this node begins to lead a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import compress

from engine.data.deletes import NOBODY, Deletes, written
from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.protocol.requests import KEYS_AT_ONCE, Get, Request, Values
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import Asked, SessionId
from rebalance.by_key import Table, roomy
from rebalance.deadlines import key_of, row_of, said, saying
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, leads, may_act
from rebalance.rule import NewMap, Rule
from wal import records as r
from wal.ids import EXPIRIES, NAME, Namespace, TxId
from wal.probe import probe

PAUSE_MS = 20
"""Between two pieces of what is deleted, or looked through, unasked."""
DELETED_AT_ONCE = 400
"""For somebody who waits for it."""
DELETED_UNASKED = 150
RIPE_AT_ONCE = 2_000
"""So many deadlines are found to have passed in one piece: more than are deleted, so that these come by partition."""
READ_AT_ONCE = 1_000
LATE_MS = 1_000
"""A wall clock may jump: it is looked at so often at least, where anything is to expire."""


def rows_of(namespace: Namespace, keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
    """The same of each of many keys that is given a value."""
    there = keys if None not in values else compress(keys, [value is not None for value in values])
    return list(map(row_of(namespace, b"").__add__, there))


def _go_on(waiting: Iterable[_Waiting]) -> None:
    for one in waiting:
        one.left -= 1
        if not one.left:
            one.then()


def deadlines(core: Core, beside: r.Write, entries: Iterable[tuple[Namespace, bytes, int, int]]) -> r.Write:
    """What is to be written `beside` something, so that entries expire: (namespace, key, counter, how long they last)."""
    now = core.wall_ms
    rows: dict[bytes, bytes | None] = {row_of(ns, key): saying(now + ttl_ms, at) for ns, key, at, ttl_ms in entries}
    return written(
        core, EXPIRIES, beside.partition, beside.epoch, keys=list(rows), values=list(rows.values()), tx=beside.tx
    )


def deadlines_beside(core: Core, writes: list[r.Write], ttls: Iterable[tuple[Namespace, bytes, int]]) -> r.Write:
    """The same for some of what a transaction writes in one partition: (namespace, key, how long it lasts)."""
    at = {(w.namespace, key): w.start + n for w in writes for n, key in enumerate(w.keys, 1)}
    return deadlines(core, writes[0], [(ns, key, at[ns, key], ttl_ms) for ns, key, ttl_ms in ttls])


class _Waiting:
    """Who goes on when some keys are done with. `asked`: what is asked again under another map, if it is by this."""

    __slots__ = ("asked", "left", "then")

    def __init__(self, left: int, then: Callable[[], None], asked: tuple[SessionId, Request] | None) -> None:
        self.left = left
        self.then = then
        self.asked = asked


class Expiry(Rule):
    """What expires in the partitions that one node leads."""

    def __init__(self, core: Core, desk: Desk, locks: LockTable, deletes: Deletes) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self.locks = locks
        self.deletes = deletes
        self.waiting: dict[Key, list[_Waiting]] = {}  # until what is under way with a key counts
        self._deadlines: dict[int, Table[int]] = {}  # by partition and row: no later than in the heap
        self._heap: list[tuple[int, int, bytes]] = []
        self._ripe: dict[int, list[bytes]] = {}  # their time has come, by partition
        self._unread: dict[int, bytes] = {}  # partitions whose rows were not all looked at, and from where on
        self._under_way: dict[int, list[_Waiting]] = {}  # deletes that do not count yet, and who waits for that
        self._number = 0
        self._behind: list[_Waiting] = []  # until all that is over by now is under way

    # What is written.

    def deadline_of(self, write: r.Write, ttl_ms: int, rows: list[bytes] | None = None) -> r.Write:
        """What is to be written beside the entries of a write, so that they expire: in these `rows`, if they were made."""
        if rows is None:
            rows = rows_of(write.namespace, write.keys, write.values)
        counters: Iterable[int] = range(write.start + 1, write.start + 1 + len(write.keys))
        if len(rows) < len(write.keys):
            counters = compress(counters, [value is not None for value in write.values])
        values: list[bytes | None] = list(map((b"%d %%d" % (self.core.wall_ms + ttl_ms)).__mod__, counters))
        return written(self.core, EXPIRIES, write.partition, write.epoch, keys=rows, values=values, tx=write.tx)

    def note(self, write: r.Write) -> None:
        """A write counts: if it says when entries expire, they do. Of very many the rows are read, in pieces."""
        if write.namespace != EXPIRIES:
            return
        if len(write.keys) > READ_AT_ONCE:
            self._unread[write.partition] = b""
            self.alarm.by(self.core.now)
            return
        for row, value in zip(write.keys, write.values, strict=True):
            if value is not None:
                self._note(write.partition, row, said(value)[0])

    def _note(self, number: int, row: bytes, when: int) -> None:
        deadlines = self._deadlines[number] = roomy(self._deadlines.get(number, {}), 1)
        known = deadlines.get(row)
        deadlines[row] = when
        if known is None or when < known:
            heappush(self._heap, (when, number, row))
            if self._heap[0][0] == when:
                self._plan()

    # What is read.

    def is_over(self, number: int, key: Key, counter: int, owner: TxId = NOBODY) -> bool:
        """Whether the entry at this counter is to be gone before anybody but a transaction that holds it is told of it."""
        row = self.core.replica.store.get((EXPIRIES, number), row_of(*key))
        self.core.work += 1
        if row is None or row.value is None:
            return False
        when, of = said(row.value)
        if of != counter or when > self.core.wall_ms:
            return False
        if self.locks.alone(owner, key) or self.locks.is_pending(key):
            return True
        probe("expiry.left_to_its_holder")
        return False

    def has_any(self, number: int) -> bool:
        """Whether anything of a partition may expire."""
        return (EXPIRIES, number) in self.core.replica.fragments

    def over(self, namespace: Namespace, keys: Iterable[bytes], owner: TxId = NOBODY) -> list[Key]:
        """Those of some keys, which this node leads, that are to be gone before `owner` is told; not all at once."""
        core = self.core
        if EXPIRIES not in core.replica.namespaces:
            return []
        assert core.topology is not None
        found: list[Key] = []
        for key in keys:
            number = core.topology.place(namespace, key)
            if not self.has_any(number):
                continue
            held = core.replica.store.get((namespace, number), key)
            if held is not None and held.value is not None and self.is_over(number, (namespace, key), held.counter, owner):
                found.append((namespace, key))
                if len(found) == DELETED_AT_ONCE:
                    break
        return found

    def delete_first(
        self,
        over: list[Key],
        then: Callable[[], None],
        asked: tuple[SessionId, Request] | None = None,
        owner: TxId = NOBODY,
    ) -> None:
        """Have those that are `over` deleted, and go on then. `asked`: what is asked again if another map comes before.

        A single write of such a key that is under way is waited for: it may come to nothing.
        """
        core = self.core
        waiting = _Waiting(len(over), then, asked)
        free: dict[int, list[bytes]] = {}
        for key in over:
            self.waiting.setdefault(key, []).append(waiting)
            if self.locks.alone(owner, key):
                free.setdefault(core.place(*key), []).append(row_of(*key))
        if may_act(core, core.fence):  # else that map is about to come
            for number, rows in free.items():
                self._delete(core.local[number], rows, owner)

    def done_with(self, keys: Iterable[Key]) -> None:
        """What was under way with some keys counts."""
        for key in keys:
            _go_on(self.waiting.pop(key, ()))

    @property
    def behind(self) -> bool:
        """Whether anything may have expired, and be there still."""
        over = bool(self._heap) and self._heap[0][0] <= self.core.wall_ms
        return over or bool(self._ripe or self._unread or self._under_way)

    def catch_up(self, then: Callable[[], None], asked: tuple[SessionId, Request]) -> None:
        """Go on when all that has expired by now is gone, or held by a transaction. `asked` as with `delete_first`."""
        self._behind.append(_Waiting(0, then, asked))
        self.alarm.by(self.core.now)

    def values_of(self, request: Get) -> Values:
        """When the entries of some keys expire."""
        core, store, namespace = self.core, self.core.replica.store, request.namespace
        values: list[tuple[int, int, bytes | None]] = []
        for key in request.keys[:KEYS_AT_ONCE]:
            number = core.place(namespace, key)
            held = store.get((namespace, number), key)
            if held is None or held.value is None:
                values.append((0, 0, None))
                continue
            row = store.get((EXPIRIES, number), row_of(namespace, key))
            when, of = said(row.value) if row is not None and row.value is not None else (0, 0)
            values.append((held.epoch, held.counter, b"%d" % when if of == held.counter else b""))
        core.work += len(values)
        return Values(request.id, values, core.version_number)

    # What is deleted.

    def _delete(self, local: LocalPartition, rows: Iterable[bytes], owner: TxId = NOBODY) -> None:
        """Delete what these rows speak of, where it is over and nobody else has it; and the rows, also where it is not
        there any more."""
        core, store, number = self.core, self.core.replica.store, local.number
        entries: dict[Namespace, list[bytes]] = {}
        keys: list[Key] = []
        for row in rows:
            held = store.get((EXPIRIES, number), row)
            if held is None or held.value is None:
                continue
            when, counter = said(held.value)
            if when > core.wall_ms:
                self._note(number, row, when)
                continue
            key = key_of(row)
            if not self.locks.alone(owner, key):
                self._note(number, row, core.wall_ms + LATE_MS)
                continue
            keys.append(key)
            stands = store.get((key[0], number), key[1])
            if stands is not None and stands.value is not None and stands.counter == counter:
                entries.setdefault(key[0], []).append(key[1])
        core.work += 2 * len(keys)
        if not keys:
            return
        entries[EXPIRIES] = [row_of(*key) for key in keys]
        self._number += 1
        self._under_way[self._number] = []
        self.deletes.ship(local, entries, keys, over=partial(self._over, self._number, keys))

    def _over(self, number: int, keys: list[Key], counts: bool) -> None:
        waiting = self._under_way.pop(number)
        if counts:
            probe("expiry.deleted")
            self.done_with(keys)
            _go_on(waiting)

    # Time and topology.

    def activated(self, local: LocalPartition) -> None:
        """This node begins to lead a partition: what expires there stands in its rows."""
        self._forget(local.number)
        if self.has_any(local.number):
            self._unread[local.number] = b""
            self.alarm.by(self.core.now)

    def _forget(self, number: int) -> None:
        self._deadlines.pop(number, None)
        self._ripe.pop(number, None)
        self._unread.pop(number, None)

    def switch(self, _: NewMap) -> None:
        """A new topology: what another node leads now is for that one; whoever waited asks again."""
        local = self.core.local
        for number in [n for n in (*self._deadlines, *self._unread) if not local[n].mine]:
            self._forget(number)
        whoever = dict.fromkeys(self._behind)
        for some in (*self.waiting.values(), *self._under_way.values()):
            whoever |= dict.fromkeys(some)
        self.waiting, self._behind = {}, []
        self._under_way = {number: [] for number in self._under_way}
        self.desk.ask_again([Asked(*one.asked) for one in whoever if one.asked is not None])

    def tick(self) -> None:
        """Look at the clock."""
        core = self.core
        self.alarm.off()
        if may_act(core, core.fence) and core.quorum:
            self._read_on()
            self._ripen()
            self._delete_some()
            self._caught_up()
        self._plan()

    def _plan(self) -> None:
        """When something is to be done."""
        core = self.core
        if self._ripe or self._unread:
            self.alarm.by(core.now + PAUSE_MS * MS)
        elif self._heap:
            left = self._heap[0][0] - core.wall_ms
            self.alarm.by(core.now + min(max(left, PAUSE_MS), LATE_MS) * MS)

    def _read_on(self) -> None:
        """A piece of the rows of partitions that this node has begun to lead."""
        left = READ_AT_ONCE
        while self._unread and left > 0:
            number, start = next(iter(self._unread.items()))
            page = self.core.replica.store.page((EXPIRIES, number), start, left)
            left -= max(1, page.work)
            self.core.work += page.work
            for row, held in page.rows:
                if held.value is not None and row not in self._deadlines.get(number, ()):
                    self._note(number, row, said(held.value)[0])
            if page.next is None:
                del self._unread[number]
            else:
                self._unread[number] = page.next

    def _ripen(self) -> None:
        """The deadlines that have passed."""
        heap, now = self._heap, self.core.wall_ms
        for _ in range(RIPE_AT_ONCE):
            if not heap or heap[0][0] > now:
                return
            _, number, row = heappop(heap)
            when = self._deadlines.get(number, {}).get(row)
            if when is None:
                continue  # it was dealt with, or is another node's
            if when > now:
                heappush(heap, (when, number, row))
                continue
            del self._deadlines[number][row]
            self._ripe.setdefault(number, []).append(row)

    def _caught_up(self) -> None:
        """All that is over by now is under way: whoever wanted that waits for the rest."""
        if self._ripe or self._unread or (self._heap and self._heap[0][0] <= self.core.wall_ms):
            return
        waiting, self._behind = self._behind, []
        for one in waiting:
            one.left = max(1, len(self._under_way))
            for others in self._under_way.values():
                others.append(one)
        if not self._under_way:
            _go_on(waiting)

    def _delete_some(self) -> None:
        left = DELETED_UNASKED
        for number in list(self._ripe):
            if left <= 0:
                return
            local = leads(self.core, number)
            if local is not None and not self._may_delete(local):
                continue
            rows = self._ripe[number]
            piece = rows[-left:]
            del rows[-left:]
            if not rows:
                del self._ripe[number]
            left -= len(piece)
            if local is not None and local.role is not Role.DRAINING:
                self._delete(local, piece)
            else:
                for row in piece:
                    self._note(number, row, self.core.wall_ms + LATE_MS)

    def _may_delete(self, local: LocalPartition) -> bool:
        """Whether that may be written where disks are full: only if somebody waits for it, who wants to read the rest."""
        return bool(self._behind) or not self.core.in_the_way(local.placement)


assert not NAME.fullmatch(EXPIRIES), "no client can name the engine's own namespace"
