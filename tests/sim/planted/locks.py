"""Faults in the locks: who shares what, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from engine.data.holdings import Key, Passing
from engine.data.locks import LockTable
from engine.protocol.requests import Scan
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal import records as r
from wal.ids import TxId, whole_of

LOCKS = Faults()


@LOCKS.fault("5")
def a_writer_passes_readers(machine: Machine) -> None:
    """A transaction gets a key to write it while others read it, and they lose it."""
    _drive_out(machine, lambda owner, readers: owner not in readers)


@LOCKS.fault("5")
def who_reads_and_writes_passes_other_readers(machine: Machine) -> None:
    """A transaction that reads a key gets it to write it though it is not the only reader."""
    _drive_out(machine, lambda owner, readers: owner in readers)


@LOCKS.fault("10")
def who_leaves_the_line_lets_nobody_on(machine: Machine) -> None:
    """A writer gives up waiting, and the readers who stood behind it are forgotten."""
    assert machine.node is not None
    locks = machine.node.locks
    during(machine, locks, "_give_up", locks, "_grant", lambda key: None)


@LOCKS.fault("5")
def readers_pass_a_writer_who_waits(machine: Machine) -> None:
    """Who wants to read a key that is read gets it at once, and a writer who waits is never the first."""
    assert machine.node is not None
    locks = machine.node.locks

    def at_once(original: Callable[..., bool], owner: TxId, key: Key, *, shared: bool, early: bool = False) -> bool:
        free = locks._free if shared else original
        return bool(free(owner, key, shared=shared, early=early))

    around(locks, "_at_once", at_once)


@LOCKS.fault("5")
def promoted_primary_forgets_what_was_read(machine: Machine) -> None:
    """A new primary locks what the transactions write that it finds prepared, and not what they have read."""
    assert machine.node is not None

    def pin(
        original: Callable[..., None], owner: TxId, keys: Sequence[Key], reads: Iterable[Key] = (), **how: bool
    ) -> None:
        original(owner, keys, () if how.get("found") else reads, **how)

    around(machine.node.locks, "pin", pin)


@LOCKS.fault("10")
def who_claims_waits_for_votes(machine: Machine) -> None:
    """Who asks for what is free is told when every transaction that voted there has its outcome."""
    assert machine.node is not None
    handlers = machine.node._on_request
    scan = handlers[Scan]
    handlers[Scan] = lambda session, request: scan(session, structs.replace(request, unlocked=False))


@LOCKS.fault("5")
def who_claims_is_told_of_what_is_locked(machine: Machine) -> None:
    """Who asks for what is free is told of rows that others have locked, or are about to delete."""
    assert machine.node is not None
    during(machine, machine.node.reads, "_begin_scan", LockTable, "busy", lambda locks, key: False)


@LOCKS.fault("11")
def a_lock_is_handed_over_whenever_it_was_asked_for(machine: Machine) -> None:
    """Who has a key from what counts is told at once, also if it came when the copies had answered that already."""
    assert machine.node is not None
    locking = machine.node.locking

    def granted(original: Callable[..., None], *about: object, asked: int) -> None:
        original(*about, asked=min(asked, 0))

    around(locking, "_granted", granted)


@LOCKS.fault("5")
def who_is_handed_a_key_reads_what_was_before(machine: Machine) -> None:
    """Who has a key before the outcome counts of whom it has it from is told what the key held before that."""
    assert machine.node is not None
    locks, store, place = machine.node.locks, machine.node.core.replica.store, machine.node.core.place

    def hand_on(original: Callable[[Key], None], key: Key) -> None:
        original(key)
        before = store.get((key[0], place(*key)), key[1])
        if before is not None:
            locks.handed[key] = locks.handed[key]._replace(entry=before)

    around(locks, "_hand_on", hand_on)


@LOCKS.fault("5")
def what_was_handed_on_is_in_no_doubt(machine: Machine) -> None:
    """A key is read as it was before, although the transaction is committed that has handed it on."""
    assert machine.node is not None
    locks = machine.node.locks
    replace(locks, "in_doubt", lambda key: locks._pinned.get(key, False))


@LOCKS.fault("5")
def a_single_write_takes_what_was_handed_on(machine: Machine) -> None:
    """An increment finds nobody who has a key, and does not see that it was handed on and is in doubt."""
    assert machine.node is not None

    def at_once(original: Callable[..., bool], owner: TxId, key: Key, *, shared: bool, early: bool = False) -> bool:
        return original(owner, key, shared=shared, early=True)

    around(machine.node.locks, "_at_once", at_once)


@LOCKS.fault("5")
def a_key_is_handed_on_with_the_vote(machine: Machine) -> None:
    """Who stands in line has a key as soon as its owner has voted here, whatever others vote."""
    assert machine.node is not None
    participant = machine.node.participant

    def voted(original: Callable[..., None], prepare: r.Prepare, *about: object) -> None:
        original(prepare, *about)
        participant._hand_on(prepare)

    around(participant, "_voted", voted)


@LOCKS.fault("5")
def a_vote_rests_on_what_does_not_count(machine: Machine) -> None:
    """Who has a key before the outcome counts of whom it has it from votes at once, and may be in doubt beside that one."""
    assert machine.node is not None
    replace(machine.node.locks, "rests_on", lambda owner, keys: None)


@LOCKS.fault("10")
def who_rests_on_an_outcome_is_forgotten(machine: Machine) -> None:
    """Whoever waits until an outcome counts on which it rests is not told that it does."""
    assert machine.node is not None

    def passed(original: Callable[..., Passing | None], *which: object) -> Passing | None:
        passing = original(*which)
        if passing is not None:
            passing.behind.clear()
        return passing

    around(machine.node.locks, "passed", passed)


def _drive_out(machine: Machine, when: Callable[[TxId, Iterable[TxId]], bool]) -> None:
    """Who wants to write a key takes it from those who read it."""
    assert machine.node is not None
    locks = machine.node.locks

    def free(original: Callable[..., bool], owner: TxId, key: Key, *, shared: bool, early: bool = False) -> bool:
        readers = list(locks._sharing.get(key, ()))
        for other in readers if not shared and when(owner, readers) else ():
            if other != owner:
                locks._let_go(other, key)
        return original(owner, key, shared=shared, early=early)

    around(locks, "_free", free)


@LOCKS.fault("5")
def who_is_named_later_holds_what_was_found(machine: Machine) -> None:
    """A new primary that found a vote has its keys as the transaction's, and gives them back as those of the owner of whom
    it hears when it is asked for another one."""
    assert machine.node is not None
    participant = machine.node.participant
    replace(participant, "holder", lambda tx, _: participant.owner_of.get(whole_of(tx)) or whole_of(tx))
