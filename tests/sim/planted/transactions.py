"""Faults in transactions: votes, decisions, recovery, locks and the answers that are remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from engine.data.counting import Counting
from engine.data.looks import Look
from engine.messages import Inquired, PrepareParts, Vote, Waits
from engine.protocol.requests import Check, Lock, Rows
from engine.state.store import Page
from engine.transactions.commits import Phase, Transaction
from rebalance.partition import LocalPartition
from rebalance.results import Results
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace, swapped
from wal import records as r
from wal.ids import NodeId, TxId

TRANSACTIONS = Faults()

# Decisions.


@TRANSACTIONS.fault("5")
def decision_record_forgotten(machine: Machine) -> None:
    """A transaction is decided in its coordinator's memory; the decision record is never written."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def decide(transaction: Transaction, *, commit: bool) -> None:
        transaction.phase, transaction.commit = Phase.DECIDING, commit
        coordinator.decided(transaction)

    replace(coordinator, "_decide", decide)


@TRANSACTIONS.fault("3")
def decision_deleted_twice(machine: Machine) -> None:
    """A node that leads on in another epoch forgets what it was about to forget, beside what it reads."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def activated(original: Callable[..., None], local: LocalPartition, found: Sequence[Transaction]) -> None:
        over = coordinator._over.get(local.number, [])
        original(local, found)
        coordinator._over.setdefault(local.number, []).extend(over)

    around(coordinator, "activated", activated)


@TRANSACTIONS.fault("10")
def in_doubt_for_ever(machine: Machine) -> None:
    """A transaction that ended before its node led on in another epoch stays among those in doubt."""
    assert machine.node is not None
    participant = machine.node.participant

    def tick(original: Callable[..., None]) -> None:
        doubted = dict(participant._doubts)
        original()
        participant._doubts = doubted | participant._doubts

    around(participant, "tick", tick)


@TRANSACTIONS.fault("5")
def outcome_told_before_it_is_decided(machine: Machine) -> None:
    """The outcome is told to the client and the participants while the decision record is still on its way."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def decide(original: Callable[..., None], transaction: Transaction, *, commit: bool) -> None:
        original(transaction, commit=commit)
        if transaction.phase is Phase.DECIDING and transaction.participants:
            coordinator._answer(transaction)
            transaction.awaited = dict.fromkeys(transaction.participants)
            coordinator._tell_outcome(transaction)

    around(coordinator, "_decide", decide)


@TRANSACTIONS.fault("5")
def commit_inferred_from_who_is_alive(machine: Machine) -> None:
    """Recovery asks only the participants that it has itself, and commits if these are prepared."""
    assert machine.node is not None
    core, coordinator = machine.node.core, machine.node.coordinator

    def recover(original: Callable[..., Transaction], prepare: r.Prepare) -> Transaction:
        here = [p for p in prepare.participants if core.local[p].mine]
        elsewhere = [p for p in prepare.participants if p not in here]
        transaction = original(prepare)
        for number in elsewhere:
            transaction.awaited.pop(number, None)
        return transaction

    around(coordinator, "_recover", recover)


@TRANSACTIONS.fault("5")
def recovery_commits_what_one_has_not_prepared(machine: Machine) -> None:
    """Recovery takes the answer of a participant that is not prepared for a yes."""
    assert machine.node is not None

    def on_inquired(original: Callable[..., None], sender: NodeId, message: Inquired) -> None:
        original(sender, msgspec.structs.replace(message, prepared=True))

    around(machine.node.coordinator, "on_inquired", on_inquired)


@TRANSACTIONS.fault("5")
def recovery_commits_what_was_held_back(machine: Machine) -> None:
    """Recovery commits what it finds prepared everywhere, whether or not its client had asked for more than votes."""
    assert machine.node is not None

    def recover(original: Callable[..., Transaction], prepare: r.Prepare) -> Transaction:
        return original(msgspec.structs.replace(prepare, held=False))

    around(machine.node.coordinator, "_recover", recover)


