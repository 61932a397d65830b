"""What a demander does for a differential transfer: it sums up its rows by leaf, and makes room for those that differ.

A supplier without the history that a copy lacks asks what the copy's rows add up to (`Supply.survey`); the next demand
says so. What was summed up may be said for as long as nothing but live writes has changed the rows: a new map, or any
transfer that begins, ends that, and they are summed up anew when somebody asks again.

The rows under the leaves that differ go, in pieces, before those of the supplier come. They would all come anyway, and
what does not was deleted. Not so what was written live since the transfer was planned: that is above its counter, of the
epoch that both take part in, and comes no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from rebalance.contents import Entry
from rebalance.fragment import FragmentState
from rebalance.leaves import KEYS_A_WORK, Survey, Under, leaf_count
from rebalance.messages import Differing, Have
from rebalance.ports import WORK_MAX, Node
from rebalance.rule import drop
from rebalance.telling import have_of
from wal import records as r
from wal.ids import Fragment, NodeId
from wal.probe import probe

ROWS_AT_ONCE = 1_000
ROWS_TOLD = 20_000
"""Of so many rows the leaves are told at once, or of all that a supplier has asked about. A session for each partition
would be a round trip for each, in which both sides rest; if all were told together, the supplier would rest until then."""


class Surveys:
    """The copies of one node that a supplier has asked about; one is summed up at a time."""

    def __init__(self, core: Node, *, ready: Callable[..., None]) -> None:
        self._core = core
        self._ready = ready  # is told of a supplier, and of partitions of which all is known that it asked about
        self._known: dict[NodeId, dict[int, int]] = {}  # such ones, and how many rows they have; not told yet
        self._rows = 0  # of the partition that is summed up
        self._wanted: dict[int, tuple[NodeId, dict[Fragment, None]]] = {}
        self._under_way: tuple[Fragment, Survey] | None = None
        self._going_on = False
        self._found: dict[Fragment, bytes] = {}

    def __len__(self) -> int:
        return len(self._wanted) + sum(map(len, self._known.values()))

    def leaves(self, name: Fragment) -> bytes:
        """What was found, and still holds."""
        return self._found.get(name, b"")

    def have(self, fragment: FragmentState, *, no_history: bool) -> Have:
        """What a demand says of a copy."""
        return have_of(
            fragment,
            fragment.recent_digests(),
            no_history=no_history,
            kept=fragment.loading and self._has_rows(fragment.name),
            leaves=self.leaves(fragment.name),
        )

    def _has_rows(self, name: Fragment) -> bool:
        """Whether there are any, or were since the last checkpoint; they may be large, and none is opened."""
        glance = self._core.replica.store.keys(name, b"", 1)
        return bool(glance.found) or glance.next is not None

    def begin(self, supplier: NodeId, number: int, names: list[Fragment]) -> None:
        """A supplier asks about these fragments of a partition."""
        self._wanted[number] = (supplier, dict.fromkeys(names))
        self._later()

    def said_bytes(self) -> dict[int, int]:
        """How much there is to say of what was found, by partition."""
        found: dict[int, int] = {}
        for (_, number), leaves in self._found.items():
            found[number] = found.get(number, 0) + len(leaves)
        return found

    def switch(self, gone: Container[int]) -> None:
        """A new map, under which these partitions begin anew: what was found does not hold any more."""
        for number in [number for number in self._wanted if number in gone]:
            del self._wanted[number]
        for known in self._known.values():
            drop(known, gone)
        self._rows = 0
        for name in [name for name in self._found if name[1] in gone]:
            del self._found[name]
        if self._under_way is not None and self._under_way[0][1] in gone:
            self._under_way = None
        self._later()

    def changed(self, name: Fragment) -> None:
        """A transfer of a fragment begins: nor does that."""
        self._found.pop(name, None)
        if self._under_way is not None and self._under_way[0] == name:
            self._under_way = None

    def _later(self) -> None:
        if not self._going_on and (self._wanted or self._known):
            self._going_on = True
            self._core.resume(self._go_on)

    def _go_on(self) -> None:
        """Do a piece."""
        core = self._core
        self._going_on = False
        while self._wanted and core.work < WORK_MAX:
            number, (supplier, names) = next(iter(self._wanted.items()))
            if not names:
                del self._wanted[number]
                self._note(supplier, number)
                continue
            name = next(iter(names))
            if self._under_way is None or self._under_way[0] != name:
                self._under_way = (name, Survey(core.replica.store, name))
            survey = self._under_way[1]
            core.work += survey.step(ROWS_AT_ONCE)
            if survey.done:
                self._found[name] = survey.leaves(leaf_count(survey.rows))
                self._rows += survey.rows
                self._under_way = None
                del names[name]
        asking = {supplier for supplier, _ in self._wanted.values()}
        for supplier in [supplier for supplier in self._known if supplier not in asking]:
            self._tell(supplier)
        self._later()

    def _note(self, supplier: NodeId, number: int) -> None:
        """All is known of a partition."""
        known = self._known.setdefault(supplier, {})
        known[number], self._rows = self._rows, 0
        if sum(known.values()) >= ROWS_TOLD:
            self._tell(supplier)

    def _tell(self, supplier: NodeId) -> None:
        self._ready(supplier, *self._known.pop(supplier))


class Room:
    """Takes away what a copy has under the leaves that differ, some rows at a time."""

    def __init__(self, found: Differing, count: int, up_to: int, epoch: int) -> None:
        self.name = (found.namespace, found.partition)
        self._under = Under(count, found.bits)
        self._up_to = up_to
        self._epoch = epoch
        self._at: bytes | None = b""

    def step(self, core: Node) -> bool:
        """Do a piece; whether it was the last one."""
        assert self._at is not None, "all rows were looked at"
        store, live = core.replica.store, core.replica.fragment(self.name).suspects
        glance = store.keys(self.name, self._at, ROWS_AT_ONCE)
        self._at = glance.next
        keys = [key for key in self._under.of(glance.found) if key not in live and self._goes(store.get(self.name, key))]
        core.work += glance.work // KEYS_A_WORK + len(keys) + 1
        if keys:
            probe("demand.made_room")
            nothing = [0] * len(keys)
            core.log(r.Preload(*self.name, epochs=nothing, counters=nothing, keys=keys, values=[None] * len(keys)))
        return self._at is None

    def _goes(self, entry: Entry | None) -> bool:
        """Whether it is not what the primary of this epoch wrote since it planned the transfer."""
        return entry is not None and not (entry.epoch == self._epoch and entry.counter > self._up_to)
