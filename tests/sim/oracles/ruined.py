"""Machines that were made to break their promises: wiped, set back, damaged. Until a map knows their next life, what the
map says of them is about a disk that is gone."""

from __future__ import annotations

from rebalance.table import Topology
from tests.sim.machine import Machine
from wal.ids import NodeId


class Ruined:
    """Which machines these are."""

    def __init__(self) -> None:
        self._lives: dict[NodeId, int] = {}  # in which of its lives it was

    def add(self, machine: Machine) -> None:
        """It lost what it had promised to keep."""
        self._lives[machine.name] = machine.boot

    def __contains__(self, machine: Machine) -> bool:
        return machine.name in self._lives

    def forgive(self, machine: Machine, newest: Topology) -> bool:
        """Whether the map speaks of what the machine has now; from then on it is held to it."""
        life = self._lives.get(machine.name)
        if life is None:
            return True
        member = newest.member(machine.name)
        if machine.boot == life or machine.node is None or member is None:
            return False
        if member.incarnation != machine.node.core.incarnation:
            return False
        del self._lives[machine.name]
        return True
