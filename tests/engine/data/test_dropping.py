"""What is being dropped, told with one node that is its own cluster, and is told what the map says of namespaces."""

from __future__ import annotations

from engine.node.node import Node
from rebalance.namespaces import NamespaceSettings, Stands
from rebalance.rule import NewMap
from tests.engine.transactions.test_participant import lone_node
from wal.ids import Version


def _says(node: Node, **namespaces: tuple[Stands, int]) -> None:
    """A step says this of namespaces, each since a version."""
    node.core.namespaces = {
        name: NamespaceSettings(Version(since, 0), stands=stands) for name, (stands, since) in namespaces.items()
    }
    node.dropping.step(NewMap([], [], []))


def test_what_was_looked_through_is_not_looked_through_again_because_another_one_is_to_go() -> None:
    node, going, making = lone_node(), Stands.DROPPING, Stands.MAKING
    dropping = node.dropping
    _says(node, a=(going, 2))
    assert not dropping.gone()
    dropping.tick()
    assert dropping.gone() == ["a"]
    _says(node, a=(going, 2), b=(going, 3), c=(making, 3))
    assert dropping.gone() == ["a"]
    dropping.tick()
    assert dropping.gone() == ["a", "b", "c"]
    _says(node, b=(going, 3))
    assert dropping.gone() == ["b"]
    _says(node, b=(going, 7))
    assert not dropping.gone(), "it was there again meanwhile"
    dropping.switch(NewMap([], [], []))
    dropping.tick()
    assert dropping.gone() == ["b"]
