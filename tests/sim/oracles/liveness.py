"""Invariant 10: after the faults stop, everything comes to be where it belongs, and nothing is left over."""

from __future__ import annotations

from rebalance.migrations import Paused
from rebalance.moves import waits_by_order
from rebalance.partition import Role
from tests.sim.world import World
from wal.records import kind_of


def out_of_sync(world: World) -> str:
    """Which copy is not where it belongs, or not in sync; empty if all are, but for what an operator holds back: a pause of
    balancing alone leaves no copy missing."""
    newest = world.newest()
    if newest is None:
        return "there is no map"
    world.rotten.look(world)
    alone = world.rotten.for_good  # nobody can follow these, and the operator is told
    for machine in world.machines.values():
        if machine.gone:
            continue
        node = machine.node
        if not machine.up or node is None or not node.core.serving:
            return f"{machine.name} does not serve ({machine.why or 'it is up'})"
        status = node.admin.status()
        if status["version"] != str(newest.version):
            return f"{machine.name} is at {status['version']}, the newest map is {newest.version}"
        if status["under_replicated"] > len(alone) and newest.migrations.paused is not Paused.ALL:
            return f"{machine.name}: under_replicated is {status['under_replicated']}"
        for what in ("lost", "frozen"):
            if status[what]:
                return f"{machine.name}: {what} is {status[what]}"
        held = len(node.demander.held) + len(alone)
        if status["behind"] > held:
            return f"{machine.name}: behind is {status['behind']}, of which {held} may wait"
        if any(local.role is Role.PROMOTING for local in node.core.local):
            return f"{machine.name} has not promoted everything it is primary of"
    return ""


def unsettled(world: World) -> str:
    """Why the cluster has not come to rest yet; empty if it has."""
    reason = out_of_sync(world)
    if reason:
        return reason
    for machine in world.running:
        assert machine.node is not None
        status = machine.node.admin.status()
        for what in ("in_doubt", "locks"):
            if status[what]:
                return f"{machine.name}: {what} is {status[what]}"
        # What nobody asks for any more may be under way all the same: the deletes of what expires, for one.
        if records := machine.node.replication.open_records():
            return f"{machine.name} has logged what does not count yet: {', '.join(map(kind_of, records[:5]))}"
    return _left_behind(world)


def _left_behind(world: World) -> str:
    """Which asynchronous copy lacks something; empty if none does. Where nobody is to be supplied, any may."""
    newest = world.newest()
    assert newest is not None
    for number, placement in enumerate(newest.placements):
        if not placement.asynchronous or number in world.rotten.for_good or waits_by_order(newest, number):
            continue
        leader = world.machines[placement.owners[0]].node
        assert leader is not None
        for name in placement.asynchronous:
            node = world.machines[name].node
            assert node is not None
            for fragment in leader.core.replica.partition(number).fragments.values():
                copy = node.core.replica.fragment(fragment.name)
                if copy.loading or copy.suspects or str(copy.counter) != str(fragment.counter):
                    return f"{name} is behind in {fragment}: {copy}"
    return ""
