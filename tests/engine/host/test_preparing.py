"""A disk without room for the log's next segment: who is alone answers reads and refuses writes until there is some."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from engine import aio
from engine.client.admin import ask
from engine.errors import DiskFull
from engine.host.preparing import Preparing
from engine.host.server import Server, ServerConfig
from engine.node.node import Node
from engine.state.store import CheckpointImage
from engine.state.store_errors import StoreFailed, StoreFull
from engine.turn.events import Stop, WriteCheckpoint
from engine.turn.settings import Settings
from tests.engine.host.test_syncing import Told
from tests.support.failing_disk import failing
from tests.support.memory_disk import MemoryDisk
from tests.support.patience import PATIENCE_SECONDS
from tests.wal.logs import append, open_log, update
from wal import DiskError, Log, LogSettings

SETTINGS = Settings(
    cluster="cramped", partitions=4, backups=0, wal_segment_bytes=64 << 10, wal_total_bytes=1 << 20, checkpoint_ms=200
)
VALUE = b"v" * 500

T = TypeVar("T")


async def _until_refused(space: aio.Namespace[Any, Any]) -> int:
    """Write until the disk is full; how many writes were acknowledged."""
    for number in range(10_000):
        try:
            await space.put(b"%d" % number, VALUE)
        except DiskFull:
            return number
    raise AssertionError("the disk is never full")


async def _alone(directory: Path) -> None:
    control, notes = directory / "control", list[str]()
    config = ServerConfig(data=directory / "n1", listen="127.0.0.1:0", node="n1", settings=SETTINGS)
    server = await Server.start(config, note=notes.append, disk=failing(control))
    try:
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as db:
            space = db.namespace("acc")
            await space.put(b"first", VALUE)
            control.write_text("crammed", encoding="ascii")
            written = await _until_refused(space)
            assert written > 0
            assert (await ask(server.address, "status"))["disk"]["full"]
            await asyncio.sleep(1.0)  # checkpoints would be due meanwhile
            assert not server.driver.stopped.done(), notes
            assert await space.get(b"first") == VALUE
            assert await space.count() == written + 1
            with pytest.raises(DiskFull, match="the disk of n1 has no room for more of the log"):
                await space.put(b"first", b"another")
            with pytest.raises(DiskFull):
                async with db.transaction() as tx:
                    await tx.namespace(space).put(b"first", b"another")
            control.unlink()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await ask(server.address, "status"))["disk"]["full"]:
                    await asyncio.sleep(0.05)
            await space.put(b"first", b"another")
            assert await space.count() == written + 1
        assert sum(note.startswith("NO ROOM for the log's next segment") for note in notes) == 1
        assert sum(note.startswith("the disk has room again") for note in notes) == 1
    finally:
        await server.close()


def test_a_node_that_is_alone_refuses_writes_and_answers_reads_until_there_is_room(tmp_path: Path) -> None:
    asyncio.run(_alone(tmp_path))


async def _stopped_and_started(directory: Path) -> None:
    control = directory / "control"
    config = ServerConfig(data=directory / "n1", listen="127.0.0.1:0", node="n1", settings=SETTINGS)
    server = await Server.start(config, note=lambda _: None, disk=failing(control))
    await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
    async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as db:
        control.write_text("crammed", encoding="ascii")
        written = await _until_refused(db.namespace("acc"))
    await server.close()  # in good order, and without a checkpoint that there is no room for
    control.unlink()
    server = await Server.start(config, note=lambda _: None, disk=failing(control))
    async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as db:
        assert await db.namespace("acc").count() == written
    await server.close()


def test_a_node_on_a_full_disk_stops_in_good_order_and_starts_again_with_all_of_it(tmp_path: Path) -> None:
    asyncio.run(_stopped_and_started(tmp_path))


class _AtOnce:
    """What is to be done beside turns is done at once."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def background(self, name: str, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        assert name == "prepare"
        try:
            done = run()
        except DiskError as error:
            back(None, error)
        else:
            back(done, None)


class _Node:
    """The part of a node that is needed, and of its core."""

    def __init__(self) -> None:
        self.core = self
        self.noted: list[bool] = []

    @property
    def is_cramped(self) -> bool:
        return bool(self.noted) and self.noted[-1]

    def note_cramped(self, cramped: bool) -> None:
        self.noted.append(cramped)


def test_a_segment_that_found_room_before_it_was_looked_for_again_ends_it_too() -> None:
    """Else it would last until half of that segment is written: nothing is, where clients wait for the store (seed 875)."""
    disk, settings = MemoryDisk(), LogSettings(segment_bytes=64 << 10, total_bytes=1 << 20)
    log, doer, node = open_log(disk, settings), _AtOnce(), _Node()
    preparing = _preparing(doer, node, log)
    written = itertools.count(1)
    while not log.wants_next:
        append(log, update(next(written), 1000))
    disk.capacity = disk.used
    preparing.look(now=1)
    assert node.noted == [True]
    disk.capacity = None
    segments = len(log.segments())
    while len(log.segments()) == segments:
        append(log, update(next(written), 1000))
    preparing.look(now=2)
    assert node.noted == [True, False]
    assert [note.split(" for ")[0] for note in doer.notes] == ["NO ROOM", "the disk has room again"]


def test_a_last_checkpoint_without_room_is_told_and_ends_nothing_badly() -> None:
    doer = _AtOnce()
    preparing = _preparing(doer, _Node(), open_log(MemoryDisk(), LogSettings()))
    failed = StoreFailed("a sync of it failed")
    assert preparing.last_checkpoint(None) is None
    assert preparing.last_checkpoint(failed) is failed
    assert doer.notes == []
    assert preparing.last_checkpoint(StoreFull("a quota")) is None
    assert "a quota" in doer.notes[0]


class _Late(Told):
    """A checkpoint comes back when it is told to, and the operator reads what is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.back: list[Callable[[Any, Exception | None], None]] = []
        self.why: list[str | Exception] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def background(self, name: str, run: Callable[[], Any], back: Callable[[Any, Exception | None], None]) -> None:
        if name == "checkpoint":
            self.back.append(back)

    def stop(self, reason: str | Exception) -> None:
        self.why.append(reason)


def test_a_node_that_has_ended_says_of_no_checkpoint_that_it_is_tried_again() -> None:
    """On a disk that fills the log and a checkpoint that is being written find no room in the same moment."""
    world = _Late()
    world.turn(tasks=[WriteCheckpoint(CheckpointImage(0, {}, fragments={}, partitions={}, cleared=[], rows={}))])
    world.turn(tasks=[Stop("the log has no room", refused=False)])
    (back,) = world.back
    back(None, StoreFull("no room for it"))
    assert world.why == ["the log has no room"]
    assert [note.split(" (")[0] for note in world.notes] == ["NO ROOM for a last checkpoint"]


def _preparing(doer: _AtOnce, node: _Node, log: Log) -> Preparing:
    return Preparing(
        doer,
        cast("Node", node),
        log,
        ends=lambda: False,
        fail=lambda error: pytest.fail(str(error)),
        write=lambda _: pytest.fail("no checkpoint waits"),
    )
