"""Whose answers are kept, and for how long: what a client may rely on when it asks again.

A client has a session: ten bytes that it drew, and a sequence number for each thing that it asks (both are the
transaction id). What was executed under an id is noted in its partition, by the record that executed it, on every copy.
Each request says up to which number its client has all answers (`acked`), and by which map it was sent (`version`).

When an id comes that is not known here, was it never executed, or executed and forgotten? It is decided by three facts,
and by no clock of a client:

* What its client has not acknowledged is not forgotten, as long as the session is heard of and for `result_retention_ms`
  after. So an id that its client still asks about, and that is not known, was never executed: it may be now.
* What its client has acknowledged may be forgotten. A copy of such a request may still be on its way, on a connection
  that stood still; it must not be executed once more. This node refuses every id at or below what it heard acknowledged,
  and whoever asks again for what it has the answer to says so in that very request.
* If the answer was forgotten under an earlier primary, this one may not have heard of it. But then the copy was sent by a
  map that is older than the time since which this node is primary, and it is sent back (`Remap`) unseen. Who still wants
  the answer sends it again, by the new map.

Nobody hears the same, so what is forgotten is decided in one place, the partition's primary, and is a record, `Forget`,
which all copies fold: time is no part of their state. The primary looks only where answers pile up (`Results.enough`), so
that a partition where little happens keeps what it has for ever. What this costs: some bytes per client in each node, and
in each partition the newest few hundred answers, and those that clients did not acknowledge, of `result_retention_ms`.

Sessions cost nothing to invent, so a node remembers `SESSIONS_MAX`. To let go of one that has acknowledged nothing loses
nothing: none of its answers was forgotten here, and its silence begins anew. So these make room for others. If there are
none, what comes in a new session is refused before anything is done, until one has been silent for long enough: whoever has
acknowledged something relies on it that this is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial

from engine.data.replication import Replication
from engine.protocol.requests import Done, KeepSessions
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS, Operation, leads, may_act
from rebalance.rule import NEVER, NewMap, Rule
from wal import records as r
from wal.ids import SEQUENCE_MAX, SESSION_BYTES, TxId, end_of, sequence_of
from wal.probe import probe

AHEAD_MAX = 1 << 16
"""How far a session may run ahead of what it acknowledged: so many of its answers are kept at most."""
LOOKED_AT_ONCE = 10_000
"""Of one partition's answers, the oldest: a turn has a budget, and what is behind them is looked at when most are gone."""
SESSIONS_MAX = 1 << 17
"""So many sessions are remembered at most, some 40 MB of them."""
KEPT_OF_WORK = 16
"""So many sessions that are said to be alive are as much work as one thing that is asked for."""
PRUNED_AT_ONCE = 2
"""So many old sessions are looked at for each new one."""
ANSWERS_OF_WORK = 20
"""So many answers that are looked at, of which some are forgotten, are as much work as one thing that is asked for."""


class _Heard:
    """What this node heard of a session: up to which number it has its answers, and when it was heard of.

    `at` is told by `Core.attentive`: a node that was stopped, or whose clock jumped, calls nobody silent for that time.
    """

    __slots__ = ("acked", "at")

    def __init__(self, at: int) -> None:
        self.acked = -1
        self.at = at


