"""How a MOVING copy catches up: it asks its partition's primary, takes what is missing, and says when nothing is.

The conversation is drawn where the package opens (`rebalance`); `rebalance.settling` is its second half.

Nothing is remembered about a session that is not in the log: what arrived is counted, so a session that breaks off is
simply followed by a demand for what is still missing. Until a copy has taken part in the epoch that its primary is in
(the first Supply says how), it accepts no live writes, because what it has may belong to a history that was not continued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import assert_never, get_args

from rebalance.choice import OF_ROWS, Kind
from rebalance.demanding import Held, Missed, NoHistory, Patience, Progress, Rest, Session, parts_of, put_in_order, say_part
from rebalance.leaves import LEAF_BYTES
from rebalance.messages import Credit, Settle, Supply, ToDemander, Transfer
from rebalance.partition import LocalPartition, Role
from rebalance.ports import MS, WORK_MAX, Node, may_act
from rebalance.rule import NEVER, NewMap, Rule, drop
from rebalance.settling import Settling
from rebalance.surveying import Surveys
from wal import records as r
from wal.ids import NO_VERSION, NodeId, TxId
from wal.probe import probe

DIFFERS_MAX = 3
"""A fragment that still differs after so many full transfers is taken less and less often."""
LONGEST_PAUSE_MS = 60_000
AGAIN_PARTS = 4
"""Parts of a demand that are said again at a time, when nobody answers."""
END_WORK = 500


class Demander(Rule):
    """The MOVING copies of one node."""

    takes = get_args(ToDemander)

    def __init__(self, core: Node) -> None:
        super().__init__()
        self.core = core
        self.progress = Progress()
        self._queue: dict[NodeId, dict[int, None]] = {}  # supplier -> partitions that must catch up
        self._deferred: dict[NodeId, dict[int, None]] = {}  # the same, which it supplies in full, a few at a time
        self._at_a_time: dict[NodeId, int] = {}  # so many of these are asked for at once: twice what it gave the last time
        self._sessions: dict[NodeId, Session] = {}
        self._no_history = NoHistory()
        self._patience = Patience(core)
        self._pauses: dict[NodeId, int] = {}  # a supplier that has nothing to give yet -> when to ask it again
        self.put_off: dict[int, int] = {}  # partition -> when to take it once more, after it differed too often
        self.between_demands: Callable[[], None] = lambda: None  # a supplier is about to be asked, and sends nothing now
        self.held = Held(core)
        self.settling = Settling(core, again=self._again, differs=self._put_off_or_again, planned=self._plan_wake)
        self.surveys = Surveys(core, ready=self._again)
        self._ordered = True  # what waits, by the map that is here
        self._fence = NO_VERSION
        self.rest = Rest(core)
        self.missed = Missed(core, self.settling.said_in_this_life, lambda number: self.lack([number]))
        self._number = core.run << 32

    @property
    def behind(self) -> int:
        """How many partitions are not caught up."""
        demanded = sum(len(s.partitions) for s in self._sessions.values())
        waiting = sum(map(len, self._queue.values())) + sum(map(len, self._deferred.values()))
        return demanded + waiting + len(self.held) + len(self.settling) + len(self.put_off) + len(self.surveys)

    def demanded(self, number: int) -> bool:
        """Whether a partition was demanded and nothing of it has been supplied yet."""
        return any(number in s.awaited for s in self._sessions.values())

    def asks(self, number: int) -> bool:
        """Whether a transfer of a partition to this node is under way."""
        return any(number in session.partitions for session in self._sessions.values())

    def passes_over(self, number: int) -> bool:
        """Whether a copy that follows takes nothing of what is written to it, because its supply will bring that, too.

        So it is of one that an operator holds back, of one that misses something because the store does not keep up, and of
        one that has a gap while this node rests. Why nobody relies on it meanwhile is in `docs/migrations.md`.
        """
        if number in self.held:
            return number not in self.settling.told  # its primary may be about to believe that, however late it comes
        return self.missed.passes_over(number) or self.rest.passes_over(number, self._queue, self._deferred)

    def switch(self, new: NewMap) -> None:
        """A new topology: what changed is demanded anew, of whoever is primary now."""
        core, changed = self.core, new.changed
        if self.settling.told:
            drop(self.settling.told, {local.number: local for local in changed})
        if self.rest.begins():
            self.settling.said_in_this_life.clear()  # to those who wait, who was set aside lives anew
            changed = list({h.number: h for h in (*changed, *(h for h in core.local if h.role is Role.MOVING))}.values())
        self._begin_anew(anew := self.held.switch(changed, self._sessions.values()))
        stopped, self._fence = self._fence != core.fence, core.fence
        for supplier, session in list(self._sessions.items()):
            session.drop(anew)
            if not session.partitions:
                del self._sessions[supplier]
            elif stopped and session.ending is None:
                self._ask_again(session)  # what is under way is said in another version, and will not be taken
        self._pauses = {}
        if core.work < WORK_MAX:
            self._demand()
        else:
            core.resume(self._demand)

    def _begin_anew(self, changed: Mapping[int, LocalPartition]) -> None:
        """What is known of these partitions is void; those of which a copy is to be made wait for their suppliers."""
        for kept in (*self._queue.values(), *self._deferred.values()):
            drop(kept, changed)
        drop(self.put_off, changed)
        drop(self.missed.numbers, changed)
        self.settling.switch(changed)
        self.surveys.switch(changed)
        for number, local in changed.items():
            if local.role.follows and (primary := local.placement.primary) is not None:
                self._queue.setdefault(primary, {})[number] = None
        self._ordered = self._ordered and not changed

    def _demand(self) -> None:
        core = self.core
        if not self._ordered and core.topology is not None:
            put_in_order(core.topology, (*self._queue.values(), *self._deferred.values()))
            self._ordered = True
        self._pauses = {supplier: until for supplier, until in self._pauses.items() if core.now < until}
        if self.rest.goes_on() or self.missed.wait():
            self._plan_wake()
            return
        for supplier in dict.fromkeys([*self._queue, *self._deferred]):
            if supplier in self._sessions or supplier in self._pauses:
                continue
            numbers = self.held.without(self._queue.pop(supplier, ()))
            deferred = self.held.without(self._deferred.pop(supplier, ()))
            numbers += deferred[: (most := self._at_a_time.get(supplier, 0))]
            if later := deferred[most:]:
                self._deferred[supplier] = dict.fromkeys(later)
            if numbers:
                self._number += 1
                session = Session(self._number, supplier, parts_of(core, self.surveys, numbers), core.now)
                self._sessions[supplier] = session
                self._ask_on(session)
        self._plan_wake()

    def _ask_on(self, session: Session) -> None:
        """Say the next part of a demand."""
        if self._sessions.get(session.supplier) is not session:
            return
        for number in session.parts[session.said]:
            if number in session.partitions:
                session.awaited[number] = None
                self.missed.numbers.pop(number, None)
                prepared = self.core.replica.partition(number).prepared
                session.doubts[number] = [t for t, p in prepared.items() if not p.writes]
        self._ask(session, session.said)
        session.said += 1
        session.asked_at = self.core.now
        if session.said < len(session.parts):
            self.core.resume(lambda: self._ask_on(session))

    def _ask(self, session: Session, part: int) -> None:
        say_part(self.core, session, part, self.surveys, self._no_history)

    def _ask_again(self, session: Session) -> None:
        """Nobody answered for a while: say again the first parts of which nothing was supplied, and what was taken."""
        core = self.core
        session.asked_at = core.now
        if session.all_came:
            self._take_on(session)  # it was kept from it
            return
        silent = (at for at in range(session.said) if any(number in session.awaited for number in session.parts[at]))
        self._say_again(session, deque(islice(silent, AGAIN_PARTS)))
        if session.batch:
            credit = core.settings.supply_credit
            core.send(session.supplier, Credit(core.fence, session.number, session.batch, credit, again=True))

    def _say_again(self, session: Session, parts: deque[int]) -> None:
        """Each in what a turn has room for."""
        if parts and self._sessions.get(session.supplier) is session:
            self._ask(session, parts.popleft())
            self.core.resume(lambda: self._say_again(session, parts))

    # What is supplied.

    def on_supply(self, sender: NodeId, message: Supply) -> None:
        """Take batches in their order; one that comes early waits, one that comes twice is answered again."""
        core = self.core
        session = self._sessions.get(sender)
        if session is None or message.session != session.number or not may_act(core, message.version):
            return
        session.heard_at = core.now
        if message.batch <= session.batch:
            core.send(sender, Credit(core.fence, session.number, session.batch, 0))
            return
        if message.batch - session.batch <= 4 * core.settings.supply_credit:
            session.ahead[message.batch] = message
        if not session.taking:
            self._take_on(session)

    def _take_on(self, session: Session) -> None:
        """Take the next batches, as many as the turn has room for."""
        core = self.core
        session.taking = session.waits = False
        if self._sessions.get(session.supplier) is not session or not may_act(core, core.fence):
            return
        while (session.all_came or not core.crowded()) and session.has_room(core):
            if session.all_came:
                self._end(session)
                return
            batch = session.ahead.get(session.batch + 1)
            session.taking = batch is not None and core.works_out(batch.writes, lambda: self._take_on(session))
            if batch is None or session.taking:
                return
            session.took_next()
            self._take(session, batch)
            core.send(session.supplier, Credit(core.fence, session.number, session.batch, 1))
            session.all_came = batch.last
            if core.work >= WORK_MAX and not session.all_came:
                break
        if session.all_came or session.room or session.batch + 1 in session.ahead:
            session.waits = core.crowded() and not session.all_came
            session.taking = not session.waits
            if session.taking:
                core.resume(lambda: self._take_on(session))

    @property
    def waits(self) -> bool:
        """Whether batches came that are taken when a checkpoint has begun."""
        return bool(self._sessions) and any(session.waits for session in self._sessions.values())

    def go_on(self) -> None:
        """A checkpoint has begun with what lay in memory: there is room for what came."""
        for session in [session for session in self._sessions.values() if session.waits]:
            session.heard_at = session.asked_at = self.core.now  # nobody was to say anything meanwhile
            self._take_on(session)
        self._demand()

    def _take(self, session: Session, batch: Supply) -> None:
        self.core.work += batch.work
        if batch.epochs:
            self.settling.may_say_together(session.supplier, batch.together)
        for number in batch.later:
            session.later[number] = None
            session.awaited.pop(number, None)
        for transfer in batch.transfers:
            if transfer.partition in session.partitions:
                self._prepare_for(session, transfer)
        open_there: dict[int, dict[TxId, None]] = {}
        for number, tx in batch.prepared:
            open_there.setdefault(number, {})[tx] = None
        for partition, epoch in batch.epochs:
            session.awaited.pop(partition, None)
            if partition in session.partitions:
                self._adopt(session, partition, epoch, open_there.get(partition, {}))
        for prepare in batch.prepares:
            if prepare.partition in session.partitions:
                self.core.log(prepare)
        self._take_writes([w for w in batch.writes if w.partition in session.partitions])
        for rows in batch.rows:
            if rows.partition in session.partitions:
                self.core.log(rows)
                taken = session.transfers.get((rows.namespace, rows.partition))
                kind = taken.kind if taken is not None and taken.kind in OF_ROWS else "fetched"
                self.progress.rows[kind] = self.progress.rows.get(kind, 0) + len(rows.keys)
        for results in batch.results:
            if results.partition in session.partitions:
                self.core.log(results)
        for name in batch.done:
            if session.end_rows(self.core, name):
                self._no_history.drop(name)
        for found in batch.differing:
            session.make_room(self.core, found)
        for namespace, partition in batch.survey:
            if partition in session.partitions:
                session.survey.setdefault(partition, []).append((namespace, partition))
                session.in_full = True
        for namespace, partition in batch.missed:
            probe("demand.history_missed")
            self.core.note(f"{session.supplier} could not supply the history of {namespace}/{partition}: asking for all")
            self._no_history.add((namespace, partition))

    def _adopt(self, session: Session, partition: int, epoch: int, open_there: dict[TxId, None]) -> None:
        """Take part in the supplier's epoch. What was prepared here before the demand, and is not there, has ended.

        If it wrote, its counters tell; of one that only read here nothing else would.
        """
        state = self.core.replica.partition(partition)
        ended = [tx for tx in session.doubts.get(partition, []) if tx not in open_there and tx in state.prepared]
        if ended:
            probe("demand.transactions_had_ended")
        if ended or state.epoch < epoch:
            self.core.log(r.EpochStart(partition, epoch, [], ended))

    def _prepare_for(self, session: Session, transfer: Transfer) -> None:
        """What must be true before the first entry of this transfer arrives."""
        core, name = self.core, (transfer.namespace, transfer.partition)
        session.began = True
        if leaves := len(self.surveys.leaves(name)) // LEAF_BYTES:
            session.leaves[name] = leaves
        self.surveys.changed(name)
        first = name not in self.progress.kinds or transfer.missing
        if first or transfer.kind in OF_ROWS:
            known = core.replica.fragments.get(name)
            self.progress.note(name if known is None else known.name, transfer)
        if transfer.kind in OF_ROWS:
            session.note_rows(core, transfer)
            kept = transfer.kind != Kind.FULL
            core.log(r.FragmentClear(transfer.namespace, transfer.partition, transfer.reason, kept=kept))
            return
        if transfer.kind == Kind.NOTHING and transfer.missing:
            session.later[transfer.partition] = None  # it is asked for again, once it has undone
        elif transfer.kind == Kind.NOTHING:
            self._no_history.drop(name)  # what history could not bring has come from the primary meanwhile
        if transfer.cut >= 0:
            fragment = core.replica.fragment(name)
            keys = sorted({k for w in fragment.lacking(transfer.cut, []) for k in w.keys})
            probe("demand.undid_suffix")
            core.note(f"{transfer.namespace}/{transfer.partition} undoes what lies above {transfer.cut}: {transfer.reason}")
            core.log(r.Undo(transfer.namespace, transfer.partition, transfer.cut, keys))

    def _take_writes(self, writes: list[r.Write]) -> None:
        core = self.core
        new = [w for w in writes if not core.replica.fragment(w.fragment).counter.covers(w.start, w.delta)]
        if new:
            core.log(r.History(new))
            self.progress.updates["historical"] = self.progress.updates.get("historical", 0) + sum(w.delta for w in new)

    def _end(self, session: Session) -> None:
        """A session is over: what is whole settles, the rest is asked for again.

        Not at once, if none of it was supplied: such a primary owes its promotion, or has another map, and would say so
        again as fast as it is asked.
        """
        self._patience.was_enough(session)
        nothing = not session.began and not session.survey
        if nothing and session.partitions and session.partitions.keys() <= session.later.keys():
            probe("demand.nothing_to_give")
            self._pauses[session.supplier] = self.core.now + self.core.settings.retransmit_ms * MS
        served = len(session.partitions) - len(session.later) + len(session.survey)
        self._at_a_time[session.supplier] = max(self.core.settings.max_parallel_migrations, 2 * served)
        session.ending = list(session.partitions)[::-1]
        session.awaited = {}
        self._end_on(session)

    def _end_on(self, session: Session) -> None:
        """Look at the next partitions of a session that is over; after the last, another may begin."""
        core, supplier = self.core, session.supplier
        if self._sessions.get(supplier) is not session or session.ending is None:
            return
        work = 0
        while session.ending and work < END_WORK:
            number = session.ending.pop()
            if number not in session.partitions:
                continue
            del session.partitions[number]
            work += 1 + len(core.replica.partition(number).fragments)
            if number in self.missed.numbers:
                self._queue.setdefault(supplier, {})[number] = None
            elif session.left_whole(core, number, self._no_history):
                if core.local[number].role is Role.MOVING:
                    self.settling.begin(number, core.now, session=session.number)
            elif number in session.survey:
                self.surveys.begin(supplier, number, session.survey[number])
            elif number in session.later and session.in_full:
                self._deferred.setdefault(supplier, {})[number] = None
            else:
                self._queue.setdefault(supplier, {})[number] = None
        core.work += work
        if session.ending:
            core.resume(lambda: self._end_on(session))
            return
        del self._sessions[supplier]
        self.between_demands()  # what is about the next ones, too, would wait for them as well, and so on to the last
        self._demand()
        self.settling.go_on()

    # What is not whole yet.

    def lack(self, numbers: Iterable[int]) -> None:
        """Copies of these partitions for which nobody waits lack something: they ask for it together."""
        for number in numbers:
            self.settling.forget(number)
            primary = self.core.local[number].placement.primary
            if primary is not None and not self.asks(number):
                self._queue.setdefault(primary, {})[number] = None
        self._demand()

    def _put_off_or_again(self, supplier: NodeId, number: int, often: int) -> None:
        """What differs again and again is not whole at its primary: it is asked for less and less often, and counted."""
        self.settling.forget(number)
        self.settling.answers.forget(number)
        if often < DIFFERS_MAX:
            self._again(supplier, number)
        else:
            probe("demand.put_off")
            pause = min(self.core.settings.retransmit_ms << min(often, 16), LONGEST_PAUSE_MS)
            self.put_off[number] = self.core.now + pause * MS
            self._plan_wake()

    def _again(self, supplier: NodeId, *numbers: int) -> None:
        for number in numbers:
            self.settling.forget(number)
            self._queue.setdefault(supplier, {})[number] = None
        self._demand()

    # Time.

    def _plan_wake(self) -> None:
        times = [s.asked_at + self.core.settings.retransmit_ms * MS for s in self._sessions.values() if not s.waits]
        if (due := self.settling.due()) is not None:
            times.append(due)
        times.extend((*self.put_off.values(), *self._pauses.values()))
        if self.rest.until:
            times.append(self.rest.until)
        self.alarm.set(min(times, default=NEVER))

    def tick(self) -> None:
        """Ask again what was not answered."""
        core = self.core
        again = core.settings.retransmit_ms * MS
        for supplier, session in list(self._sessions.items()):
            if session.rests or not self.alarm.is_due(session.asked_at + again, core.now):
                continue
            if self._patience.is_over(session):
                del self._sessions[supplier]
                self._queue.setdefault(supplier, {}).update(session.partitions)
            elif core.now < session.heard_at + again:
                session.asked_at = session.heard_at
            else:
                self._ask_again(session)
        for number in [n for n, due in self.put_off.items() if self.alarm.is_due(due, core.now)]:
            del self.put_off[number]
            if (primary := core.local[number].placement.primary) is not None:
                self._again(primary, number)
        self.settling.go_on()
        self._demand()

    def on(self, sender: NodeId, message: ToDemander) -> None:
        """Everything that a supplier says."""
        match message:
            case Supply():
                self.on_supply(sender, message)
            case Settle():
                self.settling.on_settle(sender, message)
            case _:
                assert_never(message)
