"""How transactions end, as calls: commit it, see that what was only read still stands, ask what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import structs

from engine import errors
from engine.client.batches import PIECE_BYTES, STAGED_ABOVE, TimesToLive, Writes, pieces_of
from engine.client.calls import Call, Item, unexpected
from engine.protocol.requests import Check, Code, CommitTx, Done, GetStatus, Reply, Request, Scanned, StageWrites, Status
from engine.protocol.sizes import written_bytes
from rebalance.table import Topology
from wal.ids import Namespace, TxId
from wal.probe import probe

Tested: TypeAlias = tuple[Namespace, bytes, str, bytes | None, int, int]
"""A condition: (namespace, key, when, old, epoch, counter), as of a Swap."""


class CommitCall(Call):
    """Commit a transaction, at the primary of its first written key; `applied`: all its conditions held, and it was.

    What is too large for one request is staged there before, piece by piece: see `engine.transactions.staging`. `staged` is
    how many pieces are, as far as this client knows.
    """

    writes = True
    staged = 0
    _pieces: Sequence[tuple[Writes, TimesToLive]] = ()  # but for the first one, which travels with the commit
    _saying = 0  # the piece that was said last; 0: the commit
    _decided = 0

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
        size: int = 0,
        at_once: int = STAGED_ABOVE,
    ) -> None:
        """`size`: how many bytes it writes, if these may be many; of more than are said `at_once` pieces are staged."""
        self.conditions = list(conditions)
        self.applied = False
        self.tx = tx
        self.label = label
        self.labels_all = labels_all
        self._first, self.ttls = writes, ttls or []
        if size > at_once:
            (self._first, self.ttls), *self._pieces = pieces_of(writes, self.ttls, min(at_once, PIECE_BYTES))
            self.asked = False
        self.owner = owner
        self.optimistic = optimistic
        self.write_set = writes
        self.locks = locks
        self.reads = reads
        self.prepare_only = prepare_only
        self.ends = not prepare_only

    def only_partition(self, topology: Topology) -> int:
        """The decision partition."""
        self._decided = self.decided_in(topology)
        return self._decided

    def partitions(self, topology: Topology) -> list[int]:
        """The decision partition."""
        return [self.only_partition(topology)]

    @property
    def first_written(self) -> tuple[Namespace, bytes]:
        """The key where it is decided."""
        namespace, keys, _ = self.write_set[0]
        return namespace, keys[0]

    def decided_in(self, topology: Topology) -> int:
        """Where its first written key is."""
        return topology.place(*self.first_written)

    def _stage(self, request_id: int) -> Request:
        self._saying = self.staged + 1
        writes, ttls = self._pieces[self.staged]
        size = sum(written_bytes(piece) for piece, _ in self._pieces)
        return StageWrites(
            request_id,
            self.tx,
            owner=self.owner,
            partition=self._decided,
            number=self._saying,
            size=size,
            writes=writes,
            ttls=ttls,
            within_ms=self.within_ms,
        )

    def request(self, request_id: int, items: list[Item]) -> Request:
        """Commit; or stage the next piece."""
        if self.staged < len(self._pieces):
            return self._stage(request_id)
        self._saying = 0
        if not self.asked:
            self.asked, self.unanswered = True, False  # of what was not answered before nothing comes
        return CommitTx(
            request_id,
            self.tx,
            owner=self.owner,
            optimistic=self.optimistic,
            writes=self._first,
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
            staged=self.staged,
        )

    def hear_refusal(self, code: str) -> None:
        """Who decides it by now has not all that was staged."""
        if code == Code.UNSTAGED:
            probe("client.stages_again")
            self.staged = 0

    def take(self, items: list[Item], reply: Reply) -> None:
        """Note whether its conditions held; or what is to be said next."""
        if not isinstance(reply, Done):
            raise unexpected(reply)
        if self._saying:
            self.staged, self.rest = self._saying, items
            return
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
        raise errors.UsageError(
            f"{tx_id!r} is not a transaction id: expected 32 hex digits, '@' and a partition, as `id` has them once the "
            "transaction has written something; one that wrote nothing has no outcome"
        )
    return tx, number
