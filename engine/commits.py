"""What a coordinator keeps of a transaction, and the two records by which one is decided.

`OnePhase` is the whole transaction when all of it lies in one partition; `Decision` is the commit point of two-phase
commit. Both are operations of `engine.replication`. `engine.coordinator` says what happens when.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from engine.effects import SessionId
from engine.messages import Part
from engine.requests import CommitTx, Done, Unlock
from wal import records as r
from wal.ids import Namespace, TxId, partition_of
from wal.probe import probe

if TYPE_CHECKING:
    from engine.coordinator import Coordinator


class Phase(Enum):
    """Where a coordinated transaction stands."""

    PREPARING = "preparing"
    PREPARED = "prepared"  # all votes are there, and the client wants to say when
    DECIDING = "deciding"
    FINISHING = "finishing"
    RECOVERING = "recovering"


class Transaction:
    """One transaction, as its coordinator sees it."""

    def __init__(self, tx: TxId, decision: int, participants: list[int], since: int) -> None:
        self.tx = tx
        self.decision = decision
        self.participants = participants
        self.owner = tx
        self.optimistic = False
        self.parts: dict[int, Part] = {}
        self.phase = Phase.PREPARING
        self.votes: dict[int, bool] = {}
        self.commit = False
        self.held_back = False  # decided during an exchange: the record is written when it is over
        self.reason = ""
        self.prepare_only = False
        self.acked = -1  # what its client had acknowledged when it asked
        self.unfinished: dict[int, None] = {}
        self.asked: list[tuple[SessionId, int, bool]] = []  # (session, request id, wants a Status)
        self.unlocks: list[tuple[SessionId, Unlock]] = []  # rolled back by its client; answered when the abort counts
        self.since = since
        self.sent_at = since


class OnePhase:
    """A transaction of one partition: one record is prepare and commit."""

    __slots__ = ("_asked", "_coordinator", "_owner", "_writes", "epoch", "partition", "records", "tx")

    def __init__(
        self, coordinator: Coordinator, tx: TxId, owner: TxId, writes: list[r.Write], asked: tuple[SessionId, int]
    ) -> None:
        self._coordinator = coordinator
        self.tx = tx
        self._owner = owner
        self._writes = writes
        self._asked = [asked]
        self.partition = writes[0].partition
        self.epoch = writes[0].epoch
        self.records: list[r.Record] = [r.Update(writes)]

    def ask(self, session: SessionId, request_id: int) -> None:
        """The same commit was asked for again."""
        self._asked.append((session, request_id))

    def counted(self) -> None:
        """Durable on every in-sync copy."""
        coordinator = self._coordinator
        core = coordinator.core
        for write in self._writes:
            core.replica.apply_write(write)
        coordinator.one_phase.pop(self.tx, None)
        coordinator.participant.locks.release(self._owner)
        for session, request_id in self._asked:
            core.reply(session, Done(request_id))

    def abandoned(self) -> None:
        """The next primary has it or closes it; the client asks there."""
        coordinator = self._coordinator
        coordinator.one_phase.pop(self.tx, None)
        for session, request_id in self._asked:
            coordinator.core.remap(session, request_id, begun=True)


class Decision:
    """A decision record on its way to every in-sync copy of its partition."""

    __slots__ = ("_coordinator", "_transaction", "_write", "epoch", "partition", "records")

    def __init__(self, coordinator: Coordinator, transaction: Transaction, write: r.Write) -> None:
        self._coordinator = coordinator
        self._transaction = transaction
        self._write = write
        self.partition = write.partition
        self.epoch = write.epoch
        self.records: list[r.Record] = [r.Update([write])]

    def counted(self) -> None:
        """The transaction is decided."""
        self._coordinator.core.replica.apply_write(self._write)
        self._coordinator.decided(self._transaction)

    def abandoned(self) -> None:
        """The next primary has the record, or recovers the transaction."""
        probe("tx.decision_abandoned")


def split(request: CommitTx, partitions: int) -> dict[int, Part]:
    """A transaction's parts by partition."""
    writes: dict[int, dict[Namespace, tuple[list[bytes], list[bytes | None]]]] = {}
    locks: dict[int, list[tuple[Namespace, bytes]]] = {}
    reads: dict[int, list[tuple[Namespace, bytes, int, int]]] = {}
    numbers: dict[int, None] = {}
    for namespace, keys, values in request.writes:
        for key, value in zip(keys, values, strict=True):
            number = partition_of(key, partitions)
            numbers[number] = None
            share = writes.setdefault(number, {}).setdefault(namespace, ([], []))
            share[0].append(key)
            share[1].append(value)
    for namespace, key in request.locks:
        number = partition_of(key, partitions)
        numbers[number] = None
        locks.setdefault(number, []).append((namespace, key))
    for read in request.reads:
        number = partition_of(read[1], partitions)
        numbers[number] = None
        reads.setdefault(number, []).append(read)
    return {
        number: Part(
            number,
            [(ns, keys, values) for ns, (keys, values) in writes.get(number, {}).items()],
            locks.get(number, []),
            reads.get(number, []),
        )
        for number in numbers
    }
