"""Nodes that are stopped in good order: among members that know of no such steps, and where a step cannot do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.messages import Follows, Heartbeat, Join, kind_of
from rebalance.ports import MS
from tests.sim.machine import Machine
from tests.sim.network import Rule
from tests.sim.planted.fault import around
from tests.sim.planted.stage import Stage, key
from wal.ids import NodeId


def _older(name: NodeId) -> Callable[[Machine], None]:
    """A node that does not say that it knows of such steps, like a version that has no word for it."""

    def plant(machine: Machine) -> None:
        assert machine.node is not None
        if machine.name == name:

            def send(original: Callable[..., None], to: Any, message: Any) -> None:
                older = isinstance(message, Heartbeat | Join)
                original(to, msgspec.structs.replace(message, lets_go=False) if older else message)

            around(machine.node.core, "send", send)

    return plant


def _said(stage: Stage, kind: str) -> Rule:
    """A rule that counts what is said of a kind, and keeps nothing of it."""
    rule = Rule(kind, lambda _src, _dst, said: kind_of(said) == kind and _count(rule), drop=True)  # type: ignore[arg-type]
    stage.world.network.rules.append(rule)
    return rule


def _count(rule: Rule) -> bool:
    rule.caught += 1
    return False


def stopped(stage: Stage, name: NodeId) -> int:
    node = stage[name].node
    assert node is not None
    return node.core.maps.stopped


def _leave(stage: Stage, name: NodeId) -> None:
    stage.wait(1_000)
    stage.world.command(stage[name], "stop")
    stage.left_out(name)


@pytest.mark.parametrize("older", ["", "n2", "n3"], ids=["all-know", "another-does-not", "who-goes-does-not"])
@pytest.mark.parametrize("led", [False, True], ids=["nobody-led", "a-ballot-stands"])
def test_a_node_goes_by_steps_only_where_all_members_know_of_them(older: str, *, led: bool) -> None:
    with Stage(_older(older)) as stage:
        stage.put(key(2), b"first")
        if led:
            stage.power_cut("n3")
            stage.left_out("n3")
            stage.start("n3")
            stage.until(lambda: stage.primary(2, "n3"), "n3 is back")
        before = stopped(stage, "n2")
        _leave(stage, "n3")
        stage.until(lambda: stage.primary(2, "n1"), "n1 leads what n3 did")
        assert (stopped(stage, "n2") > before) == bool(older), "a full exchange stops everybody"
        assert stage.get(key(2)) == b"first"
        stage.curtain()


def test_who_is_of_an_earlier_version_does_not_come_back_by_a_step_where_somebody_has_gone() -> None:
    with Stage(lambda machine: _older("n3")(machine) if machine.boot > 1 else None) as stage:
        _leave(stage, "n3")
        assert not stopped(stage, "n2")
        stage.until(lambda: not stage["n3"].up, "n3 has ended")
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is let in")
        stage.until(lambda: stopped(stage, "n2") > 0, "by a full exchange")
        stage.curtain()


def test_with_him_by_whose_promise_it_stood_the_ballot_goes_and_all_are_asked_anew() -> None:
    with Stage(None) as stage:
        first = stage["n1"].node
        assert first is not None
        stage.wait(1_000)
        stage.world.command(stage["n3"], "stop")
        stage.until(lambda: bool(first.exchange.held_by), "a ballot stands", look_every=MS // 20)
        first.exchange.held_by.pop("n2")  # as if it had come by a step since
        stage.left_out("n3")
        assert first.exchange.standing is None
        asked = _said(stage, "lead-steps")
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is back")
        assert asked.caught, "it was promised once more, by all who are there"
        assert sorted(first.exchange.held_by) == ["n1", "n2"]
        assert not stopped(stage, "n2")
        stage.curtain()


def test_where_something_was_accepted_a_full_exchange_proposes_it() -> None:
    def plant(machine: Machine) -> None:
        assert machine.node is not None
        ballot = machine.node.steps.ballot

        def on_follows(original: Callable[..., bool], sender: NodeId, message: Follows) -> bool:
            return original(sender, msgspec.structs.replace(message, accepted=sender == "n2"))

        around(ballot, "on_follows", on_follows)

    with Stage(plant) as stage:
        _leave(stage, "n3")
        assert stopped(stage, "n2")
        stage.curtain()


def test_two_go_at_once() -> None:
    with Stage(None, nodes=5) as stage:
        stage.put(key(0), b"1")
        stage.wait(1_000)
        stage.world.command(stage["n1"], "stop")
        stage.world.command(stage["n4"], "stop")
        stage.left_out("n1")
        stage.left_out("n4")
        assert not stopped(stage, "n2")
        assert stage.get(key(0)) == b"1"
        stage.curtain()


def test_of_those_who_cannot_all_be_spared_some_go_and_the_last_ones_end_as_they_are() -> None:
    with Stage(None) as stage:
        stage.put(key(0), b"1")
        stage.wait(1_000)
        for name in ("n1", "n2", "n3"):
            stage.world.command(stage[name], "stop")
        stage.until(lambda: not any(stage[name].up for name in ("n1", "n2", "n3")), "all have ended")
        stage.start("n1", "n2", "n3")
        assert stage.get(key(0)) == b"1"
        stage.curtain()
