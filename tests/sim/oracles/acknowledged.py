"""Invariant 1: an acknowledged update is on the disk of every member of the in-sync set; and it is never lost again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from msgspec import structs

from engine.protocol.requests import CommitTx, Done, Put, Reply, Request, StageWrites, Swap
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.oracles.ledger import Fact, Ledger, Span
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.ruined import Ruined
from tests.sim.violation import About, Violation
from tests.sim.world import World
from wal.ids import Fragment, Namespace, NodeId, TxId, fragment_name, partition_of
from wal.records import History, Prepare, Record, Update, Write

Asked = tuple[NodeId, int, int, int]
"""(node, its life, session, request)"""
WRITES = (Put, Swap, CommitTx)
WRITTEN = (Update, History, Prepare)


class Acknowledged(Oracle):
    """When a node says `Done`, the write is durable on every in-sync copy; at the end it is still there."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked: dict[Asked, Put | Swap | CommitTx] = {}
        self._pieces: dict[TxId, dict[int, StageWrites]] = {}  # to anybody: an answer may be told again by who has none
        self._kept: dict[TxId, dict[Fragment, list[Fact]]] = {}
        self._touched: dict[TxId, dict[int, None]] = {}  # the partitions that vote on a transaction
        self._ruined = Ruined()
        self._synced: dict[NodeId, dict[tuple[Fragment, int], None]] = {}

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        """What is durable stays so, even while it is issued again in another epoch."""
        synced = self._synced.setdefault(machine.name, {})
        for record in records:
            for write in _writes(record):
                synced[write.fragment, write.start] = None

    def started(self, machine: Machine) -> None:
        """Whatever it recovered is durable."""
        assert machine.node is not None
        replica = machine.node.core.replica
        synced = self._synced[machine.name] = {}
        for copy in replica.fragments.values():
            synced |= {(copy.name, write.start): None for write in copy.tail()}
        for partition in replica.partitions.values():
            synced |= {(w.fragment, w.start): None for prepare in partition.prepared.values() for w in prepare.writes}

    def destroyed(self, machine: Machine, how: str) -> None:
        """Whatever it had said counts for nothing until a map knows its next life."""
        self._ruined.add(machine)

    def asked(self, machine: Machine, session: int, request: Request) -> None:
        """A write came, or a piece of one that is to come."""
        if isinstance(request, StageWrites):
            self._pieces.setdefault(request.tx, {})[request.number] = request
        elif isinstance(request, WRITES):
            if isinstance(request, CommitTx) and request.staged:
                request = whole(request, self._pieces.get(request.tx, {}))
            self._asked[machine.name, machine.boot, session, request.id] = request

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A write is acknowledged."""
        request = self._asked.pop((machine.name, machine.boot, session, reply.id), None)
        if request is None or not isinstance(reply, Done) or not reply.applied:
            return
        if isinstance(request, CommitTx) and request.prepare_only:
            return
        self._judge(machine, request)

    def _judge(self, machine: Machine, request: Put | Swap | CommitTx) -> None:
        newest = self._ledger.newest
        assert newest is not None, "nobody answers before there is a map"
        spans = self._spans(request.tx)
        kept = self._kept.setdefault(request.tx, {})
        self._touched.setdefault(request.tx, {}).update(dict.fromkeys(_voters(request, newest)))
        for name, keys in _keys(request, newest, spans).items():
            pieces = spans.get(name, [])
            if not pieces:
                raise Violation(
                    "acknowledged",
                    f"{machine.name} says done to {request.tx.hex()}, which nobody ever wrote in {fragment_name(name)}",
                    About(txs=(request.tx,), fragments=(name,)),
                )
            facts = [self._ledger.facts[name][counter][span.epoch] for _, span in pieces for counter in counters(span)]
            if [fact.key for fact in facts] != keys:
                raise Violation("acknowledged", f"{request.tx.hex()} wrote {facts}, not {keys}", About(txs=(request.tx,)))
            kept[name] = facts
            if name[1] in self._ledger.given_up and pieces[0][1].epoch < newest.placements[name[1]].epoch:
                continue  # it was done, and is told again by its decision: its part here went with the partition
            for node in newest.placements[name[1]].in_sync:
                holder = machine.world.machines.get(node)
                if holder is None:
                    continue  # a disk that is gone, of which the map remembers the name
                if not self._ruined.forgive(holder, newest) or _let_go(holder, name[1], newest):
                    continue
                for tx, span in pieces:
                    if not self._durable_on(holder, name, span, tx):
                        raise Violation(
                            "acknowledged",
                            f"{machine.name} says done to {request.tx.hex()}; {node} is in sync at {newest.version} and "
                            f"has {fragment_name(name)} {span.start + 1}-{span.start + span.delta} not on its disk",
                            About(txs=(request.tx,), fragments=(name,)),
                        )

    def _spans(self, tx: TxId) -> dict[Fragment, list[tuple[TxId, Span]]]:
        """The counters that a transaction took, of each piece that it was prepared in."""
        found: dict[Fragment, list[tuple[TxId, Span]]] = {}
        for piece in sorted(self._ledger.pieces.get(tx, ())):
            for name, span in self._ledger.spans[piece].items():
                found.setdefault(name, []).append((piece, span))
        return found

    def _durable_on(self, machine: Machine, name: Fragment, span: Span, tx: TxId) -> bool:
        """Whether a machine's disk holds these counters, applied or voted for; it may be down."""
        if machine.node is None:
            return False
        replica = machine.node.core.replica
        copy = replica.fragments.get(name)
        there = copy is not None and copy.counter.covers(span.start, span.delta)
        if not there and tx not in replica.partition(name[1]).prepared:
            return False
        if (name, span.start) in self._synced.get(machine.name, {}):
            return True
        unwritten = [write for record in machine.unwritten for write in _writes(record)]
        return not any(write.fragment == name and write.start == span.start for write in unwritten)

    def finish(self, world: World) -> None:
        """Everything that was acknowledged is part of the history that was continued, if nobody gave it up."""
        for tx, fragments in self._kept.items():
            kept = {name: facts for name, facts in fragments.items() if name[1] not in self._ledger.given_up}
            gone = [name for name, facts in kept.items() if self._now(tx, name) != [fact[:3] for fact in facts]]
            if len(gone) == len(kept) and any(number in self._ledger.given_up for number in self._touched[tx]):
                continue  # a vote was given up with its partition before the decision counted: all of it is undone, or none
            for name in gone:
                raise Violation(
                    "acknowledged-lost",
                    f"{tx.hex()} was acknowledged in {fragment_name(name)}; its counters are {self._now(tx, name)} now",
                    About(txs=(tx,), fragments=(name,)),
                )

    def _now(self, tx: TxId, name: Fragment) -> list[object]:
        """What stands where a transaction has written in a fragment."""
        spans = self._spans(tx)[name]
        settled = [self._ledger.settled(name, counter) for _, span in spans for counter in counters(span)]
        return [fact[:3] if fact is not None else None for fact in settled]


