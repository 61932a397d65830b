"""What a ballot goes without, so that the map that it makes can be followed by another one."""

from __future__ import annotations

from engine.cluster.attempt import Attempt, Intent
from engine.cluster.claims import Claims
from engine.messages import SingleMap
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.lives import Life
from rebalance.plan import Change, first_topology
from rebalance.table import Candidate
from wal.ids import Ballot

NODES = ["n1", "n2", "n3", "n4", "n5"]


def a_change(answered: list[str], baseline: list[str] | None = None, leaving: tuple[str, ...] = ()) -> Change:
    """What n1 plans for five nodes when so many have said what they have, and the time of the others is over."""
    core = Core(
        Settings(),
        Replica(LayeredStore(MemoryStore())),
        node="n1",
        allocation="d-n1",
        incarnation=1,
        address="n1",
        durable_lsn=0,
    )
    candidates = [Candidate(n, f"d-{n}", 1, n, "") for n in NODES]
    core.adopt(topology := first_topology("c1", "f", 4, 1, candidates))
    ballot = Ballot(2, "n1")
    attempt = Attempt(topology.version, ballot, Intent(candidates, baseline=baseline, leaving=leaving), 0, [])
    for node in answered:
        attempt.report(node, SingleMap(topology.version, ballot, Life(f"d-{node}", 1, 0), [], [], []))
    return attempt.change(topology, Claims(core), 0)


def test_a_baseline_is_another_one_if_those_who_answer_are_a_majority_of_it() -> None:
    ordered = ["n1", "n2", "n4", "n5"]
    assert list(a_change(["n1", "n2", "n4"], ordered).baseline) == ordered
    assert list(a_change(["n1", "n2", "n3"], ordered).baseline) == NODES, "they could decide nothing by it"
    assert list(a_change(["n1", "n2", "n3", "n4"], ordered, ("n4",)).baseline) == NODES, "nor without who goes"


def test_nobody_goes_if_those_who_answer_could_not_go_on_without() -> None:
    assert list(a_change(["n1", "n2", "n3", "n4"], leaving=("n4",)).leaving) == ["n4"]
    assert list(a_change(["n1", "n2", "n3"], leaving=("n3",)).leaving) == []
