"""What may be watched in a world. An observer sees everything and changes nothing.

Each hook is a fact at the moment at which it became one. The world calls only hooks that an observer overrides, because
some happen ten thousand times in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.messages import Message
from engine.protocol.requests import Reply, Request
from engine.state.store import CheckpointImage
from engine.turn.effects import Effects
from engine.turn.events import Event
from wal.ids import NodeId
from wal.records import Record

if TYPE_CHECKING:
    from tests.sim.machine import Machine


class Observer:
    """Base of every oracle; a hook that is not overridden costs nothing."""

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """A node took a turn; nothing of it is paid yet."""

    def decided(self, machine: Machine, records: Sequence[Record]) -> None:
        """A node took a turn in which it decided something, and owes it to its log; nothing of it is paid yet."""

    def logged(self, machine: Machine, records: Sequence[Record], last_lsn: int) -> None:
        """A turn's records were appended, and synced if the settings say so."""

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """A message leaves a node; whatever it promises is in the log up to `needed_lsn` (0: it promises nothing)."""

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """A message reached a node, which has it before it or has taken it in."""

    def asked(self, machine: Machine, session: int, request: Request) -> None:
        """A client's request reached a node."""

    def answers(self, machine: Machine, session: int, reply: Reply, needed_lsn: int) -> None:
        """A reply leaves a node for its client."""

    def checkpoint(self, machine: Machine, image: CheckpointImage) -> None:
        """A checkpoint is about to be written to the store."""

    def crashed(self, machine: Machine, how: str) -> None:
        """A node's process is gone; its disk is what is left. `machine.node` is still what it was."""

    def started(self, machine: Machine) -> None:
        """A node was recovered from its disk and is about to take its first turn."""

    def destroyed(self, machine: Machine, how: str) -> None:
        """What a machine had promised to keep was taken from it: wiped, set back, damaged."""


HOOKS = (
    "turned",
    "decided",
    "logged",
    "departs",
    "delivered",
    "asked",
    "answers",
    "checkpoint",
    "crashed",
    "started",
    "destroyed",
)


class Watchers:
    """The observers of a world, by hook."""

    def __init__(self) -> None:
        self.turned: list[Observer] = []
        self.decided: list[Observer] = []
        self.logged: list[Observer] = []
        self.departs: list[Observer] = []
        self.delivered: list[Observer] = []
        self.asked: list[Observer] = []
        self.answers: list[Observer] = []
        self.checkpoint: list[Observer] = []
        self.crashed: list[Observer] = []
        self.started: list[Observer] = []
        self.destroyed: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """From now on `observer` sees what it has a hook for."""
        for hook in HOOKS:
            if getattr(type(observer), hook) is not getattr(Observer, hook):
                getattr(self, hook).append(observer)
