"""When copies that are vouched for come to count, and how many there are."""

from __future__ import annotations

import msgspec

from rebalance.plan import first_topology
from rebalance.steps import STEPS, moving_in, worth_a_step
from rebalance.table import Candidate, Topology

NODES = ("n1", "n2", "n3")


def moving(copies: int, *, alone: int = 0) -> Topology:
    """A map of 32 partitions, in which n3 is yet to become whole in so many, and in some of them n2 is not there either."""
    candidates = [Candidate(n, n, 1, f"{n}:1", "") for n in NODES]
    topology = first_topology("c", "test", 32, 2, candidates)
    placements = list(topology.placements)
    for number in range(copies):
        old = placements[number]
        owners = ("n1", "n2", "n3")
        in_sync = ("n1",) if number < alone else ("n1", "n2")
        placements[number] = msgspec.structs.replace(old, owners=owners, in_sync=in_sync)
    return msgspec.structs.replace(topology, placements=tuple(placements))


def test_copies_that_come_together_come_to_count_together() -> None:
    topology = moving(24)
    vouched = [(number, "n3") for number in range(24)]
    assert moving_in(topology) == 24
    due = [count for count in range(1, 25) if worth_a_step(topology, vouched[:count], 24, 24)]
    assert due == list(range(24 // STEPS, 25)), "a sixth of them is worth a step"
    assert worth_a_step(topology, vouched[:1], 1, 24), "the last one waits for nobody"


def test_a_copy_of_a_partition_that_has_one_is_not_kept_waiting() -> None:
    topology = moving(24, alone=1)
    assert worth_a_step(topology, [(0, "n3")], 25, 25)
    assert not worth_a_step(topology, [(1, "n3")], 25, 25)


def test_copies_on_nodes_that_are_away_are_not_waited_for() -> None:
    topology = moving(24)
    here = tuple(m for m in topology.members if m.node != "n3")
    assert moving_in(msgspec.structs.replace(topology, members=here)) == 0
