"""What all nodes ever decided, as one book that several oracles read: writes by counter, votes, outcomes and maps.

The book is kept from the turns, before anything is written or sent: what a node decided and lost in a crash is in it,
too, because it may have told others before. But not the outcome of a transaction that was decided in that very turn: where
no copy is waited for it counts with its decision, or is lost with it, and then it is what the node finds on its disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rebalance import table as topologies
from rebalance.steps import decode_step, stepped
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from wal.ids import DECISIONS, NO_VERSION, Fragment, NodeId, TxId, Version, whole_of
from wal.records import Committed, History, NoOp, Outcome, Prepare, Record, Update, Write


class Fact(NamedTuple):
    """What one counter was given to, in one epoch. Without a key it is a closed gap."""

    tx: TxId
    key: bytes | None
    value: bytes | None
    prepared: bool  # whether it counts depends on the transaction


class Span(NamedTuple):
    """The counters that a transaction took of one fragment."""

    epoch: int
    start: int
    delta: int


NOTED = frozenset({Update, History, Prepare, Outcome, NoOp})
CLOSED = Fact(b"", None, None, False)


class Ledger(Oracle):
    """Invariant 2: a counter is given away once in an epoch; whoever has it has the same. The book is made on the way."""

    def __init__(self) -> None:
        self.facts: dict[Fragment, dict[int, dict[int, Fact]]] = {}  # fragment -> counter -> epoch
        self.spans: dict[TxId, dict[Fragment, Span]] = {}  # of the newest epoch
        self.pieces: dict[TxId, dict[TxId, None]] = {}  # of a transaction, those that have spans
        self.votes: dict[TxId, dict[int, Prepare]] = {}  # by partition
        self.outcomes: dict[TxId, tuple[bool, NodeId]] = {}
        self._unlogged: dict[NodeId, dict[TxId, int]] = {}  # of these what a turn decided that may be lost; where
        self.maps: dict[Version, Topology] = {}
        self.given_up: dict[int, None] = {}  # partitions that an operator had begin again: what was in them may be lost
        self._writes: dict[tuple[Fragment, int, int, bool], tuple[Write, NodeId]] = {}

    @property
    def newest(self) -> Topology | None:
        """The newest map that anybody ever had on disk."""
        return self.maps[max(self.maps)] if self.maps else None

    def decided(self, machine: Machine, records: Sequence[Record]) -> None:
        """A node decided something."""
        ends = [record for record in records if type(record) is Outcome]
        new = [record for record in ends if record.tx not in self.outcomes]
        for unlogged in [unlogged for name, unlogged in self._unlogged.items() if name != machine.name]:
            for end in ends:
                unlogged.pop(end.tx, None)  # it had left, and is here
        for record in records:
            if type(record) in NOTED:
                self._note(machine, record)
        if new:
            decided = dict.fromkeys(key for write in _decisions(records) for key in write.keys)
            self._unlogged[machine.name] = {o.tx: o.partition for o in new if o.tx in decided}

    def started(self, machine: Machine) -> None:
        """What was decided in the turn in which it died, and is not on its disk, and came to nobody else, was not."""
        assert machine.node is not None
        for tx, number in self._unlogged.pop(machine.name, {}).items():
            if machine.node.core.replica.partition(number).results.get(tx) is None:
                self.outcomes.pop(tx, None)

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        """A map counts when it is on a disk."""
        self._unlogged.pop(machine.name, None)
        for record in records:
            if isinstance(record, Committed) and record.version not in self.maps:
                topology = self.maps[record.version] = self._map(record)
                forced = topology.interventions[-1:]
                self.given_up |= {taken.partition: None for intervention in forced for taken in intervention.taken}

    def _map(self, record: Committed) -> Topology:
        if not record.step:
            return topologies.decode(record.topology)
        step = decode_step(record.step)
        return stepped(self.maps[step.after], step)

    def _note(self, machine: Machine, record: Record) -> None:
        match record:
            case Update(writes) | History(writes):
                for write in writes:
                    self._write(machine, write, prepared=False)
            case Prepare():
                self.votes.setdefault(record.tx, {})[record.partition] = record
                for write in record.writes:
                    self._write(machine, write, prepared=True)
            case Outcome(tx, partition, epoch, commit, ranges):
                self.outcomes.setdefault(tx, (commit, machine.name))
                if not commit:
                    for namespace, start, delta in ranges:
                        self._close(machine, (namespace, partition), epoch, start, delta)
            case NoOp(partition, epoch, gaps):
                for namespace, start, delta in gaps:
                    self._close(machine, (namespace, partition), epoch, start, delta)
            case _:
                raise AssertionError(f"{type(record).__name__} is not noted")

    def _write(self, machine: Machine, write: Write, *, prepared: bool) -> None:
        name = write.fragment
        if write.closed:
            self._close(machine, name, write.epoch, write.start, write.closed)
            return
        known = self._writes.setdefault((name, write.epoch, write.start, prepared), (write, machine.name))
        first, by = known
        if first is not write and by is not machine.name:
            if (first.keys, first.values, first.tx) != (write.keys, write.values, write.tx):
                raise self._twice(name, write.epoch, write.start + 1, by, machine.name)
            return
        if write.tx:
            spans = self.spans.setdefault(write.tx, {})
            self.pieces.setdefault(whole_of(write.tx), {})[write.tx] = None
            span = Span(write.epoch, write.start, write.delta)
            if name not in spans or spans[name] < span:
                spans[name] = span
        for at, (key, value) in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
            self._fact(machine, name, write.epoch, at, Fact(write.tx, key, value, prepared))

    def _close(self, machine: Machine, name: Fragment, epoch: int, start: int, delta: int) -> None:
        for at in range(start + 1, start + delta + 1):
            self._fact(machine, name, epoch, at, CLOSED)

    def _fact(self, machine: Machine, name: Fragment, epoch: int, counter: int, fact: Fact) -> None:
        facts = self.facts.setdefault(name, {}).setdefault(counter, {})
        known = facts.get(epoch)
        if known is None or known.prepared:
            if known is not None and fact is not CLOSED and known[:3] != fact[:3]:
                raise self._twice(name, epoch, counter, "an earlier vote", machine.name)
            facts[epoch] = fact
        elif not fact.prepared and known != fact:
            raise self._twice(name, epoch, counter, "an earlier turn", machine.name)

    def _twice(self, name: Fragment, epoch: int, counter: int, first: NodeId, second: NodeId) -> Violation:
        return Violation(
            "counter-twice",
            f"counter {counter} of {name[0]}/{name[1]} is one thing in epoch {epoch} for {first}, another for {second}",
            About(fragments=(name,)),
        )

    # What came of it.

    def settled(self, name: Fragment, counter: int) -> Fact | None:
        """What a counter is in the history that was continued; None: not known, or in doubt."""
        facts = self.facts.get(name, {}).get(counter)
        if not facts:
            return None
        fact = facts[max(facts)] if len(facts) > 1 else next(iter(facts.values()))
        if not fact.prepared:
            return fact
        outcome = self.outcomes.get(fact.tx)
        if outcome is None:
            return None
        return fact if outcome[0] else CLOSED

    def history(self, name: Fragment, lwm: int) -> Iterator[tuple[int, Fact | None]]:
        """Every counter up to `lwm`, with what it is."""
        known = self.facts.get(name, {})
        for counter in range(1, lwm + 1):
            facts = known.get(counter)
            if facts is not None and len(facts) == 1 and not (fact := next(iter(facts.values()))).prepared:
                yield counter, fact  # how it nearly always is
            else:
                yield counter, self.settled(name, counter)


def _decisions(records: Sequence[Record]) -> Iterator[Write]:
    for record in records:
        if isinstance(record, Update):
            yield from (write for write in record.writes if write.namespace == DECISIONS)


def version_before(maps: dict[Version, Topology], version: Version) -> Version:
    """The newest version below this one, or 0.0."""
    return max((known for known in maps if known < version), default=NO_VERSION)
