"""Faults of what is asynchronous: a copy that nobody waits for, and that must not pass for one in sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rebalance.messages import CopyProof, Stands
from rebalance.partition import LocalPartition
from rebalance.table import Placement
from tests.sim.machine import Machine
from tests.sim.planted.elections import _with_survivors
from tests.sim.planted.fault import Faults, around, replace
from wal.ids import Fragment, NodeId

ASYNCHRONOUS = Faults()


@ASYNCHRONOUS.fault("1")
def an_asynchronous_copy_is_promoted(machine: Machine) -> None:
    """Where nobody else is left, the map takes an asynchronous copy for one that has everything."""

    def survivors(right: Any, placement: Placement, trusted: Any, *args: Any, **more: Any) -> list[NodeId]:
        found: list[NodeId] = right(placement, trusted, *args, **more)
        return found or [node for node in placement.asynchronous if node in trusted]

    _with_survivors(machine, survivors)


@ASYNCHRONOUS.fault("10")
def an_asynchronous_copy_is_waited_for(machine: Machine) -> None:
    """A primary waits for asynchronous copies before a write counts."""
    assert machine.node is not None
    node = machine.node

    def wait_for(local: LocalPartition) -> None:
        if local.mine and (behind := local.placement.asynchronous):
            local.needed += tuple(n for n in behind if n not in local.needed)
            local.moving = tuple(n for n in local.moving if n not in behind)
            local.receivers = (tuple(sorted(local.needed)), tuple(sorted(local.moving)))

    def group(original: Callable[[LocalPartition], None], local: LocalPartition) -> None:
        original(local)
        wait_for(local)

    def keep_all(original: Callable[[], None]) -> None:  # a new map has just taken effect
        for local in node.core.local:
            wait_for(local)
        original()

    around(node, "_group", group)
    around(node, "_keep_all", keep_all)


@ASYNCHRONOUS.fault("4")
def an_asynchronous_copy_is_told_nothing(machine: Machine) -> None:
    """A primary does not tell asynchronous copies where it stands, so that what they lost for good they lack for good."""
    assert machine.node is not None
    replace(machine.node.entropy.following, "tell", lambda numbers: None)


@ASYNCHRONOUS.fault("4")
def an_asynchronous_copy_believes_its_counters(machine: Machine) -> None:
    """An asynchronous copy asks for nothing as long as nothing follows what it has."""
    assert machine.node is not None
    node = machine.node

    def on_stands(original: Callable[..., None], sender: NodeId, message: Stands) -> None:
        gaps = [told for told in message.fragments if node.core.replica.fragment((told[0], told[1])).counter.ranges]
        original(sender, Stands(message.version, gaps))

    around(node.entropy.following, "on_stands", on_stands)


@ASYNCHRONOUS.fault("4")
def an_asynchronous_copy_does_not_read_its_rows(machine: Machine) -> None:
    """Only rows of copies that count are read; nobody else compares what an asynchronous one contains."""
    assert machine.node is not None
    proving, core = machine.node.entropy.proving, machine.node.core

    def readable(original: Callable[[Fragment], bool], name: Fragment) -> bool:
        return original(name) and core.local[name[1]].in_sync

    around(proving, "_readable", readable)


@ASYNCHRONOUS.fault("4")
def an_asynchronous_copy_is_shown_nothing(machine: Machine) -> None:
    """What an asynchronous copy contains is compared with nobody: with what it was filled it proves its rows."""
    assert machine.node is not None
    replace(machine.node.entropy.following, "show", lambda proofs: None)


@ASYNCHRONOUS.fault("1, 9")
def an_asynchronous_copy_gives_way_at_once(machine: Machine) -> None:
    """It takes over what a primary proves, although copies in sync prove something else, and nobody knows who is right."""
    assert machine.node is not None
    entropy = machine.node.entropy

    def shown(original: Callable[..., CopyProof], number: int, contents: Any) -> CopyProof:
        told = {name: each for name, each in entropy.undecided.items() if name[1] == number}
        entropy.undecided = {name: each for name, each in entropy.undecided.items() if name[1] != number}
        try:
            return original(number, contents)
        finally:
            entropy.undecided |= told

    around(entropy, "_shown", shown)


@ASYNCHRONOUS.fault("10")
def what_a_lost_answer_holds_is_held_for_ever(machine: Machine) -> None:
    """A supplier keeps what it sent last for who has it, and whose answer was lost."""
    assert machine.node is not None
    supply = machine.node.supply

    def tick(original: Callable[[], None]) -> None:
        for session in supply._sessions.values():
            session.heard_at = supply.core.now
        original()

    around(supply, "tick", tick)


@ASYNCHRONOUS.fault("1")
def an_asynchronous_copy_does_not_ask_how_readers_ended(machine: Machine) -> None:
    """An asynchronous copy goes by counters alone, which say nothing of a transaction that only reads."""
    assert machine.node is not None
    replace(machine.node.entropy.following, "_may_have_ended", lambda number: False)


@ASYNCHRONOUS.fault("4")
def who_is_not_waited_for_takes_whatever_comes(machine: Machine) -> None:
    """A copy that nobody waits for takes all that is written to it, whether or not its store keeps up."""
    assert machine.node is not None
    replace(machine.node.demander.missed, "_nobody_waits_for", lambda number: False)


@ASYNCHRONOUS.fault("1")
def who_is_waited_for_passes_over_what_comes(machine: Machine) -> None:
    """A copy that was said to be whole, and is waited for, takes nothing where its store does not keep up."""
    assert machine.node is not None
    replace(machine.node.demander.missed, "_nobody_waits_for", lambda number: True)


@ASYNCHRONOUS.fault("4")
def only_the_stores_of_copies_that_count_are_waited_for(machine: Machine) -> None:
    """Clients do not wait for the store of a copy that is waited for and about to count."""
    assert machine.node is not None
    admission = machine.node.admission

    def backlogged(local: LocalPartition) -> NodeId | None:
        return next((node for node in local.placement.in_sync if node in admission.core.backlogged), None)

    replace(admission, "backlogged", backlogged)
