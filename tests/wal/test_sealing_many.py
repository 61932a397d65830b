"""To give a sealed segment its index takes little memory, also where it speaks of very many fragments.

What lies between things that stay is not given back to the system, so that it counts for as long as the node runs.
"""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from tests.support.memory import held_while
from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import append, open_log
from wal import LogSettings, verify
from wal.codec import array_of, map_of
from wal.records import Record, Update, Write

FRAGMENTS, IN_A_BLOCK = 2_000, 100
SEGMENT_BYTES = 2 << 20
BYTES_EACH_MAX = 600


def written_and_sealed() -> float:
    """What is held for a while for each fragment of a segment, while it gets its index, in bytes."""
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=SEGMENT_BYTES, total_bytes=64 << 20))
    fragments = 0
    while not any(segment.sealed for segment in log.segments()):
        some = range(fragments, fragments + IN_A_BLOCK)
        block: list[Record] = [Update([Write("many", n, 1, 0, [b"key-%d" % n], [b"v" * 100], tx=b"t")]) for n in some]
        append(log, *block)
        fragments += IN_A_BLOCK
        if log.wants_index and not any(segment.sealed for segment in log.segments()):
            log.write_index()
    assert fragments > FRAGMENTS
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    log.write_index()
    _, most = tracemalloc.get_traced_memory()
    assert verify(disk, indexes=True).findings == []
    return (most - before) / fragments


def test_a_sealed_segment_gets_its_index_without_much_for_each_of_its_fragments() -> None:
    each, _ = held_while(written_and_sealed)
    assert each < BYTES_EACH_MAX


@pytest.mark.parametrize("count", [0, 1, 15, 16, (1 << 16) - 1, 1 << 16])
def test_what_is_encoded_as_it_comes_is_what_is_encoded_at_once(count: int) -> None:
    numbers = range(count)
    assert bytes(array_of(numbers, count)) == msgspec.msgpack.encode(list(numbers))
    assert bytes(map_of(((n, -n) for n in numbers), count)) == msgspec.msgpack.encode({n: -n for n in numbers})