@TRANSACTIONS.fault("5")
def recovery_aborts_what_all_have_prepared(machine: Machine) -> None:
    """Recovery aborts without asking, though the coordinator may have told its client of a commit."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def on_inquired(original: Callable[..., None], sender: NodeId, message: Inquired) -> None:
        original(sender, msgspec.structs.replace(message, prepared=False))

    around(coordinator, "on_inquired", on_inquired)


@TRANSACTIONS.fault("5")
def recovery_does_not_hear_of_a_commit(machine: Machine) -> None:
    """Recovery takes it for sure that nothing was committed anywhere, because a participant is not prepared."""
    assert machine.node is not None

    def on_inquired(original: Callable[..., None], sender: NodeId, message: Inquired) -> None:
        original(sender, msgspec.structs.replace(message, committed=False))

    around(machine.node.coordinator, "on_inquired", on_inquired)


@TRANSACTIONS.fault("5")
def nobody_knows_that_decisions_may_be_lost(machine: Machine) -> None:
    """A commit, or its status, that is asked for again comes to nothing where its partition has begun again without it."""
    assert machine.node is not None
    replace(machine.node.coordinator, "begun_again", lambda _number: False)


@TRANSACTIONS.fault("5")
def answered_before_the_last_vote(machine: Machine) -> None:
    """A client is told of a commit with the first vote, although another one may not come."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def on_vote(original: Callable[..., None], sender: NodeId, message: Vote) -> None:
        transaction = coordinator.active.get(message.tx)
        if message.yes and transaction is not None and transaction.phase is Phase.PREPARING and not transaction.held:
            transaction.commit = True
            coordinator._answer(transaction)
        original(sender, message)

    around(coordinator, "on_vote", on_vote)


@TRANSACTIONS.fault("5")
def what_was_held_back_is_answered_when_it_is_prepared(machine: Machine) -> None:
    """A client is told of a commit with the last vote, though it had asked for votes alone, and recovery aborts that."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def all_prepared(original: Callable[..., None], transaction: Transaction) -> None:
        transaction.held = False
        original(transaction)

    around(coordinator, "_all_prepared", all_prepared)


@TRANSACTIONS.fault("5")
def votes_for_what_an_older_map_asked(machine: Machine) -> None:
    """A participant prepares what a coordinator asked under an older map, after recovery was told that it had not."""
    assert machine.node is not None
    core = machine.node.core

    def on_prepare(original: Callable[..., None], sender: NodeId, message: PrepareParts) -> None:
        original(sender, msgspec.structs.replace(message, version=core.fence))

    around(machine.node.participant, "on_prepare", on_prepare)


@TRANSACTIONS.fault("5")
def no_vote_ignored(machine: Machine) -> None:
    """A coordinator counts a no for a yes."""
    assert machine.node is not None

    def on_vote(original: Callable[..., None], sender: NodeId, message: Vote) -> None:
        original(sender, msgspec.structs.replace(message, yes=True))

    around(machine.node.coordinator, "on_vote", on_vote)


@TRANSACTIONS.fault("5")
def repeated_finish_says_abort(machine: Machine) -> None:
    """An outcome that has to be told again is told as an abort, whatever it was."""
    assert machine.node is not None
    coordinator = machine.node.coordinator
    told: dict[TxId, None] = {}

    def tell(original: Callable[..., None], transaction: Transaction) -> None:
        first = transaction.tx not in told
        told[transaction.tx] = None
        decided = transaction.commit
        transaction.commit = decided and first
        original(transaction)
        transaction.commit = decided

    around(coordinator, "_tell_outcome", tell)


@TRANSACTIONS.fault("5")
def duplicate_finish_flips_the_outcome(machine: Machine) -> None:
    """A Finish for a transaction whose outcome is already on its way turns it into the other one."""
    assert machine.node is not None
    participant = machine.node.participant

    def finish(original: Callable[..., bool], local: LocalPartition, tx: TxId, commit: bool, *told: Any) -> bool:
        listeners = participant.ending.pop((tx, local.number), None)
        done: bool = original(local, tx, commit if listeners is None else not commit, *told)
        if listeners is not None and (tx, local.number) in participant.ending:
            participant.ending[(tx, local.number)] += listeners
        return done

    around(participant, "finish", finish)


@TRANSACTIONS.fault("3, 10")
def rolled_back_counters_left_open(machine: Machine) -> None:
    """A rolled-back transaction's counters are not closed."""
    assert machine.node is not None
    participant = machine.node.participant

    def outcome(tx: TxId, partition: int, epoch: int, commit: bool, ranges: list[r.Range]) -> r.Outcome:
        return right(tx, partition, epoch, commit, ranges if commit else [])

    right = r.Outcome

    def finish(original: Callable[..., bool], *args: Any) -> bool:
        with swapped(r, "Outcome", outcome):
            return original(*args)

    around(participant, "finish", finish)


