"""One table of exit codes for all readers of logs: what is wrong is the same number, whoever comes upon it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import engine
from tests.support.commands import wal
from tests.support.memory_disk import MemoryDisk
from tests.wal.logs import SMALL, filled, update
from wal import Log, read
from wal.checksum import crc32c
from wal.codec import FORMAT, HEADER_BYTES

Spoil = Callable[[MemoryDisk], None]
LAST = 60


def _nothing(_: MemoryDisk) -> None:
    pass


def _index(disk: MemoryDisk) -> None:
    disk.flip(disk.names()[0], 8 * (SMALL.segment_bytes - 3))


def _torn(disk: MemoryDisk) -> None:
    last = list(read(disk))[-1]
    disk.flip(last.segment, 8 * (last.offset + 70))


def _unfollowed(disk: MemoryDisk) -> None:
    disk.remove(disk.names()[-1])


def _damaged(disk: MemoryDisk) -> None:
    block = next(read(disk, 30, 30))
    disk.flip(block.segment, 8 * (block.offset + 70))


def _short(disk: MemoryDisk) -> None:
    name = disk.names()[1]
    disk.put(name, disk.image(name)[: SMALL.segment_bytes // 2])


def _missing(disk: MemoryDisk) -> None:
    disk.remove(disk.names()[2])


def _foreign(disk: MemoryDisk) -> None:
    other = MemoryDisk()
    Log.open(other, cluster="tests", node="n2", settings=SMALL).close()
    disk.put(disk.names()[1], other.image(other.names()[0]))


READ_ALL = [["dump"], ["stat"], ["verify"], ["export"]]
ALONE: list[tuple[Spoil, int]] = [
    (_nothing, 0),
    (_torn, 4),
    (_damaged, 5),
    (_short, 5),
    (_missing, 6),
    (_foreign, 6),
]
"""What each reader of all records ends with. What only who verifies looks at is in tests of its own below."""


@pytest.fixture
def disk() -> MemoryDisk:
    """A log of some segments with an update in each block, whole."""
    return filled([[update(n, 60)] for n in range(1, LAST + 1)])


def _laid(disk: MemoryDisk, path: Path) -> Path:
    path.mkdir()
    for name in disk.names():
        (path / name).write_bytes(disk.image(name))
    return path


def _newer(segment: bytes) -> bytes:
    """As the next version might begin one."""
    head = segment[:8] + (FORMAT + 1).to_bytes(2, "big") + segment[10:12]
    crc = crc32c(segment[16:HEADER_BYTES], crc32c(head))
    return head + crc.to_bytes(4, "big") + segment[16:]


@pytest.mark.parametrize("verb", READ_ALL, ids=" ".join)
@pytest.mark.parametrize(("spoil", "code"), ALONE)
def test_what_is_wrong_is_one_number_for_all_readers(
    spoil: Spoil, code: int, verb: list[str], disk: MemoryDisk, tmp_path: Path
) -> None:
    spoil(disk)
    more = ["--out", tmp_path / "rows"] if verb == ["export"] else []
    result = wal(*verb, _laid(disk, tmp_path / "log"), *more)
    assert result.exit_code == code, result.output
    assert (": whole\n" in result.stdout) == (code == 0 and verb == ["verify"])


def _magic(segment: bytes) -> bytes:
    return b"?" + segment[1:]


@pytest.mark.parametrize(("spoiled", "code"), [(_magic, 5), (_newer, 3)])
@pytest.mark.parametrize("verb", ["history", "verify", "stat"])
def test_a_segment_that_does_not_begin_as_one_is_one_number_for_all(
    verb: str, spoiled: Callable[[bytes], bytes], code: int, tmp_path: Path
) -> None:
    """`history` reads indexes, and no walk."""
    with engine.open(tmp_path / "n1", wal_segment_bytes=1 << 14) as db:
        for number in range(100):
            db.namespace("notes").put(b"%d" % number, bytes(1_000))
    segment = sorted((tmp_path / "n1" / "wal").glob("*.wal"))[1]
    segment.write_bytes(spoiled(segment.read_bytes()))
    result = wal(verb, tmp_path / "n1")
    assert result.exit_code == code, result.output


@pytest.mark.parametrize(("spoil", "code"), [(_index, 1), (_unfollowed, 4)])
def test_what_costs_no_reader_a_record_is_the_business_of_who_verifies(
    spoil: Spoil, code: int, disk: MemoryDisk, tmp_path: Path
) -> None:
    spoil(disk)
    path = _laid(disk, tmp_path / "log")
    assert wal("verify", path).exit_code == code
    assert [wal(*verb, path).exit_code for verb in (["dump"], ["stat"])] == [0, 0]


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [(_torn, _damaged, [4, 5]), (_damaged, _missing, [5, 6]), (_index, _torn, [1, 4]), (_index, _foreign, [1, 6])],
)
def test_of_several_the_largest_counts_and_json_has_all(
    first: Spoil, second: Spoil, codes: list[int], disk: MemoryDisk, tmp_path: Path
) -> None:
    for spoil in (first, second):
        spoil(disk)
    result = wal("verify", _laid(disk, tmp_path / "log"), "--json")
    assert result.exit_code == codes[-1]
    *found, last = (msgspec.json.decode(line) for line in result.stdout.splitlines())
    assert {one["finding"]["exit_code"] for one in found} == set(codes)
    assert (last["exit_code"], last["exit_codes"]) == (codes[-1], codes)


def test_a_newer_log_cannot_be_read_and_a_wrong_word_is_usage(disk: MemoryDisk, tmp_path: Path) -> None:
    first = disk.names()[0]
    disk.put(first, _newer(disk.image(first)))
    path = _laid(disk, tmp_path / "newer")
    for verb in READ_ALL:
        more = ["--out", tmp_path / "rows"] if verb == ["export"] else []
        assert wal(*verb, path, *more).exit_code == 3, verb
        assert wal(*verb, path, "--nonsense").exit_code == 2, verb
