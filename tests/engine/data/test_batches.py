"""What is on its way when another map comes goes together anew: nobody looks for what is large where it is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.data.batches import Again, pieces_again, regroup
from engine.state.ahead import LARGE_KEYS
from rebalance.partition import LocalPartition, Role
from rebalance.ports import Operation, Shipped
from rebalance.table import Placement
from wal.records import Record, Update, Write

PARTITIONS = 8


def _led() -> list[LocalPartition]:
    """Partitions that this node leads, each with one copy elsewhere."""
    led = [LocalPartition(number, Placement(1, 1, ("n1", "n2"), ("n1", "n2"))) for number in range(PARTITIONS)]
    receivers = (("n2",), ())
    for local in led:
        local.role, local.epoch, local.receivers = Role.PRIMARY, 1, receivers
    return led


@pytest.mark.parametrize("large", [0, 3])
def test_of_what_went_in_small_batches_nobody_asks_whether_it_is_large(large: int) -> None:
    """100,000 of them took 68 ms to be put together; and each was looked for among those that are large."""
    led = _led()

    def operation(number: int, keys: int) -> Shipped:
        at = number % PARTITIONS
        return Operation(led[at], [Update([Write("n", at, 1, number, [b"k"] * keys, [b"v"] * keys)])])

    small = [operation(number, 1) for number in range(1_000)]
    much = [operation(number, LARGE_KEYS + 1) for number in range(large)]
    asked: list[Sequence[Record]] = []

    def large_in(records: Sequence[Record]) -> list[Write]:
        asked.append(records)
        return [
            write for record in records if isinstance(record, Update) for write in record.writes if write.delta > LARGE_KEYS
        ]

    again = [Again(small, {}, False, small=True), *[Again([each]) for each in much]]
    pieces = list(pieces_again(regroup(again, led), large_in, 0))
    assert asked == [each.records for each in much]
    assert [o for operations, _, _, _, is_large, _ in pieces for o in operations if not is_large] == small
    assert [operations for operations, _, _, _, is_large, _ in pieces if is_large] == [[each] for each in much]


@pytest.mark.parametrize("counts", [False, True])
def test_of_very_large_ones_a_map_has_one_said_at_once(counts: bool) -> None:
    """Each is as much as a turn says, also where it counts already, and only a copy that is filled lacks it (986022)."""
    led = _led()
    much = [
        Operation(local, [Update([Write("n", local.number, 1, 1, [b"k"] * 50_000, [b"v"] * 50_000)])]) for local in led[:3]
    ]

    def large_in(records: Sequence[Record]) -> list[Write]:
        return [write for record in records if isinstance(record, Update) for write in record.writes]

    pieces = pieces_again(regroup([Again([each], {}, counts) for each in much], led), large_in, 0)
    assert [(operations, later) for operations, _, _, _, _, later in pieces] == [
        ([much[0]], False),
        ([much[1]], True),
        ([much[2]], True),
    ]
