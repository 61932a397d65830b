"""The machines of one node, wired together, and the order in which a new topology takes effect on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from engine.cluster.claims import Claims
from engine.cluster.detector import Detector
from engine.cluster.exchange import Exchange
from engine.cluster.formation import Formation
from engine.cluster.handovers import Handovers
from engine.cluster.membership import Membership
from engine.cluster.names import Names
from engine.cluster.rescue import Rescue
from engine.cluster.steps import Steps
from engine.data.admission import Admission
from engine.data.cut_reads import CutReads
from engine.data.cuts import Cuts
from engine.data.deletes import Deletes
from engine.data.dropping import Dropping
from engine.data.expiry import Expiry
from engine.data.locking import Locking
from engine.data.locks import LockTable
from engine.data.reads import Reads
from engine.data.replication import Replication
from engine.data.rounds import Rounds
from engine.data.sessions import Sessions
from engine.data.writes import Writes
from engine.node.parting import Parting
from engine.state.replica import Replica
from engine.transactions.commits import Transaction
from engine.transactions.coordinator import Coordinator
from engine.transactions.deadlocks import Deadlocks
from engine.transactions.participant import Participant
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.settings import Settings
from engine.turn.turns import Turns
from engine.turn.untaken import Untaken
from rebalance.affinity import Affinity, assign
from rebalance.anew import Anew
from rebalance.demander import Demander
from rebalance.entropy import AntiEntropy
from rebalance.going import all_stay
from rebalance.lives import next_incarnation
from rebalance.mutations import Mutations
from rebalance.partition import NOBODY, LocalPartition, Role
from rebalance.placing import Group, group_of, what_changed
from rebalance.promotion import Promotion
from rebalance.rule import NewMap, Rule
from rebalance.stability import Stability
from rebalance.supplier import SupplySide
from rebalance.table import Topology
from wal import records as r
from wal.ids import DECISIONS, NodeId
from wal.probe import probe

TAKEN_OF_WORK = 4
"""So many partitions of a map that takes effect are as much work as one thing that is decided, whatever it says of them."""
SWITCHED_OF_WORK = 8
"""And so many of which it says something else."""
EVICT_WORK = 500
"""Fragments that go in one piece, when their partitions moved away."""


class Machines:
    """All that one node is made of."""

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
        self._untaken = Untaken()
        self.desk = Desk(core, self._untaken.ask_again)
        self._draining: dict[int, int] = {}  # partitions that an exchange or a step hands over, and since when
        self._taking: dict[int, int] = {}  # partitions that a step gave to this node, and when
        self._groups: dict[tuple[object, ...], Group] = {}
        self.turns = Turns()  # noted by whoever pays them
        self.checkpointing = False  # one is being written
        self.checkpoint_wanted = False
        self._make_copies(core)
        self._make_transactions(core)
        self._make_cluster(core)
        self.rules = self._rules()
        self.order = self._order()
        self.order_of_steps = self._order_of_steps()
        self.order_of_handovers = self._order_of_handovers()

    def _rules(self) -> tuple[Rule, ...]:
        """All of them, in the order in which time passes for them."""
        return (
            self.exchange,
            self.steps,
            self.handovers,
            self.formation,
            self.replication,
            self.sessions,
            self.reads,
            self.promotion,
            self.participant,
            self.coordinator,
            self.demander,
            self.supply,
            self.rescue,
            self.stability,
            self.deadlocks,
            self.anew,
            self.entropy,
            self.membership,
            self.locking,
            self.cuts,
            self.rounds,
            self.expiry,
            self.dropping,
        )

    def _make_copies(self, core: Core) -> None:
        """How copies come to have the same, and who is known to be there."""
        self.locks = LockTable(core.place, core.places_of)
        self.demander = Demander(core)
        self.detector = Detector(core)
        self.claims = Claims(core)
        self.names = Names(core, self.detector)
        self.cuts = Cuts(core, self.desk)
        self.rounds = Rounds(core, self.desk)
        self.replication = Replication(
            core,
            self.claims,
            demanded=self.demander.demanded,
            passes_over=self.demander.passes_over,
            compare=self.demander.settling.on_compare,
            hear=self.cuts.hear,
            overwrites=self.cuts.note,
        )
        self.demander.between_demands = self.replication.take_early
        self.mutations = Mutations(core)
        self.supply = SupplySide(core, self.replication, self.mutations, regroup=self._group)
        self.stability = Stability(core, self.replication)
        self.promotion = Promotion(core, self.replication, activated=self._activated)
        self.cuts.promoting = lambda: bool(self.promotion.owed)
        self.anew = Anew(core, self.demander.asks, self.demander.lack)
        self.entropy = AntiEntropy(core, self.anew, self.demander.lack)

    def _make_transactions(self, core: Core) -> None:
        """What clients read and write, one by one and in transactions."""
        self.sessions = Sessions(core, self.replication, self.desk)
        self.admission = Admission(core, self.desk, self.sessions)
        at_cut = CutReads(core, self.desk, self.cuts)
        deletes = Deletes(core, self.replication, self.locks, self.cuts)
        self.expiry = Expiry(core, self.desk, self.locks, deletes)
        self.dropping = Dropping(core, self.locks, self.expiry, deletes)
        self.reads = Reads(core, self.locks, self.admission, at_cut, self.expiry)
        self.writes = Writes(core, self.replication, self.locks, self.admission, self.reads, cuts=self.cuts)
        self.locking = Locking(core, self.locks, self.admission, self.reads)
        self.participant = Participant(core, self.replication, self.writes, self.locking)
        self.cuts.in_doubt = self.participant.parts_in_doubt
        self.coordinator = Coordinator(core, self.replication, self.writes, self.participant)
        self.deadlocks = Deadlocks(core, self.detector, self.locks)

    def _make_cluster(self, core: Core) -> None:
        """Who is in the next map, and how it is decided."""
        self.exchange = Exchange(
            core,
            self.detector,
            self.claims,
            switch=self._switch,
            drained=self._held_up_by,
            break_locks=self._break_locks,
            vouched=lambda: list(self.supply.vouching.vouched),
            anew=self.anew,
        )
        self.parting = Parting(
            locks=self.locks,
            replication=self.replication,
            coordinator=self.coordinator,
            reads=self.reads,
            cuts=self.cuts,
            supply=self.supply,
        )
        self.exchange.foresight.gives_up = self.parting.gives_up
        self.steps = Steps(core, self.exchange, self.claims, foreseen=self.promotion.foresee)
        self.handovers = Handovers(
            core,
            self.exchange,
            self.steps,
            drained=self._held_up_by,
            break_locks=self._break_locks,
            keep=self._keep,
        )
        self.membership = Membership(
            core,
            self.detector,
            claims=self.claims,
            names=self.names,
            exchange=self.exchange,
            steps=self.steps,
            handovers=self.handovers,
            supply=self.supply,
            anew=self.anew,
            stalled=self.replication.stalled,
            looked_through=self.dropping,
            promoting=self.cuts.promoting,
        )
        self.formation = Formation(core, self.desk, self.exchange, candidates=self.membership.joining.candidates)
        self.rescue = Rescue(core, self.desk, self.claims, self.exchange)

    # A new topology.

    def _switch(self, topology: Topology, still: bool) -> None:
        """Let a new map take effect on all rules, in their order. `still`: this node had stopped for an exchange."""
        core = self.core
        light = core.serving and not still and core.fence == topology.fenced and all_stay(core.topology, topology)
        before, placed = core.topology, self.exchange.foresight.take(topology)
        core.adopt(topology)
        core.serving = core.is_listed_by(topology)
        core.local += placed.added
        self._groups = {}
        new = placed.take(self._group, self.supply.vouching.pending, light=light)
        if light:
            core.maps.left.extend(core.now - self._draining.get(local.number, core.now) for local in new.left)
        self._keep_all()
        self._taking = dict.fromkeys((local.number for local in new.promoted), core.now) | self._taking if light else {}
        handed = bool(new.promoted or new.left)
        if handed or not light:
            core.reign = topology.version
        members, changes = ", ".join(m.node for m in topology.members), what_changed(before, topology, new)
        core.note(f"topology {topology.version}: {members}{f' ({changes})' if changes else ''}")
        core.work += len(topology.placements) // TAKEN_OF_WORK + len(new.moved) // SWITCHED_OF_WORK
        for takes_effect, _ in (self.order_of_handovers if handed else self.order_of_steps) if light else self.order:
            takes_effect(new)

    def _order(self) -> list[tuple[Callable[[NewMap], None], str]]:
        """In which order a new map takes effect, and why each stands where it does."""
        return [
            (self.supply.switch, "who is vouched for no more is not waited for by what is shipped from here on"),
            (self.locking.switch, "what is abandoned next releases keys, and hands on none that another node leads now"),
            (self.replication.switch, "what does not count yet is this copy's before anybody looks at what it has"),
            (self.sessions.switch, "what was to be forgotten and is abandoned has said so"),
            (self.participant.switch, "no outcome is asked for that another primary awaits now"),
            (self.coordinator.switch, "it asks participants of the new map, and this node's are among them"),
            (self.deadlocks.switch, "waits went with the locks, and with transactions that were turned away"),
            (self.cuts.switch, "what is promoted next was not kept by this node"),
            (self._begin_again, "a promotion takes stock of what is here, and half a transfer is nothing"),
            (self.promotion.switch, "what it owes goes to the new groups; what it finishes at once serves from here on"),
            (self.anew.switch, "a copy that is to be taken anew is cleared before it is demanded"),
            (self.entropy.switch, "nobody is asked for what he has under this map before he has all that he keeps"),
            (self.demander.switch, "it says what this node has, which nothing above changes any more"),
            (self._evict, "what moved away goes when nobody above needed it"),
            (self.dropping.switch, "its next heartbeat says what of a namespace is left here, of all that it leads now"),
            (self._prepare_affinity, "where copies should be is found out for the next map, in what is left of the turn"),
            (self.steps.switch, "membership finds nothing vouched for that was so by what another map said"),
            (self.handovers.switch, "nor does it find partitions that drain for a step of before"),
            (self.membership.switch, "what it says of this node in its next heartbeat is what came of all this"),
            (self.rounds.switch, "whoever waited for a cut asks whoever numbers them now"),
            (self.expiry.switch, "whoever waited for a key to be deleted asks again, and what others lead is theirs"),
            (self.reads.switch, "whoever waited asks again, of the node as it is now"),
            (self._unpark, "and so does whoever waited for the exchange; both are taken before what came later"),
        ]

    def _order_of_steps(self) -> list[tuple[Callable[[NewMap], None], str]]:
        """The same for a light step, of which nobody has to hear who has no copy that it concerns."""
        return [
            (self.supply.switch, "who is in sync now is waited for as such, and not as vouched for"),
            (self.promotion.step, "a copy that was let go is asked no more"),
            (self.anew.step, "a copy that was taken anew is whole now"),
            (self.entropy.step, "whoever counts now is asked with the others in the next round"),
            (self.demander.switch, "what is in sync does not ask to be"),
            (self._evict, "what was let go goes when nobody above needed it"),
            (self.dropping.step, "of a namespace that goes from now on something is left, says its next heartbeat"),
            (self.steps.step, "what was taken in is not taken in again"),
            (self.handovers.switch, "what this step did not move is asked for anew"),
            (self.membership.step, "its next heartbeat says which map this is"),
            (self.rounds.step, "a cut that is being taken is of the primaries by whom it began"),
            (self.reads.step, "how old a copy is that left nobody knows"),
            (self._unpark, "what waited to be handed over is not, where it is here still"),
        ]

    def _order_of_handovers(self) -> list[tuple[Callable[[NewMap], None], str]]:
        """The same for a light step that moves a primary from this node, or to it."""
        return [
            (self.supply.switch, "who is in sync now is waited for as such, and not as vouched for"),
            (self.locking.switch, "what is abandoned next releases keys, and hands on none that another node leads now"),
            (self.replication.step, "what does not count yet is this copy's before anybody looks at what it has"),
            (self.sessions.switch, "what was to be forgotten and is abandoned has said so"),
            (self.participant.switch, "no outcome is asked for that another primary awaits now"),
            (self.coordinator.switch, "it asks participants of the new map, and this node's are among them"),
            (self.deadlocks.switch, "waits went with the locks, and with transactions that were turned away"),
            (self.cuts.switch, "what is promoted next was not kept by this node"),
            (self.promotion.step, "what it owes goes to the new groups, and whoever waits for this node's answer gets it"),
            (self.anew.step, "a copy that was taken anew is whole now"),
            (self.entropy.step, "whoever leads a partition now compares its copies, and nobody else"),
            (self.demander.switch, "what is in sync does not ask to be"),
            (self._evict, "what was let go goes when nobody above needed it"),
            (self.dropping.switch, "of a namespace that goes all is looked through that this node leads now"),
            (self.steps.step, "what was taken in is not taken in again"),
            (self.handovers.switch, "what this step did not move is asked for anew"),
            (self.membership.step, "its next heartbeat says which map this is"),
            (self.rounds.switch, "whoever waited for a cut asks whoever numbers them now, who begins after this map"),
            (self.expiry.switch, "whoever waited for a key to be deleted asks again, and what others lead is theirs"),
            (self.reads.step, "whoever waited asks again, of the node as it is now"),
            (self._unpark, "and so does whoever waited for the handover; both are taken before what came later"),
        ]

    def _begin_again(self, new: NewMap) -> None:
        """A partition that was lost may begin again where a transfer had not ended, if an operator has ever said so; or
        with a copy that was in sync, and had to empty itself since."""
        core, known = self.core, self.core.replica.partitions
        if core.topology is None or not core.topology.interventions:
            return
        emptied = [number for _, number in core.replica.emptied if core.local[number].role is Role.PROMOTING]
        numbers = dict.fromkeys([local.number for local in new.raised] + emptied)
        states = [state for number in numbers if (state := known.get(number)) is not None and state.fragments]
        for state in states:
            for namespace in [namespace for namespace, fragment in state.fragments.items() if fragment.loading]:
                core.log(r.FragmentClear(namespace, state.number, "the partition begins again with nothing", True))

    def _unpark(self, _: NewMap | None = None) -> None:
        """What waited for the exchange is asked again, but where the partition has yet to be promoted."""
        for number in sorted(self.desk.parked):
            local = self.core.local[number]
            if local.role is not Role.PROMOTING:
                self.desk.ask_again(self.desk.unpark(local))

    def _prepare_affinity(self, _: NewMap) -> None:
        """Find out in good time, and in pieces, where copies should be: it takes long, and an exchange has no time."""
        self.core.find_ideal()

    def _group(self, local: LocalPartition) -> None:
        """Who is waited for, and who is not, in one partition."""
        placement = local.placement
        if not local.role.leads:
            local.needed, local.moving, local.receivers = NOBODY
            return
        waited = self.supply.vouching.pending
        pending = waited.get(local.number, ()) if waited else ()
        whole = not pending and not placement.asynchronous and placement.owners == placement.in_sync
        key = placement.owners if whole else (placement.owners, placement.in_sync, placement.asynchronous, tuple(pending))
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = group_of(placement, self.core.node, pending)
        local.needed, local.moving, local.receivers = known

    def _evict(self, new: NewMap) -> None:
        """A copy that is not wanted here any more goes, and the log says so."""
        here = self.core.replica.partitions
        self._evict_next(deque(local for local in new.gone if local.number in here))

    def _evict_next(self, moved: deque[LocalPartition]) -> None:
        core, work = self.core, 0
        while moved and work < EVICT_WORK and core.serving:
            local = moved.popleft()
            if local.role is Role.NONE and not local.placement.lost and local.number in core.replica.partitions:
                work += 1
                for namespace in list(core.replica.partition(local.number).fragments):
                    work += 1
                    core.log(r.FragmentClear(namespace, local.number, "the copy moved away", True))
                self.demander.progress.forget(local.number)
        core.work += work
        if moved and core.serving:
            core.resume(lambda: self._evict_next(moved))

    def _activated(self, local: LocalPartition, found: Sequence[Transaction] | None = None) -> None:
        """A promotion is done: the partition serves, as soon as what is prepared there is held, and what was decided there
        is `found`."""
        state = self.core.replica.partitions.get(local.number)
        begun = state is not None and (state.prepared or DECISIONS in state.fragments)
        if found is None and (begun or self.locks.goes(local.number)):
            self.core.in_pieces(self._pin(local, local.epoch))
            return
        local.activate()
        self.promotion.served(local)
        if (since := self._taking.pop(local.number, None)) is not None:
            self.core.maps.taken.append(self.core.now - since)
        if local.number in self._draining:
            local.hand_over()
        self.cuts.activated(local)
        self.participant.activated(local)
        self.coordinator.activated(local, found or ())
        self.expiry.activated(local)
        self.desk.ask_again(self.desk.unpark(local))
        self.membership.served(self.promotion.owed)
        if not self.promotion.owed:
            self.supply.vouching.beforehand.begin()

    def _pin(self, local: LocalPartition, epoch: int) -> Iterator[int]:
        found: list[Transaction] = []
        for work in chain(self.participant.holding(local.number), self.coordinator.finding(local.number, found)):
            yield work
            if local.role is not Role.PROMOTING or local.epoch != epoch:
                probe("promotion.held_in_vain")
                return
        self._activated(local, found)

    # What the exchange asks.

    def _held_up_by(self, handover: Sequence[int]) -> list[str]:
        """Transactions that hold up the handover of partitions; nothing new begins on them from now on."""
        core, draining, count = self.core, self._draining, len(self.core.local)
        if not handover or core.topology is None:
            return []
        new = [number for number in handover if number not in draining and 0 <= number < count]
        for number in new:
            core.local[number].hand_over()
            draining[number] = core.now
        core.work += len(new) // TAKEN_OF_WORK
        holding = dict.fromkeys(self.coordinator.holding(frozenset(handover)))
        for number in self.locks.held_of(handover):
            holding |= dict.fromkeys(self.locks.owners_in(number))
        return [tx.hex() for tx in holding]

    def _keep_all(self) -> None:
        """What was to be handed over serves on, as far as it is this node's still."""
        for number in self._draining:
            self.core.local[number].keep()
        self._draining = {}

    def _keep(self) -> None:
        """No step came: what waited for it is asked again."""
        self._keep_all()
        self._unpark()

    def _break_locks(self, handover: Sequence[int]) -> None:
        """The exchange waited long enough: whoever still holds locks on these partitions loses them."""
        for number in self.locks.held_of(handover):
            for owner in list(self.locks.owners_in(number)):
                self.locks.give_up(owner, self.locks.keys_in(owner, number))
