"""How a MOVING copy catches up: it asks its partition's primary, takes what is missing, and says when nothing is.

```
 MOVING copy                                primary
 Demand(what I have)   ------------------>  choose a way for every fragment
                       <------------------  Supply: epochs and ways, then batches
 undo, clear, log, apply; More(credit) -->
                       <------------------  Supply ... last
 Settled(lwm, digests) ------------------>  from now on my answers are waited for
                       <------------------  Settle(marks)
 Settled again, at the marks ------------>  vouched for: the next map makes this copy in-sync
```

Nothing is remembered about a session that is not in the log: what arrived is counted, so a session that breaks off is
simply followed by a demand for what is still missing. Until a copy has taken part in the epoch that its primary is in
(the first Supply says how), it accepts no live writes, because what it has may belong to a history that was not continued.
"""

from __future__ import annotations

import msgspec

from engine.core import MS, Core, Hold
from engine.messages import Demand, Have, Message, More, Settle, Settled, Supply, Way
from engine.topology import CopyState
from rebalance.choice import Kind
from wal import records as r
from wal.ids import Fragment, NodeId, TxId
from wal.probe import probe


class Progress(msgspec.Struct):
    """What one node's rebalancing has moved; for status, the demo and the scenarios."""

    ways: dict[Fragment, str] = {}
    reasons: dict[Fragment, str] = {}
    expected: dict[Fragment, int] = {}
    updates: dict[str, int] = {}
    rows: dict[str, int] = {}
    started_ms: int = 0
    ended_ms: int = 0


class _Session:
    """One demand and what was supplied for it."""

    def __init__(self, number: int, supplier: NodeId, partitions: list[int], now: int) -> None:
        self.number = number
        self.supplier = supplier
        self.partitions = dict.fromkeys(partitions)
        self.ways: dict[Fragment, Way] = {}
        self.later: dict[int, None] = {}  # partitions that the supplier will serve in another session
        self.doubts: dict[int, list[TxId]] = {}  # prepared here without a write, when the demand was made
        self.batch = 0  # the last batch that was taken
        self.ahead: dict[int, Supply] = {}  # batches that came out of order
        self.heard_at = now
        self.asked_at = now


