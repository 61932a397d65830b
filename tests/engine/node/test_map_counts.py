"""What `status` counts of a map is what its placements say one by one."""

from __future__ import annotations

from engine.node.map_counts import MapCounts
from rebalance.table import Member, Placement, Standing, Topology, stamp
from wal.ids import Version

NODES = ("n1", "n2", "n3")


def test_counted_at_once_or_one_by_one() -> None:
    placements = (
        Placement(1, 1, ("n1", "n2"), ("n1",)),
        Placement(1, 1, ("n2", "n3"), ("n2", "n3")),
        Placement(2, 1, ("n3", "n1"), ("n3", "n1"), lost=True),
        Placement(1, 1, ("n1", "n3", "n2"), ("n1", "n2")),
        Placement(1, 1, ("n1", "n3"), ("n1", "n3"), asynchronous=("n2",)),
    )
    members = tuple(Member(name, f"{name}-disk", 1, "-", order) for order, name in enumerate(NODES))
    topology = Topology(Version(1, 0), "c1", "foreshore", 5, 1, members, NODES, placements, {}, {}, 4)
    counts = MapCounts(topology)
    for name in (*NODES, "n4"):
        assert counts.of(name) == {
            "primary": sum(p.primary == name for p in placements),
            "owning": sum(p.standing_of(name) is Standing.OWNING for p in placements),
            "moving": sum(p.standing_of(name) is Standing.MOVING for p in placements),
            "async": sum(p.standing_of(name) is Standing.ASYNC for p in placements),
        }
    assert (counts.under_replicated, counts.lost, counts.stamp) == (2, [2], stamp(topology))
