"""The epoch table of a fragment: which epoch issued each counter, as the runs of its history."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import TypeAlias

Epochs: TypeAlias = tuple[tuple[int, int], ...]
"""An epoch table: (epoch, its first counter)."""


@lru_cache(4_096)
def one_table(epochs: Epochs) -> Epochs:
    """An equal table: fragments of one history have the same one, not one each."""
    return epochs


def noted(epochs: Epochs, epoch: int, first: int, whose: object) -> Epochs:
    """The table that says, too, that the counter `first` was issued in `epoch`."""
    at = bisect_right(epochs, first, key=_first)
    if at and epochs[at - 1][0] == epoch:
        return epochs
    assert not at or epochs[at - 1][0] < epoch, (
        f"{whose}: counter {first} was issued in epoch {epoch}, expected {epochs[at - 1][0]}"
    )
    kept = at - 1 if at and epochs[at - 1][1] == first else at  # one in which nothing was written leaves no trace
    return one_table((*epochs[:kept], (epoch, first), *epochs[at:]))


def epoch_at(epochs: Epochs, counter: int) -> int:
    """The epoch that issued a counter."""
    at = bisect_right(epochs, counter, key=_first)
    return epochs[at - 1][0] if at else 0


def _first(entry: tuple[int, int]) -> int:
    return entry[1]
