"""The majority is lost for good: most voters' disks are gone at once, and an operator goes on from those that are left.
Those who lost their disks come back with empty ones, and are to hold data again.

What may be lost then is known, and is computed here: a partition of which no node that the operator named had a copy in
sync, by the newest map that was ever committed, or by its successor that they accepted, which may have been. Nothing else
may be given up, and nothing else that was acknowledged may be missing in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rebalance import table as topologies
from rebalance.table import Intervention, Topology
from tests.sim.network import MS
from tests.sim.oracles.ledger import Ledger
from tests.sim.oracles.ruined import Ruined
from tests.sim.violation import About, Violation

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

ORDER_AGAIN_NS = 6_000 * MS
"""An order is answered within less."""


class LostMajority:
    """One of them in a run. `buried` are machines that nobody starts before the cluster was recovered."""

    def __init__(self, world: World, ruined: Ruined, wipe: Callable[[Machine], None]) -> None:
        self.buried: dict[str, None] = {}
        self.ledger: Ledger | None = None  # whoever judges what was lost
        self._world = world
        self._ruined = ruined
        self._wipe = wipe
        self._before: Topology | None = None  # the newest map when the disks went
        self._asked: dict[str, None] = {}  # whoever was told to go on, and may have done so
        self._lawful: dict[frozenset[str], dict[int, None]] = {}  # whom an order named -> what it may lose something of

    def strike(self, draw: Random) -> bool:
        """The disks of a majority are gone; whether it happened."""
        world, newest = self._world, self._world.newest()
        if newest is None or self._before is not None:
            return False
        voters = [world.machines[n] for n in newest.voters]
        lost = draw.sample(voters, len(voters) // 2 + 1)
        left = [m for m in world.running if m not in lost and m.node is not None and m.node.core.topology is not None]
        if not any(self._ruined.forgive(m, newest) for m in left):
            return False
        self._before = newest
        for machine in lost:
            if machine.up:
                machine.stop("its disk broke, as those of most others")
            self._wipe(machine)
            self.buried[machine.name] = None
        world.after(draw.choice([200 * MS, 3_000 * MS, 9_000 * MS]), self._order)
        return True

    def _order(self) -> None:
        """Name all that run, and go on from their disks; again, until it is done.

        Not without whom he asked before: if it went on, and is away, there would be two clusters.
        """
        world, before = self._world, self._before
        assert before is not None
        newest = world.newest()
        forced = newest.interventions[-1:] if newest is not None else ()
        if forced != before.interventions[-1:] and forced and forced[0].kind == "recover":
            self._judge(forced[0])
            self._dig_out()
            return
        running = [machine for machine in world.running if not machine.paused and machine.node is not None]
        for machine in [machine for machine in running if has_nothing(machine, newest)]:
            machine.stop("an operator stops it: it has nothing")
            self.buried[machine.name] = None
            self._asked.pop(machine.name, None)
            running.remove(machine)
        names = [machine.name for machine in running]
        if running and all(name in names for name in self._asked):
            self._asked[running[0].name] = None
            self._expect_loss(names)
            world.command(running[0], "recover", {"nodes": names, "yes": []})
        world.after(ORDER_AGAIN_NS, self._order)

    def _expect_loss(self, names: list[str]) -> None:
        """Whoever is promoted may tell of it before this looks again, so it counts from the order on."""
        assert self.ledger is not None
        newest, machines = self.ledger.newest, self._world.machines
        assert newest is not None, "there was a majority"
        whole = [name for name in names if machines[name] not in self._ruined]
        maps = [newest, *self._accepted(names, newest)]
        lawful = self._lawful[frozenset(names)] = {
            number: None
            for number in range(len(newest.placements))
            if not all(any(name in topology.placements[number].in_sync for name in whole) for topology in maps)
        }
        self.ledger.given_up |= lawful

    def _accepted(self, names: list[str], newest: Topology) -> list[Topology]:
        """The map that the named ones accepted last as the successor of the newest, if they did.

        Those who are gone may have accepted it, too, and gone on by it: then it is what counts, though no disk says so.
        """
        replicas = [machine.node.core.replica for name in names if (machine := self._world.machines[name]).node is not None]
        found = [replica.accepted for replica in replicas if replica.accepted[0] == newest.version]
        return [topologies.decode(max(found, key=lambda accepted: accepted[1])[2])] if found else []

    def _judge(self, forced: Intervention) -> None:
        """Whether no more was given up than had to be."""
        lawful = self._lawful[frozenset(forced.nodes)]
        unlawful = [taken.partition for taken in forced.taken if taken.partition not in lawful]
        if unlawful:
            raise Violation(
                "recovery",
                f"{', '.join(forced.nodes)} had copies in sync of {unlawful}, and the recovery gave them up",
                About(partitions=tuple(unlawful)),
            )

    def _dig_out(self) -> None:
        """Those who lost their disks may come, with empty ones, and are to hold data as before."""
        buried, self.buried = self.buried, {}
        for name in buried:
            machine = self._world.machines[name]
            if not machine.up and not machine.gone:
                machine.start()
        self._world.after(ORDER_AGAIN_NS, self._restore)

    def _restore(self) -> None:
        """Everybody is in the baseline who was; again, until it is so."""
        world, before, newest = self._world, self._before, self._world.newest()
        assert before is not None
        here = {member.node for member in newest.members} if newest is not None else set()
        wanted = sorted({*(newest.baseline if newest is not None else ()), *(n for n in before.baseline if n in here)})
        running = [machine for machine in world.running if not machine.paused]
        if newest is not None and set(before.baseline) <= set(newest.baseline):
            return
        if running and newest is not None and wanted != sorted(newest.baseline):
            world.command(running[0], "baseline", {"nodes": wanted, "yes": []})
        world.after(ORDER_AGAIN_NS, self._restore)


def has_nothing(machine: Machine, newest: Topology | None) -> bool:
    """Whether it came with an empty disk that no map lists: it may have been told the map, and nothing else.

    Nobody goes on with it, as another disk under the name of a member is not heard of for that member.
    """
    assert machine.node is not None
    member = newest.member(machine.name) if newest is not None else None
    is_strange = member is not None and member.allocation != machine.allocation
    return is_strange or machine.node.core.topology is None
