"""A data directory that is moved or removed under a node that runs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine import aio
from engine.client.admin import ask
from engine.errors import Error
from engine.host.server import Server, ServerConfig
from engine.turn.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tools.cluster_commands import whole_of
from tools.node_commands import status_lines

SETTINGS = Settings(cluster="moved", partitions=4, backups=0, checkpoint_ms=200, wal_segment_bytes=64 << 10)


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():
            await asyncio.sleep(0.02)


async def _moved(directory: Path) -> None:
    notes = list[str]()
    config = ServerConfig(data=directory / "n1", listen="127.0.0.1:0", node="n1", settings=SETTINGS)
    server = await Server.start(config, note=notes.append)
    await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
    async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as db:
        space = db.namespace("acc")
        await space.put(b"first", b"1")
        assert not (await ask(server.address, "status"))["moved"]
        config.data.rename(directory / "elsewhere")
        await _until(lambda: server.node.core.moved)
        status = await ask(server.address, "status")
        assert status["moved"]
        assert any("ITS DATA DIRECTORY WAS MOVED" in line for line in status_lines(status))
        assert any(
            "the data directory of n1 was moved" in problem for problem in (await whole_of([server.address])).problems
        )
        for number in range(600):  # through several segments and checkpoints
            await space.put(b"%d" % number, bytes(1_000))
    await server.close()
    assert sum("was moved" in note for note in notes) == 1
    assert not config.data.exists()
    server = await Server.start(
        ServerConfig(data=directory / "elsewhere", listen="127.0.0.1:0", node="n1", settings=SETTINGS), note=notes.append
    )
    async with await aio.connect(server.address, timeout=PATIENCE_SECONDS) as db:
        assert await db.namespace("acc").count() == 601
    await server.close()


def test_a_node_whose_directory_was_moved_goes_on_in_it_and_says_so(tmp_path: Path) -> None:
    asyncio.run(_moved(tmp_path))


async def _removed(directory: Path) -> None:
    config = ServerConfig(data=directory / "n1", listen="127.0.0.1:0", node="n1", settings=SETTINGS)
    server = await Server.start(config, note=lambda _: None)
    try:
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        shutil.rmtree(config.data)
        with pytest.raises(Error, match="was removed while the node ran"):
            await asyncio.wait_for(server.run(), PATIENCE_SECONDS)
    finally:
        await server.close()


def test_a_node_whose_directory_was_removed_promises_nothing_more(tmp_path: Path) -> None:
    asyncio.run(_removed(tmp_path))


def test_a_program_that_goes_to_another_directory_leaves_its_database_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with engine.open("data", partitions=4, checkpoint_ms=200) as db:
        names = db.namespace("n")
        (tmp_path / "other").mkdir()
        os.chdir(tmp_path / "other")
        for at in range(0, 40_000, 10_000):
            names.put_many({b"k%05d" % n: bytes(100) for n in range(at, at + 10_000)})
    assert not list((tmp_path / "other").iterdir())
    with engine.open(tmp_path / "data") as db:
        assert db.namespace("n").count() == 40_000
