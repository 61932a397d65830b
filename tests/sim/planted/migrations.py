"""Faults in what is done with orders about migrations: a pause that holds nothing or too much, a limit that is not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from rebalance import demanding
from rebalance.migrations import NOT_ORDERED
from rebalance.partition import PartitionState
from rebalance.table import Topology
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal.ids import NodeId

MIGRATIONS = Faults()


@MIGRATIONS.fault("10")
def a_paused_cluster_moves_on(machine: Machine) -> None:
    """A copy asks for what it lacks, whatever the operator has paused, and is given it."""
    assert machine.node is not None
    node = machine.node
    replace(node.demander.held, "without", list)

    def supplies(name: NodeId, number: int) -> bool:
        local = node.core.local[number]
        return local.active and name in local.placement.owners

    replace(node.supply, "_supplies", supplies)


@MIGRATIONS.fault("10")
def a_pause_lets_what_is_under_way_go_on(machine: Machine) -> None:
    """Nothing is asked for that is paused; what was asked for before is supplied to its end."""
    assert machine.node is not None
    node = machine.node

    def supplies(name: NodeId, number: int) -> bool:
        local = node.core.local[number]
        return local.active and name in local.placement.owners

    replace(node.supply, "_supplies", supplies)
    original = node.demander.held.switch
    replace(node.demander.held, "switch", lambda changed, _sessions: original(changed, ()))


@MIGRATIONS.fault("10")
def a_copy_that_waits_keeps_what_is_written(machine: Machine) -> None:
    """A copy whose supply is paused takes what is written meanwhile, and keeps it in memory behind the gap."""
    assert machine.node is not None
    node = machine.node
    passes_over = node.demander.passes_over
    replace(
        node.replication._taking, "_passes_over", lambda number: number not in node.demander.held and passes_over(number)
    )


@MIGRATIONS.fault("10")
def a_copy_that_rests_keeps_what_is_written(machine: Machine) -> None:
    """Who was set aside, lacks something and asks for nothing yet takes what is written, and keeps it behind the gap."""
    assert machine.node is not None
    node = machine.node
    replace(node.replication._taking, "_passes_over", node.demander.held.__contains__)


@MIGRATIONS.fault("10")
def a_copy_that_rests_takes_nothing(machine: Machine) -> None:
    """Who was set aside passes over what is written to its copies, though they lack nothing."""
    assert machine.node is not None
    during(machine, machine.node.replication._taking, "_passes_over", demanding, "has_a_gap", lambda _: True)


@MIGRATIONS.fault("10")
def what_is_prepared_is_taken_for_a_gap(machine: Machine) -> None:
    """A copy of who was set aside passes over what is written beside a transaction of which it has yet to hear the end."""
    assert machine.node is not None

    def has_a_gap(state: PartitionState) -> bool:
        return any(fragment.loading or fragment.beyond for fragment in state.fragments.values())

    during(machine, machine.node.replication._taking, "_passes_over", demanding, "has_a_gap", has_a_gap)


@MIGRATIONS.fault("10")
def a_primary_moves_although_balancing_is_paused(machine: Machine) -> None:
    """Primaries go where they belong whatever the operator has paused."""
    assert machine.node is not None
    reasons = machine.node.membership.reasons

    def moves(original: Callable[..., Any], topology: Topology, *more: Any) -> Any:
        return original(msgspec.structs.replace(topology, migrations=NOT_ORDERED), *more)

    around(reasons, "_wanted_moves", moves)


@MIGRATIONS.fault("10")
def a_missing_copy_waits_for_balancing(machine: Machine) -> None:
    """Under a pause of what would be better elsewhere no copy is made, missing or not."""
    assert machine.node is not None

    def waiting(topology: Topology, numbers: Iterable[int]) -> list[int]:
        return [] if topology.migrations.paused == NOT_ORDERED.paused else list(numbers)

    during(machine, machine.node.demander.held, "without", demanding, "those_that_wait", waiting)


@MIGRATIONS.fault("10")
def an_order_about_migrations_is_forgotten_by_the_next_map(machine: Machine) -> None:
    """A coordinator whose map changes anything else says that nothing was ordered of migrations."""
    assert machine.node is not None

    def intent(original: Callable[..., Any], *given: Any) -> Any:
        found = original(*given)
        if found.reason and found.migrations is None:
            found.migrations = NOT_ORDERED
        return found

    around(machine.node.membership.reasons, "intent", intent)


@MIGRATIONS.fault("10")
def an_order_about_migrations_is_carried_out_late(machine: Machine) -> None:
    """An order stands whatever the map has come to say since it was given."""
    assert machine.node is not None
    orders, kept = machine.node.membership.orders, list[Any]()

    def of_migrations(original: Callable[..., Any], topology: Topology) -> Any:
        if orders._migrations is not None:
            kept[:] = [orders._migrations]
        if kept:
            order, until = kept[0]
            orders._migrations = msgspec.structs.replace(order, seen=topology.migrations.since), until
        found = original(topology)
        stands = topology.migrations
        if found is not None and (found.paused, found.bytes_per_second) == (stands.paused, stands.bytes_per_second):
            return None
        return found

    around(orders, "of_migrations", of_migrations)


@MIGRATIONS.fault("10")
def a_limit_is_not_kept(machine: Machine) -> None:
    """A supplier sends as fast as it goes."""
    assert machine.node is not None
    replace(machine.node.supply.throttle, "admits", lambda _node, _now: True)


@MIGRATIONS.fault("10")
def a_supplier_that_waits_for_its_limit_is_silent(machine: Machine) -> None:
    """Nobody is told that a supply which waits for its limit lives, so it is begun anew again and again."""
    assert machine.node is not None
    replace(machine.node.supply.throttle, "waits", lambda _: False)


@MIGRATIONS.fault("10")
def the_last_of_two_orders_at_once_holds(machine: Machine) -> None:
    """An order is carried out although what it was given on stands no more."""
    assert machine.node is not None
    orders = machine.node.membership.orders

    def handle(original: Callable[..., Any], order: Any) -> None:
        topology = orders.core.topology
        if topology is not None and hasattr(order, "seen"):
            order = msgspec.structs.replace(order, seen=topology.migrations.since)
        original(order)

    around(orders, "_hear_of_migrations", handle)
