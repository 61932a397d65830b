"""How a primary brings MOVING copies up to date; `rebalance.vouching` says when it vouches for them.

A demand is answered by one session: the supplier chooses a transfer for every fragment (`choice`), reads its log once
for all that go historically, then scans what goes as rows, fragment by fragment: all of them, those that it remembers to
have changed, or those under the leaves that differ, which it finds out in a look of its own before. Batches are bounded in
bytes and leave only while the demander has credit, so neither side's memory grows with the data. Writes never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from itertools import islice
from typing import assert_never, get_args

import msgspec

from rebalance.choice import OF_ROWS, Choice, Kind
from rebalance.leaves import are_leaves
from rebalance.lives import INCARNATION_BITS
from rebalance.messages import AllSettled, Credit, Demand, Differing, Have, Settled, Supply, ToSupplier, Transfer
from rebalance.moves import waits_by_order
from rebalance.mutations import Mutations, Remembered
from rebalance.partition import LocalPartition
from rebalance.ports import (
    MS,
    WORK_MAX,
    CloseHistory,
    HistoryRead,
    Node,
    OpenHistory,
    ReadHistory,
    Shipping,
    batch_bytes,
    may_act,
)
from rebalance.rule import NewMap, Rule
from rebalance.supplying import MANY, Session, at_version, choose_for, work_of_prepared
from rebalance.table import Standing
from rebalance.telling import nothing_of
from rebalance.throttle import Throttle
from rebalance.vouching import Awaited, Vouching, awaited
from wal import records as r
from wal.ids import NO_VERSION, Fragment, Namespace, NodeId, Version
from wal.probe import probe
from wal.want import Want

OVER_AFTER_MS = 20_000
"""Who was sent everything and says nothing for so long has it, and its answer was lost."""
PLAN_WORK = 500
"""Of planning in one piece; choosing one for a fragment is `CHOICE_WORK`, beside a look for its rows."""
CHOICE_WORK = 2
WRITES_MAX = 2_000
"""Keys of a batch of history, and what is read of it at a time; and fragments that a batch calls done."""
WRITES_WORK = WORK_MAX // 2
"""And what it is to say it."""
MANY_UPDATES = 4_096
"""A partition with so many updates is a large one, of which `max_parallel_migrations` go in full at a time. Of smaller
ones so many go as have as many updates together: a session for ten rows of each would do nothing but begin and end."""


class SupplySide(Rule):
    """What one node supplies, as the primary of partitions that have MOVING copies."""

    takes = get_args(ToSupplier)

    def __init__(
        self, core: Node, replication: Shipping, mutations: Mutations, *, regroup: Callable[[LocalPartition], None]
    ) -> None:
        super().__init__()
        self.core = core
        self.mutations = mutations
        self.replication = replication
        self.vouching = Vouching(core, replication, regroup=regroup)
        self._sessions: dict[NodeId, Session] = {}
        self._taken: dict[NodeId, tuple[Awaited, int]] = {}  # the last session of which it has taken all
        self._fence = NO_VERSION
        self.supplied: dict[NodeId, int] = {}
        self._left: Container[int] = ()  # partitions that the next map takes from this node
        self.throttle = Throttle()

    # Sessions.

    def on_demand(self, sender: NodeId, message: Demand) -> None:
        """Choose the transfers, piece by piece, and begin."""
        core = self.core
        core.work += len(message.haves)
        if not may_act(core, message.version):
            return
        assert core.topology is not None
        member = core.topology.member(sender)
        if member is None or not 0 <= message.part < message.parts:
            return
        life = awaited(core.topology, member)
        session = self._sessions.get(sender)
        if session is not None and session.life == life and session.number > message.session:
            return
        if (taken := self._taken.get(sender)) is not None and taken[0] == life and taken[1] >= message.session:
            probe("supply.demanded_late")
            return  # nobody would take what it brings, and the log would be held for it
        if session is None or session.life != life or session.number != message.session:
            if session is not None:
                self._close(session)
            returning = member.incarnation >> INCARNATION_BITS > 1
            session = self._sessions[sender] = Session(sender, life, message, returning=returning)
        session.heard_at = core.now
        if message.part in session.taken:
            self._say_again(session, message.credit, message.version)
            return
        session.taken[message.part] = None
        haves: dict[int, dict[Namespace, Have]] = {}
        for have in message.haves:
            if have.leaves and not are_leaves(have.leaves):
                probe("supply.no_leaves")
                have = msgspec.structs.replace(have, leaves=b"")  # noqa: PLW2901
            haves.setdefault(have.partition, {})[have.namespace] = have
        session.demanded.append((session.new_ones(message.partitions), haves))
        if not session.planning:
            session.planning = True
            core.resume(lambda: self._plan_on(session))

    def _plan_on(self, session: Session) -> None:
        """Choose the transfers of the next partitions; when all are planned, begin with what is owed."""
        core = self.core
        if self._sessions.get(session.node) is not session:
            return
        numbers, haves = session.demanded[0]
        first = Supply(core.fence, session.number, 0, together=True)
        work = 0
        while numbers and work < PLAN_WORK and (not work or core.work < WORK_MAX):  # rows are counted, too
            number = numbers.pop()
            work += 1 + self._plan_partition(session, number, haves.pop(number, {}), first)
        core.work += work
        self.replication.lag(session.node, dict(first.epochs))
        session.firsts.append(first)
        if not numbers:
            session.demanded.popleft()
        if session.demanded:
            core.resume(lambda: self._plan_on(session))
        else:
            session.planning = False
            if len(session.taken) == session.parts:
                session.planned = True
                if session.wants:
                    core.task(OpenHistory((session.node, session.number), session.wants))
                    session.wants = []
        self._advance(session)

    def _plan_partition(self, session: Session, number: int, haves: dict[Namespace, Have], first: Supply) -> int:
        """Choose the transfers of one partition, for the batch that will say so; how much work it was."""
        core, sender = self.core, session.node
        local = core.local[number] if number < len(core.local) else None
        supplies = local is not None and self._supplies(sender, number)
        if local is None or not supplies or local.placement.standing_of(sender) not in (Standing.MOVING, Standing.ASYNC):
            first.later.append(number)
            return 0
        if self.vouching.stands_for(number, sender):
            probe("supply.demanded_though_vouched_for")
            first.later.append(number)  # it is said again, or was delayed: the copy is waited for already
            return 0
        self.vouching.begin_anew(local, sender)
        state = core.replica.partition(number)
        names = dict.fromkeys([*state.fragments, *haves])
        haves = {ns: haves.get(ns) or nothing_of((ns, number)) for ns in names}
        changed: dict[Namespace, Remembered] = {}
        choices = {ns: self._choose(have, changed=changed, returning=session.returning) for ns, have in haves.items()}
        if any(c.kind in OF_ROWS for c in choices.values()):
            most = core.settings.max_parallel_migrations
            if session.many >= most and session.in_full >= most * MANY_UPDATES:
                first.later.append(number)
                return CHOICE_WORK * len(choices)
            session.many += 1
            session.in_full += sum(
                len(changed[ns]) if choices[ns].kind is Kind.MUTATIONS else f.counter.lwm
                for ns, f in state.fragments.items()
            )
        if unknown := [ns for ns, c in choices.items() if c.kind is Kind.DIFFERENTIAL and not haves[ns].leaves]:
            probe("supply.asked_for_leaves")
            first.survey.extend((ns, number) for ns in unknown)
            first.later.append(number)
            return CHOICE_WORK * len(choices)
        session.partitions.append(number)
        self.vouching.supplies(number, sender, session.number)
        first.epochs.append((number, local.epoch))
        session.say_prepared(state, first, batch_bytes(core.settings))
        for fragment in state.fragments.values():
            session.read.extend(fragment.beyond.values())  # the log alone would not say that it counts
        for namespace, choice in choices.items():
            first.transfers.append(self._plan(session, haves[namespace], choice, changed.get(namespace)))
        return CHOICE_WORK * len(choices) + work_of_prepared(state)

    def _choose(self, have: Have, *, changed: dict[Namespace, Remembered], returning: bool) -> Choice:
        """How one fragment is transferred."""
        return choose_for(self.core, self.mutations, have, changed=changed, returning=returning)

    def _plan(self, session: Session, have: Have, choice: Choice, changed: Remembered | None) -> Transfer:
        """What the session owes for one fragment."""
        name = have.name
        fragment = self.core.replica.fragment(name)
        lwm, epochs = fragment.counter.lwm, list(fragment.epochs)
        if choice.kind in OF_ROWS:
            session.full.append(name)
            if choice.kind is Kind.DIFFERENTIAL:
                session.leaves[name] = have.leaves
                session.to_compare.append(name)
            elif choice.kind is Kind.MUTATIONS:
                assert changed is not None, "they were counted when that was chosen"
                session.changed[name] = changed
        elif have.suspects:
            session.fetch.append((name, have.suspects))
        if choice.has is not None:
            session.history[name] = None
            session.wants.append(Want(name, choice.has, lwm, epochs))
        return Transfer(
            *name,
            kind=choice.kind,
            reason=choice.reason,
            cut=choice.cut,
            missing=choice.missing,
            up_to=lwm,
            digest=fragment.digest,
            epochs=epochs,
        )

    def on_credit(self, sender: NodeId, message: Credit) -> None:
        """The demander took batches and has credit for more."""
        session = self._sessions.get(sender)
        if session is None or session.number != message.session:
            return
        session.heard_at = self.core.now
        session.took(message.batch, self.core.now)
        if message.again:
            self._say_again(session, message.credit, message.version)
            return
        session.credit += message.credit
        if session.over and not session.sent:
            self._end(session)
        else:
            self._advance(session)

    def _say_again(self, session: Session, credit: int, asked_under: Version) -> None:
        """Nothing came, it says: what was sent is sent once more, if it cannot come any more."""
        comes = session.comes_yet(self.core, asked_under)
        if comes or (not session.sent and self.throttle.waits(session.node)):
            self.core.send(session.node, Supply(self.core.fence, session.number, 0))
        if not comes:
            session.say_again(self.core.now)
        session.credit = max(0, credit - len(session.sent))
        self._advance(session)

    def on_peer_seen(self, node: NodeId) -> None:
        """A connection was made: what was on its way over another one is not any more."""
        if (session := self._sessions.get(node)) is not None:
            session.moved_at = 0

    def _end(self, session: Session) -> None:
        self._taken[session.node] = session.life, session.number
        self._close(session)

    def _close(self, session: Session) -> None:
        if session.planned:
            self._forget_history(session)
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

    def _forget_history(self, session: Session) -> None:
        if session.history and not session.history_over:
            self.core.task(CloseHistory((session.node, session.number)))
        session.forget_history()

    def on_history(self, event: HistoryRead) -> None:
        """Some of the log was read for a session."""
        node, number = event.session
        session = self._sessions.get(node)
        if session is None or session.number != number or session.history_over:
            return
        session.was_read(self.core, event.writes, WRITES_MAX)
        if event.done:
            session.history_over = True
            session.missed = event.missed
            for name in event.missed:
                session.history.pop(name, None)
            self.core.task(CloseHistory(event.session))
            if event.missed:
                probe("supply.history_missed")
        self._advance(session)

    def _advance(self, session: Session) -> None:
        """Send what there is credit for, as much as the turn has room for."""
        core, session.resumed = self.core, False
        while session.again or (session.credit > 0 and not session.over):
            if core.work >= WORK_MAX:
                session.resumed = True
                core.resume(lambda: self._advance_on(session))
                return
            if session.again:
                if (batch := session.next_again()) is not None:
                    core.work += batch.work
                    self._say(session, at_version(batch, core.fence))
                continue
            if not self.throttle.admits(session.node, core.now):
                self._wake()
                return
            most = min(batch_bytes(core.settings), self.throttle.rate or MANY)
            if session.firsts:
                self._send(session, at_version(session.next_first(), core.fence))
            elif not session.planned:
                return
            elif session.prepared:
                self._send(session, session.next_prepared(core, batch_bytes(core.settings)))
            elif session.fetch:
                self._send(session, self._batch(session, rows=[session.next_fetched(core, most)]))
            elif session.read or (session.history_over and (session.history or session.missed)):
                self._send(session, self._history(session))
            elif session.history:
                if not session.reading:
                    session.reading = True
                    core.task(ReadHistory((session.node, session.number), batch_bytes(core.settings), WRITES_MAX))
                return
            elif session.full:
                some = session.next_rows(core, most)
                if any(some):
                    self._send(session, self._batch(session, **some._asdict()))
            else:
                session.over = True
                self._send(session, self._batch(session, last=True))
                self._wake()

    def _advance_on(self, session: Session) -> None:
        if session.resumed and self._sessions.get(session.node) is session:
            self._advance(session)

    def _history(self, session: Session) -> Supply:
        """Writes that lie beyond a gap, or were read from the log; after the last of these, which fragments are whole, and
        which cannot be."""
        writes = session.next_writes(self.core, WRITES_MAX, WRITES_WORK)
        self.supplied[session.node] = self.supplied.get(session.node, 0) + sum(write.delta for write in writes)
        done: list[Fragment] = []
        missed: list[Fragment] = []
        if session.history_over and not session.read:
            done = list(islice(session.history, WRITES_MAX))
            if len(done) == len(session.history):
                session.history = {}
            else:
                for name in done:
                    del session.history[name]
            missed, session.missed = session.missed[:WRITES_MAX], session.missed[WRITES_MAX:]
        return self._batch(session, writes=writes, done=done, missed=missed)

    def _batch(
        self,
        session: Session,
        *,
        writes: list[r.Write] | None = None,
        rows: list[r.Preload] | None = None,
        results: list[r.Results] | None = None,
        done: list[Fragment] | None = None,
        missed: list[Fragment] | None = None,
        differing: list[Differing] | None = None,
        last: bool = False,
    ) -> Supply:
        return Supply(
            self.core.fence,
            session.number,
            session.batch + 1,
            writes=writes or [],
            rows=rows or [],
            results=results or [],
            done=done or [],
            missed=missed or [],
            last=last,
            differing=differing or [],
        )

    def _send(self, session: Session, batch: Supply) -> None:
        session.note_sent(batch, self.core.now)
        self._say(session, batch)
        self.throttle.give_way(batch.work, self.core.asked, self.core.now)

    def _say(self, session: Session, batch: Supply) -> None:
        if self.throttle.rate:
            self.throttle.spend(batch.size, self.core.now)
        self.core.send(session.node, batch)

    def _wake(self) -> None:
        """When somebody may send on, or nothing more will be heard of a session."""
        over = [session.heard_at + OVER_AFTER_MS * MS for session in self._sessions.values() if session.over]
        self.alarm.set(min((self.throttle.due, *over)))

    def tick(self) -> None:
        """Nothing is owed any more: who waits sends on, in turn. What is kept for who took it all goes."""
        now, after = self.core.now, OVER_AFTER_MS * MS
        while (node := self.throttle.next(now)) is not None:
            if (session := self._sessions.get(node)) is not None:
                self._advance(session)
        for session in [s for s in self._sessions.values() if s.over and now >= s.heard_at + after]:
            probe("supply.last_answer_was_lost")
            self._end(session)
        self._wake()

    def switch(self, new: NewMap) -> None:
        """A new map: sessions go on for what did not change, and with copies whose node did not start again."""
        core, self._left = self.core, ()
        assert core.topology is not None
        self.mutations.switch(new)
        lives = {m.node: awaited(core.topology, m) for m in core.topology.members}
        self.vouching.switch(lives, new.moved)
        self.throttle.limit(core.topology.migrations.bytes_per_second)
        self._wake()
        stopped, self._fence = self._fence != core.fence, core.fence
        for node, session in list(self._sessions.items()):
            if lives.get(node) != session.life:
                self._close(session)
                continue
            self._keep(session)
            if stopped and session.sent:
                session.moved_at = 0  # what is under way is said in another version
                self._say_again(session, session.credit + len(session.sent), session.asked_under)

    def leave(self, numbers: Container[int]) -> None:
        """The next map takes these partitions from this node: what it has of them need not count from now on."""
        self._left = numbers
        for session in self._sessions.values():
            self._keep(session)

    def _keep(self, session: Session) -> None:
        if not all(self._supplies(session.node, number) for number in session.partitions):
            session.keep(partial(self._supplies, session.node))
            if session.planned and not session.partitions:
                self._forget_history(session)  # else the log is held for what nobody takes any more

    def _supplies(self, node: NodeId, number: int) -> bool:
        topology, local = self.core.topology, self.core.local[number]
        here = topology is not None and number not in self._left and not waits_by_order(topology, number)
        return here and local.active and node in local.placement.copies

    def on(self, sender: NodeId, message: ToSupplier) -> None:
        """Everything that a demander says."""
        match message:
            case Demand():
                self.on_demand(sender, message)
            case Credit():
                self.on_credit(sender, message)
            case Settled() | AllSettled():
                self.vouching.on(sender, message)
            case _:
                assert_never(message)
