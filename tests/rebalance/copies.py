"""Copies wired in memory: what `rebalance.ports` asks for and no more, so that a transfer needs no node.

Three copies at most, a wire that keeps what is said until it is delivered, and a map that the test writes. What a copy
has is folded by the real replica over a store in memory; its log is a list; history is read from it by the real cursor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeAlias

import msgspec

from engine.state.replica import Replica
from engine.state.store import Entry, LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.anew import Anew
from rebalance.demander import Demander
from rebalance.entropy import TICKS, AntiEntropy
from rebalance.lives import INCARNATION_BITS
from rebalance.messages import (
    AllSettled,
    AskProofs,
    AskTail,
    CopyMessage,
    Credit,
    Demand,
    Heal,
    Proofs,
    Settle,
    Settled,
    Stands,
    Supply,
    Tail,
)
from rebalance.migrations import NOT_ORDERED
from rebalance.mutations import Mutations
from rebalance.partition import LocalPartition, Role
from rebalance.placing import Placed
from rebalance.ports import MS, CloseHistory, HistoryRead, HistoryTask, OpenHistory, Operation, ReadHistory, Shipped
from rebalance.promotion import Promotion
from rebalance.stability import Stability
from rebalance.supplier import SupplySide
from rebalance.table import Member, Placement, Topology
from tests.support.rot import rot
from wal import records as r
from wal.errors import Finding
from wal.history import HistoryCursor, Wanted
from wal.ids import NO_VERSION, Fragment, NodeId, TxId, Version

NAMESPACE = "acc"
STEPS_MAX = 20_000


class Batch(msgspec.Struct, frozen=True):
    """Records of a primary, for one copy."""

    number: int
    version: Version
    records: list[r.Record]


class Taken(msgspec.Struct, frozen=True):
    """A batch is in the log of a copy."""

    number: int


Said: TypeAlias = CopyMessage | Batch | Taken
Trouble: TypeAlias = Callable[[NodeId, NodeId, Said], int]
"""How often something that was said arrives: 0 is lost, 2 is doubled; -1 comes after what is said next."""


class Settings(msgspec.Struct):
    """Small enough for everything to come in pieces."""

    retransmit_ms: int = 100
    link_bytes_per_s: int = 1 << 20
    supply_credit: int = 2
    supply_batch_bytes: int = 120
    max_parallel_migrations: int = 1
    prefer_history: bool = False
    anti_entropy_ms: int = 3_000
    mutations_bytes: int = 0  # stories of what differs are of what nobody remembers


class _Shipped:
    def __init__(self, operation: Shipped, waiting: Sequence[NodeId], lagging: Sequence[NodeId]) -> None:
        self.operation = operation
        self.waiting = dict.fromkeys(waiting)
        self.lagging = dict.fromkeys(lagging)
        self.counts = False


class Shipping:
    """Batches of one operation each, sent until they are answered."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._sent: dict[int, _Shipped] = {}
        self._number = copy.run << 20
        self.behind: list[NodeId] = []  # these have not answered for long

    def ship(self, operation: Shipped, local: LocalPartition) -> None:
        """Send it to the copies of its partition."""
        self._dispatch(_Shipped(operation, local.needed, local.moving))

    ship_by_size = ship  # none is so large

    def _dispatch(self, shipped: _Shipped) -> None:
        self._number += 1
        self._sent[self._number] = shipped
        self._say(self._number)
        self._look(self._number)

    def _say(self, number: int) -> None:
        shipped, copy = self._sent[number], self._copy
        for node in (*shipped.waiting, *shipped.lagging):
            copy.world.say(copy.node, node, Batch(number, copy.fence, list(shipped.operation.records)))

    def on_taken(self, sender: NodeId, number: int) -> None:
        """A copy has it."""
        shipped = self._sent.get(number)
        if shipped is not None:
            shipped.waiting.pop(sender, None)
            shipped.lagging.pop(sender, None)
            self._look(number)

    def _look(self, number: int) -> None:
        shipped = self._sent[number]
        if not shipped.waiting and not shipped.counts:
            shipped.counts = True
            shipped.operation.counted()
        if shipped.counts and not shipped.lagging:
            self._sent.pop(number, None)

    def lag(self, node: NodeId, partitions: Container[int]) -> None:
        """What does not count yet goes to a MOVING copy under a number of its own."""
        for shipped in [s for s in self._sent.values() if not s.counts and s.operation.partition in partitions]:
            again = _Shipped(shipped.operation, (), (node,))
            again.counts = True
            self._dispatch(again)

    def is_behind(self, node: NodeId) -> bool:
        """Whether a story says so: what is said arrives before time passes."""
        return node in self.behind

    def wait_for(self, node: NodeId, partition: int) -> None:
        """Wait for a MOVING copy too."""
        for shipped in self._sent.values():
            if not shipped.counts and shipped.operation.partition == partition and node in shipped.lagging:
                del shipped.lagging[node]
                shipped.waiting[node] = None

    def outstanding(self, node: NodeId, partition: int) -> bool:
        """Whether it has not answered something."""
        return any(node in s.lagging and s.operation.partition == partition for s in self._sent.values())

    def switch(self) -> None:
        """A new map: what does not count goes to its copies, or is abandoned."""
        sent, self._sent = self._sent, {}
        for shipped in sent.values():
            local = self._copy.local[shipped.operation.partition]
            if shipped.counts:
                continue
            if local.mine and local.epoch == shipped.operation.epoch:
                self.ship(shipped.operation, local)
            else:
                for record in shipped.operation.records:
                    self._copy.replica.apply(record)
                shipped.operation.abandoned()

    def tick(self) -> None:
        """Send again what was not answered."""
        for number in self._sent:
            self._say(number)


