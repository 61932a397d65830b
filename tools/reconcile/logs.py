"""What a whole log tells of transactions and maps, long after decision records are forgotten: one reading, front to back.

Participants come from the prepares, outcomes from their records. A log that reaches back and has not missed anything also
tells what did *not* happen: a partition that was one of a transaction's and never heard of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from rebalance import table as topologies
from wal import Block, Finding, Owner
from wal import records as r
from wal.ids import TxId
from wal.packed import PackedBlock, PackedHistory, PackedUpdate, skim

MAPS_KEPT = 256
ATTEMPTS = 3


class Transaction(msgspec.Struct):
    """What one log tells of a transaction of several partitions. `silent`: partitions of it that never heard of it."""

    participants: list[int] = []
    outcomes: dict[int, bool] = {}
    silent: list[int] = []


class LogTold(msgspec.Struct):
    """What a log tells. `ended_ms` is its newest block's time; `damage` what of it cannot be read, in sentences.

    `maps` are the LSNs and versions of the last committed maps.
    """

    transactions: dict[TxId, Transaction] = {}
    lost_since: dict[int, str] = {}
    ended_ms: int = 0
    damage: list[str] = []
    maps: list[tuple[int, str]] = []


def read_log(path: Path, owner: Owner, until_lsn: int, *, live: bool = False, from_lsn: int = 1) -> LogTold:
    """Read a log up to an LSN, from its first record or another one on.

    A live node may rotate and trim it meanwhile: then it is read again before it is damaged.
    """
    told = LogTold()
    for _ in range(ATTEMPTS if live else 1):
        reading = Reading()
        for found in skim(path, reading.take, from_lsn, until_lsn or None, owner=owner):
            if found.damage:
                reading.lose(found)
        told = reading.told()
        if not told.damage:
            break
    return told


class Reading:
    """One pass over a log."""

    def __init__(self) -> None:
        self._told = LogTold()
        self._first_lsn = 0
        self._maps: list[tuple[str, bytes]] = []
        self._began: dict[int, int] = {}  # partition -> the LSN of its first epoch here
        self._transferred: set[int] = set()  # partitions whose history did not all come live
        self._traces: set[tuple[TxId, int]] = set()
        self._first: dict[TxId, int] = {}  # the LSN of the first prepare

    def take(self, block: Block | PackedBlock) -> None:
        """Read on."""
        self._first_lsn = self._first_lsn or block.first_lsn
        self._told.ended_ms = max(self._told.ended_ms, block.time_ms)
        for lsn, record in enumerate(block.records, block.first_lsn):
            match record:
                case PackedUpdate(writes) | r.Update(writes):
                    if known := self._told.transactions:
                        self._traces.update((w.tx, w.partition) for w in writes if w.tx and w.tx in known)
                case r.Prepare(tx, partition, _, _, _, participants):
                    if len(participants) > 1:
                        self._first.setdefault(tx, lsn)
                        self._told.transactions.setdefault(tx, Transaction(list(participants)))
                        self._traces.add((tx, partition))
                case r.Outcome(tx, partition, _, commit):
                    ended = self._told.transactions.get(tx)
                    if ended is not None:
                        ended.outcomes[partition] = commit
                        self._traces.add((tx, partition))
                case PackedHistory(writes) | r.History(writes):
                    self._transferred.update(w.partition for w in writes)
                    self._traces.update((w.tx, w.partition) for w in writes if w.tx)
                case r.EpochStart(partition):
                    self._began.setdefault(partition, lsn)
                case r.Preload() | r.FragmentClear() | r.FragmentReady() | r.Undo() | r.Results():
                    self._transferred.add(record.partition)
                case r.Committed(version, topology):
                    self._maps.append((str(version), topology))
                    del self._maps[:-MAPS_KEPT]
                    self._told.maps.append((lsn, str(version)))
                    del self._told.maps[:-MAPS_KEPT]
                case _:
                    pass

    def lose(self, finding: Finding) -> None:
        """Something of the log is not there."""
        self._told.damage.append(str(finding))

    def told(self) -> LogTold:
        """All that it comes to."""
        told = self._told
        told.lost_since = _lost_since(self._maps)
        if self._first_lsn == 1 and not told.damage:
            for tx, transaction in told.transactions.items():
                if True in transaction.outcomes.values():
                    transaction.silent = [p for p in transaction.participants if self._never_heard(tx, p)]
        return told

    def _never_heard(self, tx: TxId, partition: int) -> bool:
        """Whether this node had the partition all the while, and its log has no trace of the transaction in it."""
        began = self._began.get(partition)
        if began is None or began > self._first[tx] or partition in self._transferred:
            return False
        return (tx, partition) not in self._traces


def _lost_since(maps: Iterable[tuple[str, bytes]]) -> dict[int, str]:
    """partition -> the version from which on it has been lost, as far as these maps reach."""
    since: dict[int, str] = {}
    for version, data in maps:
        try:
            topology = topologies.decode(data)
        except ValueError:
            continue
        lost = {number for number, placement in enumerate(topology.placements) if placement.lost}
        since = {number: since.get(number, version) for number in sorted(lost)}
    return since


class Torn(msgspec.Struct, frozen=True):
    """A transaction that ended in two ways. `said`: node -> partition -> `committed`, `rolled back` or `no trace`."""

    tx: TxId
    partition: int
    on: list[str]
    said: dict[str, dict[int, str]]


def torn_ones(told: Mapping[str, LogTold]) -> list[Torn]:
    """The transactions that were committed in one partition and not in another, by all these logs together."""
    outcomes: dict[TxId, dict[int, set[bool]]] = {}
    silent: dict[TxId, set[int]] = {}
    for log in told.values():
        for tx, transaction in log.transactions.items():
            for partition, commit in transaction.outcomes.items():
                outcomes.setdefault(tx, {}).setdefault(partition, set()).add(commit)
            silent.setdefault(tx, set()).update(transaction.silent)
    found: list[Torn] = []
    for tx, by_partition in outcomes.items():
        agreed = {p: next(iter(said)) for p, said in by_partition.items() if len(said) == 1}
        if True not in agreed.values():
            continue
        # Silence counts if all who would have heard are silent: any trace, on any node, is none.
        mute = {p for p in silent.get(tx, ()) if all(_mute(log, tx, p) for log in told.values())}
        odd = sorted({p for p, commit in agreed.items() if not commit} | mute)
        if odd:
            said = {node: _said(log, tx, odd) for node, log in sorted(told.items()) if tx in log.transactions}
            on = [node for node, words in said.items() if odd[0] in words]
            found.append(Torn(tx, odd[0], on, said))
    return sorted(found, key=lambda torn: (torn.partition, torn.tx))


def _mute(log: LogTold, tx: TxId, partition: int) -> bool:
    transaction = log.transactions.get(tx)
    return transaction is None or partition in transaction.silent or partition not in transaction.outcomes


def _said(log: LogTold, tx: TxId, odd: list[int]) -> dict[int, str]:
    transaction = log.transactions[tx]
    words = {p: "committed" if commit else "rolled back" for p, commit in transaction.outcomes.items()}
    return dict(sorted((words | {p: "no trace" for p in transaction.silent if p in odd}).items()))
