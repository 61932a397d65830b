"""How a transaction is decided, once: by one record, which is told until all who took part are done.

The record of one that lies in one partition is its writes; of any other it is a key-value pair of the engine's own
namespace. `engine.transactions.coordinator` says what has to come before, and what is done when none is found.
"""

from __future__ import annotations

from functools import partial

from engine.data.admission import HeldBack
from engine.data.replication import Replication
from engine.data.waiter import Acked
from engine.data.writes import Writes
from engine.messages import Finish, Finished, Part
from engine.protocol.requests import Code, Done, GetStatus, Status
from engine.transactions.commits import OnePhase, Phase, Transaction, reserved
from engine.transactions.participant import Participant
from engine.transactions.pieces import PLACE_BITS, partition_at, place_of, places_of
from engine.transactions.touching import INTERRUPTED, Refusal, Want
from engine.turn.core import Core
from rebalance.partition import LocalPartition
from rebalance.ports import MS, Operation, may_act
from rebalance.results import ABORTED, COMMITTED, Results
from rebalance.rule import Rule
from rebalance.table import Intervention
from wal import records as r
from wal.ids import DECISIONS, NodeId, TxId, piece_of, whole_of
from wal.probe import probe

FINISH_PARTS = 200
"""Partitions that one message tells an outcome."""
DECIDED_WORK = 3
"""How much it is to decide a transaction, or to log one that needs no decision, however little it writes;"""
KNOWN_WORK = 2
"""and to say so when the decision counts."""