class Sessions(Rule):
    """The sessions that one node has heard of, and the partitions whose answers it may have to look at."""

    def __init__(self, core: Core, replication: Replication, desk: Desk) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self.replication = replication
        self.under_way: dict[int, None] = {}
        self._heard: OrderedDict[bytes, _Heard] = OrderedDict()  # the first is looked at next
        self._nothing: OrderedDict[bytes, None] = OrderedDict()  # who has acknowledged nothing, the first met first
        self._crowded: dict[int, None] = {}
        self._looking = False  # through these
        self._again: dict[int, int] = {}  # partition -> when its answers are old enough to be looked at again

    def hear(self, tx: TxId, acked: int) -> bool:
        """A session says up to where it has its answers. Whether `tx` may be new: it was not acknowledged.

        Nor is it too far ahead of what was; but of a session that acknowledges nothing one cannot tell. And one that cannot
        be remembered begins nothing.
        """
        name = tx[:SESSION_BYTES]
        heard = self._heard.get(name) or self._meet(name)
        if heard is None:
            return False
        known = self._renew(name, heard, acked)
        return known < 0 or 0 < sequence_of(tx) - known <= AHEAD_MAX

    def _renew(self, name: bytes, heard: _Heard, acked: int) -> int:
        """It was heard of now, with all answers up to `acked`; up to which it has them, as far as is known."""
        heard.at = self.core.attentive
        if acked > heard.acked:
            if heard.acked <= 0:
                self._acknowledge(name, heard, acked)
            heard.acked = acked
        return heard.acked

    def _acknowledge(self, name: bytes, heard: _Heard, acked: int) -> None:
        if heard.acked <= 0 < acked:
            del self._nothing[name]
        heard.acked = acked

    def remembers(self, tx: TxId) -> bool:
        """Whether the session of an id is known, and so what it acknowledges."""
        return tx[:SESSION_BYTES] in self._heard

    def ahead(self, tx: TxId) -> int:
        """How far an id is ahead of what its session, if it acknowledges at all, has acknowledged."""
        heard = self._heard.get(tx[:SESSION_BYTES])
        return sequence_of(tx) - heard.acked if heard is not None and heard.acked >= 0 else 0

    def acknowledged(self, tx: TxId) -> bool:
        """Whether the client said that it has the answer to `tx`."""
        heard = self._heard.get(tx[:SESSION_BYTES])
        return heard is not None and sequence_of(tx) <= heard.acked

    def _meet(self, session: bytes) -> _Heard | None:
        """Note a new session; and let go of old ones, long after the last of their answers were. None: there is no room."""
        heard = self._heard
        oldest = self.core.attentive - 2 * self.core.settings.result_retention_ms * MS
        for _ in range(min(PRUNED_AT_ONCE, len(heard))):
            name, other = heard.popitem(last=False)
            if other.at < oldest:
                probe("sessions.let_go")
                self._nothing.pop(name, None)
            else:
                heard[name] = other
        if len(heard) >= SESSIONS_MAX:
            if not self._nothing:
                return None
            probe("sessions.made_room")
            del heard[self._nothing.popitem(last=False)[0]]
        new = heard[session] = _Heard(self.core.attentive)
        self._nothing[session] = None
        return new

    def on_keep(self, session: SessionId, request: KeepSessions) -> None:
        """A client that has nothing else to say is alive. Of sessions that are not known here nothing was forgotten."""
        self.core.work += len(request.sessions) // KEPT_OF_WORK
        for name, acked in request.sessions:
            if (heard := self._heard.get(name)) is not None:
                self._renew(name, heard, acked)
        self.desk.reply(session, Done(request.id, version=self.core.version_number))

    def crowd(self, number: int) -> None:
        """A partition of this primary has many answers: see at the end of the turn which of them may go."""
        self._crowded[number] = None
        self.alarm.by(self.core.now)

    def tick(self) -> None:
        """Look where answers have piled up, or have grown old."""
        core = self.core
        due = [number for number, at in self._again.items() if core.now >= at]
        for number in due:
            del self._again[number]
            self._crowded[number] = None
        self.alarm.set(min(self._again.values(), default=NEVER))
        if self._crowded and not self._looking:
            self._looking = True
            core.in_pieces(self._look_through())

    def _look_through(self) -> Iterator[int]:
        """Look at one partition after the other, those that come to be crowded meanwhile last."""
        core, crowded = self.core, self._crowded
        while crowded:
            number = next(iter(crowded))
            del crowded[number]
            local = leads(core, number)
            if local is not None and may_act(core, core.fence) and number not in self.under_way:
                yield self._look(local)
        self._looking = False

    def _look(self, local: LocalPartition) -> int:
        """Forget what is acknowledged, and what is of sessions that have been silent for too long; how much work it was."""
        core = self.core
        state = core.replica.partition(local.number)
        results = state.results
        if len(results) <= core.settings.answers_kept:
            results.set_enough(core.settings.answers_kept)
            return 1
        oldest = core.attentive - core.settings.result_retention_ms * MS
        up_to: dict[bytes, int] = {}
        kept = forgotten = 0
        # What is prepared here is noted once more by its outcome, which may come to count before what is forgotten now, or
        # after: the log would say one thing, and the copies another. So it is forgotten when it is over.
        open_from: dict[bytes, int] = {}
        for tx in state.prepared:
            open_from[tx[:SESSION_BYTES]] = min(sequence_of(tx), open_from.get(tx[:SESSION_BYTES], SEQUENCE_MAX))
        # The newest are no burden: whoever was told a moment ago that a transaction failed may still ask how it ended.
        spared = core.settings.answers_kept // 2
        by_session: dict[bytes, list[TxId]] = {}
        looked_at = results.oldest(min(LOOKED_AT_ONCE, len(results) - spared))
        for tx in looked_at:
            by_session.setdefault(tx[:SESSION_BYTES], []).append(tx)
        for session, ids in by_session.items():
            heard = self._heard.get(session) or self._meet(session)  # of a copy or an earlier primary its time begins now
            over = open_from.get(session, SEQUENCE_MAX + 1) - 1
            acked, silent = (heard.acked, heard.at <= oldest) if heard is not None else (-1, False)
            end = end_of(session, over if silent else min(over, acked))
            gone = [tx for tx in ids if tx < end]
            if len(gone) < len(ids):
                kept += len(ids) - len(gone)
                if session in open_from:
                    probe("sessions.not_over")
            if gone:
                forgotten += len(gone)
                last = up_to[session] = sequence_of(max(gone))
                if last > acked and heard is not None:
                    probe("sessions.silent_for_too_long")
                    self._acknowledge(session, heard, last)  # whoever asks again is refused
        most = core.settings.answers_kept
        goes_on = len(looked_at) == LOOKED_AT_ONCE and 2 * forgotten >= LOOKED_AT_ONCE
        results.set_enough(most if goes_on else max(most, 2 * (len(results) - forgotten)))
        if kept > most:
            self.alarm.by(self._again.setdefault(local.number, core.now + core.settings.result_retention_ms * MS))
        if up_to:
            record = r.Forget(local.number, local.epoch, list(up_to.items()))
            self.under_way[local.number] = None
            core.log_unapplied(record)
            done, stopped = partial(self._forgotten, record), partial(self._over, record)
            self.replication.ship(Operation(local, [record], counted=done, abandoned=stopped), local)
        return 1 + len(looked_at) // ANSWERS_OF_WORK

    def _forgotten(self, record: r.Forget) -> None:
        """Every in-sync copy will forget it, so this one may."""
        self.core.replica.apply(record)
        self._over(record)

    def _over(self, record: r.Forget) -> None:
        self.under_way.pop(record.partition, None)

    def switch(self, _: NewMap) -> None:
        """A new topology: what was under way is sent again or abandoned; what is not this node's is not looked at."""
        local = self.core.local
        self._again = {number: at for number, at in self._again.items() if number < len(local) and local[number].mine}
