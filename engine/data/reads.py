"""Reads at the primary, and what makes them true.

A node that was deposed without knowing it would answer with the past. So before a read is answered the primary asks every
in-sync copy whether it is still at this version; a new primary cannot have told anyone anything without their having left
it. One question serves all reads that arrived in a turn, and costs a round trip but no disk. No clock is trusted.

A key whose transaction is prepared has no value that may be told until the outcome is known: reads of it wait.

A stale read is answered by any OWNING copy as it is. What it holds is as old as the last time at which it asked the other
in-sync copies, and every one of them was still at this version: nothing can have been acknowledged before without it. So
its age is known by the same question, and counted by the copy's own clock. Only of a transaction that it has prepared it
cannot know whether it was acknowledged: the primary does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, assert_never, get_args

from msgspec import structs

from engine.data.admission import Admission
from engine.data.answering import ANSWERED_AT_ONCE, NOBODY, PARTITIONS_OF_WORK, Answering, Round, Then, Which, is_little
from engine.data.counting import Counting, count_of
from engine.data.cut_reads import CutReads
from engine.data.expiry import Expiry
from engine.data.holdings import Key
from engine.data.live_scans import LiveScan
from engine.data.locks import LockTable
from engine.data.looks import Looks
from engine.data.scans import Alike, alike, reply_to
from engine.data.values import values_of
from engine.messages import AskMap, Confirm, Confirmed
from engine.messages.data import ToReads
from engine.protocol.requests import KEYS_AT_ONCE, Code, Get, Request, Scan
from engine.turn.core import Core
from engine.turn.events import Asked, SessionId
from rebalance.following import may_tell
from rebalance.partition import Role
from rebalance.ports import MS, WORK_MAX, may_act
from rebalance.rule import NewMap, Rule
from wal.ids import EXPIRIES, NO_ERA, NO_VERSION, NodeId
from wal.probe import probe

AGE_MS = 100
"""A copy that answers stale reads asks about its age so often, if nobody wants to know better."""


_AskedScan: TypeAlias = tuple[SessionId, Scan, int]
"""By whom, and since when."""
_WONDER = Get(0, "", [])


class Reads(Rule):
    """The reads of one node."""

    takes = get_args(ToReads)

    def __init__(self, core: Core, locks: LockTable, admission: Admission, at_cut: CutReads, expiry: Expiry) -> None:
        super().__init__()
        self.core = core
        self.at_cut = at_cut
        self.expiry = expiry
        self.locks = locks
        self.desk = admission.desk
        self.admission = admission
        self._turn: dict[Which, list[Then]] = {}
        self._rounds: dict[int, Round] = {}
        self._answering = Answering(core)
        self._sequence = core.run << 40
        self._scans: dict[int, tuple[LiveScan | Counting, list[_AskedScan]]] = {}  # being read, and for whom
        self._alike: dict[Alike, list[_AskedScan]] = {}  # confirmed, and yet to be read
        self.looks = Looks(core.replica)
        self._number = 0
        self._behind: dict[Key, list[tuple[SessionId, Get, int]]] = {}  # waits for a prepared key's outcome, since
        self._scans_behind: dict[Key, list[int]] = {}
        self._current: dict[tuple[NodeId, ...], int] = {}  # copies -> when they were known to be at this version
        self._wondering: dict[tuple[NodeId, ...], int] = {}  # copies that were asked about it, when
        self._of_a_later_map: deque[tuple[NodeId, Confirm]] = deque(maxlen=64)  # the last ones that came before it

    # What is asked.

    def on_get(self, session: SessionId, request: Get) -> None:
        """The values of keys."""
        core = self.core
        if request.cut != NO_ERA:
            self.at_cut.on_get(session, request)
            return
        if request.namespace in core.namespaces and (problem := self.admission.unusable(request.namespace)):
            self.desk.refuse(session, request.id, Code.USAGE, problem)
            return
        assert core.topology is not None
        numbers = dict.fromkeys(core.topology.places(request.namespace, request.keys[:KEYS_AT_ONCE]))
        core.work += min(len(request.keys), KEYS_AT_ONCE) // 2
        if request.stale:
            reply = self.desk.reply
            if not self._answer_stale(session, request, numbers, lambda ms: reply(session, values_of(core, request, ms))):
                self.on_get(session, structs.replace(request, stale=False))
            return
        needed: dict[NodeId, None] = {}
        for number in numbers:
            local = core.local[number]
            if not self.admission.may_serve(session, request, local, None, new=False):
                return
            needed |= dict.fromkeys(local.needed)
        answer = partial(self._answer_get, session, request)
        if not is_little(request):  # else that is what it would come to
            answer = partial(self._answering.soon, session, request, answer)
        self.confirm(needed, session, request, answer)

    def _answer_stale(
        self, session: SessionId, request: Get | Scan, numbers: Iterable[int], answer: Callable[[int], None]
    ) -> bool:
        """`answer` with what this copy holds, if it is known to be as new as it should be; else as soon as it is.

        False: something here is prepared, of which only a confirmed read can tell, and this node can confirm it.
        """
        core, me = self.core, self.core.node
        if not core.serving or not all(core.local[number].in_sync for number in numbers):
            ours = request.namespace.startswith("~")  # what clients agree on among themselves: no copy may be without it
            if request.age_ms < 0 and not ours and core.serving and all(may_tell(core, number) for number in numbers):
                answer(-1)  # how old it is nobody knows
            else:
                self.desk.remap(session, request.id)
            return True
        doubt = any(core.replica.partition(number).prepared for number in numbers)
        if doubt and request.age_ms >= 0:
            if all(core.local[number].mine for number in numbers):
                return False
            probe("read.stale_of_prepared")
            self.desk.remap(session, request.id)
            return True
        others = dict.fromkeys(tuple(n for n in core.local[number].placement.in_sync if n != me) for number in numbers)
        ages = [self._age_ns(group) for group in others]
        age = max(ages, default=0) if min(ages, default=0) >= 0 and not doubt else -1
        wanted = request.age_ms * MS
        if request.age_ms < 0 or 0 <= age <= wanted:
            answer(-(-age // MS) if age >= 0 else -1)
            for group, known in zip(others, ages, strict=True):
                if not 0 <= known <= AGE_MS * MS:
                    self._wonder(group)
            return True
        probe("read.waited_to_be_new_enough")
        needed, now = dict.fromkeys(node for group in others for node in group), core.now

        def confirmed() -> None:
            self._current |= dict.fromkeys(others, now)
            answer(-(-(core.now - now) // MS))

        self.confirm(needed, session, request, partial(self._answering.soon, session, request, confirmed), stale=True)
        return True

    def _age_ns(self, others: tuple[NodeId, ...]) -> int:
        """How long ago the other in-sync copies were known to be at this version; -1: nobody knows."""
        if not others:
            return 0
        known = self._current.get(others)
        return self.core.now - known if known is not None else -1

    def _wonder(self, others: tuple[NodeId, ...]) -> None:
        """Find out whether these copies are still at this version, for the reads to come."""
        if others in self._wondering:
            return
        now = self._wondering[others] = self.core.now

        def known() -> None:
            del self._wondering[others]
            self._current[others] = max(now, self._current.get(others, 0))

        self._turn.setdefault((tuple(sorted(others)), True), []).append((NOBODY, _WONDER, known))

    def on_scan(self, session: SessionId, request: Scan, *, caught_up: bool = False) -> None:
        """Rows of partitions in key order; a stale page is as old as what it begins with."""
        core, numbers = self.core, request.partitions
        if request.cut != NO_ERA:
            self.at_cut.on_scan(session, request)
            return
        if request.namespace in core.namespaces and (problem := self.admission.unusable(request.namespace)):
            self.desk.refuse(session, request.id, Code.USAGE, problem)
            return
        if not self.admission.are_of(request.namespace, numbers):
            self.desk.remap(session, request.id)
            return
        if request.count and not request.stale and not caught_up and self.expiry.behind:
            self.expiry.catch_up(lambda: self.on_scan(session, request, caught_up=True), (session, request))
            return
        core.work += len(numbers) // PARTITIONS_OF_WORK
        if request.stale:
            core.work += len(numbers) // 2
            if not self._answer_stale(session, request, numbers, lambda age_ms: self._answer_scan(session, request)):
                self.on_scan(session, structs.replace(request, stale=False))
            return
        groups: dict[tuple[NodeId, ...], None] = {}  # few, where partitions may be thousands
        serves = self.admission.serves
        for number in numbers:
            local = core.local[number]
            if not (serves and local.role is Role.PRIMARY) and not self.admission.may_serve(
                session, request, local, None, new=False
            ):
                return
            groups[local.needed] = None
        needed = dict.fromkeys(node for group in groups for node in group)
        self.confirm(needed, session, request, lambda: self._answer_scan(session, request))

    def confirm(
        self,
        needed: Iterable[NodeId],
        session: SessionId,
        request: Request,
        then: Callable[[], None],
        *,
        stale: bool = False,
    ) -> None:
        """Do `then` as soon as every copy in `needed` has confirmed that this node is still primary.

        `stale`: that it has this very map, in which this node's copy is waited for.
        """
        copies = tuple(sorted(needed))
        if not copies:
            then()
            return
        self._turn.setdefault((copies, stale), []).append((session, request, then))

    def flush(self) -> None:
        """End of the turn: one question to each set of copies."""
        core = self.core
        for key, then in self._turn.items():
            self._sequence += 1
            asked = self._rounds[self._sequence] = Round(key, then)
            asked.asked_at = asked.since = core.now
            core.send_early(key[0], asked.question(core, self._sequence))
            wake = core.now + core.settings.retransmit_ms * MS
            self.alarm.by(wake)
        self._turn = {}

    # Answers.

    def _answer_get(self, session: SessionId, request: Get) -> None:
        """Tell the values, when nothing of them is in doubt and what has expired is gone: also what was committed since
        that was asked, and has expired by now."""
        core, namespace, keys = self.core, request.namespace, request.keys[:KEYS_AT_ONCE]
        if len(self.locks):
            for key in keys:
                if self.locks.in_doubt((namespace, key)):
                    probe("read.waited_for_outcome")
                    self._behind.setdefault((namespace, key), []).append((session, request, core.now))
                    return
        if EXPIRIES in core.replica.namespaces and (over := self.expiry.over(namespace, keys)):
            again = partial(self._answer_get, session, request)
            self.expiry.delete_first(over, partial(self._answering.soon, session, request, again), (session, request))
            return
        self.desk.reply(session, self.expiry.values_of(request) if request.expiry else values_of(core, request))

    def outcome_known(self, keys: list[Key]) -> None:
        """Prepared keys have their outcome: whoever waited to read them may, and at once, since they may soon be in doubt
        again. This node was the primary after that was asked, and nobody but who had voted has written them since."""
        if not (self._behind or self._scans_behind):
            return  # how it nearly always is
        for key in keys:
            waiting = self._behind.pop(key, [])
            if len(waiting) > ANSWERED_AT_ONCE:
                self._behind[key] = waiting[ANSWERED_AT_ONCE:]
                self.core.resume(partial(self._outcome_still_known, key))
            self.core.work += len(waiting[:ANSWERED_AT_ONCE])
            for session, request in self.desk.still_wanted(waiting[:ANSWERED_AT_ONCE]):
                if isinstance(request, Get):
                    self._answering.soon(session, request, partial(self._answer_get, session, request))
            for number in self._scans_behind.pop(key, []):
                self.core.resume(partial(self._scan_on, number))

    def _outcome_still_known(self, key: Key) -> None:
        """Of very many who waited to read it, some wait still."""
        if not self.locks.in_doubt(key):
            self.outcome_known([key])

    def _answer_scan(self, session: SessionId, request: Scan) -> None:
        """Have it read, once for all that ask for the same before that begins: a look into thousands of partitions costs
        as much for one as for many. Whoever asks while it is read has it read again, after that."""
        asked = self._alike.get(what := alike(request))
        if asked is not None:
            asked.append((session, request, self.core.now))
            return
        self._alike[what] = [(session, request, self.core.now)]
        self.core.resume(lambda: self._begin_scan(what))

    def _begin_scan(self, what: Alike) -> None:
        asked = self._alike.get(what)
        if not asked:
            self._alike.pop(what, None)
            return
        self._alike[what] = []
        self._number += 1
        core, request = self.core, asked[0][1]
        if len(asked) > 1:
            probe("scan.shared")
        store = core.replica.store
        if request.count:
            scan: LiveScan | Counting = Counting(request, count_of(store), store.page)
        else:
            scan = LiveScan(request, self.expiry, self.looks)
        if request.marks:
            core.work += len(request.partitions) // 4
            fragments = (
                (core.local[n].epoch, core.replica.fragments.get((request.namespace, n))) for n in request.partitions
            )
            scan.marks = [(epoch, known.counter.lwm if known is not None else 0) for epoch, known in fragments]
        self._scans[self._number] = (scan, asked)
        self._scan_on(self._number)

    def _scan_on(self, number: int) -> None:
        """A piece of a scan; nothing, if it was ended by a new topology."""
        if number not in self._scans:
            return
        core = self.core
        scan, asked = self._scans[number]
        request, awaited = scan.request, []
        wanted = self.desk.still_wanted(asked)
        if not wanted:
            self._scan_over(number)
            return

        unlocked = scan if request.unlocked and isinstance(scan, LiveScan) else None

        def doubtful(partition: int, start: bytes, following: bytes | None) -> bool:
            if isinstance(scan, Counting) and not start and following is None and not request.stale:
                found = scan.waited_for(partition, self.locks)
                awaited.extend(found)
                return bool(found)
            for namespace, key in self.locks.keys_in_doubt(partition) if not request.stale else ():
                if (
                    namespace == request.namespace
                    and key >= start
                    and (following is None or key < following)
                    and request.start <= key
                    and (request.end is None or key < request.end)
                ):
                    if unlocked is not None:
                        unlocked.unsure = True
                        return False
                    awaited.append((namespace, key))
                    return True
            return False

        core.work += scan.go_on(max(WORK_MAX - core.work, WORK_MAX // 10), doubtful)
        if isinstance(scan, LiveScan) and self._deletes(number, scan) and scan.done:
            return
        if scan.done:
            reply = scan.reply()
            for rank, (session, each) in enumerate(wanted):
                self.desk.reply(session, reply_to(each.id, reply, rank if request.unlocked else 0))
            self._scan_over(number)
        elif scan.waits and awaited:  # else what is left is looked at once more
            probe("scan.waited_for_outcome")
            self._scans_behind.setdefault(awaited[-1], []).append(number)
        else:
            core.resume(partial(self._scan_on, number))

    def _scan_over(self, number: int) -> None:
        """Whoever asked for the same meanwhile is next."""
        scan, _ = self._scans.pop(number)
        self._begin_scan(alike(scan.request))

    def _deletes(self, number: int, scan: LiveScan) -> bool:
        """Have deleted what a scan has passed over; whether any of it is there still."""
        if scan.over:
            over, scan.over = scan.over, []
            scan.deleting += 1
            self.expiry.delete_first(over, lambda: self._scan_deleted(number, scan))
        return scan.deleting > 0

    def _scan_deleted(self, number: int, scan: LiveScan) -> None:
        """What a scan has passed over is gone."""
        scan.deleting -= 1
        if scan.done and not scan.deleting:
            self._scan_on(number)

    # Copies, and time.

    def on_confirm(self, sender: NodeId, message: Confirm) -> None:
        """A primary asks whether this node has left its version."""
        core = self.core
        if max(message.version, message.placed) > core.version:
            core.send(sender, AskMap(core.version))
            self._of_a_later_map.append((sender, message))
        elif may_act(core, message.version) and message.placed in (NO_VERSION, core.version):
            core.send(sender, Confirmed(message.version, message.sequence))

    def on_confirmed(self, sender: NodeId, message: Confirmed) -> None:
        """A copy has not left it."""
        core = self.core
        asked = self._rounds.get(message.sequence) if message.version == core.fence else None
        if asked is None:
            return
        asked.waiting.pop(sender, None)
        if not asked.waiting:
            del self._rounds[message.sequence]
            if (work := core.work + len(asked.then)) <= WORK_MAX:
                core.work = work
                for _, _, then in asked.then:  # how it nearly always is
                    then()
            else:
                self._answering.put_off(asked.then)

    def switch(self, _: NewMap | None = None) -> None:
        """A new topology, or one that is about to come: every read that was not answered must be asked again."""
        now = self.core.now
        again = [(session, request, asked.since) for asked in self._rounds.values() for session, request, _ in asked.then]
        again.extend((session, request, now) for session, request, _ in self._answering.give_up())
        again.extend((session, request, now) for then in self._turn.values() for session, request, _ in then)
        again.extend(waiting for queue in self._behind.values() for waiting in queue)
        again.extend(waiting for _, asked in self._scans.values() for waiting in asked)
        again.extend(waiting for asked in self._alike.values() for waiting in asked)
        self._rounds, self._turn, self._behind, self._scans = {}, {}, {}, {}
        self._scans_behind, self._alike, self._current, self._wondering = {}, {}, {}, {}
        for _times in range(len(self._of_a_later_map)):
            self.on_confirm(*self._of_a_later_map.popleft())
        self.looks.forget()
        self.desk.ask_again([Asked(*asked) for asked in again if asked[1] is not _WONDER])

    def step(self, new: NewMap) -> None:
        """A light step. Where a copy is waited for no more, nobody knows how old it is; where a primary moved from here or
        to here, whoever waits asks again."""
        self.looks.forget()
        reigns = self.core.reign == self.core.version
        if reigns or any(not local.in_sync for local in new.changed):
            self.switch(new)

    def tick(self) -> None:
        """Ask again what was not confirmed."""
        core = self.core
        after = core.settings.retransmit_ms * MS
        self.alarm.off()
        for sequence, asked in self._rounds.items():
            if self.alarm.is_due(asked.asked_at + after, core.now):
                asked.asked_at = core.now
                core.send(tuple(asked.waiting), asked.question(core, sequence))
                self.alarm.by(core.now + after)

    def on(self, sender: NodeId, message: ToReads) -> None:
        """Everything that is said about reads."""
        match message:
            case Confirm():
                self.on_confirm(sender, message)
            case Confirmed():
                self.on_confirmed(sender, message)
            case _:
                assert_never(message)
