"""One node, as a value that takes events and returns what is owed.

It composes the machines and owns no rule of its own but two: in which order a new topology takes effect, and when a
checkpoint is due. No clock, no randomness, no disk, no socket, no thread and no event loop is in here or below; time
comes in with the events. State changes only inside `turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import assert_never, get_args

from engine.cluster.formation import about_first_map
from engine.messages import KINDS as MESSAGES
from engine.messages import (
    Message,
)
from engine.messages.cluster import ToExchange, ToSteps
from engine.node.admin import Administration
from engine.node.machines import Machines
from engine.protocol.limits import problem_with
from engine.protocol.requests import (
    REQUESTS,
    Admin,
    Check,
    Code,
    CommitTx,
    Get,
    GetStatus,
    GetTable,
    KeepCut,
    KeepLocks,
    KeepSessions,
    Lock,
    Put,
    Request,
    Scan,
    StageWrites,
    Swap,
    Table,
    TakeCut,
    Unlock,
)
from engine.protocol.roles import BULK, PEER
from engine.state.replica import Replica
from engine.state.store import CheckpointImage
from engine.turn.core import HURRIES_AT, WAITED_WORK
from engine.turn.effects import Effects
from engine.turn.events import (
    Asked,
    CheckpointWritten,
    ClientSeen,
    Event,
    LogMayShrink,
    NameTaken,
    PeerLost,
    PeerSeen,
    Received,
    SessionId,
    Stop,
    TrimLog,
    WriteCheckpoint,
)
from engine.turn.letting_go import empty
from engine.turn.settings import Settings
from rebalance import table as topologies
from rebalance.affinity import Affinity, assign
from rebalance.lives import in_brief, lives_before
from rebalance.partition import LocalPartition
from rebalance.ports import MS, WORK_MAX, HistoryRead
from rebalance.rule import NEVER, Rule
from wal import records as r
from wal.ids import TABLE_MAX, NodeId

_wake_at: Callable[[Rule], int] = attrgetter("wake_at")

DROPPED_AT_ONCE = 500
"""Of so many fragments one record says how far the log does not reach back any more;"""
DROPPED_OF_WORK = 4
"""and so many are as much work as one thing that is decided."""


class Node(Machines):
    """The deciding half of a node. `replica` is what recovery made of its directory; `affinity` must be every node's."""

    def __init__(
        self,
        settings: Settings,
        replica: Replica,
        *,
        node: NodeId,
        allocation: str,
        address: str,
        durable_lsn: int,
        draw: int = 0,
        affinity: Affinity = assign,
    ) -> None:
        super().__init__(
            settings,
            replica,
            node=node,
            allocation=allocation,
            address=address,
            durable_lsn=durable_lsn,
            draw=draw,
            affinity=affinity,
        )
        core = self.core
        self.admin = Administration(self)
        self._booted = False
        self._booted_at = self._checkpoint_at = 0
        self._checkpoint_bytes = settings.checkpoint_bytes
        self._stagger_by: topologies.Topology | None = None  # by which map the first checkpoint of this life is due earlier
        self._staggers = True  # it has not begun
        self._pruned = False  # a checkpoint may be frozen
        self._on_message = self._message_handlers()
        woken = [rule for rule in self.rules if type(rule).tick is not Rule.tick]
        self._times, self._ticked = [NEVER], list[tuple[Rule, int]]()
        for rule in woken:
            asks = type(rule).wake_at is Rule.wake_at
            if asks:
                rule.alarm.join(self._times)
            if rule is not self.membership:
                self._ticked.append((rule, len(self._times) - 1 if asks else 0))
        self._asked = [rule for rule in woken if type(rule).wake_at is not Rule.wake_at]
        self._on_request = self._request_handlers()
        version, encoded = replica.committed
        if encoded:
            topology = topologies.decode(encoded)
            assert topology.version == version, "the committed map is of the version it was committed as"
            core.adopt(topology)
            core.local = [LocalPartition(n, p) for n, p in enumerate(topology.placements)]
            core.map_hash = topologies.hash_of(encoded)
        listed = core.topology.member(node) if core.topology is not None else None
        core.lives_before = lives_before(replica.lives, listed.incarnation if listed is not None else None)
        if encoded and version in (replica.promised[0], replica.accepted[0]):
            core.voted_lsn = core.boot_lsn
        self.claims.boot()
        self.names.switch()

    # The turn.

    @property
    def untaken(self) -> Sequence[Event]:
        """What came and had to be left to the next turn, in the order in which it will be taken."""
        return self._untaken.all()

    def turn(self, now: int, events: Sequence[Event]) -> Effects:
        """Take what happened since the last turn; return what is owed for it. `now` in ns, monotonic.

        What would make the turn too long is left to the next one, which is to follow at once.
        """
        core = self.core
        if now > core.now:
            core.attentive += min(now - core.now, core.settings.heartbeat_ms * MS)
            core.now = now
        core.begin_turn()
        effects = core.effects = Effects()
        if not self._booted:
            self._booted = True
            core.log(r.Boot(core.incarnation, core.boot_lsn, in_brief(core.lives_before)))
            self._booted_at = core.now
            self._checkpoint_at = core.now + core.settings.checkpoint_ms * MS
        self.detector.listen()  # before anything is judged by who was silent
        self._begin_checkpoint()
        said, core.to_self = core.to_self, []
        core.go_on_first()
        room = WORK_MAX - WAITED_WORK if core.waited else WORK_MAX
        if said:
            self._hear_said(said, room)
        ready = self._untaken.ready
        if ready or len(events) > WORK_MAX:
            self._untaken.come(events, core.now)
        else:
            ready.extend(events)
        while ready and core.work < room:
            core.work += 1
            event = ready.popleft()
            if isinstance(event, Asked) and not event.since:  # how it nearly always is
                self._ask(event.session, event.request)
            else:
                self._take(event)
        if ready:
            self._untaken.leave(len(events), core.now)
            self.names.came(events)
        self._tick()
        core.go_on()
        if core.told:
            self._hear_itself()
        self.membership.flush()
        self.deadlocks.flush()
        self.replication.flush()
        while core.told and core.work < WORK_MAX:  # what nobody is waited for has come to count
            self._hear_itself()
            self.replication.flush()
        if core.told:
            core.to_self, core.told = core.told + core.to_self, []
        self.reads.flush()
        self.desk.flush()
        busy = core.to_self or core.resumed or core.unhurried or ready or self._pruned
        effects.wake_at = core.now if busy else self._next_wake()
        return effects

    def _hear_said(self, said: list[Message], room: int) -> None:
        """Take what this node said to itself in the last turn; that for which there is no room stays ahead."""
        core, left = self.core, deque(said)
        while left and core.work < room:
            core.work += 1
            message = left.popleft()
            self._on_message[type(message)](core.node, message)
        core.to_self[:0] = left

    def _hear_itself(self) -> None:
        """Take what this node has told itself in this turn, in order; of very much the rest is for the next."""
        core, told, at = self.core, self.core.told, 0
        while at < len(told) and core.work < WORK_MAX:  # it grows on the way
            core.work += 1
            message = told[at]
            at += 1
            self._on_message[type(message)](core.node, message)
        del told[:at]

    def _take(self, event: Event) -> None:
        core = self.core
        match event:
            case Received(sender, allocation, incarnation, message):
                if self.names.hear(sender, allocation, incarnation, message):
                    self._on_message[type(message)](sender, message)
            case Asked(session, request, since):
                if not since:
                    self._ask(session, request)
                else:
                    for _, wanted in self.desk.still_wanted([(session, request, since)]):
                        self._ask(session, wanted)
            case ClientSeen():
                self.writes.origins.on_client_seen(event)
                if not event.address:
                    self.coordinator.staging.on_client_gone(event.session)
            case PeerSeen(node=node, over=over):
                if PEER in over:  # by which writes go, and their answers come; a node is there when this one is
                    self.membership.on_peer_seen(event)
                    self.replication.on_peer_seen(node)
                if BULK in over:
                    self.supply.on_peer_seen(node)
                    self.promotion.on_peer_seen(node)
                    self.coordinator.on_peer_seen(node)
            case NameTaken():
                self.names.on_name_taken(event)
            case PeerLost(node):
                self.membership.on_peer_lost(node)
            case CheckpointWritten(lsn):
                core.in_pieces(self._end_checkpoint(lsn))
            case HistoryRead():
                self.supply.on_history(event)
            case LogMayShrink(trimmed):
                core.little_by_little(self._shrink(trimmed))
            case _:
                assert_never(event)

    def _end_checkpoint(self, lsn: int) -> Iterator[int]:
        """A checkpoint is in the store: it is seen when nothing is to be read any more where it lay before."""
        yield from self.writes.cuts.read()
        core = self.core
        core.little_by_little(empty(core.replica.store.thaw()))
        core.log(r.Checkpoint(lsn))
        self.writes.origins.begin_again()
        self.checkpointing = False

    def _shrink(self, trimmed: r.Trimmed) -> Iterator[int]:
        """Say what the log will not have any more, of very many fragments in several records; then that may go."""
        core, dropped, at = self.core, trimmed.dropped, 0
        while len(dropped) - at > DROPPED_AT_ONCE:
            core.log(r.Trimmed(0, dropped[at : at + DROPPED_AT_ONCE]))
            at += DROPPED_AT_ONCE
            yield DROPPED_AT_ONCE // DROPPED_OF_WORK
        core.log(r.Trimmed(trimmed.first_lsn, dropped[at:]))
        core.task(TrimLog(trimmed.first_lsn))
        yield 1 + (len(dropped) - at) // DROPPED_OF_WORK

    def _ask(self, session: SessionId, request: Request) -> None:
        core = self.core
        problem = problem_with(request, len(core.local) or TABLE_MAX)
        if problem:
            self.desk.refuse(session, request.id, Code.USAGE, problem)
        elif core.serving and (handler := self._on_request.get(type(request))) is not None:
            core.asked += 1
            handler(session, request)
        elif isinstance(request, GetTable):
            version, topology = core.replica.committed
            self.desk.reply(session, Table(request.id, version, topology))
        elif isinstance(request, Admin):
            self.admin.on_admin(session, request)
        elif core.topology is None:
            self.desk.refuse(
                session,
                request.id,
                Code.NOT_FORMED,
                "the cluster is not formed yet: run `foreshore cluster init`",
                retryable=True,
            )
        else:
            assert not core.serving, f"nobody takes {type(request).__name__}"
            self.desk.refuse(
                session,
                request.id,
                Code.BUSY,
                f"node {core.node} is not in the topology yet: it waits for an exchange",
                retryable=True,
            )

    def _tick(self) -> None:
        now = self.core.now
        self.membership.tick()  # in each turn: what came in it may have ended a silence
        if now >= self._first_alarm():
            times = self._times
            for rule, nth in self._ticked:  # nth: 0 if it is asked itself
                if now >= (times[nth] if nth else rule.wake_at):
                    rule.tick()
        if self.exchange.draining is not None:
            self.exchange.try_report()
        self.handovers.try_say()
        if reason := self.membership.leaving.over():
            self.core.task(Stop(reason))

    def _first_alarm(self) -> int:
        """When the first of the rules is to be woken; each turn asks, so nearly all of them are not asked themselves."""
        return min(*self._times, *map(_wake_at, self._asked))

    def _next_wake(self) -> int | None:
        core, first = self.core, self._first_alarm()
        if not self.checkpointing:
            waits = self.demander.waits and not core.is_cramped
            first = min(first, core.now if waits else self._checkpoint_at)
        return max(core.now + 1, first) if first < NEVER else None

    def note_cramped(self, cramped: bool) -> None:
        """Its disk has no room for what the log goes on in, or has some again: others know at once, as all that is written
        before they do takes of the room that is left."""
        self.core.note_cramped(self.core.node, cramped)
        self.membership.beat_soon()
        if not cramped:
            self.core.resume(self.demander.go_on)

    # Checkpoints.

    def _begin_checkpoint(self) -> None:
        core = self.core
        if self._staggers and core.topology is not self._stagger_by:
            self._stagger()
        active = core.replica.store.active_bytes
        due = (
            core.now >= self._checkpoint_at
            or active >= self._checkpoint_bytes
            or self.checkpoint_wanted
            or (self.demander.waits and not core.is_cramped)
        )
        if core.backlogged or active >= self._checkpoint_bytes:
            core.note_backlog(core.node, core.is_backlogged())
        if due and core.is_cramped:  # there is no room for it, either: looked at again with the next beat
            self._checkpoint_at = max(self._checkpoint_at, core.now + core.settings.heartbeat_ms * MS)
        elif due and not self.checkpointing:
            self._checkpoint_at = core.now + core.settings.checkpoint_ms * MS
            self._checkpoint_bytes, self._staggers = core.settings.checkpoint_bytes, False
            self.checkpoint_wanted = False
            self.checkpointing = True
            self.claims.write_down()
            core.little_by_little(self._prune())
        if self._pruned:
            self._pruned = False
            image = core.replica.freeze(core.durable_lsn, self.replication.open_records())
            behind = image.weight > HURRIES_AT * core.settings.checkpoint_bytes
            image = image._replace(hurried=self.demander.waits or behind)
            core.little_by_little(self._encode(image, self.mutations.remember(core.replica.store.layers[-1])))
            self.demander.go_on()

    @property
    def checkpoint_is_late(self) -> bool:
        """One is under way, and somebody waits for it, or will: a transfer, or clients who wrote enough for another."""
        enough = self.core.replica.store.active_bytes >= self.core.settings.checkpoint_bytes
        return self.checkpointing and (enough or self.demander.waits)

    def _stagger(self) -> None:
        """Have the first checkpoint of this life earlier, at another time than other members have theirs.

        What they are told is much the same, so that they would all write at once, with all clients waiting, and for ever.
        """
        core, topology = self.core, self.core.topology
        assert topology is not None
        members = [member.node for member in topology.members]
        if core.node in members:
            turn, settings = members.index(core.node) + 1, core.settings
            self._checkpoint_at = self._booted_at + settings.checkpoint_ms * MS * turn // len(members)
            self._checkpoint_bytes = settings.checkpoint_bytes * turn // len(members)
        self._stagger_by = topology

    def _prune(self) -> Iterator[int]:
        replica = self.core.replica
        yield from replica.changes.prune(replica.fragments, replica.kept)
        self._pruned = True  # a checkpoint is of what is durable, so it begins with a turn, before anything is logged

    def _encode(self, image: CheckpointImage, remembering: Iterator[int]) -> Iterator[int]:
        yield from self.core.replica.changes.pieces()
        yield from remembering
        self.core.task(WriteCheckpoint(image))

    # Who handles what.

    def _message_handlers(self) -> dict[type[Message], Callable[..., None]]:
        handlers = {kind: rule.on for rule in self.rules for kind in rule.takes}
        handlers |= dict.fromkeys(get_args(ToExchange), self._on_exchange)
        in_order = self.exchange.foresight.in_order
        handlers |= {kind: in_order(handlers[kind]) for kind in (*get_args(ToExchange), *get_args(ToSteps))}
        assert set(handlers) == set(MESSAGES), "every message has its machine"
        return handlers

    def _on_exchange(self, sender: NodeId, message: ToExchange) -> None:
        """What is said about the first map is for whoever forms a cluster."""
        if self.core.topology is None and about_first_map(message):
            self.formation.on(sender, message)
        else:
            self.exchange.on(sender, message)

    def _request_handlers(self) -> dict[type[Request], Callable[[SessionId, Request], None]]:
        handlers: dict[type[Request], Callable[..., None]] = {
            Get: self.reads.on_get,
            Put: self.writes.on_put,
            Swap: self.writes.on_swap,
            Lock: self.locking.on_lock,
            KeepLocks: self.locking.on_keep_locks,
            KeepSessions: self.sessions.on_keep,
            Unlock: self.coordinator.on_unlock,
            CommitTx: self.coordinator.on_commit,
            StageWrites: self.coordinator.staging.on_stage,
            Check: self.locking.on_check,
            GetStatus: self.coordinator.on_status,
            Scan: self.reads.on_scan,
            TakeCut: self.rounds.on_take,
            KeepCut: self.cuts.on_keep,
        }
        assert {*handlers, GetTable, Admin} == set(REQUESTS), "every request has its machine; two are for any node"
        return handlers
