"""Faults in how what a node has begun is given up before the map that takes it from this node takes effect."""

from __future__ import annotations

from engine.data.cuts import Cuts
from engine.node.node import Node
from tests.sim.machine import Machine
from tests.sim.planted.fault import Faults, replace

PARTING = Faults()


def _node(machine: Machine) -> Node:
    assert machine.node is not None
    return machine.node


def _nothing(*_: object) -> None:
    pass


@PARTING.fault("1")
def a_node_that_parts_takes_requests(machine: Machine) -> None:
    """Clients are served while what was begun is given up for the next map: whoever asks again is told that it is done."""
    replace(_node(machine).core, "part", _nothing)


@PARTING.fault("1")
def a_node_that_parts_answers_reads(machine: Machine) -> None:
    """A read that the copies have confirmed is answered with a write that was given up for the next map."""
    parting = _node(machine).parting

    class Reads:
        """Nobody asks again."""

        switch = staticmethod(_nothing)

    vars(parting)["_reads"] = Reads()


@PARTING.fault("11")
def a_node_that_parts_answers_at_cuts(machine: Machine) -> None:
    """A write that is given up for the next map is not kept from those who read at a cut of before."""

    class Lost(Cuts):
        """None is."""

        def lose(self, number: int) -> None:
            """It is read on."""

    parting = _node(machine).parting
    vars(parting)["_cuts"] = Lost.__new__(Lost)
