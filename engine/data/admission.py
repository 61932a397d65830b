"""Whether this node may take a request now: as the primary of its partition, and as the first that executes its id."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from engine.data.sessions import AHEAD_MAX, SESSIONS_MAX, Sessions
from engine.protocol.requests import Code, CommitTx, Put, Request, Swap
from engine.turn.core import Core
from engine.turn.desk import Desk
from engine.turn.events import SessionId
from rebalance.namespaces import Stands, told_unusable
from rebalance.partition import LocalPartition, PartitionState, Role
from rebalance.results import ABORTED
from wal.ids import CODECS, DECISIONS, EXPIRIES, Namespace, NodeId, TxId
from wal.probe import probe


class HeldBack(NamedTuple):
    """Why nothing new is begun in a partition for now, as its client is told."""

    code: str
    told: str


class Admission:
    """Who is let in on one node. What is not was answered, sent elsewhere, or waits."""

    def __init__(self, core: Core, desk: Desk, sessions: Sessions) -> None:
        self.core = core
        self.desk = desk
        self.sessions = sessions
        self._written: Container[tuple[TxId, int]] = ()
        self._committed: Container[TxId] = ()
        self._in_one: Container[TxId] = ()

    def look_at_parts(self, in_use: Container[tuple[TxId, int]]) -> None:
        """Whoever writes something under an id in a partition has it in here meanwhile."""
        self._written = in_use

    def look_at_ids(self, committed: Container[TxId], in_one: Container[TxId]) -> None:
        """The same, of ids which are in use in every partition: of what is committed in several, and in one."""
        self._committed, self._in_one = committed, in_one

    def is_in_use(self, tx: TxId, partition: int) -> bool:
        """Whether something of this id is under way: what became of the id must have one meaning in a partition."""
        return self._is_in_use(tx, partition, self.core.replica.partition(partition))

    def _is_in_use(self, tx: TxId, partition: int, state: PartitionState) -> bool:
        in_use = tx in self._committed or tx in self._in_one or (tx, partition) in self._written
        return in_use or tx in state.prepared

    def unusable(self, namespace: Namespace) -> str:
        """Why nobody reads or writes a namespace, or nothing."""
        said = self.core.namespaces.get(namespace)
        return told_unusable(namespace, said.stands) if said is not None and not said.usable else ""

    def are_of(self, namespace: Namespace, numbers: Iterable[int]) -> bool:
        """Whether these are partitions of the group in which a namespace is: whoever asks may have another map."""
        assert self.core.topology is not None
        every = self.core.topology.partitions_of(namespace)
        return all(number in every for number in numbers)

    def stands(self, namespace: Namespace, number: int) -> bool:
        """Whether a key of a namespace may still be written in a partition, as it could some turns ago."""
        return not self.unusable(namespace) and self.are_of(namespace, (number,))

    def not_there(self, namespace: Namespace) -> str:
        """Why there can be no such namespace, or nothing."""
        core = self.core
        known, said = core.replica.namespaces, core.namespaces
        if namespace in said and (problem := self.unusable(namespace)):
            return problem
        if namespace in known or namespace == CODECS:
            return ""
        most = core.settings.namespaces_max
        dropped = [name for name, about in said.items() if about.stands is Stands.DROPPED and name in known]
        if len(known) - len(dropped) - sum(own in known for own in (DECISIONS, CODECS, EXPIRIES)) >= most:
            return f"namespace {namespace!r} would be one too many: `namespaces_max` is {most}"
        return ""

    @property
    def serves(self) -> bool:
        """Whether whoever reads where this node is PRIMARY may be answered: for who asks thousands of partitions."""
        return self.core.quorum and not self.core.frozen

    def may_serve(
        self, session: SessionId, request: Request, local: LocalPartition, tx: TxId | None, *, new: bool = True
    ) -> bool:
        """Whether this node can take a request for a partition now; if not, it was answered or parked.

        `new`: it begins something, and so must wait when the partition is being handed over.
        """
        core, desk = self.core, self.desk
        if not local.mine:
            if local.placement.lost:
                desk.refuse_lost(session, request.id, local.number)
            else:
                desk.remap(session, request.id)
            return False
        if not core.quorum:
            desk.refuse(
                session,
                request.id,
                Code.NO_QUORUM,
                "this node does not reach a majority of the cluster; it resumes by itself when it does",
                retryable=True,
            )
            return False
        # The fence, without asking for it: each request comes through here, and was let in because this node serves.
        if not local.active or core.frozen or (new and local.role is Role.DRAINING):
            if desk.is_full(local):
                desk.refuse(session, request.id, Code.BUSY, "too many requests wait for the exchange", retryable=True)
            else:
                desk.park(local, session, request)
            return False
        return tx is None or self._may_begin(session, request, local, tx)

    def _may_begin(self, session: SessionId, request: Request, local: LocalPartition, tx: TxId) -> bool:
        """The same for what is executed under an id: whether it may be, or was, or is being."""
        core, desk = self.core, self.desk
        results = core.replica.partition(local.number).results
        outcome = results.get(tx)
        if results.many:
            self.sessions.crowd(local.number)
        if outcome == ABORTED:
            desk.refuse(session, request.id, Code.CONFLICT, f"transaction {tx.hex()} was aborted", retryable=True)
            return False
        if outcome is None and not self.is_in_use(tx, local.number):
            assert isinstance(request, Put | Swap | CommitTx)
            if not self._may_write(session, request, local):
                return False
            if not self.sessions.remembers(tx):
                probe("write.session_is_too_many")
                told = f"this node remembers {SESSIONS_MAX} sessions of clients, and begins nothing in another one"
                desk.refuse(session, request.id, Code.BUSY, told, retryable=True)
                return False
            if (ahead := self.sessions.ahead(tx)) > AHEAD_MAX:
                told = f"a session is {ahead} requests ahead of what it acknowledged: expected at most {AHEAD_MAX}"
                desk.refuse(session, request.id, Code.USAGE, told)
                return False
            if self.sessions.acknowledged(tx):
                probe("write.answered_and_acknowledged")
                desk.refuse(session, request.id, Code.ANSWERED, f"{tx.hex()} was answered: its client said so")
                return False
        return True

    def _may_write(self, session: SessionId, request: Put | Swap | CommitTx, local: LocalPartition) -> bool:
        """Whether anything new is written in a partition now: by this map, in this room; if not, it was answered."""
        core, desk = self.core, self.desk
        if core.read_only and (lost := self.read_only(request)) is not None:
            probe("write.read_only")
            desk.refuse_lost(session, request.id, lost)
            return False
        if (why := self.held_back(local)) is not None:
            self.refuse(session, request.id, why)
            return False
        if request.version and request.version < local.since:
            probe("write.sent_by_an_older_map")
            desk.remap(session, request.id)
            return False
        return True

    def read_only(self, request: Put | Swap | CommitTx) -> int | None:
        """The LOST partition because of which nothing is written in a namespace that this would write in."""
        names = [name for name, *_ in request.writes] if isinstance(request, CommitTx) else [request.namespace]
        return next((self.core.read_only[name] for name in names if name in self.core.read_only), None)

    def held_back(self, local: LocalPartition) -> HeldBack | None:
        """Why nothing new is begun in a partition for now, wherever it is led: what its copies have no room for."""
        core = self.core
        if core.cramped and (nodes := core.in_the_way(local.placement)):
            probe("write.no_room")
            return HeldBack(Code.DISK_FULL, _told_cramped(nodes))
        if core.backlogged and (node := self.backlogged(local)) is not None:
            probe("write.store_is_behind")
            told = f"the store of {node} does not keep up with what is written"
            if node in core.cramped:
                told = f"the disk of {node} has no room for its checkpoint"
            return HeldBack(Code.BUSY, f"{told}: nothing new is begun before its next checkpoint")
        return None

    def refuse(self, session: SessionId, request: int, why: HeldBack) -> None:
        """Say so. For a store it is begun later, as soon as there is room; for a disk somebody has to make some."""
        self.desk.refuse(session, request, why.code, why.told, retryable=why.code == Code.BUSY)

    def backlogged(self, local: LocalPartition) -> NodeId | None:
        """A copy that is waited for and takes nothing new for now, because its store does not keep up."""
        return next((n for n in (*local.placement.in_sync, *local.needed) if n in self.core.backlogged), None)

    def is_new(self, tx: TxId, partition: int) -> bool:
        """Whether nothing was ever executed under an id in a partition, nor is being."""
        state = self.core.replica.partition(partition)
        if self._is_in_use(tx, partition, state):
            return False
        results = state.results
        if results.many:
            self.sessions.crowd(partition)
        return results.is_new(tx)


def _told_cramped(nodes: tuple[NodeId, ...]) -> str:
    whose = f"the disk of {nodes[0]} has" if len(nodes) == 1 else f"the disks of {', '.join(nodes)} have"
    return (
        f"{whose} no room for more of the log, or for a checkpoint, and others cannot go on alone: nothing is written, and "
        "what is there can be read; free some space there, and it goes on by itself"
    )
