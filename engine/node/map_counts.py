"""What a map comes to, counted once: whoever watches a cluster asks many times, and the map rarely is another one."""

from __future__ import annotations

from collections import Counter

from rebalance.table import Topology, stamp
from wal.ids import NodeId


class MapCounts:
    """How many copies of each kind a map gives each node, which partitions lack some, the newest epoch, and its stamp."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.stamp = stamp(topology)
        placements, partitions = topology.placements, topology.partitions
        self.epoch = max([placement.epoch for placement in placements])
        self.under_replicated = 0
        self.lost = [number for number, placement in enumerate(placements) if placement.lost]
        self._primary = Counter[NodeId]()
        self._owning = Counter[NodeId]()
        self._moving = Counter[NodeId]()
        self._asynchronous = Counter[NodeId]()
        for first in range(0, len(placements), partitions):
            # There are many partitions, and few ways in which they are placed.
            alike = Counter([(p.lost, p.owners, p.in_sync, p.asynchronous) for p in placements[first : first + partitions]])
            wanted = topology.copies_of(first)
            for (lost, owners, in_sync, asynchronous), count in alike.items():
                self.under_replicated += count if lost or len(in_sync) < wanted else 0
                if lost:
                    continue
                self._primary[owners[0]] += count
                self._owning.update(dict.fromkeys(in_sync, count))
                self._moving.update(dict.fromkeys((node for node in owners if node not in in_sync), count))
                self._asynchronous.update(dict.fromkeys(asynchronous, count))

    def of(self, node: NodeId) -> dict[str, int]:
        """How many partitions a node is primary of, has whole, is loading, and has an asynchronous copy of."""
        counted = {"primary": self._primary, "owning": self._owning, "moving": self._moving, "async": self._asynchronous}
        return {what: counts[node] for what, counts in counted.items()}
