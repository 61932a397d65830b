"""What the nodes of a cluster are to be set to alike, and what is done where they are not.

How durable a write becomes may differ for a while, as it must while an operator changes it node by node; then each node
says so, and `foreshore cluster status` does for as long as it lasts. Two nodes of which one would suspect the other between
two of its heartbeats cannot be in one map: neither hears the other one, as if their link were cut, so that the map goes on
without one of them instead of letting it in again and again. What is fixed when a cluster is formed is in its map; a node
that was told something else says that this counts for nothing.
"""

from __future__ import annotations

from typing import Any

from engine.protocol.habits import Habits
from engine.turn.core import Core
from engine.turn.events import PeerSeen
from engine.turn.settings import FIXED, habits_of
from wal.ids import NodeId
from wal.probe import probe

APART_MAX = 256
"""So many lives that cannot be in a map with this node are remembered, the last ones."""


class Alike:
    """What one node knows of how the others are set."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.mine = habits_of(core.settings)
        self._habits: dict[NodeId, Habits] = {}  # of each that greeted, in its last life
        self.unheard: dict[tuple[NodeId, str, int], None] = {}  # of these lives nothing
        self._ours = ""  # the cluster whose map was looked at

    def greeted(self, event: PeerSeen) -> bool:
        """A node says how it is set; whether it can be in one map with this one."""
        said, before = event.habits, self._habits.get(event.node)
        self._habits[event.node] = said
        if self.mine.lose_each_other(said):
            self.unheard[event.node, event.allocation, event.incarnation] = None
            if len(self.unheard) > APART_MAX:
                del self.unheard[next(iter(self.unheard))]
            if said != before:
                probe("alike.apart")
                self.core.note(
                    f"{event.node} is not heard, nor hears this node: it beats each {said.heartbeat_ms} ms and suspects "
                    f"after {said.suspicion_ms} ms, this one {self.mine.heartbeat_ms} and {self.mine.suspicion_ms}: "
                    "expected two heartbeats or more before a suspicion, of either; restart one with what the other "
                    "one has"
                )
            return False
        if said.durability not in ("", self.mine.durability) and said != before:
            probe("alike.durability_differs")
            self.core.note(
                f"{event.node} has durability {said.durability[:20]}, this node {self.mine.durability}: what a write "
                "survives is by the copy; restart one of them with what the other one has"
            )
        return True

    def look(self) -> None:
        """Say once of a map whether this node was told something else than it says."""
        topology = self.core.topology
        if topology is None or topology.cluster == self._ours:
            return
        self._ours = topology.cluster
        for name, (told, holds) in self.ignored().items():
            probe("alike.ignored")
            self.core.note(
                f"{name} is {told} here, and {holds} in cluster {topology.name}, where it was fixed when that was formed: "
                f"{told} counts for nothing"
            )

    def ignored(self) -> dict[str, tuple[int, int]]:
        """What an operator chose here and the map says otherwise: name -> (here, by the map)."""
        core, topology = self.core, self.core.topology
        if topology is None:
            return {}
        group = topology.all_groups[0]
        holds = {"partitions": topology.partitions, "backups": group.backups, "async_backups": group.async_backups}
        told = {name: int(getattr(core.settings, name)) for name in FIXED if name in core.chosen}
        return {name: (value, holds[name]) for name, value in told.items() if value != holds[name]}

    def as_object(self) -> dict[str, Any]:
        """All of it, for an operator."""
        apart = {node for node, _, _ in self.unheard}
        return {
            "habits": _as_object(self.mine),
            "peers": {
                node: _as_object(said) | {"apart": node in apart and self.mine.lose_each_other(said)}
                for node, said in self._habits.items()
            },
            "ignored": {name: {"here": told, "map": holds} for name, (told, holds) in self.ignored().items()},
        }


def _as_object(habits: Habits) -> dict[str, Any]:
    return {
        "durability": habits.durability or None,
        "heartbeat_ms": habits.heartbeat_ms or None,
        "suspicion_ms": habits.suspicion_ms or None,
    }
