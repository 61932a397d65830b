"""A question to all primaries stays the same question while they change."""

from __future__ import annotations

from engine.client.namespaces import AskNodes
from rebalance.plan import first_topology
from rebalance.table import Candidate, Topology
from tests.conversations.in_turn import in_turn


def _map(*names: str) -> Topology:
    candidates = [Candidate(name, f"d-{name}", 1, f"{name}:1", "") for name in names]
    return first_topology("c1", "test", 4, 0, candidates, in_turn)


def test_each_primary_is_asked_once_and_who_comes_later_by_the_next_question() -> None:
    question, later = AskNodes({}), _map("n1", "n2", "n3", "n4")
    assert len(question.partitions(_map("n1", "n2"))) == 2
    assert len(question.partitions(later)) == 2, "its items are what they were"
    assert len(AskNodes({}).partitions(later)) == 4


def test_an_order_is_for_one_of_them() -> None:
    order = AskNodes({"name": ["acc"]})
    assert len(order.partitions(_map("n1", "n2", "n3"))) == 1
