"""Members that know of no groups: while one is there none comes into the map, and none of them joins later."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.client.namespaces import AskNodes
from engine.errors import UsageError
from engine.messages import Heartbeat, Join
from engine.node.node import Node
from tests.sim.planted.fault import around
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage
from wal.ids import NO_VERSION


def grow_old(node: Node | None) -> Node:
    """A node that says nothing of groups, as it would be of an earlier version."""
    assert node is not None
    membership = node.membership

    def beat(original: Callable[[], Heartbeat]) -> Heartbeat:
        return msgspec.structs.replace(original(), groups=False)

    def join(original: Callable[[], Join]) -> Join:
        return msgspec.structs.replace(original(), groups=False)

    around(membership, "_heartbeat", beat)
    around(membership.joining, "join", join)
    return node


def with_copies_of_its_own(stage: Stage) -> str:
    """A namespace is to have one backup, in a cluster of two; why it cannot have, or nothing."""
    arguments = {"name": [NAMESPACE], "seen": [str(NO_VERSION)], "ttl_ms": ["0"], "backups": ["1"]}
    asked = stage.begin(stage.client.call(AskNodes(arguments), timeout_ns=ANSWER_NS))
    stage.until(lambda: asked.done, "the order is answered")
    assert asked.failure is None or isinstance(asked.failure, UsageError)
    return str(asked.failure or "")


def groups_of(node: Node | None) -> int:
    """In its map."""
    assert node is not None
    assert node.core.topology is not None
    return len(node.core.topology.all_groups)


def test_whoever_could_not_read_the_map_is_named_and_the_order_refused() -> None:
    with Stage(None) as stage:
        grow_old(stage["n3"].node)
        stage.wait(1_000)
        assert "n3 is of a version that knows of none: upgrade all members first" in with_copies_of_its_own(stage)
        assert groups_of(stage["n1"].node) == 1
        stage.power_cut("n3")
        stage.start("n3")  # it was upgraded
        stage.wait(3_000)
        assert with_copies_of_its_own(stage) == ""
        stage.until(lambda: groups_of(stage["n1"].node) == 2, "the group is in the map")
        stage.curtain()


def test_whoever_could_not_read_the_map_is_not_let_in() -> None:
    with Stage(None, absent=1) as stage:
        assert with_copies_of_its_own(stage) == ""
        first = stage["n1"].node
        assert first is not None
        stage.until(lambda: groups_of(first) == 2, "the group is in the map")
        stage.start("n4")
        grow_old(stage["n4"].node)
        stage.wait(3_000)
        assert first.core.topology is not None
        assert first.core.topology.member("n4") is None
        stage.power_cut("n4")
        stage.start("n4")
        stage.until(lambda: first.core.topology is not None and first.core.topology.member("n4") is not None, "n4 joins")
