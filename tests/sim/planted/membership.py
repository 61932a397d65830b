"""Faults in who is in the map and who is waited for: the slow, the mute, the half connected, and orders of a person."""

from __future__ import annotations

from rebalance import aside
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, during, replace

MEMBERSHIP = Faults()


@MEMBERSHIP.fault("1, 10")
def no_slow_copy_is_waited_for(machine: Machine) -> None:
    """A slow copy leaves the in-sync set although it answers, and although one other is left of three."""
    during(machine, machine.node, "turn", aside, "ENOUGH", 1)


@MEMBERSHIP.fault("10")
def whoever_never_answers_passes_for_slow(machine: Machine) -> None:
    """Where one other copy would be left, one that beats and never answers is waited for as if it were slow."""
    assert machine.node is not None
    replace(machine.node.membership.pace, "is_mute", lambda *_: False)
