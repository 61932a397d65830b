"""A ballot that stands without an exchange: all members promise it, and nobody stops, or says what he has.

```
 coordinator                      all members
 LeadSteps(ballot) ------------>  log the promise
                   <------------  Follows: it is on disk; whether anything was accepted before
 a majority of voters is among them, and nothing was: light steps are made under it
```

That is for who has come to lead and has led no exchange, because who led before has gone in good order. Nothing is decided
by it but who leads. Where something was accepted, and may be decided, a full exchange is next, which proposes it again.
"""

from __future__ import annotations

from engine.cluster.behind import same_version
from engine.cluster.claims import Claims
from engine.cluster.exchange import Exchange
from engine.messages import Follows, LeadSteps, Refuse
from engine.turn.core import Core
from rebalance.lives import disk_of
from rebalance.ports import MS
from rebalance.rule import Alarm
from wal import records as r
from wal.ids import NO_BALLOT, NO_VERSION, Ballot, NodeId, Version
from wal.probe import probe


class _Asking:
    """A ballot of this node that is to stand, as soon as enough have promised it."""

    def __init__(self, after: Version, ballot: Ballot, deadline: int) -> None:
        self.after = after
        self.ballot = ballot
        self.deadline = deadline
        self.answers: dict[NodeId, Follows] = {}


class Standing:
    """Both sides of it on one node."""

    def __init__(self, core: Core, exchange: Exchange, claims: Claims, alarm: Alarm) -> None:
        self.core = core
        self.exchange = exchange
        self.claims = claims
        self.alarm = alarm
        self._asking: _Asking | None = None
        self._tried_after = NO_VERSION  # after this map it was asked for promises, or a step was not accepted
        self._resend_at = 0

    # Coordinator.

    def stand(self) -> bool:
        """Ask for promises, if they were not asked for after this map; whether a ballot is about to stand."""
        core, asking = self.core, self._asking
        if asking is not None and asking.after == core.version:
            return True
        if self._tried_after == core.version:
            return False
        self._tried_after = core.version
        deadline = core.spare + core.settings.exchange_retry_ms * MS
        self._asking = _Asking(core.version, self.exchange.next_ballot(), deadline)
        self._ask()
        return True

    def fell(self) -> None:
        """A step found no majority: a full exchange is next."""
        self.exchange.standing, self._tried_after = None, self.core.version

    def goes_on(self, ballot: Ballot) -> None:
        """A step was decided under it: it stands on where a majority of those who vote now is among the members by whose
        promises it did; else all are asked anew."""
        exchange, topology = self.exchange, self.core.topology
        assert topology is not None
        vote = [m.node for m in topology.members if m.node in topology.voters]
        exchange.held_by = {node: claim for node, claim in exchange.held_by.items() if node in vote}
        exchange.standing = ballot if topology.carried_by(exchange.held_by) else None

    def _ask(self) -> None:
        core, asking = self.core, self._asking
        assert core.topology is not None
        assert asking is not None
        self._resend_at = core.now + core.settings.retransmit_ms * MS
        self.alarm.by(self._resend_at)
        asked = tuple(m.node for m in core.topology.members if m.node not in asking.answers)
        core.send(asked, LeadSteps(asking.after, asking.ballot))

    def on_follows(self, sender: NodeId, message: Follows) -> bool:
        """Count a promise; with those of all members, of whom a majority may vote, the ballot stands. Whether it does."""
        core, exchange, asking, topology = self.core, self.exchange, self._asking, self.core.topology
        if asking is None or (message.version, message.ballot) != (core.version, asking.ballot):
            return False
        member = topology.member(sender) if topology is not None else None
        if topology is None or member is None or exchange.promised > asking.ballot:
            return False
        if (member.allocation, member.incarnation) != (message.life.allocation, message.life.incarnation):
            return False
        self.claims.note(sender, message.life, message.voted_lsn, message.voted_lsn)
        self.claims.learn(message.claims)
        if message.accepted:
            probe("standing.something_was_accepted")
            self._asking = None
            return False
        asking.answers[sender] = message
        if any(m.node not in asking.answers for m in topology.members):
            return False
        self._asking = None
        held = {
            n: r.Claim(n, life.allocation, life.incarnation, asking.answers[n].voted_lsn)
            for n in topology.voters
            if n in asking.answers and (life := asking.answers[n].life).allocation == disk_of(topology, n)
        }
        if topology.carried_by(held):
            core.note(f"ballot {asking.ballot} stands after {core.version}")
            exchange.standing, exchange.held_by = asking.ballot, held
            exchange.all_hand_over = exchange.all_admit = True
        return exchange.standing is not None

    # Member.

    def on_lead_steps(self, sender: NodeId, message: LeadSteps) -> None:
        """Promise a ballot, unless an exchange is under way."""
        core, exchange = self.core, self.exchange
        if not same_version(core, sender, message.version):
            return
        exchange.highest_seen = max(exchange.highest_seen, message.ballot.round)
        if message.ballot < exchange.promised:
            probe("standing.refused_lower_ballot")
            core.send(sender, Refuse(message.version, message.ballot, exchange.promised))
            return
        if core.topology is None or core.frozen or exchange.draining is not None:
            probe("standing.an_exchange_is_under_way")
            return
        if message.ballot > exchange.promised:
            core.vote(r.Promised(message.version, message.ballot))
            exchange.standing = None
        follows = Follows(
            message.version,
            message.ballot,
            accepted=exchange.accepted[0] != NO_BALLOT,
            life=core.life,
            voted_lsn=core.voted_lsn,
            claims=self.claims.sure(),
        )
        core.send(sender, follows)

    # Time.

    def tick(self) -> None:
        """Ask again; after a while, leave it to a full exchange."""
        core, asking = self.core, self._asking
        if asking is None:
            return
        if asking.after != core.version or core.spare >= asking.deadline:
            probe("standing.not_all_promised")
            self._asking = None
        elif self.alarm.is_due(self._resend_at, core.now):
            self._ask()
