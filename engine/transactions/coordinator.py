"""The coordinator's half of two-phase commit, and recovery: one decision record, set once.

A transaction is coordinated where it is decided: at the primary of the partition of its first written key. The decision is
one replicated record there, in the engine's own namespace, a key-value pair like any other (transaction id ->
outcome and participants), so that it moves, is re-issued and is caught up on with its partition. It goes when every
participant is done.

```
 client              coordinator = decision primary             participants' primaries
 StageWrites --->    (of what is too large for a CommitTx)
 <--- Done
 CommitTx  --->      PrepareParts  ------------------->         prepare record on every in-sync copy
                     <-------------------------- Vote           <- with the last one: the commit point
 <--- Done           decision record, and the outcome of
                     its own partition, on every in-sync copy
                     Finish  ------------------------->         outcome record on every in-sync copy, apply, unlock
                     <---------------------- Finished
```

Recovery never infers an outcome from who is still alive. Whoever is in doubt asks the decision's primary. If it knows no
decision it asks every participant: all prepared, and it commits; else it aborts. It writes that same record, so two
recoveries at once, or a recovery and a slow coordinator, end the same way.

So when the last vote is there a commit is certain, and its client is told (as in CockroachDB's parallel commits). This
rests on three things. A vote is given when its prepare is on every in-sync copy, and only an outcome takes it from there.
A no to recovery is for good: it comes under a later map than what the coordinator asked for, which nobody acts on any more.
And no participant hears the outcome before the decision counts: as long as there is none, whoever was prepared still is,
and no answer that recovery needs was forgotten. Only who stands in line for a key does, which is handed on when its outcome
is in the log of its primary (`engine.data.holdings`): what it makes of that waits until the outcome counts. What a client
held back (`prepare_only`) recovery aborts; of that only the decision is told, and an abort always is when it counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain
from typing import assert_never, get_args

from engine.data.replication import Replication
from engine.data.writes import Writes
from engine.messages import Finished, Inquired, Resolve, Vote
from engine.messages.transactions import ToCoordinator
from engine.protocol.requests import Code, CommitTx, Done, GetStatus, Status, Unlock
from engine.protocol.sizes import written_bytes
from engine.transactions.asking import Asking
from engine.transactions.commits import Large, Phase, Transaction, split
from engine.transactions.participant import Participant
from engine.transactions.pieces import cut, partition_at, place_of, places_of
from engine.transactions.recovering import LOOKED_OF_WORK, RECOVERED, TOLD
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS, may_act
from rebalance.results import COMMITTED
from rebalance.rule import NewMap
from wal.ids import NodeId, TxId, whole_of
from wal.probe import probe

PREPARE_SECONDS_MAX = 30
"""A transaction whose votes do not come for so long is aborted; a large one has a while longer for its bytes."""
BYTES_PER_MS = 4 << 10
BEGUN_WORK = 2
"""How much it is to begin to commit a transaction, however little it writes."""


class Coordinator(Asking):
    """Transactions whose decision partition this node is primary of."""

    takes = get_args(ToCoordinator)

    def __init__(self, core: Core, replication: Replication, writes: Writes, participant: Participant) -> None:
        super().__init__(core, replication, writes, participant)
        self._looks, self._looking = 0, False  # at all of them, so far; and whether that is done in pieces

    # What clients ask.

    def on_commit(self, session: SessionId, request: CommitTx) -> None:
        """Commit (or only prepare) a transaction."""
        core = self.core
        for namespace, _, _ in request.writes:
            problem = self.admission.not_there(namespace)
            if problem:
                self.desk.refuse(session, request.id, Code.USAGE, problem)
                return
        assert core.topology is not None
        decision = core.topology.place(request.writes[0][0], request.writes[0][1][0])
        local = core.local[decision]
        running = self.active.get(request.tx)
        if running is not None and local.mine:
            running.asked.append((session, request.id, False))
            self._joined(running, request.prepare_only)
            return
        alone = self.one_phase.get(request.tx)
        if alone is not None and local.mine:
            alone.asked.append((session, request.id, False))
            return
        new = not self.participant.locks.is_owner(request.owner)
        self.admission.sessions.hear(request.tx, request.acked)
        if not self.admission.may_serve(session, request, local, request.tx, new=new):
            return
        state = core.replica.partition(decision)
        if state.results.get(request.tx) == COMMITTED:
            probe("tx.answered_from_results")
            self.desk.reply(session, Done(request.id))
            return
        if (prepare := state.prepared.get(request.tx)) is not None:
            self._recover_for(session, request, prepare)
            return
        if (request.tx, decision) in self.writes.under_way:
            probe("tx.id_of_a_write")
            self.desk.refuse(
                session,
                request.id,
                Code.BUSY,
                f"a single write of the id {request.tx.hex()} is under way: ask again, or give the transaction its own id",
                retryable=True,
            )
            return
        self._begin(session, request, local)

    def _begin(self, session: SessionId, request: CommitTx, local: LocalPartition) -> None:
        whole = self.staging.take(session, request) if request.staged else request
        if whole is None:
            return
        transaction = Transaction(request.tx, local.number, [], self.core.now)
        transaction.large = Large(written_bytes(whole.writes)) if request.staged else None
        transaction.owner, transaction.optimistic = request.owner, request.optimistic
        transaction.held = transaction.prepare_only = request.prepare_only
        transaction.acked = request.acked
        transaction.asked.append((session, request.id, False))
        transaction.origin = self.writes.origins.of_commit(session, request, local)
        transaction.phase = Phase.SPLITTING
        self.active[request.tx] = transaction
        self.core.work += BEGUN_WORK
        self.core.in_pieces(self._split(transaction, whole))

    def _split(self, transaction: Transaction, request: CommitTx) -> Iterator[int]:
        """Put it into parts, and ask for votes on them; of one part nobody needs to be asked."""
        core, active, parts = self.core, self.active, transaction.parts
        assert core.topology is not None
        version = core.fence
        large = transaction.large
        pieces = cut(parts, self._piece_bytes(large)) if large is not None else ()
        for work in chain(split(request, core.topology, parts), pieces):
            yield work
            if active.get(transaction.tx) is not transaction or transaction.phase is not Phase.SPLITTING:
                return
        if not may_act(core, version):
            probe("tx.split_in_vain")  # an exchange came in between, and nothing of it has begun
            self._turn_away(transaction, begun=False)
            return
        held_back = (self.admission.held_back(core.local[p.partition]) for p in parts.values())
        if (core.cramped or core.backlogged) and (why := next(filter(None, held_back), None)):
            self._turn_away(transaction, begun=False, why=why)
            return
        if len(parts) == 1 and not transaction.prepare_only:
            self._commit_alone(transaction, parts[transaction.decision])
            return
        transaction.phase = Phase.PREPARING
        transaction.anew = not transaction.held and self.begun_again(transaction.decision)
        transaction.participants = sorted(map(partition_at, parts))
        transaction.awaited = dict.fromkeys(parts)
        self._ask_votes(transaction)

    def _joined(self, transaction: Transaction, prepare_only: bool) -> None:
        """The client asked again; it may now want the decision that it held back."""
        if transaction.phase is Phase.FINISHING:
            self._answer(transaction)
        elif not prepare_only:
            transaction.prepare_only = False
            if transaction.phase is Phase.PREPARED:
                self._decide(transaction, commit=True)
        elif transaction.phase is Phase.PREPARED:
            self._answer_prepared(transaction)

    def on_unlock(self, session: SessionId, request: Unlock) -> None:
        """A transaction was given up by its client: one that it had prepared, and that is not decided yet, is aborted.

        The client is answered when the abort counts: from then on no recovery can find anything else.
        """
        self.staging.give_up(request.owner)
        prepared = self.active.get(request.owner)
        if prepared is not None and prepared.prepare_only:
            prepared.unlocks.append((session, request))
            if prepared.phase in (Phase.SPLITTING, Phase.PREPARING, Phase.PREPARED):
                probe("tx.prepared_and_rolled_back")
                self._no(prepared, "its client rolled it back")
            elif prepared.phase is Phase.FINISHING:
                self._answer(prepared)
            return
        self.locking.on_unlock(session, request)

    def on_status(self, session: SessionId, request: GetStatus) -> None:
        """How did a transaction end? One that did not begin to end is aborted, so that the answer stays true."""
        core = self.core
        local = core.local[request.partition]
        if not self.admission.may_serve(session, request, local, None, new=False):
            return
        state = core.replica.partition(request.partition)
        outcome = state.results.get(request.tx)
        running = self.active.get(request.tx)
        if outcome is not None:
            self.desk.reply(session, Status(request.id, "committed" if outcome == COMMITTED else "aborted"))
        elif running is not None:
            running.asked.append((session, request.id, True))
        elif request.tx in self.one_phase or (request.tx, request.partition) in self.writes.under_way:
            self.desk.refuse(
                session, request.id, Code.BUSY, "the transaction is being committed: ask again", retryable=True
            )
        elif (prepare := state.prepared.get(request.tx)) is not None:
            self._recover_for(session, request, prepare)
        elif self._may_be_forgotten(state.results, request):
            self.desk.refuse(
                session,
                request.id,
                Code.FORGOTTEN,
                f"transaction {request.tx.hex()} is not known, and may have been forgotten: an answer is kept until its "
                f"client acknowledges it, and for {core.settings.result_retention_ms // 1000} s when that is silent",
                maybe_committed=True,
            )
        elif self.begun_again(request.partition):
            probe("tx.status_of_what_may_be_lost")
            everywhere = list(range(len(core.local)))  # who asks does not say where it wrote
            self._ask_all(request.tx, request.partition, everywhere).asked.append((session, request.id, True))
        else:
            probe("tx.status_fenced_unknown")
            unknown = self._decide_unknown(request.tx, local, [], "nothing of it was known when its status was asked")
            unknown.asked.append((session, request.id, True))

    # Votes.

    def on_vote(self, sender: NodeId, message: Vote) -> None:
        """Count a vote. A yes stands whatever the topology: the prepare is on every in-sync copy."""
        self.writes.cuts.hear(message.era)
        transaction, place = self.active.get(whole_of(message.tx)), place_of(message.tx, message.partition)
        if transaction is None or transaction.phase is not Phase.PREPARING:
            return
        if not message.yes:
            if message.version == self.core.fence:
                transaction.unmet = message.unmet
                self._refused(transaction, message.reason)
            return
        transaction.awaited.pop(place, None)
        transaction.era = max(transaction.era, message.era)
        transaction.sent_at = self.core.now  # votes come: nothing needs to be said again
        if transaction.large is not None:
            self._ask_on(transaction, transaction.large, place)
        if not transaction.awaited:
            if transaction.prepare_only:
                transaction.phase = Phase.PREPARED
                transaction.since = self.core.now
                self._answer_prepared(transaction)
            else:
                self._all_prepared(transaction)

    def on(self, sender: NodeId, message: ToCoordinator) -> None:
        """Everything that participants say."""
        match message:
            case Vote():
                self.on_vote(sender, message)
            case Finished():
                self.on_finished(sender, message)
            case Resolve():
                self.on_resolve(sender, message)
            case Inquired():
                self.on_inquired(sender, message)
            case _:
                assert_never(message)

    # Topology and time.

    def switch(self, _: NewMap) -> None:
        """A new topology: what is decided elsewhere now is not ours; votes of the rest are asked for anew, in pieces."""
        core = self.core
        self.maps += 1
        self.staging.switch()
        self._over = {p: txs for p, txs in self._over.items() if core.local[p].mine}
        for transaction in [t for t in self.active.values() if not core.local[t.decision].active]:
            probe("tx.coordinator_moved")
            self._turn_away(transaction, begun=True)
        self._look_at_all()

    def decided_in(self, partitions: Container[int]) -> Iterator[Transaction]:
        """Transactions under way whose decision is one of these partitions'."""
        return (transaction for transaction in self.active.values() if transaction.decision in partitions)

    def turning_away(self, ending: Container[int]) -> Iterator[int]:
        """Turn away, in pieces, what is decided in partitions that the next map takes from this node."""
        for transaction in list(self.decided_in(ending)):
            if self.active.get(transaction.tx) is transaction:
                probe("tx.coordinator_moves")
                self._turn_away(transaction, begun=True)
            yield 1 + len(transaction.asked)

    def holding(self, handover: frozenset[int]) -> list[TxId]:
        """Transactions under way that touch these partitions. It is asked in each turn, so it calls little for each."""
        apart = handover.isdisjoint
        return [t.tx for t in self.active.values() if t.decision in handover or not apart(t.participants)]

    def tick(self) -> None:
        """Ask again; abort what waited too long. While that is done in pieces nobody rings in vain: it begins anew then."""
        if not self._looking:
            self.alarm.off()
            self.staging.tick()
            self._look_at_all()

    def _look_at_all(self) -> None:
        """Whoever looks already ends: what he has seen under another map is to be seen again."""
        self._looks, self._looking = self._looks + 1, True
        self.core.in_pieces(self._look(self._looks))

    def _look(self, nth: int) -> Iterator[int]:
        for at, transaction in enumerate(list(self.active.values()), 1):
            if self.active.get(transaction.tx) is transaction:
                yield self._see_to(transaction) + (not at % LOOKED_OF_WORK)
            if nth != self._looks:
                probe("tx.looked_no_further")
                return
        self._looking = False

    def _see_to(self, transaction: Transaction) -> int:
        """Say what is due by now, or under this map; how much work it was."""
        core, large = self.core, transaction.large
        match transaction.phase:
            case Phase.SPLITTING:
                return 0
            case Phase.DECIDING:
                if not transaction.held_back or not may_act(core, core.fence):
                    return 0
                self._decide(transaction, commit=transaction.commit)
                return RECOVERED
            case Phase.PREPARED:
                if not self.alarm.is_due(transaction.since + core.settings.lock_lease_ms * MS, core.now):
                    return 0
                probe("tx.prepared_and_abandoned")
                self._no(transaction, "its client prepared it and did not come back")
                return RECOVERED
            case Phase.PREPARING:
                most = PREPARE_SECONDS_MAX * 1000 + (large.size // BYTES_PER_MS if large is not None else 0)
                if core.now - transaction.since >= most * MS:
                    self._refused(transaction, f"a participant did not vote within {most // 1000} s")
                    return RECOVERED
        return TOLD if self._says_again(transaction) else 0

    def _says_again(self, transaction: Transaction) -> bool:
        """What nobody was told under this map, or has not answered for long, is said again."""
        core, phase = self.core, transaction.phase
        anew = transaction.said_under != self.maps
        if not anew:
            after = transaction.sent_at + core.settings.retransmit_ms * MS
            if not self.alarm.is_due(after, core.now):
                return False
            if phase is Phase.PREPARING and not self.alarm.is_due(after + self._travels_ns(transaction), core.now):
                probe("tx.asked_yet")
                return False
        if phase is Phase.PREPARING:
            self._ask_votes(transaction)
        elif phase is Phase.FINISHING:
            self._tell_outcome(transaction)
        else:
            if anew:
                transaction.awaited = dict.fromkeys(places_of(transaction.participants))
            self._inquire(transaction)
        return True