class Demander:
    """The MOVING copies of one node."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.progress = Progress()
        self._queue: dict[NodeId, dict[int, None]] = {}  # supplier -> partitions that must catch up
        self._sessions: dict[NodeId, _Session] = {}
        self._settling: dict[int, int] = {}  # partition -> when to say Settled again
        self._marks: dict[int, dict[str, int]] = {}
        self._rounds: dict[int, int] = {}  # partition -> how often it was said to be settled
        self._stuck: dict[Fragment, tuple[int, int]] = {}  # short of its mark -> (where it stands, since when)
        self._no_history: dict[Fragment, None] = {}
        self._number = core.run << 32
        self.wake_at: int | None = None

    @property
    def behind(self) -> int:
        """How many partitions are not caught up."""
        demanded = sum(len(s.partitions) for s in self._sessions.values())
        return demanded + sum(map(len, self._queue.values())) + len(self._settling)

    def demanded(self, number: int) -> bool:
        """Whether a partition was demanded and nothing of it has been supplied yet."""
        return any(number in s.partitions and not s.batch for s in self._sessions.values())

    def switch(self, changed: list[Hold]) -> None:
        """A new topology; `changed` are the holds whose primary, epoch or state is another now."""
        core = self.core
        for hold in changed:
            number = hold.number
            for queue in self._queue.values():
                queue.pop(number, None)
            for session in self._sessions.values():
                session.partitions.pop(number, None)
            self._settling.pop(number, None)
            self._marks.pop(number, None)
            primary = hold.placement.primary
            if hold.state is CopyState.MOVING and primary is not None:
                self._queue.setdefault(primary, {})[number] = None
        for supplier, session in list(self._sessions.items()):
            if not session.partitions:
                del self._sessions[supplier]
        if self.behind and not self.progress.started_ms:
            self.progress.started_ms = core.now // MS
        self._demand()

    def _demand(self) -> None:
        core = self.core
        for supplier, queue in self._queue.items():
            if not queue or supplier in self._sessions:
                continue
            self._number += 1
            session = _Session(self._number, supplier, list(queue), core.now)
            self._sessions[supplier] = session
            for number in queue:
                session.doubts[number] = [t for t, p in core.replica.partition(number).prepared.items() if not p.writes]
            queue.clear()
            self._ask(session)
        self._plan_wake()

    def _ask(self, session: _Session) -> None:
        core = self.core
        session.asked_at = core.now
        haves = [
            Have(
                namespace,
                number,
                f.counter.lwm,
                f.counter.highest_applied,
                list(f.counter.ranges),
                list(f.epochs),
                f.recent_digests(),
                f.base,
                f.loading,
                (namespace, number) in self._no_history,
                [] if f.loading else list(f.suspects),
            )
            for number in session.partitions
            for namespace, f in core.replica.partition(number).fragments.items()
        ]
        core.send(
            session.supplier,
            Demand(core.version, session.number, list(session.partitions), haves, core.settings.supply_credit),
        )

    # What is supplied.

    def on_supply(self, sender: NodeId, message: Supply) -> None:
        """Take batches in their order; one that comes early waits, one that comes twice is answered again."""
        core = self.core
        session = self._sessions.get(sender)
        if session is None or message.session != session.number or core.frozen or message.version != core.version:
            return
        session.heard_at = core.now
        if message.batch <= session.batch:
            core.send(sender, More(core.version, session.number, session.batch, 0))
            return
        if message.batch - session.batch <= 4 * core.settings.supply_credit:
            session.ahead[message.batch] = message
        while (batch := session.ahead.pop(session.batch + 1, None)) is not None:
            session.batch += 1
            self._take(session, batch)
            core.send(sender, More(core.version, session.number, session.batch, 1))
            if batch.last:
                self._end(session)
                return

    def _take(self, session: _Session, batch: Supply) -> None:
        session.later |= dict.fromkeys(batch.later)
        for way in batch.ways:
            if way.partition in session.partitions:
                self._prepare_for(session, way)
        for partition, epoch in batch.epochs:
            if partition in session.partitions:
                self._adopt(session, partition, epoch, batch.prepares)
        for prepare in batch.prepares:
            if prepare.partition in session.partitions:
                self.core.log(prepare)
        self._take_writes([w for w in batch.writes if w.partition in session.partitions])
        for rows in batch.rows:
            if rows.partition in session.partitions:
                self.core.log(rows)
                taken = session.ways.get((rows.namespace, rows.partition))
                kind = "full" if taken is not None and taken.kind == Kind.FULL else "fetched"
                self.progress.rows[kind] = self.progress.rows.get(kind, 0) + len(rows.keys)
        for results in batch.results:
            if results.partition in session.partitions:
                self.core.log(results)
        for namespace, partition in batch.done:
            whole = session.ways.get((namespace, partition))
            if whole is not None and partition in session.partitions and whole.kind == Kind.FULL:
                self.core.log(r.FragmentReady(namespace, partition, whole.up_to, whole.digest, whole.epochs, True))
                self._no_history.pop((namespace, partition), None)
        for namespace, partition in batch.missed:
            probe("demand.history_missed")
            self.core.note(f"{session.supplier} could not supply the history of {namespace}/{partition}: asking for all")
            self._no_history[(namespace, partition)] = None

    def _adopt(self, session: _Session, partition: int, epoch: int, prepares: list[r.Prepare]) -> None:
        """Take part in the supplier's epoch. What was prepared here before the demand, and is not there, has ended.

        If it wrote, its counters tell; of one that only read here nothing else would.
        """
        state = self.core.replica.partition(partition)
        open_there = {prepare.tx for prepare in prepares if prepare.partition == partition}
        ended = [tx for tx in session.doubts.get(partition, []) if tx not in open_there and tx in state.prepared]
        if ended:
            probe("demand.transactions_had_ended")
        if ended or state.epoch < epoch:
            self.core.log(r.EpochStart(partition, epoch, [], ended))

    def _prepare_for(self, session: _Session, way: Way) -> None:
        """What must be true before the first entry of this way arrives."""
        core, name = self.core, (way.namespace, way.partition)
        session.ways[name] = way
        first = name not in self.progress.ways or way.missing
        if first or way.kind == Kind.FULL:
            self.progress.ways[name] = way.kind
            self.progress.reasons[name] = way.reason
            self.progress.expected[name] = way.missing
        if way.kind == Kind.FULL:
            core.note(f"{way.namespace}/{way.partition} from {session.supplier} in full: {way.reason}")
            core.log(r.FragmentClear(way.namespace, way.partition, way.reason))
        elif way.cut >= 0:
            fragment = core.replica.fragment(name)
            keys = sorted({k for w in fragment.lacking(way.cut, []) for k in w.keys})
            probe("demand.undid_suffix")
            core.note(f"{way.namespace}/{way.partition} undoes what lies above {way.cut}: {way.reason}")
            core.log(r.Undo(way.namespace, way.partition, way.cut, keys))

    def _take_writes(self, writes: list[r.Write]) -> None:
        core = self.core
        new = [w for w in writes if not core.replica.fragment(w.fragment).counter.covers(w.start, w.delta)]
        if new:
            core.log(r.History(new))
            count = sum(w.delta for w in new)
            self.progress.updates["historical"] = self.progress.updates.get("historical", 0) + count

    def _end(self, session: _Session) -> None:
        """A session is over: what is whole settles, the rest is asked for again."""
        core = self.core
        del self._sessions[session.supplier]
        for number in session.partitions:
            if self._whole(number, session):
                self._settling[number] = core.now
            else:
                self._queue.setdefault(session.supplier, {})[number] = None
        self._demand()
        self._settle()

    def _whole(self, number: int, session: _Session) -> bool:
        core = self.core
        if number in session.later or core.replica.partition(number).epoch != core.holds[number].epoch:
            return False
        fragments = core.replica.partition(number).fragments
        return all(
            not f.loading and not f.suspects and (namespace, number) not in self._no_history
            for namespace, f in fragments.items()
        )

    # Settling.

    def _settle(self) -> None:
        core = self.core
        for number, due in self._settling.items():
            if core.now < due:
                continue
            self._settling[number] = core.now + core.settings.retransmit_ms * MS
            primary = core.holds[number].placement.primary
            if primary is None:
                continue
            state = core.replica.partition(number)
            marks = self._marks.get(number)
            if marks is not None and any(
                core.replica.fragment((ns, number)).counter.lwm < mark for ns, mark in marks.items()
            ):
                continue
            self._rounds[number] = self._rounds.get(number, 0) + 1
            core.send(
                primary,
                Settled(
                    core.version,
                    number,
                    [(ns, f.counter.lwm, f.recent_digests()) for ns, f in state.fragments.items()],
                    [tx for tx, prepare in state.prepared.items() if not prepare.writes],
                    self._rounds[number],
                ),
            )
        self._plan_wake()

    def on_settle(self, sender: NodeId, message: Settle) -> None:
        """The primary waits for this copy now; say Settled again at these counters."""
        core, number = self.core, message.partition
        if number not in self._settling or core.holds[number].placement.primary != sender:
            return
        if message.wrong:
            probe("demand.digest_differed")
            for namespace in message.wrong:
                core.note(f"{namespace}/{number} has another digest than its primary's: taking it in full")
                core.log(r.FragmentClear(namespace, number, "the digest differs from the primary's"))
            self._again(sender, number)
            return
        taken = self._take_readers(message)
        marks = dict(message.marks)
        known, self._marks[number] = self._marks.get(number), marks
        if known == marks and not taken:
            return  # it waits for something that is on its way: ask again in time, not at once
        if any(core.replica.fragment((ns, number)).counter.lwm < mark for ns, mark in message.marks):
            return
        self._settling[number] = core.now
        self._settle()

    def _take_readers(self, message: Settle) -> bool:
        """Transactions that only read here leave no counter by which their end, or their beginning, could be missed.

        Only the answer to what was said last counts: what an older one tells may have changed since. True if there was
        something to take.
        """
        core, number = self.core, message.partition
        if message.round != self._rounds.get(number):
            return False
        state = core.replica.partition(number)
        ended = [tx for tx in message.ended if tx in state.prepared and not state.prepared[tx].writes]
        if ended:
            probe("demand.readers_had_ended")
            core.log(r.EpochStart(number, state.epoch, [], ended))
        for prepare in message.prepares:
            if prepare.partition == number and not prepare.writes and prepare.tx not in state.prepared:
                probe("demand.reader_was_lacking")
                core.log(prepare)
        return bool(message.ended or message.prepares)

    def _again(self, supplier: NodeId, number: int) -> None:
        self._settling.pop(number, None)
        self._marks.pop(number, None)
        self._queue.setdefault(supplier, {})[number] = None
        self._demand()

    # Time.

    def _plan_wake(self) -> None:
        core = self.core
        times = [s.asked_at + core.settings.retransmit_ms * MS for s in self._sessions.values()]
        times.extend(self._settling.values())
        self.wake_at = min(times, default=None)

    def tick(self) -> None:
        """Ask again what was not answered; a copy that cannot reach its marks asks for what it lacks."""
        core = self.core
        patience = 5 * core.settings.retransmit_ms * MS
        for session in self._sessions.values():
            if core.now < session.asked_at + core.settings.retransmit_ms * MS:
                continue
            session.asked_at = core.now
            if not session.batch:
                self._ask(session)
            else:
                core.send(session.supplier, More(core.version, session.number, session.batch, core.settings.supply_credit))
        for supplier, session in list(self._sessions.items()):
            if core.now >= session.heard_at + patience:
                probe("demand.session_timed_out")
                del self._sessions[supplier]
                self._queue.setdefault(supplier, {}).update(session.partitions)
        for number in list(self._settling):
            if self._is_stuck(number, patience):
                primary = core.holds[number].placement.primary
                if primary is not None:
                    probe("demand.gap_after_settling")
                    self._again(primary, number)
        self._settle()
        self._demand()

    def _is_stuck(self, number: int, patience: int) -> bool:
        """Whether a fragment has stood still for too long below its mark, whatever the others do."""
        core, stuck = self.core, False
        for namespace, mark in self._marks.get(number, {}).items():
            name = (namespace, number)
            stands = core.replica.fragment(name).counter.lwm
            before = self._stuck.pop(name, None)
            if stands >= mark:
                continue
            if before is None or before[0] != stands:
                self._stuck[name] = (stands, core.now)
            elif core.now < before[1] + patience:
                self._stuck[name] = before
            else:
                stuck = True
        return stuck

    def handle(self, sender: NodeId, message: Message) -> None:
        """Everything that a supplier says."""
        match message:
            case Supply():
                self.on_supply(sender, message)
            case Settle():
                self.on_settle(sender, message)
            case _:
                raise AssertionError(f"not a message of a supplier: {message}")
