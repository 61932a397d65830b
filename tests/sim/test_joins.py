"""Nodes that are let in, while some run a version of the program that knows of no steps by which one joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.messages import Join, Promise
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.planted.stage import Stage, key


def _older(name: str) -> Callable[[Machine], None]:
    """A node that does not say that it knows of such steps, like a version that has no word for it."""

    def plant(machine: Machine) -> None:
        assert machine.node is not None
        if machine.name == name:

            def send(original: Callable[..., None], to: Any, message: Any) -> None:
                older = isinstance(message, Promise | Join)
                original(to, msgspec.structs.replace(message, admits=False) if older else message)

            around(machine.node.core, "send", send)

    return plant


@pytest.mark.parametrize("older", ["", "n2", "n3"], ids=["all-know", "a-member-does-not", "the-joiner-does-not"])
def test_a_step_lets_a_node_in_only_where_all_members_and_it_know_of_such_steps(older: str) -> None:
    with Stage(_older(older)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n3")
        stage.left_out("n3")
        second = stage["n2"].node
        assert second is not None
        stopped = second.core.maps.stopped
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is back")
        newest = stage.world.newest()
        assert newest is not None
        stage.until(lambda: second.core.version == newest.version, "n2 knows")
        assert (newest.fenced.major == newest.version.major) == bool(older), "a full exchange begins another fence"
        assert (second.core.maps.stopped > stopped) == bool(older), "and stops everybody"
        stage.curtain()
