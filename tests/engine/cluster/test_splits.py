"""A split of the cluster is an alarm: shown, noted, and nobody takes the other side's map."""

from __future__ import annotations

import msgspec

from engine.messages import Commit, Heartbeat, Life
from rebalance import table as topologies
from tests.sim.planted.stage import Stage
from wal.ids import Version


def test_another_map_of_the_same_version_is_shown_and_noted_and_not_followed() -> None:
    with Stage(None) as stage:
        node = stage["n1"].node
        assert node is not None
        core, topology = node.core, node.core.topology
        assert topology is not None
        life = Life("n2-disk1", 1, 0)
        same = Heartbeat(core.version, life, 0, False, [], 0, topology.cluster, core.map_hash)
        node.membership.on_heartbeat("n2", same)
        assert node.admin.status()["split"] == []
        node.membership.on_heartbeat("n2", msgspec.structs.replace(same, map_hash=core.map_hash + 1))
        (shown,) = node.admin.status()["split"]
        assert (shown["node"], shown["version"]) == ("n2", str(core.version))
        assert any("SPLIT: n2 has map" in note for note in core.effects.notes)
        node.membership.on_heartbeat("n2", msgspec.structs.replace(same, cluster="another"))
        assert len(node.admin.status()["split"]) == 1
        node.membership.on_heartbeat("n2", same)
        assert node.admin.status()["split"] == []
        stage.curtain()


def test_another_successor_of_an_older_version_is_a_split_and_is_not_taken() -> None:
    with Stage(None) as stage:
        stage.power_cut("n3")
        stage.left_out("n3")
        node = stage["n1"].node
        assert node is not None
        core, topology = node.core, node.core.topology
        assert topology is not None
        first = topology.before[-1]
        assert first[0] < topology.version
        assert not topologies.split_from(topology, core.map_hash, *first)
        assert topologies.split_from(topology, core.map_hash, Version(first[0].major, first[0].minor + 1), 7)
        other = msgspec.structs.replace(topology, version=Version(9, 0), before=((first[0], first[1]), (Version(8, 0), 7)))
        node.exchange.on_commit("n2", Commit(other.version, topologies.encode(other)))
        assert core.topology is topology
        assert node.exchange.splits.found["n2"][0] == other.version
        node.exchange.splits.found.clear()
        stage.curtain()
