"""Which nodes should hold a partition: rendezvous hashing with bounded load and failure domains.

Every node has a weight for every partition, drawn by hashing the pair; the heaviest nodes hold it, the first of them as
primary. A node that comes or goes moves only the partitions it gains or loses (Ignite's rendezvous affinity). Two bounds
keep what chance would not: a node is primary of, and holds, at most a few percent more than its share, and two copies
never share a failure domain while another domain is free. Deterministic: the same nodes give the same table everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

from wal.ids import NodeId

Affinity: TypeAlias = Callable[[Sequence[NodeId], Mapping[NodeId, str], int, int], list[list[NodeId]]]
"""What `assign` is: (nodes, domains, partitions, copies) -> the owners of every partition, the same on every node."""

SLACK_PERCENT = 5
"""A node may hold this much more than its even share before the next heaviest node is taken instead."""


def weight(node: NodeId, partition: int) -> int:
    """The rendezvous weight of a node for a partition."""
    return int.from_bytes(blake2b(f"{node}/{partition}".encode(), digest_size=8).digest(), "big")


def assign(nodes: Sequence[NodeId], domains: Mapping[NodeId, str], partitions: int, copies: int) -> list[list[NodeId]]:
    """The ideal owners of every partition, primary first: min(copies, nodes) of them, in order of preference."""
    members = tuple(sorted(set(nodes)))
    named = tuple(sorted((n, domains[n]) for n in members if domains.get(n)))
    return [list(owners) for owners in _assign(members, named, partitions, copies)]


@lru_cache(maxsize=16)
def _assign(
    nodes: tuple[NodeId, ...], domains: tuple[tuple[NodeId, str], ...], partitions: int, copies: int
) -> tuple[tuple[NodeId, ...], ...]:
    if not nodes:
        return tuple(() for _ in range(partitions))
    copies = min(copies, len(nodes))
    domain = dict(domains)
    bound = _bound(partitions * copies, len(nodes))
    primary_bound = _bound(partitions, len(nodes))
    held = dict.fromkeys(nodes, 0)
    led = dict.fromkeys(nodes, 0)
    table: list[tuple[NodeId, ...]] = []
    for partition in range(partitions):
        ranked = sorted(nodes, key=lambda n: (-weight(n, partition), n))
        owners: list[NodeId] = []
        while len(owners) < copies:
            load, limit = (held, bound) if owners else (led, primary_bound)
            taken = {domain.get(n, n) for n in owners}
            free = [n for n in ranked if n not in owners]
            apart = [n for n in free if domain.get(n, n) not in taken] or free
            choice = next((n for n in apart if load[n] < limit), apart[0])
            owners.append(choice)
            if len(owners) == 1:
                led[choice] += 1
            held[choice] += 1
        table.append(tuple(owners))
    return tuple(table)


def _bound(total: int, nodes: int) -> int:
    share = -(-total // nodes)
    return share + share * SLACK_PERCENT // 100
