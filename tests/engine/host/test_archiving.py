"""A node that archives its log: beside the turns, no faster than it may, and read again by all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import engine.aio
from engine.offline.directory import read_directory
from tests.support.patience import PATIENCE_SECONDS
from wal import list_segments, read, verify

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
