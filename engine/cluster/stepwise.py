"""What the coordinator has light steps carry out, and in which order.

Another baseline comes first, then what copies lead that are wrong moves, and they go out, then who is stopped in good order
goes; all else is one step, if it is one at all (`engine.cluster.steps`). What cannot be done so is left to a full exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.cluster.attempt import Intent
from engine.cluster.exchange import Exchange
from engine.cluster.handovers import Handovers
from engine.cluster.reasons import Reasons
from engine.cluster.steps import Steps
from rebalance.baselines import came_by_a_step
from rebalance.going import going, never_gone
from rebalance.steps import may_join
from rebalance.table import Topology
from wal.ids import NodeId
from wal.probe import probe


class Stepwise:
    """The initiative of one node, as far as nobody has to stop for it."""

    def __init__(self, exchange: Exchange, steps: Steps, handovers: Handovers, reasons: Reasons) -> None:
        self.exchange = exchange
        self.steps = steps
        self.handovers = handovers
        self.reasons = reasons

    def take(self, topology: Topology, intent: Intent) -> bool:
        """Carry it out by light steps; whether one is under way, or soon will be."""
        steps = self.steps
        if self.exchange.standing is None:
            return self._stand(topology, intent)
        if intent.baseline is None and not intent.doubted:
            if intent.leaving and not (intent.joins or intent.namespaces or intent.migrations):
                return self._let_go(topology, intent.leaving)
            return steps.take(intent)
        if not steps.under_way:
            if intent.baseline is not None:
                steps.rebase(intent.baseline)
            elif self.reasons.all_serve(topology):
                return self._take_out(topology, intent.doubted)
            else:
                probe("stepwise.nobody_is_taken_out_while_anybody_promotes")
        return True

    def _stand(self, topology: Topology, intent: Intent) -> bool:
        """Ask for promises, where no full exchange is due: else another one leads, for a failure."""
        going_on = not never_gone(topology) or came_by_a_step(topology)
        ordered = intent.leaving or intent.baseline is not None or intent.namespaces or intent.doubted
        known = self.reasons.all_let_go(topology) and may_join(topology, intent.joins)
        return bool(going_on or ordered) and known and self.steps.ballot.stand()

    def _take_out(self, topology: Topology, doubted: Mapping[int, Sequence[NodeId]]) -> bool:
        """Have what primaries lead whose copies are wrong moved, and then all that are wrong be in sync no more."""
        if led := [n for n, wrong in doubted.items() if topology.placements[n].owners[0] in wrong]:
            return not self.steps.core.affinity_known or self.handovers.take(led, doubted)
        self.steps.take_out(doubted)
        return True

    def _let_go(self, topology: Topology, leaving: Sequence[NodeId]) -> bool:
        """Note that they go, have their primaries moved, then their copies gone, and last of all them."""
        steps, noted = self.steps, going(topology)
        if steps.under_way:
            return True
        if new := [n for n in leaving if n not in noted]:
            steps.note_going(new)
        elif led := self.reasons.led_by(topology, leaving):
            return self.handovers.take(led)
        elif not self.reasons.all_serve(topology):
            probe("stepwise.nobody_goes_while_anybody_promotes")
        else:
            steps.let_go(leaving)
        return True
