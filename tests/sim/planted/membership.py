"""Faults in who is in the map and who is waited for: the slow, the mute, the half connected, and orders of a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine.cluster import rescue
from engine.data import batches
from engine.messages import CopyReport, ResetLost
from engine.node import machines
from engine.protocol.roles import PEER
from rebalance import aside, plan, steps
from rebalance.salvage import best_copy
from rebalance.table import Taken, Topology
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, around, during, replace
from wal.ids import NodeId

MEMBERSHIP = Faults()


@MEMBERSHIP.fault("1, 10")
def no_slow_copy_is_waited_for(machine: Machine) -> None:
    """A slow copy leaves the in-sync set although it answers, and although one other is left of three."""
    during(machine, machine.node, "turn", aside, "ENOUGH", 1)


@MEMBERSHIP.fault("10")
def a_slow_coordinator_sets_itself_aside(machine: Machine) -> None:
    """Whoever leads is the one to set itself aside, and takes a sync of its slow disk for each step of that."""
    assert machine.node is not None
    replace(machine.node.membership, "_is_passed_over", lambda *_: False)


@MEMBERSHIP.fault("10")
def who_accuses_two_slow_ones_is_in_the_way(machine: Machine) -> None:
    """Who gets no answers of two copies in time is set aside for it, whatever these say themselves of their disks."""
    assert machine.node is not None
    pace = machine.node.membership.pace

    def worst(original: Callable[..., Any], *given: Any) -> Any:
        slow, pace._slow = pace._slow, {}
        found = original(*given)
        pace._slow = slow
        return found

    around(pace, "_worst", worst)


@MEMBERSHIP.fault("10")
def whoever_comes_next_takes_over_what_is_under_way(machine: Machine) -> None:
    """Who waits for an exchange that the coordinator leads takes it for slow, and bids higher; so does that in turn."""
    assert machine.node is not None
    membership = machine.node.membership

    def passed_over(leader: NodeId | None, _: NodeId | None, names: Mapping[NodeId, object]) -> bool:
        assert membership.core.topology is not None
        return leader in membership.pace.to_set_aside(membership.core.topology, names)

    replace(membership, "_is_passed_over", passed_over)


@MEMBERSHIP.fault("10")
def whoever_never_answers_passes_for_slow(machine: Machine) -> None:
    """Where one other copy would be left, one that beats and never answers is waited for as if it were slow."""
    assert machine.node is not None
    replace(machine.node.membership.pace, "is_mute", lambda *_: False)


@MEMBERSHIP.fault("10")
def whoever_is_heard_is_in_the_map(machine: Machine) -> None:
    """A coordinator takes everyone that it hears into the map, whether or not they hear each other."""
    assert machine.node is not None
    replace(machine.node.detector, "connected", list)


@MEMBERSHIP.fault("10")
def the_younger_is_left_out_whatever_it_has(machine: Machine) -> None:
    """Of two who do not hear each other the older stays, although partitions are LOST with the younger."""
    assert machine.node is not None
    replace(machine.node.detector, "_copies", dict)


@MEMBERSHIP.fault("10")
def late_by_the_clock(machine: Machine) -> None:
    """A coordinator whose own disk keeps it from listening takes those whom it has not listened to for silent."""
    assert machine.node is not None
    core = machine.node.core

    def turn(original: Callable[..., Any], now: int, events: Any) -> Any:
        core.attentive += max(0, now - core.now)
        return original(now, events)

    around(machine.node, "turn", turn)


@MEMBERSHIP.fault("10")
def late_by_the_time_of_a_busy_node(machine: Machine) -> None:
    """A node that always has something to do counts all of that as waiting, and takes who has as much for slow."""
    assert machine.node is not None
    replace(machine.node.core, "note_busy", lambda _now, _rested: None)


@MEMBERSHIP.fault("1, 10")
def emptied_copy_says_nothing(machine: Machine) -> None:
    """A copy that had to be emptied stays in sync by the map, because its node does not say what became of it."""
    assert machine.node is not None
    replace(machine.node.membership, "_emptied_here", lambda: False)


@MEMBERSHIP.fault("1")
def an_old_order_resets_what_is_lost_again(machine: Machine) -> None:
    """An order to begin anew with lost partitions is carried out whenever they are LOST, not only for that one time."""
    assert machine.node is not None
    orders, numbers = machine.node.membership.orders, list[int]()

    def standing(original: Callable[[Topology, list[str]], Any], topology: Topology, here: list[str]) -> Any:
        if orders._reset is not None:
            numbers[:] = [number for number, _ in orders._reset[0].partitions]
        if numbers:
            reset = ResetLost([(number, topology.placements[number].version) for number in numbers])
            orders._reset = reset, orders.core.now
        return original(topology, here)

    around(orders, "standing", standing)


@MEMBERSHIP.fault("1")
def begun_again_with_any_copy(machine: Machine) -> None:
    """A partition whose in-sync copies are all lost begins again with a copy that is not the best of those left."""

    def another(
        partition: int, reports: Mapping[str, Mapping[NodeId, CopyReport]], nodes: Sequence[NodeId], instead: NodeId
    ) -> tuple[NodeId, Taken]:
        best, _ = best_copy(partition, reports, nodes, instead)
        rest = [n for n in nodes if n != best and any(n in by_node for by_node in reports.values())]
        return best_copy(partition, reports, rest or nodes, instead)

    during(machine, machine.node, "turn", plan, "best_copy", another)


@MEMBERSHIP.fault("2")
def a_rescue_counts_on_by_one(machine: Machine) -> None:
    """Whoever goes on by force takes the next version and the next epochs, which those who are gone may have had."""
    during(machine, machine.node, "turn", rescue, "JUMP", 1)


@MEMBERSHIP.fault("1, 10", rates={"namesake": 4.0, "kill": 2.0, "power": 1.0, "split": 1.0, "weather": 1.0})
def a_name_is_heard_and_not_a_life(machine: Machine) -> None:
    """Whatever comes under the name of a member is that member's, whichever process on whichever disk says it."""
    assert machine.node is not None
    names = machine.node.names

    def hear(_: Any, sender: NodeId, _allocation: str, _incarnation: int, _message: object) -> bool:
        names.detector.heard(sender)
        return True

    around(names, "hear", hear)


