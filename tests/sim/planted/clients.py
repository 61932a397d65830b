"""Faults in the client: in what it calls the end of a call, and in what it says of itself."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from engine import errors
from engine.client.calls import Call
from engine.client.flights import Errand
from engine.protocol.requests import Reply
from tests.sim.clients import Client
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around
from wal.ids import sequence_of

CLIENTS = Faults()
NEWEST = (1 << 63) - 1
"""As if a request was sent by the newest map that there will ever be."""


def of_clients(machine: Machine, plant: Callable[[Client], None]) -> None:
    """Do this to each client that comes from now on. In small worlds that are walked there are none."""
    if isinstance(machine, Machine):
        machine.world.plants_of_clients[plant.__qualname__] = plant


@CLIENTS.fault("1")
def what_may_be_done_is_called_not_done(machine: Machine) -> None:
    """A write whose fate is unknown ends as one that came to nothing."""

    def plant(client: Client) -> None:
        def fail(original: Callable[..., None], errand: Errand, error: errors.Error) -> None:
            is_unknown = isinstance(error, errors.CommitUnknown) and errand.call.writes
            original(errand, errors.Unavailable(str(error)) if is_unknown else error)

        around(client.router, "_fail", fail)

    of_clients(machine, plant)


@CLIENTS.fault("1")
def a_broken_connection_is_taken_for_a_refusal(machine: Machine) -> None:
    """What was sent over a connection that breaks is forgotten to have been sent, when it is asked again."""

    def plant(client: Client) -> None:
        def on_disconnected(original: Callable[..., None], address: str, now: int) -> None:
            known = {id(f.errand.call): f.errand.call.unanswered for f in client.router._flights.values()}
            calls = [f.errand.call for f in client.router._flights.values()]
            original(address, now)
            for call in calls:
                call.unanswered = known[id(call)]

        around(client.router, "on_disconnected", on_disconnected)

    of_clients(machine, plant)


@CLIENTS.fault("10")
def a_write_is_repeated_under_another_id(machine: Machine) -> None:
    """What has to be asked once more is asked as something new."""

    def plant(client: Client) -> None:
        def redo(original: Callable[..., None], errand: Errand, items: list[int], *, stale: bool) -> None:
            if errand.call.writes and errand.call.ends:
                errand.call.tx = client.new_tx()
            original(errand, items, stale=stale)

        around(client.router, "_redo", redo)

    of_clients(machine, plant)


@CLIENTS.fault("10")
def a_client_acknowledges_what_it_has_no_answer_to(machine: Machine) -> None:
    """Each request says that all that was asked before it has been answered."""

    def plant(client: Client) -> None:
        def acked(original: Callable[..., int], tx: bytes) -> int:
            known = original(tx)
            return max(known, sequence_of(tx) - 1) if known >= 0 else known

        around(client.router.identity, "acked", acked)

    of_clients(machine, plant)


@CLIENTS.fault("10")
def a_request_names_a_newer_map_than_it_was_sent_by(machine: Machine) -> None:
    """A copy of a request that comes late says that it was sent by the map under which its primary leads."""

    def plant(client: Client) -> None:
        def send(original: Callable[..., None], errand: Errand, items: list[int], address: str) -> None:
            original(errand, items, address)
            request = client.router.sends[-1][1]
            if errand.call.writes and hasattr(request, "version"):
                client.router.sends[-1] = address, structs.replace(request, version=NEWEST)

        around(client.router, "_send", send)

    of_clients(machine, plant)


@CLIENTS.fault("5")
def an_answer_of_a_part_is_taken_for_all(machine: Machine) -> None:
    """Of a batch that several nodes are asked for, the first that answers ends it."""

    def plant(client: Client) -> None:
        def takes(original: Callable[..., bool], call: Call, errand: Errand, items: list[int], reply: Reply) -> bool:
            taken = original(call, errand, items, reply)
            if taken and call.writes and not call.rest:
                errand.todo, errand.flights = [], 0
            return taken

        around(client.router, "_takes", takes)

    of_clients(machine, plant)
