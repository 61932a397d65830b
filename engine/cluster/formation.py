"""How a cluster comes to be: its first map is decided like every other, and by all whom it names.

Nodes that are in no cluster have no map that would say who votes. So `init` asks everyone whom it names, in the words of
the exchange (`engine.cluster.exchange`) and with the same records, about what follows version 0.0; the first map is
committed when each of them has it on disk as accepted, and only then is the operator answered. Two orders at once whose
names overlap meet in a node that both need: at most one of them succeeds. An order that is repeated, here or at another
of the nodes, takes up what the first one left.

A node that accepted a first map asks nobody else to be let in, and takes no other cluster's map. What cannot have been
chosen any more, because one of those whom it names has promised a later ballot without having accepted it, binds nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard, assert_never

import msgspec

from engine.cluster.exchange import Exchange
from engine.messages import Accept, Announce, Commit, Promise, Propose, Refuse
from engine.messages.cluster import ToExchange, ToFormation
from engine.protocol.requests import Code, Report
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import Connect, SessionId
from rebalance import table as topologies
from rebalance.plan import planning_first
from rebalance.ports import MS
from rebalance.rule import NEVER, Rule
from rebalance.steps import map_of
from rebalance.table import Candidate, Group, Topology
from wal import records as r
from wal.ids import NO_VERSION, Ballot, NodeId
from wal.probe import probe

PATIENCE_RETRIES = 6
"""An order is given up after so many times `exchange_retry_ms`."""


class _Order:
    """An `init` under way, and who waits for it. It is worked out first which map it would be: `first`."""

    def __init__(self, cluster: str, chosen: Sequence[Candidate]) -> None:
        self.cluster = cluster
        self.chosen = chosen
        self.nodes = tuple(c.node for c in chosen)
        self.first: Topology | None = None
        self.until = NEVER
        self.asked: list[tuple[SessionId, int]] = []
        self.ballot = Ballot(0, "")
        self.promises: dict[NodeId, Promise] = {}
        self.proposed = b""
        self.accepts: dict[NodeId, None] = {}
        self.resend_at = 0
        self.retry_at: int | None = None  # outbid: the next ballot begins then


class Formation(Rule):
    """Both sides of `init` on one node."""

    def __init__(
        self, core: Core, desk: Desk, exchange: Exchange, *, candidates: Callable[[], dict[NodeId, Candidate]]
    ) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self.exchange = exchange
        self._candidates = candidates
        self._order: _Order | None = None
        self._round = 0

    # The operator.

    def form(self, session: SessionId, request: int, cluster: str, expected: Sequence[NodeId]) -> str:
        """Form a cluster of this node and all others it sees, or of those expected; or why not, at once or later."""
        core = self.core
        if core.topology is not None:
            if core.topology.cluster != cluster:
                return f"the cluster is formed already: {core.topology.name} {core.topology.version}"
            self._answer(session, request)
            return ""
        if self._order is not None:
            if self._order.cluster != cluster:
                return f"another init is under way here, of {', '.join(self._order.nodes)}: ask again when it is over"
            self._order.asked.append((session, request))
            return ""
        candidates = self._candidates()
        missing = [n for n in expected if n not in candidates]
        if missing:
            return f"not seen yet: {', '.join(missing)}; seen: {', '.join(sorted(candidates))}"
        chosen = [candidates[n] for n in (expected or sorted(candidates))]
        if core.node not in [c.node for c in chosen]:
            return f"the node that forms the cluster ({core.node}) must be in it"
        self._order = _Order(cluster, chosen)
        self._order.asked.append((session, request))
        core.in_pieces(self._work_out(self._order))
        return ""

    def _answer(self, session: SessionId, request: int) -> None:
        topology = self.core.topology
        assert topology is not None
        self.desk.reply(session, Report(request, msgspec.json.encode({"formed": topology.cluster})))

    def _end(self, problem: str, *, passing: bool = False) -> None:
        """The order is over: tell who waits. `passing`: the same order may succeed later."""
        order, self._order = self._order, None
        self.alarm.off()
        assert order is not None
        for session, request in order.asked:
            if problem:
                self.desk.refuse(session, request, Code.BUSY if passing else Code.USAGE, problem, retryable=passing)
            else:
                self._answer(session, request)

    # Whoever was given the order.

    def _work_out(self, order: _Order) -> Iterator[int]:
        """Find out where copies are to be, and ask all others, if there are any."""
        core, settings = self.core, self.core.settings
        first = yield from planning_first(
            order.cluster,
            settings.cluster,
            partitions=settings.partitions,
            group=Group(settings.backups, settings.async_backups),
            candidates=order.chosen,
            affinity=core.affinity,
        )
        if self._order is not order or core.topology is not None:
            return
        order.first, order.until = first, core.now + PATIENCE_RETRIES * settings.exchange_retry_ms * MS
        if len(order.nodes) == 1 and not self.exchange.accepted[1]:
            self._take(order, first, topologies.encode(first))  # nobody else has to agree
        else:
            self._begin(order)

    def _begin(self, order: _Order) -> None:
        core = self.core
        self._round = max(self._round, self.exchange.promised.round) + 1
        order.ballot = Ballot(self._round, core.node)
        order.promises, order.proposed, order.accepts, order.retry_at = {}, b"", {}, None
        core.note(f"init of {', '.join(order.nodes)} ballot {order.ballot}")
        for one in order.chosen:  # one that made a connection to this node is not yet reached by it
            if one.node != core.node:
                core.task(Connect(one.node, one.address))
        self._say(order)

    def _say(self, order: _Order) -> None:
        core = self.core
        if not order.proposed:
            asked = tuple(n for n in order.nodes if n not in order.promises)
            core.send(asked, Announce(NO_VERSION, order.ballot, []))
        else:
            asked = tuple(n for n in order.nodes if n not in order.accepts)
            core.send(asked, Propose(NO_VERSION, order.ballot, order.proposed))
        order.resend_at = core.now + core.settings.retransmit_ms * MS
        self.alarm.by(order.resend_at)

    def on_promise(self, sender: NodeId, message: Promise) -> None:
        """Count a promise; when all are there, propose."""
        order = self._order
        if order is None or message.ballot != order.ballot or order.proposed or sender not in order.nodes:
            return
        if order.first is None:
            return  # nobody was asked yet
        order.promises[sender] = message
        if len(order.promises) < len(order.nodes):
            return
        for accepted in dict.fromkeys(p.accepted for p in order.promises.values() if p.accepted):
            bound = map_of(accepted)
            if bound is None or not self._may_be_chosen(order, bound, accepted):
                continue
            names = [m.node for m in bound.members]
            if set(names) != set(order.nodes):
                probe("formation.refused")
                self._end(
                    f"{', '.join(n for n in names if n in order.promises)} agreed to form cluster {bound.cluster} of "
                    f"{', '.join(names)}: give that order again, or begin with empty directories"
                )
                return
            probe("formation.taken_up")
            order.cluster, order.first, order.proposed = bound.cluster, bound, accepted
        order.proposed = order.proposed or topologies.encode(order.first)
        self._say(order)

    @staticmethod
    def _may_be_chosen(order: _Order, bound: Topology, accepted: bytes) -> bool:
        """Whether everyone who was asked, and whom that map names, has accepted it: the others may have, too."""
        common = [m.node for m in bound.members if m.node in order.promises]
        return all(order.promises[n].accepted == accepted for n in common)

    def on_accept(self, sender: NodeId, message: Accept) -> None:
        """Count an accept; when all are there, the cluster is formed."""
        order, core = self._order, self.core
        if order is None or message.ballot != order.ballot or not order.proposed:
            return
        assert order.first is not None, "what was proposed is worked out"
        member = order.first.member(sender)
        if member is None or member.allocation != message.life.allocation:
            return  # another disk of that name agreed to nothing
        order.accepts[sender] = None
        if len(order.accepts) == len(order.nodes):
            others = tuple(n for n in order.nodes if n != core.node)
            if others:
                core.send(others, Commit(order.first.version, order.proposed))
            self._take(order, order.first, order.proposed)

    def _take(self, order: _Order, first: Topology, encoded: bytes) -> None:
        """Take the first map, when it is known what it makes of this node."""
        if self.core.topology is not None:
            return
        if not self.exchange.foresight.works_out(first, lambda: self._take(order, first, encoded)):
            self.exchange.adopt(first, encoded)
            if self._order is order:
                self._end("")

    def on_refuse(self, message: Refuse) -> None:
        """Another order has a higher ballot: wait, the longer the later this node's name, and ask again."""
        order, settings = self._order, self.core.settings
        self._round = max(self._round, message.promised.round)
        if order is not None and message.ballot == order.ballot and order.retry_at is None:
            probe("formation.outbid")
            rank = sorted(order.nodes).index(self.core.node)
            order.retry_at = self.core.now + settings.exchange_retry_ms * MS * (2 + rank) // 2
            self.alarm.by(order.retry_at)

    def tick(self) -> None:
        """Say it again, try again, or give up."""
        order, core = self._order, self.core
        self.alarm.off()
        if order is None:
            return
        if core.topology is not None:
            mine = core.topology.cluster == order.cluster
            self._end("" if mine else f"{core.node} is in cluster {core.topology.cluster} now, which was formed meanwhile")
        elif core.now >= order.until:
            silent = [n for n in order.nodes if n not in (order.accepts if order.proposed else order.promises)]
            problem = f"no consent from {', '.join(silent)}: nothing is formed yet; are they running? Give the order again"
            self._end(problem, passing=True)
        elif order.retry_at is None:
            if self.alarm.is_due(order.resend_at, core.now):
                self._say(order)
        elif self.alarm.is_due(order.retry_at, core.now):
            self._begin(order)

    # Everyone who is named.

    def on_announce(self, sender: NodeId, message: Announce) -> None:
        """Promise, and tell what was accepted."""
        core, exchange = self.core, self.exchange
        asker = self._candidates().get(sender)
        if asker is not None and sender != core.node:
            core.task(Connect(sender, asker.address))
        if message.ballot < exchange.promised:
            core.send(sender, Refuse(NO_VERSION, message.ballot, exchange.promised))
            return
        if message.ballot > exchange.promised:
            core.vote(r.Promised(NO_VERSION, message.ballot))
        ballot, accepted = exchange.accepted
        core.send(
            sender,
            Promise(
                NO_VERSION,
                message.ballot,
                accepted_ballot=ballot,
                accepted=accepted,
                life=core.life,
                voted_lsn=core.voted_lsn,
            ),
        )

    def on_propose(self, sender: NodeId, message: Propose) -> None:
        """Agree to a first map that names this disk."""
        core, exchange = self.core, self.exchange
        if message.ballot < exchange.promised:
            core.send(sender, Refuse(NO_VERSION, message.ballot, exchange.promised))
            return
        first = map_of(message.topology)
        member = first.member(core.node) if first is not None else None
        if member is None or member.allocation != core.allocation:
            core.note(f"{sender} proposes a first map without this node's disk: not accepted")
            return
        if exchange.accepted != (message.ballot, message.topology):
            core.vote(r.Accepted(NO_VERSION, message.ballot, message.topology))
        core.send(sender, Accept(NO_VERSION, message.ballot, core.life, core.claim_lsn, core.voted_lsn))

    def on(self, sender: NodeId, message: ToFormation) -> None:
        """What is said about the first map, on a node that has none."""
        match message:
            case Announce():
                self.on_announce(sender, message)
            case Propose():
                self.on_propose(sender, message)
            case Promise():
                self.on_promise(sender, message)
            case Accept():
                self.on_accept(sender, message)
            case Refuse():
                self.on_refuse(message)
            case _:
                assert_never(message)


def about_first_map(message: ToExchange) -> TypeGuard[ToFormation]:
    """Whether a message is about what follows version 0.0."""
    return isinstance(message, Announce | Propose | Promise | Accept | Refuse) and message.after == NO_VERSION
