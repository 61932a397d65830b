"""No table of a node holds more than it is entitled to: in a storm what is under way, and in the calm next to nothing.

Every table of every machine is counted (`tests.sim.oracles.tables`), also one that is added one day. What has a reason to
be there at rest is named here, with what it is kept of: a copy, a client's session, a moment that is read. All else,
whatever is kept of a transaction, a request, a transfer, a peer that has gone, has to be let go of when that is over, and
may hold `SPARE` things in the end: what is forgotten there is a leak on a node that runs for a year.

In a storm one node after the other is looked at now and then: it costs as much as some hundred turns. A few seeds wait
after their calm until every lease has ended, so that no moment is kept any more.
"""

from __future__ import annotations

from enum import Enum

from engine.messages import KINDS
from engine.node.node import Node
from engine.protocol.sizes import KEYS_MAX
from rebalance.migrations import Paused
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.tables import tables
from tests.sim.violation import Violation
from tests.sim.world import SECOND, World
from wal.ids import NodeId

SPARE = 48
"""So many things may be in a table that nothing is said of: there are a few of each member, and of each kind of message."""
UNDER_WAY = 2 * KEYS_MAX
"""So many more in a storm: of what clients have asked for, rows that they hold, updates and demands on their way."""
KEPT = 5_000
"""Of sessions, of rows that expire or were found, and of what is kept for a moment that somebody reads."""
LOOK_NS = 4 * SECOND
"""Of a storm, between two looks at one node."""
LASTING_SHARE = 1 / 64
LASTING_NS = 45 * SECOND
"""So many seeds wait so long after their calm: longer than a moment is kept, a lock, or what is staged."""


class Of(Enum):
    """What a table may hold something of, for as long as that is there."""

    PARTITION = "partition"
    FRAGMENT = "fragment"
    ANSWER = "answer"  # that a client may ask for again; some hundreds of each partition
    SESSION = "session"  # of a client, remembered longer than a seed lasts
    ROW = "row"  # that expires, or that a scan has found; these tables have bounds of their own
    KIND = "kind"  # of message
    MOMENT = "moment"  # that somebody reads, and what was overwritten since: for as long as its lease lasts


ENTITLED = {
    "Admission._written": Of.PARTITION,
    "Better.leaders": Of.PARTITION,
    "Changes.fragments": Of.FRAGMENT,
    "Changes.partitions": Of.PARTITION,
    "Coordinator._over": Of.PARTITION,
    "Coordinator._over[]": Of.PARTITION,
    "Core.local": Of.PARTITION,
    "Cuts.leases": Of.MOMENT,
    "Expiry._deadlines": Of.PARTITION,
    "Expiry._deadlines[]": Of.ROW,
    "Expiry._heap": Of.ROW,
    "Following._told": Of.FRAGMENT,
    "Following.lags": Of.FRAGMENT,
    "Held._held": Of.FRAGMENT,
    "Kept._bytes": Of.MOMENT,
    "Kept._eras": Of.MOMENT,
    "Kept._rows": Of.MOMENT,
    "Kept._rows[]": Of.MOMENT,
    "Kept._rows[][]": Of.MOMENT,
    "Kept._stood": Of.MOMENT,
    "Kept._stood[]": Of.MOMENT,
    "Lease.holders": Of.MOMENT,
    "Lease.lost": Of.MOMENT,
    "Look._found": Of.ROW,
    "Look._heads": Of.ROW,
    "Mutations._here": Of.PARTITION,
    "Mutations._here[]": Of.PARTITION,
    "Mutations._in_sync": Of.PARTITION,
    "Mutations._moving": Of.PARTITION,
    "Node._on_message": Of.KIND,
    "Origins._clients": Of.SESSION,
    "Origins._said": Of.SESSION,
    "PartitionState.fragments": Of.FRAGMENT,
    "Progress.expected": Of.FRAGMENT,
    "Progress.kinds": Of.FRAGMENT,
    "Progress.reasons": Of.FRAGMENT,
    "Reasons._ready": Of.PARTITION,
    "Replica.partitions": Of.PARTITION,
    "Replica.tails": Of.FRAGMENT,
    "Results._answers": Of.ANSWER,
    "Results._committed": Of.ANSWER,
    "Results._outcomes": Of.ANSWER,
    "Rows.keys": Of.ROW,
    "Rows.values": Of.ROW,
    "Sessions._again": Of.PARTITION,
    "Sessions._heard": Of.SESSION,
    "Sessions._nothing": Of.SESSION,
    "Settling._rounds": Of.PARTITION,
    "Settling._void": Of.PARTITION,
    "Settling.said_in_this_life": Of.PARTITION,
    "Stability._stands": Of.FRAGMENT,
    "Vouching._supplied": Of.PARTITION,
    "Vouching._supplied[]": Of.PARTITION,
}


class Entitled(Oracle):
    """All tables of all nodes."""

    def __init__(self) -> None:
        self._looked_at: dict[NodeId, int] = {}

    def look(self, world: World) -> None:
        """In a storm, one node: that which was not looked at for longest."""
        up = [machine for machine in world.running if machine.node is not None]
        if not up:
            return
        machine = min(up, key=lambda machine: self._looked_at.get(machine.name, 0))
        if world.now - self._looked_at.get(machine.name, 0) < LOOK_NS * len(up) * (1 + world.settings.partitions // 512):
            return
        self._looked_at[machine.name] = world.now
        assert machine.node is not None
        self._judge(machine.name, machine.node, UNDER_WAY, moments=KEPT)

    def finish(self, world: World) -> None:
        """At rest, all of them; once in a while when every lease has ended, too."""
        lasting = world.draws.of("until all leases have ended").random() < LASTING_SHARE
        if lasting:
            world.run_for(LASTING_NS)
        for machine in world.running:
            node = machine.node
            assert node is not None
            assert node.core.topology is not None
            waits = node.core.topology.migrations.paused is not Paused.NOTHING
            # What an operator has paused stays under way until he resumes it: a copy, and what is changed meanwhile.
            loads = UNDER_WAY if waits else 0
            self._judge(machine.name, node, SPARE + loads, moments=0 if lasting else KEPT)

    @staticmethod
    def _judge(name: NodeId, node: Node, spare: int, *, moments: int) -> None:
        core = node.core
        partitions = len(core.local)
        most = {
            Of.PARTITION: partitions,
            Of.FRAGMENT: len(core.replica.fragments),
            Of.ANSWER: 1_024 * partitions,
            Of.SESSION: KEPT,
            Of.ROW: KEPT,
            Of.KIND: len(KINDS),
            Of.MOMENT: moments + len(node.cuts.leases) * partitions,
        }
        found = {
            table: count
            for table, count in tables(node).items()
            if count > spare and count > spare + (most[ENTITLED[table]] if table in ENTITLED else 0)
        }
        if found:
            raise Violation("entitled", f"{name} keeps more than it is entitled to: {found}")