# Locks and conflicts.


@TRANSACTIONS.fault("5")
def locks_released_at_prepare(machine: Machine) -> None:
    """A participant releases a transaction's locks when it votes, not when it knows the outcome."""
    assert machine.node is not None
    participant = machine.node.participant

    def held(original: Callable[..., None], sender: NodeId, message: PrepareParts, part: Any, refusal: Any) -> None:
        original(sender, message, part, refusal)
        participant.locks.release(message.owner, participant.locks.keys_in(message.owner, part.partition))

    around(participant, "_held", held)


@TRANSACTIONS.fault("10")
def what_is_over_is_in_the_way(machine: Machine) -> None:
    """An optimistic transaction is refused over keys of one that its client was told is committed."""
    assert machine.node is not None
    replace(machine.node.locks, "ends_by_itself", lambda _key: False)


@TRANSACTIONS.fault("5")
def lease_of_a_prepared_transaction_runs_out(machine: Machine) -> None:
    """A prepared transaction's locks go when its client's lease runs out."""
    assert machine.node is not None
    locks = machine.node.locks

    expire = locks.expire

    def let_go(now: int) -> list[TxId]:
        silent = expire(now)
        for owner in silent:
            locks.release(owner)
        return silent

    replace(locks, "expire", let_go)


@TRANSACTIONS.fault("5")
def conflicts_not_looked_for(machine: Machine) -> None:
    """A transaction commits although what it read was changed, or its locks were lost."""
    assert machine.node is not None
    replace(machine.node.locking, "conflict", lambda owner, locks, reads, writes=(), going_on=False: "")


@TRANSACTIONS.fault("5")
def single_writes_pass_locks(machine: Machine) -> None:
    """A put does not wait for the transaction that holds its key."""
    assert machine.node is not None
    replace(machine.node.locks, "busy_any", lambda keys: False)


@TRANSACTIONS.fault("5")
def promoted_primary_forgets_prepared_locks(machine: Machine) -> None:
    """A new primary does not lock the keys of the transactions that it finds prepared."""
    assert machine.node is not None

    def holding(_: int) -> Iterator[int]:
        return iter(())

    replace(machine.node.participant, "holding", holding)


@TRANSACTIONS.fault("5")
def locks_survive_a_change_of_primary(machine: Machine) -> None:
    """A pessimistic transaction commits though its locks were lost with the old primary."""
    assert machine.node is not None
    participant = machine.node.participant

    def conflict(
        original: Callable[..., str], owner: TxId, locks: Any, reads: Any, writes: Any = (), *, going_on: bool = False
    ) -> str:
        still = [key for key in locks if held(key)]
        return original(owner, still, reads, [key for key in writes if held(key)], going_on=going_on)

    def held(key: Any) -> bool:
        return bool(participant.locks.owned(key))

    around(machine.node.locking, "conflict", conflict)


# Answers.


class _Forgetful(Results):
    """Nothing was ever answered."""

    __slots__ = ()

    def get(self, tx: TxId) -> int | None:
        return None


@TRANSACTIONS.fault("5")
def retry_executed_twice(machine: Machine) -> None:
    """The results of single writes and transactions are forgotten, so that a repeated request happens again."""
    assert machine.node is not None

    def partition(original: Callable[..., Any], number: int) -> Any:
        state = original(number)
        if type(state.results) is not _Forgetful:
            state.results = _Forgetful(state.results.items(), state.results.floor)
        return state

    around(machine.node.core.replica, "partition", partition)


@TRANSACTIONS.fault("5")
def acknowledged_requests_taken_for_new(machine: Machine) -> None:
    """A node executes what it does not know, though the client said that it has the answer."""
    assert machine.node is not None
    sessions = machine.node.sessions

    def hear(original: Callable[..., bool], tx: TxId, acked: int) -> bool:
        original(tx, acked)
        return True

    around(sessions, "hear", hear)
    replace(sessions, "acknowledged", lambda tx: False)


