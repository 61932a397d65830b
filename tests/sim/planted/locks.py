"""Faults in the locks: who shares what, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from engine.data.holdings import Key
from engine.data.locks import LockTable
from engine.protocol.requests import Scan
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during
from wal.ids import TxId

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

    def at_once(original: Callable[..., bool], owner: TxId, key: Key, *, shared: bool) -> bool:
        return locks._free(owner, key, shared=True) if shared else original(owner, key, shared=shared)

    around(locks, "_at_once", at_once)


@LOCKS.fault("5")
def promoted_primary_forgets_what_was_read(machine: Machine) -> None:
    """A new primary locks what the transactions write that it finds prepared, and not what they have read."""
    assert machine.node is not None
    locks = machine.node.locks
    pin = locks.pin

    def writes(owner: TxId, keys: Sequence[Key], reads: Iterable[Key] = (), *, found: bool) -> None:
        pin(owner, keys, found=found)

    during(machine, machine.node.participant, "activated", locks, "pin", writes)


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


def _drive_out(machine: Machine, when: Callable[[TxId, Iterable[TxId]], bool]) -> None:
    """Who wants to write a key takes it from those who read it."""
    assert machine.node is not None
    locks = machine.node.locks

    def free(original: Callable[..., bool], owner: TxId, key: Key, *, shared: bool) -> bool:
        readers = list(locks._sharing.get(key, ()))
        for other in readers if not shared and when(owner, readers) else ():
            if other != owner:
                locks._let_go(other, key)
        return original(owner, key, shared=shared)

    around(locks, "_free", free)
