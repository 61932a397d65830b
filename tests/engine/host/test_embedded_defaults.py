"""A node in this process: what it is when nobody says otherwise, and that a directory stays what it was made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import engine.aio
from engine.host.embedded import ALONE
from engine.offline.directory import read_directory


def formed(path: Path) -> tuple[int, int]:
    """Partitions and backups of the directory's topology."""
    with read_directory(path) as state:
        assert state.topology is not None
        return state.topology.partitions, state.topology.backups


async def put(path: Path, key: bytes, **settings: int) -> list[bytes]:
    """Open, put a key, and say which keys are there."""
    async with await engine.aio.open(path, **settings) as database:
        namespace = database.namespace("acc")
        await namespace.put(key, b"")
        return [found async for found, _ in namespace.scan()]


def test_a_node_by_itself_has_few_partitions_and_no_backups(tmp_path: Path) -> None:
    asyncio.run(put(tmp_path / "node", b"a"))
    assert formed(tmp_path / "node") == (ALONE["partitions"], ALONE["backups"]) == (16, 0)


def test_a_node_with_one_key_takes_little_of_the_disk(tmp_path: Path) -> None:
    asyncio.run(put(tmp_path / "node", b"a"))
    taken = sum(file.stat().st_blocks * 512 for file in (tmp_path / "node").rglob("*") if file.is_file())
    assert taken < 4 << 20, "it was 65 MB: of a log that is not long a whole segment was laid out"


def test_a_directory_keeps_the_partitions_that_it_was_made_with(tmp_path: Path) -> None:
    assert asyncio.run(put(tmp_path / "node", b"a", partitions=64)) == [b"a"]
    assert asyncio.run(put(tmp_path / "node", b"b")) == [b"a", b"b"]
    assert formed(tmp_path / "node") == (64, 0)
