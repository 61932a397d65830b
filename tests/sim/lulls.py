"""Lulls: one thing stays wrong for longer than the cluster may take to serve without it, and nothing else happens.

A storm alone never shows whether the cluster can live with a fault that stays, because the next one always comes first.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from tests.sim.network import MS, Pair
from tests.sim.oracles.life import bound_ns

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

TROUBLES = ("nothing", "down", "away", "stopped", "slow-disk", "slow-node", "deaf", "dumb", "pair", "one-of-pair", "ring")
"""
| trouble | |
| --- | --- |
| nothing | all is well |
| down | a minority has no power, all at once |
| away | a node is cut off |
| stopped | a process is stopped (SIGSTOP) |
| slow-disk | every sync of one disk takes a second or more |
| slow-node | a processor takes a hundred times as long |
| deaf, dumb | a node hears nobody, or nobody hears it |
| pair, one-of-pair | two nodes do not hear each other, or one of them does not hear the other |
| ring | each node hears only its two neighbours; of three nodes, the first and the last do not hear each other |
"""
REST_NS = 6_000 * MS
"""What was wrong before has ended by then, by itself."""


class Lull:
    """One of them, over the machines that it befalls."""

    def __init__(self, world: World, trouble: str, machine: Machine, draw: Random) -> None:
        assert trouble in TROUBLES
        self.lasts_ns = REST_NS + bound_ns(world.settings)
        self.down: list[Machine] = []
        self._world = world
        self._trouble = trouble
        self._machine = machine
        self._slowness = machine.speed.slowness
        machines = list(world.machines.values())
        others = [m for m in machines if m is not machine]
        match trouble:
            case "down":
                count = draw.randrange(1, max(2, (len(machines) + 1) // 2))
                self.down = [machine, *draw.sample(others, count - 1)]
                for victim in self.down:
                    if victim.up:
                        victim.stop("power cut")
            case "stopped":
                machine.pause()
            case "slow-node":
                machine.speed.slowness = 100 * self._slowness
            case "slow-disk":
                machine.speed.slow = max(1, 1_000 * MS // machine.speed.sync)
                machine.speed.slow_until = world.now + self.lasts_ns
            case _:
                pairs = _cut(trouble, machine, others, draw)
                if pairs:
                    world.network.cut("lull", pairs)

    def end(self) -> None:
        """What is cut is healed, and who was stopped goes on; whoever is down is for the caller to start."""
        self._world.network.heal("lull")
        self._machine.speed.slow_until = 0
        self._machine.speed.slowness = self._slowness
        self._machine.resume()

    def __str__(self) -> str:
        return ", ".join(m.name for m in self.down) or self._machine.name


def _cut(trouble: str, machine: Machine, others: list[Machine], draw: Random) -> list[Pair]:
    """In which directions nothing passes."""
    name, names = machine.name, [other.name for other in others]
    into, out = [(other, name) for other in names], [(name, other) for other in names]
    other = draw.choice(names)
    match trouble:
        case "away":
            return into + out
        case "deaf":
            return into
        case "dumb":
            return out
        case "pair":
            return [(name, other), (other, name)]
        case "one-of-pair":
            return [(name, other)]
        case "ring":
            order = [name, *names]
            near = {frozenset(pair) for pair in pairwise(order if len(order) == 3 else [*order, name])}
            return [(a, b) for a in order for b in order if a != b and frozenset((a, b)) not in near]
        case _:
            return []
