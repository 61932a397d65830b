"""How long an order stands, and that each has a time of its own."""

from __future__ import annotations

import msgspec

from engine.cluster.detector import Detector
from engine.cluster.namespaces import ORDER_MS_MAX
from engine.cluster.orders import Orders
from engine.messages import ResetLost, SetBaseline
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.plan import first_topology
from rebalance.ports import MS
from rebalance.table import Candidate, Topology
from wal.ids import Namespace, Version

NODES = ["n1", "n2", "n3", "n4", "n5"]


class NoNamespaces:
    """None is being dropped or made."""

    def gone(self) -> list[Namespace]:
        """Nothing goes."""
        return []

    def written(self) -> list[Namespace]:
        """Nothing comes."""
        return []


def a_node() -> tuple[Orders, Core, Topology]:
    """n1 of five, of which partition 0 is LOST."""
    replica = Replica(LayeredStore(MemoryStore()))
    core = Core(Settings(), replica, node="n1", allocation="d", incarnation=1, address="n1", durable_lsn=0)
    made = first_topology("c1", "f", 4, 1, [Candidate(n, f"d-{n}", 1, n, "") for n in NODES])
    lost = msgspec.structs.replace(made.placements[0], lost=True)
    core.adopt(topology := msgspec.structs.replace(made, placements=(lost, *made.placements[1:])))
    return Orders(core, Detector(core), looked_through=NoNamespaces()), core, topology


def test_an_order_stands_for_its_own_time_whatever_else_is_ordered_meanwhile() -> None:
    orders, core, topology = a_node()
    baseline, reset = ["n1", "n2", "n3"], [(0, topology.placements[0].version)]
    orders.handle(SetBaseline(baseline, topology.baselined))
    assert orders.standing(topology, NODES) == (tuple(baseline), [])
    core.now += ORDER_MS_MAX * MS // 2
    orders.handle(ResetLost(reset))
    orders.handle(SetBaseline(["n1"], Version(0, 1)))  # of a baseline that was never there: void
    core.now += ORDER_MS_MAX * MS // 2
    assert orders.standing(topology, NODES) == (tuple(baseline), [0])
    core.now += 1
    assert orders.standing(topology, NODES) == (None, [0])
    core.now += ORDER_MS_MAX * MS // 2
    assert orders.standing(topology, NODES) == (None, [])


def test_a_baseline_that_could_decide_nothing_waits_and_says_for_whom_once() -> None:
    orders, core, topology = a_node()
    orders.handle(SetBaseline(["n1", "n2", "n4", "n5"], topology.baselined))
    for _ in range(3):
        assert orders.standing(topology, ["n1", "n2", "n3"]) == (None, [])
    assert core.effects.notes == [
        "the baseline n1, n2, n4, n5 waits for n4, n5: without a majority of it nothing can be decided"
    ]
    assert orders.standing(topology, ["n1", "n2", "n3", "n5"])[0] == ("n1", "n2", "n4", "n5")
