"""How a node becomes the primary of a partition, so that equal counters mean equal contents.

A node that the new map names as primary, in a new epoch, may not serve yet. It owes this first, so that
invariant 4 of ARCHITECTURE.md holds:

1. It asks every other in-sync copy what it has beyond the common point, and takes what it lacks itself. If a survivor
   has taken part in a newer epoch (whose primary died before it had told everyone), that history comes first.
2. It begins its epoch at LWM + 1, not after its highest counter as Kafka does, whose log has no gaps: everything above
   LWM is undone and issued again under the same counters, with the epoch that first issued it kept for the digest.
3. Gaps that remain are closed with explicit no-ops, except those that a prepared transaction holds: nobody was promised
   what every in-sync copy does not have.
4. All this is one batch to every in-sync copy. When it counts, the copies are equal, and the partition serves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import assert_never, get_args

from rebalance.beginning import beginning, epochs_after, starts
from rebalance.issuing import Again, issue_prepared, write_in
from rebalance.messages import AskTail, CopyTail, Tail, ToPromotion
from rebalance.partition import LocalPartition, Role, bytes_prepared
from rebalance.ports import BYTES_OF_WORK, MS, WORK_MAX, Node, Operation, Shipping, may_act
from rebalance.rule import NEVER, NewMap, Rule
from rebalance.supplying import work_of_prepared
from rebalance.table import Placement
from rebalance.tails import (
    PART_WORK,
    Told,
    answer_to,
    can_be,
    emptied,
    lagged,
    newest_first,
    size_of_tail,
    work_to_tell,
)
from rebalance.telling import tail_of
from rebalance.travelling import Answers
from rebalance.undone import what_stands
from wal import records as r
from wal.counters import CounterError
from wal.ids import Fragment, NodeId, Version
from wal.probe import probe

PIECE_WORK = 500
FINISH_WORK = 4
"""Of beginning an epoch, beside what each fragment takes."""
EPOCH_WORK = 3
"""That: it is to be stored anew, and a checkpoint that is being written has it as it was."""


class Promotion(Rule):
    """The partitions that this node is named primary of and may not serve yet."""

    takes = get_args(ToPromotion)

    def __init__(self, core: Node, replication: Shipping, *, activated: Callable[[LocalPartition], None]) -> None:
        super().__init__()
        self.core = core
        self._replication = replication
        self._activated = activated
        self.fetched = 0  # updates that other copies had beyond this one's when it became primary
        self.owed: dict[int, None] = {}  # partitions that this node is named primary of, and does not serve yet
        self._waiting: dict[int, dict[NodeId, CopyTail | None]] = {}  # partition -> survivor -> its answer
        self._working_out: dict[int, dict[NodeId, CopyTail | None]] = {}  # of these, whose answers bring large writes
        self._beginning: dict[int, Again] = {}  # of those that have taken all, what they issue again
        self._alone: deque[LocalPartition] = deque()  # that have nobody to ask
        self._unasked: deque[int] = deque()  # of those that wait, or are foreseen
        self._foreseen: dict[int, tuple[NodeId, ...]] = {}  # partitions that a step is about to bring, and who has them
        self._told = Told()
        self._answers = Answers(core)  # of this node, to whoever is to be primary elsewhere
        self._early: dict[NodeId, dict[int, CopyTail]] = {}  # asked by who goes by a step that is not here yet
        self._asks_on: dict[NodeId, bool] = {}  # of these, who is told in parts
        self._going_on = False
        self._ask_at = 0

    def switch(self, new: NewMap) -> None:
        """A new map names this node primary of partitions that it does not serve yet."""
        self.begin(new.promoted)

    def foresee(self, placements: Iterable[tuple[int, Placement]]) -> None:
        """A step was accepted here that is likely to make this node primary of some partitions: their copies are asked now.

        They keep the question, and answer when they go by the step. It says what this copy has until now: so it may be told
        of what it has by then, which it takes once.
        """
        core = self.core
        self._foreseen = {
            number: tuple(node for node in placement.owners if node != core.node and node in placement.in_sync)
            for number, placement in placements
            if placement.primary == core.node != core.local[number].placement.primary
        }
        self._unasked.extend(self._foreseen)
        if self._foreseen and not self._going_on:
            self._go_on()

    def step(self, new: NewMap) -> None:
        """A light step: a copy that was let go has nothing to answer, and the others are asked on.

        Where it makes this node primary, every copy is asked: each answers when it goes by the step, and so has left the
        one before.
        """
        if new.promoted:
            self._become(new.promoted)
        self._foreseen = {}
        self._answer_early()
        for local in new.moved:
            if not local.mine and self.owed.pop(local.number, 0) is None:
                probe("promotion.moved_on")  # to another primary, which asks this one
                self._waiting.pop(local.number, None)
                self._beginning.pop(local.number, None)
            answers = self._waiting.get(local.number)
            if answers is None or answers.keys() <= dict.fromkeys(local.needed).keys():
                continue
            probe("promotion.copy_was_let_go")
            self._waiting[local.number] = {n: a for n, a in answers.items() if n in local.needed}
            self._finish_if_complete(local.number)
        self._told.keep(self._waiting)

    def _answer_early(self) -> None:
        """Whoever asked too early is answered by the step that came, some partitions at a time."""
        early, self._early = self._early, {}
        for sender, asked in early.items():
            copies, work, in_parts = list[CopyTail](), 0, self._asks_on[sender]
            for theirs in asked.values():
                copies.append(theirs)
                work += 1 + len(theirs.fragments)
                if work >= PIECE_WORK:
                    again = AskTail(self.core.fence, copies, in_parts=in_parts)
                    self.core.resume(partial(self.on_ask_tail, sender, again))
                    copies, work = [], 0
            if copies:
                self.on_ask_tail(sender, AskTail(self.core.fence, copies, in_parts=in_parts))

    def begin(self, partitions: Sequence[LocalPartition]) -> None:
        """Become primary of these; whatever was under way before is void."""
        self._waiting, self._working_out, self._early, self.owed = {}, {}, {}, {}
        self._beginning, self._alone, self._foreseen, self._told = {}, deque(), {}, Told()
        self._answers.forget()
        self._become(partitions)

    def _become(self, partitions: Sequence[LocalPartition]) -> None:
        unasked, asked = dict.fromkeys(self._unasked), dict[int, None]()
        self.owed |= dict.fromkeys([p.number for p in partitions if p.role is Role.PROMOTING])  # this map may end a wait
        self._alone.extend([local for local in partitions if not local.needed])  # may be all that there are
        for local in [local for local in partitions if local.needed]:
            if self._has_begun(local):
                continue
            self._waiting[local.number] = dict.fromkeys(local.needed)
            if local.number not in unasked and self._foreseen.get(local.number) == local.needed:
                asked[local.number] = None
        self._ask(but=asked)

    def _has_begun(self, local: LocalPartition) -> bool:
        """Whether its epoch began under an earlier map: its batch is on its way, to the copies of the new one by now."""
        state = self.core.replica.partitions.get(local.number)
        if state is None or state.epoch != local.epoch:
            return False
        probe("promotion.went_on")
        return True

    def _ask(self, but: Container[int] = ()) -> None:
        """Ask all who have not answered, save about partitions that were asked about before they were this node's."""
        self._unasked = deque(number for number in self._waiting if number not in but)
        self._ask_at = self.core.now + self.core.settings.retransmit_ms * MS
        self.alarm.set(self._ask_at if self._waiting else NEVER)
        if not self._going_on:
            self._going_on = self.core.work >= WORK_MAX  # the map was a turn's work
            self.core.resume(self._go_on) if self._going_on else self._go_on()

    def _go_on(self) -> None:
        """Finish the next partitions that have nobody to ask, and ask about the next of the others."""
        core, partition = self.core, self.core.replica.partition
        self._going_on = False
        work = 0
        while self._alone and work < PIECE_WORK:
            local = self._alone.popleft()
            if self._has_begun(local):
                work += 1
                continue
            work += FINISH_WORK + EPOCH_WORK * len(partition(local.number).fragments)
            self._finish(local, {})
            work += work_of_prepared(partition(local.number))
        by_survivor: dict[NodeId, list[CopyTail]] = {}
        while self._unasked and work < PIECE_WORK:
            number = self._unasked.popleft()
            work += 1 + len(partition(number).fragments)
            mine, answers = tail_of(partition(number)), self._waiting.get(number)
            for survivor in self._foreseen.get(number, ()) if answers is None else answers:
                if answers is None or answers[survivor] is None:
                    by_survivor.setdefault(survivor, []).append(self._told.question(survivor, mine))
        for survivor, copies in by_survivor.items():
            core.send(survivor, AskTail(core.fence, copies, in_parts=True))
        core.work += work
        if self._alone or self._unasked:
            self._going_on = True
            core.resume(self._go_on)

    def on_ask_tail(self, sender: NodeId, message: AskTail) -> None:
        """A survivor answers: this is what I have, and what of it you lack."""
        core = self.core
        if not may_act(core, message.version):
            return
        asked: list[CopyTail] = []
        early: list[CopyTail] = []
        for theirs in message.copies:
            local = core.local[theirs.partition] if theirs.partition < len(core.local) else None
            if local is None or local.role is Role.NONE:
                continue  # a light step let this copy go, of which a new primary will hear
            # Else it is another's, or will be this one's by a step that is on its way here.
            (asked if local.placement.primary == sender else early).append(theirs)
        core.work += len(message.copies)
        if early:
            probe("promotion.asked_before_the_step")
            self._early.setdefault(sender, {}).update((theirs.partition, theirs) for theirs in early)
            self._asks_on[sender] = message.in_parts
        core.in_pieces(self._answer(sender, message.version, asked, in_parts=message.in_parts))

    def _answer(self, sender: NodeId, version: Version, asked: list[CopyTail], *, in_parts: bool) -> Iterator[int]:
        """As much as a message holds in each."""
        core = self.core
        answers: list[CopyTail] = []
        work = 0
        for theirs in asked:
            if not may_act(core, version) or core.local[theirs.partition].placement.primary != sender:
                return  # it is asked again, if this is wanted still
            state = core.replica.partition(theirs.partition)
            if emptied(state):
                continue  # it survived in name only: its heartbeats say so, and the next map will not list it
            if self._answers.comes(sender, theirs.partition, theirs):
                continue  # to say it once more would leave no room for what comes next
            try:
                answer = answer_to(theirs, tail_of(state), state, in_parts=in_parts)
            except (CounterError, ValueError) as nonsense:
                core.note(f"{sender} says of partition {theirs.partition} what cannot be: {nonsense}")
                continue
            if answer.writes or answer.prepares:
                self._answers.note(sender, theirs.partition, theirs, size_of_tail(answer))
            more = work_to_tell(answer)
            if answers and work + more > PART_WORK:
                probe("promotion.answers_in_several_tails")
                core.send(sender, Tail(version, answers))
                yield work
                answers, work = [], 0
            answers.append(answer)
            work += more
        if answers:
            core.send(sender, Tail(version, answers))
        yield work

    def on_peer_seen(self, node: NodeId) -> None:
        """A connection was made: what was on its way over another one is not any more."""
        self._answers.forget(node)

    def on_tail(self, sender: NodeId, message: Tail) -> None:
        """Collect a survivor's answers; a partition whose survivors have all answered is finished."""
        if message.version != self.core.fence:
            return
        self.core.work += sum(map(work_to_tell, message.copies))
        complete: list[int] = []
        for answer in message.copies:
            answers = self._waiting.get(answer.partition)
            if answers is None or sender not in answers or answers[sender] is not None:
                continue
            if not can_be(answer, self.core.local[answer.partition].epoch):
                probe("promotion.no_survivor_has_that")
                continue  # it is asked again
            whole, ask_on = self._told.hear(sender, answer)
            if whole is not None:
                answers[sender] = whole
                complete.append(answer.partition)
            elif ask_on:
                question = self._told.question(sender, tail_of(self.core.replica.partition(answer.partition)))
                self.core.send(sender, AskTail(self.core.fence, [question], in_parts=True))
        self.core.in_pieces(self._finish_those(complete))

    def _finish_those(self, numbers: list[int]) -> Iterator[int]:
        for number in numbers:
            if number in self._waiting:
                self._finish_if_complete(number)
            state = self.core.replica.partition(number)
            yield FINISH_WORK + EPOCH_WORK * len(state.fragments) + work_of_prepared(state)

    def _finish_if_complete(self, number: int) -> None:
        """Take what the survivors have, once all have answered; what is large of it is worked out before."""
        answers = self._waiting[number]
        if self._working_out.get(number) is answers or None in answers.values():
            return
        brought: dict[tuple[Fragment, int], r.Write] = {}
        for answer in newest_first(answers):
            for write in answer.writes:
                brought.setdefault((write.fragment, write.start), write)
        if self.core.works_out(list(brought.values()), partial(self._take_over, number, answers)):
            probe("promotion.works_out_what_it_fetches")
            self._working_out[number] = answers
        else:
            self._take_over(number, answers)

    def _take_over(self, number: int, answers: dict[NodeId, CopyTail | None]) -> None:
        if self._waiting.get(number) is answers:  # else there are other survivors by now, or another primary
            self._working_out[number] = answers
            self.core.in_pieces(self._fetch(number, answers))

    def _fetch(self, number: int, answers: dict[NodeId, CopyTail | None]) -> Iterator[int]:
        """Log what is prepared elsewhere and not here, which may be much, before all else is taken in one step.

        Nothing rests on that: it is the same vote, whatever comes of this, and who leads next finds it.
        """
        state = self.core.replica.partition(number)
        newest = max(state.epoch, *(answer.epoch for answer in newest_first(answers)))
        for prepare in [prepare for answer in newest_first(answers) for prepare in answer.prepares]:
            if self._waiting.get(number) is not answers:
                return
            if prepare.epoch >= newest and self._has_fetched(prepare):
                yield 1 + bytes_prepared(prepare) // BYTES_OF_WORK
        if self._waiting.get(number) is not answers:
            return
        self._working_out.pop(number, None)
        del self._waiting[number]
        self._finish(self.core.local[number], {n: a for n, a in answers.items() if a is not None})
        if not self._waiting:
            self.alarm.off()

    def _finish(self, local: LocalPartition, answers: dict[NodeId, CopyTail]) -> None:
        core, number = self.core, local.number
        state = core.replica.partition(number)
        assert local.epoch > state.epoch, f"partition {number}: epoch {local.epoch} after {state.epoch}"
        lowest = min((a.epoch for a in answers.values()), default=state.epoch)
        self._take(number, answers)
        state = core.replica.partition(number)
        if emptied(state):
            probe("promotion.was_emptied")
            return  # the next map lists it as a copy that must catch up, and another leads
        again = Again([write_in(local.epoch, w) for f in state.fragments.values() if f.beyond for w in f.above_lwm()])

        def begin() -> None:
            if wanted():  # else another map came
                del self._beginning[number]
                self._begin(number, answers, lowest, again)

        def issued() -> None:
            if core.works_out(again.writes, begin, again=True):
                probe("promotion.works_out_what_it_issues_again")
            else:
                begin()

        def wanted() -> bool:
            return self._beginning.get(number) is again

        def prepare() -> None:
            issue_prepared(core, self._replication, local, again, wanted=wanted, then=issued)

        self._beginning[number] = again
        if answers:
            prepare()
        else:
            core.in_pieces(self._write_once_more(local, again, wanted, prepare))

    def _write_once_more(
        self, local: LocalPartition, again: Again, wanted: Callable[[], bool], then: Callable[[], None]
    ) -> Iterator[int]:
        yield from what_stands(self.core, local, again, wanted=wanted)
        if wanted():
            then()

    def _begin(self, number: int, answers: dict[NodeId, CopyTail], lowest: int, again: Again) -> None:
        """Begin the epoch: all of it is one batch, and this copy takes it first."""
        core = self.core
        local, state = core.local[number], core.replica.partition(number)
        package: list[r.Record] = []
        package.extend(epochs_after(number, state, lowest))
        lacked = [
            write
            for fragment in lagged(answers.values(), state, lowest)
            for write in fragment.lacking(fragment.stable, [])
            if write.end <= fragment.counter.lwm  # what lies above is issued again below
        ]
        if lacked:
            probe("promotion.survivor_lacked_writes")
            package.append(r.History(lacked))
        start, own = beginning(local, state, again)
        package.append(start)
        package.extend(own)
        for record in (start, *own):
            core.log(record)
        operation = Operation(local, package, counted=partial(self._done, local), abandoned=self._abandoned)
        self._replication.ship_by_size(operation, local)

    def _take(self, number: int, answers: dict[NodeId, CopyTail]) -> None:
        """Log what the survivors have and this copy lacks, the newest epoch's history first."""
        core = self.core
        for answer in newest_first(answers):
            state = core.replica.partition(number)
            if answer.epoch > state.epoch:
                probe("promotion.survivor_had_newer_epoch")
                tables = [(report.namespace, report.epochs) for report in answer.fragments]
                for record in starts(number, tables, state.epoch, answer.epoch):
                    core.log(record)
            new = [w for w in answer.writes if not core.replica.fragment(w.fragment).counter.covers(w.start, w.delta)]
            if answer.epoch < state.epoch:
                # What an older survivor has beyond, the newer epoch's primary had closed: it will undo it.
                new = [w for w in new if w.epoch >= core.replica.fragment(w.fragment).epoch_at(w.start + 1)]
            if new:
                probe("promotion.fetched_from_survivor")
                core.log(r.History(new))
                self.fetched += sum(w.delta for w in new)
            for prepare in answer.prepares:
                if prepare.epoch >= state.epoch:
                    self._has_fetched(prepare)

    def _has_fetched(self, prepare: r.Prepare) -> bool:
        """Whether a vote of a survivor was not here, and is now."""
        if prepare.tx in self.core.replica.partition(prepare.partition).prepared:
            return False
        probe("promotion.fetched_prepare")
        self.core.log(prepare)
        return True

    def _done(self, local: LocalPartition) -> None:
        """Its epoch is on every in-sync copy: it serves soon, and then nothing is owed for it (`served`)."""
        self._activated(local)

    def served(self, local: LocalPartition) -> None:
        """A partition that was promoted serves."""
        self.owed.pop(local.number, None)

    @staticmethod
    def _abandoned() -> None:
        probe("promotion.abandoned")  # another exchange came first; its primary begins anew

    def tick(self) -> None:
        """Ask again those who did not answer."""
        self.alarm.off()
        if self._waiting and self.alarm.is_due(self._ask_at, self.core.now):
            self._ask()

    def on(self, sender: NodeId, message: ToPromotion) -> None:
        """Everything that is said about promotions."""
        match message:
            case AskTail():
                self.on_ask_tail(sender, message)
            case Tail():
                self.on_tail(sender, message)
            case _:
                assert_never(message)
