"""What a map comes to, counted once: whoever watches a cluster asks many times, and the map rarely is another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from rebalance.table import Topology, stamp
from wal.ids import NodeId

COUNTED_AT_ONCE = 2_048
"""Partitions; a power of two, as there are in a group, so that no piece is of two groups."""
COUNTED_OF_WORK = 32
"""So many are as much work to count as one thing that is decided; and so are as many to put into the stamp."""


class MapCounts:
    """How many copies of each kind a map gives each node, which partitions lack some, the newest epoch, and its stamp."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.stamp = self.epoch = self.under_replicated = 0
        self.lost: list[int] = []
        self._primary = Counter[NodeId]()
        self._owning = Counter[NodeId]()
        self._moving = Counter[NodeId]()
        self._asynchronous = Counter[NodeId]()

    def count(self) -> Generator[int, None, MapCounts]:
        """Count all, in pieces; yields how much work each was."""
        topology = self.topology
        size = min(topology.partitions, COUNTED_AT_ONCE)
        for first in range(0, len(topology.placements), size):
            self._count_some(first, size)
            yield size // COUNTED_OF_WORK
        self.stamp = stamp(topology)
        yield len(topology.placements) // COUNTED_OF_WORK
        return self

    def _count_some(self, first: int, size: int) -> None:
        placements = self.topology.placements[first : first + size]
        self.epoch = max(self.epoch, *[placement.epoch for placement in placements])
        self.lost += [number for number, placement in enumerate(placements, first) if placement.lost]
        # There are many partitions, and few ways in which they are placed.
        alike = Counter([(p.lost, p.owners, p.in_sync, p.asynchronous) for p in placements])
        wanted = self.topology.copies_of(first)
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
