"""The exchange: how a cluster moves from topology version N to N+1, and its consensus.

One instance of single-decree Paxos per version, decided by the voters of version N, in the words of Ignite's partition
map exchange:

```
 coordinator                      every member
 Announce(N, ballot)  ------->    log the promise; answer it at once with what was accepted before
                      <-------    Promise
                                  finish transactions on partitions that are handed over (bounded), then stop
                      <-------    SingleMap: what every copy here has; from now on no replication of version N
 all single maps; where the copies of partitions are not alike:
 AskCopies            ------->
                      <-------    Copies: of these, what each fragment has
 majority of promises, and all that:
 Propose(full map)    ------->    log the accepted map; a large one is told, and logged, as what it changes
                      <-------    Accept
 majority of accepts:
 Commit(map)          ------->    log it, switch to it
```

A promise holds for all versions that follow, until a higher ballot: what loses nobody is decided by light steps
under one that stands (`engine.cluster.steps`). A map that was accepted under an earlier ballot is proposed again
instead of a new one: it may be committed already. The failure detector only decides when to try; a wrong suspicion
costs time and never safety. Whoever missed a commit learns the map from the next message that carries a newer version.
A coordinator is the oldest member that is not suspected, in its own opinion; of two, ballots order what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import assert_never, get_args

from engine.cluster.attempt import COPIES_OF_WORK, Attempt, Intent, announce, answers_by, ask_copies, propose, tell_commit
from engine.cluster.behind import same_version, send_map
from engine.cluster.claims import Claims
from engine.cluster.detector import Detector
from engine.cluster.foresight import MAP_BYTES_OF_WORK, Foresight
from engine.cluster.making import Made, Making
from engine.cluster.reporting import Reporting
from engine.cluster.splits import Splits
from engine.messages import (
    Accept,
    Announce,
    AskCopies,
    AskMap,
    Commit,
    Copies,
    Promise,
    Propose,
    Refuse,
    SingleMap,
)
from engine.messages.cluster import ToExchange
from engine.turn.core import Core
from engine.turn.letting_go import let_go
from rebalance import table as topologies
from rebalance.anew import Anew
from rebalance.differing import differing, is_short
from rebalance.lives import disk_of, may_vote
from rebalance.plan import planning
from rebalance.ports import MS
from rebalance.rule import Rule
from rebalance.steps import encode_step, may_follow
from rebalance.table import Topology
from wal import records as r
from wal.ids import NO_BALLOT, ROUNDS_AHEAD, Ballot, NodeId
from wal.probe import probe


class Exchange(Rule):
    """Both sides of the exchange on one node: acceptor always, coordinator when it has an attempt under way."""

    takes = get_args(ToExchange)

    def __init__(
        self,
        core: Core,
        detector: Detector,
        claims: Claims,
        *,
        switch: Callable[[Topology, bool], None],
        drained: Callable[[Sequence[int]], list[str]],
        break_locks: Callable[[Sequence[int]], None],
        vouched: Callable[[], list[tuple[int, NodeId]]],
        anew: Anew,
    ) -> None:
        super().__init__()
        self.core = core
        self.reporting = Reporting(core, claims, anew, vouched)
        self.foresight = Foresight(core)
        self.making = Making(core, self.foresight)
        self.detector = detector
        self.claims = claims
        self._switch = switch
        self._drained = drained
        self._break_locks = break_locks
        self.attempt: Attempt | None = None
        self.standing: Ballot | None = None  # which a majority has promised, in the lives that the map lists
        self.held_by: dict[NodeId, r.Claim] = {}  # of whom that is, and where their promises lie
        self.all_hand_over = self.all_admit = False  # all of its members know of steps that do so
        self.draining: Announce | None = None  # announced, and not stopped yet
        self._coordinator: NodeId = ""
        self.held_up: list[str] = []
        self.highest_seen = self.retry_at = self._drain_until = self._resend_at = 0
        self.splits = Splits(core)

    # Acceptor.

    @property
    def promised(self) -> Ballot:
        """The highest ballot promised: for the version after the committed one, and for all that follow."""
        return self.core.replica.promised[1]

    @property
    def accepted(self) -> tuple[Ballot, bytes]:
        """The map accepted for the version after the committed one, with its ballot."""
        after, ballot, topology = self.core.replica.accepted
        return (ballot, topology) if after == self.core.version and topology else (NO_BALLOT, b"")

    @property
    def consent(self) -> str:
        """The id of the cluster that this node agreed to form, as long as it is in none."""
        return topologies.decode(self.accepted[1]).cluster if self.core.topology is None and self.accepted[1] else ""

    def on_announce(self, sender: NodeId, message: Announce) -> None:
        """Promise, drain what is handed over, then report."""
        core = self.core
        if not same_version(core, sender, message.after):
            return
        self.highest_seen = max(self.highest_seen, message.ballot.round)
        if message.ballot < self.promised:
            probe("exchange.refused_lower_ballot")
            core.send(sender, Refuse(message.after, message.ballot, self.promised))
            return
        if message.ballot > self.promised:
            core.vote(r.Promised(message.after, message.ballot))
            self.standing = None
            self.draining = message
            self.reporting.forget()
            self._drain_until = core.now + core.settings.exchange_drain_ms * MS
            self._coordinator = sender
        core.send(sender, self.reporting.promise(message, *self.accepted))
        if self.reporting.single is not None:
            core.send(sender, self.reporting.single)
        self.try_report()

    def try_report(self) -> None:
        """Send the single map as soon as nothing under way holds it up, or the time for that is over."""
        message, core = self.draining, self.core
        if message is None:
            return
        self.held_up = self._drained(message.handover)
        if self.held_up:
            if core.now < self._drain_until:
                self.alarm.by(self._drain_until)
                return
            probe("exchange.drain_timed_out")
            core.note(f"exchange after {message.after} no longer waits for {', '.join(self.held_up)}")
            self._break_locks(message.handover)
        self.draining, self.held_up = None, []
        core.stop()
        self.reporting.begin(message, self._coordinator)

    def on_propose(self, sender: NodeId, message: Propose) -> None:
        """Put the proposed map on disk, unless a higher ballot was promised."""
        core = self.core
        if not same_version(core, sender, message.after):
            return
        if message.ballot < self.promised:
            probe("exchange.refused_proposal")
            core.send(sender, Refuse(message.after, message.ballot, self.promised))
            return
        if core.topology is not None and disk_of(core.topology, core.node) != core.allocation:
            probe("exchange.no_vote_on_this_disk")
            return  # the voter of this name is another disk: it alone knows what it promised
        encoded = self.making.proposed(message, lambda: self.on_propose(sender, message))
        if not encoded:
            return  # it is read before anything is promised about it; and the commit finds that done
        if self.accepted != (message.ballot, encoded):
            self.making.accept(message, encoded)
        self.draining = None
        core.stop()
        core.send(sender, Accept(message.after, message.ballot, core.life, core.claim_lsn, core.voted_lsn))
        if (topology := self.making.map_of(encoded)) is not None:
            self.foresight.foresee(topology)

    def on_commit(self, sender: NodeId, message: Commit) -> None:
        """Take a committed map that is newer than ours."""
        if message.version <= self.core.version:
            return
        core, encoded = self.core, message.topology
        if not encoded:
            ballot, encoded = self.accepted
            if ballot != message.ballot or topologies.hash_of(encoded) != message.map_hash:
                probe("exchange.committed_is_not_what_was_accepted")
                core.send(sender, AskMap(core.version))
                return
        core.work += len(encoded) // MAP_BYTES_OF_WORK
        topology = self.making.map_of(encoded)
        if topology is None or topology.version != message.version:
            return  # it is none, or not the one that it is called
        self._take(sender, topology, encoded)

    def _take(self, sender: NodeId, topology: Topology, encoded: bytes) -> None:
        """Take a committed map that is newer than ours, and no other cluster's, when it is known what it changes."""
        core = self.core
        newer = topology.version > core.version
        if not newer or not self.splits.follows(sender, topology, topologies.hash_of(encoded), self.consent):
            return
        if not self.foresight.works_out(topology, lambda: self._take(sender, topology, encoded), chosen=True):
            self.adopt(topology, encoded)

    def adopt(self, topology: Topology, encoded: bytes, *, step: bytes = b"") -> None:
        """Log a committed map, or the step from ours that makes it, and switch to it."""
        version, map_hash = topology.version, topologies.hash_of(encoded)
        step = step or self.core.replica.maps.step_accepted(map_hash)
        self.core.log(r.Committed(version, b"", step, map_hash) if step else r.Committed(version, encoded))
        self.core.replica.maps.know(version, encoded)
        self.core.voted_lsn = 0  # nobody was promised anything about what follows
        self.core.map_hash = map_hash
        still = self.core.stopped or self.draining is not None
        self.core.little_by_little(let_go([*self.reporting.held, *(self.attempt.held if self.attempt else ())]))
        self.draining, self.held_up = None, []
        self.reporting.forget()
        self.attempt = self.standing = None
        self.retry_at = 0
        self.core.go_on_under(topology)
        self._switch(topology, still)

    # Coordinator.

    def begin(self, intent: Intent) -> None:
        """Try to move to the next version."""
        core = self.core
        assert core.topology is not None, "a cluster that is not formed has no exchange"
        ballot = self.next_ballot()
        attempt = self.attempt = Attempt(core.version, ballot, intent, answers_by(core), self.claims.known())
        core.note(f"exchange after {core.version} ballot {ballot}: {intent.reason}")
        announce(core, attempt, self.claims)
        self._resend_at = core.now + core.settings.retransmit_ms * MS
        self.alarm.by(self._resend_at)

    def next_ballot(self) -> Ballot:
        """One above all that were heard of; none stands any more."""
        self.highest_seen, self.standing = max(self.highest_seen, self.promised.round) + 1, None
        return Ballot(self.highest_seen, self.core.node)

    def on_peer_seen(self, node: NodeId) -> None:
        """A connection was made: what was announced before may not have reached it."""
        attempt = self.attempt
        if attempt and attempt.proposed is None and node not in attempt.singles and attempt.asks_of(node):
            self.core.send(node, attempt.announce)

    def on_promise(self, sender: NodeId, message: Promise) -> None:
        """Count a promise."""
        attempt = self.attempt
        if attempt and (message.after, message.ballot) == (attempt.after, attempt.ballot):
            self.core.work += len(message.accepted) // MAP_BYTES_OF_WORK
            if message.accepted and not may_follow(message.after, message.accepted):
                return  # what it was bound by cannot be read here, and may be committed
            attempt.promises[sender] = message
            self.claims.note(sender, message.life, message.voted_lsn, 0)
            self.claims.learn(message.claims)
            self._try_propose()

    def on_single_map(self, sender: NodeId, message: SingleMap) -> None:
        """Collect a single map."""
        attempt = self.attempt
        if attempt and (message.after, message.ballot) == (attempt.after, attempt.ballot):
            if not attempt.asks(sender, message.life):
                probe("exchange.another_disk_of_the_name")
                return
            attempt.report(sender, message)
            self._try_propose()

    def on_copies(self, sender: NodeId, message: Copies) -> None:
        """Collect what somebody has of what is in doubt."""
        attempt = self.attempt
        if (
            attempt
            and (message.after, message.ballot) == (attempt.after, attempt.ballot)
            and attempt.answer(sender, message)
        ):
            self._try_propose()

    def _try_propose(self, *, late: bool = False) -> None:
        """Propose once enough is known. `late`: all that came was taken, and whoever has not answered is left out."""
        attempt, core = self.attempt, self.core
        if attempt is None or attempt.planning or attempt.proposed is not None or core.topology is None:
            return
        waiting = [node for node in attempt.awaited if not self.detector.suspected(node)]
        if waiting and not late:
            return
        if sum(attempt.voted(core.topology, self.claims, n) for n in core.topology.voters) < core.topology.majority:
            return
        if accepted := attempt.accepted:
            probe("exchange.adopted_accepted_map")
            attempt.proposed = accepted
            propose(core, attempt)
            return
        if waiting:
            probe("exchange.left_out_the_silent")
            core.note(f"exchange after {attempt.after}: no single map from {', '.join(waiting)}: left out")
        attempt.leave_out(list(attempt.untold))
        if not core.topology.carried_by({c.node for c in attempt.intent.candidates if c.node in attempt.singles}):
            return  # a map that its own voters could not continue would strand the cluster
        if outlived := attempt.outlived(self.claims):
            probe("exchange.a_life_was_outlived")
            core.note(f"exchange after {attempt.after}: {', '.join(outlived)} may have restarted meanwhile: ask again")
            self.give_up()
            return
        attempt.planning = True
        core.in_pieces(self._plan(attempt, core.topology))

    def _plan(self, attempt: Attempt, old: Topology) -> Iterator[int]:
        """Find out what to propose, or what is to be asked before; the attempt may end meanwhile."""
        yield from attempt.compare(old)
        if attempt.untold and self.attempt is attempt:
            probe("exchange.copies_are_not_alike")
            attempt.planning = False
            attempt.deadline = answers_by(self.core)
            ask_copies(self.core, attempt)
            return
        change = attempt.change(old, self.claims, self.core.map_hash)
        plan = yield from planning(old, change, self.core.affinity)
        encoded = yield from topologies.encoding(plan.topology)
        step = (yield from differing(old, change.map_hash, plan.topology)) if self.foresight.is_large(old) else None
        if self.attempt is not attempt:
            probe("exchange.planned_in_vain")
            return
        attempt.planning = False
        if not plan.topology.carried_by([m.node for m in plan.topology.members]):
            return  # nor may a new baseline be one whose majority is not here
        for note in plan.notes:
            self.core.note(note)
        if step is not None and is_short(step, plan.topology):
            attempt.step = step
            self.making.know(Made(step, encode_step(step), plan.topology, encoded))
        attempt.proposed = encoded
        propose(self.core, attempt)

    def look_again(self) -> None:
        """Somebody that was waited for is suspected: perhaps all others have answered."""
        self._try_propose()

    def on_accept(self, sender: NodeId, message: Accept) -> None:
        """Count an accept; a majority commits."""
        attempt, core = self.attempt, self.core
        if not attempt or (message.after, message.ballot) != (attempt.after, attempt.ballot) or attempt.proposed is None:
            return  # an accept answers a proposal
        assert core.topology is not None
        self.claims.note(sender, message.life, message.durable_lsn, 0)
        if not may_vote(core.topology, sender, message.life, self.claims.known()):
            probe("exchange.no_vote_in_this_life")
            return  # it may have forgotten what an earlier life promised, under this ballot or a higher one
        attempt.accepts[sender] = None
        if not attempt.chosen and sum(n in attempt.accepts for n in core.topology.voters) >= core.topology.majority:
            attempt.chosen = True
            encoded, topology = attempt.proposed, self.making.map_of(attempt.proposed)
            assert topology is not None, "what is proposed is a map"
            tell_commit(core, attempt, topology, encoded)
            self._take_chosen(attempt, topology, encoded)

    def _take_chosen(self, attempt: Attempt, topology: Topology, encoded: bytes) -> None:
        """Take the map that this node has had chosen, when it is known what it changes."""
        if self.attempt is not attempt:
            return  # an operator has forced another one meanwhile
        if self.foresight.works_out(topology, lambda: self._take_chosen(attempt, topology, encoded), chosen=True):
            return
        self.adopt(topology, encoded)
        self.held_by = attempt.lasting(topology)
        self.standing = attempt.ballot if self.held_by else None
        self.all_hand_over, self.all_admit = attempt.known_to_all(topology)

    def on_refuse(self, sender: NodeId, message: Refuse) -> None:
        """Somebody promised a higher ballot: try again above it, a little later than whoever holds it."""
        self.highest_seen = max(self.highest_seen, min(message.promised.round, self.promised.round + ROUNDS_AHEAD // 2))
        self.standing = None if message.ballot == self.standing else self.standing
        attempt = self.attempt
        if attempt and (message.after, message.ballot) == (attempt.after, attempt.ballot):
            probe("exchange.outbid")
            self.give_up()

    def give_up(self) -> None:
        """Abandon the attempt; the next one waits, the longer the younger this node is."""
        core = self.core
        self.attempt = None
        assert core.topology is not None
        rank = next((i for i, m in enumerate(core.topology.members) if m.node == core.node), 0)
        self.retry_at = core.now + core.settings.exchange_retry_ms * MS * (2 + rank) // 2

    def tick(self) -> None:
        """Resend what may have been lost; end what takes too long.

        An attempt ends by the time which this node has to `spare`, since the answers may lie before it, and to begin anew
        would only add to that. It may stand still: no alarm can be set to it, and it is looked at whenever something would
        be sent again.
        """
        core, attempt = self.core, self.attempt
        self.alarm.off()
        if self.draining is not None:
            self.try_report()
        if attempt is None or attempt.chosen:
            return
        if core.spare >= attempt.deadline:
            self._try_propose(late=True)
            if self.attempt is attempt and core.spare >= attempt.deadline + core.settings.exchange_retry_ms * MS:
                probe("exchange.attempt_timed_out")
                core.note(f"exchange after {attempt.after} ballot {attempt.ballot} found no majority")
                self.give_up()
                return
        if self.attempt is attempt and self.alarm.is_due(self._resend_at, core.now):
            self._resend_at = core.now + core.settings.retransmit_ms * MS
            self.alarm.by(self._resend_at)
            if attempt.proposed is None:
                announce(core, attempt, self.claims)
                ask_copies(core, attempt)
            else:
                propose(core, attempt)

    def on(self, sender: NodeId, message: ToExchange) -> None:
        """Everything that is said about the exchange."""
        match message:
            case Announce():
                self.on_announce(sender, message)
            case Promise():
                self.on_promise(sender, message)
            case SingleMap():
                self.core.work += (len(message.copies) + len(message.sums or ())) // COPIES_OF_WORK
                self.on_single_map(sender, message)
            case AskCopies():
                self.reporting.on_ask_copies(sender, message)
            case Copies():
                self.core.work += len(message.copies) // COPIES_OF_WORK
                self.on_copies(sender, message)
            case Propose():
                self.core.work += message.step.work if message.step is not None else 0  # also again
                self.on_propose(sender, message)
            case Accept():
                self.on_accept(sender, message)
            case Refuse():
                self.on_refuse(sender, message)
            case Commit():
                self.on_commit(sender, message)
            case AskMap(version):
                if version < self.core.version:
                    send_map(self.core, sender)
            case _:
                assert_never(message)
