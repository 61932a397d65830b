"""What a story can ask about afterwards: what was supplied to whom, what was logged, which rare paths were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from engine.messages import Message, Supply
from tests.sim.machine import Machine
from tests.sim.observer import Observer
from tests.sim.scenario.matching import Batches, Wanted, matches
from tests.sim.world import World
from wal import records as r
from wal.ids import Fragment, NodeId
from wal.records import kind_of


class Supplies(Observer):
    """What suppliers sent, counted once however often it was sent: updates and rows, by receiver and fragment.

    The count of a node begins anew when its process starts.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[NodeId, NodeId, int, int], None] = {}
        self.by_fragment: dict[NodeId, Counter[Fragment]] = {}
        self.suppliers: dict[tuple[NodeId, Fragment], NodeId] = {}

    def started(self, machine: Machine) -> None:
        """A node begins a life."""
        self.by_fragment.pop(machine.name, None)
        self.suppliers = {key: by for key, by in self.suppliers.items() if key[0] != machine.name}

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """A batch leaves."""
        if not isinstance(message, Supply):
            return
        for target in targets:
            batch = (machine.name, target, message.session, message.batch)
            if batch in self._seen:
                continue
            self._seen[batch] = None
            counts = self.by_fragment.setdefault(target, Counter())
            for fragment in [w.fragment for w in message.writes] + [
                (rows.namespace, rows.partition) for rows in message.rows
            ]:
                self.suppliers[target, fragment] = machine.name
            for write in message.writes:
                counts[write.fragment] += write.delta
            for rows in message.rows:
                counts[(rows.namespace, rows.partition)] += len(rows.keys)

    def supplied(self, node: NodeId, fragment: Fragment | None) -> int:
        """How many updates and rows were sent to a node since it started."""
        counts = self.by_fragment.get(node, Counter())
        return counts[fragment] if fragment is not None else counts.total()


class Logged(Observer):
    """How many records of each kind every node wrote to its log, and of which partition."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[NodeId, str, int | None]] = Counter()

    def logged(self, machine: Machine, records: Sequence[r.Record], last_lsn: int) -> None:
        """A turn's records were written."""
        for record in records:
            self._counts[(machine.name, kind_of(record), None)] += 1
            partitions = {p: None for _, p, _, _ in r.spans(record)}
            own = getattr(record, "partition", None)
            if isinstance(own, int):
                partitions[own] = None
            for partition in partitions:
                self._counts[(machine.name, kind_of(record), partition)] += 1

    def count(self, node: NodeId, kind: str, partition: int | None) -> int:
        """Records of one kind."""
        return self._counts[(node, kind, partition)]


class Awaited(Observer):
    """Waits for one message, and then lets something happen, when its receiver has taken it in."""

    def __init__(self, world: World, wanted: Wanted, batches: Batches, then: Callable[[], None]) -> None:
        self._world = world
        self._wanted = wanted
        self._batches = batches
        self._then = then
        self._done = False

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """It may be this one."""
        if not self._done and matches(self._wanted, self._batches, src, dst, message):
            self._done = True
            self._world.after(0, self._then)
