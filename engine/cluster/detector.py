"""Who was heard of lately: the failure detector of one node.

It suspects by silence, and only ever gives a reason to try an exchange: a wrong suspicion costs time, never safety. A
node that was away itself (its process was stopped, or its clock jumped) does not blame the others for the silence; nor
does one that has more before it than it comes to take, for what lies there (`engine.cluster.names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from engine.cluster.clique import connected
from engine.turn.core import Core
from rebalance.going import going
from rebalance.ports import MS
from rebalance.table import Topology, in_sync_of
from wal.ids import NodeId
from wal.probe import probe


class Detector:
    """When each node was last heard of."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._heard: dict[NodeId, int] = {}
        self._together: dict[NodeId, tuple[str, int]] = {}  # the lives that the map lists beside this one
        self._expected: dict[NodeId, int] = {}  # since when each of them should be heard
        self._back: dict[NodeId, int] = {}  # when each was heard of again that had been suspected
        self._silent: dict[NodeId, list[NodeId]] = {}  # whom each node said that it does not hear
        self._copies_of: tuple[Topology | None, Mapping[NodeId, int]] = None, {}
        self._last_look = 0
        self.since: int | None = None  # when this node began to listen
        self.heard_again = False  # somebody who was suspected, since this was looked at last

    def listen(self) -> None:
        """Called once a turn: begin to listen, or begin anew after being away."""
        core = self.core
        if self.since is None:
            self.since = core.now
            if core.topology is not None:
                self._heard = {m.node: core.now for m in core.topology.members}
        beat = core.settings.heartbeat_ms * MS
        if core.now - self._last_look > 3 * beat and self._last_look:
            probe("detector.was_away")
            self._heard = {node: max(at, core.now - beat) for node, at in self._heard.items()}
        self._last_look = core.now

    def heard(self, node: NodeId) -> None:
        """A node said something."""
        now = self.core.now
        before = self._heard.get(node)
        if before == now:
            return  # of what it says in one turn only the first is news
        self._heard[node] = now
        if before is None:
            self.heard_again = True
        elif now - before > self.core.settings.suspicion_ms * MS:
            self._back[node] = now
            self.heard_again = True

    def expect(self) -> None:
        """A map came. Only those whom it lists together speak to each other, so whoever was not, or was another life, is to
        be heard from now on; when it was heard before that tells nothing."""
        topology, core = self.core.topology, self.core
        assert topology is not None
        lives = {m.node: (m.allocation, m.incarnation) for m in topology.members}
        for node in lives:
            self._heard.setdefault(node, core.now)
        together = lives if lives.get(core.node) == (core.allocation, core.incarnation) else {}
        self._expected = {
            n: self._expected[n] if self._together.get(n) == life else core.now for n, life in together.items()
        }
        self._together = together

    def lost(self, node: NodeId) -> None:
        """A connection broke: if the node stays silent, suspect it sooner."""
        settings = self.core.settings
        grace = (settings.suspicion_ms - settings.connection_lost_ms) * MS
        for times in (self._heard, self._expected):
            if node in times:
                times[node] = min(times[node], self.core.now - grace)

    def suspected(self, node: NodeId) -> bool:
        """Whether a node has been silent for too long."""
        if node == self.core.node:
            return False
        since = self._silent_since(node)
        return since is None or self.core.now - since > self.core.settings.suspicion_ms * MS

    def _silent_since(self, node: NodeId) -> int | None:
        """When it was heard last, or should have begun to be."""
        heard = self._heard.get(node)
        return heard if heard is None else max(heard, self._expected.get(node, heard))

    def is_steady(self, node: NodeId) -> bool:
        """Whether a node was heard of without a silence for as long as it takes to be suspected."""
        limit = self.core.settings.suspicion_ms * MS
        return not self.suspected(node) and self.core.now - self._back.get(node, -limit) >= limit

    def heard_since_start(self, node: NodeId) -> bool:
        """Whether this node really heard of another since it started."""
        return node == self.core.node or self._heard.get(node, 0) > (self.since or 0)

    def has_quorum(self) -> bool:
        """Whether a majority of the voters was heard of lately, and hears this node as far as they say."""
        topology, node = self.core.topology, self.core.node
        if topology is None:
            return False
        heard, since = {**self._heard, node: self.core.now}, self.core.now - self.core.settings.suspicion_ms * MS
        return (
            sum(heard.get(n, since - 1) >= since and not self._apart(n, node) for n in topology.voters) >= topology.majority
        )

    def coordinator(self, *, after: NodeId = "") -> NodeId | None:
        """The oldest member that is not suspected and could make a map, in this node's opinion; the slow ones last, and
        those who are about to go behind them.

        `after`: whoever would come next if it were not for this one.
        """
        topology = self.core.topology
        if topology is None:
            return None
        nodes, aside, leaves = [m.node for m in topology.members], topology.aside, going(topology)
        if aside or leaves:
            nodes.sort(key=lambda n: (n in leaves, aside.get(n, 0) > 0))
        for node in nodes:
            if node != after and not self.suspected(node) and self._can_lead(node):
                return node
        return None

    # Links that are broken in one direction, or between others.

    def silent(self) -> list[NodeId]:
        """The members and voters that this node does not hear."""
        topology = self.core.topology
        voters = topology.voters if topology is not None else ()
        return [n for n in dict.fromkeys([*self.core.peers(), *voters]) if self.suspected(n)]

    def note_silent(self, node: NodeId, silent: list[NodeId]) -> bool:
        """A node says whom it does not hear; whether it hears somebody again whom it did not."""
        before, self._silent[node] = self._silent.get(node, ()), silent
        return any(n not in silent for n in before)

    def _can_lead(self, node: NodeId) -> bool:
        """Whether a majority hears this member and each other, as far as they say: else it is heard and cannot lead."""
        topology, heard = self.core.topology, not any(self._silent.values())  # how it nearly always is: by everybody
        assert topology is not None
        voters = topology.voters
        if node == self.core.node:
            if topology.allocations.get(node, self.core.allocation) != self.core.allocation:
                return False  # the voter of this name is another disk, and the others wait for that
            voters = tuple(n for n in voters if not self.suspected(n))
        elif heard:
            return bool(voters)
        if heard:
            return topology.carried_by((node, *voters))
        return topology.carried_by(connected(node, voters, self._silent, voters))

    def connected(self, disks: Mapping[NodeId, str]) -> list[NodeId]:
        """This node, and of the others as many as can be in one map with it, in their order: first of all, as many as have
        a vote on the disk that they have. Somebody new may have the name of a voter, and the others not hear that one."""
        topology = self.core.topology
        voters, of = (topology.voters, topology.allocations) if topology is not None else ((), disks)
        voting = [n for n in voters if of.get(n, disks.get(n)) == disks.get(n)]
        enough = topology.majority if topology is not None else 0

        def kept(part: Iterable[NodeId]) -> int:
            copies = self._copies()
            return reduce(or_, (copies.get(n, 0) for n in part if of.get(n, disks[n]) == disks[n]), 0).bit_count()

        quiet = {n: self._is_quiet(n) for n in disks} if any(self._silent.values()) else {}
        order = sorted(disks, key=lambda n: quiet.get(n, False))
        best = dict.fromkeys(connected(self.core.node, order, self._silent, voting, enough=enough, kept=kept))
        return [self.core.node, *(n for n in disks if n in best and n != self.core.node)]

    def _is_quiet(self, node: NodeId) -> bool:
        """Whether half of the time is over in which a node is to be heard. Of two who do not hear each other such a one has
        stopped, and the other come to suspect it a little sooner: a map without that one would need this one."""
        since, half = self._silent_since(node), self.core.settings.suspicion_ms * MS // 2
        return node != self.core.node and (since is None or self.core.now - since > half)

    def _copies(self) -> Mapping[NodeId, int]:
        """Of each node, of which partitions its copy is in sync. Looked for once in each map, and only if links broke."""
        topology = self.core.topology
        if self._copies_of[0] is not topology:
            self._copies_of = topology, in_sync_of(topology.placements) if topology is not None else {}
        return self._copies_of[1]

    def _apart(self, a: NodeId, b: NodeId) -> bool:
        return b in self._silent.get(a, ()) or a in self._silent.get(b, ())

    def next_suspicion(self) -> int | None:
        """When the next of the members or voters will be suspected, unless it is heard of before."""
        topology, limit = self.core.topology, self.core.settings.suspicion_ms * MS
        if topology is None:
            return None
        expected = dict.fromkeys([*self.core.peers(), *topology.voters])
        times = [at for n in expected if (at := self._silent_since(n)) is not None]
        due = [at + limit + 1 for at in times if at + limit >= self.core.now]
        return min(due, default=None)

    def switch(self) -> None:
        """A new map: who does not hear whom has to be said anew."""
        self._silent = {}
