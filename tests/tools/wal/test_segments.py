"""`wal segments`: which files there are, who needs them since when, and what goes next."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec

import engine.aio
from tests.support.commands import foreshore
from tests.support.patience import PATIENCE_SECONDS
from wal import DirectoryDisk, Log, LogSettings
from wal.kept import read_kept
from wal.records import Update, Write

SETTINGS = {"partitions": 4, "wal_segment_bytes": 4 << 10, "wal_total_bytes": 1 << 20}


def rows(path: Path) -> list[dict[str, Any]]:
    """What it says."""
    result = foreshore("wal", "segments", path, "--json")
    assert result.returncode == 0, result.stderr
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


def a_directory(path: Path) -> Path:
    """A node's directory."""

    async def make() -> None:
        async with await engine.aio.open(path, **SETTINGS) as database:
            await database.namespace("items").put(b"a", b"1")

    asyncio.run(make())
    return path


def test_a_live_log_says_who_needs_it_since_when_and_what_goes_next(tmp_path: Path) -> None:
    path = a_directory(tmp_path / "node")
    identity = msgspec.json.decode((path / "identity.json").read_bytes())
    settings = LogSettings(segment_bytes=4 << 10, total_bytes=20 << 10)
    log = Log.open(DirectoryDisk(path / "wal"), cluster=identity["cluster"], node=identity["node"], settings=settings)
    for n in range(200):
        log.append([Update([Write("a", 0, 1, n, [b"k"], [b"v" * 200])])], now_ms=1_000 * n, durable=False)
    sealed = [info for info in log.segments() if info.sealed]
    log.pin("supply n3 7", sealed[-2].first_lsn, 1_700_000_000_000)
    log.tell(log.next_lsn - 1)
    assert all(row["goes"] is None and not row["pinned_by"] for row in rows(path)), "nobody runs there"
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = rows(path)
        trimmed = log.trimmable(log.next_lsn - 1)
    finally:
        os.close(lock)
    assert [row["segment"] for row in told if row["pinned_by"]] == [info.name for info in log.segments()[-3:]]
    assert {row["pinned_since"] for row in told if row["pinned_by"]} == {"2023-11-14T22:13:20.000Z"}
    assert {name for row in told for name in row["pinned_by"]} == {"supply n3 7"}
    assert trimmed is not None
    going = [row["last_lsn"] for row in told if row["goes"] == "next"]
    assert 0 < going[-1] < trimmed.first_lsn
    log.close()
    reopened = Log.open(DirectoryDisk(path / "wal"), cluster=identity["cluster"], node=identity["node"], settings=settings)
    reopened.close()
    assert not (path / "wal" / "kept.json").exists(), "what a node said is not what the next one says"


def test_a_running_node_says_it_with_each_checkpoint(tmp_path: Path) -> None:
    async def use() -> None:
        async with await engine.aio.open(tmp_path / "node", checkpoint_ms=20, **SETTINGS) as database:
            waited = 0.0
            while not (tmp_path / "node" / "wal" / "kept.json").exists():
                await database.namespace("items").put(b"a", b"1")
                await asyncio.sleep(0.01)
                waited += 0.01
                assert waited < PATIENCE_SECONDS, "it never said why its log is kept"
            with DirectoryDisk(tmp_path / "node" / "wal", read_only=True) as disk:
                kept = read_kept(disk)
            assert kept is not None
            assert (kept.bytes_max, kept.pins) == (SETTINGS["wal_total_bytes"], [])
            assert kept.checkpoint_lsn > 0

    asyncio.run(use())
