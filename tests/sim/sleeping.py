"""Processes that sleep for much longer than anybody waits, with their connections open: a machine that is moved or saved
while it runs, a laptop that is shut, a process that an operator has stopped. Everybody else goes on, or all of them sleep.

Whoever wakes finds all that came meanwhile at once, or first of all how late it is, and then that, a part at a time; of a
machine that was saved the monotonic clock stood still, too. A client sleeps like a node.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.sim.machine import ALL_AT_ONCE
from tests.sim.network import MS

if TYPE_CHECKING:
    from tests.sim.machine import Machine, Portions
    from tests.sim.world import World

LASTS_NS = tuple(seconds * 1_000 * MS for seconds in (10, 20, 45, 90))
PORTIONS: tuple[Portions, ...] = (ALL_AT_ONCE, (0, None), (0, 20), (1, 1), (50, 200))
LOOK_NS = MS
LOOKS_MAX = 2_000
WHO = ("one", "one", "leader", "client", "everybody", "in a checkpoint", "in a sync")
"""
| who sleeps | |
| --- | --- |
| one | any node |
| leader | the node that its members take for their coordinator |
| client | any client, with the locks that it has |
| everybody | all nodes and all clients |
| in a checkpoint, in a sync | any node, as soon as it has begun one, or after two seconds |
"""


class Sleep:
    """Nobody sleeps twice in one storm: it is long. `lasts` as long as somebody does, or is about to."""

    def __init__(self, world: World, draw: Random) -> None:
        self.lasts = False
        self._world = world
        self._draw = draw
        self._came = False

    def come(self, machine: Machine) -> bool:
        """Let somebody sleep."""
        if self._came or not machine.up or machine.paused:
            return False
        who = self._draw.choice(WHO)
        match who:
            case "client":
                if not self._client():
                    return False
            case "everybody":
                self._everybody()
            case "in a checkpoint":
                self._when(machine, lambda: "checkpoint" in machine.works_on, LOOKS_MAX)
            case "in a sync":
                self._when(machine, lambda: machine.busy, LOOKS_MAX)
            case "leader":
                self._nodes([self._leader() or machine], self._lasting())
            case _:
                self._nodes([machine], self._lasting())
        self._world.say(f"a sleep: {who}")
        self._came = self.lasts = True
        return True

    def _lasting(self) -> int:
        return self._draw.choice(LASTS_NS)

    def _leader(self) -> Machine | None:
        """Who leads, in the opinion of most."""
        opinions = [m.node.membership.detector.coordinator() for m in self._world.running if m.node is not None]
        named = sorted((name for name in opinions if name is not None), key=opinions.count)
        machine = self._world.machines.get(named[-1]) if named else None
        return machine if machine is not None and machine.up and not machine.paused else None

    def _when(self, machine: Machine, begun: Callable[[], bool], looks: int) -> None:
        if looks and machine.up and not machine.paused and not begun():
            self._world.after(LOOK_NS, self._when, machine, begun, looks - 1)
        else:
            self._nodes([machine], self._lasting())

    def _nodes(self, machines: list[Machine], lasts: int) -> None:
        still = self._draw.random() < 0.3
        for machine in machines:
            if machine.up and not machine.paused:
                self._world.say(f"{machine.name} sleeps for {lasts // MS} ms{', and its clock' if still else ''}")
                machine.pause(clock_too=still, portions=self._draw.choice(PORTIONS))
        self._world.after(lasts, self._wake, [(machine, machine.boot) for machine in machines])

    def _everybody(self) -> None:
        lasts = self._lasting()
        for client in self._world.clients.values():
            if client.alive and not client.sheltered:
                client.loop.stand_still(self._world.now + lasts)
        self._nodes(self._world.running, lasts)

    def _client(self) -> bool:
        alive = [c for c in self._world.clients.values() if c.alive and not c.sheltered]
        if alive:
            lasts = self._lasting()
            self._draw.choice(alive).loop.stand_still(self._world.now + lasts)
            self._world.after(lasts, self._wake, [])
        return bool(alive)

    def _wake(self, slept: list[tuple[Machine, int]]) -> None:
        self.lasts = False
        for machine, boot in slept:
            if machine.boot == boot:
                machine.resume()
