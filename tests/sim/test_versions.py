"""What members of one version and another tell each other in an exchange: all of it, or what is enough.

Who has accepted a map is told of its commit without the map, and asks for it where that is another one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.messages import Announce, AskMap, Commit, Promise, SingleMap
from engine.node.node import Node
from tests.sim.planted.fault import around
from tests.sim.planted.stage import Stage, key
from wal import records as r
from wal.ids import NodeId


def _told(stage: Stage, name: NodeId) -> list[Commit]:
    """What a node is told of commits from now on."""
    node, told = stage[name].node, list[Commit]()
    assert node is not None

    def on_commit(original: Callable[..., None], sender: NodeId, message: Commit) -> None:
        told.append(message)
        original(sender, message)

    around(node.exchange, "on_commit", on_commit)
    return told


def _left_out(stage: Stage, node: Node) -> None:
    stage.until(lambda: node.core.topology is not None and node.core.topology.member("n3") is None, "n3 is left out")


def test_who_has_accepted_a_map_is_not_told_it_again() -> None:
    with Stage(None) as stage:
        second = stage["n2"].node
        assert second is not None
        told = _told(stage, "n2")
        stage.power_cut("n3")
        _left_out(stage, second)
        assert [(message.topology, bool(message.map_hash)) for message in told[:1]] == [(b"", True)]
        stage.put(key(0), b"1")
        stage.start("n3")
        stage.curtain()


def test_who_has_accepted_another_one_asks_for_the_map() -> None:
    with Stage(None) as stage:
        first, second = stage["n1"].node, stage["n2"].node
        assert first is not None
        assert second is not None
        told, asked = _told(stage, "n2"), list[AskMap]()

        def vote(original: Callable[..., None], record: r.Record) -> None:
            if isinstance(record, r.Accepted):  # what it has on disk is not what it said
                record = msgspec.structs.replace(record, topology=first.core.replica.committed[1])
            original(record)

        def on(original: Callable[..., None], sender: NodeId, message: object) -> None:
            if isinstance(message, AskMap):
                asked.append(message)
            original(sender, message)

        around(second.core, "vote", vote)
        around(first.exchange, "on", on)
        first._on_message[AskMap] = first.exchange.on
        stage.power_cut("n3")
        _left_out(stage, second)
        assert told[0].topology == b""
        assert asked
        assert any(message.topology for message in told), "and is told"


def test_a_voter_of_an_earlier_version_is_told_the_map() -> None:
    with Stage(None) as stage:
        first, second = stage["n1"].node, stage["n2"].node
        assert first is not None
        assert second is not None
        told = _told(stage, "n2")

        def on_promise(original: Callable[..., None], sender: NodeId, message: Promise) -> None:
            original(sender, msgspec.structs.replace(message, keeps=False))

        around(first.exchange, "on_promise", on_promise)
        stage.power_cut("n3")
        _left_out(stage, second)
        assert told[0].topology
        assert not told[0].map_hash


def _singles(stage: Stage) -> list[SingleMap]:
    """What n1 is told in exchanges from now on."""
    first, singles = stage["n1"].node, list[SingleMap]()
    assert first is not None

    def on_single_map(original: Callable[..., None], sender: NodeId, message: SingleMap) -> None:
        singles.append(message)
        original(sender, message)

    around(first.exchange, "on_single_map", on_single_map)
    return singles


def _knows_no_sums(stage: Stage, name: NodeId) -> None:
    """As if who announces to this node were of an earlier version; what that answers is what an earlier version would."""
    node = stage[name].node
    assert node is not None

    def on_announce(original: Callable[..., None], sender: NodeId, message: Announce) -> None:
        original(sender, msgspec.structs.replace(message, sums=False))

    around(node.exchange, "on_announce", on_announce)


def test_whoever_knows_of_no_sums_is_told_all_and_tells_all() -> None:
    for old in (["n1", "n2"], ["n2"], []):
        with Stage(None) as stage:
            stage.put(key(0), b"1")
            singles, second = _singles(stage), stage["n2"].node
            assert second is not None
            for name in old:
                _knows_no_sums(stage, name)
            stage.power_cut("n3")
            _left_out(stage, second)
            assert len(singles) >= 2
            assert sum(single.sums is None for single in singles[:2]) == len(old)
            assert all(bool(single.copies) == (single.sums is None) for single in singles[:2])
            stage.put(key(0), b"2")
            stage.start("n3")
            stage.curtain()
