"""Readers over golden logs that somebody spoiled: each ends, and `verify` finds whatever changes an answer.

A bit of every byte of a small log is flipped; then blocks, stretches and files are zeroed, swapped, doubled and cut,
as seeded draws say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import pytest

from tests.wal import golden
from wal import (
    Block,
    File,
    Finding,
    LogError,
    asked,
    backwards,
    indexes,
    inspect,
    joined,
    list_segments,
    parts,
    verify,
    verify_part,
)
from wal.disk import DiskMissing
from wal.footer import speaking_of
from wal.records import Record

DRAWS = 400

Images = dict[str, bytes]


class Spoiled:
    """A disk of images, for readers alone."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def list(self) -> list[str]:
        return sorted(self._images)

    def open(self, name: str, write: bool = False) -> File:
        assert not write, "a reader writes"
        if name not in self._images:
            raise DiskMissing("open", name, "there is no such file")
        return Image(self._images[name])


class Image:
    """One file of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, n: int) -> bytes:
        return self._data[offset : offset + n]

    def size(self) -> int:
        return len(self._data)

    def write(self, offset: int, data: bytes) -> None:
        raise AssertionError("a reader writes")

    def sync(self) -> None:
        raise AssertionError("a reader writes")

    def truncate(self, size: int) -> None:
        raise AssertionError("a reader writes")

    def close(self) -> None:
        pass


@cache
def whole() -> Images:
    """The golden log of today."""
    return {path.name: path.read_bytes() for path in sorted(golden.DIRECTORY.iterdir())}


def said(disk: Spoiled) -> list[tuple[int, list[Record]]]:
    """All that a tolerant reading of it says."""
    return [(found.first_lsn, found.records) for found in inspect(disk) if isinstance(found, Block)]


def told(disk: Spoiled) -> tuple[list[Finding], list[tuple[int, list[Record]]]]:
    """All that is found to be wrong, and all that it says; every reader must come to an end, and in the same way as the
    others."""
    findings = verify(disk).findings
    forwards = said(disk)
    back = [(found.first_lsn, found.records) for found in backwards(disk) if isinstance(found, Block)]
    assert back[::-1] == forwards
    list_segments(disk)
    ask = speaking_of([("acc", 7)])
    for reading in (lambda: list(inspect(disk, ask=ask)), lambda: list(asked(disk, ask)), lambda: list(indexes(disk))):
        try:
            reading()
        except LogError:
            assert findings, "a reader refuses what verify calls whole"
    return findings, forwards


@cache
def right() -> list[tuple[int, list[Record]]]:
    """What the golden log says."""
    return said(Spoiled(whole()))


def check(images: Images) -> bool:
    """What was changed changes no answer, or is found. Whether it changed one."""
    disk = Spoiled(images)
    findings, says = told(disk)
    changed = says != right()
    assert findings or not changed or ended_so(images), "records changed or are gone, and verify calls it whole"
    return changed


def ended_so(images: Images) -> bool:
    """Whether this is byte for byte what the log was once: of its last segment all is zero from a block on.

    Whoever was killed there left the same bytes; only peers know of more (`wal verify --against`).
    """
    *before, last = sorted(whole())
    if sorted(images) != sorted(whole()) or any(images[name] != whole()[name] for name in before):
        return False
    ends = [whole()[last][:at] for at in blocks(whole()[last])]
    return any(images[last] == end.ljust(len(whole()[last]), b"\0") for end in ends)


def check_parts(disk: Spoiled) -> None:
    """Who reads segment by segment finds what one reader of all of them does, in the same order."""
    each = parts(disk)
    assert [found for one in each for found in inspect(disk, segment=one)] == list(inspect(disk))
    assert joined(disk, [verify_part(disk, one) for one in each]) == verify(disk)
    runs = list(pairwise([*each[::2], 2**63]))
    assert [found for one, until in runs for found in inspect(disk, segment=one, until=until)] == list(inspect(disk))
    assert joined(disk, [verify_part(disk, one, until=until) for one, until in runs]) == verify(disk)


def test_the_golden_log_is_whole() -> None:
    assert told(Spoiled(whole()))[0] == []
    assert len(right()) == len(golden.BLOCKS)


@pytest.mark.parametrize("name", sorted(whole()))
def test_a_flipped_bit_changes_no_answer_unseen(name: str) -> None:
    data = whole()[name]
    changed = 0
    for offset in range(len(data)):
        spoiled = bytearray(data)
        spoiled[offset] ^= 1 << offset % 8
        changed += check(whole() | {name: bytes(spoiled)})
    assert changed > 100, "a block that does not verify is not told of"


def test_what_was_zeroed_swapped_doubled_or_cut_changes_no_answer_unseen() -> None:
    draw = random.Random(11)
    changed = 0
    for _ in range(DRAWS):
        images = dict(whole())
        for spoil in draw.choices(SPOILS, k=draw.randint(1, 3)):
            spoil(images, draw)
        changed += check(images)
        check_parts(Spoiled(images))
    assert changed > DRAWS / 2, "most of what is drawn does harm"


def _places(data: bytes, draw: random.Random) -> Iterator[int]:
    """Where something may be done: at blocks, or anywhere."""
    begin = blocks(data)
    while True:
        yield draw.choice(begin) if begin and draw.random() < 0.6 else draw.randrange(len(data) or 1)


def blocks(data: bytes) -> list[int]:
    """Where the blocks of a segment begin."""
    return [at - 44 for at in range(44, len(data), 4) if data[at : at + 4] == b"FSbk"]


def _zero(images: Images, draw: random.Random) -> None:
    name = draw.choice(sorted(images))
    data = bytearray(images[name])
    at, n = next(_places(images[name], draw)), draw.choice([1, 8, 48, 200, 2_000])
    data[at : at + n] = bytes(len(data[at : at + n]))
    images[name] = bytes(data)


def _copy(images: Images, draw: random.Random) -> None:
    """Bytes of one place stand in another, of the same file or of another one."""
    name, other = draw.choice(sorted(images)), draw.choice(sorted(images))
    data, n = bytearray(images[name]), draw.choice([8, 48, 136, 400])
    source, to = next(_places(images[other], draw)), next(_places(images[name], draw))
    taken = images[other][source : source + n]
    data[to : to + len(taken)] = taken[: max(0, len(data) - to)]
    images[name] = bytes(data)


def _cut(images: Images, draw: random.Random) -> None:
    name = draw.choice(sorted(images))
    images[name] = images[name][: draw.randrange(len(images[name]) + 1)]


def _swap(images: Images, draw: random.Random) -> None:
    name, other = draw.choice(sorted(images)), draw.choice(sorted(images))
    images[name], images[other] = images[other], images[name]


def _lose(images: Images, draw: random.Random) -> None:
    """A file in the middle, or the first; the last may be the one that a stop did not come to make."""
    names = sorted(images)
    if len(names) > 2:
        del images[draw.choice(names[:-1])]


SPOILS: list[Callable[[Images, random.Random], None]] = [_zero, _copy, _cut, _swap, _lose]
