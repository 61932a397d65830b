"""Faults in what those are told who claim from a queue."""

from __future__ import annotations

from engine.data.looks import Look
from engine.protocol.requests import Lock, Request
from engine.state.store import Page
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
