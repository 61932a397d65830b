"""A participant's half of two-phase commit: votes, outcomes, doubt.

A vote is given when the prepare record is durable on every in-sync copy of the partition; from then on only the decision
ends it. The outcome is one record too, and the partition's entries become visible, its LWM moves and its locks go when that
record counts. A rolled-back transaction's counters are consumed and closed, on every copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import assert_never, get_args

from msgspec import structs

from engine.data.concerns import work_of
from engine.data.holdings import Key
from engine.data.locking import Locking
from engine.data.locks import KEYS_OF_ONE, RELEASED_MAX
from engine.data.replication import Replication
from engine.data.waiter import Acked
from engine.data.writes import Writes
from engine.messages import Finish, Finished, Inquire, Inquired, Part, PrepareParts, Resolve, Vote
from engine.messages.transactions import ToParticipant
from engine.transactions.commits import reserved
from engine.transactions.doubts import Doubt
from engine.transactions.pieces import is_named, is_piece, keys_written, means_something, written_by
from engine.transactions.touching import INTERRUPTED, Refusal, Touching, Want
from engine.turn.core import Core
from rebalance.partition import LocalPartition
from rebalance.ports import MS, Operation, leads, may_act
from rebalance.results import COMMITTED
from rebalance.rule import NewMap, Rule
from wal import records as r
from wal.ids import EXPIRIES, Era, NodeId, TxId, piece_number, whole_of
from wal.probe import probe

NAMED_PER_WORK = 300
"""So many participants named in a record are as much work as a key."""
DOUBTS_OF_WORK = 20
"""So many of those whose outcome is awaited are looked at, whether it is overdue, as one thing that is decided."""
HELD_AT_ONCE = 1_000
"""Keys of what a new primary found prepared that are held in one piece."""
HANDED_ON_MAX = 64
"""Who has written more keys in a partition hands them on when its outcome counts: each is looked for among all."""


class Participant(Rule):
    """Transactions as the primaries of their keys see them."""

    takes = get_args(ToParticipant)

    def __init__(self, core: Core, replication: Replication, writes: Writes, locking: Locking) -> None:
        super().__init__()
        self.core = core
        self.replication = replication
        self.locks = locking.locks
        self.writes = writes
        self.locking = locking
        self.voting: dict[tuple[TxId, int], tuple[NodeId | None, Era] | None] = {}  # who is told of an end that came by now
        self.touching = Touching(core, writes, locking)
        self.ending: dict[tuple[TxId, int], list[NodeId]] = {}  # who wants to hear that it is done
        self._doubts: dict[tuple[TxId, int], Doubt] = {}
        self._asking = False  # about those that are overdue
        self.owner_of: dict[TxId, TxId] = {}  # transaction -> the owner of its locks, as who asked for votes named it

    def holder(self, tx: TxId, number: int) -> TxId:
        """Who holds the locks of a transaction, or of a piece of one, in a partition."""
        doubt, of = self._doubts.get((tx, number)), whole_of(tx)
        return doubt.holder if doubt is not None else self.owner_of.get(of) or of

    # Prepare.

    def on_prepare(self, sender: NodeId, message: PrepareParts) -> None:
        """Vote on the parts of a transaction whose primary this node is."""
        core = self.core
        if not may_act(core, message.version):
            return  # the coordinator asks again, under the version that will be
        if sender != core.node and not means_something(message, len(core.local)):
            probe("tx.parts_of_nothing")
            return
        for part in message.parts:
            local = leads(core, part.partition)
            if local is None:
                continue
            self._consider(sender, message, part, local)

    def _consider(self, sender: NodeId, message: PrepareParts, part: Part, local: LocalPartition) -> None:
        """Vote, unless it voted or is about to; and refuse what has ended."""
        core, tx, number = self.core, message.tx, part.partition
        state = core.replica.partition(number)
        held = state.prepared.get(tx)
        if (tx, number) in self.voting or self.touching.is_under_way(tx, number):
            return
        refusal = ""
        in_pieces = held is not None and (is_piece(held) or is_named(number, message.participants, 1))
        if held is not None and in_pieces and keys_written(held) != part.written:
            probe("tx.cut_otherwise")
            refusal = "it is prepared here in other pieces, or in one, as another coordinator cut it"
        elif held is not None:
            core.tell(sender, Vote(core.fence, tx, number, epoch=held.epoch, yes=True, reason="", era=core.era))
            return
        elif state.results.get(tx) is not None:
            refusal = "it ended here already"
        elif (tx, number) in self.writes.under_way:
            refusal = "a single write of the same id is under way"
        elif not self.writes.admission.sessions.hear(tx, message.acked):
            # It ended here and was forgotten: this message is a late repetition, and nobody would end what it begins. Or of
            # too many sessions this one cannot be remembered, and so what it acknowledges.
            probe("tx.prepared_too_late")
            refusal = "its client has the answer already, or there are too many clients"
        if refusal:
            self._refuse(sender, tx, local, refusal)
            return
        if state.results.many:
            self.writes.admission.sessions.crowd(number)
        core.work += 3 + len(message.participants) // NAMED_PER_WORK
        want = Want(tx, message.owner, part, optimistic=message.optimistic, votes=True)
        still = partial(self._may_vote, message, part)
        self.touching.pin_all(want, still=still, then=partial(self._held, sender, message, part))

    def _may_vote(self, message: PrepareParts, part: Part) -> bool:
        return leads(self.core, part.partition) is not None and may_act(self.core, message.version)

    def _refuse(self, to: NodeId, tx: TxId, local: LocalPartition, reason: str, *, unmet: bool = False) -> None:
        vote = Vote(self.core.fence, tx, partition=local.number, epoch=local.epoch, yes=False, reason=reason, unmet=unmet)
        self.core.tell(to, vote)

    def _held(self, sender: NodeId, message: PrepareParts, part: Part, refusal: Refusal | None) -> None:
        """All that a transaction touches in a partition is held and as it was, or will not be: that is the vote."""
        if refusal is INTERRUPTED:
            return  # the coordinator asks again, under the version that will be
        core, tx, number = self.core, message.tx, part.partition
        local = core.local[number]
        if refusal is not None:
            self._refuse(sender, tx, local, refusal.reason, unmet=refusal.unmet)
            return
        writes = reserved(core, part, local, tx)
        prepare = r.Prepare(
            tx,
            number,
            epoch=local.epoch,
            writes=writes,
            locks=part.seen,
            participants=message.participants,
            decision=message.decision,
            held=message.held,
        )
        core.log(prepare)
        core.work += work_of(prepare)
        self.owner_of[whole_of(tx)] = message.owner
        self.voting[(tx, number)] = None
        self._doubt(tx, number, core.now, message.owner, core.turns)
        records: list[r.Record] = [prepare]
        if message.origin is not None and number == message.decision and not piece_number(tx):
            origin = structs.replace(message.origin, partition=number, epoch=local.epoch)
            records.append(self.writes.origins.log(origin, local))
        voted, stopped = partial(self._voted, prepare, sender), partial(self._not_voted, prepare)
        self.replication.ship(Operation(local, records, counted=voted, abandoned=stopped), local)

    def _voted(self, prepare: r.Prepare, to: NodeId) -> None:
        """A prepare record is durable on every in-sync copy: the vote may be given."""
        core, number = self.core, prepare.partition
        over = self.voting.pop((prepare.tx, number), None)
        if prepare.tx not in core.replica.partition(number).prepared:
            return
        if over is not None and (local := leads(core, number)) is not None:
            self.finish(local, prepare.tx, False, *over)
            return
        tx, epoch = prepare.tx, prepare.epoch
        core.tell(to, Vote(core.fence, tx, partition=number, epoch=epoch, yes=True, reason="", era=core.era))

    def _not_voted(self, prepare: r.Prepare) -> None:
        """The next primary has the prepare, or closes its counters."""
        self.voting.pop((prepare.tx, prepare.partition), None)

    def on(self, sender: NodeId, message: ToParticipant) -> None:
        """Everything that coordinators say."""
        match message:
            case PrepareParts():
                self.on_prepare(sender, message)
            case Finish():
                self.on_finish(sender, message)
            case Inquire():
                self.on_inquire(sender, message)
            case _:
                assert_never(message)

    # Outcome.

    def on_finish(self, sender: NodeId, message: Finish) -> None:
        """The transaction is decided."""
        if may_act(self.core, message.version):
            self.writes.cuts.hear(message.era)
        self.core.in_pieces(self._finish(sender, message))

    def _finish(self, sender: NodeId, message: Finish) -> Iterator[int]:
        core = self.core
        done: list[int] = []
        for number in message.partitions:
            if not may_act(core, message.version):
                return  # the coordinator says it again
            local = leads(core, number)
            if local is None:
                continue
            prepare = core.replica.partition(number).prepared.get(message.tx)
            if prepare is not None and prepare.decision == number and sender != core.node:
                probe("tx.told_of_what_is_decided_here")
                continue
            if self.finish(local, message.tx, message.commit, sender, message.era):
                done.append(number)
            yield 3 + (sum(len(write.keys) for write in prepare.writes) if prepare is not None else 0)
        if done:
            core.tell(sender, Finished(core.fence, message.tx, done))

    def finish(self, local: LocalPartition, tx: TxId, commit: bool, tell: NodeId | None, era: Era) -> bool:
        """End a prepared transaction in one partition; True if nothing is left to do there."""
        core, number = self.core, local.number
        prepare = core.replica.partition(number).prepared.get(tx)
        if prepare is None:
            if not commit:
                self.touching.end(tx, number, self.holder(tx, number))
            return True
        listeners = self.ending.get((tx, number))
        if listeners is not None:
            if tell is not None and tell not in listeners:
                listeners.append(tell)
            return False
        if (tx, number) in self.voting and (commit or not prepare.writes):
            # A vote that wrote nothing is known by its outcome alone. Were that forgotten before all have the prepare,
            # a copy would take it late, and nobody would ever end it there.
            assert not (commit and tell == core.node), "a transaction was committed before all of its votes were given"
            probe("tx.ended_when_it_has_voted")
            if not commit:
                self.voting[(tx, number)] = tell, era
            return False
        ending = self.end(local, prepare, era, commit=commit)
        if tell is not None:
            self.ending[(tx, number)].append(tell)
        self.replication.ship_by_size(ending, local)
        return False

    def end(self, local: LocalPartition, prepare: r.Prepare, era: Era, *, commit: bool) -> Operation:
        """The end of a prepared transaction in one partition: logged here, and yet to be shipped."""
        self.ending[(prepare.tx, local.number)] = []
        ranges = [(w.namespace, w.start, w.delta) for w in prepare.writes]
        outcome = r.Outcome(prepare.tx, local.number, local.epoch, commit, ranges)
        self.core.log_unapplied(outcome)
        if commit and self.locks.awaited:
            self._hand_on(prepare)
        ended, stopped = partial(self._ended, outcome, era, self.core.turns), partial(self._not_ended, outcome)
        return Operation(local, [outcome], counted=ended, abandoned=stopped)

    def _hand_on(self, prepare: r.Prepare) -> None:
        """A commit is certain, and this node has its outcome in its log: who stands in line for what it writes has it now.

        Not what expires, since nothing that is to be deleted then is known before the outcome counts. All copies have
        answered what told them of the prepare, if this node did.
        """
        writes = prepare.writes
        if sum([len(w.keys) for w in writes]) > HANDED_ON_MAX or any(w.namespace == EXPIRIES for w in writes):
            return
        if is_piece(prepare):
            return  # who has a key of it would be in doubt for an outcome of which there are several
        tx, number = prepare.tx, prepare.partition
        doubt = self._doubts.get((tx, number))
        acked = Acked(number, doubt.turn) if doubt is not None and doubt.turn is not None else None
        self.locks.certain(self.holder(tx, number), tx, number, partial(written_by, prepare), acked)

    def _not_ended(self, outcome: r.Outcome) -> None:
        """The next primary learns the outcome from the decision record."""
        self.ending.pop((outcome.tx, outcome.partition), None)

    def _ended(self, outcome: r.Outcome, era: Era, turn: int) -> None:
        """An outcome is durable on every in-sync copy, which were told of it in a turn: apply, unlock, report."""
        core, tx, number, cuts = self.core, outcome.tx, outcome.partition, self.writes.cuts
        prepare = core.replica.partition(number).prepared.get(tx)
        cuts.outcome(prepare, era, commit=outcome.commit)
        core.replica.apply(outcome)
        for write in prepare.writes if prepare is not None and outcome.commit else ():
            self.writes.looks.note(write)
            self.writes.expiry.note(write)
        cuts.ended(tx, number)
        owner = self.holder(tx, number)
        self._doubts.pop((tx, number), None)
        keys, acked = self._held_by(owner, tx, number, prepare), Acked(number, turn)
        if self.locks.passing and (passing := self.locks.passed(owner, tx, number)) is not None:
            self.release(owner, tx, keys + passing.handed, acked)
            for go_on in passing.behind:
                core.resume(partial(go_on, True))  # who waits to read a key goes first: soon it may be in doubt again
        else:
            self.release(owner, tx, keys, acked)
        for node in self.ending.pop((tx, number), []):
            core.tell(node, Finished(core.fence, tx, [number]))

    def _held_by(self, owner: TxId, tx: TxId, number: int, prepare: r.Prepare | None) -> list[Key]:
        """What an owner gives back with an outcome: all that it has in the partition; but with that of a piece only what
        that has touched, for as long as others are to come."""
        prepared = self.core.replica.partition(number).prepared
        if prepare is None or not is_piece(prepare) or not any(whole_of(other) == whole_of(tx) for other in prepared):
            return self.locks.keys_in(owner, number)
        probe("tx.a_piece_ended")
        return keys_written(prepare) + prepare.locks

    def release(self, owner: TxId, tx: TxId, keys: list[Key], acked: Acked) -> None:
        """A transaction is over for these keys: whoever waits for them has them, very many bit by bit."""
        if len(keys) > RELEASED_MAX:
            self.core.in_pieces(self._release(owner, tx, keys, acked))
            return
        self.core.work += len(keys)
        for _ in self._release(owner, tx, keys, acked):
            pass

    def _release(self, owner: TxId, tx: TxId, keys: list[Key], acked: Acked) -> Iterator[int]:
        for at in range(0, len(keys), RELEASED_MAX):
            some = keys[at : at + RELEASED_MAX]
            self.locks.release(owner, some, acked=acked)
            self.locking.reads.outcome_known(some)
            yield len(some)
        self._forget_owner(tx)

    def _forget_owner(self, tx: TxId) -> None:
        """A part of a transaction has no locks here any more: if none has, it does not matter who held them."""
        owner = self.owner_of.get(whole_of(tx))
        if owner is not None and not self.locks.is_owner(owner):
            del self.owner_of[whole_of(tx)]

    # Doubt.

    def on_inquire(self, sender: NodeId, message: Inquire) -> None:
        """Recovery asks whether a transaction is prepared here. A no holds for good: older versions are rejected."""
        core = self.core
        if not may_act(core, message.version):
            return
        local = leads(core, message.partition)
        if local is None or (message.tx, message.partition) in self.voting:
            return
        state = core.replica.partition(message.partition)
        committed = state.results.get(message.tx) == COMMITTED
        waits = message.tx in state.prepared
        prepared = committed or waits
        inquired = Inquired(
            core.fence, message.tx, message.partition, prepared=prepared, committed=committed, in_doubt=waits
        )
        core.tell(sender, inquired)

    def activated(self, local: LocalPartition) -> None:
        """This node is primary of a partition: its prepared transactions, whose keys are held, are in doubt from now on."""
        if self.core.replica.partition(local.number).prepared:
            self.alarm.by(self.core.now)

    def holding(self, number: int) -> Iterator[int]:
        """This node is about to serve a partition: its prepared transactions keep their locks. In pieces, and once more
        where locks went with another map meanwhile; yields how much work each was.

        Until the outcome is known nobody else writes what a transaction has read in the partition, and nobody else reads
        what it writes: for whatever it read was so when it voted, wherever its other votes are given.

        Where an operator went on by force with a copy that lagged, it may have two of one key, and not have heard that the
        first is over. So the newest comes first, and has what both want; the first may still end either way, at counters
        that lie below.
        """
        locks, drops = self.locks, -1
        while drops != locks.drops:
            while locks.goes(number):  # and may go once more, with another map
                yield from locks.letting_go(number)
            drops = locks.drops
            for tx, prepare in reversed(list(self.core.replica.partition(number).prepared.items())):
                owner, keys, reads = self.holder(tx, number), keys_written(prepare), prepare.locks
                doubt = self._doubts.get((tx, number)) or Doubt(self.core.now, 0, None, owner)
                self._doubts[tx, number] = doubt._replace(asked=0)  # for its outcome, as soon as the partition serves
                for at in range(0, max(len(keys), len(reads), 1), HELD_AT_ONCE):
                    some = keys[at : at + HELD_AT_ONCE]
                    locks.pin(owner, some, reads[at : at + HELD_AT_ONCE], found=True)
                    yield 1 + len(some) // KEYS_OF_ONE + len(reads[at : at + HELD_AT_ONCE])

    def switch(self, _: NewMap) -> None:
        """A new topology: forget what belongs to partitions of other primaries now."""
        gone = [part for part in self._doubts if not self.core.local[part[1]].mine]
        for part in gone:
            del self._doubts[part]
        self.core.in_pieces(self._forget_owners([tx for tx, _ in gone]))

    def _forget_owners(self, gone: list[TxId]) -> Iterator[int]:
        while self.locks.lets_go:
            yield from self.locks.letting_go()
        for tx in gone:
            self._forget_owner(tx)

    def in_doubt(self, ms: int = 0) -> list[TxId]:
        """Transactions that are prepared here, for so long at least, and whose outcome is not known."""
        before = self.core.now - ms * MS
        return list(dict.fromkeys(tx for (tx, _), doubt in self._doubts.items() if doubt.since <= before))

    def parts_in_doubt(self) -> list[tuple[TxId, int]]:
        """The same, each with the partition."""
        return list(self._doubts)

    def prepared(self, tx: TxId, number: int) -> tuple[r.Prepare, int] | None:
        """What is prepared here of a transaction, or about to be, and since when (ns) as far as this node knows."""
        prepare = self.core.replica.partition(number).prepared.get(tx)
        doubt = self._doubts.get((tx, number))
        return (prepare, doubt.since) if prepare is not None and doubt is not None else None

    def voted(self, owner: TxId) -> list[tuple[TxId, int]]:
        """What has voted here, or is about to, and holds its locks as `owner`; each part with its partition."""
        return [part for part, doubt in self._doubts.items() if doubt.holder == owner]

    def _doubt(self, tx: TxId, number: int, asked: int, holder: TxId, turn: int | None = None) -> None:
        """From `asked` on, the outcome of a prepared transaction is awaited, of which the copies were told in a turn."""
        before = self._doubts.get((tx, number)) or Doubt(self.core.now, 0, turn, holder)
        self._doubts[(tx, number)] = Doubt(before.since, asked, before.turn, holder)
        self.alarm.by(asked + self.core.settings.in_doubt_ms * MS)

    def tick(self) -> None:
        """Ask for outcomes that are overdue. While that is done in pieces nobody rings in vain: it is begun anew then."""
        if not self._asking:
            self._asking = True
            self.alarm.off()
            self.core.in_pieces(self._ask_overdue())

    def _ask_overdue(self) -> Iterator[int]:
        core, overdue = self.core, self.core.settings.in_doubt_ms * MS
        for at, ((tx, number), doubt) in enumerate(list(self._doubts.items()), 1):
            if not at % DOUBTS_OF_WORK:
                yield 1
            serves = self._doubts.get((tx, number)) is doubt and core.local[number].active
            if serves and self.alarm.is_due(doubt.asked + overdue, core.now):
                self._ask_for_outcome(tx, number, doubt.holder)
                yield 1
        self._asking = False

    def _ask_for_outcome(self, tx: TxId, number: int, holder: TxId) -> None:
        core = self.core
        prepare = core.replica.partition(number).prepared.get(tx)
        if prepare is None:  # its end was in the log already when this node began to lead in another epoch
            del self._doubts[tx, number]
            self.writes.cuts.lose(number)
            return
        primary = core.local[prepare.decision].placement.primary
        if primary is not None:
            probe("tx.asked_for_outcome")
            core.tell(primary, Resolve(core.fence, tx, prepare.decision, number, prepare.participants))
        self._doubt(tx, number, core.now, holder)
