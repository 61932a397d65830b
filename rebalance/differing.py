"""The map of a full exchange, told as what it changes of the one before it.

It may change anything, so all that it says is in it, but for the partitions that stay as they are: where there are very
many of these, they are nearly the whole of a map, and one member that is lost concerns few of them. What is told so is a
`Step` with a `rest`, which the log keeps and which makes a map like any other step.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import zip_longest

import msgspec

from rebalance.steps import Step
from rebalance.table import Placement, Topology

AT_ONCE = 2_048
OF_WORK = 128
"""So many partitions of two maps are as much work to compare as one that is placed."""
SHORT = 4
"""Where more than one partition in so many is placed elsewhere, a map is read as fast as a whole."""


def is_short(step: Step, topology: Topology) -> bool:
    """Whether it is worth to tell a map so."""
    return len(step.placements) * SHORT <= len(topology.placements)


def makes_a_map(old: Topology, map_hash: int, step: Step) -> bool:
    """Whether that is what a full exchange changes of this very map: a map comes of it, and a later one."""
    rest, numbers = step.rest, [number for number, _ in step.placements]
    if rest is None or rest.placements or rest.version <= old.version or numbers != sorted(set(numbers)):
        return False
    known = len(old.placements)
    behind = [number for number in numbers if number >= known]
    whole = known + len(behind) == rest.partitions * len(rest.all_groups)
    return (
        whole
        and behind == list(range(known, known + len(behind)))
        and (step.after, step.map_hash) == (old.version, map_hash)
    )


def differing(old: Topology, map_hash: int, new: Topology) -> Generator[int, None, Step]:
    """The map of a full exchange as what it changes of the one before it; yields how much work it is to find that."""
    assert len(new.placements) >= len(old.placements), "partitions come, and do not go"
    changed: list[tuple[int, Placement]] = []
    for begin in range(0, len(new.placements), AT_ONCE):
        ours, theirs = old.placements[begin : begin + AT_ONCE], new.placements[begin : begin + AT_ONCE]
        changed += [
            (number, placed)
            for number, placed, before in zip_longest(range(begin, begin + len(theirs)), theirs, ours)
            if placed is not before and placed != before
        ]
        yield AT_ONCE // OF_WORK
    return Step(old.version, map_hash, changed, [], rest=msgspec.structs.replace(new, placements=()))
