"""What a demander keeps: one session with a supplier, and what its node's catching up has moved."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from rebalance.by_fragment import ByFragment
from rebalance.choice import OF_ROWS, Kind
from rebalance.fragment import FragmentState
from rebalance.messages import Demand, Differing, Have, Supply, Transfer
from rebalance.moves import order_of_work, those_that_wait
from rebalance.partition import LocalPartition, PartitionState, Role
from rebalance.ports import MS, WORK_MAX, Node
from rebalance.rule import drop
from rebalance.settling import STUCK_AFTER
from rebalance.surveying import Room, Surveys
from rebalance.table import Topology, back_off_ms
from rebalance.unconfirmed import Unconfirmed, ends_in_pieces
from wal import records as r
from wal.ids import Fragment, Namespace, NodeId, TxId
from wal.probe import probe

NOTED_MAX = 20
"""Fragments of a session of which the operator is told one by one; there may be thousands, and `progress` has them all."""
TAKEN = {Kind.MUTATIONS: "what was changed", Kind.DIFFERENTIAL: "where its rows differ", Kind.FULL: "in full"}
"""What he is told of how rows are taken."""


class Progress(msgspec.Struct):
    """What one node's rebalancing has moved, of the copies that it has; for status, the demo and the scenarios.

    Of a return most fragments miss nothing: of these there is the kind, and no more. `reasons` are those for rows.
    """

    kinds: ByFragment[str] = msgspec.field(default_factory=ByFragment)
    reasons: ByFragment[str] = msgspec.field(default_factory=ByFragment)
    expected: ByFragment[int] = msgspec.field(default_factory=ByFragment)
    updates: dict[str, int] = {}
    rows: dict[str, int] = {}

    def note(self, name: Fragment, transfer: Transfer) -> None:
        """A transfer begins."""
        self.expected.pop(name, None)
        self.reasons.pop(name, None)
        self.kinds[name] = sys.intern(str(transfer.kind))
        if transfer.missing:
            self.expected[name] = transfer.missing
        if transfer.kind in OF_ROWS:
            self.reasons[name] = transfer.reason

    def forget(self, number: int) -> None:
        """The copy of a partition is not here any more."""
        for kept in (self.kinds, self.reasons, self.expected):
            kept.drop(number)


class NoHistory:
    """Fragments of which a supplier could not read the history: their rows are asked for.

    A copy may have no state of one, if all of it was written while it was away; a demand names it all the same.
    """

    def __init__(self) -> None:
        self._names: dict[int, dict[Fragment, None]] = {}  # by partition

    def of(self, number: int) -> Collection[Fragment]:
        """Those of one partition."""
        return self._names.get(number, ())

    def add(self, name: Fragment) -> None:
        """It was tried in vain."""
        self._names.setdefault(name[1], {})[name] = None

    def drop(self, name: Fragment) -> None:
        """It has come."""
        names = self._names.get(name[1], {})
        names.pop(name, None)
        if not names:
            self._names.pop(name[1], None)


class Session:
    """One demand and what was supplied for it."""

    def __init__(self, number: int, supplier: NodeId, parts: list[list[int]], now: int) -> None:
        self.number = number
        self.supplier = supplier
        self.parts = parts
        self.said = 0  # how many of the parts
        self.partitions = {n: None for part in parts for n in part}
        self.awaited: dict[int, None] = {}  # demanded, and nothing of them was supplied yet
        self.began = False  # it was told of a transfer
        self.transfers = ByFragment[Transfer]()  # those of rows
        self.noted: Counter[str] = Counter()  # of these, the operator was told of so many of each kind
        self.in_full = False  # something is taken as rows, or will be
        self.survey: dict[int, list[Fragment]] = {}  # the supplier asks what the rows of these add up to
        self.leaves: dict[Fragment, int] = {}  # how many leaves it was told of
        self.room: deque[Room | Unconfirmed] = deque()  # to be made before more is taken
        self.later: dict[int, None] = {}  # partitions that the supplier will serve in another session
        self.doubts: dict[int, list[TxId]] = {}  # prepared here without a write, when the demand was made
        self.batch = 0  # the last batch that was taken
        self.ahead: dict[int, Supply] = {}  # batches that came and were not taken yet
        self.taking = False
        self.waits = False  # for a checkpoint, to take more
        self.all_came = False  # it took the last batch
        self.ending: list[int] | None = None  # everything was supplied: partitions still to be looked at
        self.heard_at = now
        self.asked_at = now

    def took_next(self) -> None:
        """The next batch is taken."""
        self.batch += 1
        del self.ahead[self.batch]

    def drop(self, gone: Container[int]) -> None:
        """These partitions are asked for no more, or anew."""
        drop(self.partitions, gone)
        drop(self.awaited, gone)

    @property
    def rests(self) -> bool:
        """Whether its supplier is to say nothing: all was supplied, or what came is not taken yet."""
        return self.ending is not None or self.waits

    def left_whole(self, core: Node, number: int, no_history: NoHistory) -> bool:
        """Whether nothing of a partition is left to ask for, of what was supplied when this was."""
        if number in self.later or core.replica.partition(number).epoch != core.local[number].epoch:
            return False
        fragments = core.replica.partition(number).fragments
        return not no_history.of(number) and not any(f.loading or f.suspects for f in fragments.values())

    def note_rows(self, core: Node, transfer: Transfer) -> None:
        """A fragment is taken as rows."""
        self.in_full = True
        self.transfers[transfer.namespace, transfer.partition] = transfer
        self.noted[transfer.kind] += 1
        if (said := self.noted[transfer.kind]) <= NOTED_MAX:
            how = f"from {self.supplier} {TAKEN[Kind(transfer.kind)]}"
            more = ", and more like it" if said == NOTED_MAX else ""
            core.note(f"{transfer.namespace}/{transfer.partition} {how}: {transfer.reason}{more}")

    def make_room(self, core: Node, found: Differing) -> None:
        """It is known which leaves differ: what is under them here goes. Answers to what was not told mean nothing."""
        name = (found.namespace, found.partition)
        taken, count = self.transfers.get(name), self.leaves.pop(name, 0)
        if taken is None or found.partition not in self.partitions or len(found.bits) != (count + 7) // 8:
            probe("demand.no_such_leaves")
            self.transfers.pop(name, None)  # it is not whole in the end, and asked for again
        else:
            self.room.append(Room(found, count, taken.up_to, core.local[found.partition].epoch))

    def end_rows(self, core: Node, name: Fragment) -> bool:
        """All rows of a fragment have come, if they are wanted: then it is whole, once what is unconfirmed has gone."""
        whole = self.transfers.get(name)
        if whole is None or name[1] not in self.partitions:
            return False
        ready = r.FragmentReady(*name, whole.up_to, whole.digest, epochs=whole.epochs, full=True)
        if ends_in_pieces(core.replica.fragment(name), whole.up_to):
            self.room.append(Unconfirmed(ready, core.local[name[1]].epoch))
        else:
            core.log(ready)
        return True

    def has_room(self, core: Node) -> bool:
        """Go on with that; whether nothing is left of what the next rows come in place of, before this turn ends."""
        if self.room:
            self.heard_at = self.asked_at = core.now  # nobody is to say anything meanwhile
        while self.room and core.work < WORK_MAX:
            if self.room[0].name[1] not in self.partitions or self.room[0].step(core):
                self.room.popleft()
        return not self.room


def put_in_order(topology: Topology, queues: Sequence[dict[int, None]]) -> None:
    """Partitions that wait to be demanded, in the order in which that matters under this map."""
    place = {number: at for at, number in enumerate(order_of_work(topology, chain(*queues)))}
    for queue in queues:
        ordered = sorted(queue, key=place.__getitem__)
        queue.clear()
        queue.update(dict.fromkeys(ordered))


DOUBLED_MAX = 4
"""So often the time for which a supplier may be silent is doubled."""
HAVE_WORK = 2
"""To say what a copy of a fragment has, which is in many places."""
BEYOND_OF_WORK = 8
"""So many updates beyond a gap are as much work to say as one thing that is decided."""
PART_HAVES = 500
"""What one part of a demand says of fragments, about, and of partitions."""
HAVE_BYTES = 100
"""What a fragment weighs in a demand, about; leaves weigh more."""


def parts_of(core: Node, surveys: Surveys, numbers: Iterable[int]) -> list[list[int]]:
    """A demand of these partitions, cut into what one turn can say, and another can answer."""
    parts: list[list[int]] = []
    size, leaves = PART_HAVES, surveys.said_bytes()
    for number in numbers:
        if size >= PART_HAVES:
            parts.append([])
            size = 0
        parts[-1].append(number)
        fragments = core.replica.partition(number).fragments
        size += 1 + len(fragments) + leaves.get(number, 0) // HAVE_BYTES + _beyond(fragments) // HAVE_WORK
    return parts


def _beyond(fragments: Mapping[Namespace, FragmentState]) -> int:
    """What it is to say what lies beyond gaps."""
    return sum(len(fragment.beyond) for fragment in fragments.values()) // BEYOND_OF_WORK


def say_part(core: Node, session: Session, part: int, surveys: Surveys, no_history: NoHistory) -> None:
    """Ask for what is wanted still of one part of a demand."""
    numbers = [number for number in session.parts[part] if number in session.partitions]
    haves: list[Have] = []
    for number in numbers:
        held, without = core.replica.partition(number).fragments, no_history.of(number)
        core.work += _beyond(held)
        haves.extend(surveys.have(fragment, no_history=fragment.name in without) for fragment in held.values())
        never_here = [name for name in without if name[0] not in held]
        haves.extend(surveys.have(core.replica.fragment(name), no_history=True) for name in never_here)
    core.work += len(numbers) + HAVE_WORK * len(haves)
    credit, parts = core.settings.supply_credit, len(session.parts)
    core.send(session.supplier, Demand(core.fence, session.number, numbers, haves, credit=credit, part=part, parts=parts))


class Patience:
    """How long suppliers may say nothing before their sessions begin anew: twice as long each time, until one has come to
    its end. Who has few turns, as on a busy host, would be asked for the same again before it can give it, and again."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._lost: dict[NodeId, int] = {}  # sessions, since one came to its end

    def is_over(self, session: Session) -> bool:
        """Whether a session is to begin anew; it does, then."""
        lost, core = self._lost.get(session.supplier, 0), self._core
        again = core.settings.retransmit_ms * MS
        if core.now < session.heard_at + (STUCK_AFTER << min(lost, DOUBLED_MAX)) * again:
            return False
        probe("demand.session_timed_out")
        self._lost[session.supplier] = lost + 1
        return True

    def was_enough(self, session: Session) -> None:
        """A session has come to its end."""
        self._lost.pop(session.supplier, None)


