"""What would be moved to bring every copy to where it belongs, in which order, and why: to be seen before it is done.

Pure functions of a map and of the nodes that are to hold data. Nothing is carried out by them: exchanges do that, a step at
a time (`plan`, `steps`), and come to the same: a copy is made where one belongs and is not whole, and nowhere else. Whoever
has copies to make asks for them in the order that is said here (`demander`); the coordinator asks what would only be
`Better` elsewhere, and can wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import assert_never

import msgspec

from rebalance.affinity import Affinity, assign
from rebalance.ideal import ideal_of, places_for, places_of
from rebalance.migrations import Paused
from rebalance.ports import all_of
from rebalance.table import Placement, Topology
from wal.ids import NodeId

LOOKED_AT_ONCE = 1_000
"""So many partitions are looked at in one piece, which is as much work as to place half of them."""


class Kind(StrEnum):
    """What is done to one partition on one node."""

    COPY = "copy"  # rows or updates move
    ASYNC = "async"  # the same, and nobody waits for the copy
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
    return len(topology.placements[number].in_sync) < topology.copies_of(number)


def waits_by_order(topology: Topology, number: int) -> bool:
    """Whether no copy of a partition is to be made for now, because the operator has ordered a pause."""
    return topology.migrations.paused is not Paused.NOTHING and bool(those_that_wait(topology, (number,)))


def those_that_wait(topology: Topology, numbers: Iterable[int]) -> list[int]:
    """The partitions of some of which no copy is to be made for now, because the operator has ordered a pause."""
    match topology.migrations.paused:
        case Paused.NOTHING:
            return []
        case Paused.BALANCE:
            placements, partitions = topology.placements, topology.partitions
            wanted = [topology.copies_of(first) for first in range(0, len(placements), partitions)]  # of each group
            return [number for number in numbers if len(placements[number].in_sync) >= wanted[number // partitions]]
        case Paused.ALL:
            return list(numbers)
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
    placements, wanted = topology.placements, topology.wanted
    repairs, others = list[tuple[int, int]](), list[int]()
    for number in numbers:
        if (whole := len(placements[number].in_sync)) < wanted[number]:
            repairs.append((whole, number))
        else:
            others.append(number)
    done = [number for _, number in sorted(repairs)]
    if others:
        held = Counter(chain.from_iterable(p.owners for p in placements))
        done += [number for _, number in sorted((-held[placements[number].in_sync[-1]], number) for number in others)]
    return done


def moves(topology: Topology, baseline: Sequence[NodeId], affinity: Affinity = assign) -> list[Move]:
    """All of them, in the order in which they matter: repairs first, of them the partition with the fewest copies.

    Asynchronous copies are made after all that are waited for; one that becomes an owner is there already, and moves no
    more than what it lacks. Partitions that are LOST are left alone: what they begin with again is the operator's to say.
    """
    members = {m.node for m in topology.members}
    ideal = ideal_of(topology, affinity, baseline)
    places = places_for(affinity, tuple(baseline), topology.domains, topology.partitions, topology.all_groups)
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
            if node not in places[number]:
                why = Why.LEAVES if node not in baseline else Why.BALANCE
                found.append(((2, number), Move(number, Kind.DROP, why, node, source=None, here=node in members)))
        if placement.asynchronous or len(places[number]) > len(wanted):
            for node in places[number][len(wanted) :]:
                if node not in placement.copies:
                    why = Why.REPAIR if short else elsewhere  # by this, too, an order to pause has it wait
                    move = Move(number, Kind.ASYNC, why, node, source=primary, here=node in members)
                    found.append(((0, 2, whole, number), move))
            for node in placement.asynchronous:
                if node not in places[number]:
                    why = Why.LEAVES if node not in baseline else Why.BALANCE
                    found.append(((2, number), Move(number, Kind.DROP, why, node, source=None, here=node in members)))
    return [move for _, move in sorted(found, key=lambda item: item[0])]


class Better(msgspec.Struct, frozen=True):
    """What would be better elsewhere: `leaders` of partitions whose primaries should be they; `surplus` copies may go; of
    `missing` partitions a copy is to be made on a member."""

    leaders: dict[int, NodeId]
    surplus: list[int]
    missing: list[int]

    def without_surplus(self) -> Better:
        """The same while no copy may go: nor where one would go with what is made, as with an asynchronous copy."""
        kept = dict.fromkeys(self.surplus)
        return Better(self.leaders, [], [number for number in self.missing if number not in kept])

    def ready(self, old: Topology) -> list[int]:
        """Partitions whose ideal primary is in sync.

        Nothing is handed to who is set aside and waited for all the same.
        """
        slow = {node for node, times in old.aside.items() if times > 0}
        placements = old.placements
        return [n for n, best in self.leaders.items() if best in placements[n].in_sync and best not in slow]

    def ready_with(self, vouched: Mapping[int, Sequence[NodeId]]) -> list[int]:
        """Those whose ideal primary is about to be, because it is vouched for."""
        return [number for number, nodes in vouched.items() if self.leaders.get(number) in nodes]


def finding_better(old: Topology, alive: Sequence[NodeId], affinity: Affinity = assign) -> Generator[int, None, Better]:
    """What of a map would be better elsewhere, in pieces: yields how much work the last one was.

    A primary that is gone hands nothing over: its partition changes hands without waiting for anybody. A copy is surplus
    that is not wanted any more although every wanted one is in sync.
    """
    ideal, places = ideal_of(old, affinity), places_of(old, affinity)
    here, leaders, extra, missing = dict.fromkeys(alive), dict[int, NodeId](), list[int](), list[int]()
    members = {m.node for m in old.members if m.node in here}
    for at in range(0, len(ideal), LOOKED_AT_ONCE):
        some = slice(at, at + LOOKED_AT_ONCE)
        for number, (placement, wanted) in enumerate(zip(old.placements[some], ideal[some], strict=True), at):
            owners = placement.owners
            if owners == wanted and len(owners) + len(placement.asynchronous) == len(places[number]):
                continue  # how it nearly always is
            best = next((n for n in wanted if n in here), None)
            if best is not None and not placement.lost and owners[0] != best and owners[0] in here:
                leaders[number] = best
            if _has_surplus(placement, alive, wanted):
                extra.append(number)
            if not placement.lost and any(n in members and n not in placement.copies for n in places[number]):
                missing.append(number)
        yield min(LOOKED_AT_ONCE, len(ideal) - at) // 2
    return Better(leaders, extra, missing)


def better_of(old: Topology, alive: Sequence[NodeId], affinity: Affinity = assign) -> Better:
    """All of them."""
    return all_of(finding_better(old, alive, affinity))


def _has_surplus(placement: Placement, alive: Sequence[NodeId], ideal: Sequence[NodeId]) -> bool:
    here = [n for n in ideal if n in alive]
    if placement.lost or not here or not all(n in placement.in_sync for n in here):
        return False
    primary, *others = (n for n in placement.owners if n in alive or n == placement.owners[0])
    extra = [n for n in others if n not in here]
    return len(standing_in(extra, ideal, [primary, *(n for n in others if n in here)])) < len(extra)


def standing_in(extra: Sequence[NodeId], ideal: Sequence[NodeId], have: Sequence[NodeId]) -> list[NodeId]:
    """The copies that are not where they should be, and stay as long as too few others are."""
    return list(extra[: max(0, len(ideal) - len(have))])
