"""What is compared: copies of one fragment as values, the rules they are held to, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from engine.offline.directory import FragmentView, PartitionView
from engine.state.store import Row
from rebalance.table import Placement, Standing, Topology
from tools.reconcile.findings import Finding
from tools.shown import Values
from tools.wal.rows import Rows as LogSaid
from wal.ids import NodeId, Version

GRACE_MS = 10_000

IN_SYNC = "OWNING"
"""The role of a copy that the newest map calls in sync."""
OTHER_DISK = "OTHER-DISK"
"""A copy on a disk that is not the one the cluster knows."""
LEFTOVER = "LEFTOVER"
"""A copy that the newest topology does not place there."""


def standing(topology: Topology, placement: Placement, node: NodeId, allocation: str) -> str:
    """What a node's copies of a partition are, by the newest topology."""
    if node not in placement.copies and node not in placement.in_sync:
        return LEFTOVER
    if topology.allocations.get(node) != allocation:
        return OTHER_DISK
    if node in placement.asynchronous:
        return Standing.ASYNC
    return Standing.OWNING if node in placement.in_sync else Standing.MOVING


class Level(StrEnum):
    """How deep a comparison goes."""

    ROWS = "rows"  # every row, whatever the digests say
    DIGEST = "digest"  # the rows of fragments whose counters, histories or digests of contents differ


class Clock(msgspec.Struct, frozen=True):
    """One node's time: its newest block, and what is now there; for a node that does not run that is the same."""

    ended_ms: int
    now_ms: int


class Rules(msgspec.Struct, frozen=True):
    """What a comparison goes by. `clocks` are the nodes' own, so that no clock is held against another one.

    `partitions` is into how many a key may hash, 0 if nobody knows; `firsts` of each namespace the first partition of its
    group, if that is another than 0. `again`: unsettled keys are kept, to look again.
    """

    clocks: dict[NodeId, Clock] = {}
    grace_ms: int = 0
    values: Values = Values.HASH
    partitions: int = 0
    firsts: dict[str, int] = {}
    level: Level = Level.ROWS
    again: bool = False

    def under_way(self, node: NodeId, touched_ms: int) -> bool:
        """Whether what a node touched then, at the latest (0: nobody knows when), may still be going on."""
        clock = self.clocks.get(node)
        if clock is None or not clock.ended_ms:
            return False
        return (touched_ms or clock.ended_ms) > clock.now_ms - self.grace_ms


class Copy(NamedTuple):
    """One node's copy of one fragment.

    `damaged` fills while rows are read: a key, or None for an unknown part, and what is wrong. `rows` ascend by key,
    where they are not read side by side. `version` is the topology that the node knew. `role` is what the newest
    topology calls the copy. `said` is what its log says of its keys, None where the log is not to be asked.
    """

    node: NodeId
    version: Version
    partition: PartitionView
    view: FragmentView
    damaged: dict[bytes | None, str]
    rows: Iterable[Row] = ()
    role: str = IN_SYNC
    said: LogSaid | None = None

    @property
    def in_sync(self) -> bool:
        """Whether it has to have all that was acknowledged."""
        return self.role == IN_SYNC

    @property
    def epoch(self) -> int:
        """The newest epoch that it has taken part in."""
        return max(self.partition.epoch, *(epoch for epoch, _ in self.view.epochs[-1:]), 0)


class Compared(msgspec.Struct):
    """What came of one fragment: findings in order, and what was looked at. `stale_keys` are unsettled, and no copy's log
    touched the fragment for so long that they cannot be on their way. `unsettled` are those that may be looked at again."""

    findings: list[Finding] = []
    stale_keys: int = 0
    keys: int = 0
    unsettled_keys: int = 0
    unsettled_gaps: int = 0
    cut: int = 0
    unsettled: list[bytes] = []
