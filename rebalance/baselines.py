"""Another baseline, without stopping anybody: as a map says it, which comes by a light step (`rebalance.steps`).

The baseline says who is meant to hold data, and who votes; who has which copy follows, by steps of their own. So the map
that brings it moves nothing: what it says of copies is what the map before said. It begins a new fence, because places are
better or worse by it than they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from rebalance.table import Placement, Topology, disk_name
from wal.ids import NO_VERSION, NodeId, Version


def can_decide(baseline: Sequence[NodeId], here: Collection[NodeId]) -> bool:
    """Whether those who are here are a majority of a baseline, and so could decide what follows the map that brings it."""
    return 2 * sum(node in here for node in baseline) > len(baseline)


def may_be(old: Topology, baseline: Sequence[NodeId]) -> bool:
    """Whether these can be the baseline next by a step: the map knows a disk of each, a majority of them is here, and
    nothing is LOST, nobody set aside.
    """
    here = [m.node for m in old.members]
    return (
        len(dict.fromkeys(baseline)) == len(baseline) > 0
        and all(node in here or (node in old.baseline and node in old.allocations) for node in baseline)
        and can_decide(baseline, here)
        and not any(p.lost for p in old.placements)
        and not any(old.aside.get(node, 0) > 0 for node in here)
    )


def disks_counted_on(
    old: Topology, baseline: Collection[NodeId], placements: Sequence[Placement], here: Mapping[NodeId, str]
) -> dict[NodeId, str]:
    """The disk of each who is to be in the baseline, or has a copy that is in sync: who is `here` has that one.

    A voter is a disk: that of who is to be one and is away now is the one that was a member's.
    """
    known = {m.node: m.allocation for m in old.members if m.node in baseline} | old.allocations
    in_sync = dict.fromkeys(node for nodes in dict.fromkeys(p.in_sync for p in placements) for node in nodes)
    counted = {node: disk for node, disk in known.items() if node in baseline or node in in_sync}
    return counted | {node: disk for node, disk in here.items() if node in baseline or node in counted}


def brought(topology: Topology, old: Topology, baseline: Sequence[NodeId], version: Version) -> Topology:
    """`topology`, which follows `old`, with these as its baseline. A disk that is away and counts for nothing any more is
    forgotten; who is about to go is so still."""
    members = {m.node: m.allocation for m in topology.members}
    disks = disks_counted_on(old, baseline, topology.placements, members)
    names = dict.fromkeys(disk_name(node, disk) for node, disk in (disks | members).items())
    return msgspec.structs.replace(
        topology,
        baseline=tuple(baseline),
        baselined=version,
        allocations=disks,
        listed={name: life for name, life in topology.listed.items() if name in names},
    )


def came_by_a_step(topology: Topology) -> bool:
    """Whether the baseline came under the fence that holds, and so by a step."""
    return topology.fence != NO_VERSION and topology.baselined >= topology.fence
