"""The real driver: what goes on in its threads, and what may come meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine import aio
from engine.aio import open_embedded
from engine.host.driver import Driver
from rebalance.ports import MS, CloseHistory, HistoryRead, OpenHistory, ReadHistory
from tests.support.patience import PATIENCE_SECONDS
from wal import DirectoryDisk, DiskError, File
from wal.codec import HEADER_BYTES, TRAILER_BYTES
from wal.counters import PartitionCounter
from wal.want import Want

ROWS = {b"k%05d" % n: b"v" * 100 for n in range(2_000)}
SUPPLY = ("n9", 1)


class _SlowDisk(DirectoryDisk):
    """A disk whose reads wait for the test, or fail, once it says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.go.set()
        self.reading = threading.Event()
        self.broken = False

    def open(self, name: str, write: bool = False) -> File:
        file = super().open(name, write)
        return file if write else _SlowFile(file, self)


class _SlowFile:
    def __init__(self, file: File, disk: _SlowDisk) -> None:
        self._file = file
        self._disk = disk
        self.write, self.sync, self.truncate = file.write, file.sync, file.truncate
        self.size, self.close = file.size, file.close

    def read(self, offset: int, n: int) -> bytes:
        self._disk.reading.set()
        assert self._disk.go.wait(PATIENCE_SECONDS), "nobody lets the disk go"
        if self._disk.broken:
            raise DiskError("read", "a segment", "injected EIO")
        return self._file.read(offset, n)


async def _with_a_history(path: Path, story: Callable[[aio.Database, Any, _SlowDisk], Any]) -> None:
    """A node with rows in its log, a supply that is about to read them, and a disk that waits."""
    disks: list[_SlowDisk] = []

    def make(at: Path) -> _SlowDisk:
        disks.append(_SlowDisk(at))
        return disks[-1]

    async with await open_embedded(path, {"partitions": 1}, disk=make) as database:
        names = database.namespace("n")
        await names.put_many(ROWS)
        driver: Any = cast("Any", database.session.links).driver
        replica = driver.node.core.replica
        wants = [
            Want(name, PartitionCounter(0), copy.counter.lwm, list(copy.epochs))
            for name, copy in replica.fragments.items()
            if name[0] == "n"
        ]
        disks[0].reading.clear()
        disks[0].go.clear()
        driver.duties._do(OpenHistory(SUPPLY, wants))
        driver.duties._do(ReadHistory(SUPPLY, 1 << 10, 1_000))
        assert await asyncio.to_thread(disks[0].reading.wait, 10)
        await story(database, driver, disks[0])
        assert await names.get(b"k00000") == ROWS[b"k00000"], "the node lives"


