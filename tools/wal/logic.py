"""What a log says that cannot be, though every byte of it is right: counters, epochs, outcomes, and keys in their places.

One reading, front to back, beside what the directory folds to. What a log may not know (what was trimmed, what came by a
transfer, what was undone) is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from engine.offline.directory import State
from tools.reconcile.logs import LogTold, Reading, torn_ones
from tools.terminal import word
from wal import Block, CounterOverlap, PartitionCounter
from wal import records as r
from wal.counters import TooManyRanges
from wal.ids import Fragment, TxId, fragment_name, partition_of, tx_name

UNDECIDED_MS = 60_000
"""A prepared transaction of which nothing is heard for so long, by its own log's time, is stuck."""
SHOWN = 5
INTERNAL = "~"


class Broken(msgspec.Struct, frozen=True):
    """One thing that cannot be. `lsn` is 0 where no single record says it."""

    what: str
    lsn: int = 0

    def __str__(self) -> str:
        return f"lsn={self.lsn} {self.what}" if self.lsn else self.what


class Logic:
    """Reads a log and says what cannot be; `partitions` is into how many a key hashes, 0 if nobody knows."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._broken: dict[str, list[Broken]] = {}
        self._said: dict[Fragment, PartitionCounter] = {}
        self._epochs: dict[int, int] = {}
        self._prepared: dict[tuple[TxId, int], r.Prepare] = {}
        self._outcomes: dict[tuple[TxId, int], bool] = {}
        self._unprepared: list[tuple[int, r.Outcome]] = []
        self._transactions = Reading()

    # Reading.

    def take(self, block: Block) -> None:
        """Read on."""
        self._transactions.take(block)
        for lsn, record in enumerate(block.records, block.first_lsn):
            match record:
                case r.Update(writes):
                    for write in writes:
                        self._check_epoch(lsn, write.partition, write.epoch, "a write")
                        self._write(lsn, write)
                case r.History(writes):
                    for write in writes:
                        self._write(lsn, write)
                case r.Prepare(tx, partition, epoch, writes):
                    self._check_epoch(lsn, partition, epoch, f"a prepare of tx={tx_name(tx)}")
                    self._prepared[tx, partition] = record
                    for write in writes:
                        self._check_keys(lsn, write)
                case r.Outcome():
                    self._outcome(lsn, record)
                case r.NoOp(partition, _, gaps):
                    for namespace, start, delta in gaps:
                        self._counted(lsn, (namespace, partition), start, delta)
                case r.EpochStart(partition, epoch, firsts):
                    self._epochs[partition] = max(epoch, self._epochs.get(partition, 0))
                    for namespace, first in firsts:
                        self._cut((namespace, partition), first - 1)
                case r.Undo(namespace, partition, above):
                    self._cut((namespace, partition), above)
                case r.FragmentClear(namespace, partition):
                    self._said.pop((namespace, partition), None)
                case _:
                    pass

    def _check_epoch(self, lsn: int, partition: int, epoch: int, what: str) -> None:
        began = self._epochs.get(partition, 0)
        if epoch < began:
            self._add("epoch", lsn, f"{what} of partition {partition} in epoch {epoch}, after epoch {began} began")

    def _check_keys(self, lsn: int, write: r.Write) -> None:
        if write.stable > write.start:
            name = fragment_name(write.fragment)
            self._add("stable", lsn, f"{name} counter {write.start + 1} calls {write.stable} stable, which came later")
        if self._partitions and not write.namespace.startswith(INTERNAL):
            for key in write.keys:
                right = partition_of(key, self._partitions)
                if right != write.partition % self._partitions:  # of whichever group
                    name = fragment_name(write.fragment)
                    self._add("place", lsn, f"{name} has key {word(key)}, which hashes to partition {right}")

    def _write(self, lsn: int, write: r.Write) -> None:
        self._check_keys(lsn, write)
        self._counted(lsn, write.fragment, write.start, write.delta)

    def _outcome(self, lsn: int, record: r.Outcome) -> None:
        at = record.tx, record.partition
        before = self._outcomes.setdefault(at, record.commit)
        if before != record.commit:
            how = ("rolled back", "committed") if record.commit else ("committed", "rolled back")
            self._add("outcome", lsn, f"tx={tx_name(record.tx)} partition {record.partition} was {how[0]} and is {how[1]}")
        prepare = self._prepared.pop(at, None)
        if prepare is None and record.commit:
            if record.ranges:
                self._unprepared.append((lsn, record))
            return
        for namespace, start, delta in record.ranges:
            self._counted(lsn, (namespace, record.partition), start, delta)

    def _counted(self, lsn: int, fragment: Fragment, start: int, delta: int) -> None:
        said = self._said.get(fragment)
        if said is None:
            said = self._said[fragment] = PartitionCounter()
        try:
            said.update(start, delta)
        except CounterOverlap:
            what = f"{fragment_name(fragment)} counters {start + 1}..{start + delta} were given to another write in part"
            self._add("overlap", lsn, what)
        except TooManyRanges:
            self._said[fragment] = PartitionCounter(start + delta)  # so much of it is missing that a hole is told anyway

    def _cut(self, fragment: Fragment, above: int) -> None:
        said = self._said.get(fragment)
        if said is not None and said.highest_applied > above:
            said.cut(above)

    def _add(self, kind: str, lsn: int, what: str) -> None:
        self._broken.setdefault(kind, []).append(Broken(what, lsn))

    # What it comes to.

    def told(self) -> LogTold:
        """What it says of transactions, to be laid beside other logs."""
        return self._transactions.told()

    def broken(self, state: State) -> Iterator[Broken]:
        """Everything that cannot be, given what the directory folds to."""
        for lsn, record in self._unprepared:
            for namespace, start, delta in record.ranges:
                name = (namespace, record.partition)
                if self._lacks(state, name, start, start + delta):
                    what = f"tx={tx_name(record.tx)} was committed in partition {record.partition} without a prepare"
                    self._add("unprepared", lsn, what)
        for name, view in sorted(state.fragments.items()):
            if not view.loading:
                for start, delta in self._holes(state, name, view.counter.lwm):
                    what = (
                        f"{fragment_name(name)} counters {start + 1}..{start + delta} are applied, and no record has them"
                    )
                    self._add("hole", 0, what)
        for number, partition in sorted(state.partitions.items()):
            for tx, prepared in sorted(partition.prepared.items()):
                age_ms = state.time_ms - prepared.since_ms if prepared.since_ms else 0
                if age_ms >= UNDECIDED_MS:
                    what = f"tx={tx_name(tx)} is prepared in partition {number} and undecided for {age_ms // 1000} s"
                    self._add("undecided", 0, what)
        for kind in sorted(self._broken):
            found = self._broken[kind]
            yield from found[:SHOWN]
            if len(found) > SHOWN:
                yield Broken(f"and {len(found) - SHOWN} more of this kind ({kind})")

    def _holes(self, state: State, name: Fragment, up_to: int) -> list[tuple[int, int]]:
        floor = state.fragments[name].history_from
        said = self._said.get(name) or PartitionCounter()
        cut = [(max(start, floor), min(start + delta, up_to)) for start, delta in said.missing(up_to)]
        return [(start, end - start) for start, end in cut if start < end]

    def _lacks(self, state: State, name: Fragment, start: int, end: int) -> bool:
        view = state.fragments.get(name)
        if view is None or view.loading or end <= view.history_from:
            return False
        return any(hole < end and hole + delta > start for hole, delta in self._holes(state, name, end))


def torn(told: Mapping[str, LogTold]) -> dict[TxId, Broken]:
    """Transactions that ended in two ways, by all these logs together."""
    found: dict[TxId, Broken] = {}
    for one in torn_ones(told):
        said = " ".join(
            f"{node}({', '.join(f'p{p} {how}' for p, how in words.items())})" for node, words in sorted(one.said.items())
        )
        found[one.tx] = Broken(f"tx={tx_name(one.tx)} ended in two ways: {said}")
    return found