@TRANSACTIONS.fault("5")
def requests_of_older_maps_taken_for_new(machine: Machine) -> None:
    """A new primary executes what it does not know, though it was sent before this node was primary."""
    assert machine.node is not None
    core = machine.node.core

    def switch(original: Callable[..., None], topology: Any, still: bool) -> None:
        original(topology, still)
        for local in core.local:
            local.since = 0

    around(machine.node.exchange, "_switch", switch)


@TRANSACTIONS.fault("5")
def everything_is_forgotten(machine: Machine) -> None:
    """Where answers pile up a primary forgets all of them, whether or not their clients have them."""
    assert machine.node is not None
    sessions = machine.node.sessions

    def look(original: Callable[..., int], local: LocalPartition) -> int:
        for heard in sessions._heard.values():
            heard.acked = 1 << 47
        work = original(local)
        for heard in sessions._heard.values():
            heard.acked = -1
        return work

    around(sessions, "_look", look)


@TRANSACTIONS.fault("5")
def results_not_moved_with_a_partition(machine: Machine) -> None:
    """A full transfer brings the rows of a partition, but not the answers that were given there."""
    assert machine.node is not None

    def batch(original: Callable[..., Any], session: Any, **parts: Any) -> Any:
        return original(session, **{**parts, "results": []})

    around(machine.node.supply, "_batch", batch)


@TRANSACTIONS.fault("5")
def answers_not_kept_with_results(machine: Machine) -> None:
    """That a write was done is kept, but not what its client was told of it: a sum, a length, what was there before."""
    assert machine.node is not None

    def apply_write(original: Callable[..., bool], write: r.Write) -> bool:
        return original(msgspec.structs.replace(write, answer=None))

    around(machine.node.core.replica, "apply_write", apply_write)


@TRANSACTIONS.fault("5")
def answers_not_moved_with_results(machine: Machine) -> None:
    """A full transfer says which writes were done, and not what their clients were told of them."""
    assert machine.node is not None

    def batch(original: Callable[..., Any], session: Any, **parts: Any) -> Any:
        moved = [msgspec.structs.replace(results, answers=[]) for results in parts.get("results") or []]
        return original(session, **{**parts, "results": moved})

    around(machine.node.supply, "_batch", batch)


@TRANSACTIONS.fault("5")
def absent_is_absent(machine: Machine) -> None:
    """A transaction that wrote nothing may end if what it found absent is absent now, whatever came and went meanwhile."""
    assert machine.node is not None
    replace(machine.node.locking, "_came_and_went", lambda absent: "")


# Ranges.


@TRANSACTIONS.fault("5")
def ranges_are_not_looked_at(machine: Machine) -> None:
    """What came into a range since a transaction scanned it is not looked for at its end."""
    assert machine.node is not None

    def blind(original: Callable[..., Iterator[int]], session: Any, request: Check) -> Iterator[int]:
        return original(session, msgspec.structs.replace(request, scanned=[]))

    around(machine.node.locking, "_confirmed", blind)


@TRANSACTIONS.fault("1")
def what_was_found_is_told_whatever_came_since(machine: Machine) -> None:
    """What a scan has found in a partition is told to the next one, though something was written there."""
    assert machine.node is not None

    def page(look: Look, number: int) -> Page | None:
        found = look._found.get(number)
        return found.page if found is not None else None

    during(machine, machine.node.reads, "_scan_on", Look, "page", page)
    during(machine, machine.node.reads, "_scan_on", Look, "_changed", lambda look: [])


@TRANSACTIONS.fault("5")
def what_is_prepared_in_a_range_is_overlooked(machine: Machine) -> None:
    """A row that is prepared in a range, and not decided yet, is taken for one that is not there."""
    assert machine.node is not None
    core, locking = machine.node.core, machine.node.locking

    def blind(original: Callable[..., Iterator[int]], session: Any, request: Check) -> Iterator[int]:
        prepared = {number: core.replica.partition(number) for scanned in request.scanned for number, _, _ in scanned.marks}
        kept = {number: state.prepared for number, state in prepared.items()}
        for state in prepared.values():
            state.prepared = {}
        try:
            yield from list(original(session, request))
        finally:
            for number, state in prepared.items():
                state.prepared = kept[number]

    around(locking, "_confirmed", blind)


