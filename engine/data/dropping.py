"""What a primary deletes because its namespace is being dropped; and whether anything is in one that is being made.

The map says that a namespace is being dropped, and from then on nobody reads or writes it. Each primary deletes the rows
that it leads, some at a time, by records that count like any other delete: so they are numbered, replicated, logged,
transferred and compared, and no copy that was away, no history and no snapshot's end can bring a row back that counting
does not. There is no other kind of record, and who reads the log need not know of drops.

What a transaction holds, or has prepared, is waited for: its end comes by itself, and nothing new begins. A fragment is
empty when all of it was looked through from a moment on at which none of its counters was open.

One that is being made, with copies of its own, is looked through in the same way, and nothing is deleted: what somebody has
written before goes on to be where it is.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from engine.data.deletes import NOBODY, Deletes
from engine.data.expiry import Expiry
from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.turn.core import Core
from rebalance.deadlines import row_of
from rebalance.namespaces import NamespaceSettings, Stands
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, may_act
from rebalance.rule import NewMap, Rule
from wal.ids import EXPIRIES, Fragment, Namespace
from wal.probe import probe

DELETED_AT_ONCE = 400
LOOKED_AT_ONCE = 1_000
"""Fragments, most of which have nothing."""
PAUSE_MS = 20
"""Between two pieces."""
LATE_MS = 200
"""Where all that is left is held by transactions."""


class Dropping(Rule):
    """What is left of the namespaces that are being dropped, where one node leads it."""

    def __init__(self, core: Core, locks: LockTable, expiry: Expiry, deletes: Deletes) -> None:
        super().__init__()
        self.core = core
        self.locks = locks
        self.expiry = expiry
        self.deletes = deletes
        self._said: dict[Namespace, NamespaceSettings] = {}  # of those that are being dropped, or made
        self._left: dict[Namespace, deque[int] | range] = {}  # partitions that may have rows; all of them: a range
        self._begun: dict[Fragment, tuple[bytes, bool]] = {}  # where to go on, and whether nothing was passed over so far
        self._under_way = 0  # deletes that do not count yet
        self._made: dict[Namespace, bool] = {}  # those that are being made, and whether this node leads a row of it

    def gone(self) -> list[Namespace]:
        """The namespaces that are being dropped, and of which this node leads no row, nor can come to by itself."""
        if self._under_way or not self.core.serving:
            return []
        return [name for name, left in self._left.items() if not left and not self._made.get(name)]

    def written(self) -> list[Namespace]:
        """Those that are being made, and of which this node leads a row."""
        return [name for name, written in self._made.items() if written] if self.core.serving else []

    # Time and topology.

    def switch(self, _: NewMap) -> None:
        """A new topology: what this node leads now is looked through from the beginning."""
        self._said, self._left, self._made, self._begun = {}, {}, {}, {}
        self._look_at_others()

    def step(self, new: NewMap) -> None:
        """A light step: it may say of another namespace that it goes, or of one that it is gone. Of the others all is as it
        was, as this node leads what it led."""
        self._look_at_others()

    def _look_at_others(self) -> None:
        """Look through what the map says now, and no more at what it does not say any more."""
        core, top, before, left, made = self.core, self.core.topology, self._said, self._left, self._made
        assert top is not None
        said = {name: settings for name, settings in core.namespaces.items() if not settings.usable}
        if said == before:
            return
        same = {name: None for name, settings in said.items() if before.get(name) == settings}
        self._said = said
        self._left = {name: left[name] if name in same else top.partitions_of(name) for name in said}
        making = [name for name, settings in said.items() if settings.stands is Stands.MAKING]
        self._made = {name: name in same and made[name] for name in making}
        self._begun = {fragment: where for fragment, where in self._begun.items() if fragment[0] in same}
        if len(same) < len(said):
            self.alarm.by(core.now)

    def tick(self) -> None:
        """Delete a piece of what is left."""
        core = self.core
        self.alarm.off()
        left = any(self._left.values())
        if left and not self._under_way and may_act(core, core.fence) and core.quorum:
            moved = self._piece()
            self.alarm.by(core.now + (PAUSE_MS if moved else LATE_MS) * MS)
        elif left:
            self.alarm.by(core.now + PAUSE_MS * MS)

    def _piece(self) -> bool:
        """Look through some fragments, each once at most; whether there was anything to be done."""
        looked, rows, moved = LOOKED_AT_ONCE, DELETED_AT_ONCE, False
        for name, some in self._left.items():
            if not looked:
                break
            left = self._left[name] = some if isinstance(some, deque) else deque(some)
            for _ in range(min(len(left), looked)):
                number = left.popleft()
                done, work = self._empty((name, number), rows)
                if not done:
                    left.append(number)
                moved = moved or done or work > 0
                looked -= 1
                rows -= work
                self.core.work += 1 + 2 * work
                if rows <= 0:
                    return True
        return moved

    def _empty(self, name: Fragment, most: int) -> tuple[bool, int]:
        """Delete up to so many rows of a fragment: whether it is empty then, and how many entries were looked at."""
        core, local = self.core, self.core.local[name[1]]
        if not local.mine:
            return True, 0
        if not local.active or local.role is Role.DRAINING or core.in_the_way(local.placement):
            return False, 0
        fragment = core.replica.fragments.get(name)
        if fragment is None:
            return True, 0
        start, sure = self._begun.pop(name, (b"", fragment.counter.hwm == fragment.counter.lwm))
        page = core.replica.store.page(name, start, most)
        keys = [key for key, held in page.rows if held.value is not None]
        if name[0] in self._made:
            self._made[name[0]] |= bool(keys)
            sure, keys = sure or bool(keys), []
        free = [key for key in keys if self.locks.alone(NOBODY, (name[0], key))]
        sure = sure and len(free) == len(keys)
        if free:
            self._delete(local, name[0], free)
        if page.next is not None:
            self._begun[name] = page.next, sure
            return False, max(1, page.work)
        if not sure:
            probe("dropping.waits_for_an_outcome")
        return sure, page.work

    # What is deleted.

    def _delete(self, local: LocalPartition, namespace: Namespace, keys: list[bytes]) -> None:
        """Delete some rows, and what is said of when they expire."""
        core, number, store = self.core, local.number, self.core.replica.store
        entries: dict[Namespace, list[bytes]] = {namespace: keys}
        if (EXPIRIES, number) in core.replica.fragments:
            rows = [(row, store.get((EXPIRIES, number), row)) for row in (row_of(namespace, key) for key in keys)]
            if deadlines := [row for row, held in rows if held is not None and held.value is not None]:
                entries[EXPIRIES] = deadlines
        free = [(namespace, key) for key in keys]
        self._under_way += 1
        self.deletes.ship(local, entries, free, over=partial(self._over, free))

    def _over(self, keys: list[Key], counts: bool) -> None:
        self._under_way -= 1
        if counts:
            self.expiry.done_with(keys)
