"""No table of a node holds more than it is entitled to: in a storm what is under way, and in the calm next to nothing.

Every table of every machine is counted (`tests.sim.oracles.tables`), also one that is added one day. What has a reason to
be there at rest is named here, with what it is kept of: a client's session, an answer, a moment that is read. All else may
hold something of each partition and fragment, and `SPARE` things: whatever is kept of a transaction, a request, a transfer,
a peer that has gone, has to be let go of when that is over. What is forgotten there is a leak on a node that runs for a
year.

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
"""So many more of what clients have asked for and hold, or of rows that were found; in a storm of anything."""
LOOK_NS = 4 * SECOND
"""Of a storm, between two looks at one node."""
LASTING_SHARE = 1 / 64
LASTING_NS = 45 * SECOND
"""So many seeds wait so long after their calm: longer than a moment is kept, a lock, or what is staged."""


class Of(Enum):
    """What a table may hold something of, for as long as that is there."""

    ANSWER = "answer"  # that a client may ask for again; some hundreds of each partition
    SESSION = "session"  # of a client, remembered longer than a seed lasts
    ROW = "row"  # that expires, or that a scan has found; these tables have bounds of their own
    KIND = "kind"  # of message
    AWAY = "away"  # a copy is; the keys that are written meanwhile: `mutations_bytes` bounds them
    GONE = "gone"  # a fragment is, of which the last checkpoint still has something: until the next one
    MOMENT = "moment"  # that somebody reads, and what was overwritten since: for as long as its lease lasts


ENTITLED = {
    "Changed.keys": Of.AWAY,
    "Changes.fragments": Of.GONE,
    "Cuts._lost": Of.MOMENT,
    "Cuts._open": Of.MOMENT,
    "Cuts._open[]": Of.MOMENT,
    "Cuts._renewed": Of.MOMENT,
    "Cuts.leases": Of.MOMENT,
    "Expiry._deadlines[]": Of.ROW,
    "Expiry._heap": Of.ROW,
    "Kept._bytes": Of.MOMENT,
    "Kept._cuts_of": Of.MOMENT,
    "Kept._cuts_of[]": Of.MOMENT,
    "Kept._eras": Of.MOMENT,
    "Kept._rows": Of.MOMENT,
    "Kept._rows[]": Of.MOMENT,
    "Kept._rows[][]": Of.MOMENT,
    "Kept._stood": Of.MOMENT,
    "Kept._stood[]": Of.MOMENT,
    "Lease.holders": Of.MOMENT,
    "Look._found": Of.ROW,
    "Look._heads": Of.ROW,
    "Node._on_message": Of.KIND,
    "Origins._clients": Of.SESSION,
    "Origins._said": Of.SESSION,
    "Results._answers": Of.ANSWER,
    "Results._committed": Of.ANSWER,
    "Results._listed": Of.ANSWER,
    "Results._listed[]": Of.ANSWER,
    "Results._outcomes": Of.ANSWER,
    "Rows.keys": Of.ROW,
    "Rows.values": Of.ROW,
    "Sessions._heard": Of.SESSION,
    "Sessions._nothing": Of.SESSION,
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
        self._judge(machine.name, machine.node, UNDER_WAY, moments=UNDER_WAY)

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
            self._judge(machine.name, node, SPARE + loads, moments=0 if lasting else UNDER_WAY)

    @staticmethod
    def _judge(name: NodeId, node: Node, spare: int, *, moments: int) -> None:
        core = node.core
        partitions = len(core.local)
        copies = partitions + len(core.replica.fragments)
        most = {
            Of.ANSWER: 1_024 * partitions,
            Of.SESSION: UNDER_WAY,
            Of.ROW: UNDER_WAY,
            Of.KIND: len(KINDS),
            Of.GONE: sum(name not in core.replica.fragments for name, _ in core.replica.store.base.loading().fragments),
            Of.AWAY: 4 * spare,
            Of.MOMENT: moments + len(node.cuts.leases) * partitions,
        }
        found = {
            table: count
            for table, count in tables(node).items()
            if count > spare + copies and count > spare + copies + (most[ENTITLED[table]] if table in ENTITLED else 0)
        }
        if found:
            raise Violation("entitled", f"{name} keeps more than it is entitled to: {found}")