LOOKED_OF_WORK = 64
"""So many fragments are as much work to look at, whether they have a gap, as one thing that is decided."""


class Rest:
    """How long a node asks for nothing, because it was set aside for being slow: longer each time."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._times = 0  # how often it was set aside
        self.until = 0  # 0: it does not rest
        self._gaps: dict[int, None] = {}  # partitions that were found to have one, by this map: they will have it

    def begins(self) -> bool:
        """Whether, by the map that is here, it was set aside once more."""
        core, self._gaps = self._core, {}
        times = core.topology.aside.get(core.node, 0) if core.topology is not None else 0
        before, self._times = self._times, abs(times)
        if times <= before:
            return False
        probe("demand.set_aside")
        self.until = core.now + back_off_ms(times) * MS
        return True

    def goes_on(self) -> bool:
        """Whether it still rests; as long as it is slow there is no use in asking."""
        core = self._core
        if self.until and core.now >= self.until:
            self.until, self._gaps = core.slow_until if core.slow_until > core.now else 0, {}
        return self.until > 0

    def passes_over(self, number: int, *waiting: dict[NodeId, dict[int, None]]) -> bool:
        """Whether a copy takes nothing of what comes now: it waits to be asked for, and has a gap."""
        if not self.until or not any(number in kept for each in waiting for kept in each.values()):
            return False
        if number not in self._gaps:
            state = self._core.replica.partition(number)
            self._core.work += len(state.fragments) // LOOKED_OF_WORK  # for each record that comes
            if has_a_gap(state):
                self._gaps[number] = None
        return number in self._gaps


class Missed:
    """Of which partitions something was passed over since they were asked for, because the store does not keep up, or the
    disk has no room.

    Where a copy is waited for clients wait for its store; the others would fill its memory, or the log's last segment. What
    such a copy passes over it passes over to the end, so that it takes nothing that would lie beyond the gap.
    """

    def __init__(self, core: Node, said: Container[int], ask: Callable[[int], None]) -> None:
        self._core = core
        self._said = said  # to be settled, in this life: who heard that may wait for them
        self._ask = ask
        self.numbers: dict[int, None] = {}

    def passes_over(self, number: int) -> bool:
        """Whether a copy takes nothing of what comes now."""
        if number in self.numbers:
            return True
        core = self._core
        if not ((core.is_backlogged() or core.is_cramped) and self._nobody_waits_for(number)):
            return False
        probe("demand.missed_for_the_disk" if core.is_cramped else "demand.missed_for_the_store")
        self.numbers[number] = None
        self._ask(number)
        return True

    def wait(self) -> bool:
        """Whether there is no use in asking yet: the disk has no room, or a checkpoint that makes some has yet to begin."""
        return self._core.is_cramped or (bool(self.numbers) and self._core.is_backlogged())

    def _nobody_waits_for(self, number: int) -> bool:
        return self._core.local[number].role is Role.ASYNC or number not in self._said


def has_a_gap(state: PartitionState) -> bool:
    """Whether a copy lacks something that nothing which is prepared here will bring.

    Whoever takes nothing while it does will have it until it is supplied: so long nothing else brings what is in the gap.
    """
    gaps = [fragment for fragment in state.fragments.values() if fragment.loading or fragment.beyond]
    return any(f.loading for f in gaps) or not all(state.is_prepared(f.name[0], f.counter.lwm) for f in gaps)


class Held:
    """Partitions that are not asked for, because the operator has paused what they are moved for."""

    def __init__(self, core: Node) -> None:
        self._core = core
        self._held: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, number: object) -> bool:
        return number in self._held

    def without(self, numbers: Iterable[int]) -> list[int]:
        """Those of these that may be asked for; the others are held from now on."""
        topology, asked = self._core.topology, list(numbers)
        assert topology is not None
        held = dict.fromkeys(those_that_wait(topology, asked))
        self._held |= held
        return [number for number in asked if number not in held] if held else asked

    def switch(self, changed: Sequence[LocalPartition], sessions: Iterable[Session]) -> dict[int, LocalPartition]:
        """What is to be begun anew under a new map: what it changes, what is not held any more, and what has to be."""
        core, topology = self._core, self._core.topology
        found = {local.number: local for local in changed}
        if topology is not None:
            waiting = dict.fromkeys(those_that_wait(topology, self._held))
            freed = [number for number in self._held if number not in waiting]
            stopped = those_that_wait(topology, [number for session in sessions for number in session.partitions])
            if stopped:
                probe("demand.paused")
            found |= {number: core.local[number] for number in (*freed, *stopped)}
        drop(self._held, found)
        return found
