"""When a primary vouches for a MOVING copy.

A copy that says it is settled is first waited for (its answers count from then on), and vouched for when it has everything
that was reserved by then, and contains the same (`rebalance.comparing`). The coordinator makes it in-sync with the next
map, and only on this node's word. One that is behind on its messages, by seconds, is not waited for yet: each write would
take as long, and it would be set aside as too slow before it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from rebalance.beforehand import Beforehand
from rebalance.comparing import Comparison, wrong_in
from rebalance.fragment import FragmentState
from rebalance.messages import AllSettled, Settle, Settled
from rebalance.partition import LocalPartition
from rebalance.ports import MS, WORK_MAX, Node, Operation, Shipping, leads, may_act
from rebalance.table import Member, Standing, Topology
from wal.ids import Fragment, NodeId
from wal.probe import probe

PATIENCE = 10
"""A question about contents that is not answered is asked anew after so many times `retransmit_ms`."""

Awaited = tuple[str, int, int]
"""One life of a member, and how often it was set aside: one that is set aside once more begins again."""


def awaited(topology: Topology, member: Member) -> Awaited:
    """The life of a member that the map lists."""
    return (member.allocation, member.incarnation, abs(topology.aside.get(member.node, 0)))


class Vouching:
    """The MOVING copies that a primary waits for, and those that it vouches for."""

    def __init__(self, core: Node, shipping: Shipping, *, regroup: Callable[[LocalPartition], None]) -> None:
        self.core = core
        self._shipping = shipping
        self._regroup = regroup  # the copies that are waited for changed
        self._lives: Mapping[NodeId, Awaited] = {}  # which life of each member the map lists
        self.pending: dict[int, dict[NodeId, dict[str, int]]] = {}  # MOVING, and waited for; the counters each must reach
        self.vouched: dict[tuple[int, NodeId], None] = {}
        self._news: list[tuple[int, NodeId]] = []  # of these, what nobody was told yet
        self.differed: dict[tuple[Fragment, NodeId], int] = {}  # copies with other contents than this one, and how often
        self._comparisons: dict[tuple[int, NodeId], Comparison] = {}
        self._supplied: dict[int, dict[NodeId, int]] = {}  # in which session, if it has not begun anew since
        self.beforehand = Beforehand(core)
        self._round = core.run << 32

    def on(self, sender: NodeId, message: Settled | AllSettled) -> None:
        """A copy says that it is settled, or many are."""
        match message:
            case Settled():
                self.on_settled(sender, message)
            case AllSettled():
                self.on_all_settled(sender, message)
            case _:
                assert_never(message)

    def on_all_settled(self, sender: NodeId, message: AllSettled) -> None:
        """The same of many; what there is no room for in this turn is taken in the next."""
        core, at = self.core, 0
        while at < len(message.copies) and (not at or core.work < WORK_MAX):
            core.work += 1
            self.on_settled(sender, message.copies[at])
            at += 1
        if at < len(message.copies):
            rest = AllSettled(message.version, message.copies[at:])
            core.resume(lambda: self.on_all_settled(sender, rest))

    def on_settled(self, sender: NodeId, message: Settled) -> None:
        """A MOVING copy has no gap: wait for it from now on; at its marks, vouch for it."""
        core, number = self.core, message.partition
        if not may_act(core, message.version):
            return
        local = leads(core, number)
        if local is None or local.placement.standing_of(sender) is not Standing.MOVING or self.stands_for(number, sender):
            return
        state = core.replica.partition(number)
        theirs = {namespace: (lwm, digests) for namespace, lwm, digests in message.fragments}
        wrong = [
            namespace
            for namespace, fragment in state.fragments.items()
            if namespace in theirs and _differs(fragment, theirs[namespace][1])
        ]
        wrong.extend(ns for ns in theirs if ns not in state.fragments and theirs[ns][0])
        if wrong:
            probe("supply.digest_differed")
            self.begin_anew(local, sender)
            core.send(sender, Settle(core.fence, number, [], wrong, ended=[], prepares=[], round=message.round))
            return
        core.work += len(state.fragments)
        marks = self.pending.get(number, {}).get(sender)
        if marks is None and self._shipping.is_behind(sender):
            probe("supply.settled_and_behind")
            return  # all writes would take as long as it is behind: it says so again
        if marks is None:
            marks = {namespace: f.counter.hwm for namespace, f in state.fragments.items()}
            self.pending.setdefault(number, {})[sender] = marks
            self._regroup(local)
            self._shipping.wait_for(sender, number)
        ended = [tx for tx in message.readers if tx not in state.prepared]
        lacking = [p for tx, p in state.prepared.items() if not p.writes and tx not in message.readers]
        reached = all(theirs.get(ns, (0, []))[0] >= mark for ns, mark in marks.items())
        if reached and not (ended or lacking or self._shipping.outstanding(sender, number)):
            self._compare(local, sender, message)
        else:
            core.send(
                sender,
                Settle(core.fence, number, list(marks.items()), [], ended=ended, prepares=lacking, round=message.round),
            )

    def _compare(self, local: LocalPartition, node: NodeId, message: Settled) -> None:
        """Everything that was promised is there: does it contain the same? If so, vouch for it."""
        core, number = self.core, local.number
        if (number, node) in self.vouched:
            return
        if self._compares_now(number, node, message):
            self._vouch_for((number, node))
            return
        asked = self._comparisons.get((number, node))
        if asked is not None and not asked.void and message.compared == asked.round:
            asked.answer(message.contents, message.round)
        if asked is not None and not asked.void and core.now < asked.asked_at + PATIENCE * core.settings.retransmit_ms * MS:
            return
        if asked is not None:
            probe("supply.compared_anew")
        self._round += 1
        asked = Comparison(
            core, local, node, self._round, lambda it: self._compared(it, local, node), sum_up=self.beforehand.sum_up
        )
        self._comparisons[(number, node)] = asked
        core.log(asked.record)
        operation = Operation(local, [asked.record], counted=asked.counted, abandoned=asked.abandoned)
        self._shipping.ship(operation, local)

    def _compared(self, asked: Comparison, local: LocalPartition, node: NodeId) -> None:
        core, key = self.core, (local.number, node)
        if self._comparisons.get(key) is not asked or asked.void or node not in self.pending.get(local.number, {}):
            return
        wrong = asked.wrong()
        if wrong is None:
            asked.void = True
            return
        if not wrong:
            self._vouch_for(key)
            return
        probe("supply.contents_differed")
        for namespace in wrong:
            name = (namespace, local.number)
            self.differed[name, node] = self.differed.get((name, node), 0) + 1
            core.note(f"{node} has other contents of {namespace}/{local.number} than this node: it is to take them in full")
        self.begin_anew(local, node)
        core.send(node, Settle(core.fence, local.number, [], wrong, ended=[], prepares=[], round=asked.said))

    def supplies(self, number: int, node: NodeId, session: int) -> None:
        """A session supplies a copy."""
        self._supplied.setdefault(number, {})[node] = session

    def _compares_now(self, number: int, node: NodeId, message: Settled) -> bool:
        """Whether the copy has said, unasked, that it contains what is here at this moment. If not, it is to be asked.

        What it said before it began anew is not true any more, and may come late.
        """
        if message.compared or message.contents is None or message.session != self._supplied.get(number, {}).get(node):
            return False
        lwm = {c.namespace: c.lwm for c in message.contents}
        there = self.core.replica.partition(number).fragments
        same = all(lwm.get(namespace, 0) == fragment.counter.lwm for namespace, fragment in there.items())
        mine = self.beforehand.now(number) if same else None
        if mine is None or wrong_in(mine, message.contents) != []:
            probe("supply.not_compared_at_once")
            return False
        return True

    def _vouch_for(self, key: tuple[int, NodeId]) -> None:
        self.vouched[key] = None
        self._news.append(key)

    def stands_for(self, number: int, node: NodeId) -> bool:
        """Whether this node vouches for a copy. It stays with that until another map comes, whatever the copy says.

        The word may have gone into a light step that is decided already, and relies on this node to wait for the copy.
        """
        return (number, node) in self.vouched

    def take_news(self) -> list[tuple[int, NodeId]]:
        """The copies that were vouched for since this was asked, and are still."""
        if not self._news:  # each turn asks
            return []
        news, self._news = self._news, []
        return [key for key in news if key in self.vouched]

    def begin_anew(self, local: LocalPartition, node: NodeId) -> None:
        """The copy begins again: do not wait for it."""
        assert not self.stands_for(local.number, node), f"{node}'s copy of partition {local.number} was vouched for"
        self._comparisons.pop((local.number, node), None)
        self._supplied.get(local.number, {}).pop(node, None)
        if self._forget(local.number, node):
            self._regroup(local)

    def _forget(self, number: int, node: NodeId) -> bool:
        """A copy is not waited for any more; whether it was."""
        copies = self.pending.get(number)
        if copies is None or copies.pop(node, None) is None:
            return False
        if not copies:
            del self.pending[number]
        return True

    def switch(self, lives: Mapping[NodeId, Awaited], moved: Iterable[LocalPartition]) -> None:
        """A new topology: a copy that started again, or is not awaited any more, is not waited for."""
        core, moved = self.core, list(moved)
        self.beforehand.switch(moved)
        if lives != self._lives:
            self._supplied = {}  # it is asked for then, which is as good
        for local in [local for local in moved if local.number in self._supplied] if self._supplied else ():
            kept = {n: it for n, it in self._supplied.pop(local.number).items() if _awaits(local, n)}
            if kept:
                self._supplied[local.number] = kept
        if lives != self._lives:
            moved = [core.local[number] for number in self.pending]
        for local in [local for local in moved if local.number in self.pending] if self.pending else ():
            for node in list(self.pending[local.number]):
                if not _awaits(local, node) or self._lives.get(node) != lives.get(node):
                    self._forget(local.number, node)
                    self.vouched.pop((local.number, node), None)
                    self._comparisons.pop((local.number, node), None)
            self._regroup(local)
        self._lives = lives


def _awaits(local: LocalPartition, node: NodeId) -> bool:
    """Whether this node is to vouch for a copy some day."""
    return local.mine and node in local.placement.owners and node not in local.placement.in_sync


def _differs(fragment: FragmentState, digests: list[tuple[int, int]]) -> bool:
    return any((mine := fragment.digest_at(counter)) is not None and mine != digest for counter, digest in digests)
