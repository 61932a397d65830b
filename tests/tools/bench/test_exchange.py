"""The figures of an exchange: of nodes in one process, whose time is what they compute."""

from __future__ import annotations

from tools.bench.exchange import failover


def test_what_a_node_says_of_itself_does_not_grow_with_the_namespaces() -> None:
    few, many = (failover("exchange", 4, namespaces, partitions=64) for namespaces in (1, 10))
    assert many.counted == 10 * few.counted == 10 * 64 * 3
    told = "single map KB of a node"
    assert 0 < many.parts[told] < 1.1 * few.parts[told]
    assert few.parts["map KB"] < few.parts["logged KB of a node"]


def test_a_lost_node_is_missed_after_its_connection_broke_and_all_serve_again() -> None:
    found = failover("exchange", 4, 2, partitions=64)
    assert found.value > 500.0, "the time after which it is suspected"
    assert 0 < found.parts["longest stop of writes ms"] < found.value
