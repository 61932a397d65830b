"""Beginning again with what there is, when every in-sync copy of a partition is gone for good and the operator says so.

The best copy that is left is the one of the latest epoch, and of those the one with the most counters; it becomes primary
in an epoch above all that anybody here knows of, so that a copy which comes back after all is one that must catch up. What
only the lost copies had is lost. An intervention is written into the map, and so into the log of every node: what was
taken from whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rebalance.messages import CopyReport
from rebalance.table import Intervention, Taken
from wal.ids import NodeId

INTERVENTIONS_KEPT = 4


def as_object(intervention: Intervention) -> dict[str, Any]:
    """It as plain data, for JSON."""
    return {
        "kind": intervention.kind,
        "after": str(intervention.after),
        "nodes": list(intervention.nodes),
        "taken": [msgspec.structs.asdict(taken) for taken in intervention.taken],
    }


def best_copy(
    partition: int, reports: Mapping[str, Mapping[NodeId, CopyReport]], nodes: Sequence[NodeId], instead: NodeId
) -> tuple[NodeId, Taken]:
    """The best of the nodes' copies, the earlier node of equal ones; `instead` begins with nothing if there is none."""

    def worth(node: NodeId) -> tuple[int, int, int]:
        mine = [by_node[node] for by_node in reports.values() if node in by_node]
        epoch = max((c.epoch for c in mine), default=0)
        return (epoch, sum(c.lwm for c in mine), sum(c.highest for c in mine))

    best = max(nodes, key=worth, default=instead)
    epoch, _, updates = worth(best)
    if not updates:
        return instead, Taken(partition, "", 0, 0)
    return best, Taken(partition, best, epoch, updates)
