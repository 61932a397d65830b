"""Life: a cluster that can serve does, within a bounded time, also while other things are wrong.

Judged is what is up and connected, and not whether all is well: as long as some nodes hear each other in both
directions, work at their usual speed, are a majority of the voters, and have between them an in-sync copy of every
partition, a client that reaches all nodes gets its writes done, in every partition. What the nodes outside of such a
circle do, dead, deaf, slow or half connected, is no excuse; but a slow copy is waited for where only one other would be
left of three (`rebalance.aside`).

`Pulse` is that client: it writes one key of every partition, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from engine import errors
from engine.client.calls import PutCall
from engine.turn.settings import Settings
from rebalance.aside import waited_for
from rebalance.table import Topology
from tests.conversations.names import key_in
from tests.sim.clients import Client
from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.oracles.ledger import Ledger, version_before
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.ruined import Ruined
from tests.sim.violation import About, Violation
from tests.sim.world import SECOND, World
from wal.ids import NO_VERSION, NodeId

PULSE = "pulse"
PROBED_MAX = 16
"""So many partitions are written to, spread over all."""
BEAT_NS = 1_000 * MS
ATTEMPT_NS = 2 * SECOND
ROUGH_LOSS = 0.05
"""In weather that loses more than this nothing is judged."""
TROUBLES_TOLD = 6

Circle = tuple[tuple[NodeId, int, int], ...]
"""Nodes that could serve together: name, life, and how often something befell that life."""


def bound_ns(settings: Settings) -> int:
    """How long a cluster may take to serve again: a few failures in a row, each with its exchange and its drain."""
    step = settings.suspicion_ms + settings.connection_lost_ms + settings.exchange_delay_ms + settings.exchange_retry_ms
    return 6 * SECOND + (4 * step + 2 * settings.exchange_drain_ms) * MS


class Pulse:
    """A client that no fault befalls, and when the cluster last took a write of it in every partition."""

    def __init__(self, world: World) -> None:
        self.served_at = world.now
        self.stopping = False
        self._partitions = world.settings.partitions
        probed = min(self._partitions, PROBED_MAX)
        self._keys = [key_in(at * self._partitions // probed, self._partitions, PULSE) for at in range(probed)]
        self._client = world.add_client(PULSE)
        self._client.sheltered = True
        self._client.spawn(self._beat(self._client), PULSE)

    async def _beat(self, client: Client) -> None:
        beats = 0
        while not self.stopping:
            beats += 1
            call = PutCall(client.new_tx(), PULSE, self._keys, [b"%d" % beats] * len(self._keys))
            try:
                await client.call(call, timeout_ns=ATTEMPT_NS)
                self.served_at = client.world.now
            except errors.Error:
                pass  # how long this goes on is for the oracle to judge
            await client.pause(BEAT_NS)


class Life(Oracle):
    """`pulse` is None until somebody begins it: worlds without one are not judged."""

    def __init__(self, ledger: Ledger) -> None:
        self.pulse: Pulse | None = None
        self._ledger = ledger
        self._ruined = Ruined()
        self._since: dict[Circle, int] = {}

    def destroyed(self, machine: Machine, how: str) -> None:
        """Until a map knows its next life it has no data, and no vote."""
        self._ruined.add(machine)

    def look(self, world: World) -> None:
        """Whether some circle could have served for too long without doing so."""
        newest = self._ledger.newest
        if self.pulse is None or newest is None or world.network.weather.loss > ROUGH_LOSS:
            self._since = {}
            return
        self._since = {circle: self._since.get(circle, world.now) for circle in self._circles(world, newest)}
        allowed = bound_ns(world.settings)
        for circle, since in self._since.items():
            lasted = world.now - max(since, self.pulse.served_at)
            if lasted > allowed:
                names = ", ".join(name for name, _, _ in circle)
                raise Violation(
                    "life",
                    f"{names} are up, hear each other, are a majority and have all data at {newest.version}; no client is "
                    f"served in every partition for {lasted / SECOND:.1f} s: {self._trouble(world, newest)}",
                    About(nodes=tuple(world.machines)),
                )

    def _circles(self, world: World, newest: Topology) -> list[Circle]:
        well = [machine for machine in world.running if machine.well]
        before = self._ledger.maps.get(version_before(self._ledger.maps, newest.version))
        votes = frozenset(m.name for m in well if self._ruined.forgive(m, newest))
        slow = {m.name: 1 for m in world.running if not m.well and not m.paused}
        had = dict.fromkeys(zip((tuple(p.in_sync) for p in newest.placements), newest.wanted, strict=True))
        found: list[Circle] = []
        for size in range(1, len(well) + 1):
            for some in combinations(well, size):
                names = frozenset(machine.name for machine in some)
                if not _majority(names & votes, newest.voters) or not _connected(world, some):
                    continue
                known = any(m.node is not None and m.node.core.version == newest.version for m in some)
                if not known and before is not None and not _majority(names & votes, before.voters):
                    continue
                if all(_served(copies, names & votes, slow, wanted) for copies, wanted in had):
                    found.append(tuple((m.name, m.boot, m.befallen) for m in some))
        return found

    def _trouble(self, world: World, newest: Topology) -> str:
        """What the nodes say of themselves."""
        said: list[str] = []
        for number, placement in enumerate(newest.placements):
            machine = world.machines.get(placement.primary or "")
            if placement.lost or machine is None or machine.node is None or not machine.up:
                said.append(f"p{number}: lost={placement.lost} primary={placement.primary}")
                continue
            core = machine.node.core
            local = core.local[number] if core.version != NO_VERSION else None
            if local is None or not (local.active and core.quorum and not core.frozen) or local.needed:
                active = local is not None and local.active
                needed = ",".join(local.needed) if local is not None else ""
                said.append(f"p{number}: {machine.name} {active=} quorum={core.quorum} frozen={core.frozen} {needed=}")
        return "; ".join(said[:TROUBLES_TOLD]) or "every partition looks served"


def _served(in_sync: Sequence[NodeId], there: frozenset[NodeId], slow: Mapping[NodeId, int], wanted: int) -> bool:
    """Whether partitions that these have in sync have a copy there, and no slow one is worth waiting for."""
    copies = [n for n in in_sync if n in there or n in slow]
    kept = waited_for(copies, slow, (), wanted)
    return any(n in there for n in kept) and not any(n in slow for n in kept)


def _majority(votes: frozenset[NodeId], voters: tuple[NodeId, ...]) -> bool:
    return 2 * sum(node in votes for node in voters) > len(voters)


def _connected(world: World, some: tuple[Machine, ...]) -> bool:
    flows = world.network.flows
    return all(flows(a.name, b.name) and flows(b.name, a.name) for a, b in combinations(some, 2))
