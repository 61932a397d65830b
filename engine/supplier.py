"""How a primary brings MOVING copies up to date, and when it vouches for them.

A demand is answered by one session: the supplier chooses a way for every fragment (`rebalance.choice`), reads its log once
for all that go historically, then scans what goes in full, fragment by fragment. Batches are bounded in bytes and leave
only while the demander has credit, so neither side's memory grows with the data. Writes on the partition never wait.

A copy that says it is settled is first waited for (its answers count from then on), and vouched for when it has everything
that was reserved by then. The coordinator makes it in-sync with the next map, and only on this node's word.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.core import INCARNATION_BITS, Core, Hold
from engine.effects import CloseHistory, HistoryRead, OpenHistory, ReadHistory
from engine.fragment import FragmentState
from engine.messages import Demand, Have, Message, More, Settle, Settled, Supply, Way
from engine.replication import Replication
from engine.topology import CopyState
from rebalance.choice import Choice, Joiner, Kind, Supplier, choose
from wal import records as r
from wal.counters import PartitionCounter
from wal.ids import Fragment, NodeId, Version
from wal.probe import probe
from wal.want import Want

ROWS_COUNTED_MAX = 4096
"""Rows are counted up to here to compare a full transfer with the missing updates; more than this is many."""


class _Session:
    """One demander's demand. Its number orders the demands of one life; a wiped node counts from the beginning."""

    def __init__(self, node: NodeId, life: tuple[str, int], number: int, credit: int) -> None:
        self.node = node
        self.life = life
        self.number = number
        self.credit = credit
        self.batch = 0  # the last batch sent
        self.sent: dict[int, Supply] = {}  # not answered yet
        self.ways: dict[Fragment, Way] = {}
        self.partitions: list[int] = []
        self.history: list[Fragment] = []  # being read from the log
        self.reading = False
        self.read: list[r.Write] = []
        self.missed: list[Fragment] = []
        self.full: list[Fragment] = []  # still to be scanned, in order
        self.cursor: bytes | None = None  # where the scan of full[0] stands
        self.fetch: list[tuple[Fragment, list[bytes]]] = []  # keys to send as they are now
        self.first: Supply | None = None
        self.results_sent: dict[int, None] = {}
        self.over = False


