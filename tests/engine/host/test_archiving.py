"""A node that archives its log: beside the turns, no faster than it may, and read again by all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import engine.aio
from engine.host.archiving import AGAIN_MS, AGAIN_MS_MAX, Archiving
from engine.node.node import Node
from engine.offline.directory import read_directory
from engine.turn.settings import Settings
from rebalance.ports import MS
from tests.support.memory_disk import MemoryDisk
from tests.support.patience import PATIENCE_SECONDS
from tests.wal.logs import append, open_log, update
from wal import LogSettings, list_segments, read, verify

SMALL = {
    "partitions": 4,
    "wal_segment_bytes": 8 << 10,
    "wal_total_bytes": 1 << 20,
    "checkpoint_ms": 20,
    "wal_archive_bytes_per_s": 64 << 20,
}


def test_old_segments_become_archives_while_the_node_is_used_and_it_comes_back_from_them(tmp_path: Path) -> None:
    async def use() -> None:
        async with await engine.aio.open(tmp_path / "node", **SMALL) as database:
            items = database.namespace("items")
            waited = 0.0
            written = 0
            while sum(info.archived for info in list_segments(tmp_path / "node" / "wal")) < 5:
                await items.put(b"key-%03d" % (written % 50), b"%0300d" % written)
                written += 1
                await asyncio.sleep(0.001)
                waited += 0.001
                assert waited < PATIENCE_SECONDS, "nothing was archived"
        async with await engine.aio.open(tmp_path / "node", **SMALL) as database:
            items = database.namespace("items")
            assert await items.get(b"key-%03d" % ((written - 1) % 50)) == b"%0300d" % (written - 1)

    asyncio.run(use())
    wal = tmp_path / "node" / "wal"
    assert not verify(wal).damaged
    assert next(read(wal)).first_lsn == 1
    with read_directory(tmp_path / "node") as state:
        assert state.lsn == verify(wal).last_lsn


class _Node:
    """The part of a node that is needed, and of its core."""

    def __init__(self) -> None:
        self.core = self
        self.settings = Settings(wal_archive_bytes_per_s=64 << 20)
        self.not_archived = ""


def test_an_archive_that_found_no_room_is_tried_again_later_each_time_and_told_until_there_is_some() -> None:
    disk, node, notes = MemoryDisk(), _Node(), list[str]()
    log = open_log(disk, LogSettings(segment_bytes=8 << 10, total_bytes=1 << 20))
    written = 0
    while len(log.segments()) < 4:
        append(log, update(written := written + 1, 1000))
    archiving = Archiving(cast("Node", node), log, notes.append)
    archiving.may_go_up_to(1 << 40)

    def looked(now: int) -> bool:
        run = archiving.due(now)
        if run is not None:
            archiving.done(now, run())
        return run is not None

    disk.capacity, now, pauses = disk.used, 1, list[int]()
    for _ in range(10):
        assert looked(now)
        assert "stays as it is" in node.not_archived
        assert not looked(now + AGAIN_MS * MS - 1)
        began = now
        while archiving.due(now) is None:
            now += 1_000 * MS
        pauses.append((now - began) // MS)
    assert pauses[:3] == [AGAIN_MS, 2 * AGAIN_MS, 4 * AGAIN_MS]
    assert pauses[-1] == AGAIN_MS_MAX
    disk.capacity = None
    while looked(now):
        now += 1_000 * MS
    assert node.not_archived == ""
    assert all(info.archived for info in log.segments()[:-1])
    assert [note.split(" (")[0].split(": ")[0] for note in notes] == [
        "NO ROOM for an archive of a segment of the log",
        "the disk has room again for archives of the log",
    ]


def test_room_for_archives_of_which_none_is_left_to_be_made_is_not_promised() -> None:
    disk, node, notes = MemoryDisk(), _Node(), list[str]()
    log = open_log(disk, LogSettings(segment_bytes=8 << 10, total_bytes=1 << 20))
    written = 0
    while len(log.segments()) < 2:
        append(log, update(written := written + 1, 1000))
    archiving = Archiving(cast("Node", node), log, notes.append)
    archiving.may_go_up_to(1 << 40)
    disk.capacity = disk.used
    archiving.done(1, log.archive(1 << 40))
    assert node.not_archived
    log.trim(log.segments()[-1].first_lsn)
    archiving.done(2, log.archive(1 << 40))
    assert [note.split(" (")[0].split(": ")[0] for note in notes] == [
        "NO ROOM for an archive of a segment of the log",
        "nothing of the log is left to be archived",
    ]
    assert node.not_archived == ""
