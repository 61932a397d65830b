"""Faults in what is staged of large transactions, and in how votes on them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import structs

from engine.messages import Vote
from engine.protocol.requests import CommitTx
from engine.state import freezing
from engine.transactions.asking import FLYING_OF_STAGED
from engine.transactions.commits import Large, Phase, Transaction
from engine.transactions.pieces import partition_at, place_of
from engine.transactions.staging import Staging
from rebalance.image import TakenPartition, take_down_partition
from rebalance.partition import LocalPartition
from rebalance.ports import Operation
from rebalance.results import Results
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal.ids import NodeId, piece_number, whole_of
from wal.records import Prepare

STAGING = Faults()


def _staging(machine: Machine) -> Staging:
    assert machine.node is not None
    return machine.node.coordinator.staging


@STAGING.fault("5")
def a_commit_of_which_pieces_are_missing(machine: Machine) -> None:
    """A commit is taken as it is, though not all that was staged for it is here."""
    staging = _staging(machine)

    def take(original: Callable[..., Any], session: int, request: CommitTx) -> CommitTx:
        staged = staging._of(session, request.tx)
        if staged is None or staged.pieces != request.staged:
            return request
        whole: CommitTx = original(session, request)
        return whole

    around(staging, "take", take)


@STAGING.fault("5")
def what_others_have_staged_goes_with_a_commit(machine: Machine) -> None:
    """What is staged at a node is kept by partition, and not by transaction: whoever commits first has all of it."""
    staging = _staging(machine)

    def take(original: Callable[..., Any], session: int, request: CommitTx) -> CommitTx | None:
        here = staging._staged[request.tx].partition if request.tx in staging._staged else -1
        others = [s for tx, s in staging._staged.items() if tx != request.tx and s.partition == here]
        whole: CommitTx | None = original(session, request)
        if whole is None or not others:
            return whole
        writes = {namespace: (list(keys), list(values)) for namespace, keys, values in whole.writes}
        for other in others:
            for namespace, (keys, values) in other.writes.items():
                mine = writes.setdefault(namespace, ([], []))
                mine[0].extend(keys)
                mine[1].extend(values)
        return structs.replace(whole, writes=[(namespace, *rest) for namespace, rest in writes.items()])

    around(staging, "take", take)


@STAGING.fault("10")
def staged_for_ever(machine: Machine) -> None:
    """What a client has staged is kept until it commits, whether or not it lives."""
    replace(_staging(machine), "tick", lambda: None)


@STAGING.fault("10")
def staged_by_whoever_has_hung_up(machine: Machine) -> None:
    """What a client has staged is kept for its lease, although its connection broke and nobody can commit it."""
    replace(_staging(machine), "on_client_gone", lambda _: None)


@STAGING.fault("10")
def whoever_was_not_asked_is_never_asked(machine: Machine) -> None:
    """Votes make no room for others: what was not asked for at first is asked for no more."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def ask_on(transaction: Transaction, large: Large, voted: int) -> None:
        large.voted(voted)

    def ask_votes(original: Callable[..., None], transaction: Transaction) -> None:
        if transaction.large is None or transaction.sent_at == transaction.since:
            original(transaction)

    replace(coordinator, "_ask_on", ask_on)
    around(coordinator, "_ask_votes", ask_votes)


@STAGING.fault("5")
def whoever_was_not_asked_is_not_waited_for(machine: Machine) -> None:
    """A large transaction is committed when all have voted that were asked, though not all were."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def on_vote(original: Callable[..., None], sender: NodeId, message: Vote) -> None:
        transaction = coordinator.active.get(message.tx)
        if transaction is not None and transaction.large is not None and message.yes:
            transaction.awaited = {message.partition: None}
        original(sender, message)

    around(coordinator, "on_vote", on_vote)


@STAGING.fault("5")
def a_vote_for_one_piece_is_one_for_all(machine: Machine) -> None:
    """A coordinator counts votes by partition: the first piece there speaks for those that were not asked yet."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def on_vote(original: Callable[..., None], sender: NodeId, vote: Vote) -> None:
        transaction = coordinator.active.get(whole_of(vote.tx))
        if transaction is not None and vote.yes and transaction.phase is Phase.PREPARING:
            for place in [p for p in transaction.awaited if partition_at(p) == vote.partition]:
                if place != place_of(vote.tx, vote.partition):
                    del transaction.awaited[place]
        original(sender, vote)

    around(coordinator, "on_vote", on_vote)


@STAGING.fault("5")
def pieces_as_large_as_there_is_room_for(machine: Machine) -> None:
    """Each coordinator cuts a transaction into pieces by what it has room for itself."""
    assert machine.node is not None
    core = machine.node.core
    replace(machine.node.coordinator, "_piece_bytes", lambda _large: core.settings.staged_bytes_max // FLYING_OF_STAGED)


@STAGING.fault("5")
def recovery_asks_for_the_first_pieces(machine: Machine) -> None:
    """Recovery asks each participant once, and commits if the first piece there is prepared."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def ask(original: Callable[..., None], transaction: Transaction) -> None:
        original(transaction)
        for place in [p for p in transaction.awaited if p != partition_at(p)]:
            del transaction.awaited[place]

    around(coordinator, "_ask", ask)


@STAGING.fault("5, 7")
def checkpoint_without_the_other_pieces(machine: Machine) -> None:
    """A checkpoint keeps one prepare of each transaction in a partition: the first piece of what it writes there."""
    assert machine.node is not None

    def without(epoch: int, prepared: Iterable[Prepare], results: Results) -> TakenPartition:
        return take_down_partition(epoch, [prepare for prepare in prepared if not piece_number(prepare.tx)], results)

    during(machine, machine.node.core.replica.changes, "_take_down_partition", freezing, "take_down_partition", without)


@STAGING.fault("5")
def what_is_issued_before_its_epoch_does_not_leave(machine: Machine) -> None:
    """A new primary logs what is prepared under its epoch, and begins that without having told the other copies."""
    assert machine.node is not None

    def ship(original: Callable[..., None], operation: Operation, local: LocalPartition) -> None:
        if local.active or not all(isinstance(record, Prepare) for record in operation.records):
            original(operation, local)
        else:
            operation.counted()

    around(machine.node.replication, "ship", ship)
