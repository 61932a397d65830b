"""Faults in what expires: of who deletes it, of how that is told, and of what may be deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.data.expiry import Expiry
from engine.protocol.requests import Get, Values
from engine.state.store import Entry
from engine.turn.effects import Effects
from engine.turn.events import Event
from rebalance.deadlines import key_of
from rebalance.ports import Operation
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal import records as r
from wal.ids import EXPIRIES

EXPIRY = Faults()


def _expiry(machine: Machine) -> Expiry:
    assert machine.node is not None
    return machine.node.expiry


@EXPIRY.fault("4")
def what_expires_is_deleted_without_a_counter(machine: Machine) -> None:
    """A primary drops what has expired from its own store, and no record says so."""
    expiry = _expiry(machine)

    def delete(_: Callable[..., None], local: Any, rows: list[bytes], *__: object) -> None:
        store = expiry.core.replica.store
        for row in rows:
            namespace, key = key_of(row)
            held = store.get((namespace, local.number), key)
            if held is not None and held.value is not None:
                store.put((namespace, local.number), key, Entry(held.epoch, held.counter, None))

    around(expiry, "_delete", delete)


@EXPIRY.fault("4")
def a_backup_deletes_what_has_expired_by_its_own_clock(machine: Machine) -> None:
    """Each copy looks at its clock, and drops what is over by that."""
    node, expiry = machine.node, _expiry(machine)
    assert node is not None

    def turn(original: Callable[..., Effects], now: int, events: Sequence[Event]) -> Effects:
        effects, wall_ms = original(now, events), expiry.core.wall_ms
        store = expiry.core.replica.store
        for namespace, number in [name for name in expiry.core.replica.fragments if name[0] == EXPIRIES]:
            for row, held in store.scan((namespace, number), b"", 100):
                if held.value is not None and int(held.value.split()[0]) <= wall_ms:
                    of, key = key_of(row)
                    stands = store.get((of, number), key)
                    if stands is not None and stands.value is not None:
                        store.put((of, number), key, Entry(stands.epoch, stands.counter, None))
        return effects

    around(node, "turn", turn)


@EXPIRY.fault("8")
def a_read_shows_what_has_expired(machine: Machine) -> None:
    """A read does not look at what has expired and is there still."""
    replace(_expiry(machine), "over", lambda *_: [])


@EXPIRY.fault("8")
def a_read_looks_at_what_has_expired_when_it_is_asked_for(machine: Machine) -> None:
    """What has expired when a key is asked for is deleted; what was committed since, and has expired, too, is told."""
    assert machine.node is not None
    reads, over = machine.node.reads, _expiry(machine).over
    replace(_expiry(machine), "over", lambda *_: [])

    def on_get(original: Callable[..., None], session: int, request: Get) -> None:
        assert machine.node is not None
        led = machine.node.core.local
        placed = [machine.node.core.place(request.namespace, key) for key in request.keys]
        if all(led[number].mine for number in placed) and (found := over(request.namespace, request.keys)):
            again = partial(original, session, request)
            _expiry(machine).delete_first(found, again, (session, request))
        else:
            original(session, request)

    around(reads, "on_get", on_get)


@EXPIRY.fault("8")
def a_reader_is_told_before_the_delete_counts(machine: Machine) -> None:
    """Whoever reads what has expired is told that it is gone as soon as that is logged here."""
    expiry = _expiry(machine)
    node = machine.node
    assert node is not None

    def delete_first(
        original: Callable[..., None], over: list[Any], then: Callable[[], None], asked: Any = None, owner: bytes = b""
    ) -> None:
        original(over, lambda: None, None, owner)
        if asked is not None:
            session, request = asked
            node.desk.reply(session, Values(request.id, [(0, 0, None)] * len(over)))

    around(expiry, "delete_first", delete_first)


@EXPIRY.fault("8")
def what_was_put_since_expires_too(machine: Machine) -> None:
    """Whose time has come is deleted whatever entry stands at its key by then."""
    expiry = _expiry(machine)
    get = expiry.core.replica.store.get

    def delete(original: Callable[..., None], local: Any, rows: list[bytes], *more: Any) -> None:
        original(local, rows, *more)
        for row in rows:
            namespace, key = key_of(row)
            held = get((namespace, local.number), key)
            if held is not None and held.value is not None:
                counter = expiry.core.replica.ensure_fragment((namespace, local.number)).counter
                write = r.Write(namespace, local.number, local.epoch, counter.reserve(1), [key], [None])
                update = r.Update([write])
                expiry.core.log_unapplied(update)
                counted: Callable[[], Any] = partial(expiry.core.replica.apply, update)
                expiry.deletes.replication.ship(Operation(local, [update], counted=counted), local)

    around(expiry, "_delete", delete)


@EXPIRY.fault("8")
def a_key_expires_under_a_transaction(machine: Machine) -> None:
    """What a transaction holds is deleted when its time has come."""
    expiry = _expiry(machine)
    during(machine, expiry, "tick", expiry.locks, "alone", lambda *_: True)


@EXPIRY.fault("10")
def a_new_primary_does_not_look_what_is_to_expire(machine: Machine) -> None:
    """Who begins to lead a partition only knows of the deadlines that it hears of from then on."""
    replace(_expiry(machine), "activated", lambda _: None)
