"""What a map comes to, counted once: whoever watches a cluster asks many times, and the map rarely is another one."""

from __future__ import annotations

from rebalance.table import Topology, stamp
from wal.ids import NodeId


class MapCounts:
    """How many copies of each kind a map gives each node, which partitions lack some, the newest epoch, and its stamp."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.stamp = stamp(topology)
        self.epoch = max(placement.epoch for placement in topology.placements)
        self.under_replicated = 0
        self.lost: list[int] = []
        self._primary: dict[NodeId, int] = {}
        self._owning: dict[NodeId, int] = {}
        self._moving: dict[NodeId, int] = {}
        self._asynchronous: dict[NodeId, int] = {}
        for number, (placement, wanted) in enumerate(zip(topology.placements, topology.wanted, strict=True)):
            if placement.lost:
                self.lost.append(number)
                self.under_replicated += 1
                continue
            self.under_replicated += len(placement.in_sync) < wanted
            _count(self._primary, placement.owners[0])
            for node in placement.in_sync:
                _count(self._owning, node)
            for node in placement.owners:
                if node not in placement.in_sync:
                    _count(self._moving, node)
            for node in placement.asynchronous:
                _count(self._asynchronous, node)

    def of(self, node: NodeId) -> dict[str, int]:
        """How many partitions a node is primary of, has whole, is loading, and has an asynchronous copy of."""
        counted = {"primary": self._primary, "owning": self._owning, "moving": self._moving, "async": self._asynchronous}
        return {what: counts.get(node, 0) for what, counts in counted.items()}


def _count(counts: dict[NodeId, int], node: NodeId) -> None:
    counts[node] = counts.get(node, 0) + 1
