"""Handover steps: primaries that move to where they belong, while nobody but their partitions stops.

```
 coordinator                      primary that is to move          all members
 a step (`engine.cluster.steps`) is decided: a majority has accepted it, and nobody goes by it
 HandOver(partitions) ----------> nothing new begins there;
                                  what has begun ends (bounded)
                      <---------- Drained
 all have drained: CommitStep -------------------------------------> each goes by it; the new primary asked every copy
                                                                     what it has when it accepted the step: they answer
                                                                     now, and then it serves (`rebalance.promotion`)
```

So nobody waits while the step is decided. That nothing is under way when it is told is a courtesy, so that no transaction
fails: what is acknowledged is safe without it. So the primary's word binds nobody: where none comes the step is told after
a while, as it is decided; and where no step comes the primary goes on by itself. `docs/handover.md` argues it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never, get_args

from engine.cluster.behind import same_version
from engine.cluster.exchange import Exchange
from engine.cluster.steps import Steps
from engine.messages import Drained, HandOver
from engine.messages.cluster import ToHandovers
from engine.turn.core import Core
from rebalance.handing import NONE_DOUBTED
from rebalance.ports import MS
from rebalance.rule import NewMap, Rule
from rebalance.steps import handover_step
from wal.ids import Ballot, NodeId, Version
from wal.probe import probe

HANDED_OVER_LEAST = 128
HANDED_OVER_OF_ALL = 32
"""So many partitions, or such a part of all, stop together at most. All of them wait for what each takes, which all copies
are asked about; and each step is a map of its own, which takes every node as long as there are partitions."""


class _Handover:
    """Partitions that this node, as the coordinator, has their primaries drain, once their step is decided."""

    def __init__(self, after: Version, ballot: Ballot, by_primary: dict[NodeId, list[int]]) -> None:
        self.after = after
        self.ballot = ballot
        self.by_primary = by_primary
        self.awaited = dict.fromkeys(by_primary)
        self.deadline = 0  # 0: it is not decided yet


class _Draining:
    """Partitions that this node, as their primary, is asked to hand over."""

    def __init__(self, coordinator: NodeId, asked: HandOver, *, patient_until: int, until: int) -> None:
        self.coordinator = coordinator
        self.asked = asked
        self.patient_until = patient_until
        self.until = until  # if no step comes, they are kept
        self.said = False  # that nothing is under way


class Handovers(Rule):
    """Both sides of a handover step on one node, until it is proposed."""

    takes = get_args(ToHandovers)

    def __init__(
        self,
        core: Core,
        exchange: Exchange,
        steps: Steps,
        *,
        drained: Callable[[Sequence[int]], list[str]],
        break_locks: Callable[[Sequence[int]], None],
        keep: Callable[[], None],
    ) -> None:
        super().__init__()
        self.core = core
        self.exchange = exchange
        self.steps = steps
        self._drained = drained
        self._break_locks = break_locks
        self._keep = keep
        self._handover: _Handover | None = None
        self._draining: _Draining | None = None
        self._resend_at = 0

    # Coordinator.

    def take(self, wanted: Sequence[int], doubted: Mapping[int, Sequence[NodeId]] = NONE_DOUBTED) -> bool:
        """Have the primaries of these partitions moved by a step, to none of the copies that are `doubted`; whether one is
        under way, or begins now."""
        core, exchange = self.core, self.exchange
        if exchange.standing is None or not exchange.all_hand_over or not core.affinity_known or not wanted:
            return False
        if self.steps.under_way:
            return True
        topology = core.topology
        assert topology is not None
        sure, most = self.steps.sure(), max(HANDED_OVER_LEAST, len(topology.placements) // HANDED_OVER_OF_ALL)
        step = handover_step(topology, core.map_hash, wanted, sure, core.affinity, most=most, doubted=doubted)
        if step is None:
            return False
        by_primary: dict[NodeId, list[int]] = {}
        for number, _ in step.placements:
            by_primary.setdefault(topology.placements[number].owners[0], []).append(number)
        self._handover = _Handover(core.version, exchange.standing, by_primary)
        core.note(f"handover after {core.version}: {len(step.placements)} partitions")
        self.steps.begin(step, decided=self._drain)
        return True

    @property
    def _patience(self) -> int:
        return (self.core.settings.exchange_drain_ms + self.core.settings.exchange_retry_ms) * MS

    def _drain(self) -> None:
        """The step is decided: the primaries that it moves are to end what they have begun."""
        core, handover = self.core, self._handover
        assert handover is not None
        handover.deadline = core.attentive + self._patience
        self._ask()

    def _ask(self) -> None:
        core, handover = self.core, self._handover
        assert handover is not None
        self._resend_at = core.now + core.settings.retransmit_ms * MS
        self.alarm.by(self._resend_at)
        for primary in handover.awaited:
            core.send(primary, HandOver(handover.after, handover.ballot, handover.by_primary[primary]))

    def on_drained(self, sender: NodeId, message: Drained) -> None:
        """When all have drained, the step is told."""
        handover = self._handover
        if handover is None or not handover.deadline or not self.steps.under_way:
            return
        if (message.version, message.ballot) != (handover.after, handover.ballot):
            return
        handover.awaited.pop(sender, None)
        if not handover.awaited:
            self._tell()

    def _tell(self) -> None:
        self._handover = None
        self.steps.tell()

    # Primary.

    def on_hand_over(self, sender: NodeId, message: HandOver) -> None:
        """Let nothing new begin, and say when nothing is under way."""
        core = self.core
        if not same_version(core, sender, message.version) or core.frozen or not core.serving:
            return
        if message.ballot < self.exchange.promised:
            probe("handover.refused_ballot")
            return
        if self._draining is None or self._draining.asked != message:
            drain = core.now + core.settings.exchange_drain_ms * MS
            self._draining = _Draining(sender, message, patient_until=drain, until=core.now + 2 * self._patience)
            self.alarm.by(drain)
        self._draining.said = False
        self.try_say()

    def try_say(self) -> None:
        """Say that nothing holds up the handover as soon as that is so; looked at in every turn."""
        core, exchange, draining = self.core, self.exchange, self._draining
        if draining is None or draining.said or core.frozen:
            return
        exchange.held_up = self._drained(draining.asked.partitions)
        if exchange.held_up and core.now < draining.patient_until:
            return
        if exchange.held_up:
            probe("handover.drain_timed_out")
            core.note(f"handover after {draining.asked.version} no longer waits for {', '.join(exchange.held_up)}")
            self._break_locks(draining.asked.partitions)
        draining.said, exchange.held_up = True, []
        self.core.send(draining.coordinator, Drained(draining.asked.version, draining.asked.ballot))

    # Topology and time.

    def switch(self, _: NewMap) -> None:
        """Another map, by a step or not: whatever was to be handed over is asked for anew."""
        self._handover = self._draining = None

    def tick(self) -> None:
        """Ask again; give up what takes too long, on either side."""
        core, handover = self.core, self._handover
        self.alarm.off()
        if handover is not None and not self.steps.under_way:
            self._handover = None
        elif handover is not None and handover.deadline:
            if core.attentive >= handover.deadline:
                probe("handover.did_not_drain")
                self._tell()
            elif self.alarm.is_due(self._resend_at, core.now):
                self._ask()
        draining = self._draining
        if draining is not None and not draining.said:
            self.alarm.is_due(draining.patient_until, core.now)
        if draining is not None and self.alarm.is_due(draining.until, core.now):
            probe("handover.no_step_came")
            self._draining = None
            if self.exchange.draining is None and not core.frozen:  # else that drains, and a map comes of it
                self.exchange.held_up = []
                self._keep()

    def on(self, sender: NodeId, message: ToHandovers) -> None:
        """Everything that is said about handovers."""
        match message:
            case HandOver():
                self.on_hand_over(sender, message)
            case Drained():
                self.on_drained(sender, message)
            case _:
                assert_never(message)
