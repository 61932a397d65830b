"""A transaction may hold very many keys: where they are is found once, and its leases are renewed by partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from engine.client import calls
from engine.client.calls import KeepLocksCall, Whereabouts
from rebalance.table import Group
from tests.support.maps import a_map, grouped
from wal.ids import partitions_of

PARTITIONS = 16
Key = tuple[str, bytes]


def _keys(namespace: str, numbers: Iterable[int]) -> dict[Key, None]:
    return dict.fromkeys((namespace, b"key-%d" % n) for n in numbers)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys were looked at, each time that some were."""
    found: list[int] = []

    def look(keys: Sequence[bytes], partitions: int) -> list[int]:
        found.append(len(keys))
        return partitions_of(keys, partitions)

    monkeypatch.setattr(calls, "partitions_of", look)
    return found


def test_each_partition_is_told_once_in_the_order_of_the_keys() -> None:
    topology = a_map(PARTITIONS, "n1")
    keys = _keys("acc", range(1_000)) | _keys("jobs", range(1_000)) | _keys("acc", range(1_000, 1_001))
    every = [topology.place(namespace, key) for namespace, key in keys]
    first = list(dict.fromkeys(every[:1_000]))
    assert Whereabouts(keys).partitions(topology) == first + list(dict.fromkeys(every[1_000:2_000]))


def test_what_was_looked_at_is_not_looked_at_again(looked: list[int]) -> None:
    topology, keys = a_map(PARTITIONS, "n1"), _keys("acc", range(1_000))
    where = Whereabouts(keys)
    before = where.partitions(topology)
    for _ in range(3):
        assert KeepLocksCall(b"t", where).partitions(topology) == before
    assert looked == [1_000]
    keys |= _keys("acc", range(1_010)) | _keys("jobs", range(5))
    assert where.partitions(topology)[: len(before)] == before, "a call under way knows its items by their positions"
    assert looked == [1_000, 10, 5]


def test_a_map_with_other_groups_moves_what_is_told_and_leaves_its_positions(looked: list[int]) -> None:
    topology = a_map(PARTITIONS, "n1", "n2", backups=1)
    keys = _keys("acc", [1]) | _keys("jobs", [1])
    where = Whereabouts(keys)
    number = topology.place("acc", b"key-1")
    assert where.partitions(topology) == [number, number]
    assert where.partitions(grouped(topology, Group(0), acc=1)) == [number + PARTITIONS, number]
    assert looked == [1, 1]
