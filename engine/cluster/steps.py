"""Light steps: maps by which nobody is lost, and no choice rests on what copies have: nobody stops for them.

```
 coordinator                          voters                      all members
 (a majority has promised its ballot, in the lives that the map lists)
 ProposeStep(ballot, what changes) -> log the map that comes of it
                                   <- AcceptStep
 a majority of accepts:
 CommitStep(what changes) -------------------------------------> log the map, switch what changes
```

A promise holds for all versions until a higher ballot (Multi-Paxos), so that the coordinator which led the last full
exchange needs no other round of promises; `Exchange.standing` is its ballot for as long as it may count on them. Who has
led none asks for promises alone (`engine.cluster.standing`). Whatever is unusual ends that: another map, a higher ballot,
an answer that does not come. Then a full exchange is next, and finds what was accepted. `docs/light-steps.md` says why
this is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, assert_never, get_args

from engine.cluster.attempt import Intent
from engine.cluster.behind import same_version
from engine.cluster.claims import Claims
from engine.cluster.exchange import Exchange
from engine.cluster.standing import Standing as StandingBallot
from engine.messages import AcceptStep, AskMap, CaughtUp, CommitStep, Follows, LeadSteps, ProposeStep, Refuse
from engine.messages.cluster import ToSteps
from engine.turn.core import Core
from rebalance import table as topologies
from rebalance.coming import moving_in, worth_a_step
from rebalance.ideal import finding_ideal
from rebalance.lives import disk_of, may_vote
from rebalance.ports import MS
from rebalance.rule import NewMap, Rule
from rebalance.steps import (
    Step,
    letting_go,
    light_step,
    may_join,
    noting,
    rebasing,
    taking_out,
)
from rebalance.table import Group, Placement, Standing, Topology
from wal import records as r
from wal.ids import NO_VERSION, Ballot, NodeId
from wal.probe import probe

TOGETHER_MS = 1_000
"""Copies that come one after another wait so long for each other; all that waits for them has waited before."""
FOLLOWED_MS = 2_000
"""A copy that counts is followed by another within this time, or by none for a while; the first may take longer."""
MOVING_OF_WORK = 32
"""So many partitions of a map are as much work to look at, whether their copies move, as one thing that is decided."""
CAUGHT_UP_OF_WORK = 8
"""And so many copies that a primary vouches for."""
HANDOVER_WAITS_MS = 30_000
"""So long a primary stays where it is because copies still come."""


Placed: TypeAlias = Sequence[tuple[int, Placement]]
"""Partitions, and where they are."""
Places: TypeAlias = tuple[tuple[NodeId, ...], Mapping[NodeId, str], int, tuple[Group, ...]]
"""What the places of copies follow from: the baseline, its failure domains, how many partitions, and the groups."""


class _Attempt:
    """One light step that this node leads. `decided`: a majority has accepted it, and nobody was told."""

    def __init__(self, ballot: Ballot, step: Step, deadline: int, decided: Callable[[], None]) -> None:
        self.ballot = ballot
        self.step = step
        self.deadline = deadline
        self.accepts: dict[NodeId, None] = {}
        self.decided = False
        self.when_decided = decided


class Steps(Rule):
    """Both sides of a light step on one node."""

    takes = get_args(ToSteps)

    def __init__(self, core: Core, exchange: Exchange, claims: Claims, *, foreseen: Callable[[Placed], None]) -> None:
        super().__init__()
        self.core = core
        self.exchange = exchange
        self.claims = claims
        self._foreseen = foreseen  # a step was accepted here, and is likely to be decided
        self.ballot = StandingBallot(core, exchange, claims, self.alarm)
        self.caught_up: dict[tuple[int, NodeId], NodeId] = {}  # MOVING copies, and the primaries who vouch for them
        self._attempt: _Attempt | None = None
        self._last_came = False  # the last copy that is waited for, or a promise, and nobody looked yet
        self._since = 0  # when the first of them was vouched for that no step has taken in
        self._moving: tuple[Topology | None, int] = (None, 0)  # of this map: copies that are not in sync
        self._switched_at = 0
        self._stepped_at = 0
        self._most = 0  # of these there were, since there were none
        self._resend_at = 0
        self._places: tuple[Places, bool] | None = None  # of groups that are to come: whether their places are known

    # Coordinator.

    @property
    def under_way(self) -> bool:
        """Whether this node leads a step that may yet be decided as it is."""
        attempt = self._attempt
        return attempt is not None and (attempt.ballot, attempt.step.after) == (self.exchange.standing, self.core.version)

    def on_caught_up(self, sender: NodeId, message: CaughtUp) -> None:
        """A primary vouches for copies."""
        topology = self.core.topology
        if topology is None or message.version != topology.fenced:
            return
        if message.placed not in (NO_VERSION, topology.version):
            probe("steps.vouched_in_another_map")
            return
        self.claims.learn(message.claims)
        if not self.caught_up:
            self._since = self.core.now
        self.core.work += len(message.copies) // CAUGHT_UP_OF_WORK
        for number, node in message.copies:
            if number < len(topology.placements) and topology.placements[number].standing_of(node) is Standing.MOVING:
                self.caught_up[number, node] = sender
        self._last_came = self.complete

    def take(self, intent: Intent) -> bool:
        """Carry out by a light step what can be: who joins, what the operator said, what is vouched for, or surplus.

        Whether one is under way, or soon will be. Copies are not let go alone where primaries are to move as well.
        """
        core, exchange = self.core, self.exchange
        due = bool(intent.joins or intent.namespaces or intent.migrations or intent.missing)
        lets_go = bool(intent.surplus) and not intent.handover
        if exchange.standing is None or not (self.caught_up or due or lets_go) or not core.affinity_known:
            return False
        if self.under_way:
            return True
        assert core.topology is not None
        if due and not exchange.all_admit:
            return False
        if intent.joins and not may_join(core.topology, intent.joins):
            return False
        if not due and self._waits(core.topology):
            return True
        said, groups = intent.namespaces, intent.groups
        if intent.joins and groups:  # who joins is a member first, so that it has its copies of a group from the beginning
            said, groups = {}, []
        if groups and not self._places_known(groups):
            return True
        by_partition: dict[int, dict[NodeId, NodeId]] = {}
        for (number, node), primary in self.caught_up.items():
            by_partition.setdefault(number, {})[node] = primary
        step = light_step(
            core.topology,
            core.map_hash,
            by_partition,
            self.sure(),
            core.affinity,
            surplus=intent.surplus,
            missing=intent.missing,
            joins=intent.joins,
            namespaces=said,
            groups=groups,
            migrations=intent.migrations,
        )
        if step is not None:
            self.begin(step)
        return step is not None

    def _places_known(self, groups: Sequence[Group]) -> bool:
        """Whether it is known where the copies of groups should be that are to come; else that is being found out."""
        topology = self.core.topology
        assert topology is not None
        asked = (topology.baseline, topology.domains, topology.partitions, (*topology.all_groups, *groups))
        if self._places is None or self._places[0] != asked:
            self._places = asked, False
            self.core.in_pieces(self._find_places(asked))
        return self._places == (asked, True)

    def _find_places(self, asked: Places) -> Iterator[int]:
        for work in finding_ideal(self.core.affinity, *asked):
            yield work
            if self._places is None or self._places[0] is not asked:
                return
        self._places = asked, True
        self._last_came = True

    def sure(self) -> list[r.Claim]:
        """What a step says of disks: what they were heard to claim, and where the promises lie under which it is made."""
        return [*self.claims.sure(), *self.exchange.held_by.values()]

    def note_going(self, nodes: Sequence[NodeId]) -> None:
        """Say that these are about to go."""
        assert self.core.topology is not None
        self.begin(noting(self.core.topology, self.core.map_hash, nodes, self.sure()))

    def rebase(self, baseline: Sequence[NodeId]) -> None:
        """Have these be the baseline."""
        assert self.core.topology is not None
        self.begin(rebasing(self.core.topology, self.core.map_hash, baseline, self.sure()))

    def take_out(self, doubted: Mapping[int, Sequence[NodeId]]) -> None:
        """Have these copies in sync no more, or the first ones of very many."""
        core = self.core
        assert core.topology is not None
        self.begin(taking_out(core.topology, core.map_hash, doubted, self.sure(), core.affinity))

    def let_go(self, nodes: Sequence[NodeId]) -> None:
        """Have these, who lead nothing any more, go; or the next of their copies, of very many."""
        core = self.core
        assert core.topology is not None
        self.begin(letting_go(core.topology, core.map_hash, nodes, self.sure(), core.affinity))

    def _waits(self, topology: Topology) -> bool:
        """Whether other copies are waited for, that they may come to count together."""
        if not self.caught_up:
            return self.coming
        worth = worth_a_step(topology, self.caught_up, self.moving, self._most)
        return not worth and self.core.now < self._since + TOGETHER_MS * MS

    @property
    def moving(self) -> int:
        """How many copies are not in sync, on nodes that are here."""
        topology = self.core.topology
        if topology is not None and self._moving[0] is not topology:
            self.core.work += len(topology.placements) // MOVING_OF_WORK
            self._moving = topology, moving_in(topology, *self._moving)
            self._most = max(self._most, self._moving[1]) if self._moving[1] else 0
        return self._moving[1]

    @property
    def coming(self) -> bool:
        """Whether copies come to count one after another: what stops everybody, and can wait, waits for all of them."""
        now, switched, stepped = self.core.now, self._switched_at, self._stepped_at
        last = switched + HANDOVER_WAITS_MS * MS
        if now >= (min(stepped + FOLLOWED_MS * MS, last) if stepped > switched else last):
            return False
        return not self.caught_up and self.moving > 0

    def fills(self, numbers: Sequence[int]) -> bool:
        """Whether copies of some of these partitions are being filled, and something changed in the last half a minute: a
        step can move their primaries when they count. What is filled, and is taken in by no step, waits for nothing."""
        topology, exchange = self.core.topology, self.exchange
        assert topology is not None
        lately = self.core.now < max(self._switched_at, self._stepped_at) + HANDOVER_WAITS_MS * MS
        return (
            exchange.standing is not None
            and exchange.all_hand_over
            and lately
            and not self.caught_up
            and any(len(p.in_sync) < len(p.owners) for p in map(topology.placements.__getitem__, numbers))
        )

    @property
    def complete(self) -> bool:
        """Whether all copies that are not in sync are vouched for: nobody else comes."""
        return bool(self.caught_up) and len(self.caught_up) >= self.moving

    def take_news(self) -> bool:
        """Whether the last of them came, or a ballot came to stand, since this was asked."""
        came, self._last_came = self._last_came, False
        return came

    def begin(self, step: Step, *, decided: Callable[[], None] | None = None) -> None:
        """Propose it, to all voters; and tell it when it is decided, unless whoever wants to hear of that first does."""
        core, ballot = self.core, self.exchange.standing
        assert ballot is not None, "a step is proposed under a ballot that was promised"
        assert not self.under_way, "under one ballot one map is proposed after each"
        joins = "".join(f", {m.node} joins" for m in step.joins)
        core.note(f"step after {core.version} ballot {ballot}: {len(step.placements)} partitions{joins}")
        deadline = core.spare + core.settings.exchange_retry_ms * MS
        self._attempt = _Attempt(ballot, step, deadline, decided if decided is not None else self.tell)
        self._propose()

    def _propose(self) -> None:
        core, attempt = self.core, self._attempt
        assert attempt is not None
        assert core.topology is not None
        self._resend_at = core.now + core.settings.retransmit_ms * MS
        self.alarm.by(self._resend_at)
        core.work += attempt.step.work
        voters = tuple(n for n in core.topology.voters if n not in attempt.accepts)
        core.send(voters, ProposeStep(attempt.ballot, attempt.step))

    def on_accept(self, sender: NodeId, message: AcceptStep) -> None:
        """Count an accept; a majority decides."""
        core, attempt = self.core, self._attempt
        if attempt is None or not self.under_way or (message.after, message.ballot) != (core.version, attempt.ballot):
            return
        assert core.topology is not None
        self.claims.note(sender, message.life, message.durable_lsn, 0)
        if not may_vote(core.topology, sender, message.life, self.claims.known()):
            probe("steps.no_vote_in_this_life")
            return
        attempt.accepts[sender] = None
        if attempt.decided or sum(n in attempt.accepts for n in core.topology.voters) < core.topology.majority:
            return
        attempt.decided = True
        attempt.when_decided()

    def tell(self) -> None:
        """Tell all of the step that was decided, and go by it."""
        core, attempt = self.core, self._attempt
        assert attempt is not None
        assert attempt.decided, "what is not decided is told to nobody"
        if told := dict.fromkeys((*core.peers(), *(m.node for m in attempt.step.joins))):
            core.send_early(tuple(told), CommitStep(attempt.step))  # chosen already, whatever this disk says
        core.send(core.node, CommitStep(attempt.step))  # they need not wait until it goes by it

    def switch(self, _: NewMap) -> None:
        """A map of a full exchange: what was vouched for under the one before is vouched for again."""
        self.caught_up, self._attempt = {}, None
        self._switched_at = self.core.now

    def step(self, new: NewMap) -> None:
        """A light step took effect: what is in sync by now need not be taken in."""
        moved = {local.number: local.placement for local in new.moved}
        self.caught_up = {
            (number, node): primary
            for (number, node), primary in self.caught_up.items()
            if number not in moved or moved[number].standing_of(node) is Standing.MOVING
        }
        self._since = self._stepped_at = self.core.now

    # Acceptor.

    def on_propose(self, sender: NodeId, message: ProposeStep) -> None:
        """Put the map that a step makes on disk, unless a higher ballot was promised. Nothing stops."""
        core, exchange, step = self.core, self.exchange, message.step
        if not same_version(core, sender, step.after):
            return
        if message.ballot < exchange.promised:
            probe("steps.refused_proposal")
            core.send(sender, Refuse(step.after, message.ballot, exchange.promised))
            return
        if core.topology is None or disk_of(core.topology, core.node) != core.allocation:
            probe("steps.no_vote_on_this_disk")
            return
        if exchange.making.reads(step, lambda: self.on_propose(sender, message)):
            return
        made = exchange.making.what_it_makes(step)
        if made is None:
            probe("steps.of_another_map")
            return
        if not core.replica.maps.has_accepted(message.ballot, made.step):
            core.vote(r.Accepted(step.after, message.ballot, b"", made.step, topologies.hash_of(made.topology)))
            core.replica.maps.know_accepted(made.step, made.topology)
            self._foreseen(step.placements)
            exchange.foresight.foresee(made.map)
        core.send(sender, AcceptStep(step.after, message.ballot, core.life, core.claim_lsn, core.voted_lsn))

    def on_commit(self, sender: NodeId, message: CommitStep) -> None:
        """Take a committed step from the very map that is here; whoever has another asks for the whole."""
        core, step, foresight, making = self.core, message.step, self.exchange.foresight, self.exchange.making
        if step.after < core.version or making.reads(step, again := lambda: self.on_commit(sender, message)):
            return
        made = making.what_it_makes(step)
        if made is None:
            core.send(sender, AskMap(core.version))
            return
        if foresight.works_out(made.map, again, chosen=True):
            return
        attempt = self._attempt
        self.exchange.adopt(made.map, made.topology, step=made.step)
        if attempt is not None and attempt.step == step:
            self._attempt = None
            self.ballot.goes_on(attempt.ballot)

    # Time.

    def tick(self) -> None:
        """Propose again what was not accepted; after a while to spare, leave it to a full exchange, for which all stop."""
        core, attempt = self.core, self._attempt
        self.alarm.off()
        self.ballot.tick()
        if attempt is None or not self.under_way:
            self._attempt = None
        elif attempt.decided:
            pass  # who was told of that tells it, after a while in any case
        elif core.spare >= attempt.deadline:
            probe("steps.timed_out")
            self._attempt = None
            self.ballot.fell()
        elif self.alarm.is_due(self._resend_at, core.now):
            self._propose()

    def on(self, sender: NodeId, message: ToSteps) -> None:
        """Everything that is said about light steps."""
        match message:
            case LeadSteps():
                self.ballot.on_lead_steps(sender, message)
            case Follows():
                self._last_came = self.ballot.on_follows(sender, message) or self._last_came
            case ProposeStep():
                self.core.work += message.step.work  # also again
                self.on_propose(sender, message)
            case AcceptStep():
                self.on_accept(sender, message)
            case CommitStep():
                self.core.work += message.step.work  # also again
                self.on_commit(sender, message)
            case CaughtUp():
                self.on_caught_up(sender, message)
            case _:
                assert_never(message)