def _let_go(machine: Machine, number: int, newest: Topology) -> bool:
    """Whether a machine goes by a map that is decided, and which its log still writes, by which its copy does not count."""
    goes_by = machine.node.core.topology if machine.node is not None else None
    return (
        goes_by is not None and goes_by.version > newest.version and machine.name not in goes_by.placements[number].in_sync
    )


def whole(commit: CommitTx, pieces: Mapping[int, StageWrites]) -> CommitTx:
    """A commit with what was staged for it, where it was; a namespace comes once."""
    writes: dict[Namespace, tuple[list[bytes], list[bytes | None]]] = {}
    said = [pieces[number].writes for number in range(1, commit.staged + 1) if number in pieces]
    for namespace, keys, values in chain(commit.writes, *said):
        known = writes.setdefault(namespace, ([], []))
        known[0].extend(keys)
        known[1].extend(values)
    return structs.replace(commit, writes=[(namespace, *rest) for namespace, rest in writes.items()])


def counters(span: Span) -> Iterable[int]:
    """The counters of a span."""
    return range(span.start + 1, span.start + span.delta + 1)


def _voters(request: Put | Swap | CommitTx, newest: Topology) -> Iterable[int]:
    if isinstance(request, CommitTx):
        for namespace, keys, _ in request.writes:
            yield from newest.places(namespace, keys)
        yield from (newest.place(*lock) for lock in request.locks)
        yield from (newest.place(ns, key) for ns, key, *_ in request.reads)


def _keys(request: Put | Swap | CommitTx, newest: Topology, spans: Collection[Fragment]) -> dict[Fragment, list[bytes]]:
    """What was to be written, by where that was: a namespace that was dropped since may be in another group by now."""
    found: dict[Fragment, list[bytes]] = {}
    if isinstance(request, CommitTx):
        written = [(namespace, keys) for namespace, keys, _ in request.writes]
    else:
        written = [(request.namespace, [request.key] if isinstance(request, Swap) else request.keys)]
    for namespace, keys in written:
        for key, number in zip(keys, newest.places(namespace, keys), strict=True):
            now = name = (namespace, number)
            if now not in spans:
                slot = partition_of(key, newest.partitions)
                places = [(namespace, at) for at in range(slot, len(newest.placements), newest.partitions)]
                name = next((place for place in places if place in spans), now)
            found.setdefault(name, []).append(key)
    return found


def _writes(record: Record) -> Sequence[Write]:
    return record.writes if isinstance(record, WRITTEN) else ()
