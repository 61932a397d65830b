"""Invariant 6: nothing is sent, answered or applied before the log that promises it is durable."""

from __future__ import annotations

from engine.messages import Credit, Heartbeat, Message
from engine.protocol.requests import Reply
from engine.turn.settings import Durability as Mode
from tests.sim.machine import Machine
from tests.sim.oracles.oracle import Oracle
from tests.sim.violation import About, Violation
from wal.ids import NodeId

FSYNC = Mode.FSYNC


class Durability(Oracle):
    """Every message and every answer waits for the disk.

    A node that is told to promise less than FSYNC is judged by what its clients find, not by this.
    """

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """A message leaves. Credit asks for more of a transfer, and promises nothing of what came."""
        if isinstance(message, Credit):
            return
        if isinstance(message, Heartbeat) and message.durable_lsn > needed_lsn:
            needed_lsn = message.durable_lsn
        if _is_ahead(machine, needed_lsn):
            raise _violation(machine, f"{type(message).__name__} to {', '.join(targets)}", needed_lsn)

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A reply leaves."""
        if _is_ahead(machine, needed_lsn):
            raise _violation(machine, f"{type(reply).__name__} #{reply.id}", needed_lsn)


def _is_ahead(machine: Machine, needed_lsn: int) -> bool:
    log = machine.log
    return log is not None and needed_lsn > log.durable_lsn and machine.settings.durability is FSYNC


def _violation(machine: Machine, what: str, needed_lsn: int) -> Violation:
    assert machine.log is not None
    return Violation(
        "durability",
        f"{machine.name} says {what}, which lsn {needed_lsn} promises; durable is {machine.log.durable_lsn}",
        About(nodes=(machine.name,)),
    )
