"""Faults in what a word promises: acknowledgements, replies and votes that are given too soon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.data.batches import Batch
from engine.data.concerns import claims_of
from engine.messages import Message, PrepareParts, Propose, Replicate, Replicated, Vote
from engine.protocol.requests import Get, Lock, Request
from engine.turn.events import SessionId
from rebalance.partition import Role
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, replace, swapped
from wal import records as r
from wal.ids import NodeId

WORDS = Faults()


@WORDS.fault("1, 6")
def acknowledge_before_fsync(machine: Machine) -> None:
    """A turn's records are written to the log but not synced before its messages and replies leave."""
    assert machine.log is not None

    def append(original: Callable[..., int], records: Sequence[r.Record], *, now_ms: int, durable: bool) -> int:
        return original(records, now_ms=now_ms, durable=False)

    around(machine.log, "append", append)


@WORDS.fault("1")
def reply_before_the_copies_answer(machine: Machine) -> None:
    """A write counts, and its client is told, as soon as it is on the primary's own disk."""
    assert machine.node is not None
    replication = machine.node.replication

    def dispatch(
        original: Callable[..., None],
        operations: list[Any],
        to: Any,
        acked: Any,
        counts: bool = False,
        *more: Any,
        **how: Any,
    ) -> None:
        original(operations, to, acked, True, *more, **how)
        if not counts:
            for operation in operations:
                operation.counted()

    around(replication, "_dispatch", dispatch)


@WORDS.fault("1")
def one_copy_is_enough(machine: Machine) -> None:
    """A write counts when the first of the in-sync copies has answered, not the last."""
    assert machine.node is not None
    replication = machine.node.replication

    def on_replicated(original: Callable[..., None], sender: NodeId, message: Replicated) -> None:
        for batch in _open_batches(replication, message):
            if sender in batch.waiting:
                replication._count(batch)
        original(sender, message)

    around(replication, "on_replicated", on_replicated)


@WORDS.fault("1")
def moving_copy_counts(machine: Machine) -> None:
    """The answer of a MOVING copy is taken for that of the in-sync copies."""
    assert machine.node is not None
    replication = machine.node.replication

    def on_replicated(original: Callable[..., None], sender: NodeId, message: Replicated) -> None:
        for batch in _open_batches(replication, message):
            if sender in batch.lagging:
                replication._count(batch)
        original(sender, message)

    around(replication, "on_replicated", on_replicated)


def _open_batches(replication: Any, message: Replicated) -> list[Batch]:
    found = [replication._batches.get(sequence) for sequence in message.sequences]
    return [batch for batch in found if batch is not None and not batch.counts]


@WORDS.fault("1, 4")
def copy_acknowledges_what_it_refused(machine: Machine) -> None:
    """A copy answers a batch that it did not take: one of another epoch, or of who is not its primary."""
    assert machine.node is not None
    replication = machine.node.replication

    def taken(original: Callable[..., Any], sender: NodeId, records: list[r.Record]) -> list[r.Record]:
        found: list[r.Record] | int | None = original(sender, records)
        return found if isinstance(found, list) else []

    around(replication._taking, "of", taken)


@WORDS.fault("5, 10")
def a_batch_is_taken_as_often_as_it_comes(machine: Machine) -> None:
    """A copy does not know which batches it took, and takes one that comes late for new."""
    assert machine.node is not None
    replication = machine.node.replication

    def on_replicate(original: Callable[..., None], sender: NodeId, message: Replicate) -> None:
        replication._taken_of.clear()
        replication._over.clear()
        original(sender, Replicate(message.version, message.sequence, message.records))

    around(replication, "on_replicate", on_replicate)


@WORDS.fault("1, 4")
def no_epoch_check_on_replicate(machine: Machine) -> None:
    """A copy takes what its primary says whatever epoch it is of and whatever epoch the copy has taken part in."""
    assert machine.node is not None
    core, replication = machine.node.core, machine.node.replication

    def taken(sender: NodeId, records: list[r.Record]) -> list[r.Record] | None:
        for record in records:
            for partition, _ in claims_of(record):
                local = core.local[partition]
                if local.placement.primary != sender or local.role not in (Role.BACKUP, Role.MOVING):
                    return None
        return records

    replace(replication._taking, "of", taken)


@WORDS.fault(
    "1, 2, 4",
    harmless="""A deposed primary is still refused: the copy asks who its primary is now, and which epoch it has
    taken part in.""",
    both="no-fence-at-all",
)
def no_version_check_on_replicate(machine: Machine) -> None:
    """A copy takes a batch of a topology version that it has left."""
    assert machine.node is not None
    core, replication = machine.node.core, machine.node.replication

    def on_replicate(original: Callable[..., None], sender: NodeId, message: Replicate) -> None:
        original(sender, msgspec.structs.replace(message, version=max(message.version, core.fence)))

    around(replication, "on_replicate", on_replicate)


@WORDS.fault("1, 2, 4")
def no_fence_at_all(machine: Machine) -> None:
    """A copy takes every batch, of any version, any epoch and any sender: a deposed primary goes on."""
    assert machine.node is not None
    replication = machine.node.replication
    no_version_check_on_replicate(machine)
    replace(replication._taking, "of", lambda sender, records: records)


@WORDS.fault(
    "1, 4",
    harmless="""Its primary has more by then than it reported, and so another sum: both are asked what they have when both
    have stopped.""",
)
def reported_copy_goes_on_replicating(machine: Machine) -> None:
    """A node that sent its single map still takes replication of the version that is being left."""
    assert machine.node is not None
    core, replication = machine.node.core, machine.node.replication

    def on_replicate(original: Callable[..., None], sender: NodeId, message: Replicate) -> None:
        frozen, core.frozen = core.frozen, False
        try:
            original(sender, message)
        finally:
            core.frozen = frozen

    around(replication, "on_replicate", on_replicate)


