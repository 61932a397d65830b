"""How a primary's records reach the other copies, and when they count.

In one turn a primary may decide thousands of updates. All that go to the same copies leave as one batch, or as several that
are each a part of a turn; each copy logs batches whole, leaves the next ones to its next turn, and answers when they are
durable there. A batch **counts** when every in-sync copy has answered: only then are its operations applied, their LWM
moved and their clients told. MOVING copies get every batch too and are waited for when the primary is to vouch for them.

Nothing here relies on order or on exactly-once delivery: a batch is sent again until it is answered, and a copy takes it
once: a vote that wrote nothing is known by its outcome alone, and that is forgotten some day. When the topology changes,
what does not count yet is sent again to the copies of the new map.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import assert_never, get_args

from engine.cluster.claims import Claims
from engine.data.batches import (
    Again,
    Batch,
    behind_in,
    forget_sent,
    lags_ms_in,
    late_in,
    pieces_again,
    regroup,
    stalled_in,
    work_to_give_up,
)
from engine.data.concerns import LARGE_WORK, work_of
from engine.data.early import THE_MAP, Early
from engine.data.sizes import BATCH_WORK, answers_of, batches_of_one_turn, size_of
from engine.data.taking import Taking
from engine.messages import AskMap, Replicate, Replicated
from engine.messages.data import ToReplication
from engine.state.ahead import Ahead, AllAhead, large_in, updates_of, work_out
from engine.turn.core import Core
from rebalance.partition import NOBODY, LocalPartition, Receivers
from rebalance.ports import MS, WORK_MAX, Shipped, may_act
from rebalance.rule import NewMap, Rule
from wal import records as r
from wal.counters import CounterError
from wal.ids import NO_VERSION, Era, NodeId
from wal.probe import probe

COUNTED_AT_ONCE = BATCH_WORK // 2
"""Operations that come to count in one piece, where a map has very many count: each is as much work as two, or more."""


class Replication(Rule):
    """The batches of one node: those it sent as a primary, and how it takes those of others."""

    takes = get_args(ToReplication)

    def __init__(
        self,
        core: Core,
        claims: Claims,
        *,
        demanded: Callable[[int], bool],
        passes_over: Callable[[int], bool],
        compare: Callable[[r.Compare], None],
        hear: Callable[[Era], None],
        overwrites: Callable[[Ahead], Iterator[int]],
    ) -> None:
        super().__init__()
        self.core = core
        self.claims = claims
        self._demanded = demanded  # whether the first supply of a partition is on its way to this node
        self._taking = Taking(core, demanded, passes_over)
        self._compare = compare  # a primary asks what a copy of this node contains, here and now
        self._large_in = partial(large_in, partition=core.replica.partition)
        self._hear = hear  # something of an era was heard of
        self._overwrites = overwrites  # note in pieces what a large write overwrites, before it counts
        self._turn: dict[Receivers, list[Shipped]] = {}
        self._large: list[tuple[Receivers, Shipped]] = []  # logged, and about to leave
        self._coming: dict[tuple[NodeId, int], None] = {}  # large batches of others that are being worked out
        self._early, self._of_a_later_map = Early(), Early()
        self._batches: dict[int, Batch] = {}
        self._sequence = core.run << 40  # answers to an earlier life of this node mean nothing
        self._backlog: dict[NodeId, int] = {}
        self._lagging: dict[NodeId, dict[int, dict[int, Batch]]] = {}  # MOVING copy -> partition -> not answered by it
        self._behind: tuple[int, list[NodeId]] = 0, []  # in which turn it was looked for; MOVING copies
        self._answered: dict[NodeId, int] = {}  # the newest batch that each copy has answered
        self._acks: dict[NodeId, list[tuple[int, int]]] = {}  # taken, each with its work
        self._taken_of: dict[NodeId, dict[int, None]] = {}  # primary -> batches of this version that are not over there
        self._over: dict[NodeId, int] = {}  # primary -> all batches below are
        self._fence = NO_VERSION  # of these

    # Primary.

    def ship(self, operation: Shipped, local: LocalPartition) -> None:
        """Send an operation, already logged here, with this turn's batch to the copies of its partition."""
        leaving = self._turn.get(local.receivers)
        if leaving is None:
            leaving = self._turn[local.receivers] = []
        leaving.append(operation)

    def ship_large(self, operation: Shipped, local: LocalPartition) -> None:
        """The same by itself, in a turn after that which logs it; it counts when it was worked out here, too."""
        self._large.append((local.receivers, operation))
        self.core.next_turn(self._dispatch_large)

    def _dispatch_large(self) -> None:
        large, self._large = self._large, []
        for receivers, operation in large:
            self._dispatch([operation], receivers, {}, large=True)

    def ship_by_size(self, operation: Shipped, local: LocalPartition) -> None:
        """The one or the other, by how many keys it writes."""
        ship = self.ship_large if self._large_in(operation.records) else self.ship
        ship(operation, local)

    def flush(self) -> None:
        """End of the turn: a batch for each set of receivers leaves, what waits for nobody counts, and answers leave."""
        while self._turn:
            turn, self._turn = self._turn, {}
            for receivers, operations in turn.items():
                for batch in batches_of_one_turn(operations) if any(receivers) else (operations,):
                    self._dispatch(batch, receivers, {})
        self.take_early()
        for sender, taken in self._acks.items():
            for answered in answers_of(taken):
                self.core.send(sender, Replicated(self.core.fence, answered, self.core.claim_lsn))
        self._acks = {}

    def take_early(self) -> None:
        """Take what was put off, where it waits for nothing any more."""
        self._early.take(self.core, self._demanded, self.on_replicate)

    def _dispatch(
        self,
        operations: list[Shipped],
        to: Receivers,
        acked: dict[NodeId, None],
        counts: bool = False,
        large: bool = False,
        later: bool = False,
    ) -> None:
        core = self.core
        self._sequence += 1
        batch = Batch(self._sequence, operations, to, acked)
        targets = (*batch.waiting, *batch.lagging)
        batch.counts, batch.being_worked_out = counts, large
        if targets or large:
            self._batches[batch.sequence] = batch
        if targets:
            batch.since, batch.spare_since = core.attentive, core.spare
            batch.patience, batch.due = core.settings.retransmit_ms * MS, core.now
            if not later:
                self._say(targets, batch)
                batch.due += batch.patience
            self.alarm.by(batch.due)
            if batch.lagging:
                self._note_lagging(batch)
                self._count_backlog(batch)
        if large:
            core.in_pieces(self._work_out(batch))
        elif not (counts or batch.waiting):
            self._count(batch)
        if batch.counts and not (batch.waiting or batch.lagging):
            self._batches.pop(batch.sequence, None)  # there is nobody to whom it would be said again

    def _work_out(self, batch: Batch) -> Iterator[int]:
        """Work out what a batch writes, while its copies do the same; then it counts as soon as they have answered."""
        batch.ahead, replica = {}, self.core.replica
        pieces = work_out(self._large_in(batch.records), batch.ahead, replica.fragments, replica.watch)
        for work in chain(pieces, chain.from_iterable(map(self._overwrites, updates_of(batch.records, batch.ahead)))):
            yield work
            if self._batches.get(batch.sequence) is not batch:
                return  # another map came, and what it brings goes in another batch
        batch.being_worked_out = False
        if not batch.waiting and not batch.counts:
            self._count(batch)
            if not batch.lagging:
                del self._batches[batch.sequence]

    def _say(self, targets: tuple[NodeId, ...], batch: Batch) -> None:
        core, batch.said = self.core, self._sequence
        batch.sent_at = core.now
        core.send_early(targets, Replicate(core.fence, batch.sequence, batch.records, next(iter(self._batches)), core.era))

    def _note_lagging(self, batch: Batch) -> None:
        """MOVING copies get a batch: it can be found by the copy and by the partition until they answer."""
        batch.partitions = tuple(dict.fromkeys(o.partition for o in batch.operations))
        for node in batch.lagging:
            behind = self._lagging.setdefault(node, {})
            for number in batch.partitions:
                behind.setdefault(number, {})[batch.sequence] = batch

    def _not_lagging(self, batch: Batch, node: NodeId) -> None:
        """A MOVING copy answered, is waited for from now on, or was given up."""
        del batch.lagging[node]
        behind = self._lagging[node]
        for number in batch.partitions:
            batches = behind[number]
            del batches[batch.sequence]
            if not batches:
                del behind[number]
        self._backlog[node] = max(0, self._backlog.get(node, 0) - batch.bytes)

    def _count_backlog(self, batch: Batch) -> None:
        size, most = size_of(batch.records), self.core.settings.backlog_bytes_max
        batch.bytes = size if size <= most else 0  # one that could be kept with no other does not count
        for node in list(batch.lagging):
            self._backlog[node] = self._backlog.get(node, 0) + batch.bytes
            if max(self._backlog[node], size) > most:
                probe("replication.backlog_dropped")
                self._drop_backlog(node, kept=batch if size > most else None)

    def _drop_backlog(self, node: NodeId, kept: Batch | None) -> None:
        """A MOVING copy is too far behind to be kept supplied from memory: the log gives it the rest."""
        batches = chain.from_iterable(behind.values() for behind in self._lagging.get(node, {}).values())
        for batch in list({b.sequence: b for b in batches if b is not kept}.values()):
            self._not_lagging(batch, node)
            if batch.counts and not batch.lagging:
                self._batches.pop(batch.sequence, None)
        self._backlog[node] = 0

    def on_replicated(self, sender: NodeId, message: Replicated) -> None:
        """A copy has batches on its disk; an answer given in an older version is as true as it was."""
        if message.version == self.core.fence:
            self.claims.note_listed(sender, message.durable_lsn)
        self._answered[sender] = max((self._answered.get(sender, 0), *message.sequences))
        for sequence in message.sequences:
            if (batch := self._batches.get(sequence)) is None:
                continue
            batch.acked[sender] = None
            if sender in batch.lagging:
                self._not_lagging(batch, sender)
            if sender in batch.waiting:
                del batch.waiting[sender]
                if not batch.waiting and not batch.counts and not batch.being_worked_out:
                    self._count(batch)
            if batch.counts and not batch.waiting and not batch.lagging:
                self._batches.pop(sequence, None)

    def _count(self, batch: Batch) -> None:
        batch.counts = True
        self.core.work += len(batch.operations)
        self.core.replica.ahead = batch.ahead or {}
        for operation in batch.operations:
            operation.counted()
        self.core.replica.ahead = {}

    def outstanding(self, node: NodeId, partition: int) -> bool:
        """Whether a MOVING copy has yet to answer a batch that touches the partition."""
        return partition in self._lagging.get(node, {})

    def is_behind(self, node: NodeId) -> bool:
        """Whether a MOVING copy is so far behind that all writes would be late if it were waited for from now on."""
        if self._behind[0] != self.core.turns:  # one message may be about all copies of a node
            self._behind = self.core.turns, behind_in(self._batches.values(), self.core, self._answered)
        return node in self._behind[1]

    def wait_for(self, node: NodeId, partition: int) -> None:
        """From now on wait for this MOVING copy too, also for what is under way."""
        for batch in list(self._lagging.get(node, {}).get(partition, {}).values()):
            if not batch.counts:
                self._not_lagging(batch, node)
                batch.waiting[node] = self.core.spare

    def lag(self, node: NodeId, partitions: Container[int]) -> None:
        """A MOVING copy begins to take these partitions' writes: what is under way goes to it, whatever it said before.

        It goes under a number of its own: what the copy answered before may be on its way, and says nothing of it as it is.
        """
        for batch in [b for b in self._batches.values() if not b.counts]:
            operations = [o for o in batch.operations if o.partition in partitions]
            batch.acked.pop(node, None)
            if operations:
                self._dispatch(operations, ((), (node,)), {}, counts=True)

    def stalled(self, times: int) -> list[NodeId]:
        """The copies that are waited for and have not answered for so many times as long as it takes to be suspected."""
        return stalled_in(self._batches.values(), self.core.spare - times * self.core.settings.suspicion_ms * MS)

    def lags_ms(self) -> dict[NodeId, int]:
        """For how long each copy has not answered the oldest batch that it has to."""
        return lags_ms_in(self._batches.values(), self.core.attentive)

    def open_records(self) -> list[r.Record]:
        """What is logged here and does not count yet, oldest first: a checkpoint must carry it along."""
        batches = [batch.records for batch in self._batches.values() if not batch.counts]
        turn = [o.records for operations in self._turn.values() for o in operations]
        return list(chain(*batches, *turn, *(operation.records for _, operation in self._large)))

    def switch(self, _: NewMap) -> None:
        """A new topology: what does not count yet goes to its copies, or is abandoned."""
        if self._fence != self.core.fence:  # else what is on its way will be taken yet, once
            self._fence, self._taken_of, self._over = self.core.fence, {}, {}
            self._early, self._of_a_later_map = self._of_a_later_map, Early()
        self._coming = {}
        self.core.replica.watch.forget()
        self._send_again(lambda _: True)

    def step(self, new: NewMap) -> None:
        """A light step: the same for what was issued in partitions that others lead by now, and for what went with it."""
        lost = {local.number: None for local in new.changed if not local.mine}
        self._send_again(lambda operation: operation.partition in lost)

    def _send_again(self, concerned: Callable[[Shipped], bool]) -> None:
        """What went out, or is about to, goes to the copies that it has by now, or is abandoned."""
        core = self.core
        again: list[Again] = []
        for batch in [b for b in self._batches.values() if any(map(concerned, b.operations))]:
            core.replica.ahead |= batch.ahead or {}
            for node in list(batch.lagging):
                self._not_lagging(batch, node)
            del self._batches[batch.sequence]
            again.append(Again(batch.operations, batch.acked, batch.counts, batch.ahead is None))
        for receivers in [g for g, operations in self._turn.items() if any(map(concerned, operations))]:
            again.append(Again(self._turn.pop(receivers)))
        again.extend(Again([operation]) for _, operation in self._large if concerned(operation))
        self._large = [each for each in self._large if not concerned(each[1])]
        regrouped = regroup(again, core.local)
        self._give_up(regrouped.lost)
        if regrouped.everywhere:
            self._count_in_pieces(regrouped.everywhere)
        for piece in pieces_again(regrouped, self._large_in, core.work):
            self._dispatch(*piece)

    def _give_up(self, operations: Iterable[Shipped]) -> None:
        """Another leads where they were decided. They are in this log, and so part of this copy, as replaying it would say;
        the new primary fetches them from here and issues them again, or has them undone."""
        core = self.core
        for operation in operations:
            for record in operation.records:
                core.replica.apply(record)
            operation.abandoned()
        core.replica.ahead = {}

    def under_way_in(self, partitions: Container[int]) -> Iterator[Shipped]:
        """What went out, and does not count yet, of these partitions."""
        return chain.from_iterable(batch.those_in(partitions) for batch in self._batches.values())

    def giving_up(self, ending: Container[int]) -> Iterator[int]:
        """Give up what went out of partitions that the next map takes, batch by batch; yields how much work each was."""
        for batch in list(self._batches.values()):
            lost = batch.take_out(ending)  # none, if it counts by now
            if lost and not batch.operations:
                for node in list(batch.lagging):
                    self._not_lagging(batch, node)
                del self._batches[batch.sequence]
            self.core.replica.ahead = batch.ahead or {}
            self._give_up(lost)
            yield work_to_give_up(lost, batch.operations)

    def _count_in_pieces(self, operations: list[Shipped]) -> None:
        """All of these count with the map, as nobody is left who lacks them. What is not yet counted when another map comes
        is regrouped by that one."""
        batches: list[Batch] = []
        for at in range(0, len(operations), COUNTED_AT_ONCE):
            self._sequence += 1
            batches.append(Batch(self._sequence, operations[at : at + COUNTED_AT_ONCE], NOBODY[2], {}))
        self._batches |= {batch.sequence: batch for batch in batches}
        self.core.in_pieces(self._count_all(batches))

    def _count_all(self, batches: list[Batch]) -> Iterator[int]:
        for batch in batches:
            yield 0  # to count them is work that is noted there
            if self._batches.pop(batch.sequence, None) is not None:
                self._count(batch)

    # Copies.

    def _take_later(self, sender: NodeId, message: Replicate, large: list[r.Write]) -> Iterator[int]:
        """Work out what a batch writes, and take it then as if it came then: until then nothing of it is here."""
        ahead: AllAhead = {}
        coming, here = (sender, message.sequence), self._coming
        here[coming] = None
        pieces = work_out(large, ahead, self.core.replica.fragments, self.core.replica.watch)
        for work in chain(pieces, [WORK_MAX]):  # to take it is another turn
            yield work
            if self._coming is not here:
                return  # another map came
        del here[coming]
        self.core.replica.ahead = ahead
        self.on_replicate(sender, message)
        self.core.replica.ahead = {}

    def on_replicate(self, sender: NodeId, message: Replicate) -> None:
        """Log and apply a batch of the primary, a large one when it was worked out; answer when it is durable, or never."""
        core, work = self.core, sum(map(work_of, message.records))
        core.work += work
        if not may_act(core, message.version):
            if message.version > core.version:
                core.send(sender, AskMap(core.version))
                self._of_a_later_map.keep(sender, message, THE_MAP)
            elif message.version != core.fence:
                probe("replicate.refused_old_version")
            return
        self._hear(message.era)
        known, over = self._taken_of.setdefault(sender, {}), max(self._over.get(sender, 0), message.over)
        self._over[sender] = over
        while known and (first := next(iter(known))) < over:
            del known[first]
        if message.sequence < over:
            probe("replicate.batch_was_over")
            return
        if message.sequence in known:
            self._acks.setdefault(sender, []).append((message.sequence, work))
            return
        if self._coming and (sender, message.sequence) in self._coming:
            probe("replicate.said_again_while_it_is_worked_out")
            return
        taken = self._taking.of(sender, message.records)
        if not isinstance(taken, list):
            self._early.keep(sender, message, taken)
            return
        if work > LARGE_WORK and not core.replica.ahead and (large := self._large_in(taken)):
            core.in_pieces(self._take_later(sender, message, large))
            return
        try:
            for some in [taken] if r.Compare not in map(type, taken) else [[record] for record in taken]:
                core.log_what_is_new(some)
                if some and isinstance(some[-1], r.Compare):
                    self._compare(some[-1])
        except CounterError as error:
            core.note(f"a batch of {sender} does not fit: {error}")
            raise
        if len(taken) == len(message.records):
            known[message.sequence] = None
        self._acks.setdefault(sender, []).append((message.sequence, work))

    def tick(self) -> None:
        """Send again what was not answered, and send what a map left to be; of that some in any turn."""
        self.alarm.off()
        asked = [b for b in self._batches.values() if b.waiting or b.lagging]  # the others are being worked out
        for batch in late_in(asked, self.core, self._answered, under_way=len(self._batches)):
            self._say((*batch.waiting, *batch.lagging), batch)
        for batch in asked:
            self.alarm.by(batch.due)

    def on_peer_seen(self, node: NodeId) -> None:
        """A connection was made: what was on its way over another one is not any more."""
        forget_sent(self._batches.values(), node)

    def on(self, sender: NodeId, message: ToReplication) -> None:
        """Everything that is said about replication."""
        match message:
            case Replicate():
                self.on_replicate(sender, message)
            case Replicated():
                self.on_replicated(sender, message)
            case _:
                assert_never(message)
