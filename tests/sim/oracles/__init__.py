"""What must hold at every moment and in the end, whatever happened: one oracle for each promise of the engine.

| invariant | oracle |
| --- | --- |
| 1 acknowledged is on every in-sync disk, and stays | `Acknowledged` |
| 1 and in as many copies as its namespace asks for | `Places`, `Copies` |
| 2 counters, maps and epochs are given away once | `Ledger`, `Watermarks`, `OneMap`, `OnePrimary` |
| 3 each counter has its record in the log | `LogRecords` |
| 4 equal counters, equal contents | `EqualCounters` |
| 5 all or nothing, all agree, and nobody is told otherwise | `Atomicity`, `Answers` |
| 6 the log comes first | `Durability` |
| 7 the store follows, and replay is one | `Replay` |
| 8 what is deleted stays so | `Deletions` |
| 9 no step loses a copy | `Copies` |
| what a copy keeps does not grow with its history | `Memory` |
| no table of a node holds more than it is entitled to | `Entitled` |
| 10 rest comes; and who can serve does, all the time | `liveness.unsettled`, `Life` |

Observers see each fact as it becomes one;
`look` sees the whole cluster a few times in a simulated second, `finish` at rest.
"""

from __future__ import annotations

from tests.sim.oracles.acknowledged import Acknowledged
from tests.sim.oracles.answers import Answers
from tests.sim.oracles.atomicity import Atomicity
from tests.sim.oracles.copies import Copies
from tests.sim.oracles.counters import OneMap, OnePrimary, Watermarks, look_inside
from tests.sim.oracles.deletions import Deletions
from tests.sim.oracles.durability import Durability
from tests.sim.oracles.entitled import Entitled
from tests.sim.oracles.equality import EqualCounters, compare_copies
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.life import Life, Pulse
from tests.sim.oracles.liveness import out_of_sync, unsettled
from tests.sim.oracles.log_records import LogRecords
from tests.sim.oracles.memory import Memory
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.places import Places
from tests.sim.oracles.replay import Replay
from tests.sim.world import World

__all__ = ["Life", "Oracle", "Oracles", "Pulse", "compare_copies", "look_inside", "out_of_sync", "unsettled", "watch"]


class Oracles:
    """All of them, over one world."""

    def __init__(self) -> None:
        ledger = self.ledger = Ledger()
        self.life = Life(ledger)
        self.all: list[Oracle] = [
            ledger,  # first: the others read what it wrote
            Durability(),
            OneMap(),
            OnePrimary(),
            Watermarks(),
            EqualCounters(),
            Atomicity(ledger),
            Acknowledged(ledger),
            Answers(ledger),
            Places(),
            LogRecords(),
            Replay(),
            Deletions(ledger),
            Copies(ledger),
            Memory(ledger),
            Entitled(),
            self.life,
        ]

    def look(self, world: World) -> None:
        """The whole cluster, now."""
        for oracle in self.all:
            oracle.look(world)

    def finish(self, world: World) -> None:
        """The whole cluster, at rest."""
        for oracle in self.all:
            oracle.finish(world)


def watch(world: World) -> Oracles:
    """Let every oracle see the world; they are to be asked to `look` now and then, and to `finish` at rest."""
    oracles = Oracles()
    world.watch(oracles.all)
    return oracles
