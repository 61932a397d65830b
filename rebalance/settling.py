"""When a MOVING copy has no gap any more: it says so, until its primary vouches for it.

It says with it what it contains, if that takes a little, and else when it was asked for that; and again at the marks that
its primary sets. A copy that stands still below its marks lacks something, and asks for it. Many say so in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heappop, heappush

from rebalance.comparing import Answers, contents_now
from rebalance.messages import AllSettled, Settle, Settled
from rebalance.partition import Role
from rebalance.ports import MS, WORK_MAX, Node
from rebalance.rule import drop
from wal import records as r
from wal.ids import Fragment, NodeId
from wal.probe import probe

SAID_SELDOM_MAX = 8
"""What was said and nobody answered is said again after `retransmit_ms`, and then half as often each time, to so many times
`retransmit_ms`: a copy that its primary has vouched for waits for the next map, and there may be thousands of them."""
STUCK_AFTER = 5
"""Times `retransmit_ms` without progress: a copy below its mark lacks something."""


class Settling:
    """The partitions of one node that have no gap any more, until the next map makes their copies in sync."""

    def __init__(
        self,
        core: Node,
        *,
        again: Callable[[NodeId, int], None],
        differs: Callable[[NodeId, int, int], None],
        planned: Callable[[], None],
    ) -> None:
        self.core = core
        self._again = again  # a copy lacks something after all
        self._differs = differs  # its primary says so, and how often it has
        self._planned = planned  # `due` is another one
        self._when: dict[int, int] = {}  # partition -> when to say Settled again
        self._due: list[tuple[int, int, int]] = []  # a heap of (when, order, partition); one that is not so is passed over
        self._order = 0
        self._marks: dict[int, dict[str, int]] = {}
        self._rounds: dict[int, int] = {}  # partition -> how often it was said to be settled
        self._pauses: dict[int, int] = {}  # partition -> times `retransmit_ms` until it is said again
        self._void: dict[int, int] = {}  # partition -> as often before it began again; answers to that mean nothing now
        self._sessions: dict[int, int] = {}  # partition -> the session that supplied it
        self.told: dict[int, None] = {}  # it was said unasked what these contain, under a map that has not changed them
        self.said_in_this_life: dict[int, None] = {}  # that these are settled: who heard it may wait for them, or vouch
        self._stuck: dict[Fragment, tuple[int, int]] = {}  # short of its mark -> (where it stands, since when)
        self._together: dict[NodeId, None] = {}  # primaries that take many in one message
        self._said: dict[NodeId, list[Settled]] = {}  # about to leave
        self._going_on = False
        self.answers = Answers(core)

    def __len__(self) -> int:
        return len(self._when)

    def forget(self, number: int) -> None:
        """It begins again, or is not wanted any more."""
        self._when.pop(number, None)
        self._marks.pop(number, None)
        self._pauses.pop(number, None)

    def switch(self, gone: Container[int]) -> None:
        """A new map: so it is with these."""
        for kept in (self._when, self._marks, self._pauses, self._sessions):
            drop(kept, gone)
        self.answers.switch(gone)

    def may_say_together(self, primary: NodeId, may: bool) -> None:
        """Whether a primary knows of `AllSettled`; one of an older version does not say so."""
        if may:
            self._together[primary] = None
        else:
            self._together.pop(primary, None)

    def due(self) -> int | None:
        """When to say something."""
        while self._due and self._when.get(self._due[0][2]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def begin(self, number: int, when: int, *, session: int = 0) -> None:
        """Say that a partition is settled, then; or that it is so after this session."""
        if session:
            self._sessions[number] = session
        if number not in self._when:
            self._void[number] = self._rounds.get(number, 0)
        self._when[number] = when
        self._order += 1
        heappush(self._due, (when, self._order, number))

    def go_on(self) -> None:
        """Say what is due, as much as the turn has room for; a copy that cannot reach its marks asks for what it lacks."""
        core = self.core
        while self._due and self._due[0][0] <= core.now and core.work < WORK_MAX:
            when, _, number = heappop(self._due)
            if self._when.get(number) != when:
                continue
            core.work += 1 + len(core.replica.partition(number).fragments)
            primary = core.local[number].placement.primary
            if primary is not None and self._is_stuck(number, STUCK_AFTER * core.settings.retransmit_ms * MS):
                probe("demand.gap_after_settling")
                self._again(primary, number)
                continue
            pause = self._pauses.pop(number, 1)
            self.begin(number, core.now + pause * core.settings.retransmit_ms * MS)
            if primary is not None and self._say_settled(primary, number, again=pause > 1):
                self._pauses[number] = min(2 * pause, SAID_SELDOM_MAX)
        said, self._said = self._said, {}
        for primary, copies in said.items():
            if len(copies) > 1 and primary in self._together:
                core.send(primary, AllSettled(core.fence, copies))
            else:
                for settled in copies:
                    core.send(primary, settled)
        self._planned()

    def _say_settled(self, primary: NodeId, number: int, *, again: bool) -> bool:
        """Whether there was something to say: below its marks a copy is not settled.

        What it contains is said unasked where the primary may be waiting for that, and not `again`.
        """
        core = self.core
        if not self._at_its_marks(number):
            return False
        state = core.replica.partition(number)
        self._rounds[number] = self._rounds.get(number, 0) + 1
        self.said_in_this_life[number] = None
        compared, contents = self.answers.of(number)
        if not compared and not again and (contents := contents_now(core, number)) is not None:
            self.told[number] = None
        self._said.setdefault(primary, []).append(
            Settled(
                core.fence,
                number,
                [(ns, f.counter.lwm, f.recent_digests()) for ns, f in state.fragments.items()],
                [tx for tx, prepare in state.prepared.items() if not prepare.writes],
                self._rounds[number],
                compared=compared,
                contents=contents,
                session=self._sessions.get(number, 0),
            )
        )
        return True

    def _at_its_marks(self, number: int) -> bool:
        fragment = self.core.replica.fragment
        return all(fragment((ns, number)).counter.lwm >= mark for ns, mark in self._marks.get(number, {}).items())

    def on_compare(self, asked: r.Compare) -> None:
        """The primary is about to vouch for a copy of this node, and asks what it contains."""
        if self.core.local[asked.partition].role is Role.MOVING:
            self.answers.on_compare(asked, self._summed_up)

    def _summed_up(self, number: int) -> None:
        if number in self._when:
            self._pauses.pop(number, None)
            self.begin(number, self.core.now)
            if not self._going_on:  # one batch asks about many
                self._going_on = True
                self.core.resume(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        self.go_on()

    def on_settle(self, sender: NodeId, message: Settle) -> None:
        """The primary waits for this copy now; say Settled again at these counters."""
        core, number = self.core, message.partition
        if number not in self._when or core.local[number].placement.primary != sender:
            return
        if message.wrong and message.round <= self._void.get(number, 0):
            probe("demand.differed_before")
            return  # it was said of what this copy had before it began again
        if message.wrong:
            probe("demand.digest_differed")
            often = 0
            for namespace in message.wrong:
                often = max(often, self.answers.note_difference((namespace, number)))
                core.note(f"{namespace}/{number} has another digest than its primary's: taking it in full (time {often})")
                core.log(r.FragmentClear(namespace, number, "the digest differs from the primary's"))
            self._differs(sender, number, often)
            return
        self._pauses.pop(number, None)  # the primary is at it
        taken = self._take_readers(message)
        marks = dict(message.marks)
        known, self._marks[number] = self._marks.get(number), marks
        if known == marks and not taken:
            return  # it waits for something that is on its way: ask again in time, not at once
        core.work += len(marks)
        if self._at_its_marks(number):
            self.begin(number, core.now)
            self.go_on()

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