class Deciding(Rule):
    """The transactions whose decision partition this node is primary of, from their decision on."""

    def __init__(self, core: Core, replication: Replication, writes: Writes, participant: Participant) -> None:
        super().__init__()
        self.core = core
        self.replication = replication
        self.writes = writes
        self.participant = participant
        self.locking = participant.locking
        self.admission = writes.admission
        self.desk = writes.desk
        self.active: dict[TxId, Transaction] = {}
        self.one_phase: dict[TxId, OnePhase] = {}
        self.admission.look_at_ids(self.active, self.one_phase)
        self.maps = 0  # that took effect on it
        self._forced: tuple[Intervention, ...] = ()
        self._anew: dict[int, None] = {}  # partitions of these
        self._over: dict[int, list[TxId]] = {}  # decision records to delete with the partition's next one

    # In one partition.

    def _commit_alone(self, transaction: Transaction, part: Part) -> None:
        want = Want(transaction.tx, transaction.owner, part, optimistic=transaction.optimistic, votes=False)
        still, then = partial(self._may_log, transaction, part), partial(self._alone, transaction, part)
        self.participant.touching.pin_all(want, still=still, then=then)

    def _may_log(self, transaction: Transaction, part: Part) -> bool:
        core = self.core
        wanted = self.active.get(transaction.tx) is transaction
        return wanted and core.local[part.partition].mine and may_act(core, core.fence)

    def _alone(self, transaction: Transaction, part: Part, refusal: Refusal | None) -> None:
        """All that it touches is held and as it was, or will not be."""
        if refusal is INTERRUPTED:
            if self.active.get(transaction.tx) is transaction:
                self._turn_away(transaction, begun=False)
        elif refusal is None:
            self._log_alone(transaction, part)
        else:
            del self.active[transaction.tx]
            refused = self._decide_unknown(transaction.tx, self.core.local[part.partition], [], refusal.reason)
            refused.asked, refused.unmet = transaction.asked, refusal.unmet

    def _log_alone(self, transaction: Transaction, part: Part) -> None:
        core, tx, local = self.core, transaction.tx, self.core.local[part.partition]
        del self.active[tx]
        core.work += DECIDED_WORK
        writes = reserved(core, part, local, tx)
        alone = self.one_phase[tx] = OnePhase(tx, transaction.owner, writes, transaction.asked, core.turns)
        update = r.Update(writes)
        records: list[r.Record] = [update]
        if transaction.origin is not None:
            records.insert(0, self.writes.origins.log(transaction.origin, local))
        core.log_unapplied(update)
        counted, abandoned = partial(self._alone_counted, alone), partial(self._alone_abandoned, alone)
        self.replication.ship_by_size(Operation(local, records, counted=counted, abandoned=abandoned), local)

    def _alone_counted(self, alone: OnePhase) -> None:
        for write in alone.writes:
            self.writes.cuts.keep(write, self.core.era)
            self.core.replica.apply_write(write)
            self.writes.looks.note(write)
            self.writes.expiry.note(write)
        self.one_phase.pop(alone.tx, None)
        acked = Acked(alone.writes[0].partition, alone.turn)
        self.participant.release(alone.owner, alone.tx, self.participant.locks.keys_of(alone.owner), acked)
        for session, request_id, wants_status in alone.asked:
            self.desk.reply(session, Status(request_id, "committed") if wants_status else Done(request_id))

    def _alone_abandoned(self, alone: OnePhase) -> None:
        """The next primary has it or closes it; the client asks there."""
        self.one_phase.pop(alone.tx, None)
        for session, request_id, _ in alone.asked:
            self.desk.remap(session, request_id, begun=True)

    # In several.

    def _all_prepared(self, transaction: Transaction) -> None:
        """Every vote is there: nothing but a commit can come of it, whoever fails, if its client had not held it back."""
        if not transaction.held:
            transaction.commit = True
            self._answer(transaction)
        self._decide(transaction, commit=True)

    def begun_again(self, number: int) -> bool:
        """Whether an operator has let a partition begin again: what was decided there may be lost with its trace."""
        forced = self.core.topology.interventions if self.core.topology is not None else ()
        if forced is not self._forced:
            self._forced = forced
            self._anew = dict.fromkeys(taken.partition for one in forced for taken in one.taken)
        return number in self._anew

    def _may_be_forgotten(self, results: Results, request: GetStatus) -> bool:
        """Whether a transaction of which nothing is known may have ended here. What its client awaits is not forgotten."""
        if self.admission.sessions.acknowledged(request.tx):
            return True
        return bool(results.floor) and not 0 <= request.age_ms < self.core.settings.result_retention_ms

    def _no(self, transaction: Transaction, reason: str) -> None:
        transaction.reason = reason
        self._decide(transaction, commit=False)

    def _decide(self, transaction: Transaction, *, commit: bool) -> None:
        """Write the decision record: the commit point, when it counts."""
        core, local = self.core, self.core.local[transaction.decision]
        assert local.mine, "only the decision's primary decides"
        known = core.replica.partition(local.number).results.get(transaction.tx)
        assert known is None, f"transaction {transaction.tx.hex()} was decided before: {known}"
        transaction.phase, transaction.commit = Phase.DECIDING, commit
        transaction.parts, transaction.large = {}, None
        transaction.held_back = not may_act(core, core.fence)
        if transaction.held_back:
            probe("tx.decision_held_back")
            return  # what this node has was reported to an exchange: the record is for the version that comes of it
        core.work += DECIDED_WORK
        over = self._over.pop(local.number, [])
        keys = [transaction.tx, *over]
        outcome = bytes([COMMITTED if commit else ABORTED])
        values: list[bytes | None] = [
            outcome + b"".join(p.to_bytes(2, "big") for p in transaction.participants),
            *(None for _ in over),
        ]
        counter = core.replica.ensure_fragment((DECISIONS, local.number)).counter
        start = counter.reserve(len(keys))
        write = r.Write(
            DECISIONS, local.number, local.epoch, start, keys, values=values, stable=counter.lwm, tx=transaction.tx
        )
        records: list[r.Record] = [r.Update([write])]
        core.log_unapplied(records[0])
        own = core.replica.partition(local.number).prepared.get(transaction.tx)
        ending: Operation | None = None
        if commit and own is not None and not transaction.held:
            # Nothing else can come of it, so its own partition need not wait for the decision to count: both count at once.
            ending = self.participant.end(local, own, transaction.era, commit=True)
            records += ending.records
        counted = partial(self._decision_counted, transaction, write, ending)
        abandoned = partial(self._decision_abandoned, ending)
        self.replication.ship_by_size(Operation(local, records, counted=counted, abandoned=abandoned), local)

    def _decide_unknown(self, tx: TxId, local: LocalPartition, participants: list[int], reason: str) -> Transaction:
        """Abort a transaction of which nothing is known here, so that nothing of it can begin any more."""
        transaction = self.active[tx] = Transaction(tx, local.number, participants, self.core.now)
        self._no(transaction, reason)
        return transaction

    @staticmethod
    def _decision_abandoned(ending: Operation | None) -> None:
        probe("tx.decision_abandoned")  # the next primary has the record, or recovers the transaction
        if ending is not None:
            ending.abandoned()

    def _decision_counted(self, transaction: Transaction, write: r.Write, ending: Operation | None) -> None:
        self.core.replica.apply_write(write)
        if ending is not None:
            ending.counted()
        self.decided(transaction)

    def decided(self, transaction: Transaction) -> None:
        """The decision counts: answer the client, tell the participants."""
        transaction.phase = Phase.FINISHING
        self.core.work += KNOWN_WORK
        self._answer(transaction)
        self._await_all(transaction)
        self._tell_outcome(transaction)

    def _await_all(self, transaction: Transaction) -> None:
        """Of whom it is to be heard that they are done."""
        transaction.awaited = dict.fromkeys(places_of(transaction.participants))
        if transaction.commit and transaction.tx not in self.core.replica.partition(transaction.decision).prepared:
            transaction.awaited.pop(transaction.decision, None)  # its first piece there ended with the decision

    def _answer(self, transaction: Transaction) -> None:
        for session, request_id, wants_status in transaction.asked:
            if wants_status:
                self.desk.reply(session, Status(request_id, "committed" if transaction.commit else "aborted"))
            elif transaction.commit:
                self.desk.reply(session, Done(request_id))
            elif transaction.unmet:
                self.desk.reply(session, Done(request_id, applied=False))
            else:
                reason = transaction.reason or "the transaction was aborted by recovery"
                self.desk.refuse(session, request_id, Code.CONFLICT, reason, retryable=True)
        transaction.asked = []
        unlocks, transaction.unlocks = transaction.unlocks, []
        for session, unlock in unlocks:
            self.locking.on_unlock(session, unlock)

    def _answer_prepared(self, transaction: Transaction) -> None:
        for session, request_id, _ in transaction.asked:
            self.desk.reply(session, Done(request_id))
        transaction.asked = []

    def _tell_outcome(self, transaction: Transaction) -> None:
        core = self.core
        transaction.sent_at, transaction.said_under = core.now, self.maps
        if not transaction.awaited:
            self._forget(transaction)
            return
        told: dict[tuple[NodeId, int], list[int]] = {}
        for place in transaction.awaited:
            number = partition_at(place)
            primary = core.local[number].placement.primary
            if primary is not None:
                told.setdefault((primary, place >> PLACE_BITS), []).append(number)
        core.work += len(transaction.awaited) // 4
        for (primary, piece), numbers in told.items():
            tx = piece_of(transaction.tx, piece)
            for at in range(0, len(numbers), FINISH_PARTS):
                some = numbers[at : at + FINISH_PARTS]
                core.tell(primary, Finish(core.fence, tx, transaction.commit, some, transaction.era))
        self.alarm.by(core.now + core.settings.retransmit_ms * MS)

    def on_finished(self, sender: NodeId, message: Finished) -> None:
        """A participant is done."""
        transaction = self.active.get(whole_of(message.tx))
        if transaction is None or transaction.phase is not Phase.FINISHING:
            return
        for number in message.partitions:
            transaction.awaited.pop(place_of(message.tx, number), None)
        transaction.sent_at = self.core.now
        if not transaction.awaited:
            self._forget(transaction)

    def _forget(self, transaction: Transaction) -> None:
        del self.active[transaction.tx]
        self._over.setdefault(transaction.decision, []).append(transaction.tx)

    def _turn_away(self, transaction: Transaction, *, begun: bool, why: HeldBack | None = None) -> None:
        """Whoever waits for its end is to ask again, where it is decided now; or when copies have room."""
        del self.active[transaction.tx]
        for session, request_id, _ in transaction.asked:
            if why is not None:
                self.admission.refuse(session, request_id, why)
            else:
                self.desk.remap(session, request_id, begun=begun)
        for session, unlock in transaction.unlocks:
            self.desk.remap(session, unlock.id)
