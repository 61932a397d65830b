"""Clients run on the clock of a world: what is asked for first runs first, and who is gone or stands still does nothing."""

from __future__ import annotations

import asyncio

import pytest

from engine.client.calls import PutCall
from engine.turn.settings import Settings
from tests.sim.clients import Client
from tests.sim.draws import Draws
from tests.sim.world import BEGIN_NS, SECOND, World


def _world() -> tuple[World, Client]:
    world = World(Draws("a loop"), Settings(cluster="sim", partitions=4))
    world.add_machine("n1")
    return world, world.add_client("c1")


def test_what_waits_for_as_long_goes_on_in_the_order_in_which_it_began() -> None:
    world, client = _world()
    said: list[tuple[str, int]] = []

    async def speak(name: str, seconds: float) -> None:
        said.append((name, world.now))
        await asyncio.sleep(seconds)
        said.append((name, world.now))

    with world:
        for name, seconds in (("a", 2.0), ("b", 1.0), ("c", 2.0)):
            client.spawn(speak(name, seconds))
        world.run_for(3 * SECOND)
    at = [BEGIN_NS + number * SECOND for number in range(3)]
    assert said == [("a", at[0]), ("b", at[0]), ("c", at[0]), ("b", at[1]), ("a", at[2]), ("c", at[2])]


def test_time_that_was_given_up_on_is_over() -> None:
    world, client = _world()

    async def hurry() -> str:
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        except TimeoutError:
            return f"at {world.now}"
        return "never"

    with world:
        task = client.spawn(hurry())
        world.run_for(SECOND)
        assert task.result == f"at {BEGIN_NS + SECOND // 2}"


def test_what_no_client_is_told_ends_the_world() -> None:
    world, client = _world()

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise AssertionError("somebody is wrong")

    with world:
        client.spawn(fail())
        with pytest.raises(AssertionError, match="somebody is wrong"):
            world.run_for(SECOND)


def test_who_dies_ends_where_it_is_and_asks_for_nothing_any_more() -> None:
    world, client = _world()
    left: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            left.append("here")
            await client.call(PutCall(client.new_tx(), "acc", [b"k"], [b"v"]), timeout_ns=SECOND)
            left.append("and not there")

    with world:
        world.form(["n1"])
        task = client.spawn(work())
        world.run_for(SECOND)
        before = world.trace.digest()
        client.die()
        assert left == ["here"]
        assert task.done
        world.run_for(0)
        assert world.trace.digest() == before


def test_who_stands_still_hears_of_everything_afterwards() -> None:
    world, client = _world()
    with world:
        world.form(["n1"])
        put = client.spawn(client.call(PutCall(client.new_tx(), "acc", [b"k"], [b"v"]), timeout_ns=SECOND))
        world.run_for(0)
        client.loop.stand_still(world.now + 5 * SECOND)
        world.run_for(5 * SECOND - 1)
        early = put.done
        world.run_for(SECOND)
        assert not early, "nobody looks at what has arrived"
        assert put.done
        assert put.failure is None, "it has not waited while it did not run"
