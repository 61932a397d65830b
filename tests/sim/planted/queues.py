"""Faults in what those are told who claim from a queue."""

from __future__ import annotations

from msgspec import structs

from engine.data.looks import Look
from engine.data.scans import Scanning
from engine.protocol.requests import Lock, Request, Rows
from engine.state.store import Entry, Page
from engine.turn.events import SessionId
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, during, swapped

QUEUES = Faults()


@QUEUES.fault("5")
def what_is_locked_is_handed_out_twice(machine: Machine) -> None:
    """Who claims several rows is told of those that others have as if it had them."""
    assert machine.node is not None
    locks, handlers = machine.node.locks, machine.node._on_request
    right = handlers[Lock]

    def on_lock(session: SessionId, request: Request) -> None:
        with swapped(locks, "may_write", lambda owner, key: True):
            right(session, request)

    handlers[Lock] = on_lock


@QUEUES.fault("1")
def what_follows_what_is_known_is_skipped(machine: Machine) -> None:
    """Where an earlier scan has found the first rows of a partition the next one takes them for all that there are."""
    assert machine.node is not None
    right = Look.page

    def page(look: Look, number: int) -> Page | None:
        known = right(look, number)
        return known._replace(next=None) if known is not None else None

    during(machine, machine.node.reads, "_scan_on", Look, "page", page)


@QUEUES.fault("1")
def what_is_put_is_not_among_what_is_known(machine: Machine) -> None:
    """Of what is written where an earlier scan has found the first rows only the deletes are made in what is known."""
    assert machine.node is not None
    right = Look._with

    def with_deletes(look: Look, rows: list[tuple[bytes, Entry]], key: bytes, entry: Entry) -> list[tuple[bytes, Entry]]:
        return rows if entry.value is not None else right(look, rows, key, entry)

    for owner, name in ((machine.node.writes, "on_counted"), (machine.node.participant, "_ended")):
        during(machine, owner, name, Look, "_with", with_deletes)


@QUEUES.fault("1")
def who_claims_is_told_that_there_is_no_other_row(machine: Machine) -> None:
    """Who claims is told for sure that nothing is there but what it is told of, also where an outcome is yet to come."""
    assert machine.node is not None
    right = Scanning.reply

    def reply(scan: Scanning) -> Rows:
        return structs.replace(right(scan), sure=scan.request.unlocked)

    during(machine, machine.node.reads, "_scan_on", Scanning, "reply", reply)