# Who goes.


@MEMBERSHIP.fault("1")
def one_goes_while_another_promotes(machine: Machine) -> None:
    """A node is let go although those who lead what was its do not serve it yet, so that they need not its word for it."""
    assert machine.node is not None
    replace(machine.node.membership.reasons, "all_serve", lambda _: True)


@MEMBERSHIP.fault("4")
def a_copy_is_taken_out_within_a_fence(machine: Machine) -> None:
    """A step takes a copy out that is wrong, and everybody takes it for one that changes nothing that was said before."""
    during(machine, machine.node, "turn", steps, "_takes_out", lambda *_: False)


@MEMBERSHIP.fault(
    "4",
    harmless="""A primary that has left a wrong copy comes back when that is whole, which begins a fence twice. It may come
    back at once only where nobody hears of the copy any more; then what is said of its partition has another epoch.""",
)
def a_primary_moves_to_a_worse_place_within_a_fence(machine: Machine) -> None:
    """What a wrong copy leads moves to another, and everybody takes that for a primary which moves to where it belongs."""
    original = steps._begins_a_fence

    def begins(old: Topology, step: steps.Step) -> bool:
        return original(old, msgspec.structs.replace(step, worse=False))

    during(machine, machine.node, "turn", steps, "_begins_a_fence", begins)


@MEMBERSHIP.fault("4, 9")
def an_order_is_over_when_its_copy_leads_no_more(machine: Machine) -> None:
    """A copy that is to be taken anew takes the map by which another leads for the one by which nobody relies on it."""
    assert machine.node is not None
    anew = machine.node.anew

    def switch(original: Callable[..., None], topology: Topology, still: bool) -> None:
        anew.told()
        original(topology, still)

    around(machine.node.exchange, "_switch", switch)


@MEMBERSHIP.fault("10")
def who_has_gone_is_waited_for(machine: Machine) -> None:
    """What waits for the answer of a node that a step lets go goes on to, although that node is not there any more."""
    assert machine.node is not None
    during(machine, machine.node.exchange, "_switch", machines, "all_stay", lambda *_: True)


@MEMBERSHIP.fault("10")
def heartbeats_stand_behind_what_is_large(machine: Machine) -> None:
    """Nodes have one connection to each other for all that they say, so that a large write over a slow link is silence."""
    replace(machine.world.network, "way_of", lambda *_: PEER)


@MEMBERSHIP.fault("10")
def what_is_large_is_late_as_soon_as_what_is_small(machine: Machine) -> None:
    """A copy that gets a large write over a slow link is set aside for it, and is sent the write again while it does."""
    during(machine, machine.node, "turn", batches, "travels_ns", lambda *_: 0)
