"""Stopping in good order: who asks to be let go, and who may.

A node that is told to stop hands its primaries over, goes out of the in-sync sets, and ends: by steps, for which nobody
stops, or by an exchange where these cannot do it (`rebalance.going`). It stays in the baseline: it is a voter that is away,
and its return is a catch-up. Where those that would be left are no majority of
the voters, nobody could take anything over and nothing can be acknowledged without it: then it stops as it is, still in
the in-sync sets, and its disk counts in full when the cluster comes back.

When the whole cluster is told to stop, nobody hands anything over either: all stop in sync, and every disk counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from engine.cluster.detector import Detector
from engine.messages import Halt, Leave
from engine.turn.core import Core
from rebalance.going import going
from rebalance.ports import MS
from rebalance.table import Candidate, Placement, Topology
from wal.ids import NodeId

LEAVE_MS_MAX = 30_000
"""Nobody waits longer to be let go."""
TOLD_MS = 2_000
"""Who waits for the coordinator alone for so long says so; it usually takes less."""


class Leaving:
    """Who of the members is stopping; and whether this node is."""

    def __init__(self, core: Core, detector: Detector) -> None:
        self.core = core
        self.detector = detector
        self.since: int | None = None  # when this node was told to stop
        self.halting = False  # the whole cluster stops, and this node tells the others
        self._halted = False  # it was told
        self._leader: NodeId | None = None  # whom it last asked to be let go
        self._noted = ""  # what it was said to wait for
        self._counted: tuple[Topology, dict[NodeId, int]] | None = None  # who is loading, by the map that says so
        self._asked: dict[NodeId, int] = {}  # who asked to be let go -> the life in which it did
        self._was_let_in = False  # some map has listed this life

    def begin(self) -> None:
        """This node is told to stop."""
        if self.since is None:
            self.since = self.core.now

    def halt(self, *, sure: bool) -> str:
        """The whole cluster is told to stop, this node last; or why not."""
        core, topology = self.core, self.core.topology
        if topology is None or not core.serving or not core.quorum or core.frozen:
            return "the cluster does not serve: stop its nodes one by one"
        short = sum(p.lost or len(p.in_sync) < n for p, n in zip(topology.placements, topology.wanted, strict=True))
        if short and not sure:
            return f"{short} partitions have fewer in-sync copies than they should: wait until they have, or say --now"
        self.halting = True
        self.begin()
        self.say_halt()
        return ""

    def say(self, leader: NodeId | None) -> None:
        """Ask the coordinator to be let go; or tell all others to stop."""
        if self.halting:
            self.say_halt()
        elif leader is not None and self.since is not None and self.core.serving:
            self.core.send(leader, Leave(self.core.node, self.core.incarnation))
        self._note(leader)

    def _note(self, leader: NodeId | None) -> None:
        """Tell the operator for whom this node waits, once for each."""
        core, topology = self.core, self.core.topology
        self._leader = leader
        if self.since is None or self.halting or topology is None or not core.serving:
            return
        loading = self._loading(topology)
        kind = ", ".join(loading) if loading else f"coordinator {leader}"
        if kind != self._noted and (loading or core.now - self.since >= TOLD_MS * MS):
            self._noted = kind
            core.note(f"told to stop: it waits for {_told(loading, leader)}")

    def _loading(self, topology: Topology) -> dict[NodeId, int]:
        """Who must load copies before this node can be let go, and of how many partitions."""
        if self._counted is None or self._counted[0] is not topology:  # it is asked for with every heartbeat
            rest = [m.node for m in topology.members if m.node != self.core.node]
            owners = Counter(chain.from_iterable(p.owners for p in _awaited(topology, [self.core.node], rest)))
            self._counted = topology, {node: owners[node] for node in sorted(rest) if owners[node]}
        return self._counted[1]

    def as_object(self) -> dict[str, Any] | None:
        """For whom this node waits, if it is told to stop: who is loading, and how many partitions; who coordinates."""
        if self.since is None:
            return None
        topology = self.core.topology
        return {
            "since_ms": (self.core.now - self.since) // MS,
            "loading": self._loading(topology) if topology is not None else {},
            "coordinator": self._leader,
        }

    def say_halt(self) -> None:
        """Tell the others to stop, until none is left."""
        peers = self.core.peers()
        if peers:
            self.core.send(peers, Halt(self.core.version))

    def on_halt(self, message: Halt) -> None:
        """The whole cluster stops, if it is as it was when that was said."""
        if message.version == self.core.version and self.core.serving:
            self._halted = True

    def on_leave(self, message: Leave) -> None:
        """A member stops on purpose; what an earlier life of it had asked means nothing."""
        topology = self.core.topology
        member = topology.member(message.node) if topology is not None else None
        if member is not None and member.incarnation == message.incarnation:
            self._asked[message.node] = message.incarnation

    def switch(self, topology: Topology) -> None:
        """A new topology: who is not in it in that life has gone."""
        lives = {m.node: m.incarnation for m in topology.members}
        self._was_let_in = self._was_let_in or self.core.is_listed_by(topology)
        self._asked = {n: life for n, life in self._asked.items() if lives.get(n) == life}

    def granted(self, topology: Topology, alive: Sequence[Candidate]) -> list[NodeId]:
        """Those who are let go now: the rest must be able to go on without them. Who leads goes last.

        The map may list a life that asked and has ended since, while the next one asks to be let in: that one stays.
        """
        granted: list[NodeId] = []
        if not self._asked:
            return granted
        noted = going(topology)  # of what these have all is on others, too
        here = {c.node: c.incarnation for c in alive}
        for node, life in sorted(self._asked.items(), key=lambda asked: asked[0] == self.core.node):
            rest = [n for n in here if n != node and n not in granted]
            awaited = node not in noted and any(True for _ in _awaited(topology, [node, *granted], rest))
            if here.get(node) == life and topology.carried_by(rest) and not awaited:
                granted.append(node)
        return granted

    def over(self) -> str:
        """Why this node may stop now; nothing: it is not told to, or others are about to take over."""
        core, topology = self.core, self.core.topology
        if self._halted:
            return "the whole cluster stops"
        if self.since is None:
            return ""
        if topology is None or not core.serving:
            return "left the cluster" if self._was_let_in else "told to; no cluster has let it in since it started"
        rest = [m.node for m in topology.members if m.node != core.node and not self.detector.suspected(m.node)]
        if self.halting and not rest:
            return "the whole cluster has stopped"
        if not self.halting and not topology.carried_by(rest):
            return "told to; those who are left are no majority, so nothing is handed over"
        if core.now - self.since > LEAVE_MS_MAX * MS:
            waited = _told(self._loading(topology), self._leader)
            return f"told to; it was not let go within {LEAVE_MS_MAX // 1_000} s: it waited for {waited}"
        return ""


def _awaited(topology: Topology, going: Sequence[NodeId], rest: Sequence[NodeId]) -> Iterator[Placement]:
    """Where a copy is loading that will be in sync soon, and until then only those who go have all of the partition."""
    gone, staying = frozenset(going), frozenset(rest)
    for p in topology.placements:
        if gone.issuperset(p.in_sync) and not p.lost and not staying.isdisjoint(p.owners):
            yield p


def _told(loading: Mapping[NodeId, int], leader: NodeId | None) -> str:
    """For whom a node waits that is told to stop, in words."""
    if not loading:
        return f"{leader}, which coordinates, to let it go" if leader else "somebody who coordinates to let it go"
    each = [f"{node} to load {'a partition' if n == 1 else f'{n} partitions'}" for node, n in loading.items()]
    return f"{' and '.join(each)}, of which nobody else who stays has a whole copy"
