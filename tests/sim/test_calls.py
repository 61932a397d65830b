"""What turns call is held against what they ought to do: a forgotten walk shows, and who counts changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from engine.node.node import Node
from engine.protocol.requests import KEYS_AT_ONCE, Cut, Done, Lock, TakeCut
from engine.turn.effects import Effects
from engine.turn.events import Asked, Event
from engine.turn.settings import Settings
from tests.sim.calls import Calls, uncounted
from tests.sim.costs import Counted, Modelled
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.run import run_seed
from tests.sim.shapes import Shape
from tests.sim.test_turns import _cluster
from tests.sim.violation import Violation
from tests.sim.world import SECOND, World
from tests.support.patience import PATIENCE_SECONDS
from wal.ids import partition_of

ROOT = Path(__file__).parents[2]
MANY = 20_000
LITTLE = Shape("wide", partitions=64, bulk=100, clients=2, storms=1)


def _nodes(world: World) -> list[Node]:
    return [machine.node for machine in world.running if machine.node is not None]


def _primary(world: World) -> Machine:
    topology = world.newest()
    assert topology is not None
    return world.machines[topology.placements[0].primary or ""]


def _many_locks(world: World) -> Callable[[Node], object]:
    """One transaction holds very many keys, and each of them is looked at."""
    _cluster(world, 64, 1)
    keys = [key for key in map(b"k%d".__mod__, range(64 * MANY)) if partition_of(key, 64) == 0][:MANY]
    owner, replies = bytes(15) + b"x", list[object]()
    machine = _primary(world)
    session = machine.new_session(replies.append)
    for begin in range(0, MANY, KEYS_AT_ONCE):
        some = keys[begin : begin + KEYS_AT_ONCE]
        machine.receive(Asked(session, Lock(1 + begin, owner, "ns0", some, 60_000, holding=True)))
    assert world.run_while(lambda: len(replies) < MANY // KEYS_AT_ONCE, at_most=SECOND, look_every=SECOND // 100)
    return lambda node: [
        (node.locks.may_write(owner, key), node.locks.ends_by_itself(key)) for key in node.locks.keys_of(owner)
    ]


def _many_fragments(world: World) -> Callable[[Node], object]:
    """There are very many, and the state of each is looked at."""
    _cluster(world, 64, 256)
    return lambda node: [node.core.replica.fragments[name] for name in node.core.replica.fragments]


def _many_cuts(world: World) -> Callable[[Node], object]:
    """Some hundreds are kept, and each is asked about each partition."""
    _cluster(world, 64, 1)
    replies = list[object]()
    machine = _primary(world)
    session = machine.new_session(replies.append)
    for number in range(400):
        machine.receive(Asked(session, TakeCut(number, b"%016d" % number)))
        assert world.run_while(lambda number=number: len(replies) <= number, at_most=SECOND, look_every=SECOND // 1_000)  # type: ignore[misc]
    assert all(isinstance(reply, Cut) for reply in replies), replies[-1]
    return lambda node: [node.cuts.is_lost(lease, number) for lease in node.cuts.leases.values() for number in range(64)]


def _walks(
    walk: Callable[[Node], object], node: Node, original: Callable[..., Effects], now: int, events: Sequence[Event]
) -> Effects:
    """A deliberate fault: each turn walks."""
    walk(node)
    return original(now, events)


@pytest.mark.parametrize(
    ("many", "walked"),
    [
        (_many_locks, "engine/data/holdings.py:ends_by_itself"),
        (_many_fragments, "rebalance/partition.py:__getitem__"),
        (_many_cuts, "engine/data/cuts.py:is_lost"),
    ],
    ids=["locks", "fragments", "cuts"],
)
def test_a_walk_of_which_no_rule_says_anything_is_found_and_named(
    many: Callable[[World], Callable[[Node], object]], walked: str
) -> None:
    with World(Draws(1), Settings(cluster="sim", partitions=64, backups=2), costs=Counted()) as world:
        walk = many(world)
        for node in _nodes(world):
            around(node, "turn", partial(_walks, walk, node))
        world.costs = Modelled()
        world.run_for(SECOND // 10)
        world.costs = Counted()
        with pytest.raises(Violation, match=r"turn: n\d has a turn of \d+ ms by what it calls, .* it calls ") as told:
            world.run_for(SECOND)
        assert told.value.oracle == "turn"
        assert walked in str(told.value)


def test_what_another_process_does_for_a_real_node_is_not_counted() -> None:
    calls = Calls()

    class Takes(Node):
        def __init__(self) -> None:
            pass

        def turn(self, now: int, events: Sequence[Event]) -> Effects:
            with uncounted():
                for number in range(1_000):
                    Done(number)
            return Effects()

    calls.turn(Takes(), 0, [])
    assert 0 < calls.ns() < 10_000, calls.most()


def test_who_counts_is_in_the_world_of_who_does_not() -> None:
    """And a world is the same where it comes after another one, as when it is run again for its story."""
    told = [run_seed(7, shape=LITTLE, storm_ns=SECOND, cost=cost) for cost in ("model", "count", "model")]
    assert [each.violation for each in told] == [None] * 3
    assert len({each.digest for each in told}) == 1


@pytest.mark.slow
def test_the_same_is_counted_in_each_process() -> None:
    program = """
from tests.sim import costs, run
from tests.sim.calls import Calls
from tests.sim.test_calls import LITTLE
from tests.sim.world import SECOND
told = []
Calls.judge = lambda calls, node, events, price: told.append(calls.ns())
run.run_seed(7, shape=LITTLE, storm_ns=SECOND, cost="count", digest=False)
print(len(told), sum(told), told)
"""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            timeout=PATIENCE_SECONDS,
        ).stdout
        for seed in ("1", "4242")
    )
    assert len(first) > 1_000
    assert first == second
