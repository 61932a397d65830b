"""The notes beside the segment that is written: they spare reading it, and whatever is wrong with them, answers stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import cast

import msgspec
import pytest

from tests.support.memory_disk import MemoryDisk
from tests.wal import golden
from tests.wal.logs import open_log, update
from tools.wal.filters import Filter
from wal import (
    Block,
    Finding,
    Log,
    LogDamaged,
    LogSettings,
    SegmentInfo,
    asked,
    beside,
    crc32c,
    inspect,
    read,
    segment_walk,
    verify,
)
from wal.beside import NOTES, notes_name
from wal.codec import TRAILER_BYTES
from wal.disk import File
from wal.footer import Ask, Told, naming, speaking_of
from wal.ids import CLIENTS, MAPS
from wal.live_notes import LiveNotes, read_notes
from wal.records import EpochStart, FragmentClear, Origin, Preload, Record, Stable, Update, Write
from wal.segment_file import read_header

LARGE = LogSettings(segment_bytes=4 << 20, total_bytes=64 << 20)
PARTITIONS = 40
STEPS = 4
FEW = 5
"""Of the questions one in so many, where they are asked often."""
FIRST = 3_500
EACH = 1_200
"""Updates for each entry."""


def blocks_of(first: int, count: int) -> Iterator[list[Record]]:
    """Updates of many fragments, a few in a block, and now and then what concerns all of one."""
    for n in range(first, first + count, 5):
        block: list[Record] = [
            Update([Write("acc", at % PARTITIONS, 1, at // PARTITIONS, [b"key-%05d" % at], [b"v" * 250], tx=tx_of(at))])
            for at in range(n, n + 5)
        ]
        if n % 500 == 0:
            block += [EpochStart(n % PARTITIONS, 2, [("acc", 7)]), Origin(1, 1, tx_of(n), "n1", client="c", address="a:1")]
        if n % 700 == 0:
            block += [FragmentClear("acc", n % PARTITIONS, "test"), Preload("acc", n % 7, [1], [n], [b"key"], [b"w"])]
        yield block


def tx_of(n: int) -> bytes:
    return (n // 100).to_bytes(10, "big") + n.to_bytes(6, "big")


def writing(disk: MemoryDisk, *, steps: int = STEPS, durable: bool = True) -> Log:
    """A log whose live segment has been told of in so many steps, and then goes on a little."""
    log = open_log(disk, LogSettings(segment_bytes=4 << 20, total_bytes=64 << 20))
    for block in blocks_of(0, FIRST):  # fills the first segment, and a part of the second
        log.append(block, now_ms=1, durable=True)
    log.write_index()
    for step in range(steps):
        for block in blocks_of(FIRST + step * EACH, EACH):
            log.append(block, now_ms=2 + step, durable=durable)
        log._segments.write_notes(all_of_it=True)
    for block in blocks_of(FIRST + steps * EACH, 50):
        log.append(block, now_ms=9, durable=True)
    return log


def written() -> MemoryDisk:
    disk = MemoryDisk()
    writing(disk)
    return disk


def live(disk: MemoryDisk) -> str:
    """The segment that is written."""
    return [name for name in disk.names() if name.endswith(".wal")][-1]


def notes_of(disk: MemoryDisk) -> LiveNotes | None:
    file = disk.open(live(disk))
    return read_notes(disk, file, read_header(file))


def speaking(disk: MemoryDisk, ask: Ask | None, needle: bytes) -> list[tuple[int, list[Record]]]:
    """What a reader finds who looks for some bytes."""
    found = []
    for block in inspect(disk, ask=ask, choose=lambda raw: needle in raw.data):
        assert isinstance(block, Block), block
        found.append((block.first_lsn, block.records))
    return found


QUESTIONS: list[tuple[Ask, bytes]] = [
    *((naming([tx_of(n)]), tx_of(n)) for n in range(3, 8_000, 977)),
    *((lambda told, n=n: told.speaking_of([("acc", n % PARTITIONS)]), b"key-%05d" % n) for n in range(5, 8_000, 977)),
    (lambda told: told.speaking_of([CLIENTS]), b"a:1"),
    (lambda told: told.about(range(PARTITIONS)), b"\xa5clear"),
    (lambda told: told.about(range(PARTITIONS)), b"\xa5epoch"),
]


def answers(disk: MemoryDisk, every: int = 1) -> list[list[tuple[int, list[Record]]]]:
    return [speaking(disk, ask, needle) for ask, needle in QUESTIONS[::every]]


def test_who_asks_finds_what_a_scan_finds_and_reads_little() -> None:
    disk = written()
    scanned = [speaking(disk, None, needle) for _, needle in QUESTIONS]
    assert answers(disk) == scanned
    assert all(scanned)
    seen = 0

    def count(raw: object) -> bool:
        nonlocal seen
        seen += 1
        return False

    list(inspect(disk, choose=count, ask=naming([tx_of(9_999)])))
    notes = notes_of(disk)
    assert notes is not None
    assert seen < notes.trailer.blocks / 4, "of a segment only the blocks behind the notes, and what a filter takes for it"


def test_each_entry_tells_of_the_blocks_since_the_one_before() -> None:
    ends = []
    for steps in range(1, STEPS + 1):
        disk = MemoryDisk()
        log = writing(disk, steps=steps)
        notes = notes_of(disk)
        assert notes is not None
        assert notes.agrees(log._segments.live, indexes=True)
        assert notes.trailer.end < log._segments.live.end
        ends.append(notes.trailer.end)
    assert ends == sorted(set(ends))


def test_verify_holds_them_against_the_blocks() -> None:
    disk = written()
    assert verify(disk).findings == verify(disk, indexes=True).findings == []


def rewritten(disk: MemoryDisk, change: object) -> MemoryDisk:
    """A disk whose last entry says something else, with the right checksum."""
    twin, name = disk.copy(), notes_name(int(live(disk)[:20]))
    data, at, crc = disk.image(name), 0, read_header(disk.open(live(disk))).crc
    while True:
        length = int.from_bytes(data[at : at + 4], "big")
        if at + 8 + length == len(data):
            break
        crc, at = int.from_bytes(data[at + 4 : at + 8], "big"), at + 8 + length
    entry = msgspec.msgpack.decode(data[at + 8 :])
    change(entry)  # type: ignore[operator]
    body = msgspec.msgpack.encode(entry)
    head = len(body).to_bytes(4, "big") + crc32c(body, crc32c(crc.to_bytes(4, "big"), 0)).to_bytes(4, "big")
    twin.put(name, data[:at] + head + body)
    return twin


def lie_about(field: int, at: int = -1) -> object:
    def change(entry: list[object]) -> None:
        told = entry[field]
        if isinstance(told, list):
            told[at] = told[at][:-1] + bytes([told[at][-1] ^ 1])
        else:
            assert isinstance(told, bytes)
            entry[field] = told[:-1] + bytes([told[-1] ^ 1])

    return change


@pytest.mark.parametrize("field", [2, 3, 4, 5, 6, 7], ids=["starts", "fragments", "mentions", "about", "firsts", "filters"])
def test_notes_that_lie_are_found(field: int) -> None:
    told = rewritten(written(), lie_about(field))
    findings = verify(told, indexes=True).findings
    assert [finding.kind for finding in findings] == ["index"]
    assert findings[0].segment.endswith(NOTES)


def test_notes_whose_offsets_lie_are_found_without_a_record_being_opened() -> None:
    assert [finding.kind for finding in verify(rewritten(written(), lie_about(2))).findings] == ["index"]


def test_whatever_happens_to_their_bytes_answers_stay() -> None:
    """Each entry's head, and a bit of every so many bytes; cut anywhere; grown; of another segment; gone."""
    disk = written()
    name, right = notes_name(int(live(disk)[:20])), answers(disk, FEW)
    data = disk.image(name)
    places = [*range(24), *range(24, len(data), len(data) // 37)]
    for at in places:
        twin = disk.copy()
        twin.flip(name, 8 * at + at % 8)
        assert answers(twin, FEW) == right, at
    for size in range(0, len(data), len(data) // 19):
        twin = disk.copy()
        twin.put(name, data[:size])
        assert answers(twin, FEW) == right, size
    for other in (
        b"\0" * len(data),
        data + data,
        data + b"junk" * 9,
        data[len(data) // 2 :] + data[: len(data) // 2],
        b"\xff" * 9,
    ):
        twin = disk.copy()
        twin.put(name, other)
        assert answers(twin, FEW) == right
    twin = disk.copy()
    twin.remove(name)
    assert answers(twin, FEW) == right
    assert verify(twin).findings == []


def golden_answers(disk: MemoryDisk) -> list[tuple[int, list[Record]]]:
    """All that the golden log says of a fragment, to who asks the notes."""
    ask = speaking_of([("acc", 7), ("acc", 8)])
    return [(block.first_lsn, block.records) for block in inspect(disk, ask=ask) if isinstance(block, Block)]


def test_a_flipped_bit_of_golden_notes_changes_no_answer() -> None:
    """Where notes are not believed more blocks are read, which say nothing of a fragment that a story needs."""
    disk, wanted = golden.noted().copy(), Filter(namespace="acc")
    name = next(name for name in disk.names() if name.endswith(NOTES))

    def said() -> list[object]:
        return [
            record for _, records in golden_answers(disk) for record in wanted.of(records) if type(record) is not Stable
        ]

    right = said()
    for at in range(len(disk.image(name))):
        disk.flip(name, 8 * at + at % 8)
        assert said() == right, at
        disk.flip(name, 8 * at + at % 8)


def test_who_needs_nothing_of_what_notes_tell_of_reads_nothing_of_it() -> None:
    disk = written()
    notes = notes_of(disk)
    assert notes is not None
    after, seen = notes.trailer.last_lsn + 1, list[SegmentInfo | Finding]()
    right = list(read(disk, after))
    assert right
    twin = disk.copy()
    twin.flip(live(twin), 8 * (notes.trailer.end // 2))  # in a block that the notes tell of, and nobody asked for
    assert list(read(twin, after, passed=seen.append, briefly=True)) == right
    assert [(one.last_lsn, one.last_time_ms) for one in seen if isinstance(one, SegmentInfo)][-1] == (right[-1].last_lsn, 9)
    assert not any(isinstance(one, Finding) for one in seen)
    assert list(read(twin, after - 1, passed=seen.append, briefly=True))[1:] == right
    assert any(isinstance(one, Finding) for one in seen), "a part of what they tell of is asked for: all of it is verified"
    with pytest.raises(LogDamaged):
        list(read(twin, briefly=True))


def test_golden_notes_are_believed() -> None:
    disk = golden.noted()
    notes = notes_of(disk)
    assert notes is not None
    assert notes.trailer.records == sum(map(len, golden.BLOCKS[:-1]))


def test_notes_of_another_log_are_not_believed() -> None:
    disk = written()
    other = MemoryDisk()
    log = open_log(other, LARGE)
    for block in blocks_of(0, FIRST):
        log.append(block, now_ms=3, durable=True)  # at another time: every block has another checksum
    for step in range(STEPS):
        for block in blocks_of(FIRST + step * EACH, EACH):
            log.append(block, now_ms=2 + step, durable=True)
        log._segments.write_notes(all_of_it=True)
    foreign = next(name for name in other.names() if name.endswith(NOTES))
    name, right = notes_name(int(live(disk)[:20])), answers(disk)
    disk.put(name, other.image(foreign))
    assert answers(disk) == right


def test_notes_of_more_than_there_is_are_believed_as_far_as_it_reaches() -> None:
    """A segment that was put back to what it was some time ago, beside the notes of now."""
    before, disk = MemoryDisk(), written()
    writing(before, steps=2)
    before.put(notes_name(int(live(disk)[:20])), disk.image(notes_name(int(live(disk)[:20]))))
    notes, mine = notes_of(before), notes_of(disk)
    assert notes is not None
    assert mine is not None
    assert notes.trailer.end < mine.trailer.end
    assert answers(before) == [speaking(before, None, needle) for _, needle in QUESTIONS]


def test_what_is_told_of_and_damaged_is_told_to_who_asks_for_it() -> None:
    disk = written()
    tx = tx_of(4_001)
    at = disk.image(live(disk)).find(b"key-04001")
    disk.flip(live(disk), 8 * at)
    found = [one for one in inspect(disk, ask=naming([tx])) if isinstance(one, Finding)]
    assert [finding.kind for finding in found] == ["damaged"]


def test_what_is_not_durable_is_not_told_of() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    for block in blocks_of(0, 8_000):
        log.append(block, now_ms=1, durable=False)
    log._segments.write_notes(all_of_it=True)
    assert notes_of(disk) is None
    log.sync()
    log._segments.write_notes()
    notes = notes_of(disk)
    assert notes is not None
    assert notes.trailer.end <= log._segments.live.synced_to


def test_they_come_by_themselves_and_cost_no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "NOTES_BYTES", 300 << 10)
    disk = MemoryDisk()
    log = open_log(disk, LARGE)
    told = 0
    for block in blocks_of(0, 8_000):
        log.append(block, now_ms=1, durable=True)
        if log.wants_index:
            log.write_index()
            told += 1
    assert not log.wants_index, "what was told is not told again"
    assert told > 3
    assert notes_of(disk) is not None
    assert [name for operation, name in disk.trace if operation == "sync" and name.endswith(NOTES)] == []


def test_they_go_with_the_index_and_when_the_log_is_opened() -> None:
    disk = MemoryDisk()
    log = writing(disk)
    first = live(disk)
    for block in blocks_of(9_000, 30_000):
        if live(disk) != first:
            break
        log.append(block, now_ms=10, durable=True)
    assert notes_name(int(first[:20])) in disk.names(), "the segment has no index yet"
    log.write_index()
    assert notes_name(int(first[:20])) not in disk.names()
    other = written()
    assert any(name.endswith(NOTES) for name in other.names())
    open_log(other, LARGE)
    assert not any(name.endswith(NOTES) for name in other.names())


def test_a_disk_that_refuses_them_loses_nothing() -> None:
    for operation in ("create", "open", "write"):
        disk = MemoryDisk()
        log = open_log(disk, LARGE)
        for block in blocks_of(0, 3_000):
            log.append(block, now_ms=1, durable=True)
        disk.fail(operation, 1, "ENOSPC")
        log._segments.write_notes(all_of_it=True)
        disk.repair()
        for block in blocks_of(3_000, 3_000):
            log.append(block, now_ms=1, durable=True)
        log.close()
        assert answers(disk) == [speaking(disk, None, needle) for _, needle in QUESTIONS]


def test_a_log_that_is_closed_tells_of_all_of_it() -> None:
    disk = MemoryDisk()
    with closing(writing(disk, steps=1)) as log:
        for block in blocks_of(20_000, 2_000):
            log.append(block, now_ms=10, durable=True)
    notes = notes_of(disk)
    assert notes is not None
    assert notes.trailer.end == log._segments.live.end


def test_a_small_log_has_none() -> None:
    disk = MemoryDisk()
    with closing(open_log(disk)) as log:
        for n in range(1, 400):
            log.append([update(n)], now_ms=1, durable=True)
    assert not any(name.endswith(NOTES) for name in disk.names())


def test_what_they_lead_to_is_read_by_who_looks_behind_them_too() -> None:
    """`asked` reads what is told of, and nothing else."""
    disk = written()

    def ask(told: Told) -> object:
        return told.speaking_of([MAPS, ("acc", 3)])

    found = [block for block in asked(disk, ask) if isinstance(block, Block)]  # type: ignore[arg-type]
    speaking_of_it = [lsn for lsn, _ in speaking(disk, ask, b"key-")]  # type: ignore[arg-type]
    notes = notes_of(disk)
    assert notes is not None
    assert [block.first_lsn for block in found] == [lsn for lsn in speaking_of_it if lsn <= notes.trailer.last_lsn]


class _Watched:
    """A disk of which it is known how far each file was read."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.far: dict[str, int] = {}

    def list(self) -> list[str]:
        return self._disk.list()

    def open(self, name: str, write: bool = False) -> File:
        file, far = self._disk.open(name, write), self.far

        class Watching:
            def read(self, offset: int, n: int) -> bytes:
                if n != TRAILER_BYTES:
                    far[name] = max(far.get(name, 0), offset + n)
                return file.read(offset, n)

            def __getattr__(self, called: str) -> object:
                return getattr(file, called)

        return cast("File", Watching())


def test_who_asks_does_not_read_the_zeros_behind_the_end() -> None:
    disk = MemoryDisk()
    log = writing(disk, steps=1)
    end = log._segments.live.end
    assert log._segments.live.header.capacity > end + (1 << 20) + segment_walk._BEYOND_BYTES
    for ask, little in ((None, False), (naming([tx_of(9_999)]), True)):
        watched = _Watched(disk)
        assert not any(isinstance(found, Finding) for found in inspect(watched, ask=ask))
        assert (watched.far[live(disk)] <= end + (1 << 20)) is little


def test_who_asks_is_told_of_what_stands_right_behind_the_end() -> None:
    disk = MemoryDisk()
    end = writing(disk, steps=1)._segments.live.end
    disk.overwrite(live(disk), end + segment_walk._BEYOND_BYTES - 1, b"x")
    found = [one for one in inspect(disk, ask=naming([tx_of(9_999)])) if isinstance(one, Finding)]
    assert [one.kind for one in found] == ["torn"]
