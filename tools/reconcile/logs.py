"""What a whole log tells of transactions and maps, long after decision records are forgotten: one reading, front to back.

Participants come from the prepares, outcomes from their records. A log that reaches back and has not missed anything also
tells what did *not* happen: a partition that was one of a transaction's and never heard of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rebalance import table as topologies
from tools.reconcile.fetched import here
from tools.reconcile.uncollected import uncollected
from wal import Block, Finding, Owner, begins
from wal import records as r
from wal.ids import TxId, whole_of
from wal.packed import PackedBlock, PackedHistory, PackedUpdate, skim

MAPS_KEPT = 256
ATTEMPTS = 3


class Transaction(msgspec.Struct):
    """What one log tells of a transaction of several partitions. `silent`: partitions of it that never heard of it."""

    participants: list[int] = []
    outcomes: dict[int, bool] = {}
    silent: list[int] = []


class Undone(msgspec.Struct, frozen=True):
    """What was prepared at an LSN, and rolled back. `decision` is the partition that decides about the transaction."""

    lsn: int
    decision: int


class LogTold(msgspec.Struct):
    """What a log tells. `ended_ms` is its newest block's time; `damage` what of it cannot be read, in sentences.

    `maps` are the LSNs and versions of the last committed maps. `undone`: what was prepared and rolled back, by partition.
    """

    transactions: dict[TxId, Transaction] = {}
    lost_since: dict[int, str] = {}
    ended_ms: int = 0
    damage: list[str] = []
    maps: list[tuple[int, str]] = []
    undone: dict[TxId, dict[int, Undone]] = {}


class Stretch(msgspec.Struct, frozen=True):
    """The log of a directory, to be read up to an LSN, 0: to its end; or one segment of it. A `live` node trims it."""

    path: str
    owner: Owner
    until_lsn: int
    live: bool = False
    from_lsn: int = 1
    segment: int | None = None


def read_log(log: Stretch) -> LogTold:
    """Read a log. A live node may rotate and trim it meanwhile: then it is read again before it is damaged."""
    told = LogTold()
    for _ in range(ATTEMPTS if log.live else 1):
        told = read_stretch(log).told()
        if not told.damage:
            break
    return told


@uncollected
def read_stretch(log: Stretch) -> Reading:
    """Read a log once, or a segment of it.

    What a node that runs trimmed meanwhile is no damage: then it is as if the log had begun behind it.
    """
    reading = Reading()
    path = here(log.path) / "wal"
    found = skim(path, reading.take, log.from_lsn, log.until_lsn or None, owner=log.owner, segment=log.segment)
    first = begins(path) if log.live else 1
    for one in found:
        if one.damage and one.costs(first):
            reading.lose(one)
    if first > 1:
        reading.first_lsn = max(first, reading.first_lsn)
    return reading


class Reading(msgspec.Struct):
    """One pass over a log, or over one segment of it, after those before it (`then`)."""

    first_lsn: int = 0
    ended_ms: int = 0
    damage: list[str] = []
    maps: list[tuple[int, str, list[int]]] = []  # the last ones: LSN, version, lost partitions
    began: dict[int, int] = {}  # partition -> the LSN of its first epoch here
    transferred: set[int] = set()  # partitions whose history did not all come live
    traces: set[tuple[TxId, int]] = set()
    first: dict[TxId, int] = {}  # the LSN of the first prepare
    participants: dict[TxId, list[int]] = {}
    outcomes: dict[TxId, dict[int, bool]] = {}
    topologies: list[tuple[int, str, bytes]] = []  # the last ones, not looked at yet
    held: dict[tuple[TxId, int], Undone] = {}  # prepared by several partitions, without an outcome so far
    undone: dict[TxId, dict[int, Undone]] = {}

    def take(self, block: Block | PackedBlock) -> None:
        """Read on."""
        self.first_lsn = self.first_lsn or block.first_lsn
        self.ended_ms = max(self.ended_ms, block.time_ms)
        for lsn, record in enumerate(block.records, block.first_lsn):
            match record:
                case PackedUpdate(writes) | r.Update(writes):
                    if known := self.participants:
                        self.traces.update((w.tx, w.partition) for w in writes if w.tx and w.tx in known)
                case r.Prepare(piece, partition, _, _, _, participants, decision):
                    if len(participants) > 1:
                        tx = whole_of(piece)
                        self.held[tx, partition] = Undone(lsn, decision)
                        self.first.setdefault(tx, lsn)
                        self.participants.setdefault(tx, list(dict.fromkeys(participants)))
                        self.traces.add((tx, partition))
                case r.Outcome(piece, partition, _, commit):
                    tx = whole_of(piece)
                    ended = self.outcomes.setdefault(tx, {})
                    ended[partition] = commit and ended.get(partition, True)  # by all of its pieces there
                    held = self.held.pop((tx, partition), None)
                    if held is not None and not commit:
                        self.undone.setdefault(tx, {})[partition] = held
                case PackedHistory(writes) | r.History(writes):
                    self.transferred.update(w.partition for w in writes)
                    self.traces.update((whole_of(w.tx), w.partition) for w in writes if w.tx)
                case r.EpochStart(partition):
                    self.began.setdefault(partition, lsn)
                case r.Preload() | r.FragmentClear() | r.FragmentReady() | r.Undo() | r.Results():
                    self.transferred.add(record.partition)
                case r.Committed(version, topology):
                    self.topologies.append((lsn, str(version), topology))
                    del self.topologies[:-MAPS_KEPT]
                case _:
                    pass

    def lose(self, finding: Finding) -> None:
        """Something of the log is not there."""
        self.damage.append(str(finding))

    def then(self, later: Reading) -> Reading:
        """With what was read of the log behind it."""
        self.first_lsn = self.first_lsn or later.first_lsn
        self.ended_ms = max(self.ended_ms, later.ended_ms)
        self.damage += later.damage
        self.look_at_maps()
        later.look_at_maps(self.maps[-1][2] if self.maps else ())
        self.maps = [*self.maps, *later.maps][-MAPS_KEPT:]
        self.began = later.began | self.began
        self.transferred |= later.transferred
        self.traces |= later.traces
        self.first = later.first | self.first
        self.participants = later.participants | self.participants
        for tx, outcomes in later.outcomes.items():
            self.outcomes.setdefault(tx, {}).update(outcomes)
            for partition, commit in outcomes.items():
                held = self.held.pop((tx, partition), None)
                if held is not None and not commit:
                    self.undone.setdefault(tx, {}).setdefault(partition, held)
        self.held |= later.held
        for tx, undone in later.undone.items():
            self.undone.setdefault(tx, {}).update(undone)
        return self

    def look_at_maps(self, before: Sequence[int] = ()) -> None:
        """Which partitions were lost in which map: that is all that is kept of them. A light step changes nothing of it.

        `before`: those of the last map before these.
        """
        for lsn, version, data in self.topologies:
            try:
                placements = topologies.decode(data).placements
            except ValueError:  # a step, or of a newer version
                lost = self.maps[-1][2] if self.maps else list(before)
            else:
                lost = [number for number, placement in enumerate(placements) if placement.lost]
            self.maps.append((lsn, version, lost))
        self.topologies = []

    def told(self) -> LogTold:
        """All that it comes to."""
        self.look_at_maps()
        told = LogTold(
            {tx: Transaction(list(p), dict(self.outcomes.get(tx, {}))) for tx, p in self.participants.items()},
            _lost_since(self.maps),
            self.ended_ms,
            list(self.damage),
            [(lsn, version) for lsn, version, _ in self.maps],
            undone=self.undone,
        )
        if self.first_lsn == 1 and not self.damage:
            for tx, transaction in told.transactions.items():
                if True in transaction.outcomes.values():
                    transaction.silent = [p for p in transaction.participants if self._never_heard(tx, p)]
        return told

    def _never_heard(self, tx: TxId, partition: int) -> bool:
        """Whether this node had the partition all the while, and its log has no trace of the transaction in it."""
        began = self.began.get(partition)
        if began is None or began > self.first[tx] or partition in self.transferred:
            return False
        return (tx, partition) not in self.traces and partition not in self.outcomes.get(tx, ())


def _lost_since(maps: Iterable[tuple[int, str, Iterable[int]]]) -> dict[int, str]:
    """partition -> the version from which on it has been lost, as far as these maps reach."""
    since: dict[int, str] = {}
    for _, version, lost in maps:
        since = {number: since.get(number, version) for number in lost}
    return since


class Torn(msgspec.Struct, frozen=True):
    """A transaction that ended in two ways. `said`: node -> partition -> `committed`, `rolled back` or `no trace`.

    `undone`: where the partition that decides has committed, and logs have all that was rolled back elsewhere: the LSNs of
    that, by node and partition. Then what is right is proven, and there is a record of it.
    """

    tx: TxId
    partition: int
    on: list[str]
    said: dict[str, dict[int, str]]
    undone: dict[str, dict[int, int]] = {}


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
            found.append(Torn(tx, odd[0], on, said, _undone(told, tx, odd, agreed)))
    return sorted(found, key=lambda torn: (torn.partition, torn.tx))


def _undone(told: Mapping[str, LogTold], tx: TxId, odd: list[int], agreed: Mapping[int, bool]) -> dict[str, dict[int, int]]:
    """Where the logs have what these partitions rolled back, if the one that decides has committed."""
    found: dict[str, dict[int, int]] = {}
    for node, log in sorted(told.items()):
        mine = log.undone.get(tx, {})
        if all(p in mine and agreed.get(mine[p].decision) for p in odd):
            found[node] = {p: mine[p].lsn for p in odd}
    return found


def _mute(log: LogTold, tx: TxId, partition: int) -> bool:
    transaction = log.transactions.get(tx)
    return transaction is None or partition in transaction.silent or partition not in transaction.outcomes


def _said(log: LogTold, tx: TxId, odd: list[int]) -> dict[int, str]:
    transaction = log.transactions[tx]
    words = {p: "committed" if commit else "rolled back" for p, commit in transaction.outcomes.items()}
    return dict(sorted((words | {p: "no trace" for p in transaction.silent if p in odd}).items()))
