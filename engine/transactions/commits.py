"""What a coordinator keeps of a transaction, of one partition or of several, and how it is put into parts.

`engine.transactions.coordinator` says what happens when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from engine.data.expiry import deadlines_beside
from engine.data.lasting import those_that_expire
from engine.messages import Part
from engine.protocol.requests import CommitTx, Unlock
from engine.protocol.sizes import written_bytes
from engine.turn.core import Core
from engine.turn.events import SessionId
from rebalance.partition import LocalPartition
from rebalance.table import Topology
from wal import records as r
from wal.ids import NO_ERA, Namespace, TxId

SPLIT_AT_ONCE = 1_000
"""Of what a transaction touches, so much is put into parts before a turn may end."""
PREPARE_WORK = 500
"""Keys, and partitions, of which one message asks for votes."""

NO_MAP = -1
"""Nothing was said of it yet."""


class Phase(Enum):
    """Where a coordinated transaction stands."""

    SPLITTING = "splitting"  # what it touches is being put into parts
    PREPARING = "preparing"
    PREPARED = "prepared"  # all votes are there, and the client wants to say when
    DECIDING = "deciding"
    FINISHING = "finishing"
    RECOVERING = "recovering"


class Large:
    """Of a transaction whose writes were staged: how many bytes they have, and how far it has come to ask for votes.

    `unasked` are the places that are to be asked about; `flying` what those have that were, and have not voted.
    """

    __slots__ = ("_flying", "flying", "size", "unasked")

    def __init__(self, size: int) -> None:
        self.size = size
        self.begin(())

    def begin(self, places: Iterable[int]) -> None:
        """Ask about these from now on, whoever was asked before."""
        self.unasked = deque(places)
        self._flying: dict[int, int] = {}
        self.flying = 0

    def ask(self, place: int, part: Part) -> int:
        """Ask about a part; how many bytes it has."""
        size = self._flying[place] = written_bytes(part.writes)
        self.flying += size
        return size

    def voted(self, place: int) -> None:
        """A part is answered for."""
        self.flying -= self._flying.pop(place, 0)


class Transaction:
    """One transaction, as its coordinator sees it.

    What it writes in one partition may be in several pieces, each with a vote and an outcome of its own, as if they lay in
    partitions of their own. `participants` ascend, and have a partition once for each piece there.
    """

    def __init__(self, tx: TxId, decision: int, participants: list[int], since: int) -> None:
        self.tx = tx
        self.decision = decision
        self.participants = participants
        self.owner = tx
        self.optimistic = False
        self.parts: dict[int, Part] = {}  # by place
        self.large: Large | None = None  # until its votes are there
        self.phase = Phase.PREPARING
        self.commit = False
        self.era = NO_ERA  # the greatest of the votes'; not known of one that was recovered
        self.held_back = False  # decided during an exchange: the record is written when it is over
        self.reason = ""
        self.unprepared: int | None = None  # a participant that said so to recovery
        self.heard_of_commit = False  # recovery did, from one where it has ended
        self.doubted = False  # somebody waits for the outcome, as recovery has heard
        self.unmet = False  # a condition did not hold: so it was aborted
        self.anew = False  # its decision partition has begun again: it may have been decided before
        self.prepare_only = False
        self.held = False  # it was asked for as `prepare_only`: its prepares say so, and recovery does not commit it
        self.acked = -1  # what its client had acknowledged when it asked
        self.origin: r.Origin | None = None
        self.awaited: dict[int, None] = {}  # places whose vote, or finish, did not come yet
        self.asked: list[tuple[SessionId, int, bool]] = []  # (session, request id, wants a Status)
        self.unlocks: list[tuple[SessionId, Unlock]] = []  # rolled back by its client; answered when the abort counts
        self.since = since
        self.sent_at = since
        self.sent_over = 0  # the connections, as its coordinator counts them, over which votes were asked for
        self.size = -1  # bytes of what it writes, if somebody had to know
        self.said_under = NO_MAP  # the map, as its coordinator counts them, under which others were last told or asked


class OnePhase:
    """A transaction of one partition: one record is prepare and commit."""

    __slots__ = ("asked", "owner", "turn", "tx", "writes")

    def __init__(
        self, tx: TxId, owner: TxId, writes: list[r.Write], asked: list[tuple[SessionId, int, bool]], turn: int
    ) -> None:
        self.tx = tx
        self.turn = turn  # in which it was logged
        self.owner = owner
        self.writes = writes
        self.asked = asked  # as of a transaction


def reserved(core: Core, part: Part, local: LocalPartition, tx: TxId) -> list[r.Write]:
    """What a part writes, with counters of this primary."""
    writes: list[r.Write] = []
    for namespace, keys, values in part.writes:
        counter = core.replica.ensure_fragment((namespace, local.number)).counter
        start = counter.reserve(len(keys))
        writes.append(r.Write(namespace, local.number, local.epoch, start, keys, values=values, stable=counter.lwm, tx=tx))
    ttls = those_that_expire(core, part.writes, part.ttls) if part.ttls or core.namespaces else []
    if ttls:
        core.work += len(ttls)
        writes.append(deadlines_beside(core, writes, ttls))
    return writes


def split(request: CommitTx, topology: Topology, parts: dict[int, Part]) -> Iterator[int]:
    """Put a transaction's parts, by partition, into `parts`; piece by piece: yields how many things the last one had."""

    def part_of(namespace: Namespace, key: bytes) -> Part:
        number = topology.place(namespace, key)
        found = parts.get(number)
        if found is None:
            found = parts[number] = Part(number, [], [], [], conditions=[], ttls=[])
        return found

    done = 0
    for namespace, keys, values in request.writes:
        by_partition: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
        for key, value in zip(keys, values, strict=True):
            part = part_of(namespace, key)
            entries = by_partition.get(part.partition)
            if entries is None:
                entries = by_partition[part.partition] = [], []
                part.writes.append((namespace, *entries))
            entries[0].append(key)
            entries[1].append(value)
            done += 1
            if not done % SPLIT_AT_ONCE:
                yield SPLIT_AT_ONCE
    for ttl in request.ttls:
        part_of(*ttl[:2]).ttls.append(ttl)
        done += 1
        if not done % SPLIT_AT_ONCE:
            yield SPLIT_AT_ONCE
    for lock in request.locks:
        part_of(*lock).locks.append(lock)
        done += 1
        if not done % SPLIT_AT_ONCE:
            yield SPLIT_AT_ONCE
    for read in request.reads:
        part_of(*read[:2]).reads.append(read)
        done += 1
        if not done % SPLIT_AT_ONCE:
            yield SPLIT_AT_ONCE
    for condition in request.conditions:
        part_of(*condition[:2]).conditions.append(condition)
        done += 1
        if not done % SPLIT_AT_ONCE:
            yield SPLIT_AT_ONCE
    yield done % SPLIT_AT_ONCE


def pieces_of(parts: list[Part], named: int) -> list[list[Part]]:
    """Parts of a transaction for one primary, in pieces that a turn can vote on; `named`: what naming all costs each."""
    if len(parts) == 1:
        return [parts]
    pieces: list[list[Part]] = []
    size = PREPARE_WORK
    for part in parts:
        if size >= PREPARE_WORK:
            pieces.append([])
            size = 0
        pieces[-1].append(part)
        size += 1 + named + sum(len(keys) for _, keys, _ in part.writes) + len(part.locks) + len(part.reads)
    return pieces
