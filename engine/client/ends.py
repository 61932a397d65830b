"""How transactions end, as calls: commit it, see that what was only read still stands, ask what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import structs

from engine import errors
from engine.client.calls import Call, Item, unexpected
from engine.protocol.requests import Check, CommitTx, Done, GetStatus, Reply, Request, Scanned, Status
from rebalance.table import Topology
from wal.ids import Namespace, TxId

Tested: TypeAlias = tuple[Namespace, bytes, str, bytes | None, int, int]
"""A condition: (namespace, key, when, old, epoch, counter), as of a Swap."""


class CommitCall(Call):
    """Commit a transaction, at the primary of its first written key; `applied`: all its conditions held, and it was."""

    writes = True

    def __init__(
        self,
        tx: TxId,
        owner: TxId,
        *,
        optimistic: bool,
        writes: list[tuple[Namespace, list[bytes], list[bytes | None]]],
        locks: list[tuple[Namespace, bytes]],
        reads: list[tuple[Namespace, bytes, int, int]],
        prepare_only: bool = False,
        label: str = "",
        labels_all: bool = False,
        conditions: Sequence[Tested] = (),
        ttls: list[tuple[Namespace, bytes, int]] | None = None,
    ) -> None:
        self.conditions = list(conditions)
        self.applied = False
        self.tx = tx
        self.label = label
        self.labels_all = labels_all
        self.ttls = ttls or []
        self.owner = owner
        self.optimistic = optimistic
        self.write_set = writes
        self.locks = locks
        self.reads = reads
        self.prepare_only = prepare_only
        self.ends = not prepare_only

    def only_partition(self, topology: Topology) -> int | None:
        """The decision partition."""
        return self.decided_in(topology)

    def partitions(self, topology: Topology) -> list[int]:
        """The decision partition."""
        return [self.decided_in(topology)]

    @property
    def first_written(self) -> tuple[Namespace, bytes]:
        """The key where it is decided."""
        namespace, keys, _ = self.write_set[0]
        return namespace, keys[0]

    def decided_in(self, topology: Topology) -> int:
        """Where its first written key is."""
        return topology.place(*self.first_written)

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Commit."""
        return CommitTx(
            request_id,
            self.tx,
            owner=self.owner,
            optimistic=self.optimistic,
            writes=self.write_set,
            locks=self.locks,
            reads=self.reads,
            prepare_only=self.prepare_only,
            acked=self.acked,
            version=self.version,
            within_ms=self.within_ms,
            label=self.label,
            conditions=self.conditions,
            ttls=self.ttls,
            labels_all=self.labels_all,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note whether its conditions held."""
        if not isinstance(reply, Done):
            raise unexpected(reply)
        self.applied = reply.applied


class CheckCall(Call):
    """See that what a transaction saw still stands: its locks, reads and ranges, wherever they are. One that wrote nothing
    ends with it; of one that is prepared (as `tx`) it asks about the ranges; and one that is `going_on` whether what it has
    read was so at one moment."""

    def __init__(
        self,
        owner: TxId,
        locks: list[tuple[Namespace, bytes]],
        reads: list[tuple[Namespace, bytes, int, int]],
        absent: list[tuple[Namespace, bytes, int, int]],
        *,
        scanned: list[Scanned],
        tx: TxId = b"",
        going_on: bool = False,
    ) -> None:
        self.owner = owner
        self.going_on = going_on
        self.locks = locks
        self.reads = reads
        self.absent = absent
        self.scanned = scanned
        self.prepared_as = tx
        self._marks = [(at, *mark) for at, one in enumerate(scanned) for mark in one.marks]

    def partitions(self, topology: Topology) -> list[int]:
        """The partition of each lock, then of each read, of each of those that found nothing, and of each mark."""
        keys = [*self.locks, *((namespace, key) for namespace, key, _, _ in (*self.reads, *self.absent))]
        return [*(topology.place(*key) for key in keys), *(number for _, number, _, _ in self._marks)]

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Check what lies at one node."""
        first_read = len(self.locks)
        first_absent = first_read + len(self.reads)
        first_mark = first_absent + len(self.absent)
        marks: dict[int, list[tuple[int, int, int]]] = {}
        for at, number, epoch, counter in (self._marks[i - first_mark] for i in items if i >= first_mark):
            marks.setdefault(at, []).append((number, epoch, counter))
        return Check(
            request_id,
            self.owner,
            locks=[self.locks[i] for i in items if i < first_read],
            reads=[self.reads[i - first_read] for i in items if first_read <= i < first_absent],
            within_ms=self.within_ms,
            absent=[self.absent[i - first_absent] for i in items if first_absent <= i < first_mark],
            scanned=[structs.replace(self.scanned[at], marks=here) for at, here in marks.items()],
            tx=self.prepared_as,
            going_on=self.going_on,
        )

    def take(self, items: list[Item], reply: Reply) -> None:
        """Nothing to note."""
        if not isinstance(reply, Done):
            raise unexpected(reply)


class StatusCall(Call):
    """How a transaction ended, at its decision partition; `outcome` is `committed` or `aborted`."""

    def __init__(self, tx: TxId, partition: int) -> None:
        self.tx = tx
        self.partition = partition
        self.age_ms = -1
        self.outcome = ""

    def partitions(self, topology: Topology) -> list[int]:
        """The decision partition."""
        return [self.partition]

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Ask."""
        return GetStatus(request_id, self.tx, self.partition, self.age_ms)

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note the outcome."""
        if not isinstance(reply, Status):
            raise unexpected(reply)
        self.outcome = reply.outcome


def place_of(tx_id: str) -> tuple[TxId, int]:
    """Of a transaction's id as it is told: the id proper, and the partition where it is decided. Raises UsageError."""
    name, at, partition = str(tx_id).partition("@")
    try:
        tx, number = bytes.fromhex(name), int(partition)
    except ValueError:
        at = ""
    if not at or len(tx) != 16:
        raise errors.UsageError(f"{tx_id!r} is not a transaction id: expected 32 hex digits, '@' and a partition")
    return tx, number
