"""Which nodes can be in one map: the largest part of them who all hear each other.

Two members that do not hear each other cannot be in one map, although a third hears both: what one is primary of and the
other has a copy of could acknowledge nothing. So a part is wanted without any such pair: with a majority of the voters,
then with an in-sync copy of the most partitions, so that none is LOST for a link, then with the most voters, the most nodes
and those that come first: the oldest, but whoever was not heard for a while behind all others. To find it, whoever has most
broken links is left out, or kept and all it does not hear left out; both ways are walked, so the answer is exact as long as
links are few that broke, and the walk is bounded where they are not. It goes by nothing but the order of the nodes and the
map, and so is the same on every node that knows the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from wal.ids import NodeId

STEPS_MAX = 128
"""Seven nodes with broken links, in whatever pattern, are looked at in full."""

Silent = Mapping[NodeId, Collection[NodeId]]
"""Whom each node does not hear, if anybody."""
Kept = Callable[[Iterable[NodeId]], int]
"""Of how many partitions some nodes have an in-sync copy."""


def _nothing(_: Iterable[NodeId]) -> int:
    return 0


def connected(
    first: NodeId,
    nodes: Sequence[NodeId],
    silent: Silent,
    voters: Collection[NodeId],
    *,
    enough: int = 0,
    kept: Kept = _nothing,
) -> list[NodeId]:
    """`first`, and then the best of the others, in their order, who hear it and each other.

    `enough` voters are a majority; 0: the more the better.
    """
    lost = silent.get(first, ())
    others = [n for n in dict.fromkeys(nodes) if n != first and n not in lost and first not in silent.get(n, ())]
    deaf: dict[NodeId, dict[NodeId, None]] = {n: {} for n in others}
    for node in others:
        for other in silent.get(node, ()):
            if other in deaf and other != node:
                deaf[node][other] = deaf[other][node] = None
    if not any(deaf.values()):
        return [first, *others]
    others_enough = enough - (first in voters) if enough else len(others)
    walk = _Walk(others, deaf, voters, others_enough, lambda part: kept([first, *part]))
    walk.on(dict.fromkeys(others))
    return [first, *(n for n in others if n in walk.best)]


class _Walk:
    """Both ways, over and over; the best part that was met."""

    def __init__(
        self,
        order: Sequence[NodeId],
        deaf: dict[NodeId, dict[NodeId, None]],
        voters: Collection[NodeId],
        enough: int,
        kept: Kept,
    ) -> None:
        self.rank = {node: -rank for rank, node in enumerate(order)}
        self.deaf = deaf
        self.voters = voters
        self.enough = enough
        self.kept = kept
        self.best: dict[NodeId, None] = {}
        self._worth: tuple[int, int, int, int, list[int]] = (-1, -1, -1, -1, [])
        self.steps = 0

    def on(self, left: dict[NodeId, None]) -> None:
        """Look at the parts of those that are left."""
        self.steps += 1
        broken = {n: sum(o in left for o in self.deaf[n]) for n in left}
        worst = max(left, key=lambda n: (broken[n], self.rank[n]), default=None)
        if worst is None or not broken[worst]:
            worth = self._worth_of(left)
            if worth > self._worth:
                self.best, self._worth = left, worth
            return
        if sum(n in self.voters for n in left) < self._worth[0]:
            return  # whatever is left out from here on, another part has more voters, or a majority
        without = {n: None for n in left if n != worst}
        if self.steps < STEPS_MAX:
            self.on({n: None for n in left if n not in self.deaf[worst]})
        self.on(without)

    def _worth_of(self, part: dict[NodeId, None]) -> tuple[int, int, int, int, list[int]]:
        votes = sum(n in self.voters for n in part)
        oldest = sorted((self.rank[n] for n in part), reverse=True)
        return (min(votes, self.enough), self.kept(part), votes, len(part), oldest)
