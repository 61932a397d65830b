"""Transactions that wait for each other in a circle, over all nodes: one of them gives way, so that the others go on.

A primary knows who waits there for whom, and nobody knows more. So each tells the coordinator, about twice a second and
only while somebody waits, which waits it has seen at two looks in a row. The coordinator lays together what it was told
lately: whoever stands in a circle that was seen for so long will stand there until one gives way, for none of them does
anything but wait. It is the one of the greatest id, and the nodes where it waits refuse it at once, in words that name all.

Nothing rests on this. A report that is late, lost, or of waits that have just ended costs a transaction that may be run
again, or a wait until the lock's timeout; and so would a circle of more than `WAITS_MAX` waits on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import assert_never, get_args

from engine.cluster.detector import Detector
from engine.data.locks import LockTable
from engine.messages import GiveWay, Waits
from engine.messages.transactions import ToDeadlocks
from engine.turn.core import Core
from rebalance.ports import MS
from rebalance.rule import NewMap, Rule
from wal.ids import NodeId, TxId
from wal.probe import probe

LOOK_MS = 500
"""From look to look; a wait that two of them saw is told of."""
WAITS_MAX = 500
"""So many waits one node tells of."""

Wait = tuple[TxId, TxId]
"""Who waits, and for whom."""


class Deadlocks(Rule):
    """Who waits for whom on one node, and, at the coordinator, on all."""

    takes = get_args(ToDeadlocks)

    def __init__(self, core: Core, detector: Detector, locks: LockTable) -> None:
        super().__init__()
        self.core = core
        self._detector = detector
        self._locks = locks
        self._look_at = 0
        self._seen: dict[Wait, None] = {}  # at the last look
        self._told: dict[NodeId, tuple[int, list[Wait]]] = {}  # when, and what

    @property
    def wake_at(self) -> int | None:
        """When to look next; never while nobody waits."""
        return self._look_at if self._locks.waited_for and self.core.serving else None

    def tick(self) -> None:
        """Tell of the waits that were there at the last look, too."""
        core = self.core
        self._look_at = core.now + LOOK_MS * MS
        waits = dict.fromkeys(islice(self._locks.waits(), WAITS_MAX))
        core.work += len(waits)
        stood = [wait for wait in waits if wait in self._seen]
        self._seen = waits
        coordinator = self._detector.coordinator()
        if stood and coordinator is not None:
            core.send(coordinator, Waits(core.version, stood))

    def switch(self, _: NewMap) -> None:
        """A new topology: locks may have gone with their partitions."""
        self._seen, self._told = {}, {}

    def on_waits(self, sender: NodeId, message: Waits) -> None:
        """Look for circles in what was told lately."""
        core = self.core
        if message.version != core.version:
            return
        self._told[sender] = core.now, message.waits[:WAITS_MAX]
        since = core.now - 2 * LOOK_MS * MS
        self._told = {node: (at, waits) for node, (at, waits) in self._told.items() if at >= since}
        blockers: dict[TxId, list[TxId]] = {}
        for _, waits in self._told.values():
            core.work += len(waits)
            for waiter, holder in waits:
                blockers.setdefault(waiter, []).append(holder)
        while circle := circle_in(blockers):
            victim = max(circle)
            probe("tx.deadlock_found")
            at = circle.index(victim)
            where = tuple(node for node, (_, waits) in self._told.items() if any(waiter == victim for waiter, _ in waits))
            core.send(where, GiveWay(core.version, victim, [*circle[at:], *circle[:at]]))
            del blockers[victim]
            for node, (told_at, waits) in self._told.items():  # one of them is enough
                self._told[node] = told_at, [wait for wait in waits if wait[0] != victim]

    def on_give_way(self, sender: NodeId, message: GiveWay) -> None:
        """A transaction is not to wait here any more."""
        following = [*message.circle[1:], message.victim]
        if message.version == self.core.version and (message.victim, following[0]) in self._locks.waits():
            circle = ", which waits for ".join(tx.hex() for tx in following[1:])
            self._locks.give_way(message.victim, f"which waits for {circle}", self.core.now)

    def on(self, sender: NodeId, message: ToDeadlocks) -> None:
        """Everything that is said about waits."""
        match message:
            case Waits():
                self.on_waits(sender, message)
            case GiveWay():
                self.on_give_way(sender, message)
            case _:
                assert_never(message)


def circle_in(blockers: Mapping[TxId, Iterable[TxId]]) -> list[TxId]:
    """Some transactions each of which waits for the next one, and the last for the first; none if there are no such.

    `blockers`: whoever waits -> those for whom it waits.
    """
    over: dict[TxId, None] = {}
    for start in blockers:
        if start in over:
            continue
        path = {start: None}
        ahead = [iter(blockers[start])]
        while ahead:
            following = next(ahead[-1], None)
            if following is None:
                over[path.popitem()[0]] = None
                ahead.pop()
            elif following in path:
                found = list(path)
                return found[found.index(following) :]
            elif following not in over and following in blockers:
                path[following] = None
                ahead.append(iter(blockers[following]))
    return []
