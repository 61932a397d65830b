"""Where the copies of all partitions of a map should be: what affinity says of one group, for every group.

Partition p of each group has the first of the same nodes, as many as its group asks for. So the keys of one slot have the
same primary in all groups, wherever each of them is in place, and a group that comes or goes moves nothing of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from rebalance.affinity import Affinity, assigning
from rebalance.table import Group, Topology
from wal.ids import NodeId

Ideal = Sequence[Sequence[NodeId]]
"""The nodes of every partition of the table in order, primary first."""


def ideal_of(topology: Topology, affinity: Affinity, baseline: Sequence[NodeId] | None = None) -> Ideal:
    """Where the owners of a map should be; or where they should be with these nodes as its baseline."""
    nodes = topology.baseline if baseline is None else tuple(baseline)
    return ideal_for(affinity, nodes, topology.domains, topology.partitions, topology.all_groups)


def ideal_for(
    affinity: Affinity,
    nodes: Sequence[NodeId],
    domains: Mapping[NodeId, str],
    partitions: int,
    groups: tuple[Group, ...],
) -> Ideal:
    """Where the owners of these groups should be."""
    if len(groups) == 1 and not groups[0].async_backups:
        return affinity(nodes, domains, partitions, groups[0].copies)
    return _of_groups(affinity, tuple(nodes), tuple(sorted(domains.items())), partitions, groups)


def places_for(
    affinity: Affinity,
    nodes: Sequence[NodeId],
    domains: Mapping[NodeId, str],
    partitions: int,
    groups: tuple[Group, ...],
) -> Ideal:
    """The same, and behind the owners those whose copies should be asynchronous: they step in for owners that are away."""
    if not any(group.async_backups for group in groups):
        return ideal_for(affinity, nodes, domains, partitions, groups)
    return _of_groups(affinity, tuple(nodes), tuple(sorted(domains.items())), partitions, groups, asynchronous=True)


def places_of(topology: Topology, affinity: Affinity) -> Ideal:
    """The same for a map."""
    return places_for(affinity, topology.baseline, topology.domains, topology.partitions, topology.all_groups)


def finding_ideal(
    affinity: Affinity,
    nodes: Sequence[NodeId],
    domains: Mapping[NodeId, str],
    partitions: int,
    groups: tuple[Group, ...],
) -> Iterator[int]:
    """Find out in pieces what `ideal_for` is to return: yields how much work each piece was."""
    yield from assigning(affinity, nodes, domains, partitions, _most_places(groups))


def most_copies(groups: Sequence[Group]) -> int:
    """Of the group that has the most."""
    return max(group.copies for group in groups)


def _most_places(groups: Sequence[Group]) -> int:
    return max(group.places for group in groups)


@lru_cache(maxsize=8)
def _of_groups(
    affinity: Affinity,
    nodes: tuple[NodeId, ...],
    domains: tuple[tuple[NodeId, str], ...],
    partitions: int,
    groups: tuple[Group, ...],
    *,
    asynchronous: bool = False,
) -> Ideal:
    table = affinity(nodes, dict(domains), partitions, _most_places(groups))
    return tuple(tuple(owners[: group.places if asynchronous else group.copies]) for group in groups for owners in table)