@WORDS.fault("5, 6")
def vote_before_the_prepare_is_on_the_copies(machine: Machine) -> None:
    """A participant votes yes when the prepare is on its own disk only."""
    assert machine.node is not None
    core, participant = machine.node.core, machine.node.participant

    def held(original: Callable[..., None], sender: NodeId, message: PrepareParts, part: Any, refusal: Any) -> None:
        original(sender, message, part, refusal)
        if (message.tx, part.partition) in participant.voting:
            epoch = core.local[part.partition].epoch
            core.send(sender, Vote(core.version, message.tx, part.partition, epoch, True, ""))

    around(participant, "_held", held)


@WORDS.fault("1")
def read_without_confirming_the_epoch(machine: Machine) -> None:
    """A primary answers reads without asking the in-sync copies whether it still is one."""
    assert machine.node is not None

    def confirm(needed: Any, session: SessionId, request: Request, then: Callable[[], None]) -> None:
        then()

    replace(machine.node.reads, "confirm", confirm)


@WORDS.fault("1")
def age_told_without_confirming_the_epoch(machine: Machine) -> None:
    """A copy believes that it is as new as it is asked to be, because nobody told it otherwise."""
    assert machine.node is not None
    replace(machine.node.reads, "_age_ns", lambda others: 0)


@WORDS.fault("1")
def age_told_in_spite_of_a_prepared_transaction(machine: Machine) -> None:
    """A copy vouches for its age while it does not know whether a transaction that it prepared was acknowledged."""
    assert machine.node is not None
    replica, handlers = machine.node.core.replica, machine.node._on_request
    right = handlers[Get]

    def on_get(session: SessionId, request: Request) -> None:
        held = {number: state.prepared for number, state in replica.partitions.items()}
        for state in replica.partitions.values():
            state.prepared = {}
        right(session, request)
        for number, prepared in held.items():
            replica.partitions[number].prepared = prepared

    handlers[Get] = on_get


@WORDS.fault("1")
def condition_told_without_confirming_the_epoch(machine: Machine) -> None:
    """A conditional write that is not made says what it found without asking the copies."""
    assert machine.node is not None

    def confirm(needed: Any, session: SessionId, request: Request, then: Callable[[], None]) -> None:
        then()

    replace(machine.node.writes, "_confirm", confirm)


@WORDS.fault("1")
def lock_told_without_confirming_the_epoch(machine: Machine) -> None:
    """A lock tells the value of its key without asking the copies."""
    assert machine.node is not None
    reads = machine.node.reads

    def confirm(original: Callable[..., None], needed: Any, session: SessionId, request: Request, then: Any) -> None:
        if isinstance(request, Lock):
            then()
        else:
            original(needed, session, request, then)

    around(reads, "confirm", confirm)


@WORDS.fault("5")
def read_under_a_prepared_lock(machine: Machine) -> None:
    """A key whose transaction is prepared is read as it was before, although the transaction may be committed."""
    assert machine.node is not None
    locks, reads = machine.node.locks, machine.node.reads

    def answer(original: Callable[..., None], session: SessionId, request: Request) -> None:
        with swapped(locks, "in_doubt", lambda key: False):
            original(session, request)

    def go_on(original: Callable[..., None], number: int) -> None:
        with swapped(locks, "keys_in_doubt", lambda number: ()):
            original(number)

    around(reads, "_answer_get", answer)
    around(reads, "_scan_on", go_on)


@WORDS.fault(
    "6",
    harmless="""A promise says where on its disk it lies; whoever forgot it begins its next life below that, and so passes
    for a disk that was set back, which has no vote.""",
    both="promise-not-logged-and-nobody-minds",
)
def promise_not_logged(machine: Machine) -> None:
    """A node promises a ballot without writing the promise down, and forgets it when it restarts."""
    _unlogged(machine, "on_announce", r.Promised)


@WORDS.fault("6")
def accept_without_logging(machine: Machine) -> None:
    """A node accepts a proposed map without writing it down, and forgets it when it restarts."""
    _unlogged(machine, "on_propose", r.Accepted)


@WORDS.fault("6")
def step_accepted_without_logging(machine: Machine) -> None:
    """A node accepts another one's light step without writing it down, and forgets it when it restarts."""
    assert machine.node is not None
    core = machine.node.core

    def vote(original: Callable[..., None], record: r.Record) -> None:
        original(record)
        if isinstance(record, r.Accepted) and record.step and record.ballot.node != core.node:
            core.effects.log.remove(record)

    around(core, "vote", vote)


def _unlogged(machine: Machine, method: str, kind: type[r.Record]) -> None:
    assert machine.node is not None
    core = machine.node.core

    def wrapper(original: Callable[..., None], sender: NodeId, message: Propose) -> None:
        original(sender, message)
        core.effects.log = [record for record in core.effects.log if type(record) is not kind]

    around(machine.node.exchange, method, wrapper)


@WORDS.fault("6")
def what_a_node_tells_itself_does_not_wait_for_its_disk(machine: Machine) -> None:
    """A node hears all that it says to itself in the same turn, its own ballots as well, and acts on them at once."""
    assert machine.node is not None
    core = machine.node.core

    def send(original: Callable[..., None], to: NodeId | tuple[NodeId, ...], message: Message) -> None:
        mine = to == core.node or (not isinstance(to, str) and core.node in to)
        if mine:
            core.told.append(message)
        original(tuple(node for node in ((to,) if isinstance(to, str) else to) if node != core.node), message)

    around(core, "send", send)
