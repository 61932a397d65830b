"""When a partition stops whose primary moves by a step, and for what it waits; and where no step may move it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.cluster.attempt import Intent
from engine.messages import Promise
from rebalance.steps import Step
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.planted.stage import SETTINGS, Stage, key


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


def _moves_to_n2(stage: Stage) -> None:
    """n2 comes back, and partition 1 is to move to it, from n3."""
    stage.put(key(1), b"first")
    stage.power_cut("n2")
    stage.left_out("n2")
    stage.start("n2")


def test_a_partition_is_written_until_the_step_that_moves_it_is_decided() -> None:
    with Stage(None) as stage:
        asked = stage.lose("hand-over")
        _moves_to_n2(stage)
        stage.until(lambda: asked.caught > 0, "n3 is to hand partition 1 over")
        nodes = [machine.node for machine in stage.world.machines.values() if machine.node is not None]
        assert len(nodes) == 3
        accepted = [node for node in nodes if node.core.replica.accepted[0] == node.core.version]
        assert len(accepted) >= 2, "a majority has accepted what is not told yet"
        assert stage.primary(1, "n3")
        stage.put(key(1), b"second")
        stage.end(asked)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        assert stage.get(key(1)) == b"second"
        stage.curtain()


def test_who_becomes_primary_has_asked_all_copies_before_it_does() -> None:
    with Stage(None) as stage:
        waiting = stage.lose("hand-over")
        _moves_to_n2(stage)
        stage.until(lambda: waiting.caught > 0, "n3 is to hand partition 1 over")
        stage.put(key(1), b"written after that")
        asked = stage.lose("ask-tail")
        stage.end(waiting)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        assert asked.caught == 0, "it asks nobody again"
        assert stage.get(key(1)) == b"written after that"
        stage.end(asked)
        stage.curtain()


def test_not_all_that_moves_stops_together() -> None:
    with Stage(None, settings=msgspec.structs.replace(SETTINGS, partitions=512)) as stage:
        moved: list[int] = []
        n1 = stage["n1"].node
        assert n1 is not None

        def begin(original: Callable[..., None], step: Step, **more: Any) -> None:
            moved.append(len(step.placements))
            original(step, **more)

        around(n1.steps, "begin", begin)
        _moves_to_n2(stage)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        stage.wait(2_000)
        steps = [count for count in moved if count]
        assert sum(steps[-2:]) > 128 >= max(steps[-2:]), f"primaries moved by steps: {steps}"


def test_a_primary_stays_where_it_is_while_another_copy_is_filled_and_nobody_stops_for_it() -> None:
    """n2 is whole and partition 1 is to move to it; n3, which was away as well, takes ten seconds more to be filled."""
    with Stage(None) as stage:
        stage.put(key(1), b"first")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(1), b"second")
        held = stage.lose("supply", receiver="n3")
        stage.start("n3")
        stage.until(lambda: held.caught > 0, "n3 is to be filled")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.start("n2")
        n1 = stage["n1"].node
        assert n1 is not None
        stage.until(lambda: "n2" in n1.core.local[1].placement.in_sync, "n2 is whole")
        reasons: list[str] = []

        def begin(original: Callable[..., None], intent: Intent) -> None:
            reasons.append(intent.reason)
            original(intent)

        around(n1.exchange, "begin", begin)
        stage.wait(10_000)
        assert not stage.primary(1, "n2")
        stage.end(held)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        assert not reasons, "everybody stopped for what a step could do a little later"
        assert stage.get(key(1)) == b"second"
        stage.curtain()


def test_a_step_is_told_although_a_primary_does_not_say_that_it_has_drained() -> None:
    with Stage(None) as stage:
        waiting = stage.lose("hand-over")
        _moves_to_n2(stage)
        stage.until(lambda: waiting.caught > 0, "n3 is to hand partition 1 over")
        drained = stage.lose("drained")
        stage.end(waiting)
        oldest = stage["n1"].node
        assert oldest is not None
        full = oldest.core.maps.full
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1 again")
        assert drained.caught > 0
        assert oldest.core.maps.full == full, "nobody else stops for that"
        assert stage.get(key(1)) == b"first"
        stage.end(drained)
        stage.curtain()