class _View:
    """A log in memory, as the cursor reads it."""

    def __init__(self, records: list[r.Record]) -> None:
        self.bytes_read = 0
        self.findings: list[Finding] = []
        self._records = records

    def records(self, wanted: Wanted, until_lsn: int) -> Iterator[list[r.Record]]:
        """All of it, a record at a time."""
        assert wanted is not None
        yield from ([record] for record in self._records[:until_lsn])


class Copy:
    """One node's copies, and the rules that bring them up to date: all that `rebalance.ports.Node` asks for."""

    def __init__(self, world: Copies, node: NodeId, *, disk: str, run: int, records: Sequence[r.Record] = ()) -> None:
        self.world = world
        self.node = node
        self.disk = disk
        self.run = run
        self.settings = world.settings
        self.slow_until = 0
        self.asked = 0
        self.frozen = False
        self.serving = True
        self.topology: Topology | None = None
        self.local: list[LocalPartition] = []
        self.work = 0
        self.replica = Replica(LayeredStore(MemoryStore()))
        self.records: list[r.Record] = []
        self.history_begins = 0
        self.memory = 1 << 40  # bytes that a transfer may bring before the next checkpoint
        self.notes: list[str] = []
        self._resumed: deque[Callable[[], None]] = deque()
        self.cursors: dict[tuple[NodeId, int], HistoryCursor] = {}
        self._read: deque[HistoryRead] = deque()
        for record in records:
            self.log(record)
        self.shipping = Shipping(self)
        self.stability = Stability(self, self.shipping)
        self.demander = Demander(self)
        self.anew = Anew(self, self.demander.asks, self.demander.lack)
        self.entropy = AntiEntropy(self, self.anew, self.demander.lack)
        self.mutations = Mutations(self)
        self.supply = SupplySide(self, self.shipping, self.mutations, regroup=self._group)
        self.promotion = Promotion(self, self.shipping, activated=self._activate)

    # What a rule may see, and owe.

    @property
    def now(self) -> int:
        """The same for all."""
        return self.world.now

    @property
    def fence(self) -> Version:
        """Of the map."""
        return self.topology.fenced if self.topology is not None else NO_VERSION

    def crowded(self) -> bool:
        """No more is to come before the next checkpoint."""
        return self.replica.store.active_bytes >= self.memory

    @property
    def is_cramped(self) -> bool:
        """There is room."""
        return False

    def is_backlogged(self) -> bool:
        """The store keeps up."""
        return False

    def log(self, record: r.Record) -> None:
        """Fold it in, and keep it."""
        self.replica.apply(record)
        self.records.append(record)

    def log_unapplied(self, record: r.Record) -> None:
        """Keep it."""
        self.records.append(record)

    def send(self, to: NodeId, message: CopyMessage) -> None:
        """Say it."""
        self.world.say(self.node, to, message)

    def task(self, task: HistoryTask) -> None:
        """Read history at once, and tell of it later."""
        match task:
            case OpenHistory(session, wants):
                log = self.records[self.history_begins :]
                self.cursors[session] = HistoryCursor([1], lambda _lsn, _names: _View(log), wants, len(log))
            case ReadHistory(session, size, updates):
                cursor = self.cursors[session]
                writes = cursor.read(size, updates)
                self._read.append(HistoryRead(session, writes, cursor.done, cursor.missed if cursor.done else []))
            case CloseHistory(session):
                self.cursors.pop(session).close()

    def note(self, text: str) -> None:
        """Remember it."""
        self.notes.append(text)

    def resume(self, go_on: Callable[[], None]) -> None:
        """Later."""
        self._resumed.append(go_on)

    def in_pieces(self, pieces: Iterator[int]) -> None:
        """All at once."""
        for _ in pieces:
            pass

    def works_out(self, writes: Sequence[r.Write], go_on: Callable[[], None], *, again: bool = False) -> bool:
        """None is so large."""
        return False

    def put_off(self, go_on: Callable[[], None]) -> None:
        """Later, too."""
        self._resumed.append(go_on)

    # What happens to it.

    def hear(self, sender: NodeId, said: Said) -> None:
        """Somebody said something."""
        match said:
            case Batch():
                self._take(sender, said)
            case Taken(number):
                self.shipping.on_taken(sender, number)
            case Supply() | Settle():
                self.demander.on(sender, said)
            case Demand() | Credit() | Settled() | AllSettled():
                self.supply.on(sender, said)
            case AskTail() | Tail():
                self.promotion.on(sender, said)
            case AskProofs() | Proofs() | Heal() | Stands():
                self.entropy.on(sender, said)

    def go_on(self) -> bool:
        """Do one thing of what was put off; whether there was one."""
        self.work = 0
        if self._resumed:
            self._resumed.popleft()()
        elif self._read:
            self.supply.on_history(self._read.popleft())
        else:
            return False
        return True

    def tick(self) -> None:
        """Time has passed."""
        self.work = 0
        self.shipping.tick()
        self.demander.tick()
        self.supply.tick()
        self.promotion.tick()

    def _take(self, sender: NodeId, batch: Batch) -> None:
        """A primary's records: all or nothing, but a MOVING copy passes over what its supply will bring."""
        if batch.version != self.fence:
            return
        for record in batch.records:
            for partition, epoch in _concerns(record):
                local, known = self.local[partition], self.replica.partition(partition).epoch
                if local.placement.primary != sender or not (local.role is Role.BACKUP or local.follows):
                    return
                if local.follows and self.demander.demanded(partition):
                    return
                history = isinstance(record, r.History | r.EpochStart)
                if local.follows and (known != local.epoch or (epoch != known and not history)):
                    continue
                if local.role is Role.BACKUP and epoch != known and not history:
                    return
                if self.replica.apply(record):
                    self.records.append(record)
                if isinstance(record, r.Compare):
                    self.demander.settling.on_compare(record)
                break
        self.world.say(self.node, sender, Taken(batch.number))

    def switch(self, topology: Topology) -> None:
        """A new map, in the order in which a node lets it take effect."""
        self.topology = topology
        placed = Placed(self.local, topology, self.node, anew=not self.local)
        while not placed.is_found:
            placed.look_on()
        self.local += placed.added
        new = placed.take(self._group, self.supply.vouching.pending, light=False)
        self.supply.switch(new)
        for local in self.local:
            self._group(local)
        self.shipping.switch()
        self.promotion.switch(new)
        self.anew.switch(new)
        self.entropy.switch(new)
        self.demander.switch(new)

    def _group(self, local: LocalPartition) -> None:
        local.needed, local.moving = (), ()
        if local.mine:
            pending = self.supply.vouching.pending.get(local.number, {})
            others = [node for node in local.placement.copies if node != self.node]
            local.needed = tuple(n for n in others if n in local.placement.in_sync or n in pending)
            local.moving = tuple(n for n in others if n not in local.needed)

    def _activate(self, local: LocalPartition) -> None:
        local.activate()
        self.promotion.served(local)
        if not self.promotion.owed:
            self.supply.vouching.beforehand.begin()

    # What a client wants of a primary.

    def put(self, partition: int, **rows: str | None) -> None:
        """Write rows, None to delete; they count when every in-sync copy has them."""
        local = self.local[partition]
        assert local.active, f"{self.node} is not the primary of partition {partition}, or not yet"
        counter = self.replica.ensure_fragment((NAMESPACE, partition)).counter
        start = counter.reserve(len(rows))
        keys = [key.encode() for key in rows]
        values = [value.encode() if value is not None else None for value in rows.values()]
        self.decide(r.Update([r.Write(NAMESPACE, partition, local.epoch, start, keys, values, counter.lwm)]), local)

    def prepare_reader(self, partition: int, tx: TxId) -> None:
        """A transaction that only read here is in doubt."""
        local = self.local[partition]
        record = r.Prepare(tx, partition, local.epoch, [], [(NAMESPACE, b"k")], [partition], partition)
        self.decide(record, local)

    def end_reader(self, partition: int, tx: TxId) -> None:
        """... and has ended."""
        local = self.local[partition]
        self.decide(r.Outcome(tx, partition, local.epoch, True, []), local)

    def decide(self, record: r.Record, local: LocalPartition) -> None:
        """Log it, and send it to the copies."""
        self.log_unapplied(record)
        self.shipping.ship(Operation(local, [record], counted=lambda: self._count(record)), local)

    # What can happen to a disk.

    def _count(self, record: r.Record) -> None:
        """Every in-sync copy has it."""
        self.replica.apply(record)

    def trim(self, *, unannounced: bool = False) -> None:
        """The log begins here; `unannounced`: nobody knows that what was before is gone."""
        self.history_begins = len(self.records)
        if not unannounced:
            dropped = [(*name, f.counter.lwm + 1) for name, f in self.replica.fragments.items()]
            self.log(r.Trimmed(self.history_begins + 1, dropped))

    def checkpoint(self) -> None:
        """What is everywhere needs no tombstone any more."""
        image = self.replica.begin_checkpoint(len(self.records), [])
        for _ in self.mutations.remember(self.replica.store.layers[-1]):
            pass
        self.replica.store.base.write(image)
        self.replica.store.thaw()
        self.demander.go_on()

    def spoil(self, partition: int, key: str, value: str) -> None:
        """A row is not what was written."""
        name = (NAMESPACE, partition)
        held = self.replica.store.get(name, key.encode())
        assert held is not None
        self.replica.store.put(name, key.encode(), Entry(held.epoch, held.counter, value.encode()))

    def rot(self, partition: int, key: str, value: str | None) -> None:
        """A row of the last checkpoint is not what was written there, or is gone, and nothing tells."""
        base = self.replica.store.base
        assert isinstance(base, MemoryStore)
        rot(base, (NAMESPACE, partition), key.encode(), value.encode() if value is not None else None)

    def rows(self, partition: int) -> dict[bytes, tuple[int, int, bytes]]:
        """All live rows."""
        found = self.replica.store.scan((NAMESPACE, partition), b"", 100_000)
        return {key: (e.epoch, e.counter, e.value) for key, e in found if e.value is not None}


