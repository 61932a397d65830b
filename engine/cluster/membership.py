"""Who is there: heartbeats, joining, leaving, and when the coordinator should begin an exchange.

The coordinator is the oldest member that is not suspected. It begins an exchange when a member is suspected or leaves,
when a node asks to join, when MOVING copies are vouched for, when a primary can be moved to where it belongs, when the
operator changes the baseline, or when a member is held up by an exchange whose coordinator is gone. What could wait does:
copies that are whole by now, primaries that would be better elsewhere, surplus copies take at most a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never, get_args

from engine.cluster.attempt import Intent
from engine.cluster.claims import Claims
from engine.cluster.detector import Detector
from engine.cluster.exchange import Exchange
from engine.cluster.leaving import Leaving
from engine.cluster.names import Names
from engine.cluster.orders import Orders
from engine.cluster.pace import MUTE_SUSPICIONS, Pace
from engine.cluster.steps import Steps
from engine.messages import CaughtUp, Halt, Heartbeat, Join, Leave, ResetLost, SetBaseline
from engine.messages.cluster import ToMembership
from engine.turn.core import Core
from engine.turn.events import Connect, PeerSeen
from rebalance.anew import Anew
from rebalance.plan import surplus, wanted_handover
from rebalance.ports import MS
from rebalance.rule import NewMap, Rule
from rebalance.supplier import SupplySide
from rebalance.table import BACK_OFF_MS, Candidate, Topology, split_from
from wal.ids import NO_VERSION, NodeId, Version

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
        supply: SupplySide,
        anew: Anew,
        stalled: Callable[[int], list[NodeId]],
    ) -> None:
        self._stalled = stalled  # the copies that have not answered this node for so many times `suspicion_ms`
        super().__init__()
        self.core = core
        self.detector = detector
        self.claims = claims
        self.names = names
        self.exchange = exchange
        self.steps = steps
        self.supply = supply
        self.anew = anew
        self._frozen: dict[NodeId, None] = {}  # members that are held up by an exchange of this version
        self.seen: dict[NodeId, Candidate] = {}  # everyone a connection was made to, or who asked to join
        self._joins: dict[NodeId, tuple[int, Version]] = {}  # who asks to join -> when it last did, and with which map
        self.leaving = Leaving(core, detector)
        self.pace = Pace(core)
        self._emptied: dict[NodeId, None] = {}  # who has a copy that is in sync by the map and was emptied
        self.orders = Orders(core, detector)
        self._reason_since: int | None = None
        self._led_since: int | None = None  # when the exchange began that this node leads
        self._rest_until = 0
        self._stepped_at = 0
        self._next_heartbeat = 0
        self._moves: tuple[tuple[Topology, list[NodeId], dict[int, list[NodeId]]], list[int], list[int]] | None = None
        self._look_at = 0  # when to look again whether an exchange is due
        self._silent: list[NodeId] = []  # who was suspected when this node last looked
        self._silence_at: int | None = 0  # when somebody may come to be suspected

    # What others know of us, and we of them.

    @property
    def me(self) -> Candidate:
        """This node, as it would be in a map."""
        core = self.core
        return Candidate(core.node, core.allocation, core.incarnation, core.address, core.settings.domain)

    def on_peer_seen(self, event: PeerSeen) -> None:
        """A connection to a node was made."""
        if self.names.taken(event.node, event.allocation, event.incarnation):
            return
        self.seen[event.node] = Candidate(event.node, event.allocation, event.incarnation, event.address, event.domain)
        if self.core.topology is None or self.core.topology.member(event.node) is None:
            self.detector.heard(event.node)

    # Messages.

    def on_heartbeat(self, sender: NodeId, message: Heartbeat) -> None:
        """A member lives."""
        if not self._goes_with_ours(sender, message):
            return
        if message.version >= self.core.version:
            said = message.durable_lsn, message.voted_lsn
            self.claims.note(sender, message.life, *said, version=message.version)
        if message.version < self.core.version:
            if self.core.now - self._stepped_at >= self.core.settings.heartbeat_ms * MS:
                self.exchange.send_map(sender)  # unless it was told of a light step just now
            return
        if message.version == self.core.version:
            self.detector.note_silent(sender, message.silent)
            self._note_pace(sender, message)
        if message.version == self.core.version and message.frozen:
            self._frozen[sender] = None
        else:
            self._frozen.pop(sender, None)

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
        core, topology = self.core, self.core.topology
        candidate = Candidate(message.node, message.allocation, message.incarnation, message.address, message.domain)
        if self.names.taken(message.node, message.allocation, message.incarnation):
            return  # whoever speaks to it tells it
        known = self.seen.get(message.node)
        if known is not None and known.allocation == candidate.allocation and known.incarnation > candidate.incarnation:
            return  # an earlier life of it, delayed
        self.seen[message.node] = candidate
        if topology is None:
            return
        if message.cluster and message.cluster != topology.cluster:
            core.note(f"{message.node} belongs to cluster {message.cluster}, this is {topology.cluster}: not let in")
            return
        if message.version > core.version:
            return
        if message.version == core.version:
            self.detector.note_silent(sender, message.silent)
        if message.version < core.version or _is_member(topology, candidate):
            self.exchange.send_map(sender)
        if _is_member(topology, candidate):
            return
        self._look_at = core.now
        core.task(Connect(message.node, message.address))  # each time: its last life may have asked from elsewhere
        self._joins[message.node] = core.now, message.version

    # Commands.

    def candidates(self) -> dict[NodeId, Candidate]:
        """This node and all others that it sees, as they would be in a first map."""
        return {self.core.node: self.me} | {n: c for n, c in self.seen.items() if not self.detector.suspected(n)}

    def near(self) -> list[NodeId]:
        """Everyone else who is heard of, in a map or not."""
        topology = self.core.topology
        known = dict.fromkeys([*self.seen, *(topology.voters if topology is not None else ()), *self.core.peers()])
        return [n for n in known if n != self.core.node and not self.detector.suspected(n)]

    # Time.

    def switch(self, _: NewMap) -> None:
        """A new topology was committed."""
        core, topology = self.core, self.core.topology
        assert topology is not None
        self.detector.switch()
        self.claims.switch()
        self.names.switch()
        core.quorum = self.detector.has_quorum()
        self._look_at = core.now + 1  # in a turn of its own: this one had all partitions to place
        if self._led_since is not None:
            self._rest_until = core.now + min(REST * (core.now - self._led_since), REST_MS_MAX * MS)
            self._led_since = None
        self._frozen = {}
        self._emptied = {}
        self._reason_since = None
        self.leaving.switch(topology)
        self.pace.switch(topology)
        self._joins = {n: asked for n, asked in self._joins.items() if not _is_member(topology, self.seen[n])}
        if not _is_member(topology, self.me):
            self._next_heartbeat = core.now  # to ask with the map that came
        for member in topology.members:
            if member.node != core.node:
                core.task(Connect(member.node, member.address))
                self.detector.expect(member.node)
        core.beat(core.peers(), self._heartbeat())

    def step(self, _: NewMap) -> None:
        """A light step: the same members as before, and some copies more that count."""
        core = self.core
        self.claims.step()
        self._reason_since, self._stepped_at = None, core.now
        core.beat(core.peers(), self._heartbeat())

    def tick(self) -> None:
        """Beat, look who is silent, and begin an exchange if this node should."""
        core = self.core
        beat = core.settings.heartbeat_ms * MS
        self._notice_silence()
        if core.now >= self._next_heartbeat:
            self._next_heartbeat = core.now + beat
            self._beat()
            core.quorum = self.detector.has_quorum()
        if core.now >= self._look_at:
            self._look_at = core.now + min(beat, core.settings.exchange_delay_ms * MS // 2)
            self._lead()
        self.alarm.at = min(self._next_heartbeat, self._look_at)
        if self._silence_at is not None:
            self.alarm.by(self._silence_at)

    def _notice_silence(self) -> None:
        """Whenever somebody comes to be suspected, look again at what was waiting for it.

        A new exchange waits for the next look: who is cut off together comes to be suspected one by one.
        """
        if self._silence_at is not None and self.core.now < self._silence_at:
            return
        silent = self.detector.silent()
        if silent != self._silent:
            self._silent = silent
            self.exchange.look_again()
        self._silence_at = self.detector.next_suspicion()

    def on_peer_lost(self, node: NodeId) -> None:
        """A connection broke: its node may be suspected sooner."""
        self.detector.lost(node)
        self._silence_at = self.core.now

    def _beat(self) -> None:
        core, topology = self.core, self.core.topology
        peers = core.peers()
        fresh = core.now - 2 * core.settings.suspicion_ms * MS
        self._joins = {node: asked for node, asked in self._joins.items() if asked[0] >= fresh}
        hearers = tuple(dict.fromkeys([*peers, *self._joins]))  # who asks to join is told who is there
        if hearers:
            beat = self._heartbeat()
            self._note_pace(core.node, beat)
            core.send(hearers, beat)
            core.beat(hearers, beat)
            core.longest_sync = 0
        if self.leaving.since is None and (topology is None or not _is_member(topology, self.me)):
            others = tuple(dict.fromkeys([*peers, *self.seen]))
            others = tuple(n for n in others if n != core.node)
            if others:
                me = self.me
                core.send(
                    others,
                    Join(
                        me.node,
                        me.allocation,
                        incarnation=me.incarnation,
                        address=me.address,
                        domain=me.domain,
                        version=core.version,
                        cluster=topology.cluster if topology is not None else self.exchange.consent,
                        silent=self.detector.silent(),
                    ),
                )
        leader = self.detector.coordinator()
        self.leaving.say(leader)
        if leader is None:
            return
        if self.supply.vouching.vouched and core.serving:
            core.send(leader, CaughtUp(core.fence, list(self.supply.vouching.vouched), self.claims.sure()))

    def _heartbeat(self) -> Heartbeat:
        core, topology = self.core, self.core.topology
        return Heartbeat(
            core.version,
            core.life_in_brief,
            durable_lsn=core.durable_lsn,
            frozen=core.frozen,
            silent=self.detector.silent(),
            voted_lsn=min(core.voted_lsn, core.durable_lsn),
            cluster=topology.cluster if topology is not None else "",
            map_hash=core.map_hash,
            sync_ms=core.longest_sync // MS,
            busy_ms=0,
            stalled=[n for n in self._stalled(1) if self.detector.is_steady(n)],  # who was cut off gets its time again
            emptied=self._emptied_here(),
            mute=[n for n in self._stalled(MUTE_SUSPICIONS) if self.detector.is_steady(n)],
        )

    def _emptied_here(self) -> bool:
        """Whether the map relies on a copy of this node that is not whole, or is to be taken anew."""
        core = self.core
        if self.anew.wanted:
            return True
        placements = [core.local[p].placement for _, p in core.replica.emptied if core.serving and p < len(core.local)]
        return any(core.node in placement.in_sync and not placement.lost for placement in placements)

    def _note_pace(self, node: NodeId, beat: Heartbeat) -> None:
        """How fast a member says that it is, and whether its copies are whole; this one too."""
        if beat.emptied:
            self._emptied[node] = None
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
        for node, (_, version) in self._joins.items():
            if version.major == topology.version.major:  # it took our map, so it hears us: nobody has to wait for it
                alive[node] = self.seen[node]
        alive[core.node] = self.me
        return [alive[node] for node in self.detector.connected({n: c.allocation for n, c in alive.items()})]

    def _lead(self) -> None:
        core, topology = self.core, self.core.topology
        if topology is None or self.exchange.attempt is not None or core.now < self.exchange.retry_at:
            return
        if self.leaving.halting:
            return  # whoever goes now goes because it was told to
        if self.detector.coordinator() != core.node:
            self._reason_since = None
            return
        alive = self._alive()
        names = {c.node: c for c in alive}
        intent = self._intent(topology, alive, names)
        if not intent.reason:
            self._reason_since = None
            return
        if self._reason_since is None:
            self._reason_since = core.now
        waited = core.now - self._reason_since
        starting = core.now - (self.detector.since or 0) < 2 * core.settings.suspicion_ms * MS and not core.serving
        absent = [n for n in topology.voters if n not in names or not self.detector.heard_since_start(n)]
        if starting and absent:
            return  # the cluster is coming back: give the others the time to come too
        lost = any(m.node not in names for m in topology.members)
        if not lost and waited < core.settings.exchange_delay_ms * MS:
            return
        if intent.can_wait and self.steps.take():
            return
        if intent.can_wait and (core.now < self._rest_until or self.steps.coming):
            return
        if not topology.carried_by(names):
            return
        self._reason_since = None
        self._led_since = core.now
        self.exchange.begin(intent)

    def _intent(self, topology: Topology, alive: list[Candidate], names: dict[NodeId, Candidate]) -> Intent:
        """What the next map should change, and for which reasons; for none, nothing is to be begun."""
        core = self.core
        lost = [m.node for m in topology.members if m.node not in names]
        joins = [c.node for c in alive if not _is_member(topology, c)]
        vouched: dict[int, list[NodeId]] = {}
        for partition, node in self.steps.caught_up:
            vouched.setdefault(partition, []).append(node)
        going = self.leaving.granted(topology, list(names))
        present = [c.node for c in alive if c.node not in going]
        handover, extra = self._wanted_moves(topology, present, vouched)
        if going:
            leaving = [n for n, p in enumerate(topology.placements) if not p.lost and p.owners[0] in going]
            handover = [*handover, *leaving]
        baseline, reset = self.orders.standing(topology)
        slow = self.pace.to_set_aside(topology, names) if not (self._frozen or core.frozen) else {}
        now = {
            "lost " + ", ".join(lost): bool(lost),
            "joining " + ", ".join(joins): bool(joins),
            "leaving " + ", ".join(going): bool(going),
            "the baseline changes": baseline is not None,
            "lost partitions begin again": bool(reset),
            "too slow: " + ", ".join(slow): bool(slow),
            "not whole: " + ", ".join(self._emptied): bool(self._emptied),
            "an exchange that did not end": bool(self._frozen) or core.frozen,
        }
        soon = {
            f"{len(self.steps.caught_up)} copies caught up": bool(self.steps.caught_up),
            f"{len(handover)} primaries to move": bool(handover),
            "surplus copies": bool(extra),
        }
        given = [reason for reason, holds in (now | soon).items() if holds]
        return Intent(
            alive,
            handover=sorted(set(handover)),
            baseline=baseline,
            reset=reset,
            aside=self.pace.known(topology) | slow,
            mute=[n for n in slow if self.pace.is_mute(n, names)],
            leaving=going,
            reason="; ".join(given),
            can_wait=not any(now.values()),
        )

    def _wanted_moves(
        self, topology: Topology, present: list[NodeId], vouched: dict[int, list[NodeId]]
    ) -> tuple[list[int], list[int]]:
        """Primaries to move and copies to drop; computed once for as long as nothing changes."""
        if not self.core.affinity_known:
            return [], []
        asked = (topology, present, vouched)
        if self._moves is None or self._moves[0] != asked:
            affinity = self.core.affinity
            handover = wanted_handover(topology, present, vouched, affinity)
            self._moves = (asked, handover, surplus(topology, present, affinity))
        return self._moves[1], self._moves[2]

    def on(self, sender: NodeId, message: ToMembership) -> None:
        """Everything that is said about membership."""
        match message:
            case Halt():
                self.leaving.on_halt(message)
            case SetBaseline() | ResetLost():
                self._look_at = self.core.now
                self.orders.handle(message)
            case Heartbeat():
                self.on_heartbeat(sender, message)
            case Join():
                self.on_join(sender, message)
            case Leave():
                self._look_at = self.core.now
                self.leaving.on_leave(message)
            case _:
                assert_never(message)


def _is_member(topology: Topology, candidate: Candidate) -> bool:
    """Whether the map lists this very life of a node, on this very disk."""
    member = topology.member(candidate.node)
    return member is not None and (member.allocation, member.incarnation) == (
        candidate.allocation,
        candidate.incarnation,
    )
