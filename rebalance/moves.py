"""What would be moved to bring every copy to where it belongs, in which order, and why: to be seen before it is done.

Pure functions of a map and of the nodes that are to hold data. Nothing is carried out by them: exchanges do that, a step at
a time (`plan`, `steps`), and come to the same: a copy is made where one belongs and is not whole, and nowhere else. Whoever
has copies to make asks for them in the order that is said here (`demander`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import assert_never

import msgspec

from rebalance.affinity import Affinity, assign
from rebalance.migrations import Paused
from rebalance.table import Topology
from wal.ids import NodeId


class Kind(StrEnum):
    """What is done to one partition on one node."""

    COPY = "copy"  # rows or updates move
    PRIMARY = "primary"
    DROP = "drop"


class Why(StrEnum):
    """What it is good for."""

    REPAIR = "repair"  # there are fewer copies than there should be
    LEAVES = "leaves"  # a node that holds one is to hold none
    BALANCE = "balance"  # it belongs elsewhere


class Move(msgspec.Struct, frozen=True):
    """One thing that is done. `source`: who leads now, and supplies; None: nobody does, or it is not here.

    `here`: whether the node is a member; if not, all waits for it.
    """

    partition: int
    kind: Kind
    why: Why
    node: NodeId
    source: NodeId | None
    here: bool


def is_short(topology: Topology, number: int) -> bool:
    """Whether a partition has fewer copies in sync than there should be: one that is made of it is a repair."""
    wanted = min(topology.backups + 1, len(topology.baseline))
    return len(topology.placements[number].in_sync) < wanted


def waits_by_order(topology: Topology, number: int) -> bool:
    """Whether no copy of a partition is to be made for now, because the operator has ordered a pause."""
    match topology.migrations.paused:
        case Paused.NOTHING:
            return False
        case Paused.BALANCE:
            return not is_short(topology, number)
        case Paused.ALL:
            return True
        case paused:
            assert_never(paused)


def waits(move: Move, paused: Paused) -> bool:
    """Whether a move waits under such a pause. What goes because others are whole goes all the same."""
    if move.kind is Kind.DROP or paused is Paused.NOTHING:
        return False
    return move.kind is Kind.PRIMARY or paused is Paused.ALL or move.why is not Why.REPAIR


def order_of_work(topology: Topology, numbers: Iterable[int]) -> list[int]:
    """These partitions, of which copies are to be made, in the order in which that matters.

    Repairs before what is only better elsewhere; of them the partition with the fewest whole copies; and of what is better
    elsewhere first what relieves the node that holds the most, for with a copy that comes the last of the others goes.
    """
    asked = list(numbers)
    held: Mapping[NodeId, int] = {}
    if not all(is_short(topology, number) for number in asked):
        held = Counter(chain.from_iterable(p.owners for p in topology.placements))

    def matters(number: int) -> tuple[int, ...]:
        whole = topology.placements[number].in_sync
        if is_short(topology, number):
            return (0, len(whole), number)
        return (1, -held[whole[-1]], number)

    return sorted(asked, key=matters)


def moves(topology: Topology, baseline: Sequence[NodeId], affinity: Affinity = assign) -> list[Move]:
    """All of them, in the order in which they matter: repairs first, of them the partition with the fewest copies.

    Partitions that are LOST are left alone: whatever they begin with again is the operator's to say.
    """
    members = {m.node for m in topology.members}
    ideal = affinity(tuple(baseline), topology.domains, topology.partitions, topology.backups + 1)
    found: list[tuple[tuple[int, ...], Move]] = []
    for number, (placement, wanted) in enumerate(zip(topology.placements, ideal, strict=True)):
        if placement.lost or (not wanted and not placement.owners):
            continue
        primary = placement.primary if placement.primary in members else None
        whole = len(placement.in_sync)
        short = whole < len(wanted)
        elsewhere = Why.LEAVES if any(n not in baseline for n in placement.in_sync) else Why.BALANCE
        for node in wanted:
            if node not in placement.in_sync:
                move = Move(
                    number, Kind.COPY, Why.REPAIR if short else elsewhere, node, source=primary, here=node in members
                )
                found.append(((0, not short, whole, number), move))
        if wanted and wanted[0] != placement.owners[0]:
            leads = placement.owners[0]
            why = Why.LEAVES if leads not in baseline else Why.BALANCE
            move = Move(number, Kind.PRIMARY, why, wanted[0], source=leads, here=wanted[0] in members)
            found.append(((1, number), move))
        for node in placement.owners:
            if node not in wanted:
                why = Why.LEAVES if node not in baseline else Why.BALANCE
                found.append(((2, number), Move(number, Kind.DROP, why, node, source=None, here=node in members)))
    return [move for _, move in sorted(found, key=lambda item: item[0])]
