"""What is found out of the largest map there may be: in pieces, or in one walk that does no more for each than it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

import pytest

from engine.cluster.orders import COUNTED_AT_ONCE, PLACED_OF_WORK, Cost, costing
from rebalance.affinity import assign
from rebalance.table import Group, Member, Placement, Topology, in_sync_of
from wal.ids import NodeId, Version

NODES: tuple[NodeId, ...] = ("n1", "n2", "n3")
PARTITIONS = 2_048
GROUPS = (Group(2), Group(0), Group(1))
T = TypeVar("T")


def _map() -> Topology:
    """Three groups; n3 is away, and alone has what lies in the last one."""
    owners = assign(NODES, {}, PARTITIONS, 3)
    placements = tuple(
        Placement(1, 1, nodes, ("n3",) if place == 2 else nodes) for place in range(len(GROUPS)) for nodes in owners
    )
    return Topology(
        version=Version(7, 0),
        cluster="c",
        name="test",
        partitions=PARTITIONS,
        backups=2,
        members=tuple(Member(n, n, 1, f"{n}:1", order=at) for at, n in enumerate(NODES[:2])),
        baseline=NODES,
        placements=placements,
        allocations={n: n for n in NODES},
        domains={},
        next_order=3,
        groups=GROUPS,
    )


def test_what_another_baseline_costs_is_counted_in_pieces() -> None:
    """A turn counted all of 49,152 partitions: 40 to 58 ms."""
    topology = _map()
    walk, most, cost = costing(topology, NODES[:2], assign), 0, None
    while cost is None:
        try:
            most = max(most, next(walk))
        except StopIteration as end:
            cost = end.value
    assert isinstance(cost, Cost)
    placements = topology.placements
    assert 0 < most <= max(COUNTED_AT_ONCE // 8, len(placements) // PLACED_OF_WORK)
    assert cost.only_there == [*range(2 * PARTITIONS, 3 * PARTITIONS)]
    assert cost.made_anew == 2 * PARTITIONS, "two copies of each of the last group: of all others n1 and n2 have one"
    assert (cost.copies, cost.copies_wanted, cost.copies_before, cost.failures_survived) == (2, 3, 3, 0)
    assert cost.too_much


class Measured(Sequence[T]):
    """Counts how often it is asked how long it is."""

    def __init__(self, values: Sequence[T]) -> None:
        self._values = values
        self.asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return len(self._values)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._values[at]


@pytest.mark.parametrize("count", [1, 9, 3 * PARTITIONS])
def test_who_has_which_copies_is_noted_in_one_place_for_each_node(count: int) -> None:
    """For each copy room was made for all of them, and thrown away: of 49,152 partitions a turn of 100 ms."""
    placements = _map().placements[-count:]
    measured = Measured(placements)
    found = in_sync_of(measured)
    assert measured.asked <= len(NODES)
    for node in NODES:
        bits = found.get(node, 0).to_bytes(count, "little")
        assert [*bits] == [node in placement.in_sync for placement in placements]
