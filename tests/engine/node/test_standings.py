"""What an operator is told of all fragments is put together in pieces, each of which says how much work it was."""

from __future__ import annotations

from collections.abc import Iterator

from engine.node.standings import COUNTED_AT_ONCE, counters
from tests.engine.data.test_sessions import Alone


def test_partitions_of_which_nothing_is_wanted_are_looked_at_in_pieces_too() -> None:
    partitions = 10 * COUNTED_AT_ONCE
    core = Alone(partitions).node.core
    for number in range(partitions):
        core.replica.partition(number)

    def told() -> Iterator[int]:
        assert (yield from counters(core, ["what nobody wrote"], None)) == b"{}"

    works = list(told())
    counting, looking = works[: partitions // COUNTED_AT_ONCE], works[partitions // COUNTED_AT_ONCE :]
    assert looking[:-1] == counting, "to look at each is as much work as to count it"
    assert min(counting) > 0
