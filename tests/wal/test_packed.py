"""A log whose writes stay packed says what it says unpacked."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import SMALL, append, filled, open_log, prepare, update
from wal import Block, inspect
from wal import records as r
from wal.codec import NewerFormat
from wal.packed import Packed, PackedBlock, PackedHistory, PackedUpdate, kind_of, skim

TX = b"sixteen bytes id"


@pytest.fixture
def disk() -> MemoryDisk:
    """Records of several kinds, a few in each block."""
    write = r.Write("acc", 3, 2, 7, [b"a", b"b"], [b"1", None], stable=5, tx=TX, origin=1)
    others: list[r.Record] = [r.History([write]), r.Checkpoint(4), prepare(TX, [write]), r.NoOp(3, 2, [("acc", 9, 2)])]
    return filled([[update(n, 60), update(n + 100), others[n % len(others)]] for n in range(1, 21)])


def taken(disk: MemoryDisk, from_lsn: int = 1, to_lsn: int | None = None) -> list[PackedBlock]:
    """All that is skimmed of a log that is whole."""
    blocks: list[PackedBlock] = []
    assert skim(disk, blocks.append, from_lsn, to_lsn) == []
    return blocks


def opened(block: PackedBlock) -> list[r.Record]:
    """Its records, unpacked."""
    found: list[r.Record] = []
    for record in block.records:
        match record:
            case PackedUpdate(writes):
                found.append(r.Update([write.opened() for write in writes]))
            case PackedHistory(writes):
                found.append(r.History([write.opened() for write in writes]))
            case _:
                found.append(record)
    return found


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_a_packed_write_knows_where_it_ends(count: int) -> None:
    write = r.Write("acc", 3, 2, 7, [b"k"] * count, [None] * count, stable=5)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(write), type=Packed)
    assert packed.end == write.end == 7 + count
    closed = msgspec.structs.replace(write, keys=[], values=[], closed=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(closed), type=Packed).end == closed.end == 10


@pytest.mark.parametrize(("first", "last"), [(1, None), (5, None), (2, 31), (17, 17), (61, None)])
def test_what_is_skimmed_is_what_is_read(disk: MemoryDisk, first: int, last: int | None) -> None:
    read = [block for block in inspect(disk, first, last) if isinstance(block, Block)]
    skimmed = taken(disk, first, last)
    assert [(block.first_lsn, block.time_ms, opened(block)) for block in skimmed] == [
        (block.first_lsn, block.time_ms, block.records) for block in read
    ]
    for block, whole in zip(skimmed, read, strict=True):
        assert [kind_of(record) for record in block.records] == [r.kind_of(record) for record in whole.records]


def test_what_is_wrong_with_a_log_is_told_as_it_is_to_who_reads_it(disk: MemoryDisk) -> None:
    name = sorted(disk.list())[1]
    disk.flip(name, 400)
    read = [found for found in inspect(disk) if not isinstance(found, Block)]
    blocks: list[PackedBlock] = []
    assert skim(disk, blocks.append) == read != []
    assert len(blocks) == sum(isinstance(found, Block) for found in inspect(disk))


def test_a_write_that_is_no_write_is_told_and_ends_its_block() -> None:
    body = msgspec.msgpack.encode
    packed = Packed("acc", 3, 1, 0, msgspec.Raw(body([1, 2])), msgspec.Raw(body([b"", b""])))
    with pytest.raises(NewerFormat, match="cannot be decoded"):
        packed.opened()
    disk = MemoryDisk()
    append(open_log(disk, SMALL), update(1), update(2))
    seen: list[int] = []

    def take(block: PackedBlock) -> None:
        seen.append(block.first_lsn)
        packed.opened()

    (finding,) = skim(disk, take)
    assert (seen, finding.kind, finding.lsn, finding.damage) == ([1], "newer", 1, True)
