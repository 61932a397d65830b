"""Who has another map than this node, where it should have the same: two clusters go by one name, and both may serve."""

from __future__ import annotations

from engine.turn.core import Core
from rebalance.table import Topology, split_from
from wal.ids import NodeId, Version
from wal.probe import probe


class Splits:
    """The nodes whose map does not go with this one's."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.found: dict[NodeId, tuple[Version, int]] = {}  # with what map

    def note(self, node: NodeId, version: Version, map_hash: int) -> None:
        """Another map than ours follows a version of ours: promises were broken, and only a person can mend that."""
        if self.found.get(node) != (version, map_hash):
            self.found[node] = (version, map_hash)
            probe("exchange.split")
            self.core.note(
                f"SPLIT: {node} has map {map_hash:016x} of version {version}, which does not go with {self.core.version} "
                f"({self.core.map_hash:016x}) here: both sides may have acknowledged writes; keep both directories, stop "
                "the side that is to be given up, wipe it, and let it join"
            )

    def follows(self, node: NodeId, topology: Topology, map_hash: int, consent: str) -> bool:
        """Whether a newer map that a node tells is one of ours."""
        if self._is_of_another_cluster(node, topology, consent):
            return False
        core = self.core
        if core.topology is not None and split_from(topology, 0, core.version, core.map_hash):
            self.note(node, topology.version, map_hash)
            return False
        return True

    def goes_with(self, node: NodeId) -> None:
        """The map of a node goes with ours, whatever it had before."""
        self.found.pop(node, None)

    def _is_of_another_cluster(self, node: NodeId, topology: Topology, consent: str) -> bool:
        """Whether a map is not for this node, which is in a cluster or has agreed to form one, of this id (`consent`)."""
        ours = self.core.topology
        if consent not in ("", topology.cluster):
            self.core.note(
                f"{node} sends a map of cluster {topology.cluster}, and this node agreed to form cluster {consent}: "
                "ignored; give that `cluster init` again, or begin with an empty directory"
            )
        elif ours is not None and topology.cluster != ours.cluster:
            self.core.note(f"{node} belongs to another cluster ({topology.cluster}): ignored")
        else:
            return False
        return True
