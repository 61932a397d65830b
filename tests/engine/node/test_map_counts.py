"""What `status` counts of a map is what its placements say one by one."""

from __future__ import annotations

from engine.node.map_counts import COUNTED_OF_WORK, MapCounts
from engine.protocol.requests import Admin, Get, Report, Values
from engine.turn.events import Asked, Event
from rebalance.ports import LITTLE, WORK_MAX, all_of
from rebalance.table import Member, Placement, Standing, Topology, stamp
from tests.engine.data.test_sessions import Alone
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
    counts = all_of(MapCounts(topology).count())
    for name in (*NODES, "n4"):
        assert counts.of(name) == {
            "primary": sum(p.primary == name for p in placements),
            "owning": sum(p.standing_of(name) is Standing.OWNING for p in placements),
            "moving": sum(p.standing_of(name) is Standing.MOVING for p in placements),
            "async": sum(p.standing_of(name) is Standing.ASYNC for p in placements),
        }
    assert (counts.under_replicated, counts.lost, counts.stamp) == (2, [2], stamp(topology))


def test_whoever_asks_for_the_status_of_a_new_map_waits_for_as_many_turns_as_it_takes_to_count_it() -> None:
    """It was as much as two turns, in the turn in which the question came."""
    partitions = 16_384
    alone, told = Alone(partitions), list[object]()
    alone.idle(1_000)  # what else the map was to be looked through for
    gets: list[Event] = [Asked(1, Get(1, "acc", [b"k"]))] * (WORK_MAX - 10)
    events, turns = [*gets, Asked(1, Admin(2, "status", {}))], 0
    while not any(isinstance(reply, Report) for reply in told):
        effects = alone.node.turn(alone.node.core.now + 1, events)
        told += [reply for _, reply in effects.reply]
        assert alone.node.core.work <= WORK_MAX + partitions // COUNTED_OF_WORK + LITTLE
        events, turns = gets, turns + 1
        assert turns < 20, "however much is asked meanwhile"
    assert turns > 1
    assert sum(isinstance(reply, Values) for reply in told) >= WORK_MAX // 2 * turns, (
        "who asks for keys is answered meanwhile"
    )
    alone.turn([])
    assert isinstance(alone.ask(Admin(3, "status", {})), Report), "it is counted now"
