"""Invariant 3: every counter at or below LWM has exactly one record that counts in the log, or lies below what is cut off.

The log is folded here once more, in the simplest way: which counters of which fragment it says something about, and
what. This fold knows nothing of `engine.state.replica` and must find, for each copy that recovery makes of the same log,
every counter that is applied and not cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

from rebalance.fragment import FragmentState
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal import LogDamaged
from wal import records as r
from wal.ids import Fragment, NodeId, TxId

Said = tuple[bytes | None, bytes | None]
"""(key, value) that a counter was given to; (None, None) if it was closed."""
CLOSED: Said = (None, None)
UNKNOWN: Said = (b"?", None)
"""Of a transaction whose vote was cut off the log."""


class LogRecords(Oracle):
    """At each start and in the end, the log of a node against its copies."""

    def __init__(self) -> None:
        self._damaged: dict[tuple[NodeId, str], None] = {}  # disks that need not read back whole

    def destroyed(self, machine: Machine, how: str) -> None:
        """Some of the log below its last checkpoint may be unreadable from now on; that refuses nothing but history."""
        self._damaged[machine.name, machine.allocation] = None

    def started(self, machine: Machine) -> None:
        """A node was made of its log."""
        self._judge(machine)

    def finish(self, world: World) -> None:
        """Every node, at rest."""
        for machine in world.running:
            self._judge(machine)

    def _judge(self, machine: Machine) -> None:
        log, node = machine.log, machine.node
        assert log is not None
        assert node is not None
        first = log.segments()[0].first_lsn
        fold = LogFold()
        try:
            with machine.disk.unwatched():
                fold.take(record for block in log.replay(first) for record in block.records)
            fold.take(machine.owed)  # what it applied in its last turn, which may not be at its end
        except LogDamaged as error:
            if (machine.name, machine.allocation) in self._damaged:
                return
            raise Violation("log-records", f"{machine.name}: {error}", About(nodes=(machine.name,))) from error
        if fold.twice:
            raise Violation("log-records", f"{machine.name}: {fold.twice[0]}", About(nodes=(machine.name,)))
        for name, copy in node.core.replica.fragments.items():
            lacking = fold.lacking(copy)
            if lacking:
                raise Violation(
                    "log-records",
                    f"{machine.name} has {copy}, history from {copy.history_from}; its log lacks {lacking[:8]}",
                    About(nodes=(machine.name,), fragments=(name,)),
                )


class LogFold:
    """What a log says of each counter. `twice`: counters that were given away anew without an undo."""

    def __init__(self) -> None:
        self.twice: list[str] = []
        self._said: dict[Fragment, dict[int, tuple[int, Said]]] = {}  # counter -> (epoch, what)
        self._votes: dict[tuple[TxId, int], r.Prepare] = {}
        self._epochs: dict[Fragment, int] = {}
        self._started: dict[int, int] = {}

    def lacking(self, copy: FragmentState) -> list[int]:
        """The counters of a copy that are applied, are not cut off, and have no record."""
        if copy.loading:
            return []
        said = self._said.get(copy.name, {})
        return [c for c in range(copy.history_from + 1, copy.counter.lwm + 1) if c not in said]

    def take(self, records: Iterable[r.Record]) -> None:
        """Read on."""
        for record in records:
            match record:
                case r.Update(writes) | r.History(writes):
                    for write in writes:
                        self._write(write)
                case r.Prepare(tx, partition):
                    self._votes[tx, partition] = record
                case r.Outcome(tx, partition, epoch, commit, ranges):
                    self._outcome(self._votes.pop((tx, partition), None), partition, epoch, ranges if commit else [])
                    self._close(partition, epoch, [] if commit else ranges)
                case r.NoOp(partition, epoch, gaps):
                    self._close(partition, epoch, gaps)
                case r.EpochStart(partition, epoch, firsts):
                    self._start(partition, epoch, firsts)
                case r.Undo(namespace, partition, above):
                    self._cut((namespace, partition), above)
                case r.FragmentClear(namespace, partition):
                    self._forget((namespace, partition))
                case r.FragmentReady(namespace, partition, lwm, _, epochs, True):
                    name = (namespace, partition)
                    kept = {c: said for c, said in self._said.get(name, {}).items() if c > lwm}
                    self._said[name] = kept
                    self._epochs[name] = max([epoch for epoch, _ in epochs] + [epoch for epoch, _ in kept.values()] + [0])
                case _:
                    pass

    def _write(self, write: r.Write) -> None:
        if write.closed:
            self._close(write.partition, write.epoch, [(write.namespace, write.start, write.closed)])
            return
        for counter, said in enumerate(zip(write.keys, write.values, strict=True), write.start + 1):
            self._note(write.fragment, counter, write.epoch, said)

    def _outcome(self, vote: r.Prepare | None, partition: int, epoch: int, ranges: list[r.Range]) -> None:
        if vote is not None and ranges:
            for write in vote.writes:
                self._write(write)
            return
        for namespace, start, delta in ranges:
            for counter in range(start + 1, start + delta + 1):
                self._note((namespace, partition), counter, epoch, UNKNOWN)

    def _close(self, partition: int, epoch: int, ranges: list[r.Range]) -> None:
        for namespace, start, delta in ranges:
            for counter in range(start + 1, start + delta + 1):
                self._note((namespace, partition), counter, epoch, CLOSED)

    def _note(self, name: Fragment, counter: int, epoch: int, said: Said) -> None:
        _, known = self._said.setdefault(name, {}).setdefault(counter, (epoch, said))
        if known != said and UNKNOWN not in {known, said}:
            self.twice.append(f"counter {counter} of {name[0]}/{name[1]} is {known}, and then {said}")
        self._epochs[name] = max(epoch, self._epochs.get(name, 0))

    def _start(self, partition: int, epoch: int, firsts: list[tuple[str, int]]) -> None:
        if epoch <= self._started.get(partition, 0):
            return
        self._started[partition] = epoch
        for namespace, first in firsts:
            name = (namespace, partition)
            if self._epochs.get(name, 0) < epoch:
                self._cut(name, first - 1)
                self._epochs[name] = epoch

    def _cut(self, name: Fragment, above: int) -> None:
        self._said[name] = {c: said for c, said in self._said.get(name, {}).items() if c <= above}

    def _forget(self, name: Fragment) -> None:
        self._said.pop(name, None)
        self._epochs.pop(name, None)
