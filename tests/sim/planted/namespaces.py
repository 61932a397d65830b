"""Faults in what is done with namespaces: who drops, when one is said to be gone, and who decides how long values last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine.data import writes
from engine.data.dropping import Dropping
from engine.state.store import Entry
from rebalance import adding
from rebalance.deadlines import row_of
from rebalance.namespaces import NOT_SAID
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal import records as r
from wal.ids import EXPIRIES, Fragment, NodeId

NAMESPACES = Faults()


def _dropping(machine: Machine) -> Dropping:
    assert machine.node is not None
    return machine.node.dropping


@NAMESPACES.fault("4, 8")
def a_drop_is_not_counted(machine: Machine) -> None:
    """A primary clears what it has of a namespace that is being dropped, and no record says so."""
    dropping = _dropping(machine)

    def delete(_: Callable[..., None], local: Any, namespace: str, keys: list[bytes]) -> None:
        store = dropping.core.replica.store
        for key in keys:
            held = store.get((namespace, local.number), key)
            if held is not None:
                store.put((namespace, local.number), key, Entry(held.epoch, held.counter, None))

    around(dropping, "_delete", delete)


@NAMESPACES.fault("8")
def a_namespace_is_gone_although_a_transaction_holds_a_row(machine: Machine) -> None:
    """What cannot be deleted yet is passed over for good."""

    def empty(original: Callable[..., tuple[bool, int]], name: Fragment, most: int) -> tuple[bool, int]:
        return True, original(name, most)[1]

    around(_dropping(machine), "_empty", empty)


@NAMESPACES.fault("8")
def a_namespace_is_gone_before_its_deletes_count(machine: Machine) -> None:
    """A primary says that it leads nothing of a namespace any more when its deletes are logged here."""
    assert machine.node is not None
    dropping, orders = _dropping(machine), machine.node.membership.orders.namespaces
    replace(orders, "gone_here", lambda: [name for name, left in dropping._left.items() if not left])


@NAMESPACES.fault("8")
def what_is_being_dropped_is_written_to(machine: Machine) -> None:
    """Nobody is turned away from a namespace that is being dropped."""
    assert machine.node is not None
    replace(machine.node.admission, "unusable", lambda _: "")


@NAMESPACES.fault("1")
def what_has_copies_of_its_own_is_written_where_others_are(machine: Machine) -> None:
    """A primary puts a key into a partition of the cluster's own group, whatever group its namespace is in."""
    node = machine.node
    assert node is not None

    def issue(original: Callable[..., None], local: Any, *args: Any, **kwargs: Any) -> None:
        topology = node.core.topology
        assert topology is not None
        original(node.core.local[local.number % topology.partitions], *args, **kwargs)

    around(node.writes, "_issue", issue)


@NAMESPACES.fault("1, 9")
def a_group_begins_with_fewer_copies_than_it_asks_for(machine: Machine) -> None:
    """The partitions of a new group have one copy in sync, however many there are to be."""
    assert machine.node is not None

    def first_alone(copies: Sequence[NodeId], _: Mapping[NodeId, int]) -> list[NodeId]:
        return list(copies[:1])

    during(machine, machine.node, "turn", adding, "fast", first_alone)


@NAMESPACES.fault("1")
def what_was_written_is_given_copies_of_its_own(machine: Machine) -> None:
    """Nobody says that there is something in a namespace that is being made: it is left behind where it is."""
    assert machine.node is not None
    dropping, orders = _dropping(machine), machine.node.membership.orders.namespaces
    replace(orders, "written_here", list)
    replace(orders, "gone_here", lambda: [name for name, left in dropping._left.items() if not left])


@NAMESPACES.fault("8")
def an_order_about_a_namespace_is_carried_out_late(machine: Machine) -> None:
    """An order stands whatever the map has come to say since it was given."""
    assert machine.node is not None
    orders, kept = machine.node.membership.orders.namespaces, dict[str, Any]()

    def standing(original: Callable[..., Any], topology: Topology) -> Any:
        kept.update(orders._orders)
        for name, (order, until) in kept.items():
            since = topology.namespaces.get(name, NOT_SAID).since
            orders._orders[name] = msgspec.structs.replace(order, seen=since), until
        return original(topology)

    around(orders, "standing", standing)


@NAMESPACES.fault("4")
def each_copy_gives_values_the_time_of_their_namespace(machine: Machine) -> None:
    """Not the primary says when a value expires, but each copy, by its own clock."""
    node = machine.node
    assert node is not None
    during(machine, node.writes, "_issue", writes, "lasts_ms", lambda *_: 0)
    core = node.core

    def apply_write(original: Callable[..., bool], write: r.Write) -> bool:
        new = original(write)
        settings = core.namespaces.get(write.namespace)
        if new and settings is not None and settings.ttl_ms:
            for at, key in enumerate(write.keys, write.start + 1):
                said = b"%d %d" % (core.wall_ms + settings.ttl_ms, at)
                name = (EXPIRIES, write.partition)
                core.replica.ensure_fragment(name)
                core.replica.store.put(name, row_of(write.namespace, key), Entry(write.epoch, at, said))
        return new

    around(core.replica, "apply_write", apply_write)
