"""One partition on one node: what the committed map makes this node to it, and what it has of it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rebalance.fragment import FragmentState
from rebalance.results import Results
from rebalance.table import CopyState, Placement
from wal import records as r
from wal.ids import Namespace, NodeId, TxId

Group: TypeAlias = tuple[tuple[NodeId, ...], tuple[NodeId, ...]]
"""(copies that are waited for, copies that are not)"""


class Hold:
    """What this node is to one partition under the committed map.

    `needed` are the other in-sync copies, whose disks an acknowledgement waits for; `moving` the copies that get every
    write and are not waited for. `active`: this node is primary and may serve; a new primary is not until its promotion
    is done. `draining`: the exchange hands the partition over, and what is new must wait for the next primary. `since` is
    the map (`Version.number`) by which it became primary for the last time.
    """

    __slots__ = (
        "active",
        "draining",
        "epoch",
        "group",
        "mine",
        "moving",
        "needed",
        "number",
        "placement",
        "since",
        "state",
    )

    def __init__(self, number: int, placement: Placement) -> None:
        self.number = number
        self.placement = placement
        self.epoch = placement.epoch
        self.mine = False
        self.active = False
        self.draining = False
        self.since = 0
        self.state = CopyState.NONE
        self.needed: tuple[NodeId, ...] = ()
        self.moving: tuple[NodeId, ...] = ()
        self.group: Group = ((), ())


class PartitionImage(msgspec.Struct, frozen=True, array_like=True):
    """A partition as a checkpoint stores it."""

    epoch: int
    prepared: list[r.Prepare]
    results: list[tuple[TxId, int]]
    floor: TxId


class PartitionState:
    """What a node has of one partition beside its fragments: transactions in doubt, and answers that were given.

    `epoch` is the newest epoch this copy has taken part in; records of another one are not for it.
    """

    __slots__ = ("epoch", "fragments", "prepared", "results")

    def __init__(self) -> None:
        self.epoch = 0
        self.fragments: dict[Namespace, FragmentState] = {}
        self.prepared: dict[TxId, r.Prepare] = {}
        self.results = Results()
