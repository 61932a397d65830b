"""Transactions that wait for each other in a circle, over all nodes: one of them gives way, so that the others go on.

A primary knows who waits there for whom, and nobody knows more. A circle that lies on one node it finds at the end of the
turn in which somebody has begun to wait. For the others each tells the coordinator of those who wait and hold something,
here or elsewhere, once they have waited for a moment: nearly all that wait have what they want by then, and cost nothing.
What was told is told again when it has changed, and now and then while it has not; and once that there are none any more.
Of who holds nothing, or does not say so, it tells after a while: nobody but who stands behind it waits for it. That
somebody has given up, who might be taken for a part of the next circle, is told of almost at once. The coordinator lays
together what it was told last: whoever stands in a circle will stand there until one gives way, for none of them does
anything but wait. It is the youngest, which has done least so far and meets the others again only when they are further;
the nodes where it waits refuse it at once, and name all, the keys and the nodes.

Nothing rests on this. A report that is late, lost, or of waits that have just ended costs a transaction that may be run
again, or a wait until the lock's timeout; and so would a circle of more than `WAITS_MAX` waits on a node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, assert_never, get_args

from engine.cluster.detector import Detector
from engine.data.holdings import Key, Who
from engine.data.locks import LockTable
from engine.data.waiter import Waiter
from engine.messages import GiveWay, Waits
from engine.messages.transactions import ToDeadlocks
from engine.protocol.requests import Link
from engine.turn.core import Core
from rebalance.ports import MS
from rebalance.rule import NEVER, NewMap, Rule
from wal.ids import Namespace, NodeId, TxId
from wal.probe import probe

LOOK_MS = 30
"""From look to look."""
LASTED_MS = 15
"""Whoever holds something is told of when it has waited for so long."""
SOON_MS = 2
"""From look to look when one has given up."""
AGAIN_MS = 300
"""What is still as it was told is told again after so long."""
LONG_MS = 500
"""Whoever waits for so long is told of, whether or not it says that it holds something."""
STALE_MS = 1_000
"""What a node told so long ago counts no more: by now it would have told something else."""
WAITS_MAX = 500
"""So many waits one node tells of."""
LOOKED_MAX, PAUSE_MS = 5_000, 10
"""So many of those who wait are looked at in one turn; of more the next ones a little later, and then all are told of."""
CIRCLES_MAX = 100
"""So many circles are opened in one turn, or for one message: what is left is found in the next look."""
IN_VAIN_MAX = 20
"""After so many turns in a row that found no circle the rest is left to what is told: of those who wait for very many, who
wait for very many, there are more ways than anybody could follow."""
LEFT_MAX = WAITS_MAX * IN_VAIN_MAX
"""So many who were not looked at are remembered for the next turn; the rest is left to what is told, too."""

_Waiting = tuple[TxId, TxId]


class Wait(NamedTuple):
    """Who waits for whom, on which node, and for which key, and whether to read it; the holder's label, and its age as far
    as it is known."""

    waiter: TxId
    holder: TxId
    node: NodeId
    namespace: Namespace
    key: bytes
    label: str
    age_ms: int
    shared: bool


class Deadlocks(Rule):
    """Who waits for whom on one node, and, at the coordinator, on all."""

    takes = get_args(ToDeadlocks)

    def __init__(self, core: Core, detector: Detector, locks: LockTable) -> None:
        super().__init__()
        self.core = core
        self._detector = detector
        self._locks = locks
        self._look_at = 0
        self._looked_at = 0
        self._roots: list[TxId] = []  # who has begun to wait, and was not looked at yet
        self._behind: list[TxId] = []  # for whom those wait who were: the rest, for which there was no room
        self._in_vain = 0  # turns since somebody began to wait in which not all were looked at, and no circle was found
        self._waited: deque[tuple[int, TxId]] = deque()  # since when; who holds something, and is not told of yet
        self._left: deque[Key] = deque()  # whose lines are yet to be looked at
        self._found: dict[_Waiting, tuple[TxId, TxId, Key, bool]] = {}  # in those that were
        self._looked = 0  # at so many in this turn
        self._said: list[_Waiting] = []  # the last time
        self._said_at = 0
        self._told: dict[NodeId, tuple[int, list[Wait]]] = {}  # when, and what

    @property
    def wake_at(self) -> int:
        """When to look next; never while nobody waits, and that was told."""
        if not (self._said or self._locks.waiters) or not self.core.serving:
            return NEVER
        waited, waits = self._waited, self._locks.may_close_a_circle
        while waited and not waits(waited[0][1]):
            waited.popleft()
        return min(self._look_at, waited[0][0] + LASTED_MS * MS) if waited else self._look_at

    def tick(self) -> None:
        """Tell of the waits that may be a part of a circle."""
        core, waited = self.core, self._waited
        self._look_at, self._looked_at = core.now + LOOK_MS * MS, core.now
        while waited and waited[0][0] + LASTED_MS * MS <= core.now:
            waited.popleft()
        if not self._look_on():
            self._look_at = core.now + PAUSE_MS * MS
            return
        found, self._found = self._found, {}
        said, coordinator = list(found), self._detector.coordinator()
        if coordinator is None:
            said = []
        elif said != self._said or (said and core.now - self._said_at >= AGAIN_MS * MS):
            about = [(*key, *self._who(holder)) for _, holder, key, _ in found.values()]
            shared = [to_read for _, _, _, to_read in found.values()]
            self._said_at = core.now
            self._report(coordinator, Waits(core.fence, said, about, shared))
        self._said = said

    def _look_on(self) -> bool:
        """Look at some of those who wait; whether that were all, or as many matter as are told of."""
        found, self._looked = self._found, 0
        if not self._left:
            self._left.extend(self._locks.lines())
        more = islice(self._locks.waits(self._matters, self._lines()), WAITS_MAX - len(found))
        found |= {wait[:2]: wait for wait in more}
        self.core.work += len(found) + self._looked // 4
        if len(found) >= WAITS_MAX:
            self._left.clear()
        elif self._left:
            probe("tx.looked_at_some_who_wait")
        return not self._left

    def _lines(self) -> Iterator[Key]:
        while self._left and self._looked < LOOKED_MAX:
            self._looked += 1
            yield self._left.popleft()

    def _matters(self, waiter: Waiter) -> bool:
        """Whether who waits holds something, and has waited for a moment, or holds nothing, and has waited for long."""
        self._looked += 1
        holds = self._locks.may_close_a_circle(waiter.owner)
        if waiter.who is None:
            return holds
        return self.core.now - waiter.who.since >= (LASTED_MS if holds else LONG_MS) * MS

    def _report(self, coordinator: NodeId, waits: Waits) -> None:
        self.core.tell(coordinator, waits)

    def _who(self, holder: TxId) -> tuple[str, int]:
        """The label of a transaction and its age in ms, as far as they are known here."""
        label, since, _ = self._locks.who(holder) or Who("", -1)
        return label, (self.core.now - since) // MS if since >= 0 else -1

    @property
    def left_over(self) -> int:
        """So many are to be looked at in the next turn."""
        return len(self._roots) + len(self._behind)

    def flush(self) -> None:
        """End of the turn: a circle of waits that are all here is found at once, where somebody has begun to wait."""
        locks, now = self._locks, self.core.now
        if locks.gave_up:
            locks.gave_up = False
            self._look_at = min(self._look_at, self._looked_at + SOON_MS * MS)
        fresh, locks.began = locks.began, []
        roots, behind = self._roots + fresh, self._behind
        if not (roots or behind):
            return
        if self._look_at <= now:
            self._look_at = now + LOOK_MS * MS
        self._waited.extend((now, owner) for owner in fresh if self._locks.may_close_a_circle(owner))
        between: dict[_Waiting, tuple[Key, bool]] = {}
        blockers: dict[TxId, list[TxId]] = {}
        ages: dict[TxId, int] = {}
        ahead: list[TxId] = []
        while (ahead or roots or behind) and len(between) < WAITS_MAX:
            waiter = (ahead or roots or behind).pop()
            if waiter in blockers:
                continue
            ages[waiter] = self._who(waiter)[1]
            blockers[waiter] = []
            for holder, key, to_read in islice(self._locks.waits_of(waiter), WAITS_MAX - len(between)):
                between[waiter, holder] = key, to_read
                blockers[waiter].append(holder)
                ahead.append(holder)
        behind += ahead
        self.core.work += len(between)
        circles = list(islice(circles_in(blockers, ages), CIRCLES_MAX))
        if len(circles) == CIRCLES_MAX:
            over = {circle[0]: None for circle in circles}
            behind += [waiter for waiter in blockers if waiter not in over]
        self._in_vain = 0 if fresh or circles else self._in_vain + 1
        goes_on = bool(roots or behind) and self._in_vain < IN_VAIN_MAX
        self._roots, self._behind = (roots[-LEFT_MAX // 2 :], behind[-LEFT_MAX // 2 :]) if goes_on else ([], [])
        if goes_on:
            self.core.resume(_nothing_more)  # in the next turn
        for circle in circles:
            probe("tx.deadlock_found_at_once")
            labels = [self._who(tx)[0] for tx in circle]
            ring = [
                Link(tx, labels[n], circle[m], labels[m], node=self.core.node, namespace=ns, key=key, shared=to_read)
                for n, (tx, m) in enumerate(zip(circle, [*range(1, len(circle)), 0], strict=True))
                for (ns, key), to_read in (between[tx, circle[m]],)
            ]
            self._locks.give_way(circle[0], ring)

    def switch(self, _: NewMap) -> None:
        """A new topology: locks may have gone with their partitions."""
        self._told, self._said = {}, []

    def on_waits(self, sender: NodeId, message: Waits) -> None:
        """Look for circles in what was told last."""
        core = self.core
        if message.version != core.fence:
            return
        about = message.about or [("", b"", "", -1)] * len(message.waits)
        shared = message.shared or [False] * len(message.waits)
        told = [
            Wait(*wait, sender, namespace=namespace, key=key, label=label, age_ms=age_ms, shared=to_read)
            for wait, (namespace, key, label, age_ms), to_read in zip(message.waits, about, shared, strict=False)
        ]
        self._told[sender] = core.now, told[:WAITS_MAX]
        since = core.now - STALE_MS * MS
        self._told = {node: (at, waits) for node, (at, waits) in self._told.items() if at >= since and waits}
        between: dict[_Waiting, Wait] = {}
        blockers: dict[TxId, list[TxId]] = {}
        ages: dict[TxId, int] = {}
        for _, waits in self._told.values():
            core.work += len(waits)
            for wait in waits:
                between[wait.waiter, wait.holder] = wait
                blockers.setdefault(wait.waiter, []).append(wait.holder)
                ages[wait.holder] = max(wait.age_ms, ages.get(wait.holder, -1))
        circles = list(islice(circles_in(blockers, ages), CIRCLES_MAX))
        if not circles:
            return
        victims: dict[TxId, dict[NodeId, None]] = {circle[0]: {} for circle in circles}  # and where they wait
        for node, (told_at, waits) in self._told.items():
            for wait in waits:
                if wait.waiter in victims:
                    victims[wait.waiter][node] = None
            self._told[node] = told_at, [wait for wait in waits if wait.waiter not in victims]  # one of them is enough
        for circle in circles:
            self._let_go(circle, between, tuple(victims[circle[0]]))

    def _let_go(self, circle: list[TxId], between: Mapping[_Waiting, Wait], where: tuple[NodeId, ...]) -> None:
        """Tell the nodes where the first of a circle waits."""
        core, victim = self.core, circle[0]
        probe("tx.deadlock_found")
        ring = [between[pair] for pair in zip(circle, [*circle[1:], victim], strict=True)]
        links = [(wait.node, wait.namespace, wait.key, wait.label) for wait in ring]
        core.send(where, GiveWay(core.fence, victim, circle, links, [wait.shared for wait in ring]))

    def on_give_way(self, sender: NodeId, message: GiveWay) -> None:
        """A transaction is not to wait here any more."""
        following = [*message.circle[1:], message.victim]
        if message.version == self.core.fence and self._locks.waits_for(message.victim, following[0]):
            labels = [label for _, _, _, label in message.links]
            shared = message.shared if len(message.shared) == len(labels) else [False] * len(labels)
            ring = [
                Link(waiter, labels[at - 1], holder, label, node=node, namespace=namespace, key=key, shared=shared[at])
                for at, (waiter, holder, (node, namespace, key, label)) in enumerate(
                    zip(message.circle, following, message.links, strict=False)
                )
            ]
            self._locks.give_way(message.victim, ring)

    def on(self, sender: NodeId, message: ToDeadlocks) -> None:
        """Everything that is said about waits."""
        match message:
            case Waits():
                self.on_waits(sender, message)
            case GiveWay():
                self.on_give_way(sender, message)
            case _:
                assert_never(message)


def _nothing_more() -> None:
    """There is another turn, at the end of which who has begun to wait is looked at."""


def youngest(circle: Iterable[TxId], ages: Mapping[TxId, int]) -> TxId:
    """Which of them has held something for the shortest time. One that holds nothing stands in nobody's way but in line."""
    known = [tx for tx in circle if ages.get(tx, -1) >= 0]
    return max(known or circle, key=lambda tx: (-ages.get(tx, -1), tx))


def circles_in(blockers: Mapping[TxId, Iterable[TxId]], ages: Mapping[TxId, int]) -> Iterator[list[TxId]]:
    """Circles of transactions, each of which waits for the next one and the last for the first, who is to give way.

    They are found one after the other, as if who gives way waited for nobody any more.

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
                circle = found[found.index(following) :]
                victim = youngest(circle, ages)
                at = circle.index(victim)
                yield [*circle[at:], *circle[:at]]
                over[victim] = None
                del ahead[found.index(victim) :]
                path = dict.fromkeys(found[: len(ahead)])
            elif following not in over and following in blockers:
                path[following] = None
                ahead.append(iter(blockers[following]))
