"""Who knows which counters are sought is given the records that have them, and little else of the log is read."""

from __future__ import annotations

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.test_parts import LARGE, written
from wal import records as r
from wal.codec import TRAILER_BYTES
from wal.ids import Fragment
from wal.packed import PackedBlock, PackedUpdate, skim
from wal.seeking import seek
from wal.segment_file import read_header

Found = dict[tuple[Fragment, int], list[tuple[int, int, r.Write]]]
"""Of a counter, the LSN and the time of each update that has it, with what that wrote."""


def of_counters(blocks: list[PackedBlock], counters: dict[Fragment, list[int]]) -> Found:
    """The updates among these blocks that have one of the counters."""
    found: Found = {}
    for block in blocks:
        for lsn, record in enumerate(block.records, block.first_lsn):
            for packed in record.writes if isinstance(record, PackedUpdate) else ():
                for counter in counters.get(packed.fragment, ()):
                    if packed.start < counter <= packed.end:
                        found.setdefault((packed.fragment, counter), []).append((lsn, block.time_ms, packed.opened()))
    return found


def whole(disk: MemoryDisk) -> list[PackedBlock]:
    """Every block."""
    blocks: list[PackedBlock] = []
    assert skim(disk, blocks.append) == []
    return blocks


def sought(disk: MemoryDisk, counters: dict[Fragment, list[int]], to_lsn: int | None = None) -> list[PackedBlock]:
    """What is taken of a log that is whole."""
    blocks: list[PackedBlock] = []
    assert seek(disk, counters, blocks.append, to_lsn) == []
    return blocks


def few(ends: dict[int, int]) -> dict[Fragment, list[int]]:
    """Two counters of every third partition."""
    return {("acc", at): [1 + at * 5 % end, end // 2] for at, end in ends.items() if at % 3 == 0}


def without_parts(disk: MemoryDisk) -> MemoryDisk:
    """The same log, of which no footer tells anything."""
    twin = disk.copy()
    for name in twin.names()[:1]:
        capacity = read_header(twin.open(name)).capacity
        twin.overwrite(
            name, capacity - TRAILER_BYTES - 64, bytes(64)
        )  # the index does not verify: it is the blocks' to tell
    return twin


@pytest.mark.parametrize("ask", [few, lambda ends: {("acc", at): [end // 3] for at, end in ends.items()}])
@pytest.mark.parametrize("damaged", [False, True])
def test_each_counter_is_found_where_it_stands(ask, damaged: bool) -> None:  # type: ignore[no-untyped-def]
    disk, _, ends = written()
    counters = ask(ends)
    expected = of_counters(whole(disk), counters)
    assert len(expected) > 0.9 * sum(map(len, counters.values())), "the others are prepared, or closed"
    assert of_counters(sought(without_parts(disk) if damaged else disk, counters), counters) == expected


def test_little_else_is_read_of_a_sealed_segment() -> None:
    disk, log, ends = written()
    last = log._segments.sealed()[-1].last_lsn
    counters = few(ends)
    taken = sum(len(block.records) for block in sought(disk, counters) if block.first_lsn <= last)
    blocks = sum(len(block.records) for block in sought(without_parts(disk), counters) if block.first_lsn <= last)
    assert 0 < 3 * taken < blocks <= last


def test_nothing_is_taken_from_behind_the_end_that_is_asked_for() -> None:
    disk, log, ends = written()
    until = log._segments.sealed()[-1].last_lsn // 2
    counters = few(ends)
    expected = {at: [one for one in found if one[0] <= until] for at, found in of_counters(whole(disk), counters).items()}
    assert of_counters(sought(disk, counters, until), counters) == {at: found for at, found in expected.items() if found}


def test_a_flipped_bit_never_gives_other_records() -> None:
    disk, _, ends = written()
    counters = few(ends)
    right = of_counters(whole(disk), counters)
    name = disk.names()[0]
    for at in range(256, LARGE.segment_bytes, 19_997):
        twin, blocks = disk.copy(), list[PackedBlock]()
        twin.flip(name, 8 * at + at % 8)
        wrong = seek(twin, counters, blocks.append)
        found = of_counters(blocks, counters)
        assert all(one in right[where] for where, some in found.items() for one in some), at
        assert wrong or found == right, "what is not there is told"
