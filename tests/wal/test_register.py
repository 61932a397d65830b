"""A register leads to every block that a key's story needs, and to next to no other; what lies in it is not believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

import msgspec
import pytest

from tests.support.counting_disk import CountingDisk
from tests.support.memory_disk import MemoryDisk
from tests.wal import golden
from tests.wal.logs import open_log, outcome, prepare
from tools.wal.copy_at_rest import AtRest
from tools.wal.key_blocks import KeyBlocks, deciding
from tools.wal.story import Story
from wal import Block, Log, LogSettings, inspect, read, register, registering, verify
from wal.archive import ArchiveFile
from wal.archive_codec import Extent
from wal.beside import notes_name
from wal.codec import TRAILER_BYTES, FormatError, NothingHere
from wal.footer import Ask, Footer, Told
from wal.ids import CLIENTS, DECISIONS, Fragment, Version
from wal.live_notes import _ends_in, read_notes
from wal.records import (
    KINDS,
    Committed,
    EpochStart,
    FragmentClear,
    FragmentReady,
    History,
    Origin,
    Outcome,
    Preload,
    Prepare,
    Record,
    Undo,
    Update,
    Write,
    mentions,
)
from wal.register import END_BYTES, Register, decode_end, encode_end, key_name, mention_name
from wal.registering import RegisterBuilder
from wal.scan import Scan
from wal.segment import SegmentBuilder
from wal.segment_file import read_header, read_trailer, rebuild

SETTINGS = LogSettings(segment_bytes=400 << 10, total_bytes=1 << 26)
PARTITIONS = 8
KEYS = 900
"""In each namespace: so each is written a few times."""


class Writer:
    """Writes all that a key's story can have, some of it long after what it is about."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self._counters: dict[Fragment, int] = {}
        self._epoch = 1
        self._waiting: list[tuple[int, Prepare, Outcome | None]] = []
        self._n = self._txs = 0

    def write(self, keys: int = 1) -> Write:
        """Of some keys of one fragment."""
        draw = self._draw
        at, name = draw.randrange(PARTITIONS), draw.choice(("acc", "acc", "names"))
        mine = [b"key-%d-%d" % (at, n) for n in draw.sample(range(KEYS // PARTITIONS), keys)]
        start = self._counters.get((name, at), 0)
        self._counters[name, at] = start + keys
        values = [None if draw.random() < 0.1 else draw.randbytes(draw.randrange(120)) for _ in mine]
        return Write(name, at, self._epoch, start, mine, values, tx=self._tx())

    def block(self) -> list[Record]:
        """The next one."""
        draw, found = self._draw, list[Record]()
        for _ in range(draw.choice((1, 2, 9, 25))):
            self._n += 1
            kind = draw.random()
            if kind < 0.75:
                writes = [self.write(draw.choice((1, 1, 1, 4))) for _ in range(draw.choice((1, 1, 2)))]
                found += self._origin(writes[0]) if kind < 0.06 else ()
                found.append(Update(writes))
            elif kind < 0.87:
                write = self.write(draw.choice((1, 2)))
                vote = prepare(write.tx, [write], epoch=self._epoch)
                end = outcome(vote, commit=draw.random() < 0.7) if draw.random() < 0.9 else None
                found.append(vote)
                self._waiting.append((self._n + draw.choice((0, 0, 30, 900)), vote, end))
            elif kind < 0.9:
                found.append(History([self.write(2)]))
            else:
                found += self._seldom()
        due = [one for one in self._waiting if one[0] <= self._n]
        self._waiting = [one for one in self._waiting if one not in due]
        for _, vote, end in due:
            if end is not None:
                found.append(end)
                found.append(Update([Write(DECISIONS, 0, self._epoch, self._n, [vote.tx], [b"\x01"])]))
        return found

    def _seldom(self) -> Iterator[Record]:
        draw, at = self._draw, self._draw.randrange(PARTITIONS)
        kind = draw.random()
        if kind < 0.35:
            self._epoch += 1
            counters = [(name, self._counters.get((name, at), 0)) for name in ("acc", "names")]
            yield EpochStart(at, self._epoch, [(name, max(1, counter - 3)) for name, counter in counters])
        elif kind < 0.4:
            yield Undo("acc", at, max(0, self._counters.get(("acc", at), 0) - 2), [])
        elif kind < 0.5:
            yield FragmentClear("names", at, "behind", kept=kind < 0.45)
            epochs = [1, self._epoch]
            keys = [b"key-%d-%d" % (at, draw.randrange(KEYS // PARTITIONS)) for _ in epochs]
            yield Preload("names", at, epochs, [draw.randrange(9), 5], keys, [b"came", b"too"])
            yield FragmentReady("names", at, 5, 0, [(1, 1)], True)
        elif kind < 0.55:
            yield Committed(Version(self._n, 0), b"map")

    def _origin(self, write: Write) -> list[Record]:
        """Its session is named, or it has a label, or both."""
        label = self._draw.choice(("pay", ""))
        client, address = ("", "") if label and self._draw.random() < 0.5 else ("c" + write.tx[7:10].decode(), "a:1")
        return [Origin(write.partition, write.epoch, write.tx, "n1", label, client, address)]

    def _tx(self) -> bytes:
        self._txs += 1
        return b"session%03d" % (self._txs % 40) + self._txs.to_bytes(6, "big")


def written(seed: int = 1, blocks: int = 600) -> tuple[MemoryDisk, Log]:
    """A log of some sealed segments and one with notes, of some entries."""
    disk, writer = MemoryDisk(), Writer(seed)
    log = open_log(disk, SETTINGS)
    for n in range(blocks):
        log.append(writer.block(), now_ms=1_000 + n, durable=True)
        if n % 60 == 59:
            log._segments._notes._due = 0
        if log.wants_index:
            log.write_index()
    log.close()
    return disk, log


@cache
def known() -> MemoryDisk:
    disk, log = written()
    assert len(log.segments()) > 2
    (name,) = (name for name in disk.names() if name.endswith(".notes"))
    file = disk.open(name.replace(".notes", ".wal"))
    notes = read_notes(disk, file, read_header(file))
    assert notes is not None
    assert len(notes._registers or ()) > 2
    return disk


def story_of(disk: object, fragment: Fragment, key: bytes, ask: Callable[[KeyBlocks], Ask] | None) -> list[object]:
    """What is told of a key by who is led to its blocks so, or by who reads all of them."""
    story = Story(fragment, key, keep=True)
    reading = story.reading("n1", AtRest())
    blocks = reading.ask.__self__  # type: ignore[attr-defined]
    for found in inspect(disk, choose=reading.choose, ask=ask(blocks) if ask is not None else None):  # type: ignore[arg-type]
        if isinstance(found, Block):
            reading.take(found)
        else:
            return [found.kind]
    reading.end()
    decided = story.undecided()
    for found in inspect(disk, ask=deciding(decided) if ask is not None else None) if decided else ():  # type: ignore[arg-type]
        if isinstance(found, Block):
            reading.take_decision(found)
    rows = list(story.rows())
    whence = [(one.label, one.client, one.address) for one in map(story.origin, story.changes) if one is not None]
    return [*rows, whence, sorted(tx for tx in story.decided if tx in decided)]


def by_register(blocks: KeyBlocks) -> Ask:
    def ask(told: Told) -> object:
        found = blocks._named(told)
        assert found is not None, "a segment has no register"
        return found

    return ask  # type: ignore[return-value]


def keys_of(disk: MemoryDisk, every: int = 1) -> list[tuple[Fragment, bytes]]:
    """All keys that are written in a log."""
    found: dict[tuple[Fragment, bytes], None] = {}
    for block in read(disk):
        for record in block.records:
            for write in getattr(record, "writes", ()):
                found.update(((write.fragment, key), None) for key in write.keys if write.namespace != DECISIONS)
    return sorted(found)[::every]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_story_by_registers_is_that_of_who_reads_everything(seed: int) -> None:
    disk = known() if seed == 1 else written(seed)[0]
    kinds = set[str]()
    for fragment, key in keys_of(disk, 53):
        right = story_of(disk, fragment, key, None)
        assert story_of(disk, fragment, key, by_register) == right, (fragment, key)
        assert story_of(disk, fragment, key, lambda blocks: blocks._spoken_of) == right
        kinds.update(str(seen.how) for change in right[:-2] for seen in getattr(change, "seen", ()))
        kinds.update("prepared" for change in right[:-2] if getattr(change, "prepared", False))
    assert kinds >= {"live", "history", "full", "prepared"}


TX = b"s" * 10 + bytes(6)
VOTE = prepare(TX, [Write("acc", 3, 1, 5, [b"mine"], [b"2"], tx=TX)])
AFTER: dict[str, list[Record]] = {
    "update": [Update([Write("acc", 3, 1, 5, [b"k", b"mine"], [b"1", b"2"])])],
    "commit": [VOTE, outcome(VOTE)],
    "rollback": [VOTE, outcome(VOTE, commit=False)],
    "issued again": [VOTE, prepare(TX, [Write("acc", 3, 2, 5, [b"mine"], [b"2"], origin=1, tx=TX)], epoch=2, origin=1)],
    "history": [History([Write("acc", 3, 1, 5, [b"mine"], [None])])],
    "undo": [Undo("acc", 3, 3, [b"mine"])],
    "epoch": [EpochStart(3, 2, [("acc", 4)])],
    "cleared": [FragmentClear("acc", 3, "behind")],
    "to be compared": [FragmentClear("acc", 3, "behind", kept=True)],
    "caught up": [FragmentReady("acc", 3, 5, 0, [(1, 1)], True)],
    "came": [Preload("acc", 3, [1], [9], [b"mine"], [b"came"])],
    "no such key": [Preload("acc", 3, [1], [0], [b"mine"], [None])],
    "label": [Origin(3, 1, TX[::-1], "n1", label="pay")],
    "client": [Origin(5, 1, TX[::-1], "n1", client="web", address="a:1")],
    "decided elsewhere": [
        Prepare(TX, 3, 1, VOTE.writes, [], [3, 6], 6),
        outcome(VOTE),
        Update([Write(DECISIONS, 6, 1, 0, [TX], [b"\x01"])]),
    ],
}
"""What comes after a write of a key, each in a block of its own."""


@pytest.mark.parametrize("after", AFTER.values(), ids=list(AFTER))
def test_whatever_comes_after_a_write_is_found(after: list[Record]) -> None:
    disk = MemoryDisk()
    log = open_log(disk, SETTINGS)

    def others(count: int) -> None:
        for _ in range(count):
            n = log.next_lsn
            log.append([Update([Write("acc", n % 3, 1, n, [b"key-%d" % n], [b"v" * 90])])], now_ms=n, durable=False)

    others(300)
    log.append([Update([Write("acc", 3, 1, 4, [b"mine"], [b"1"], tx=TX[::-1])])], now_ms=1, durable=False)
    for record in after:
        others(40)
        log.append([record], now_ms=2, durable=True)
    others(1_800)
    assert len(log.segments()) > 1
    log.write_index()
    disk.remove(disk.names()[-1])
    right = story_of(disk, ("acc", 3), b"mine", None)
    assert story_of(disk, ("acc", 3), b"mine", by_register) == right
    for at in range(len(after)):  # and it is not told of by chance
        log = open_log(twin := MemoryDisk(), SETTINGS)
        log.append([Update([Write("acc", 3, 1, 4, [b"mine"], [b"1"], tx=TX[::-1])])], now_ms=1, durable=False)
        for record in after[:at]:
            log.append([record], now_ms=2, durable=True)
        log.close()
        assert len(repr(story_of(twin, ("acc", 3), b"mine", None))) < len(repr(right))


def updates(count: int) -> MemoryDisk:
    """A log of updates of one key each, none of them written twice."""
    disk = MemoryDisk()
    log = open_log(disk, SETTINGS)
    for n in range(count):
        log.append([Update([Write("acc", n % 8, 1, n // 8, [b"key-%d" % n], [b"v" * 90])])], now_ms=n, durable=True)
        if log.wants_index:
            log.write_index()
    return disk


def test_a_key_that_was_never_written_is_looked_for_in_no_block() -> None:
    disk = updates(9_000)
    disk.remove(disk.names()[-1])  # all that is left is sealed
    counted = CountingDisk(disk)
    assert story_of(counted, ("acc", 3), b"nobody", by_register)[:-2] == []
    some = counted.bytes_read
    assert some < sum(len(disk.image(name)) for name in disk.names()) / 40, "headers, trailers, and a page of each register"
    counted.bytes_read = 0
    assert len(story_of(counted, ("acc", 4_003 % 8), b"key-4003", by_register)[:-2]) == 1
    assert counted.bytes_read < some + 12_000, "and where all blocks of one begin"
    for name in disk.names():
        file = disk.open(name)
        trailer = read_trailer(file, read_header(file))
        told = Footer(file, read_header(file), trailer).register()
        assert told is not None
        wrong = sum(len(told.naming([key_name("acc", b"other-%d" % n)])) for n in range(1_000))
        assert wrong < 100, "a name that is not there leads to a block less than once in ten times"


def test_the_same_key_of_another_namespace_is_another_name() -> None:
    assert key_name("acc", b"k") != key_name("names", b"k")
    assert len({mention_name(one) for one in (("acc", 1), ("acc", 2), ("names", 1), CLIENTS)}) == 4


def sealed(disk: MemoryDisk) -> tuple[str, Footer]:
    name = disk.names()[0]
    file = disk.open(name)
    header = read_header(file)
    return name, Footer(file, header, read_trailer(file, header))


def built(disk: MemoryDisk, name: str) -> SegmentBuilder:
    """A sealed segment's builder, with its register."""
    file = disk.open(name)
    header = read_header(file)
    builder, scan = rebuild(file, header, read_trailer(file, header).end)
    names = RegisterBuilder(header)
    assert names.go_on(file, scan.offset)
    builder.register = names.written()
    return builder


def test_a_register_that_leaves_a_name_out_is_found_by_who_holds_it_against_the_blocks() -> None:
    disk = known().copy()
    assert verify(disk, indexes=True).findings == []
    name, footer = sealed(disk)
    builder = built(disk, name)
    assert builder.register is not None
    next(page for page in builder.register._pages if page).pop()
    data = disk.image(name)
    _, offset, lying = builder.footer(form=1)
    disk.put(name, data[: footer.trailer.end] + bytes(offset - footer.trailer.end) + lying)
    assert verify(disk).findings == [], "its checksums are right"
    assert [finding.kind for finding in verify(disk, indexes=True).findings] == ["index"]


def test_a_register_in_notes_that_leaves_a_name_out_is_found() -> None:
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=1 << 20, total_bytes=1 << 26))
    writer = Writer(3)
    for n in range(300):
        log.append(writer.block(), now_ms=n, durable=True)
    notes, names, live = log._segments._notes, log._segments._names, log._segments.live
    entry = notes.gather()
    assert entry is not None
    assert names.go_on(log._segments._file, entry.trailer.end)
    register = names.written()
    assert register is not None
    next(page for page in register._pages if page).pop()
    notes.write(entry, register, names.reach)
    assert verify(disk).findings == []
    found = verify(disk, indexes=True).findings
    assert [(finding.kind, finding.segment) for finding in found] == [("index", notes_name(live.header.first_lsn))]


def test_whatever_byte_of_a_register_changes_no_answer_does_and_verify_finds_it() -> None:
    disk, draw = known(), Random(5)
    name, footer = sealed(disk)
    told = footer.register()
    assert told is not None
    end = footer.header.capacity - TRAILER_BYTES
    begin = end - END_BYTES - told._registers[0].end.size
    keys = keys_of(disk, 401)
    right = [story_of(disk, *one, None) for one in keys]
    starts = end - END_BYTES - told._registers[0].end.starts
    for at in [
        *range(starts, starts + 400, 23),
        *range(end - END_BYTES, end, 2),
        *(draw.randrange(begin, end) for _ in range(25)),
    ]:
        twin = disk.copy()
        twin.flip(name, 8 * at + draw.randrange(8))
        assert verify(twin).findings, at
        assert [story_of(twin, *one, lambda blocks: blocks.ask) for one in keys] == right, at
    for _ in range(12):
        twin, at = disk.copy(), draw.randrange(begin, end)
        size = draw.choice((1, 40, 2_000))
        twin.overwrite(name, at, bytes(min(size, end - at)))
        changed = twin.image(name) != disk.image(name)
        assert bool(verify(twin).findings) == changed
        assert [story_of(twin, *one, lambda blocks: blocks.ask) for one in keys] == right, at


def test_whatever_happens_to_notes_no_story_changes() -> None:
    disk, draw = known(), Random(6)
    (name,) = (name for name in disk.names() if name.endswith(".notes"))
    data, keys = disk.image(name), keys_of(disk, 601)
    right = [story_of(disk, *one, None) for one in keys]
    images = [data[:at] for at in range(0, len(data), len(data) // 9)]
    images += [data + data, bytes(len(data)), data[len(data) // 2 :], data[:40] + bytes(4) + data[44:]]
    for at in (*range(24), *(draw.randrange(len(data)) for _ in range(30)), *range(len(data) - 130, len(data), 5)):
        images.append(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
    for image in images:
        twin = disk.copy()
        twin.put(name, image)
        assert [story_of(twin, *one, lambda blocks: blocks.ask) for one in keys] == right


def test_notes_that_lack_an_entry_or_tell_of_more_than_there_is_lead_to_all_that_is_there() -> None:
    disk, keys = known(), keys_of(known(), 201)
    (name,) = (name for name in disk.names() if name.endswith(".notes"))
    data, right = disk.image(name), [story_of(disk, *one, None) for one in keys]
    ends = [0, *_ends_in(lambda at, n: data[at : at + n], len(data))]
    assert len(ends) > 3
    for at in range(len(ends) - 1):
        twin = disk.copy()
        twin.put(name, data[: ends[at]] + data[ends[at + 1] :])
        assert [story_of(twin, *one, lambda blocks: blocks.ask) for one in keys] == right, at
    before, _ = written(1, 540)  # as it was some time ago
    live = name.replace(".notes", ".wal")
    assert before.names()[-1] == live
    before.put(name, data)
    notes = read_notes(before, before.open(live), read_header(before.open(live)))
    assert notes is not None
    assert 0 < len(notes._registers or ()) < len(ends) - 1
    right = [story_of(before, *one, None) for one in keys]
    assert [story_of(before, *one, lambda blocks: blocks.ask) for one in keys] == right


def test_a_page_and_a_register_that_belong_elsewhere_are_not_believed() -> None:
    disk = known().copy()
    (name, footer), other = sealed(disk), disk.names()[1]
    end = disk.image(other)[-TRAILER_BYTES - END_BYTES : -TRAILER_BYTES]
    disk.overwrite(name, footer.header.capacity - TRAILER_BYTES - END_BYTES, end)
    with pytest.raises(FormatError, match="the register's checksum"):
        footer.register()
    disk = known().copy()
    name, footer = sealed(disk)
    told = footer.register()
    assert told is not None
    register = told._registers[0]
    pages = 1 << register.end.pages
    assert pages > 2
    data = disk.image(name)
    at = register._directory
    twin = data[:at] + data[at + 4 : at + 12] + data[at + 8 :]  # the first page is said to be where the second one is
    disk.put(name, twin)
    told = sealed(disk)[1].register()
    assert told is not None
    first = next(n for n in range(10_000) if key_name("acc", b"%d" % n) >> 32 - register.end.pages == 0)
    with pytest.raises(FormatError, match="the checksum of page 0"):
        told.naming([key_name("acc", b"%d" % first)])


def test_where_a_register_cannot_be_read_on_all_that_is_left_is_read() -> None:
    """An outcome is looked for when its prepare was met: then there is no way back to the index."""
    disk = known()
    found = 0
    for fragment, key in keys_of(disk, 53):
        right = story_of(disk, fragment, key, None)
        if not any(getattr(change, "prepared", False) for change in right[:-2]):
            continue
        found += 1

        class Failing:
            def __init__(self, told: register.Registers) -> None:
                self._told = told
                self.trailer = told.trailer
                self.asked = 0

            def mentioning(self, names: object) -> object:
                return self._told.mentioning(names)  # type: ignore[arg-type]

            def naming(self, names: object) -> object:
                wanted = list(names)  # type: ignore[call-overload]
                self.asked += bool(wanted)
                if self.asked > 1:
                    raise FormatError("a page is damaged")
                return self._told.naming(wanted)

        def ask(blocks: KeyBlocks, told: Told) -> object:
            class Wrapped:
                header, trailer = told.header, told.trailer

                def register(self) -> object:
                    inner = told.register()
                    assert inner is not None
                    return Failing(inner)

            return blocks._named(Wrapped())  # type: ignore[arg-type]

        assert story_of(disk, fragment, key, lambda blocks: lambda told: ask(blocks, told)) == right  # type: ignore[arg-type,return-value]
    assert found > 5


def test_a_segment_without_a_register_is_asked_by_its_index() -> None:
    """As an older version wrote it, with parts or without."""
    for form in (2, 3):
        disk = known().copy()
        for name in disk.names():
            if name.endswith(".notes"):
                disk.remove(name)
                continue
            data = disk.image(name)
            if data[-8:].strip(b"\0"):
                file = disk.open(name)
                end = read_trailer(file, read_header(file)).end
                _, offset, older = built(disk, name).footer(form=form)
                disk.put(name, data[:end] + bytes(offset - end) + older)
        assert verify(disk, indexes=True).findings == []
        assert sealed(disk)[1].register() is None
        for fragment, key in keys_of(disk, 307):
            assert story_of(disk, fragment, key, lambda blocks: blocks.ask) == story_of(disk, fragment, key, None)


def test_notes_without_registers_are_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegisterBuilder, "go_on", lambda *_, **__: False)
    disk, _ = written(4)
    (name,) = (name for name in disk.names() if name.endswith(".notes"))
    live = disk.open(name.replace(".notes", ".wal"))
    notes = read_notes(disk, live, read_header(live))
    assert notes is not None
    assert notes.register() is None
    for fragment, key in keys_of(disk, 201):
        assert story_of(disk, fragment, key, lambda blocks: blocks.ask) == story_of(disk, fragment, key, None)


def test_there_is_room_for_a_register_whatever_is_written_and_none_where_it_would_take_too_much() -> None:
    """Many keys in a record, long ones, votes; and keys and values of next to nothing."""
    for keys, key_bytes, value_bytes, there in (
        (1, 12, 100, True),
        (200, 12, 60, True),
        (40, 9, 0, False),
        (3, 200, 9, True),
    ):
        disk = MemoryDisk()
        log = open_log(disk, SETTINGS)
        for n in range(60_000 // keys):
            mine = [b"%0*d" % (key_bytes, n * keys + at) for at in range(keys)]
            write = Write("acc", n % 16, 1, n // 16 * keys, mine, [b"v" * value_bytes] * keys, tx=n.to_bytes(16, "big"))
            vote = prepare(write.tx, [write])
            log.append([vote, outcome(vote)] if n % 3 == 0 else [Update([write])], now_ms=n, durable=False)
            if len(log.segments()) == 3:
                break
        log.close()
        _, footer = sealed(disk)
        assert (footer.register() is not None) == there, (keys, key_bytes, value_bytes)
        names = RegisterBuilder(footer.header)
        assert names.go_on(disk.open(disk.names()[0]), footer.trailer.end)
        assert (names.written() is not None) == there, "and notes have none either"
        assert verify(disk, indexes=True).findings == []
        if there:
            size = footer.trailer.end
            told = footer.register()
            assert told is not None
            assert told._registers[0].end.size < size / register.BYTES_FOR_ONE


def test_names_are_gathered_step_by_step_ahead_of_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registering, "STEP_BYTES", 64 << 10)
    disk = MemoryDisk()
    log = open_log(disk, LogSettings(segment_bytes=1 << 20, total_bytes=1 << 26))
    most = steps = 0
    for n in range(4_000):
        log.append([Update([Write("acc", n % 8, 1, n // 8, [b"key-%d" % n], [b"v" * 150])])], now_ms=n, durable=True)
        names, live = log._segments._names, log._segments.live
        before = names.reach.end
        if log.wants_index:
            log.write_index()
            if log._segments._names is names:
                steps += names.reach.end > before
                most = max(most, names.reach.end - before)
        assert live.end - names.reach.end < 2 * (64 << 10)
    assert steps > 5
    assert most < 65 << 10
    for n in range(4_000, 6_000):  # and whoever is late goes on in steps as well
        log.append([Update([Write("acc", n % 8, 1, n // 8, [b"key-%d" % n], [b"v" * 150])])], now_ms=n, durable=True)
    names, late = log._segments._names, 0
    while log.wants_index:
        before = names.reach.end
        log.write_index()
        assert names.reach.end - before < 65 << 10
        late += 1
    assert late > 3


def test_a_block_that_a_newer_version_wrote_ends_the_gathering_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = open_log(disk, SETTINGS)
    log.append([Update([Write("acc", 1, 1, 0, [b"key"], [b"v" * 90])])], now_ms=1, durable=True)
    names, live = log._segments._names, log._segments.live
    with monkeypatch.context() as patched:
        patched.setattr(registering, "_body", lambda _: [])
        assert not names.go_on(log._segments._file, live.end)
    assert not names.go_on(log._segments._file, live.end), "what lies behind it is not told as if it were all"
    assert not names.behind(1 << 30), "nobody is called for it again and again"


def test_what_a_builder_gathers_is_what_the_records_say() -> None:
    disk = known()
    for name in disk.names()[:2]:
        file = disk.open(name)
        header = read_header(file)
        trailer = read_trailer(file, header)
        told = Footer(file, header, trailer).register()
        assert told is not None
        for raw, block in zip(
            (raw for raw in Scan(file, header, limit=trailer.end) if raw.header.records),
            read(disk, trailer.first_lsn, trailer.last_lsn),
            strict=True,
        ):
            span = raw.offset, raw.offset + len(raw.data)
            for record in block.records:
                for write in getattr(record, "writes", ()):
                    assert all(span in told.naming([key_name(write.namespace, key)]) for key in write.keys)


def test_an_end_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    disk = known()
    _, footer = sealed(disk)
    told = footer.register()
    assert told is not None
    end = told._registers[0].end
    assert decode_end(encode_end(end, footer.trailer), footer.trailer) == end
    with pytest.raises(NothingHere):
        decode_end(bytes(END_BYTES), footer.trailer)
    for spoiled in ({"width": 5}, {"pages": 32}, {"blocks": 2**31, "width": 3}):
        with pytest.raises(FormatError, match="a register of"):
            decode_end(encode_end(msgspec.structs.replace(end, **spoiled), footer.trailer), footer.trailer)
    with pytest.raises(FormatError, match="at offset"):
        Register(lambda _, n: encode_end(end, footer.trailer)[:n], 100, footer.trailer)


@pytest.mark.parametrize("written", [golden.registered, golden.named])
def test_a_flipped_bit_of_a_golden_register_changes_no_story(written: Callable[[], MemoryDisk]) -> None:
    disk, mine = written(), [(("acc", 7), b"d"), (("acc", 7), b"n"), (("acc", 8), b"g"), (("acc", 7), b"never")]
    right = [story_of(disk, *one, None) for one in mine]
    assert [bool(one[:-2]) for one in right] == [True, True, True, True]
    assert [story_of(disk, *one, by_register) for one in mine] == right
    name = disk.names()[0]
    data = disk.image(name)
    begin, end = 0, len(data)
    if name.endswith(".wal"):
        begin, end = read_trailer(disk.open(name), read_header(disk.open(name))).end, end - TRAILER_BYTES
    for at in range(begin, end):
        if data[at] or data[at - 1] or not at % 16:  # not each of the zeros in between
            twin = disk.copy()
            twin.flip(name, 8 * at + at % 8)
            assert [story_of(twin, *one, lambda blocks: blocks.ask) for one in mine] == right, at


def test_of_an_archive_only_what_names_the_key_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, plain = known().copy(), updates(6_000)
    for one in (disk, plain):
        log = open_log(one, SETTINGS)
        while log.archive(log.next_lsn):
            pass
        log.close()
    for fragment, key in keys_of(disk, 201):
        assert story_of(disk, fragment, key, lambda blocks: blocks.ask) == story_of(disk, fragment, key, None)
    plain.remove(plain.names()[-1])
    archives = plain.names()
    assert len(archives) > 1
    assert all(name.endswith(".walz") for name in archives)
    unpacked: list[object] = []
    unpack = ArchiveFile.unpacked

    def counted(file: ArchiveFile, extent: Extent) -> bytes:
        unpacked.append(extent)
        return unpack(file, extent)

    monkeypatch.setattr(ArchiveFile, "unpacked", counted)
    assert story_of(plain, ("acc", 3), b"nobody", by_register)[:-2] == []
    assert unpacked == [ArchiveFile(plain.open(name)).directory.index for name in archives], "each footer once"
    assert len(story_of(plain, ("acc", 3), b"key-1003", by_register)[:-2]) == 1
    assert len(unpacked) < 2 * len(archives) + 4, "and a map, a way and some frames of one of them"


def test_every_kind_of_record_that_has_keys_or_concerns_all_of_a_fragment_is_gone_through() -> None:
    opened = {kind.__struct_config__.tag for kind in registering._OPENED}
    for kind in KINDS:
        if {"writes", "keys"} & set(kind.__struct_fields__):
            assert kind.__struct_config__.tag in opened, kind
    told = [one for block in golden.BLOCKS for record in block for one in mentions(record) if type(record) is not Preload]
    assert set(told) == set(golden_mentions())


def golden_mentions() -> list[Fragment]:
    """What blocks of the golden log mention, by who gathers it: asked for each fragment there is."""
    disk = golden.registered()
    file = disk.open(disk.names()[0])
    header = read_header(file)
    told = Footer(file, header, read_trailer(file, header)).register()
    assert told is not None
    every = {one for block in golden.BLOCKS for record in block for one in mentions(record)}
    return [one for one in every if told.mentioning([mention_name(one)])]
