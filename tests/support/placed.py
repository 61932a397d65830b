"""A partition's placement taken at once, where the engine works out before what each becomes (`rebalance.placing`)."""

from __future__ import annotations

from rebalance.partition import LocalPartition, become
from rebalance.table import Placement
from wal.ids import NodeId


def placed_at_once(local: LocalPartition, placement: Placement, node: NodeId | None) -> bool:
    """A map takes effect on `node`; None: it does not list this life. Whether it, the primary or the epoch is new."""
    role, is_new = local.becomes(placement, node)
    become([(local, (placement, role))])
    return is_new
