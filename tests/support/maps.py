"""Maps for tests that need one and do not mind which."""

from __future__ import annotations

import msgspec

from rebalance.affinity import assign
from rebalance.ideal import ideal_for
from rebalance.namespaces import NamespaceSettings
from rebalance.plan import first_topology
from rebalance.table import Candidate, Group, Placement, Topology
from wal.ids import Namespace


def a_map(partitions: int, *nodes: str, backups: int = 0) -> Topology:
    """The first map of a cluster of these nodes, or of one."""
    candidates = [Candidate(node, f"d-{node}", 1, f"{node}:1", "") for node in nodes or ("n1",)]
    return first_topology("c1", "test", partitions, backups, candidates)


def grouped(topology: Topology, *groups: Group, **namespaces: int) -> Topology:
    """The same with other groups beside its own, and namespaces in them; every copy where it should be, and in sync."""
    every = (*topology.all_groups, *groups)
    ideal = ideal_for(assign, topology.baseline, topology.domains, topology.partitions, every)
    placements = tuple(Placement(1, 1, tuple(owners), tuple(owners)) for owners in ideal)
    settings: dict[Namespace, NamespaceSettings] = {
        name: NamespaceSettings(since=topology.version, group=group) for name, group in namespaces.items()
    }
    after = msgspec.structs.replace(topology, placements=placements, groups=every, namespaces=settings)
    after.check()
    return after
