"""How a transaction without a decision comes to one, and what a new primary takes up of those that were begun before it.

Whoever is in doubt asks the decision's primary; `engine.transactions.coordinator` says why recovery never infers an outcome
from who is still alive. A new primary may find very many at once, decided and not over, or prepared and not decided: it
reads the decisions before it serves, so that none of them is made twice, and then says in pieces what came of them. What
is prepared and not decided it takes up in pieces, too, after that: whoever asks for one of these first has it begin then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.messages import Finish, Inquire, Inquired, Resolve
from engine.protocol.requests import Code, CommitTx, GetStatus
from engine.transactions.commits import NO_MAP, Phase, Transaction
from engine.transactions.deciding import Deciding
from engine.transactions.pieces import PLACE_BITS, partition_at, place_of, places_of
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS, leads, may_act
from rebalance.results import COMMITTED
from wal import records as r
from wal.ids import DECISIONS, NodeId, TxId, Version, piece_of, whole_of
from wal.probe import probe

READ_AT_ONCE = 256
READ_OF_WORK = 4
"""So many decisions that are read are as much work as one that is made;"""
TOLD, RECOVERED = 1, 2
"""how much it is to tell of one, and to begin to recover one, which may be decided at once;"""
LOOKED_OF_WORK = 20
"""and of how many it is as much to see that nothing is to be done."""


class Recovering(Deciding):
    """The transactions whose decision partition this node is primary of, and that somebody else began."""

    # Doubt.

    def on_resolve(self, sender: NodeId, message: Resolve) -> None:
        """A participant is in doubt."""
        core = self.core
        local = leads(core, message.decision)
        if local is None or message.partition >= len(core.local) or not may_act(core, message.version):
            return
        tx = whole_of(message.tx)
        running = self.active.get(tx)
        if running is not None:
            if running.phase is Phase.FINISHING:
                core.tell(sender, Finish(core.fence, message.tx, running.commit, [message.partition], running.era))
            return
        state = core.replica.partition(message.decision)
        row = core.replica.store.get((DECISIONS, message.decision), tx)
        outcome = row.value[0] if row is not None and row.value else state.results.get(tx)
        if outcome is not None:
            core.tell(sender, Finish(core.fence, message.tx, outcome == COMMITTED, [message.partition]))
        elif tx in self.one_phase or (tx, message.decision) in self.writes.under_way:
            probe("tx.resolve_of_what_is_being_written")  # under an id of which somebody made two things: it asks again
        elif (prepare := state.prepared.get(tx)) is not None and prepare.decision == message.decision:
            self._recover(prepare)
        elif message.decision in message.participants:
            if max(message.participants) < len(core.local):
                probe("tx.recovery.no_trace")
                self._ask_all(tx, message.decision, message.participants)
        else:
            probe("tx.recovery.unknown_aborted")
            self._decide_unknown(tx, local, [message.partition], "recovery found no trace of it")

    def _recover_for(self, session: SessionId, request: CommitTx | GetStatus, prepare: r.Prepare) -> None:
        """A client asks about one that has voted here. It may ask where that is not decided."""
        if prepare.decision == prepare.partition:
            self._recover(prepare).asked.append((session, request.id, isinstance(request, GetStatus)))
            return
        told = f"the transaction is decided in partition {prepare.decision}, and not in {prepare.partition}: ask there"
        self.desk.refuse(session, request.id, Code.USAGE, told)

    def _recover(self, prepare: r.Prepare) -> Transaction:
        probe("tx.recovery.began")
        tx = whole_of(prepare.tx)
        if not prepare.held:
            return self._ask_all(tx, prepare.decision, prepare.participants)
        probe("tx.recovery.held_aborted")
        transaction = self.active[tx] = Transaction(tx, prepare.decision, prepare.participants, self.core.now)
        self._no(transaction, "its client had not asked to commit it")
        return transaction

    def _ask_all(self, tx: TxId, decision: int, participants: list[int]) -> Transaction:
        transaction = self.active[tx] = Transaction(tx, decision, participants, self.core.now)
        self._ask(transaction)
        return transaction

    def _ask(self, transaction: Transaction) -> None:
        transaction.phase = Phase.RECOVERING
        transaction.awaited = dict.fromkeys(places_of(transaction.participants))
        self._inquire(transaction)

    def _inquire(self, transaction: Transaction) -> None:
        core = self.core
        transaction.sent_at, transaction.said_under = core.now, self.maps
        core.in_pieces(self._inquire_of(transaction, list(transaction.awaited), core.fence))
        self.alarm.by(core.now + core.settings.retransmit_ms * MS)

    def _inquire_of(self, transaction: Transaction, places: list[int], version: Version) -> Iterator[int]:
        core = self.core
        for place in places:
            if core.fence != version or self.active.get(transaction.tx) is not transaction:
                return
            number = partition_at(place)
            primary = core.local[number].placement.primary
            if primary is not None:
                tx = piece_of(transaction.tx, place >> PLACE_BITS)
                core.tell(primary, Inquire(core.fence, tx, number, transaction.decision))
            yield 1

    def on_inquired(self, sender: NodeId, message: Inquired) -> None:
        """A participant says whether it is prepared.

        Who is not excludes a commit, unless its partition was LOST with what it had voted for and has begun again: then
        another one may have heard of a commit, and all that can be asked are asked before it comes to nothing. Where nobody
        waits for the outcome nothing is decided: it was before, and that is forgotten, or nobody will ever hear of it.
        """
        transaction, local = self.active.get(whole_of(message.tx)), self.core.local
        if transaction is None or transaction.phase is not Phase.RECOVERING or message.version != self.core.fence:
            return
        transaction.awaited.pop(place_of(message.tx, message.partition), None)
        transaction.heard_of_commit |= message.committed
        transaction.doubted |= message.in_doubt
        if not message.prepared:
            transaction.unprepared = message.partition
        nobody_left = not any(local[partition_at(place)].placement.primary for place in transaction.awaited)
        if not transaction.doubted and not transaction.asked:
            if nobody_left:
                probe("tx.recovery.nobody_in_doubt")
                del self.active[transaction.tx]
        elif transaction.heard_of_commit:
            probe("tx.recovery.found_committed")
            self._decide(transaction, commit=True)
        elif not transaction.awaited and transaction.unprepared is None:
            probe("tx.recovery.found_prepared_everywhere")
            self._decide(transaction, commit=True)
        elif transaction.unprepared is not None and nobody_left:
            probe("tx.recovery.aborted")
            self._no(transaction, transaction.reason or f"partition {transaction.unprepared} was not prepared")

    # A new primary.

    def finding(self, number: int, found: list[Transaction]) -> Iterator[int]:
        """This node is about to serve a partition: find what was decided there and is not over, in pieces; yields how much
        work each was. Nothing is decided there meanwhile."""
        core, name, start = self.core, (DECISIONS, number), b""
        while rows := core.replica.store.scan(name, start, READ_AT_ONCE) if name in core.replica.fragments else []:
            found += [self._read(tx, number, entry.value) for tx, entry in rows if entry.value]
            start = rows[-1][0] + b"\0"
            yield len(rows) // READ_OF_WORK

    def _read(self, tx: TxId, number: int, value: bytes) -> Transaction:
        participants = [int.from_bytes(value[i : i + 2], "big") for i in range(1, len(value), 2)]
        transaction = Transaction(tx, number, participants, self.core.now)
        transaction.commit, transaction.phase = value[0] == COMMITTED, Phase.FINISHING
        self._await_all(transaction)
        return transaction

    def activated(self, local: LocalPartition, found: Sequence[Transaction]) -> None:
        """This node became primary of a partition: finish what was decided there, and recover what was not."""
        self._over.pop(local.number, None)  # their records are among those that were found
        if found or self.core.replica.partition(local.number).prepared:
            self.active |= {transaction.tx: transaction for transaction in found if transaction.tx not in self.active}
            self.core.in_pieces(self._take_up(local, local.epoch, found))

    def _take_up(self, local: LocalPartition, epoch: int, found: Sequence[Transaction]) -> Iterator[int]:
        """Each as it is by then. If another node leads, or this one in another epoch, all of it is begun anew."""
        core, active = self.core, self.active
        for transaction in found:
            if active.get(transaction.tx) is transaction and transaction.said_under == NO_MAP:
                self._tell_outcome(transaction)
                yield TOLD
        state = core.replica.partition(local.number)
        for at, (tx, prepare) in enumerate(list(state.prepared.items()), 1):
            if not local.active or local.epoch != epoch:
                probe("tx.taken_up_no_further")
                return
            of = whole_of(tx)
            new = prepare.decision == local.number and of not in active and state.results.get(of) is None
            if new and tx in state.prepared:
                self._recover(prepare)
                yield RECOVERED
            elif not at % LOOKED_OF_WORK:
                yield 1
