"""Nodes that give up little by little, each piece in a turn of its own, what the next map takes from them.

They would do that only of very much (`engine.node.parting`), which few worlds have under way.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.node.node import Node
from rebalance.ports import WORK_MAX


def part_slowly(node: Node, *, turns: int = 1) -> None:
    """Have a node do so, of whatever it has under way, and then go on for so many turns with the map that it has."""
    foresight, parting = node.exchange.foresight, node.parting
    parting.much = 0

    def gives_up(ending: dict[int, None]) -> Iterator[int] | None:
        pieces = parting.gives_up(ending)
        return None if pieces is None else slowly(pieces)

    def slowly(pieces: Iterator[int]) -> Iterator[int]:
        for _ in pieces:
            yield WORK_MAX
        for _ in range(turns):
            yield WORK_MAX

    foresight.gives_up = gives_up
