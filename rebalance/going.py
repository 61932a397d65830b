"""Who goes, without stopping anybody: as a map says it, which comes by light steps (`rebalance.steps`).

A map notes of each disk that is away which life on it was listed last (`Topology.listed`). A member that is about to go is
noted there while it is still listed. From then on it is the last place for anything: its primaries move away, and none
comes; its copies go; then it does. Both who is noted and who is let in again begins a new fence, so that by one fence a
place is better than another or it is not, and a name is that of one life.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

import msgspec

from rebalance.table import Placement, Topology, disk_name, node_of
from wal.ids import NO_VERSION, NodeId


def going(topology: Topology) -> list[NodeId]:
    """The members that are about to go."""
    if not topology.listed:
        return []
    return [m.node for m in topology.members if disk_name(m.node, m.allocation) in topology.listed]


def has_gone(topology: Topology, node: NodeId) -> bool:
    """Whether an earlier life of a node was let go under the fence that holds."""
    return topology.member(node) is None and any(
        node_of(name) == node and version >= topology.fenced for name, (_, version) in topology.listed.items()
    )


def may_go(old: Topology, nodes: Collection[NodeId]) -> bool:
    """Whether these can be noted to go: nothing waits for who is away, and the others have all that they lead.

    What a partition of theirs needs to move by a step says `rebalance.handing.movable`; here it is that it can at all.
    """
    if any(p.lost for p in old.placements) or any(old.aside.get(m.node, 0) > 0 for m in old.members):
        return False
    disks = {m.node: m.allocation for m in old.members}
    for p in old.placements:
        if p.owners[0] in nodes:
            others = [n for n in p.in_sync if n not in nodes]
            if not others or len(p.owners) != len(p.in_sync) or any(old.allocations.get(n) != disks[n] for n in p.owners):
                return False
    return True


def led_by(topology: Topology, nodes: Container[NodeId]) -> list[int]:
    """The partitions whose primaries these are."""
    return [number for number, p in enumerate(topology.placements) if not p.lost and p.owners[0] in nodes]


def held_by(topology: Topology, nodes: Collection[NodeId]) -> list[int]:
    """The partitions of which these have copies."""
    return [number for number, p in enumerate(topology.placements) if not p.lost and any(n in nodes for n in p.copies)]


def fits(
    old: Topology, placements: Sequence[tuple[int, Placement]], goes: Sequence[NodeId], gone: Sequence[NodeId]
) -> bool:
    """Whether these can be noted, and those let go, by a step that changes these placements."""
    noted = going(old)
    if not all(old.member(n) is not None and n not in noted for n in goes):
        return False
    if not gone:
        return True
    changed, rest = dict(placements), [m.node for m in old.members if m.node not in gone]
    return (
        all(n in noted for n in gone)
        and old.carried_by(rest)
        and not any(
            p.lost or not set(gone).isdisjoint(p.copies)
            for p in (changed.get(number, p) for number, p in enumerate(old.placements))
        )
    )


def noted(old: Topology, topology: Topology, goes: Sequence[NodeId], gone: Sequence[NodeId]) -> Topology:
    """`topology`, which follows `old`, with these noted, and those let go."""
    lives = {disk_name(m.node, m.allocation): (m.incarnation, old.version) for m in old.members if m.node in (*goes, *gone)}
    members = tuple(m for m in topology.members if m.node not in gone)
    return msgspec.structs.replace(topology, members=members, listed=topology.listed | lives)


def all_stay(before: Topology | None, after: Topology) -> bool:
    """Whether the later map lists whom the earlier one did, each in the same life: else what is under way with them is
    not, or has another at its end."""
    lives = {(m.node, m.allocation, m.incarnation) for m in after.members}
    return before is None or all((m.node, m.allocation, m.incarnation) in lives for m in before.members)


def never_gone(topology: Topology) -> bool:
    """Whether nobody was let go under the fence that holds, nor is about to be."""
    fence = topology.fenced
    return topology.fence == NO_VERSION or (
        not going(topology) and not any(version >= fence for _, version in topology.listed.values())
    )
