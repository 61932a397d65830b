"""`cluster init`: whoever is named agrees first, so that of two orders at once at most one is carried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from engine.messages import Accept, Commit, Propose
from engine.protocol.requests import Failed, Report
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.network import Rule
from tests.sim.oracles import watch
from tests.sim.world import SECOND, World

NAMES = ["n1", "n2", "n3", "n4"]
US = 1_000


@contextmanager
def strangers(*, clusters: int = 1) -> Iterator[World]:
    """Nodes that see each other and are in no cluster."""
    with World(Draws("formation"), Settings(cluster="sim", partitions=8, backups=1)) as world:
        for name in NAMES:
            world.add_machine(name)
        if clusters == 1:
            watch(world)
        for name in NAMES:
            assert world.machines[name].start()
        world.run_for(2 * SECOND)
        yield world


def order(world: World, at: str, cluster: str, nodes: Sequence[str]) -> None:
    """An operator's `init`."""
    world.command(world.machines[at], "init", {"cluster": [cluster], "nodes": list(nodes)})


def cluster_of(world: World, name: str) -> str:
    """The cluster that a node is in."""
    node = world.machines[name].node
    assert node is not None
    return node.core.topology.cluster if node.core.topology is not None else ""


def lose(world: World, *kinds: type, to: str = "") -> Rule:
    """Lose all messages of these kinds."""
    rule = Rule("lost", lambda _, dst, said: isinstance(said, kinds) and to in ("", dst), drop=True)
    world.network.rules.append(rule)
    return rule


@pytest.mark.parametrize("delay_us", [0, 300, 600, 1_200])
@pytest.mark.parametrize("second", [["n1", "n2", "n3"], ["n2", "n3", "n4"], ["n2", "n4"]])
def test_of_two_orders_at_once_at_most_one_forms_its_cluster(delay_us: int, second: list[str]) -> None:
    with strangers() as world:
        order(world, "n1", "c-one", ["n1", "n2", "n3"])
        world.run_for(delay_us * US)
        order(world, "n2", "c-two", second)
        world.run_for(8 * SECOND)
        assert len(world.console) == 2
        formed = {name: cluster_of(world, name) for name in NAMES if cluster_of(world, name)}
        assert len(set(formed.values())) == 1, formed
        told = {msgspec.json.decode(a.body)["formed"] for a in world.console if isinstance(a, Report)}
        assert told == set(formed.values())
        refused = [answer.message for answer in world.console if isinstance(answer, Failed)]
        assert all("form" in reason for reason in refused), refused


def test_an_order_is_not_answered_before_everybody_agreed_and_may_be_repeated_elsewhere() -> None:
    with strangers() as world:
        lost = lose(world, Accept)
        order(world, "n1", "c-one", ["n1", "n2", "n3"])
        world.run_for(SECOND)
        assert world.console == []
        world.machines["n1"].stop("killed")
        world.network.release([lost], [])
        order(world, "n2", "c-two", ["n1", "n2", "n3"])
        world.run_for(3 * SECOND)
        assert world.console == []
        assert cluster_of(world, "n2") == ""
        assert world.machines["n1"].start()
        world.run_for(5 * SECOND)
        (answer,) = world.console
        assert isinstance(answer, Report)
        assert msgspec.json.decode(answer.body) == {"formed": "c-one"}
        assert [cluster_of(world, name) for name in ("n1", "n2", "n3")] == ["c-one"] * 3


def test_an_order_without_the_consent_of_all_says_whose_is_missing_and_can_be_given_again() -> None:
    with strangers() as world:
        lost = lose(world, Propose, to="n3")
        order(world, "n1", "c-one", ["n1", "n2", "n3"])
        world.run_for(10 * SECOND)
        (answer,) = world.console
        assert isinstance(answer, Failed)
        assert "no consent from n3" in answer.message
        world.network.release([lost], [])
        order(world, "n2", "c-two", ["n2", "n3", "n4"])  # n3 never agreed to the first: it binds nobody
        world.run_for(5 * SECOND)
        assert isinstance(world.console[-1], Report)
        assert [cluster_of(world, name) for name in ("n2", "n3", "n4")] == ["c-two"] * 3


def test_a_node_that_agreed_is_not_let_into_another_cluster() -> None:
    with strangers(clusters=2) as world:
        lost = lose(world, Commit, to="n2")
        world.machines["n3"].stop("not yet")
        world.machines["n4"].stop("not yet")
        order(world, "n1", "c-one", ["n1", "n2"])
        world.run_for(SECOND)
        assert isinstance(world.console[-1], Report)
        assert cluster_of(world, "n2") == ""
        world.machines["n1"].stop("killed")
        world.machines["n3"].start()
        world.run_for(SECOND)
        order(world, "n3", "c-three", ["n3"])
        world.run_for(5 * SECOND)
        assert cluster_of(world, "n3") == "c-three"
        assert cluster_of(world, "n2") == ""
        world.network.release([lost], [])
        world.machines["n3"].stop("killed")
        world.machines["n1"].start()
        world.run_for(5 * SECOND)
        assert cluster_of(world, "n2") == "c-one"


def test_the_same_order_again_is_answered_alike() -> None:
    with strangers() as world:
        for _ in range(2):
            order(world, "n1", "c-one", NAMES)
            world.run_for(2 * SECOND)
        assert [type(answer) for answer in world.console] == [Report, Report]
