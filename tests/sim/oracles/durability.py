"""Invariant 6: nothing is sent, answered or applied before the log that promises it is durable."""

from __future__ import annotations

from engine.messages import Heartbeat, Message
from engine.protocol.requests import Reply
from engine.turn.settings import Durability as Mode
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from wal.ids import NodeId


class Durability(Oracle):
    """Every message and every answer waits for the disk.

    A node that is told to promise less than FSYNC is judged by what its clients find, not by this.
    """

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """A message leaves."""
        self._check(machine, f"{type(message).__name__} to {', '.join(targets)}", needed_lsn)
        if isinstance(message, Heartbeat):
            self._check(machine, "a heartbeat with its durable lsn", message.durable_lsn)

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A reply leaves."""
        self._check(machine, f"{type(reply).__name__} #{reply.id}", needed_lsn)

    def _check(self, machine: Machine, what: str, needed_lsn: int) -> None:
        log = machine.log
        if log is None or machine.settings.durability is not Mode.FSYNC:
            return
        if needed_lsn > log.durable_lsn:
            raise Violation(
                "durability",
                f"{machine.name} says {what}, which lsn {needed_lsn} promises; durable is {log.durable_lsn}",
                About(nodes=(machine.name,)),
            )
