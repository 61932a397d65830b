"""Eras: on which side of a cut of the whole database each thing that is decided lies. The part of every member.

Every node has an era, which only grows. A write in one partition is of the era that its primary has when it counts; a
transaction in several, of the greatest era of its votes. Whoever hears of a greater era enters it. The cut e is all that is
of an era before e, and reading at it is reading the newest versions of such an era.

Entering an era means three things, all at once. What is prepared is noted: nothing else can still come to be of an era
before this one. What is overwritten from now on is kept (a lease). And the answers to clients are held, until all members
are known to have entered it (`engine.data.rounds`): so nobody has been told of anything of the new era when something can
still happen in the old one, and the cut lies at one moment. `docs/cut.md` is the whole argument.

Nothing of this is on disk, or on other copies. A lease of a partition ends with its primary's reign.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import assert_never, get_args

from engine.data.kept import Kept
from engine.data.scans import Scanning
from engine.messages import Entered, EnterEra, SealCut, Sealed
from engine.messages.cuts import ToCuts
from engine.protocol.requests import Code, Done, KeepCut
from engine.state.ahead import Ahead
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from rebalance.ports import MS, WORK_MAX, may_act
from rebalance.rule import NewMap, Rule
from wal import records as r
from wal.ids import DECISIONS, EXPIRIES, NO_ERA, NO_VERSION, Era, Fragment, NodeId, TxId
from wal.probe import probe

WITHHELD_MS = 1_000
"""Answers are held for so long at most. Where it was longer, the cut is not handed out."""
LEASE_MS = 10_000
"""A cut that nobody has read at, and whose reader has not been heard of, is let go after so long."""


ENDED_OF_WORK = 4
"""So many cuts that end are as much work as one thing that is decided."""


class Lease:
    """What this node knows of one cut. `open`: what may yet come to be of it, by partition."""

    __slots__ = ("cut", "holders", "open", "released", "scans", "sealed", "until", "waiting")

    def __init__(self, cut: Era) -> None:
        self.cut = cut
        self.sealed = False  # all members have entered the era, and held their answers till then
        self.released = False  # this one did not
        self.until = 0
        self.holders: dict[bytes, None] = {}
        self.open: dict[int, dict[TxId, None]] = {}
        self.waiting: dict[int, list[Callable[[], None]]] = {}
        self.scans: dict[object, Scanning] = {}  # that have more rows, and may be gone on with


class Cuts(Rule):
    """The eras and leases of one node."""

    takes = get_args(ToCuts)

    def __init__(self, core: Core, desk: Desk) -> None:
        super().__init__()
        self.core = core
        self.desk = desk
        self.kept = Kept(core.replica.store, self._lwm)
        self.leases: dict[Era, Lease] = {}  # the oldest first
        self._renewed: OrderedDict[Era, None] = OrderedDict()  # of those that are sealed: whose end is next comes first
        self._unsealed: Lease | None = None  # the newest, if it is not
        self._open: dict[int, dict[Era, Lease]] = {}  # of which cuts something may yet come to be, by partition
        self._lost: dict[int, tuple[Era, Era]] = {}  # from which cut on, and up to which, a partition cannot be read
        self._lost_to = NO_ERA  # the greatest of these
        self._tidies = False
        self.dropped = NO_ERA  # the last cut that was given up for its size
        self.in_doubt: Callable[[], Iterable[tuple[TxId, int]]] = tuple  # what is prepared where this node leads
        self.promoting: Callable[[], bool] = bool  # whether this node is named primary of what it does not serve yet
        self._withheld_until: int | None = None
        core.replica.kept = self.kept

    def _lwm(self, name: Fragment) -> int:
        known = self.core.replica.fragments.get(name)
        return known.counter.lwm if known is not None else 0

    # Eras.

    def hear(self, era: Era) -> None:
        """Something of this era was heard of."""
        if era > self.core.era:
            self._enter(era)

    def _enter(self, era: Era) -> None:
        core = self.core
        probe("cut.entered")
        core.era = era
        if self._unsealed is not None:
            self._end(self._unsealed)  # its round was given up, or would find now that it is
        lease = self.leases[era] = self._unsealed = Lease(era)
        for tx, number in self.in_doubt():
            lease.open.setdefault(number, {})[tx] = None
        for number in lease.open:
            self._open.setdefault(number, {})[era] = lease
        core.work += len(lease.open) // 4
        self.kept.begin(era)
        self._withheld_until = core.now + WITHHELD_MS * MS
        self.desk.withholding = True
        lease.until = core.now + 2 * WITHHELD_MS * MS
        self.alarm.by(self._withheld_until)

    def _close(self, lease: Lease, number: int) -> None:
        """Nothing can come to be of a cut any more in a partition, or it cannot be read there: whoever waits is told."""
        del lease.open[number]
        there = self._open[number]
        del there[lease.cut]
        if not there:
            del self._open[number]
        for go_on in lease.waiting.pop(number, ()):
            go_on()

    # What is applied.

    def keep(self, write: r.Write, era: Era) -> None:
        """A write of this era counts, and is about to be applied."""
        if self.kept and write.namespace not in (DECISIONS, EXPIRIES):
            ahead = self.core.replica.ahead.get((write.fragment, write.start))
            noted = ahead.noted if ahead is not None and ahead.write is write else NO_ERA
            self.kept.keep(write.fragment, write.keys, era, noted)
            if self.kept.has_unread():
                self.core.next_turn(lambda: self.core.in_pieces(self.read()))
            self._bound()

    def note(self, ahead: Ahead) -> Iterator[int]:
        """A large write that is worked out will count in the era of then: note what it overwrites for the newest cut."""
        if self.kept and ahead.write.namespace not in (DECISIONS, EXPIRIES):
            ahead.noted = yield from self.kept.note(ahead.write.fragment, ahead.write.keys)

    def read(self) -> Iterator[int]:
        """What is kept and was not read yet is read where it lies, before a checkpoint takes that away; in pieces."""
        for work in self.kept.read():
            self._bound()
            yield work

    def outcome(self, prepare: r.Prepare | None, era: Era, *, commit: bool) -> None:
        """A transaction of this era ends in one partition: what it has prepared there is about to be applied.

        An era that nobody knows any more may be on either side of the cuts that were taken while it was prepared: these
        cannot be read here. It is on the new side of all that came before.
        """
        if prepare is None or not self.leases:
            return
        number = prepare.partition
        if commit and era == NO_ERA:
            unknown = [cut for cut, lease in self._open.get(number, {}).items() if prepare.tx in lease.open[number]]
            if unknown:
                probe("cut.lost_with_an_era")
                self._lose(number, min(unknown))
            era = self.core.era
        if commit:
            for write in prepare.writes:
                self.keep(write, era)

    def ended(self, tx: TxId, number: int) -> None:
        """A transaction is not in doubt any more in a partition, and what came of it can be read there."""
        for lease in list(self._open.get(number, {}).values()):
            there = lease.open[number]
            there.pop(tx, None)
            if not there:
                self._close(lease, number)

    def _bound(self) -> None:
        """The cuts that keep too much go, the oldest first."""
        while self.kept.bytes > self.core.settings.cut_bytes_max and self.leases:
            probe("cut.too_old")
            cut = next(iter(self.leases))
            self.dropped = max(self.dropped, cut)
            self._end(self.leases[cut])

    # Leases.

    def lose(self, number: int) -> None:
        """What this node has of a partition did not come to be under its eyes."""
        if self.leases:
            self._lose(number, NO_ERA)

    def _lose(self, number: int, first: Era) -> None:
        """There no cut from this one on can be read that was entered by now; nor what lies between such and lost ones."""
        known, last = self._lost.get(number), self.core.era
        self._lost[number] = (first if known is None else min(first, known[0])), last
        self._lost_to = last
        for lease in [lease for cut, lease in self._open.get(number, {}).items() if cut >= first]:
            self._close(lease, number)

    def is_lost(self, lease: Lease, number: int) -> bool:
        """Whether a partition cannot be read at a cut."""
        if number not in self._lost:
            return False
        first, last = self._lost[number]
        return first <= lease.cut <= last

    def _end(self, lease: Lease) -> None:
        """Nobody reads at a cut any more."""
        del self.leases[lease.cut]
        self._renewed.pop(lease.cut, None)
        if lease is self._unsealed:
            self._unsealed = None
        if not self.leases:
            self._lost = {}
        self.kept.end(lease.cut)
        if not self._tidies:
            self._tidies = True
            self.core.little_by_little(self._tidy())
        for number in list(lease.open):
            self._close(lease, number)

    def _tidy(self) -> Iterator[int]:
        yield from self.kept.tidy()
        self._tidies = False

    def renew(self, lease: Lease) -> None:
        """Somebody reads at a cut."""
        lease.until = self.core.now + LEASE_MS * MS
        self._renewed[lease.cut] = None
        self._renewed.move_to_end(lease.cut)

    def on_keep(self, session: SessionId, request: KeepCut) -> None:
        """A reader lives, or is done, as others of the same client may be."""
        lease = self.leases.get(request.cut)
        if request.over:
            self.core.work += len(request.others) // ENDED_OF_WORK
            for cut, holder in ((request.cut, request.holder), *request.others):
                if (theirs := self.leases.get(cut)) is not None:  # else another one of these has ended it
                    self._let_go(theirs, holder)
        if lease is None:
            self.refuse(session, request.id, request.cut)
            return
        if not request.over:
            self.renew(lease)
        self.desk.reply(session, Done(request.id))

    def _let_go(self, lease: Lease, holder: bytes) -> None:
        """One reader less; the last one ends it."""
        if lease.sealed:
            lease.holders.pop(holder, None)
            if not lease.holders:
                self._end(lease)

    def refuse(self, session: SessionId, request_id: int, cut: Era) -> None:
        """A cut cannot be read here."""
        if cut <= self.dropped:
            limit = self.core.settings.cut_bytes_max
            said = (
                f"more than {limit} bytes (`cut_bytes_max`) were overwritten since this snapshot began: begin another one"
            )
            self.desk.refuse(session, request_id, Code.SNAPSHOT_TOO_OLD, said, retryable=True)
            return
        said = f"node {self.core.node} has not kept this snapshot: it was moved, restarted, or not asked for too long"
        self.desk.refuse(session, request_id, Code.SNAPSHOT_LOST, f"{said}; begin another one", retryable=True)

    # Rounds.

    def on(self, sender: NodeId, message: ToCuts) -> None:
        """What is said by whoever takes a cut."""
        core = self.core
        if not may_act(core, message.version):
            return
        match message:
            case EnterEra():
                self.on_enter(sender, message)
            case SealCut(version, cut, holders):
                core.tell(sender, Sealed(version, cut, self._seal(cut, holders)))
            case _:
                assert_never(message)

    def on_enter(self, sender: NodeId, message: EnterEra) -> None:
        """Enter the era of a round, unless what this node leads could not be read at its cut."""
        if self.promoting():
            probe("cut.waited_for_a_promotion")
            return
        if NO_VERSION != message.placed < self.core.reign:
            probe("cut.began_before_a_handover")
            return  # who led it then may have written in this era, which would pass for older here
        self.hear(message.era)
        lease = self.leases.get(message.era)
        if lease is not None and lease.cut > self._lost_to:
            self.core.tell(sender, Entered(message.version, message.era))

    def _seal(self, cut: Era, holders: list[bytes]) -> bool:
        """All members have entered an era: whether it can be read at here, and nothing was told in between."""
        lease = self.leases.get(cut)
        if lease is None or lease.released:
            probe("cut.answers_were_given")
            return False
        if not lease.sealed:
            lease.sealed, self._unsealed = True, None
            lease.holders = dict.fromkeys(holders)
            self.renew(lease)
            self.alarm.by(lease.until)
        if self.core.era == cut:
            self._give()
        return True

    def _give(self) -> None:
        """What clients are to be told is told from now on, and first what was not."""
        self._withheld_until = None
        self.desk.withholding = False

    # Topology and time.

    def activated(self, local: LocalPartition) -> None:
        """This node begins to lead a partition: what it issues again is of no era that it knows."""
        self.lose(local.number)

    def switch(self, new: NewMap) -> None:
        """A new topology: what has another primary, or another epoch, cannot be read at the cuts of before."""
        for local in new.changed if self.leases else ():
            self.lose(local.number)

    def tick(self) -> None:
        """Held answers are given in any case; a cut that nobody reads at is let go."""
        now = self.core.now
        self.alarm.off()
        if self._withheld_until is not None and self.alarm.is_due(self._withheld_until, now):
            probe("cut.held_too_long")
            self._give()
            if self._unsealed is not None:
                self._unsealed.released = True
        if self._unsealed is not None and self.alarm.is_due(self._unsealed.until, now):
            self._end(self._unsealed)
        while (cut := next(iter(self._renewed), None)) is not None:
            if self.core.work >= WORK_MAX:
                self.alarm.by(now)
                break
            if not self.alarm.is_due(self.leases[cut].until, now):
                break
            probe("cut.expired")
            self.core.work += 1
            self._end(self.leases[cut])