class _Loop:
    """An event loop that notes what it is to call, and when."""

    def __init__(self) -> None:
        self.soon: list[Callable[..., None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, call: Callable[..., None], *_: Any) -> None:
        self.soon.append(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.later.append((delay, call))

    def create_future(self) -> SimpleNamespace:
        return SimpleNamespace(done=lambda: False)


class _Turns(Driver):
    """A driver that counts its turns, and takes none."""

    def __init__(self, loop: _Loop) -> None:
        nothing: Any = SimpleNamespace(log=None, write_checkpoint=None)
        super().__init__(cast("Any", loop), nothing, cast("Any", None), note=print)
        self.turns = 0

    def _pay(self) -> None:
        self.turns += 1


@pytest.mark.parametrize("late", [False, True])
def test_a_checkpoint_for_which_somebody_waits_is_hurried(*, late: bool) -> None:
    """Clients or a transfer, as the node says; and whoever has stopped it."""
    driver, hurried = _Turns(_Loop()), list[int]()
    core: Any = SimpleNamespace(room=None, moved=False)
    driver.node = cast("Any", SimpleNamespace(core=core, checkpoint_is_late=late))
    driver.directory = cast("Any", SimpleNamespace(room=lambda: None, moved=lambda: False, hurry=lambda: hurried.append(1)))
    driver._look(0)
    assert bool(hurried) is late
    driver._finishing = True
    driver._look(0)
    assert len(hurried) == 1 + late


def test_a_turn_is_not_taken_before_it_is_due_by_a_loop_that_rounds_to_ms() -> None:
    loop = _Loop()
    driver = _Turns(loop)
    for us in (50, 400, 1_600, 30_400):
        due = time.monotonic_ns() + us * 1_000
        driver._plan(due)
        called_at = time.monotonic_ns() + round(loop.later.pop()[0] * 1_000) * MS if loop.later else due
        assert called_at >= due, us


def test_when_something_is_due_as_something_comes_one_turn_is_for_both() -> None:
    loop = _Loop()
    driver = _Turns(loop)
    driver._plan(time.monotonic_ns() + 60_000 * MS)
    driver.inbox(cast("Any", "something"))
    [(_, due)], [turn] = loop.later, loop.soon
    due()
    assert driver.turns == 0
    turn()
    assert driver.turns == 1


def test_a_history_that_is_read_is_closed_when_its_reader_is_back(tmp_path: Path) -> None:
    async def story(_: aio.Database, driver: Any, disk: _SlowDisk) -> None:
        driver.duties._do(CloseHistory(SUPPLY))
        assert len(driver.duties._closing) == 1, "it belongs to the thread that reads"
        disk.go.set()
        while driver.duties._closing:
            await asyncio.sleep(0.001)

    asyncio.run(_with_a_history(tmp_path, story))


def test_a_history_that_cannot_be_read_ends_that_supply_and_nothing_else(tmp_path: Path) -> None:
    async def story(_: aio.Database, driver: Any, disk: _SlowDisk) -> None:
        told: list[HistoryRead] = []
        turn = driver.node.turn

        def watched(now: int, events: Any) -> Any:
            told.extend(event for event in events if isinstance(event, HistoryRead))
            return turn(now, events)

        driver.node.turn = watched
        disk.broken = True
        disk.go.set()
        while not told:
            await asyncio.sleep(0.001)
        assert told == [HistoryRead(SUPPLY, [], True, [("n", 0)])]
        assert driver.duties._readers == {}
        disk.broken = False

    asyncio.run(_with_a_history(tmp_path, story))


def test_a_node_is_closed_while_its_history_is_read(tmp_path: Path) -> None:
    async def story(_: aio.Database, driver: Any, disk: _SlowDisk) -> None:
        disk.go.set()

    asyncio.run(_with_a_history(tmp_path, story))


def test_a_node_closes_at_any_time_of_its_own_checkpoints(tmp_path: Path) -> None:
    async def story() -> None:
        for number in range(6):
            async with await aio.open(tmp_path, partitions=4, checkpoint_ms=10) as database:
                names = database.namespace("n")
                if number:
                    assert await names.get(b"last") == b"%d" % (number - 1)
                await names.put_many({**ROWS, b"last": b"%d" % number})
                await asyncio.sleep(0.004 * number)

    asyncio.run(story())


SMALL = {"partitions": 4, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 24 << 10, "checkpoint_ms": 20}
LIFE = """
import asyncio, os, sys
from engine import aio

async def live(path, number):
    database = await aio.open(path, **{small!r})
    names = database.namespace("n", codec="str")
    for at in range(120 if number else 0):
        found = await names.get(f"k{{at}}")
        assert found == f"{{number - 1}}-{{at}}" + "x" * 2000, (number, at, found)
    for first in range(0, 120, 3):
        await names.put_many({{f"k{{at}}": f"{{number}}-{{at}}" + "x" * 2000 for at in range(first, first + 3)}})
    os._exit(0)

asyncio.run(live(sys.argv[1], int(sys.argv[2])))
"""


def test_the_log_is_trimmed_behind_checkpoints_and_the_process_dies(tmp_path: Path) -> None:
    for number in range(4):
        result = subprocess.run(
            [sys.executable, "-c", LIFE.format(small=SMALL), str(tmp_path / "data"), str(number)],
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    files = list((tmp_path / "data" / "wal").glob("*.wal"))
    assert 1 <= len(files) < 4 * 120 * 2000 // SMALL["wal_segment_bytes"], "it was trimmed"


def test_a_segment_that_is_needed_no_more_and_cannot_be_read_is_not_trimmed_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = {"partitions": 4, "wal_segment_bytes": 8 << 10, "wal_total_bytes": 1 << 20, "checkpoint_ms": 20}
    small = large | {"wal_total_bytes": 32 << 10}

    async def put(database: aio.Database, count: int) -> None:
        items = database.namespace("items")
        for n in range(count):
            await items.put(b"key-%03d" % (n % 50), b"%0300d" % n)

    async def story() -> None:
        async with await aio.open(tmp_path / "node", **large) as database:
            await put(database, 200)
        first = min((tmp_path / "node" / "wal").glob("*.wal"))
        data = first.read_bytes()
        zeros = bytes(len(data) - HEADER_BYTES - TRAILER_BYTES)
        first.write_bytes(data[:HEADER_BYTES] + zeros + data[-TRAILER_BYTES:])
        async with await aio.open(tmp_path / "node", **small) as database:
            while not any("the log is not trimmed" in note for note in caplog.messages):
                await put(database, 20)
            await put(database, 200)
            assert await database.namespace("items").get(b"key-001") == b"%0300d" % 151
        assert first.exists()
        assert sum("the log is not trimmed" in note for note in caplog.messages) == 1, "once, and not at each checkpoint"

    with caplog.at_level("DEBUG", logger="foreshore"):
        asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))
