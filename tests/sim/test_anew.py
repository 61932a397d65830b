"""A copy whose rows are wrong although its counters are right, and which an operator orders anew while its node runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.protocol.requests import Failed
from engine.state.store import Entry
from rebalance.partition import Role
from tests.conversations.in_turn import in_turn
from tests.sim.draws import Draws
from tests.sim.oracles import compare_copies, unsettled
from tests.sim.planted.stage import NAMESPACE, SETTINGS, key
from tests.sim.test_emptied import FIRST, form, get, hold_of, put, until
from tests.sim.violation import Violation
from tests.sim.world import SECOND, World
from wal.ids import NodeId


@pytest.fixture
def world() -> Iterator[World]:
    """Three nodes; partition 0 belongs to n1, then n2, then n3, and one row is on all of them."""
    with World(Draws("anew"), SETTINGS, affinity=in_turn) as world:
        form(world)
        yield world


def forge(world: World, name: NodeId) -> None:
    """A row that is not what the log says, at its right version."""
    node = world.machines[name].node
    assert node is not None
    store = node.core.replica.store
    held = store.get(FIRST, key(0))
    assert held is not None
    store.set(FIRST, key(0), Entry(held.epoch, held.counter, b"forged"))
    with pytest.raises(Violation):
        compare_copies(world)


def order(world: World, *names: NodeId) -> None:
    """The operator's order to each of them."""
    for name in names:
        world.command(world.machines[name], "refetch", {"fragments": [f"{NAMESPACE}/0"]})


@pytest.mark.parametrize("names", [["n2"], ["n1"], ["n1", "n2"]], ids=",".join)
def test_wrong_rows_are_replaced_while_their_nodes_run(world: World, names: list[NodeId]) -> None:
    """Of a backup, of the primary, and of both: whoever is right supplies."""
    for name in names:
        forge(world, name)
    order(world, *names)
    until(world, lambda: all(hold_of(world, name).role is Role.MOVING for name in names))
    until(world, lambda: not unsettled(world))
    compare_copies(world)
    assert get(world, "c2") == b"kept"
    put(world, world.clients["c1"], b"after")


def test_where_all_copies_are_ordered_anew_one_stays(world: World) -> None:
    order(world, "n1", "n2", "n3")
    world.run_for(SECOND)
    until(world, lambda: not unsettled(world))
    assert get(world, "c2") == b"kept"
    for name in ("n1", "n2", "n3"):
        node = world.machines[name].node
        assert node is not None
        assert (node.anew.wanted, node.anew.loading) == ({}, {})


def test_what_is_no_fragment_is_refused(world: World) -> None:
    world.command(world.machines["n1"], "refetch", {"fragments": ["seven"]})
    world.run_for(SECOND)
    answer = world.console[-1]
    assert isinstance(answer, Failed)
    assert "'seven' is no fragment: expected a namespace and a partition" in answer.message
