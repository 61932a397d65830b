"""One node, as a value that takes events and returns what is owed.

It composes the machines and owns no rule of its own but two: in which order a new topology takes effect, and when a
checkpoint is due. No clock, no randomness, no disk, no socket, no thread and no event loop is in here or below; time
comes in with the events. State changes only inside `turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from engine.admin import Administration
from engine.claims import Claims
from engine.coordinator import Coordinator
from engine.core import Core
from engine.detector import Detector
from engine.effects import (
    Asked,
    CheckpointWritten,
    Effects,
    Event,
    LogGrew,
    NameTaken,
    PeerLost,
    PeerSeen,
    Received,
    SessionId,
    Stop,
    TrimLog,
    WriteCheckpoint,
)
from engine.exchange import Exchange
from engine.formation import Formation, about_first_map
from engine.limits import problem_with
from engine.locks import LockTable
from engine.membership import Membership
from engine.messages import KINDS as MESSAGES
from engine.messages import (
    Accept,
    Announce,
    AskMap,
    AskTail,
    CaughtUp,
    Commit,
    Confirm,
    Confirmed,
    Demand,
    Finish,
    Finished,
    Halt,
    Heartbeat,
    Inquire,
    Inquired,
    Join,
    Leave,
    Message,
    More,
    PrepareParts,
    Promise,
    Propose,
    Refuse,
    Replicate,
    Replicated,
    ResetLost,
    Resolve,
    SetBaseline,
    Settle,
    Settled,
    SingleMap,
    Supply,
    Survey,
    Surveyed,
    Tail,
    Vote,
)
from engine.names import Names
from engine.participant import Participant
from engine.reads import Reads
from engine.replica import Replica
from engine.replication import Replication
from engine.requests import (
    Admin,
    Check,
    Code,
    CommitTx,
    Get,
    GetStatus,
    GetTable,
    KeepLocks,
    KeepSessions,
    Lock,
    Put,
    Request,
    Scan,
    Swap,
    Table,
    Unlock,
)
from engine.rescue import Rescue
from engine.sessions import Sessions
from engine.settings import Settings
from engine.settling import Settling
from engine.turns import Turns
from engine.writes import Writes
from rebalance import table as topologies
from rebalance.affinity import Affinity, assign, assign_some
from rebalance.demander import Demander
from rebalance.lives import lives_before, next_incarnation
from rebalance.partition import Group, Hold
from rebalance.ports import MS, WORK_MAX, HistoryRead
from rebalance.promotion import Promotion
from rebalance.supplier import SupplySide
from rebalance.table import CopyState, Placement, Topology
from wal import records as r
from wal.ids import PARTITIONS_MAX, NodeId

AFFINITY_WORK = 1_500
"""Weights that are drawn in one piece."""
EVICT_WORK = 500
"""Fragments that go in one piece, when their partitions moved away."""


class Node:
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
        core = self.core = Core(
            settings,
            replica,
            node=node,
            allocation=allocation,
            incarnation=next_incarnation(replica.incarnation, draw),
            address=address,
            durable_lsn=durable_lsn,
            affinity=affinity,
        )
        self.locks = LockTable(core.place)
        self.demander = Demander(core)
        self.detector = Detector(core)
        self.claims = Claims(core)
        self.names = Names(core, self.detector)
        self.replication = Replication(core, self.claims, demanded=self.demander.demanded, compare=self.demander.on_compare)
        self.supply = SupplySide(core, self.replication, regroup=self._group)
        self.sessions = Sessions(core, self.replication)
        self.writes = Writes(core, self.replication, self.locks, self.sessions)
        self.reads = Reads(core, self.locks, self.writes)
        self.participant = Participant(core, self.replication, self.locks, self.writes, self.reads)
        self.coordinator = Coordinator(core, self.replication, self.writes, self.participant)
        self.settling = Settling(core, self.replication)
        self.promotion = Promotion(core, self.replication, activated=self._activated)
        self.exchange = Exchange(
            core,
            self.detector,
            self.claims,
            switch=self._switch,
            drained=self._held_up_by,
            break_locks=self._break_locks,
            vouched=lambda: list(self.supply.vouched),
        )
        self.membership = Membership(
            core, self.detector, self.claims, self.names, self.exchange, self.supply, self.replication.stalled
        )
        self.formation = Formation(core, self.exchange, candidates=self.membership.candidates)
        self.rescue = Rescue(core, self.claims, self.exchange)
        self.admin = Administration(self)
        self._machines = (
            self.exchange,
            self.formation,
            self.replication,
            self.sessions,
            self.reads,
            self.promotion,
            self.participant,
            self.coordinator,
            self.demander,
            self.rescue,
            self.settling,
        )
        self._assigned: tuple[object, int] = (None, 0)  # who holds data, and for how many partitions it is known where
        self._draining: list[int] = []  # partitions that an exchange hands over
        self._groups: dict[tuple[object, ...], tuple[tuple[NodeId, ...], tuple[NodeId, ...], Group]] = {}
        self._waiting: deque[Event] = deque()  # there was too much to do to take them
        self._booted = False
        self._checkpointing = False
        self._checkpoint_at = 0
        self.checkpoint_wanted = False
        self.turns = Turns()  # noted by whoever pays them
        self._on_message = self._message_handlers()
        self._on_request = self._request_handlers()
        version, encoded = replica.committed
        if encoded:
            core.topology = topologies.decode(encoded)
            assert core.topology.version == version, "the committed map is of the version it was committed as"
            core.holds = [Hold(n, p) for n, p in enumerate(core.topology.placements)]
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
        return self._waiting

    def turn(self, now: int, events: Sequence[Event]) -> Effects:
        """Take what happened since the last turn; return what is owed for it. `now` in ns, monotonic.

        What would make the turn too long is left to the next one, which is to follow at once.
        """
        core = self.core
        core.attentive += min(max(now - core.now, 0), core.settings.heartbeat_ms * MS)
        core.now = max(now, core.now)
        core.work = 0
        effects = core.effects = Effects()
        if not self._booted:
            self._booted = True
            core.log(r.Boot(core.incarnation, core.boot_lsn, core.lives_before))
            self._checkpoint_at = core.now + core.settings.checkpoint_ms * MS
        self._begin_checkpoint()
        said, core.to_self = deque(core.to_self), []
        while said and core.work < WORK_MAX:
            core.work += 1
            message = said.popleft()
            self._on_message[type(message)](core.node, message)
        core.to_self[:0] = said
        waiting = self._waiting
        waiting.extend(events)
        while waiting and core.work < WORK_MAX:
            core.work += 1
            self._take(waiting.popleft())
        if waiting:
            self._note_since(min(len(events), len(waiting)))
        self._tick()
        core.go_on()
        self.replication.flush()
        self.reads.flush()
        busy = core.to_self or core.resumed or waiting
        effects.wake_at = core.now if busy else self._next_wake()
        return effects

    def _note_since(self, count: int) -> None:
        """The last `count` events came in this turn, and wait for the next: of what is asked, its client may tire."""
        waiting, now = self._waiting, self.core.now
        fresh = [waiting.pop() for _ in range(count)]
        waiting.extend(Asked(e.session, e.request, now) if isinstance(e, Asked) else e for e in reversed(fresh))

    def _take(self, event: Event) -> None:
        core = self.core
        match event:
            case Received(sender, allocation, incarnation, message):
                if self.names.hear(sender, allocation, incarnation, message):
                    self._on_message[type(message)](sender, message)
            case Asked(session, request, since):
                if not since:
                    self._ask(session, request)
                for _, wanted in core.still_wanted([(session, request, since)] if since else ()):
                    self._ask(session, wanted)
            case PeerSeen():
                self.membership.on_peer_seen(event)
            case NameTaken():
                self.names.on_name_taken(event)
            case PeerLost(node):
                self.membership.on_peer_lost(node)
            case CheckpointWritten(lsn):
                core.replica.store.thaw()
                core.log(r.Checkpoint(lsn))
                self._checkpointing = False
            case HistoryRead():
                self.supply.on_history(event)
            case LogGrew(trimmed):
                core.log(trimmed)
                core.task(TrimLog(trimmed.first_lsn))
            case _:
                assert_never(event)

    def _ask(self, session: SessionId, request: Request) -> None:
        core = self.core
        problem = problem_with(request, core.topology.partitions if core.topology is not None else PARTITIONS_MAX)
        if problem:
            core.refuse(session, request.id, Code.USAGE, problem)
        elif isinstance(request, GetTable):
            version, topology = core.replica.committed
            core.reply(session, Table(request.id, version, topology))
        elif isinstance(request, Admin):
            self.admin.on_admin(session, request)
        elif core.topology is None:
            core.refuse(
                session,
                request.id,
                Code.NOT_FORMED,
                "the cluster is not formed yet: run `foreshore cluster init`",
                retryable=True,
            )
        elif not core.serving:
            core.refuse(
                session,
                request.id,
                Code.BUSY,
                f"node {core.node} is not in the topology yet: it waits for an exchange",
                retryable=True,
            )
        else:
            self._on_request[type(request)](session, request)

    def _tick(self) -> None:
        _core, now = self.core, self.core.now
        self.detector.listen()
        self.membership.tick()
        for machine in self._machines:
            if machine.wake_at is not None and now >= machine.wake_at:
                machine.tick()
        expiry = self.locks.next_expiry()
        if expiry is not None and now >= expiry:
            for owner in self.locks.expire(now):
                self.core.in_pieces(self.locks.giving_up(owner))
        if self.exchange.draining is not None:
            self.exchange.try_report()
        if reason := self.membership.leaving.over():
            self.core.task(Stop(reason))

    def _next_wake(self) -> int | None:
        times = [m.wake_at for m in (self.membership, *self._machines) if m.wake_at is not None]
        expiry = self.locks.next_expiry()
        if expiry is not None:
            times.append(expiry)
        if not self._checkpointing:
            times.append(self._checkpoint_at)
        return max(self.core.now + 1, min(times)) if times else None

    # Checkpoints.

    def _begin_checkpoint(self) -> None:
        core = self.core
        due = (
            core.now >= self._checkpoint_at
            or core.replica.store.active_bytes >= core.settings.checkpoint_bytes
            or self.checkpoint_wanted
        )
        if self._checkpointing or not due:
            return
        self._checkpoint_at = core.now + core.settings.checkpoint_ms * MS
        self.checkpoint_wanted = False
        self._checkpointing = True
        image = core.replica.begin_checkpoint(core.durable_lsn, self.replication.open_records())
        core.task(WriteCheckpoint(image))

    @property
    def checkpointing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._checkpointing

    # A new topology.

    def _switch(self, topology: Topology) -> None:
        core = self.core
        core.topology = topology
        core.version_number = topology.version.number
        served, member = core.serving, topology.member(core.node)
        core.serving = (
            member is not None and member.incarnation == core.incarnation and member.allocation == core.allocation
        )
        if len(core.holds) != topology.partitions:
            core.holds = [Hold(n, p) for n, p in enumerate(topology.placements)]
            moved = core.holds
        elif core.serving != served:
            moved = core.holds
        else:
            moved = [h for h, p in zip(core.holds, topology.placements, strict=True) if h.placement != p]
        changed = [hold for hold in moved if self._place(hold, topology.placements[hold.number])]
        for number in self._draining:
            core.holds[number].draining = False
        self._draining = []
        to_promote = [hold for hold in core.holds if hold.mine and not hold.active]
        for hold in to_promote:
            hold.since = topology.version.number
        core.note(f"topology {topology.version}: {', '.join(m.node for m in topology.members)}")
        hardened = list(self.supply.hardened)
        self.supply.switch()
        self._groups = {}
        for hold in (*moved, *(core.holds[number] for number in hardened)):
            self._group(hold)
        self._drop_locks()
        self.replication.switch()
        self.sessions.switch()
        self.participant.switch()
        self.coordinator.switch()
        for hold in to_promote:  # one that was lost may begin again where a transfer had not ended
            for namespace, fragment in list(core.replica.partition(hold.number).fragments.items()):
                if fragment.loading:
                    core.log(r.FragmentClear(namespace, hold.number, "the partition begins again with nothing", True))
        self.promotion.begin(to_promote)
        self.demander.switch(changed)
        self._evict(deque(moved))
        self._prepare_affinity()
        self.membership.switch()
        self._ask_again(self.reads.switch())
        for number in sorted(core.parked):
            hold = core.holds[number]
            if hold.active or not hold.mine:
                self._ask_again(core.unpark(hold))

    def _prepare_affinity(self) -> None:
        """Find out in good time, and in pieces, where copies should be: it takes long, and an exchange has no time."""
        core, top = self.core, self.core.topology
        if top is None or core.affinity is not assign:
            return
        question = (top.baseline, tuple(sorted(top.domains.items())))
        if self._assigned[0] != question:
            self._assigned = (question, 0)
        end = min(self._assigned[1] + AFFINITY_WORK // len(top.baseline) + 1, top.partitions)
        assign_some(top.baseline, top.domains, top.partitions, top.backups + 1, end)
        self._assigned = (question, end)
        core.affinity_known = end == top.partitions
        if not core.affinity_known:
            core.work += AFFINITY_WORK
            core.resume(self._prepare_affinity)

    def _place(self, hold: Hold, placement: Placement) -> bool:
        """A partition is placed anew; whether that changes what this node is to it."""
        core = self.core
        before = (hold.state, hold.epoch, hold.placement.primary, hold.mine)
        hold.placement = placement
        hold.state = placement.state_of(core.node) if core.serving else CopyState.NONE
        mine = core.serving and placement.primary == core.node
        hold.active = mine and hold.mine and hold.active and hold.epoch == placement.epoch
        hold.mine, hold.epoch = mine, placement.epoch
        return before != (hold.state, hold.epoch, placement.primary, mine)

    def _ask_again(self, asked: Sequence[tuple[SessionId, Request]]) -> None:
        """Requests that waited are taken like new ones, before those that came later."""
        self._waiting.extendleft(Asked(session, request) for session, request in reversed(asked))

    def _group(self, hold: Hold) -> None:
        """Who is waited for, and who is not, in one partition."""
        node, placement = self.core.node, hold.placement
        if not hold.mine:
            hold.needed, hold.moving, hold.group = (), (), ((), ())
            return
        hardened = self.supply.hardened.get(hold.number, {})
        key = (placement.owners, placement.in_sync, tuple(hardened))
        known = self._groups.get(key)
        if known is None:
            needed = tuple(n for n in placement.owners if n != node and (n in placement.in_sync or n in hardened))
            moving = tuple(n for n in placement.owners if n != node and n not in needed)
            known = self._groups[key] = (needed, moving, (tuple(sorted(needed)), tuple(sorted(moving))))
        hold.needed, hold.moving, hold.group = known

    def _drop_locks(self) -> None:
        if len(self.locks) or not self.locks.idle:
            self.locks.drop({hold.number for hold in self.core.holds if not hold.active})

    def _evict(self, moved: deque[Hold]) -> None:
        """A copy that is not wanted here any more goes, and the log says so."""
        core, work = self.core, 0
        while moved and work < EVICT_WORK and core.serving:
            hold = moved.popleft()
            if hold.state is CopyState.NONE and not hold.placement.lost and hold.number in core.replica.partitions:
                for namespace in list(core.replica.partition(hold.number).fragments):
                    work += 1
                    core.log(r.FragmentClear(namespace, hold.number, "the copy moved away", True))
        core.work += work
        if moved and core.serving:
            core.resume(lambda: self._evict(moved))

    def _activated(self, hold: Hold) -> None:
        """A promotion is done: the partition serves."""
        hold.active = True
        self.participant.activated(hold)
        self.coordinator.activated(hold)
        self._ask_again(self.core.unpark(hold))

    # What the exchange asks.

    def _held_up_by(self, handover: Sequence[int]) -> list[str]:
        """Transactions that hold up the handover of partitions; nothing new begins on them from now on."""
        core = self.core
        if not handover or core.topology is None:
            return []
        moving = frozenset(handover)
        for number in handover:
            if not core.holds[number].draining:
                core.holds[number].draining = True
                self._draining.append(number)
        holding = dict.fromkeys(tx.hex() for tx in self.coordinator.holding(moving))
        for number in handover:
            holding |= dict.fromkeys(owner.hex() for owner in self.locks.owners_in(number))
        return list(holding)

    def _break_locks(self, handover: Sequence[int]) -> None:
        """The exchange waited long enough: whoever still holds locks on these partitions loses them."""
        for number in handover:
            for owner in list(self.locks.owners_in(number)):
                self.locks.give_up(owner, self.locks.keys_in(owner, number))

    # Who handles what.

    def _message_handlers(self) -> dict[type[Message], Callable[[NodeId, Message], None]]:
        handled: list[tuple[Callable[..., None], tuple[type[Message], ...]]] = [
            (self._handle_exchange, (Announce, Promise, SingleMap, Propose, Accept, Refuse, Commit, AskMap)),
            (self.membership.handle, (Heartbeat, Join, Leave, Halt, SetBaseline, ResetLost, CaughtUp)),
            (self.rescue.handle, (Survey, Surveyed)),
            (self.replication.handle, (Replicate, Replicated)),
            (self.reads.handle, (Confirm, Confirmed)),
            (self.promotion.handle, (AskTail, Tail)),
            (self.supply.handle, (Demand, More, Settled)),
            (self.demander.handle, (Supply, Settle)),
            (self._handle_participant, (PrepareParts, Finish, Inquire)),
            (self._handle_coordinator, (Vote, Finished, Resolve, Inquired)),
        ]
        handlers = {kind: handler for handler, kinds in handled for kind in kinds}
        assert set(handlers) == set(MESSAGES), "every message has its machine"
        return handlers

    def _handle_exchange(self, sender: NodeId, message: Message) -> None:
        if self.core.topology is None and about_first_map(message):
            self.formation.handle(sender, message)
        else:
            self.exchange.handle(sender, message)

    def _handle_participant(self, sender: NodeId, message: Message) -> None:
        match message:
            case PrepareParts():
                self.participant.on_prepare(sender, message)
            case Finish():
                self.participant.on_finish(sender, message)
            case Inquire():
                self.participant.on_inquire(sender, message)
            case _:
                raise AssertionError(f"not a message to a participant: {message}")

    def _handle_coordinator(self, sender: NodeId, message: Message) -> None:
        match message:
            case Vote():
                self.coordinator.on_vote(sender, message)
            case Finished():
                self.coordinator.on_finished(sender, message)
            case Resolve():
                self.coordinator.on_resolve(sender, message)
            case Inquired():
                self.coordinator.on_inquired(sender, message)
            case _:
                raise AssertionError(f"not a message to a coordinator: {message}")

    def _request_handlers(self) -> dict[type[Request], Callable[[SessionId, Request], None]]:
        handlers: dict[type[Request], Callable[..., None]] = {
            Get: self.reads.on_get,
            Put: self.writes.on_put,
            Swap: self.writes.on_swap,
            Lock: self.participant.on_lock,
            KeepLocks: self.participant.on_keep_locks,
            KeepSessions: self.sessions.on_keep,
            Unlock: self.coordinator.on_unlock,
            CommitTx: self.coordinator.on_commit,
            Check: self.participant.on_check,
            GetStatus: self.coordinator.on_status,
            Scan: self.reads.on_scan,
        }
        return handlers