@TRANSACTIONS.fault("5")
def a_range_is_marked_where_it_is_promised(machine: Machine) -> None:
    """The mark of a scan is the highest counter that was handed out, and not the one up to which all counts."""
    assert machine.node is not None
    core, reads = machine.node.core, machine.node.reads

    def go_on(original: Callable[..., None], run: int) -> None:
        request = reads._scans[run][0].request if run in reads._scans else None
        original(run)
        if request is None:
            return
        for reply in core.effects.reply:
            if isinstance(reply[1], Rows) and reply[1].marks:
                for at, number in enumerate(request.partitions):
                    state = core.replica.fragments.get((request.namespace, number))
                    if state is not None:
                        reply[1].marks[at] = (core.local[number].epoch, state.counter.hwm)

    around(reads, "_scan_on", go_on)


@TRANSACTIONS.fault("5")
def conditions_are_not_looked_at(machine: Machine) -> None:
    """A participant votes for what is said at once, whether or not its conditions hold."""
    assert machine.node is not None
    replace(machine.node.participant.touching, "_unmet", lambda part: None)


@TRANSACTIONS.fault("10")
def a_count_waits_for_whoever_comes(machine: Machine) -> None:
    """A count of rows waits until there is a moment at which nobody is in doubt."""
    assert machine.node is not None
    reads = machine.node.reads

    def go_on(original: Callable[..., None], run: int) -> None:
        scan = reads._scans[run][0] if run in reads._scans else None
        if isinstance(scan, Counting):
            scan._in_doubt.clear()
        original(run)

    around(reads, "_scan_on", go_on)


@TRANSACTIONS.fault("5")
def a_count_waits_for_nobody(machine: Machine) -> None:
    """Rows are counted beside a transaction whose client may have been told that it is done."""
    assert machine.node is not None
    reads = machine.node.reads

    def go_on(original: Callable[..., None], run: int) -> None:
        scan = reads._scans[run][0] if run in reads._scans else None
        if isinstance(scan, Counting):
            scan._in_doubt = {number: {} for number in scan.request.partitions}
        original(run)

    around(reads, "_scan_on", go_on)


# Circles.


@TRANSACTIONS.fault("10")
def waits_that_are_over_are_not_taken_back(machine: Machine) -> None:
    """A node tells who waits there, and does not tell that nobody does any more."""
    assert machine.node is not None

    def report(original: Callable[..., None], coordinator: NodeId, waits: Waits) -> None:
        if waits.waits:
            original(coordinator, waits)

    around(machine.node.deadlocks, "_report", report)


@TRANSACTIONS.fault("10")
def who_holds_something_waits_unnoticed(machine: Machine) -> None:
    """A node tells of the waits of those who hold something no sooner than of others, which close no circle."""
    assert machine.node is not None
    replace(machine.node.locks, "may_close_a_circle", lambda owner: False)


@TRANSACTIONS.fault("10")
def what_else_a_client_has_asked_for_is_not_heard(machine: Machine) -> None:
    """A node looks only at what it has granted itself, when it says who waits and holds something."""
    assert machine.node is not None
    handlers = machine.node._on_request
    lock = handlers[Lock]
    handlers[Lock] = lambda session, request: lock(session, msgspec.structs.replace(request, holding=False))


@TRANSACTIONS.fault("10")
def circles_are_not_looked_for(machine: Machine) -> None:
    """The coordinator hears who waits for whom, and makes nothing of it."""
    assert machine.node is not None
    replace(machine.node.deadlocks, "on_waits", lambda sender, message: None)


@TRANSACTIONS.fault("5")
def what_is_over_is_decided_once_more(machine: Machine) -> None:
    """Recovery takes whoever is asked for one that waits for the outcome, also where it has ended and is forgotten."""
    assert machine.node is not None
    coordinator = machine.node.coordinator

    def on_inquired(original: Callable[..., None], sender: NodeId, message: Inquired) -> None:
        original(sender, msgspec.structs.replace(message, in_doubt=True))

    around(coordinator, "on_inquired", on_inquired)


@TRANSACTIONS.fault("10")
def what_was_sent_by_an_older_map_is_executed(machine: Machine) -> None:
    """A primary executes what it knows nothing of, though it was sent under an earlier one, which may have forgotten it."""
    assert machine.node is not None

    def may_begin(original: Callable[..., bool], session: int, request: Any, local: LocalPartition, tx: TxId) -> bool:
        with swapped(local, "since", 0):
            return original(session, request, local, tx)

    around(machine.node.writes.admission, "_may_begin", may_begin)
