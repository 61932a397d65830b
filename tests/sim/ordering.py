"""Who gives the orders of a storm. In a share of the seeds an operator is not answered in time and says it again, at the
same node or at another one, at once or much later, or a second one has had the same thought: whatever an order was given on
may have changed by then, and it is to be carried out once, or refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.network import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.sim.machine import Machine
    from tests.sim.world import World

HASTY_SHARE = 0.3
"""The share of the seeds in which orders are said again."""
SOON_NS, LATE_NS = (0, 5 * MS, 200 * MS), (1_000 * MS, 4_000 * MS, 12_000 * MS)
AT_ONE_NODE = ("stop", "refetch")
"""These are about the node that is asked."""


class Operators:
    """All of them. `again` counts what was said again, by command."""

    def __init__(self, world: World, *, over: Callable[[], bool]) -> None:
        self.again: Counter[str] = Counter()
        self._world = world
        self._over = over
        self._draw = world.draws.of("operators who say it again")
        self._hasty = self._draw.random() < HASTY_SHARE

    def order(self, machine: Machine, command: str, words: Mapping[str, Sequence[str]] | None = None) -> None:
        """Say something to a node, and perhaps once more, or twice."""
        said = {name: list(values) for name, values in (words or {}).items()}
        self._world.command(machine, command, said)
        if not self._hasty:
            return
        draw = self._draw
        if draw.random() < 0.5:
            self._world.after(draw.choice(SOON_NS), self._say_again, machine, command, said)
        if draw.random() < 0.3 and command != "stop":
            self._world.after(draw.choice(LATE_NS), self._say_again, machine, command, said)

    def say_so(self) -> bool:
        """Whether it is said by whom it takes out, and not by who is left."""
        return self._hasty and self._draw.random() < 0.5

    def _say_again(self, machine: Machine, command: str, words: dict[str, list[str]]) -> None:
        running = [each for each in self._world.running if not each.paused]
        who = machine if command in AT_ONE_NODE else self._draw.choice(running or [machine])
        if self._over() or who not in running:
            return
        self.again[command] += 1
        self._world.command(who, command, words)
