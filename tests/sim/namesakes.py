"""A second process of a name: somebody starts a node on another directory under the name of one that is there.

It is a real `Node` that begins with nothing, and it speaks at the worst of times: its connections stand already, so that
no door turns it away, and whatever is said to the one of its name is said to it, too. So it learns the map, beats, hears
of ballots and answers them. All that keeps the cluster from it is that what is said counts by life, and not by name.

It does not ask to be let in: a name whose holder is suspected is free, and then it is a disk that was replaced, which
other faults are. Two things are judged here, and all oracles judge the rest: it never serves; and it does not make its
name look alive when the process that the map lists is not. A node comes to suspect whom it has listened for in vain, and
it listens for those that its map lists: from that map on, where it learns of one that was made long before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.messages import Join, Message
from engine.node.node import Node
from engine.protocol.wire import decode_messages, frame
from engine.state.replica import Replica
from engine.state.store_memory import MemoryStore
from engine.turn.effects import Effects
from engine.turn.events import Event, Received, Stop
from rebalance.lives import INCARNATION_BITS
from rebalance.ports import MS
from tests.sim.costs import CountingStore
from tests.sim.observer import Observer
from tests.sim.trace import FRAME_HEADER_BYTES
from tests.sim.violation import About, Violation
from wal.ids import NodeId

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

LATE_NS = 300_000
"""How long what it says is on its way."""
SILENT_SUSPICIONS = 3
"""After so many times `suspicion_ms` for which it listened everybody has come to suspect a process that is gone, whoever
speaks for it. Who does not get to take what came for seconds, because his disk stalls, hears what is that old."""


class Namesake(Observer):
    """One such process, from its start until somebody ends it. `over`: it was ended."""

    def __init__(self, world: World, machine: Machine, *, draw: int, number: int) -> None:
        self.world = world
        self.machine = machine
        self.over = False
        self._alone = False  # the process of its name ended that the map lists
        self._others: dict[NodeId, tuple[int, int]] = {}  # who was there then, and what had befallen it
        self._heard: dict[NodeId, int] = {}  # by its own time: since when each has heard nothing of the other of the name
        self._missing: set[NodeId] = set()  # whose map did not list that one when they were looked at last
        self._inbox: list[Event] = []
        self._wake = 0
        self.node = Node(
            machine.settings,
            Replica(CountingStore(MemoryStore())),
            node=machine.name,
            allocation=f"{machine.name}-namesake{number}",
            address=f"{machine.name}-namesake:7400",
            durable_lsn=0,
            affinity=machine.affinity,
            draw=draw % (1 << INCARNATION_BITS),
        )
        world.say(f"another process is started under the name {machine.name}")
        world.watch([self])
        world.after(0, self._turn)

    def departs(self, machine: Machine, targets: tuple[NodeId, ...], message: Message, needed_lsn: int) -> None:
        """What is said to the one of its name is said to it, too."""
        if self.over or machine is self.machine or self.machine.name not in targets or machine.node is None:
            return
        life = machine.allocation, machine.node.core.incarnation
        (copy,) = decode_messages(frame([message])[FRAME_HEADER_BYTES:])
        self._inbox.append(Received(machine.name, *life, copy))
        self.world.after(LATE_NS, self._turn)

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """It may have learned of a map."""
        if self.over or not self._alone or machine.name not in self._others:
            return
        if not self._lists(machine):
            self._missing.add(machine.name)
        elif machine.name in self._missing:
            self._missing.discard(machine.name)
            self._heard[machine.name] = _listened(machine)

    def end(self) -> None:
        """Somebody ends it."""
        if not self.over:
            self.over = True
            self.world.say(f"the other process of the name {self.machine.name} ends")

    def _turn(self) -> None:
        world, node = self.world, self.node
        if self.over or (not self._inbox and world.now < self._wake):
            return
        self._judge()
        events, self._inbox = self._inbox, []
        effects = node.turn(world.now, events)
        node.core.durable_lsn += len(effects.log)  # its disk is a fast one
        for sends in (effects.early, effects.send):
            for targets, message in sends:
                if not isinstance(message, Join):
                    for target in targets:
                        world.after(LATE_NS, self._arrive, target, frame([message]))
        if any(isinstance(task, Stop) for task in effects.tasks):
            self.end()
        if effects.wake_at is not None:
            self._wake = max(effects.wake_at, world.now + MS)
            world.at(self._wake, self._turn)

    def _arrive(self, target: NodeId, data: bytes) -> None:
        machine, name = self.world.machines.get(target), self.machine.name
        if machine is None or not machine.up or target == name or not self.world.network.passes(name, target):
            return
        self.world.trace.add(self.world.now, "deliver", f"{name}-namesake", target, data)
        core = self.node.core
        for message in decode_messages(data[FRAME_HEADER_BYTES:]):
            machine.receive(Received(name, core.allocation, core.incarnation, message))

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """What the process that the map lists said may arrive long after its end."""
        if src == self.machine.name:
            self._heard[dst] = _listened(self.world.machines[dst])

    def _judge(self) -> None:
        """What a second process of a name must not come to."""
        world, machine = self.world, self.machine
        about = About(nodes=(machine.name,))
        if self.node.core.serving:
            raise Violation("namesake", f"a second process of the name {machine.name} serves", about)
        if machine.up:
            self._alone = False
            return
        if not self._alone:
            self._alone = True
            self._others = {other.name: (other.boot, other.befallen) for other in world.running}
            self._heard = {other.name: _listened(other) for other in world.running}
            self._missing = {other.name for other in world.running if not self._lists(other)}
        for other in world.running:
            heard = self._heard.get(other.name, 0)
            late = _listened(other) - heard > SILENT_SUSPICIONS * world.settings.suspicion_ms * MS
            if (
                late
                and other.well
                and self._others.get(other.name) == (other.boot, other.befallen)
                and self._believed(other)
            ):
                said = f"{other.name} takes the other process of the name {machine.name} for the one that the map lists"
                raise Violation("namesake", said, about)

    def _believed(self, other: Machine) -> bool:
        """Whether a node does not suspect the process that is gone, which its map lists."""
        assert other.node is not None
        return self._lists(other) and not other.node.detector.suspected(self.machine.name)

    def _lists(self, other: Machine) -> bool:
        """Whether the map by which a node goes lists the process that is gone."""
        assert other.node is not None
        topology = other.node.core.topology
        member = topology.member(self.machine.name) if topology is not None else None
        return member is not None and member.allocation == self.machine.allocation


def _listened(machine: Machine) -> int:
    """For how long a node has listened, in ns: its own time, which stands while it is away or busy."""
    return machine.node.core.attentive if machine.node is not None else 0
