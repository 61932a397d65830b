"""Primaries that move while some members run a version of the program that knows of no handover steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.messages import Promise
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.planted.stage import Stage, key


def _older(machine: Machine) -> None:
    """n3 does not say that it knows of them, nor whether it promotes, like a version that has no word for either."""
    assert machine.node is not None
    if machine.name == "n3":

        def send(original: Callable[..., None], to: Any, message: Any) -> None:
            original(to, msgspec.structs.replace(message, hands_over=False) if isinstance(message, Promise) else message)

        around(machine.node.core, "send", send)


@pytest.mark.parametrize("plant", [None, _older], ids=["all-know", "one-does-not"])
def test_a_step_moves_primaries_only_where_all_members_know_of_such_steps(plant: Callable[[Machine], None] | None) -> None:
    with Stage(plant) as stage:
        stage.put(key(1), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        drained = stage.lose("drained")
        stage.start("n2")
        if plant is None:
            stage.until(lambda: drained.caught > 0, "n3 is to hand partition 1 over to n2")
            stage.end(drained)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        assert plant is None or drained.caught == 0, "a full exchange moved it"
        assert stage.get(key(1)) == b"first"
        stage.curtain()
