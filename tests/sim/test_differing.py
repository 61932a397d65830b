"""Nodes that are set differently, and orders that are said again: what a seed draws of these means something."""

from __future__ import annotations

from itertools import product

from engine.turn.settings import FIXED, Settings, check_settings, habits_of
from tests.sim.differing import differing
from tests.sim.draws import Draws
from tests.sim.ordering import Operators
from tests.sim.run import draw_settings
from tests.sim.world import SECOND, World


def test_nodes_that_are_set_differently_get_on_and_wait_no_longer_than_the_seed_says() -> None:
    differs = False
    for seed in range(40):
        draw = Draws(seed).of("test")
        common = draw_settings(draw, 3)
        each = [differing(common, draw, draw_settings) for _ in range(4)]
        for one, other in product([common, *each], repeat=2):
            assert not habits_of(one).lose_each_other(habits_of(other))
        for one in each:
            check_settings(one)
            differs |= one.heartbeat_ms != common.heartbeat_ms
            assert all(getattr(one, name) == getattr(common, name) for name in (*FIXED, "durability"))
            waits = "suspicion_ms", "connection_lost_ms", "exchange_delay_ms", "exchange_retry_ms", "exchange_drain_ms"
            assert all(getattr(one, name) <= getattr(common, name) for name in waits)
    assert differs


def test_a_hasty_operator_says_it_again_and_nobody_does_in_the_calm() -> None:
    again = []
    for seed in range(12):
        for over in (False, True):
            with World(Draws(seed), Settings(cluster="sim", partitions=8)) as world:
                for name in ("n1", "n2"):
                    world.add_machine(name)
                world.form(["n1", "n2"])
                operators = Operators(world, over=lambda over=over: over)  # type: ignore[misc]  # bound now
                for _ in range(5):
                    operators.order(world.machines["n1"], "checkpoint")
                world.run_for(15 * SECOND)
                assert len(world.console) == 6 + operators.again.total(), "each is answered, that of who forms it too"
                assert not (over and operators.again)
                again.append(operators.again["checkpoint"])
    assert any(again)
    assert not all(again[::2]), "in most seeds once is enough"