class SupplySide:
    """What one node supplies, as the primary of partitions that have MOVING copies."""

    def __init__(self, core: Core, replication: Replication, *, regroup: Callable[[Hold], None]) -> None:
        self.core = core
        self.replication = replication
        self._regroup = regroup  # the hold's hardened copies changed
        self._sessions: dict[NodeId, _Session] = {}
        self._lives: dict[NodeId, tuple[str, int]] = {}  # which life of each member the map lists
        self.hardened: dict[tuple[int, NodeId], dict[str, int]] = {}  # waited for since; the counters it must reach
        self.vouched: dict[tuple[int, NodeId], None] = {}
        self.supplied: dict[NodeId, int] = {}

    # Sessions.

    def on_demand(self, sender: NodeId, message: Demand) -> None:
        """Choose the ways and begin."""
        core = self.core
        if message.version != core.version or core.frozen or not core.serving:
            return
        assert core.topology is not None
        member = core.topology.member(sender)
        if member is None:
            return
        life = (member.allocation, member.incarnation)
        running = self._sessions.get(sender)
        if running is not None:
            if running.life == life and running.number == message.session:
                self._resend(running, message.credit)
                return
            if running.life == life and running.number > message.session:
                return
            self._close(running)
        session = self._sessions[sender] = _Session(sender, life, message.session, message.credit)
        returning = member.incarnation >> INCARNATION_BITS > 1
        haves: dict[Fragment, Have] = {(have.namespace, have.partition): have for have in message.haves}
        epochs: list[tuple[int, int]] = []
        prepares: list[r.Prepare] = []
        tails: list[r.Write] = []  # what is applied here beyond a gap; the log alone would not say that it counts
        later: list[int] = []
        in_full = 0
        for number in message.partitions:
            hold = core.holds[number] if number < len(core.holds) else None
            if hold is None or not hold.active or hold.placement.state_of(sender) is not CopyState.MOVING:
                continue
            self._soften(hold, sender)
            state = core.replica.partition(number)
            names = dict.fromkeys([*state.fragments, *(ns for ns, p in haves if p == number)])
            choices = {
                (ns, number): self._choose((ns, number), haves.get((ns, number)), returning=returning) for ns in names
            }
            if any(c.kind is Kind.FULL for c in choices.values()):
                if in_full >= core.settings.max_parallel_migrations:
                    later.append(number)
                    continue
                in_full += 1
            session.partitions.append(number)
            self.replication.lag(sender, number)
            epochs.append((number, hold.epoch))
            prepares.extend(state.prepared.values())
            for fragment in state.fragments.values():
                tails.extend(w for w in fragment.lacking(fragment.counter.lwm, []) if w.start > fragment.counter.lwm)
            for name, choice in choices.items():
                self._plan(session, name, haves.get(name), choice)
        self.supplied[sender] = self.supplied.get(sender, 0) + sum(w.delta for w in tails)
        session.first = Supply(
            core.version,
            session.number,
            1,
            epochs,
            later,
            list(session.ways.values()),
            prepares,
            tails,
            [],
            [],
            [],
            [],
            False,
        )
        wants = [self._want(session, name, haves.get(name)) for name in session.history]
        if wants:
            core.effects.tasks.append(OpenHistory((sender, session.number), wants))
        self._advance(session)

    def _choose(self, name: Fragment, have: Have | None, *, returning: bool) -> Choice:
        """The way for one fragment. A node in its first life has no history to prefer: rows are all it can need."""
        core = self.core
        fragment = core.replica.fragment(name)
        joiner = (
            Joiner(
                have.lwm,
                have.highest,
                have.ranges,
                have.epochs,
                have.digests,
                have.base,
                have.loading,
                bool(have.suspects),
            )
            if have is not None
            else Joiner(0, 0, [], [], [], 0, False, False)
        )
        digests = {c: d for c, _ in joiner.digests if (d := fragment.digest_at(c)) is not None}
        no_history = have is not None and have.no_history
        mine = Supplier(
            fragment.counter.lwm,
            fragment.counter.highest_applied,
            list(fragment.epochs),
            digests,
            fragment.counter.highest_applied + 1 if no_history else fragment.history_from,
            0,
        )
        choice = choose(joiner, mine, prefer_history=True)
        if choice.kind is Kind.HISTORICAL and not (core.settings.prefer_history and returning):
            limit = min(choice.missing + 1, ROWS_COUNTED_MAX)
            rows = len(core.replica.store.scan(name, b"", limit))
            choice = choose(joiner, msgspec.structs.replace(mine, rows=rows if rows < limit else 1 << 62))
        return choice

    def _plan(self, session: _Session, name: Fragment, have: Have | None, choice: Choice) -> None:
        """What the session owes for one fragment."""
        fragment = self.core.replica.fragment(name)
        if choice.kind is Kind.FULL:
            session.full.append(name)
        elif choice.kind is Kind.HISTORICAL:
            session.history.append(name)
        if have is not None and have.suspects and choice.kind is not Kind.FULL:
            session.fetch.append((name, have.suspects))
        session.ways[name] = Way(
            name[0],
            name[1],
            choice.kind,
            choice.reason,
            choice.cut,
            choice.missing,
            fragment.counter.lwm,
            fragment.digest,
            list(fragment.epochs),
        )

    def _want(self, session: _Session, name: Fragment, have: Have | None) -> Want:
        fragment, way = self.core.replica.fragment(name), session.ways[name]
        counter = PartitionCounter(have.lwm if have is not None else 0)
        if have is not None:
            for start, delta in have.ranges:
                counter.update(start, delta)
        if way.cut >= 0:
            counter.cut(way.cut)
        return Want(name, counter, fragment.counter.lwm, list(fragment.epochs))

    def on_more(self, sender: NodeId, message: More) -> None:
        """The demander took batches and has credit for more."""
        session = self._sessions.get(sender)
        if session is None or session.number != message.session:
            return
        for batch in [b for b in session.sent if b <= message.batch]:
            del session.sent[batch]
        if message.credit > 1:
            self._resend(session, message.credit)
            return
        session.credit += message.credit
        if session.over and not session.sent:
            self._close(session)
        else:
            self._advance(session)

    def _resend(self, session: _Session, credit: int) -> None:
        probe("supply.sent_again")
        for batch in session.sent.values():
            self.core.send(session.node, _at(batch, self.core.version))
        session.credit = max(0, credit - len(session.sent))
        self._advance(session)

    def _close(self, session: _Session) -> None:
        if session.history:
            self.core.effects.tasks.append(CloseHistory((session.node, session.number)))
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

    def on_history(self, event: HistoryRead) -> None:
        """Some of the log was read for a session."""
        node, number = event.session
        session = self._sessions.get(node)
        if session is None or session.number != number:
            return
        session.reading = False
        session.read.extend(event.writes)
        if event.done:
            session.missed = event.missed
            self.core.effects.tasks.append(CloseHistory(event.session))
            if event.missed:
                probe("supply.history_missed")
        self._advance(session, history_done=event.done)

    def _advance(self, session: _Session, *, history_done: bool = False) -> None:
        """Send what there is credit for."""
        core = self.core
        while session.credit > 0 and not session.over:
            if session.first is not None:
                first, session.first = session.first, None
                self._send(session, first)
            elif session.fetch:
                name, keys = session.fetch.pop()
                self._send(session, self._batch(session, rows=[self._fetch(name, keys)]))
            elif session.read or (history_done and session.history):
                done = [n for n in session.history if n not in session.missed] if history_done else []
                batch = self._batch(session, writes=session.read, done=done, missed=session.missed)
                self.supplied[session.node] = self.supplied.get(session.node, 0) + sum(w.delta for w in session.read)
                session.read = []
                if history_done:
                    session.history, session.missed = [], []
                self._send(session, batch)
            elif session.history:
                if not session.reading:
                    session.reading = True
                    core.effects.tasks.append(ReadHistory((session.node, session.number), core.settings.supply_batch_bytes))
                return
            elif session.full:
                self._send(session, self._scan(session))
            else:
                session.over = True
                self._send(session, self._batch(session, last=True))

    def _scan(self, session: _Session) -> Supply:
        """The next rows of the fragment that is being taken in full."""
        core, name = self.core, session.full[0]
        start = session.cursor or b""
        page = core.replica.store.page(name, start, 1024)
        core.work += page.work
        rows, size, taken = page.rows, 0, 0
        for key, entry in rows:
            size += len(key) + len(entry.value or b"") + 32
            taken += 1
            if size >= core.settings.supply_batch_bytes:
                break
        following = page.next if taken == len(rows) else rows[taken - 1][0] + b"\0"
        whole, rows = following is None, rows[:taken]
        preload = r.Preload(
            name[0],
            name[1],
            [e.epoch for _, e in rows],
            [e.counter for _, e in rows],
            [k for k, _ in rows],
            [e.value for _, e in rows],
        )
        results: list[r.Results] = []
        if name[1] not in session.results_sent:
            session.results_sent[name[1]] = None
            known = core.replica.partition(name[1]).results
            items = known.items()
            results.append(r.Results(name[1], [tx for tx, _ in items], [o for _, o in items], known.floor))
        if whole:
            session.full.pop(0)
            session.cursor = None
        else:
            session.cursor = following
        return self._batch(session, rows=[preload], results=results, done=[name] if whole else [])

    def _fetch(self, name: Fragment, keys: list[bytes]) -> r.Preload:
        """Keys as they are now, for a copy that undid what it had of them."""
        store = self.core.replica.store
        entries = [store.get(name, key) for key in keys]
        return r.Preload(
            name[0],
            name[1],
            [e.epoch if e else 0 for e in entries],
            [e.counter if e else 0 for e in entries],
            keys,
            [e.value if e else None for e in entries],
        )

    def _batch(
        self,
        session: _Session,
        *,
        writes: list[r.Write] | None = None,
        rows: list[r.Preload] | None = None,
        results: list[r.Results] | None = None,
        done: list[Fragment] | None = None,
        missed: list[Fragment] | None = None,
        last: bool = False,
    ) -> Supply:
        return Supply(
            self.core.version,
            session.number,
            session.batch + 1,
            [],
            [],
            [],
            [],
            writes or [],
            rows or [],
            results or [],
            done or [],
            missed or [],
            last,
        )

    def _send(self, session: _Session, batch: Supply) -> None:
        session.batch = batch.batch
        session.credit -= 1
        session.sent[batch.batch] = batch
        self.core.send(session.node, batch)

    # Vouching.

    def on_settled(self, sender: NodeId, message: Settled) -> None:
        """A MOVING copy has no gap: wait for it from now on; at its marks, vouch for it."""
        core, number = self.core, message.partition
        if message.version != core.version or core.frozen or not core.serving or number >= len(core.holds):
            return
        hold = core.holds[number]
        if not hold.mine or not hold.active or hold.placement.state_of(sender) is not CopyState.MOVING:
            return
        state = core.replica.partition(number)
        theirs = {namespace: (lwm, digests) for namespace, lwm, digests in message.fragments}
        wrong = [
            namespace
            for namespace, fragment in state.fragments.items()
            if namespace in theirs and _differs(fragment, theirs[namespace][1])
        ]
        wrong.extend(ns for ns in theirs if ns not in state.fragments and theirs[ns][0])
        if wrong:
            probe("supply.digest_differed")
            self._soften(hold, sender)
            core.send(sender, Settle(core.version, number, [], wrong, [], [], message.round))
            return
        marks = self.hardened.get((number, sender))
        if marks is None:
            marks = {namespace: f.counter.hwm for namespace, f in state.fragments.items()}
            self.hardened[(number, sender)] = marks
            self._regroup(hold)
            self.replication.harden(sender, number)
        ended = [tx for tx in message.readers if tx not in state.prepared]
        lacking = [p for tx, p in state.prepared.items() if not p.writes and tx not in message.readers]
        reached = all(theirs.get(ns, (0, []))[0] >= mark for ns, mark in marks.items())
        if reached and not (ended or lacking or self.replication.outstanding(sender, number)):
            self.vouched[(number, sender)] = None
        else:
            core.send(sender, Settle(core.version, number, list(marks.items()), [], ended, lacking, message.round))

    def _soften(self, hold: Hold, node: NodeId) -> None:
        """The copy begins again: do not wait for it."""
        if self.hardened.pop((hold.number, node), None) is not None:
            self._regroup(hold)
        self.vouched.pop((hold.number, node), None)

    def switch(self) -> None:
        """A new topology: sessions go on for what did not change, and with copies whose node did not start again."""
        core = self.core
        assert core.topology is not None
        lives = {m.node: (m.allocation, m.incarnation) for m in core.topology.members}
        for number, node in list(self.hardened):
            hold = core.holds[number]
            awaited = hold.mine and node in hold.placement.owners and node not in hold.placement.in_sync
            if not awaited or self._lives.get(node) != lives.get(node):
                del self.hardened[(number, node)]
                self.vouched.pop((number, node), None)
        self._lives = lives
        for node, session in list(self._sessions.items()):
            gone = any(
                not core.holds[p].mine or not core.holds[p].active or node not in core.holds[p].placement.owners
                for p in session.partitions
            )
            if gone or lives.get(node) != session.life:
                self._close(session)

    def handle(self, sender: NodeId, message: Message) -> None:
        """Everything that a demander says."""
        match message:
            case Demand():
                self.on_demand(sender, message)
            case More():
                self.on_more(sender, message)
            case Settled():
                self.on_settled(sender, message)
            case _:
                raise AssertionError(f"not a message of a demander: {message}")


def _differs(fragment: FragmentState, digests: list[tuple[int, int]]) -> bool:
    return any((mine := fragment.digest_at(counter)) is not None and mine != digest for counter, digest in digests)


def _at(batch: Supply, version: Version) -> Supply:
    """The same batch, said in another version."""
    return msgspec.structs.replace(batch, version=version)
