"""Steps that begin a fence: another baseline, other places of keys, a group, a wrong copy; who has to know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from engine.client.calls import PutCall
from engine.client.namespaces import AskNodes
from engine.cluster.attempt import Intent
from engine.messages import Heartbeat
from rebalance.namespaces import NOT_SAID, Stands
from rebalance.partition import Role
from rebalance.ports import MS
from tests.sim.machine import Machine
from tests.sim.planted.fault import around
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, key, told
from tests.sim.test_leaves import stopped
from wal.ids import NO_VERSION, NodeId

OLDER = ["", "n2"]
IDS = ["all-know", "one-does-not"]


_UNSAID: dict[str, Any] = {"fences": False, "amends": False, "anew": []}


def older(name: NodeId, *words: str) -> Callable[[Machine], None]:
    """A node that does not say that it knows of such steps, like a version that has no word for it."""
    words = words or tuple(_UNSAID)

    def plant(machine: Machine) -> None:
        assert machine.node is not None
        if machine.name == name:

            def send(original: Callable[..., None], to: Any, message: Any) -> None:
                if isinstance(message, Heartbeat):
                    message = msgspec.structs.replace(message, **{word: _UNSAID[word] for word in words})
                original(to, message)

            around(machine.node.core, "send", send)

    return plant


def order(stage: Stage, command: str, at: NodeId = "n1", **arguments: list[str]) -> None:
    stage.world.command(stage[at], command, arguments)


def baseline(stage: Stage) -> tuple[NodeId, ...]:
    node = stage["n1"].node
    assert node is not None
    assert node.core.topology is not None
    return node.core.topology.baseline


@pytest.mark.parametrize("name", OLDER, ids=IDS)
def test_another_baseline_comes_by_a_step_only_where_all_members_know_of_them(name: str) -> None:
    with Stage(older(name), nodes=4) as stage:
        stage.put(key(3), b"first")
        stage.wait(1_000)
        before = stopped(stage, "n2")
        order(stage, "baseline", nodes=["n1", "n2", "n3"], yes=[])
        stage.until(lambda: baseline(stage) == ("n1", "n2", "n3"), "the baseline is another one")
        stage.until(lambda: stage.primary(3, "n1"), "n1 leads what n4 did")
        assert (stopped(stage, "n2") > before) == bool(name), "a full exchange stops everybody"
        assert stage.get(key(3)) == b"first"
        stage.curtain()


def test_how_a_copy_caught_up_is_forgotten_when_it_moves_away() -> None:
    with Stage(None, nodes=4) as stage:
        stage.put(key(3), b"first")
        stage.power_cut("n4")
        stage.left_out("n4")
        stage.put(key(3), b"second")
        stage.start("n4")
        stage.rest()
        node = stage["n4"].node
        assert node is not None
        told = node.demander.progress
        assert told.kinds
        order(stage, "baseline", nodes=["n1", "n2", "n3"], yes=[])
        stage.until(lambda: baseline(stage) == ("n1", "n2", "n3"), "the baseline is another one")
        stage.until(lambda: node is not None and not node.core.replica.fragments, "n4 has nothing any more")
        assert [list(told.kinds), list(told.expected), list(told.reasons)] == [[], [], []]
        stage.curtain()


def test_nobody_promised_the_next_voters_anything_and_so_they_are_asked() -> None:
    """n1 alone is the baseline, and its ballot stands by its own promise; with three voters that is no majority."""
    with Stage(None) as stage:
        stage.wait(1_000)
        first = stage["n1"].node
        assert first is not None
        order(stage, "baseline", nodes=["n1"], yes=[])
        stage.until(lambda: baseline(stage) == ("n1",), "n1 is alone")
        stage.rest()
        assert list(first.exchange.held_by) == ["n1"]
        unasked = stage.lose("lead-steps")
        order(stage, "baseline", nodes=["n1", "n2", "n3"], yes=[])
        stage.until(lambda: len(baseline(stage)) == 3, "all are")
        assert first.exchange.standing is None
        stage.end(unasked)
        stage.rest()
        assert not stopped(stage, "n2") or unasked.caught
        stage.curtain()


def _give(stage: Stage, name: str, *, drop: bool = False, copies: Mapping[str, int] = {"backups": 0}) -> None:
    node = stage["n1"].node
    assert node is not None
    seen = node.core.namespaces.get(name, NOT_SAID).since
    said = {"drop": [""]} if drop else {word: [str(n)] for word, n in copies.items()}
    arguments = {"name": [name], "seen": [str(seen)], "ttl_ms": ["0"]} | said
    asked = stage.begin(stage.client.call(AskNodes(arguments), timeout_ns=ANSWER_NS))
    stage.until(lambda: asked.done, "the order is answered")
    assert asked.failure is None
    stage.until(lambda: all(_stands(stage, at, name) for at in ("n1", "n2", "n3")), "it is carried out")


def _stands(stage: Stage, at: NodeId, name: str) -> bool:
    node = stage[at].node
    said = node.core.namespaces.get(name, NOT_SAID) if node is not None else NOT_SAID
    return said.since != NO_VERSION and said.usable


def _put(stage: Stage, name: str) -> None:
    client = stage.client
    done = stage.begin(client.call(PutCall(client.new_tx(), name, [key(1)], [b"v"]), timeout_ns=ANSWER_NS))
    stage.until(lambda: told(done), "it is written")


@pytest.mark.parametrize("name", OLDER, ids=IDS)
def test_where_there_is_the_group_a_namespace_gets_copies_of_its_own_and_ends_without_stopping_anybody(name: str) -> None:
    with Stage(older(name)) as stage:
        stage.wait(1_000)
        _give(stage, "first")
        stage.rest()
        before = stopped(stage, "n2")
        _give(stage, "second")
        node = stage["n3"].node
        assert node is not None
        assert node.core.namespaces["second"].group == 1
        _put(stage, "second")
        stage.wait(100)
        _give(stage, "second", drop=True)
        stage.until(lambda: node.core.namespaces["second"].stands is Stands.DROPPED, "it is gone")
        assert node.core.namespaces["second"].group == 0
        _put(stage, "second")
        assert (stopped(stage, "n2") > before) == bool(name)
        stage.curtain()


@pytest.mark.parametrize("name", OLDER, ids=IDS)
@pytest.mark.parametrize("copies", [{"backups": 1}, {"backups": 1, "async_backups": 1}], ids=["all-sync", "one-async"])
def test_a_group_comes_by_a_step_only_where_all_members_know_of_them(name: str, copies: dict[str, int]) -> None:
    """What is written elsewhere goes on meanwhile: nobody stops. What had to be made was nothing, and whole at once."""
    with Stage(older(name, "amends")) as stage:
        stage.put(key(0), b"first")
        stage.wait(1_000)
        before = stopped(stage, "n2")
        _give(stage, "own", copies=copies)
        node = stage["n3"].node
        assert node is not None
        assert node.core.topology is not None
        group = node.core.topology.all_groups[1]
        assert (group.backups, group.async_backups) == (1, copies.get("async_backups", 0))
        assert (stopped(stage, "n2") > before) == bool(name)
        _put(stage, "own")
        assert not [p for p in node.core.topology.placements if len(p.in_sync) != len(p.owners)]
        stage.rest()
        stage.curtain()


def test_who_leads_of_a_group_that_came_by_a_step_may_be_gone_before_it_has_begun() -> None:
    """n3 dies when the step is decided and n1 alone has heard; the other copies have all of nothing, too."""
    with Stage(None) as stage:
        stage.put(key(0), b"first")
        stage.wait(1_000)
        untold = stage.lose("commit-step", "n1")
        node = stage["n1"].node
        assert node is not None
        asked = stage.begin(
            stage.client.call(
                AskNodes({"name": ["own"], "seen": [str(NO_VERSION)], "ttl_ms": ["0"], "backups": ["1"]}),
                timeout_ns=ANSWER_NS,
            )
        )
        stage.until(lambda: node.core.topology is not None and len(node.core.topology.all_groups) == 2, "n1 goes by it")
        stage.power_cut("n3")
        stage.end(untold)
        stage.until(lambda: asked.done, "the order is answered")
        stage.until(lambda: all(_stands(stage, at, "own") for at in ("n1", "n2")), "it is carried out")
        _put(stage, "own")
        stage.start("n3")
        stage.rest()
        stage.curtain()


def test_who_comes_back_as_a_group_comes_has_its_copies_of_it_from_the_beginning() -> None:
    """Seed 200057: n3 was let in by the very step that brought the group, and who leads had the only copy of it."""
    with Stage(None) as stage:
        stage.put(key(0), b"first")
        stage.wait(1_000)
        stage.power_cut("n3")
        stage.left_out("n3")
        node = stage["n1"].node
        assert node is not None
        both: list[Intent] = []

        def take(original: Callable[[Intent], bool], intent: Intent) -> bool:
            both.extend([intent] if intent.joins and intent.groups else [])
            return original(intent) if both else True  # until there is both to be done, there is something under way

        around(node.steps, "take", take)
        arguments = {"name": ["own"], "seen": [str(NO_VERSION)], "ttl_ms": ["0"], "backups": ["1"]}
        asked = stage.begin(stage.client.call(AskNodes(arguments), timeout_ns=ANSWER_NS))
        stage.start("n3")
        stage.until(lambda: asked.done, "the order is answered")
        stage.until(lambda: all(_stands(stage, at, "own") for at in ("n1", "n2", "n3")), "it is carried out")
        assert both
        _put(stage, "own")
        stage.rest()
        stage.curtain()


@pytest.mark.parametrize("name", OLDER, ids=IDS)
def test_a_copy_that_is_wrong_goes_out_by_a_step_only_where_all_members_know_of_them(name: str) -> None:
    with Stage(older(name)) as stage:
        stage.put(key(0), b"first")
        stage.wait(1_000)
        before = stopped(stage, "n2")
        wrong = stage["n3"].node
        assert wrong is not None
        order(stage, "refetch", at="n3", fragments=[f"{NAMESPACE}/0"])
        stage.until(lambda: wrong.core.local[0].role is Role.MOVING, "it is out", look_every=MS // 20)
        stage.until(lambda: wrong.core.local[0].in_sync, "it is whole again")
        assert (stopped(stage, "n2") > before) == bool(name)
        assert stage.get(key(0)) == b"first"
        stage.curtain()


@pytest.mark.parametrize("name", OLDER, ids=IDS)
def test_a_primary_whose_copy_is_wrong_moves_by_a_step_only_where_all_members_know_of_them(name: str) -> None:
    """What it leads goes to the best copy that is right, and comes back when its own is whole; nothing else stops."""
    with Stage(older(name, "amends")) as stage:
        stage.put(key(0), b"first")
        stage.put(key(1), b"first")
        stage.wait(1_000)
        before = [stopped(stage, at) for at in ("n1", "n2", "n3")]
        wrong = stage["n1"].node
        assert wrong is not None
        order(stage, "refetch", at="n1", fragments=[f"{NAMESPACE}/0"])
        stage.until(lambda: stage.primary(0, "n2"), "another one leads", look_every=MS // 20)
        stage.put(key(1), b"second")
        stage.until(lambda: wrong.core.local[0].role is Role.MOVING, "it is out", look_every=MS // 20)
        stage.until(lambda: stage.primary(0, "n1"), "it is whole again")
        assert ([stopped(stage, at) for at in ("n1", "n2", "n3")] > before) == bool(name)
        assert stage.get(key(0)) == b"first"
        stage.curtain()


def test_a_wrong_primary_does_not_wait_for_a_copy_that_loads() -> None:
    """n3 has to load, and hears nothing of it: what n1 leads moves to n2 meanwhile, which supplies both."""
    with Stage(None) as stage:
        stage.put(key(0), b"first")
        stage.wait(1_000)
        third = stage["n3"].node
        assert third is not None
        unsupplied = stage.lose("supply", "n1", "n3")
        order(stage, "refetch", at="n3", fragments=[f"{NAMESPACE}/0"])
        stage.until(lambda: third.core.local[0].role is Role.MOVING, "n3 loads", look_every=MS // 20)
        before = stopped(stage, "n2")
        order(stage, "refetch", at="n1", fragments=[f"{NAMESPACE}/0"])
        stage.until(lambda: stage.primary(0, "n2"), "n2 leads")
        stage.until(lambda: third.core.local[0].in_sync, "n3 is whole")
        stage.until(lambda: stage.primary(0, "n1"), "n1 is, too")
        assert unsupplied.caught
        assert stopped(stage, "n2") == before
        stage.end(unsupplied)
        assert stage.get(key(0)) == b"first"
        stage.curtain()
