"""Which nodes should hold a partition: rendezvous hashing with bounded load and failure domains.

Every node has a weight for every partition, drawn by hashing the pair; the heaviest nodes hold it, the first of them as
primary. A node that comes or goes moves only the partitions it gains or loses (Ignite's rendezvous affinity). Two bounds
keep what chance would not: a node is primary of, and holds, at most a few percent more than the mean, and two copies
are never in one failure domain while another domain is free. Deterministic: the same nodes give the same table everywhere.

The load is bounded for each number of copies by itself: among the first two owners of all partitions no node is found too
often, nor among the first three. So whoever asks for fewer copies is told the same owners, without the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

from wal.ids import NodeId

Affinity: TypeAlias = Callable[[Sequence[NodeId], Mapping[NodeId, str], int, int], Sequence[Sequence[NodeId]]]
"""What `assign` is: (nodes, domains, partitions, copies) -> the owners of every partition, the same on every node."""

WEIGHTS_AT_ONCE = 1_500
"""So many weights are drawn in one piece, about."""
SLACK_PERCENT = 5
"""A node may hold this much more than the mean before the next heaviest node is taken instead."""


def weight(node: NodeId, partition: int) -> int:
    """The rendezvous weight of a node for a partition."""
    return int.from_bytes(blake2b(f"{node}/{partition}".encode(), digest_size=8).digest(), "big")


def assign(
    nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int
) -> tuple[tuple[NodeId, ...], ...]:
    """The ideal owners of every partition, primary first: min(copies, nodes) of them, in order of preference."""
    table = _table(nodes, domains, partitions, copies)
    table.go_on(partitions)
    return table.owners


def assigning(
    affinity: Affinity, nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int
) -> Iterator[int]:
    """Find out in pieces what an affinity is to return, which then does so at once: yields how much work each piece was.

    Thousands of partitions and a hundred nodes take seconds, and nobody has these to spare in one turn.
    """
    if affinity is assign and nodes:
        table = _table(nodes, domains, partitions, copies)
        while table.found < partitions:
            table.go_on(min(table.found + WEIGHTS_AT_ONCE // len(nodes) + 1, partitions))
            yield WEIGHTS_AT_ONCE


def _table(nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int) -> _Table:
    members = tuple(sorted(set(nodes)))
    named = tuple(sorted((n, domains[n]) for n in members if domains.get(n)))
    return _known_table(members, named, partitions, copies)


@lru_cache(maxsize=16)
def _known_table(
    nodes: tuple[NodeId, ...], domains: tuple[tuple[NodeId, str], ...], partitions: int, copies: int
) -> _Table:
    return _Table(nodes, domains, partitions, copies)


class _Table:
    """The owners of every partition, found one partition after the other: each depends on those before it."""

    def __init__(
        self, nodes: tuple[NodeId, ...], domains: tuple[tuple[NodeId, str], ...], partitions: int, copies: int
    ) -> None:
        self._nodes = nodes
        self._domain = dict(domains)
        self._partitions = partitions
        self._copies = min(copies, len(nodes))
        self._bounds = [_bound(partitions * copies, len(nodes)) for copies in range(1, self._copies + 1)]
        self._held = [dict.fromkeys(nodes, 0) for _ in self._bounds]  # among the first owner, the first two, and so on
        self._found: list[tuple[NodeId, ...]] = []
        self.owners: tuple[tuple[NodeId, ...], ...] = ()  # when all are found

    @property
    def found(self) -> int:
        """Of how many partitions the owners are found."""
        return len(self._found)

    def go_on(self, end: int) -> None:
        """Find the owners of all partitions below `end`."""
        while len(self._found) < end:
            self._found.append(self._owners_of(len(self._found)))
        if len(self._found) == self._partitions and not self.owners:
            self.owners = tuple(self._found)

    def _owners_of(self, partition: int) -> tuple[NodeId, ...]:
        domain = self._domain
        ranked = sorted(self._nodes, key=lambda n: (-weight(n, partition), n))
        owners: list[NodeId] = []
        for held, bound in zip(self._held, self._bounds, strict=True):
            taken = {domain.get(n, n) for n in owners}
            free = [n for n in ranked if n not in owners]
            apart = [n for n in free if domain.get(n, n) not in taken] or free
            owners.append(next((n for n in apart if held[n] < bound), apart[0]))
            for node in owners:
                held[node] += 1
        return tuple(owners)


def _bound(total: int, nodes: int) -> int:
    mean = -(-total // nodes)
    return mean + mean * SLACK_PERCENT // 100
