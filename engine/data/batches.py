"""One batch of replication: operations that went to the same copies together, and who has answered."""

from __future__ import annotations

from rebalance.partition import Group
from rebalance.ports import Shipped
from wal import records as r
from wal.ids import NodeId


class Batch:
    """Operations that went to the same copies together."""

    __slots__ = (
        "acked",
        "bytes",
        "counts",
        "due",
        "lagging",
        "operations",
        "partitions",
        "patience",
        "records",
        "said",
        "sequence",
        "since",
        "waiting",
    )

    def __init__(self, sequence: int, operations: list[Shipped], group: Group, acked: dict[NodeId, None]) -> None:
        self.sequence = sequence
        self.operations = operations
        self.records: list[r.Record] = [record for o in operations for record in o.records]
        self.acked = acked
        self.waiting = {n: None for n in group[0] if n not in acked}
        self.lagging = {n: None for n in group[1] if n not in acked}  # MOVING copies that have not answered
        self.partitions: tuple[int, ...] = ()  # that it touches, if there are MOVING copies
        self.counts = False
        self.due = 0  # when it is sent again
        self.patience = 0  # from one sending to the next
        self.said = 0  # the newest batch there was when it was sent last
        self.bytes = 0
        self.since = 0  # when it was first sent, in the time for which this node was attentive
