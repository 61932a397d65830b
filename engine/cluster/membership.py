"""Who is there: heartbeats, joining, leaving, and when the coordinator should begin an exchange.

The coordinator is the oldest member that is not suspected, or the next one where that is to be set aside as too slow, or is
about to go. It begins an exchange when a member is suspected or leaves, when a node asks to join, when MOVING copies are
vouched for, when a primary can be moved to where it belongs, when the operator changes the baseline, or when a member is
held up by an exchange whose coordinator is gone. What could wait does: copies that are whole by now, primaries that would
be better elsewhere, surplus copies take at most a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import assert_never, get_args

from engine.cluster.behind import send_map
from engine.cluster.claims import Claims
from engine.cluster.detector import Detector
from engine.cluster.exchange import Exchange
from engine.cluster.handovers import Handovers
from engine.cluster.joining import Joining
from engine.cluster.leaving import Leaving
from engine.cluster.names import Names
from engine.cluster.namespaces import LookedThrough
from engine.cluster.orders import Orders
from engine.cluster.pace import MUTE_SUSPICIONS, Pace
from engine.cluster.reasons import Reasons, is_member
from engine.cluster.steps import Steps
from engine.cluster.stepwise import Stepwise
from engine.messages import CaughtUp, Halt, Heartbeat, Join, Leave, ResetLost, SetBaseline, SetMigrations, SetNamespace
from engine.messages.cluster import ToMembership
from engine.turn.core import Core
from engine.turn.events import Connect, PeerSeen
from rebalance.anew import Anew
from rebalance.going import going
from rebalance.handing import PARTITIONS_AT_ONCE
from rebalance.ports import MS
from rebalance.rule import NewMap, Rule
from rebalance.supplier import SupplySide
from rebalance.table import BACK_OFF_MS, Candidate, Member, split_from
from wal.ids import NO_VERSION, NodeId
from wal.probe import probe

REST = 9
"""Nobody writes while an exchange runs. One that could wait keeps away from the last so many times as long as that took."""
REST_MS_MAX = 5_000


class Membership(Rule):
    """One node's view of the others, and the coordinator's initiative."""

    takes = get_args(ToMembership)

    def __init__(
        self,
        core: Core,
        detector: Detector,
        claims: Claims,
        names: Names,
        exchange: Exchange,
        steps: Steps,
        handovers: Handovers,
        supply: SupplySide,
        anew: Anew,
        stalled: Callable[[int], list[NodeId]],
        looked_through: LookedThrough,
        promoting: Callable[[], bool],
    ) -> None:
        self._stalled = stalled  # the copies that have not answered this node for so many times `suspicion_ms`
        self._promoting = promoting  # whether this node is named primary of what it does not serve yet
        super().__init__()
        self.core = core
        self.detector = detector
        self.claims = claims
        self.names = names
        self.exchange = exchange
        self.steps = steps
        self.handovers = handovers
        self.supply = supply
        self.anew = anew
        self.joining = Joining(core, detector, names, exchange)
        self._invited: list[Candidate] = []  # whom the exchange that this node leads is to let in
        self.leaving = Leaving(core, detector)
        self.pace = Pace(core)
        self.orders = Orders(core, detector, looked_through=looked_through)
        self.reasons = Reasons(core, steps=steps, leaving=self.leaving, orders=self.orders, pace=self.pace)
        self.stepwise = Stepwise(exchange, steps, handovers, self.reasons)
        self._reason_since: int | None = None
        self._led_since: int | None = None  # when the exchange began that this node leads
        self._passed_over_since: int | None = None  # when this node, the coordinator, came to be too slow to be waited for
        self._rest_until = self._stepped_at = self._next_heartbeat = 0
        self._said_promoting = False  # in its last one
        self._look_at = 0  # not before this it is looked again whether an exchange is due
        self._pace = min(core.settings.heartbeat_ms, core.settings.exchange_delay_ms // 2) * MS  # from one look to the next
        self._looks_soon = True  # it is looked then, and not when something comes or at the next beat
        self._silent: list[NodeId] = []  # who was suspected when this node last looked
        self._silence_at: int | None = 0  # when somebody may come to be suspected

    def on_peer_seen(self, event: PeerSeen) -> None:
        """A connection to a node was made."""
        if not self.joining.on_peer_seen(event):
            return
        if self._asks_in:
            self.core.send(event.node, self.joining.join())
        self.exchange.on_peer_seen(event.node)

    # Messages.

    def on_heartbeat(self, sender: NodeId, message: Heartbeat) -> None:
        """A member lives."""
        if not self._goes_with_ours(sender, message):
            return
        if message.version >= self.core.version:
            self.claims.note(sender, message.life, message.durable_lsn, message.voted_lsn, version=message.version)
        if message.version < self.core.version:
            self.detector.note_silent(sender, message.silent)  # it may lack the map because it hears nobody
            if self.core.now - self._stepped_at >= self.core.settings.heartbeat_ms * MS:
                send_map(self.core, sender)  # unless it was told of a light step just now
            return
        if message.version == self.core.version:
            if self.detector.note_silent(sender, message.silent) and self.joining.asked:
                self._look_by(self.core.now)  # perhaps it was all that somebody who joins waited for
            self._looks_soon = self.reasons.are_new(sender, message) or self._looks_soon
            self._note_pace(sender, message)
            self.orders.namespaces.heard(sender, message)
            if not message.promoting:
                self.reasons.serves[sender] = message.version
            if message.lets_go:
                self.reasons.lets_go[sender] = message.life.incarnation
            if message.fences:
                self.reasons.fences[sender] = message.life.incarnation
            if message.amends:
                self.reasons.amends[sender] = message.life.incarnation
        if message.version == self.core.version and message.frozen:
            self.reasons.frozen[sender] = None
        else:
            self.reasons.frozen.pop(sender, None)

    def _goes_with_ours(self, sender: NodeId, message: Heartbeat) -> bool:
        """Whether its map is ours, led to ours, or came after it."""
        core, topology, exchange = self.core, self.core.topology, self.exchange
        if topology is None or message.version == NO_VERSION or message.version > core.version:
            return True
        if message.cluster and message.cluster != topology.cluster:
            exchange.splits.note(sender, message.version, message.map_hash)
            return False
        if message.map_hash and split_from(topology, core.map_hash, message.version, message.map_hash):
            exchange.splits.note(sender, message.version, message.map_hash)
            return False
        exchange.splits.goes_with(sender)
        return True

    def on_join(self, sender: NodeId, message: Join) -> None:
        """A node asks to be let in."""
        if self.joining.on_join(sender, message):
            self._look_by(self.core.now)

    # Time.

    def switch(self, _: NewMap) -> None:
        """A new topology was committed."""
        core, topology = self.core, self.core.topology
        assert topology is not None
        self.detector.switch()
        self.claims.switch()
        core.quorum = self.detector.has_quorum()
        self._look_by(core.now + 1)  # in a turn of its own: this one had all partitions to place
        if self._led_since is not None:
            self._rest_until = core.now + min(REST * (core.now - self._led_since), REST_MS_MAX * MS)
            self._led_since = None
        self.reasons.switch()
        self._reason_since = None
        self.leaving.switch(topology)
        self.pace.switch(topology)
        for joiner in self._invited:
            if not is_member(topology, joiner):
                self.pace.note_late(joiner)
        self._invited = []
        if self.joining.asks_in() or going(topology) or self.anew.wanted:
            self._next_heartbeat = core.now  # to ask with the map that came, or to say that a copy is wrong by it, too
        self._expect(topology.members)
        self.detector.expect()
        core.beat(core.peers(), self._heartbeat())

    def _expect(self, members: Iterable[Member]) -> None:
        """The map lists these, which it may not have done before: to be heard, under their names alone."""
        core = self.core
        self.names.switch()
        self.joining.refresh()
        for member in members:
            if member.node != core.node:
                core.task(Connect(member.node, member.address))

    def step(self, _: NewMap) -> None:
        """A light step: nobody is gone, some copies more may count, and somebody may have joined."""
        core = self.core
        if joined := self.claims.step():
            self._expect(joined)
        self.detector.expect()
        self._reason_since, self._stepped_at = None, core.now
        somebody_goes = core.topology is not None and bool(going(core.topology))
        if self.steps.complete or somebody_goes:
            self._look_by(core.now + 1)  # in a turn of its own, as well
        if somebody_goes:
            self._next_heartbeat = core.now  # the next step waits until all say by which map they serve
        self._vouch(self.detector.coordinator(), list(self.supply.vouching.vouched))  # of the map before it is not heard
        core.beat(core.peers(), self._heartbeat())

    def tick(self) -> None:
        """Beat, look who is silent, and begin an exchange if this node should."""
        core, silence = self.core, self._silence_at
        if silence is None or core.now >= silence or self.detector.heard_again:
            self._notice_silence()
        if core.now >= self._next_heartbeat:
            self._next_heartbeat = core.now + core.settings.heartbeat_ms * MS
            self._beat()
            core.quorum = self.detector.has_quorum()
        if core.now >= self._look_at or self.steps.take_news():
            self._look_at = core.now + self._pace
            self._looks_soon = self._lead()
        self.alarm.set(min(self._next_heartbeat, self._look_at) if self._looks_soon else self._next_heartbeat)
        if self._silence_at is not None:
            self.alarm.by(self._silence_at)

    def _look_by(self, at: int) -> None:
        """Look then whether an exchange is due, also if nothing comes until then."""
        self._look_at, self._looks_soon = at, True

    def beat_soon(self) -> None:
        """Others are to know in the next turn what this node has to say."""
        self._next_heartbeat = self.core.now

    def flush(self) -> None:
        """Tell the coordinator of the copies that were vouched for in this turn; heartbeats say it again."""
        if news := self.supply.vouching.take_news():
            self._vouch(self.detector.coordinator(), news)

    def served(self, owed: Collection[int]) -> None:
        """A promotion is done. With the last one the others are told at once, if somebody goes who waits for that."""
        core = self.core
        self._looks_soon = self._looks_soon or not owed
        if not owed and self._said_promoting and core.topology is not None and going(core.topology):
            self._next_heartbeat = core.now

    def _notice_silence(self) -> None:
        """Whenever somebody comes to be suspected, or is heard again, look again at what was waiting for it.

        A new exchange waits for the next look: who is cut off together comes to be suspected, and heard again, one by one.
        """
        self.detector.heard_again = False
        if (silent := self.detector.silent()) != self._silent:
            if any(n not in silent for n in self._silent):
                self._next_heartbeat = self.core.now  # who joins waits until everybody hears it
            self._silent = silent
            self._look_by(max(self._look_at, self.core.now + self._pace // 2))
            self.exchange.look_again()
        self._silence_at = self.detector.next_suspicion()

    def on_peer_lost(self, node: NodeId) -> None:
        """A connection broke: its node may be suspected sooner."""
        self.detector.lost(node)
        self._silence_at = self.core.now

    def _beat(self) -> None:
        core, peers = self.core, self.core.peers()
        self.joining.refresh()
        self.names.alike.look()
        hearers = tuple(dict.fromkeys([*peers, *self.joining.asked]))  # who asks to join is told who is there
        if hearers:
            beat = self._heartbeat()
            self._said_promoting = beat.promoting
            self._note_pace(core.node, beat)
            core.send(hearers, beat)
            core.beat(hearers, beat)
            core.longest_sync = 0
        if self._asks_in:
            others = tuple(n for n in dict.fromkeys([*peers, *self.joining.seen]) if n != core.node)
            if others:
                core.send(others, self.joining.join())
        leader = self.detector.coordinator()
        self.leaving.say(leader)
        self._vouch(leader, list(self.supply.vouching.vouched))

    @property
    def _asks_in(self) -> bool:
        """Whether this node asks to be let in."""
        return self.leaving.since is None and self.joining.asks_in()

    def _vouch(self, leader: NodeId | None, copies: list[tuple[int, NodeId]]) -> None:
        """Tell the coordinator of copies that have everything this node has."""
        core = self.core
        if leader is not None and copies and core.serving:
            core.send(leader, CaughtUp(core.fence, copies, self.claims.sure(), core.version))

    def _heartbeat(self) -> Heartbeat:
        core, topology = self.core, self.core.topology
        return Heartbeat(
            core.version,
            core.life_in_brief,
            durable_lsn=core.durable_lsn,
            frozen=core.stopped,
            silent=self.detector.silent(),
            voted_lsn=min(core.voted_lsn, core.durable_lsn),
            cluster=topology.cluster if topology is not None else "",
            map_hash=core.map_hash,
            sync_ms=core.longest_sync // MS,
            busy_ms=0,
            stalled=[n for n in self._stalled(1) if self.detector.is_steady(n)],  # who was cut off gets its time again
            emptied=self._emptied_here(),
            mute=[n for n in self._stalled(MUTE_SUSPICIONS) if self.detector.is_steady(n)],
            dropped=self.orders.namespaces.gone_here(),
            written=self.orders.namespaces.written_here(),
            promoting=self._promotes(),
            groups=True,
            lets_go=True,
            fences=True,
            anew=self._to_be_taken_anew(),
            amends=True,
            backlogged=core.is_backlogged(),
            cramped=core.is_cramped,
        )

    def _promotes(self) -> bool:
        """Whether this node does not serve yet what it leads by its map."""
        return self._promoting() or not self.core.serving

    def _emptied_here(self) -> bool:
        """Whether the map relies on a copy of this node that is not whole, or is to be taken anew."""
        core = self.core
        here = [core.local[p].placement for _, p in core.replica.emptied if core.serving and p < len(core.local)]
        return bool(self.anew.wanted) or any(core.node in placed.in_sync and not placed.lost for placed in here)

    def _to_be_taken_anew(self) -> list[int]:
        """Partitions of which the copy here is in sync and wrong; none where that is not all that is not whole here."""
        core = self.core
        if not self.anew.wanted or core.replica.emptied or not core.serving:
            return []
        return list(dict.fromkeys(p for _, p in self.anew.wanted if core.local[p].in_sync))[:PARTITIONS_AT_ONCE]

    def _note_pace(self, node: NodeId, beat: Heartbeat) -> None:
        """How fast a member says that it is, and whether its copies are whole; this one too."""
        self.core.note_backlog(node, beat.backlogged)
        self.core.note_cramped(node, beat.cramped)
        if beat.emptied:
            self.reasons.emptied[node] = beat.anew
        else:
            self.reasons.emptied.pop(node, None)
        if not beat.busy_ms:
            self.pace.heard(node, beat.sync_ms, beat.stalled, beat.mute)
        elif beat.sync_ms >= self.core.settings.slow_ms:  # of a sync that is under way
            self.pace.heard(node, beat.sync_ms, [])
        if node == self.core.node and beat.sync_ms >= self.core.settings.slow_ms:
            self.core.slow_until = self.core.now + BACK_OFF_MS * MS

    def _alive(self) -> list[Candidate]:
        """Everyone who could be in the next map."""
        core, topology = self.core, self.core.topology
        assert topology is not None
        alive: dict[NodeId, Candidate] = {}
        for m in topology.members:
            if not self.detector.suspected(m.node):
                alive[m.node] = Candidate(m.node, m.allocation, m.incarnation, m.address, m.domain)
        alive |= {joiner.node: joiner for joiner in self.joining.hear_us() if not self.pace.rests(joiner)}
        alive[core.node] = self.joining.me
        return [alive[node] for node in self.detector.connected({n: c.allocation for n, c in alive.items()})]

    def _lead(self) -> bool:
        """Begin what is due, if this node is to; whether to look again soon, although nothing may come meanwhile."""
        core, topology = self.core, self.core.topology
        if topology is None:
            return False
        if self.exchange.attempt is not None or core.now < self.exchange.retry_at:
            return True
        if self.leaving.halting:
            return False  # whoever goes now goes because it was told to
        leader = self.detector.coordinator()
        heir = self.detector.coordinator(after=leader) if leader is not None else None
        if core.node not in (leader, heir):
            self._reason_since = None
            return False
        alive = self._alive()
        names = {c.node: c for c in alive}
        if core.node != (heir if self._is_passed_over(leader, heir, names) else leader):
            self._reason_since = None
            return self._passed_over_since is not None
        if not self._promotes():
            self.reasons.serves[core.node] = topology.version
        intent = self.reasons.intent(topology, alive)
        if not intent.reason:
            self._reason_since = None
            return self._passed_over_since is not None or self.reasons.searches
        if self._reason_since is None:
            self._reason_since = core.now
        waited = core.now - self._reason_since
        starting = core.now - (self.detector.since or 0) < 2 * core.settings.suspicion_ms * MS and not core.serving
        absent = [n for n in topology.voters if n not in names or not self.detector.heard_since_start(n)]
        if starting and absent:
            return True  # the cluster is coming back: give the others the time to come too
        if intent.gathers and waited < core.settings.exchange_delay_ms * MS:
            return True
        if intent.by_step and self.joining.know_of_steps(intent.joins) and self.stepwise.take(topology, intent):
            return True
        if intent.can_wait and self.steps.coming:
            return True
        if intent.can_wait and (self.handovers.take(intent.handover) or self.steps.fills(intent.handover)):
            return True
        if intent.can_wait and core.now < self._rest_until:
            return True
        if not topology.carried_by(names):
            return True
        self._reason_since, self._led_since = None, core.now
        self._invited = [c for c in alive if not is_member(topology, c)]
        self.exchange.begin(intent)
        return True

    def _is_passed_over(self, leader: NodeId | None, heir: NodeId | None, names: Collection[NodeId]) -> bool:
        """Whether the coordinator is to be set aside. The next one does it: a slow one takes a sync for each step.

        What somebody has begun is his to end; and if nothing comes of it the coordinator leads after a while all the same.
        """
        core, topology, exchange = self.core, self.core.topology, self.exchange
        assert topology is not None
        if core.stopped or self.reasons.frozen or exchange.draining is not None:
            passed_over = exchange.promised.node == heir
        else:
            passed_over = leader in self.pace.to_set_aside(topology, names)
        if not passed_over:
            self._passed_over_since = None
        elif self._passed_over_since is None:
            probe("membership.passed_over")
            self._passed_over_since = core.attentive
        since, patience = self._passed_over_since, core.settings.exchange_retry_ms * MS
        return since is not None and (leader != core.node or core.attentive - since < patience)

    def on(self, sender: NodeId, message: ToMembership) -> None:
        """Everything that is said about membership."""
        match message:
            case Halt():
                self.leaving.on_halt(message)
            case SetBaseline() | ResetLost() | SetNamespace() | SetMigrations():
                self._look_by(self.core.now)
                self.orders.handle(message)
            case Heartbeat():
                self.on_heartbeat(sender, message)
            case Join():
                self.on_join(sender, message)
            case Leave():
                self._look_by(self.core.now)
                self.leaving.on_leave(message)
            case _:
                assert_never(message)
