"""Where copies should be, for a reader: partition 0 on n1 n2 n3, partition 1 on n2 n3 n1, as in the seed's example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal.ids import NodeId


def in_turn(nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int) -> list[list[NodeId]]:
    """A `rebalance.affinity.Affinity`: the owners of partition p begin with the p-th node."""
    assert not domains, "no story is about failure domains here"
    members = sorted(set(nodes))
    return [[members[(p + i) % len(members)] for i in range(min(copies, len(members)))] for p in range(partitions)]
