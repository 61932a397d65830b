"""What the machines of one node share: who it is, what time it is, the committed map, its replica, and what it owes.

A machine (`engine.cluster.exchange`, `engine.data.replication`, ...) owns its rules and its own state; what it may touch
beyond that is here. Nothing in this module decides a protocol question.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from engine.messages import Heartbeat, Message
from engine.state.ahead import LARGE_KEYS, AllAhead, work_out
from engine.state.replica import Replica
from engine.turn.effects import Effects
from engine.turn.events import Task
from engine.turn.lent import NotSent, Room
from engine.turn.settings import Settings
from engine.turn.turns import Maps
from rebalance.affinity import Affinity, assign
from rebalance.ideal import finding_ideal
from rebalance.lives import INCARNATION_BITS, Life, in_brief
from rebalance.namespaces import NamespaceSettings
from rebalance.partition import LocalPartition
from rebalance.ports import LITTLE, MS, WORK_MAX
from rebalance.table import Placement, Topology, version_of
from wal.ids import FIRST_ERA, NO_VERSION, Namespace, NodeId, Version, partitions_of
from wal.records import Record, Write

CROWDED_AT = 3
"""What a transfer brings is in memory twice, and in the writer of a checkpoint: one is due when there is so many times
less of it than makes one due at other times. Nobody wrote it, so it can wait."""
HURRIES_AT = 2
"""A checkpoint that has so many times what makes it due gives way to nobody, before clients have to wait for the store."""
BACKLOGGED_AT = 3
"""So many times `checkpoint_bytes` of changes lie in memory while the store takes those of before: nothing new is begun."""

BUSY_TIMES = 8
"""Who has no moment to spare waits for others so many times as long, before it calls them late."""
WAITED_WORK = WORK_MAX // 4
"""For what an earlier turn has left so much of this one is kept: that gets on in any case, whatever came meanwhile."""


class Core:
    """Shared by the machines of one node."""

    def __init__(
        self,
        settings: Settings,
        replica: Replica,
        *,
        node: NodeId,
        allocation: str,
        incarnation: int,
        address: str,
        durable_lsn: int,
        affinity: Affinity = assign,
    ) -> None:
        self.settings = settings
        self.replica = replica
        self.node = node
        self.allocation = allocation
        self.incarnation = incarnation
        self.address = address
        self.affinity = affinity
        self.chosen: frozenset[str] = frozenset()  # of what a map fixes, what was given; whoever starts the node says so
        self.now = 0
        self.turns = 0  # that it has begun, in this life
        self.wall: int | None = None  # ms; whoever drives this node says so before each turn
        self.room: Room | None = None  # on its disk; whoever drives this node says so now and then
        self.not_archived = ""  # why a segment of its log is not archived yet; whoever drives this node says so
        self.moved = False  # its data directory is not where it was opened; whoever drives this node says so
        self.effects = Effects()
        self.durable_lsn = durable_lsn
        self.boot_lsn = durable_lsn
        self.asked = 0  # requests of clients, taken so far
        self.attentive = 0  # ns, for which this node was there to take what others said
        self.busy = 0  # ns of it, for which there was something to do: whoever drives this node notes it
        self.slow_until = 0  # its log took long to sync lately
        self.not_sent: dict[NodeId, NotSent] = {}  # in this life; whoever drives this node counts
        self.longest_sync = 0  # ns, of the log, since the last heartbeat; whoever drives this node says so
        self.lives_before: list[tuple[int, int]] = []
        self.voted_lsn = 0  # where the last promise or accept lies, of the version after the committed one
        self.topology: Topology | None = None  # set by `adopt`, as is the fence
        self.fence = NO_VERSION  # what is said about copies is said under this version: light steps do not change it
        self.reign = NO_VERSION  # the last map that changed what this node leads, or that was no light step
        self.map_hash = 0
        self.namespaces: dict[Namespace, NamespaceSettings] = {}  # by the committed map
        self.read_only: dict[Namespace, int] = {}  # the same: where nothing is written while a partition is LOST
        self.local: list[LocalPartition] = []
        self.version_number = 0  # of the committed map, for answers
        self.backlogged: list[NodeId] = []  # members, and this node, whose store does not keep up
        self.cramped: list[NodeId] = []  # the same, whose disk has no room: for what the log goes on in, or a checkpoint
        self._carried_without = False  # the other members are a majority
        self.frozen = False  # the single map was sent: no replication and no commits of this version any more;
        self.parting = False  # or else for what the next map takes from this node (`engine.node.parting`)
        self.maps = Maps()
        self.serving = False  # the committed map lists this incarnation
        self.quorum = False  # a majority of the voters was heard of lately
        self.to_self: list[Message] = []  # for the next turn
        self.told: list[Message] = []  # the same, for this one
        self.affinity_known = affinity is not assign  # where copies should be was found out
        self.work = 0  # done in this turn
        self.era = FIRST_ERA  # of what is decided here; `engine.data.cuts` moves it on
        self.resumed: deque[Callable[[], None]] = deque()
        self.waited = False  # something in there since an earlier turn
        self.passed_over = False  # it was, and that turn was full
        self.unhurried: deque[Callable[[], None]] = deque()  # what nobody waits for

    @property
    def wall_ms(self) -> int:
        """What the wall clock reads, which may jump; only expiry goes by it. Where nobody says, it goes as `now` does."""
        return self.now // MS if self.wall is None else self.wall

    def note_busy(self, now: int, rested: int) -> None:
        """A turn begins `now`, and for so long (ns) since the one before there was nothing to do."""
        self.busy += max(0, min(now - self.now, self.settings.heartbeat_ms * MS) - rested)

    @property
    def spare(self) -> int:
        """ns by which it goes who is late: for which there was nothing to do here but to wait, and a part of the others, as
        answers may lie before a node that is busy; and where all are, whoever has the most to do is no slower for that."""
        return self.attentive - self.busy + self.busy // BUSY_TIMES

    @property
    def life(self) -> Life:
        """This run of this node, as others tell it from earlier ones."""
        return Life(self.allocation, self.incarnation, self.boot_lsn, self.lives_before)

    @property
    def life_in_brief(self) -> Life:
        """The same, for what is said every moment: of very many lives before it only the first and the last ones."""
        return Life(self.allocation, self.incarnation, self.boot_lsn, in_brief(self.lives_before))

    @property
    def run(self) -> int:
        """How often the node has started: the part of its incarnation that counts."""
        return self.incarnation >> INCARNATION_BITS

    def crowded(self) -> bool:
        """As much lies in memory and in no checkpoint as a transfer may bring there: it goes on when one has begun. Or the
        disk has no room: then it goes on when there is some.

        It is in proportion to what each checkpoint encodes anew, as what is written beyond the gap of a copy that is being
        filled: else to fill that would take the longer, the more is written meanwhile.
        """
        replica = self.replica
        most = max(self.settings.checkpoint_bytes, replica.changes.states_bytes)
        return replica.store.active_bytes * CROWDED_AT >= most or self.is_cramped

    def is_backlogged(self) -> bool:
        """Clients write faster than the store does, for so long that they have to wait for it."""
        return self.replica.store.active_bytes >= BACKLOGGED_AT * self.settings.checkpoint_bytes

    def note_backlog(self, node: NodeId, backlogged: bool) -> None:
        """Whether the store of a member, or of this node, does not keep up."""
        self.backlogged = _noted(self.backlogged, node, backlogged)

    @property
    def is_cramped(self) -> bool:
        """The disk of this node has no room for what the log goes on in; whoever drives it notes that."""
        return self.node in self.cramped

    def note_cramped(self, node: NodeId, cramped: bool) -> None:
        """Whether the disk of a member, or of this node, has no room for what the log goes on in."""
        if cramped is not (node in self.cramped):
            self.cramped = _noted(self.cramped, node, cramped)
            self._look_who_carries()

    def _look_who_carries(self) -> None:
        topology, cramped = self.topology, self.cramped
        if cramped and topology is not None:
            self._carried_without = topology.carried_by([m.node for m in topology.members if m.node not in cramped])

    def in_the_way(self, placement: Placement) -> tuple[NodeId, ...]:
        """Because of whose disks nothing new is begun in a partition: to write there may end these nodes for want of room,
        and those that would be left have not all of it, or are no majority."""
        cramped = self.cramped
        if not cramped or (self._carried_without and not all(node in cramped for node in placement.in_sync)):
            return ()
        return tuple(node for node in placement.copies if node in cramped)

    def is_spared(self) -> bool:
        """This node is cramped, and others can go on without it: none of its copies is in the way of anything."""
        return self.is_cramped and not any(self.in_the_way(local.placement) for local in self.local)

    @property
    def claim_lsn(self) -> int:
        """Where the log ends when this turn is paid: what a message that leaves after it may claim to be durable."""
        return self.durable_lsn + len(self.effects.log)

    @property
    def version(self) -> Version:
        """The committed topology version."""
        return version_of(self.topology) if self.topology else NO_VERSION

    def is_listed_by(self, topology: Topology) -> bool:
        """Whether a map lists this very life."""
        member = topology.member(self.node)
        return member is not None and (member.allocation, member.incarnation) == (self.allocation, self.incarnation)

    def adopt(self, topology: Topology) -> None:
        """This map is committed."""
        self.topology, self.version_number = topology, topology.version.number
        self.backlogged = [n for n in self.backlogged if topology.member(n) is not None]
        for node in [n for n in self.cramped if n != self.node and topology.member(n) is None]:
            self.note_cramped(node, False)
        self._look_who_carries()
        self.fence = topology.fenced
        self.namespaces = topology.namespaces
        self.read_only = topology.read_only() if topology.namespaces else {}

    def stop(self) -> None:
        """An exchange was told what is here, or a map was accepted: nothing is replicated until the next map."""
        if not self.stopped:
            self.frozen, self.parting, self.maps.stopped_at = True, False, self.now

    def part(self) -> None:
        """The next map is chosen, and takes much from this node: until that is given up all is as if it had stopped."""
        if not self.frozen:
            self.frozen, self.parting, self.maps.stopped_at = True, True, self.now

    @property
    def stopped(self) -> bool:
        """An exchange was told what is here."""
        return self.frozen and not self.parting

    def go_on_under(self, topology: Topology) -> None:
        """The next map is there."""
        self.maps.note(self.now if self.frozen else None, light=topology.fence != NO_VERSION)
        self.frozen = self.parting = False

    def find_ideal(self) -> None:
        """Find out in pieces where the copies of the committed map should be; `affinity_known` says when that is known."""
        self.affinity_known = False
        pieces = self._finding_ideal(self.topology)
        self.resume(lambda: self.in_pieces(pieces))

    def _finding_ideal(self, topology: Topology | None) -> Iterator[int]:
        assert topology is not None
        asked = (topology.baseline, topology.domains, topology.partitions, topology.all_groups)
        for work in finding_ideal(self.affinity, *asked):
            yield work
            now = self.topology
            if now is None or (now.baseline, now.domains, now.partitions, now.all_groups) != asked:
                return
        self.affinity_known = True

    def place(self, namespace: Namespace, key: bytes) -> int:
        """The partition of a key."""
        assert self.topology is not None
        return self.topology.place(namespace, key)

    def places(self, namespace: Namespace, keys: Sequence[bytes]) -> list[int]:
        """The partition of each of many keys."""
        assert self.topology is not None
        return self.topology.places(namespace, keys)

    def places_of(self, keys: Collection[tuple[Namespace, bytes]]) -> list[int]:
        """The partition of each of many keys of any namespaces."""
        assert self.topology is not None
        numbers = partitions_of([key for _, key in keys], self.topology.partitions)
        if self.topology.groups:
            first = self.topology.first_of
            return [number + first(namespace) for number, (namespace, _) in zip(numbers, keys, strict=True)]
        return numbers

    def peers(self) -> tuple[NodeId, ...]:
        """All other members."""
        if self.topology is None:
            return ()
        return tuple(m.node for m in self.topology.members if m.node != self.node)

    def send(self, to: NodeId | tuple[NodeId, ...], message: Message) -> None:
        """Say something after this turn's log is durable; to oneself it arrives in the next turn."""
        if isinstance(to, str):  # how it nearly always is
            if to == self.node:
                self.to_self.append(message)
            else:
                self.effects.send.append(((to,), message))
            return
        if self.node in to:
            self.to_self.append(message)
        if targets := tuple(t for t in to if t != self.node):
            self.effects.send.append((targets, message))

    def tell(self, to: NodeId, message: Message) -> None:
        """As `send`; what this node tells itself it hears in this very turn.

        That is for what rests on what counts, or asks for something: whoever hears it may log, and answer. What it is told
        of was on this disk before or is in this turn's block, ahead of all that follows from it; and nothing that rests on
        one's own disk alone may leave early, a ballot for one.
        """
        if to == self.node:
            self.told.append(message)
        else:
            self.effects.send.append(((to,), message))

    def send_early(self, targets: tuple[NodeId, ...], message: Message) -> None:
        """Say something that promises nothing about this disk: it may leave while the log is being written."""
        self.effects.early.append((targets, message))

    def beat(self, hearers: tuple[NodeId, ...], beat: Heartbeat) -> None:
        """What is to be said again for this node while it is busy with one turn or one sync."""
        self.effects.beat = (hearers, beat)

    def resume(self, go_on: Callable[[], None]) -> None:
        """Do this in what is left of the turn, or in one of the next; it does a piece, and may ask for this again.

        Anything may have happened in between: it looks whether what it goes on with is still wanted.
        """
        self.resumed.append(go_on)

    def next_turn(self, go_on: Callable[[], None]) -> None:
        """As `resume`, after what was a good part of a turn: the rest is another."""
        self.work = max(self.work, WORK_MAX)
        self.resume(go_on)

    def begin_turn(self) -> None:
        """Another turn, in which nothing was done yet."""
        self.turns += 1
        self.work, self.waited = 0, bool(self.resumed)

    def go_on_first(self) -> None:
        """Do some of what nobody waits for, and what the last turn was too full for: what came has what room is left."""
        if self.unhurried:
            self._do_a_little()
        if self.passed_over:
            self.passed_over = self.waited = False
            if self.resumed:
                self.resumed.popleft()()

    def go_on(self) -> None:
        """Do of what was cut into pieces as much as the turn has room for, one of each after the other.

        What was begun in an earlier turn gets on in any case, if not now then first of all in the next one.
        """
        self.passed_over = self.waited and self.work >= WORK_MAX
        while self.resumed and self.work < WORK_MAX:
            self.resumed.popleft()()

    def _do_a_little(self) -> None:
        """Do some of what nobody waits for, one piece of each after the other."""
        for _ in range(len(self.unhurried)):
            self.unhurried.popleft()()
            if self.work >= LITTLE:
                break

    def put_off(self, go_on: Callable[[], None]) -> None:
        """As `resume`, for what nobody waits for: of all such a turn does a `LITTLE`, and has room for what came."""
        self.unhurried.append(go_on)

    def in_pieces(self, pieces: Iterator[int]) -> None:
        """Do what comes in pieces, each of which says how much work it was, in as many turns as that takes.

        As with `resume`, anything may have happened between two pieces.
        """
        for work in pieces:
            self.work += work
            if self.work >= WORK_MAX:
                self.resume(lambda: self.in_pieces(pieces))
                return

    def works_out(self, writes: Sequence[Write], go_on: Callable[[], None], *, again: bool = False) -> bool:
        """Whether some of these writes, which are to be taken now, are so large that they are worked out first.

        Then it is done in pieces, and they are taken when it goes on, in a turn of its own; unless it is not to by then.
        Those that are here already are not taken, unless they are undone first, and issued `again`.
        """
        replica = self.replica
        large = [
            write
            for write in writes
            if len(write.keys) > LARGE_KEYS
            and (write.fragment, write.start) not in replica.ahead
            and (again or not replica.fragment(write.fragment).counter.covers(write.start, write.delta))
        ]
        if large:
            self.in_pieces(self._work_out(large, go_on))
        return bool(large)

    def _work_out(self, writes: list[Write], go_on: Callable[[], None]) -> Iterator[int]:
        replica = self.replica
        ahead: AllAhead = {}
        yield from work_out(writes, ahead, replica.fragments, replica.watch)
        yield WORK_MAX  # to take them is another turn
        replica.ahead = ahead
        go_on()
        replica.ahead = {}

    def little_by_little(self, pieces: Iterator[int]) -> None:
        """As `in_pieces`, for what nobody waits for."""
        done = 0
        for work in pieces:
            done += work
            if done >= LITTLE:
                self.put_off(lambda: self.little_by_little(pieces))
                break
        self.work += done

    def log(self, record: Record) -> None:
        """Fold a record into the replica and owe it to the log."""
        self.replica.apply(record)
        self.effects.log.append(record)

    def log_what_is_new(self, records: Sequence[Record]) -> None:
        """Fold some records in, in order, and owe those of them to the log that changed anything."""
        apply, log = self.replica.apply, self.effects.log.append
        for record in records:
            if apply(record):
                log(record)

    def log_unapplied(self, record: Record) -> None:
        """Owe a record to the log that does not count yet: whoever counts it folds it into the replica then."""
        self.effects.log.append(record)

    def task(self, task: Task) -> None:
        """Have something slow done after this turn's log is durable."""
        self.effects.tasks.append(task)

    def vote(self, record: Record) -> None:
        """Log what a promise or an accept rests on; it is on disk before anything says so."""
        self.log(record)
        self.voted_lsn = self.claim_lsn

    def note(self, text: str) -> None:
        """Tell the operator."""
        self.effects.notes.append(text)


def _noted(nodes: list[NodeId], node: NodeId, there: bool) -> list[NodeId]:
    """Nodes of whom something is so, after one has said whether it is so of it."""
    if there is (node in nodes):
        return nodes
    return [*nodes, node] if there else [n for n in nodes if n != node]
