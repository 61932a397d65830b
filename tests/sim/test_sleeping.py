"""Processes that sleep for long: what their first turns find, and what their clocks read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from engine.turn.effects import Effects
from engine.turn.events import Event
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.machine import Machine, Portions
from tests.sim.observer import Observer
from tests.sim.sleeping import PORTIONS, WHO, Sleep
from tests.sim.world import SECOND, World

NAMES = ["n1", "n2", "n3"]


class Found(Observer):
    """What n2 found in each of its turns."""

    def __init__(self) -> None:
        self.turns: list[list[Event]] = []

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        if machine.name == "n2":
            self.turns.append(list(events))


def _world(seed: int) -> World:
    world = World(Draws(seed), Settings(cluster="sim", partitions=8))
    for name in NAMES:
        world.add_machine(name)
    world.form(NAMES)
    return world


@pytest.mark.parametrize("portions", PORTIONS)
def test_who_wakes_finds_all_that_came_in_portions_and_in_order(portions: Portions) -> None:
    found = Found()
    with _world(1) as world:
        world.watch([found])
        machine = world.machines["n2"]
        machine.pause(portions=portions)
        world.run_for(30 * SECOND)
        waits, found.turns = list(machine._inbox), []
        assert len(waits) > 10
        machine.resume()
        world.run_for(SECOND // 10)
        first, each = portions
        assert [event for turn in found.turns for event in turn][: len(waits)] == waits
        assert len(found.turns[0]) == (len(waits) if first is None else min(first, len(waits)))
        left = len(waits) - len(found.turns[0])
        for turn in found.turns[1:]:
            assert left <= 0 or each is None or len(turn) <= each
            left -= len(turn)
        assert machine._at_most is None


def test_of_a_machine_that_was_saved_the_clock_stood_still() -> None:
    with _world(1) as world:
        for still in (False, True):
            machine = world.machines["n2"]
            before = machine.local(world.now)
            machine.pause(clock_too=still)
            world.run_for(20 * SECOND)
            assert machine.local(world.now) - before == (0 if still else 20 * SECOND)
            machine.resume()
            assert machine.local(world.now) - before == (0 if still else 20 * SECOND)
            world.run_for(5 * SECOND)
            assert world.serving(NAMES)


def test_everybody_sleeps_in_some_seed_and_who_does_wakes() -> None:
    said: Counter[str] = Counter()
    for seed in range(40):
        with _world(seed) as world:
            world.add_client("c1")
            sleep = Sleep(world, world.draws.of("test"))
            assert sleep.come(world.machines["n1"])
            assert not sleep.come(world.machines["n2"]), "once"
            assert world.run_while(lambda: sleep.lasts, at_most=100 * SECOND)  # noqa: B023  # called here
            assert not any(machine.paused for machine in world.running)
            said.update(line.partition("a sleep: ")[2] for line in world.trace.lines(chatter=False) if "a sleep: " in line)
    assert set(said) == set(WHO)