def _concerns(record: r.Record) -> list[tuple[int, int]]:
    """(partition, epoch) of what a record is about."""
    match record:
        case r.Update(writes) | r.History(writes):
            return [(write.partition, write.epoch) for write in writes]
        case r.Prepare() | r.Outcome() | r.NoOp() | r.EpochStart() | r.Stable() | r.Compare() | r.Forget():
            return [(record.partition, record.epoch)]
        case _:
            raise AssertionError(f"not what a primary sends: {record}")


class Copies:
    """Some nodes, what was said and has not arrived, and the map."""

    def __init__(self, *nodes: NodeId, partitions: int = 1, settings: Settings | None = None) -> None:
        self.now = 0
        self.settings = settings if settings is not None else Settings()
        self.wire: deque[tuple[NodeId, NodeId, Said]] = deque()
        self.trouble: Trouble | None = None
        self.said: list[str] = []  # the kinds of all that was delivered
        self.away: dict[NodeId, None] = {}
        self._disks = 0
        self._minor = 0
        self.copies = {node: self._make(node, run=1) for node in nodes}
        self.placements = [Placement(1, 1, nodes, nodes) for _ in range(partitions)]
        self.backups = len(nodes) - 1
        self.migrations = NOT_ORDERED

    def __getitem__(self, node: NodeId) -> Copy:
        return self.copies[node]

    def _make(self, node: NodeId, *, run: int) -> Copy:
        self._disks += 1
        return Copy(self, node, disk=f"{node}-disk{self._disks}", run=run)

    # The map.

    def map(self, owners: Sequence[NodeId], in_sync: Sequence[NodeId], *, promote: bool = False) -> None:
        """The next map, the same for every partition: the first owner is primary."""
        self.placements = [
            Placement(p.version + 1, p.epoch + promote, tuple(owners), tuple(in_sync)) for p in self.placements
        ]
        self.commit()

    def commit(self) -> None:
        """`placements` is the next map."""
        self._minor += 1
        here = {node: copy for node, copy in self.copies.items() if node not in self.away}
        members = tuple(
            Member(node, copy.disk, copy.run << INCARNATION_BITS, f"{node}:1", order)
            for order, (node, copy) in enumerate(here.items())
        )
        topology = Topology(
            Version(1, self._minor),
            "c",
            "test",
            len(self.placements),
            self.backups,
            members,
            tuple(self.copies),
            tuple(self.placements),
            {node: copy.disk for node, copy in here.items()},
            {},
            len(members),
            migrations=self.migrations,
        )
        topology.check()
        for copy in here.values():
            copy.switch(topology)

    def admit(self) -> None:
        """Every copy that its primary vouches for is in sync by the next map."""
        self.placements = [
            Placement(p.version + 1, p.epoch, p.owners, self.to_count(number)) for number, p in enumerate(self.placements)
        ]
        self.commit()

    def to_count(self, number: int) -> tuple[NodeId, ...]:
        """The copies of a partition that are in sync, or are so by the next map, because the primary vouches for them."""
        p = self.placements[number]
        assert p.primary is not None
        vouched = self.copies[p.primary].supply.vouching.vouched
        return tuple(n for n in p.owners if n in p.in_sync or (number, n) in vouched)

    # What is said.

    def say(self, sender: NodeId, to: NodeId, said: Said) -> None:
        """Put it on the wire."""
        self.wire.append((sender, to, said))

    def step(self) -> bool:
        """Deliver the next message, or do what was put off; whether there was anything."""
        if any(copy.go_on() for node, copy in self.copies.items() if node not in self.away):
            return True
        if not self.wire:
            return False
        sender, to, said = self.wire.popleft()
        times = self.trouble(sender, to, said) if self.trouble is not None else 1
        if times < 0 and self.wire:
            after = self.wire.popleft()
            self.wire.extendleft([(sender, to, said), after])
            return True
        for _ in range(abs(times)):
            if sender not in self.away and to not in self.away:
                self.said.append(type(said).__name__)
                self.copies[to].hear(sender, said)
        return True

    def run(self) -> None:
        """Deliver everything, until nobody has anything to say."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError(f"they talk without end: {self.said[-20:]}")

    def wait(self, times: int = 1) -> None:
        """Time passes, `retransmit_ms` each time, and everything is delivered."""
        for _ in range(times):
            self.now += self.settings.retransmit_ms * MS
            for node, copy in self.copies.items():
                if node not in self.away:
                    copy.tick()
            self.run()

    def round(self, times: int = 1) -> None:
        """So many rounds of anti-entropy pass; each of their ticks is over before the next one."""
        for _ in range(times * TICKS):
            for node, copy in self.copies.items():
                if node not in self.away:
                    copy.work = 0
                    copy.entropy.tick()
            self.run()

    # What happens to nodes.

    def leaves(self, node: NodeId) -> None:
        """It is gone, and so is what it had said last; its disk is not."""
        self.away[node] = None
        self.wire = deque(item for item in self.wire if node not in item[:2])

    def returns(self, node: NodeId, *, wiped: bool = False) -> None:
        """It starts again: with what its log says, or with another disk."""
        old = self.copies[node]
        self.away.pop(node, None)
        self.wire = deque(item for item in self.wire if node not in item[:2])
        if wiped:
            self.copies[node] = self._make(node, run=1)
        else:
            self.copies[node] = Copy(self, node, disk=old.disk, run=old.run + 1, records=old.records)
            self.copies[node].history_begins = old.history_begins

    # The end.

    def whole(self, *, patience: int = 60) -> None:
        """The trouble is over: in bounded time every copy is vouched for, and the next map says so."""
        self.trouble = None
        for _ in range(patience):
            self.run()
            if all(
                (number, node) in self.copies[p.owners[0]].supply.vouching.vouched
                for number, p in enumerate(self.placements)
                for node in p.owners
                if node not in p.in_sync
            ):
                break
            self.wait()
        else:
            raise AssertionError({n: (c.demander.behind, c.notes[-5:]) for n, c in self.copies.items()})
        self.admit()
        self.wait(2)

    def judge(self) -> None:
        """Equal counters, equal epochs, equal digests of history, equal rows, on every owner; nobody in doubt alone."""
        for number, p in enumerate(self.placements):
            told = []
            for node in p.owners:
                copy = self.copies[node]
                copy.replica.check()
                fragment = copy.replica.fragment((NAMESPACE, number))
                state = copy.replica.partition(number)
                counter = (fragment.counter.lwm, fragment.counter.hwm, fragment.counter.ranges)
                told.append(
                    (counter, fragment.history, fragment.digest, copy.rows(number), state.epoch, sorted(state.prepared))
                )
            assert all(other == told[0] for other in told[1:]), f"partition {number}: {told}"


def name_of(partition: int) -> Fragment:
    """The fragment that stories write to."""
    return (NAMESPACE, partition)
