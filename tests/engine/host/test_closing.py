"""A node that ends hangs up first: who asked it asks another at once, and does not wait for its last checkpoint.

It listens to the last, and says to whoever dials that it ends: where nobody listens, its directory may be used.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.client.admin import ask
from engine.errors import Unavailable
from engine.host.data_directory import held
from engine.host.server import Server, ServerConfig
from engine.state.store import CheckpointImage
from engine.turn.settings import Settings
from tests.support.raw_client import RawClient
from tools.asking import listens


def test_clients_are_hung_up_on_before_the_last_checkpoint_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        config = ServerConfig(
            data=tmp_path / "n1", listen="127.0.0.1:0", node="n1", settings=Settings(partitions=4, backups=0)
        )
        server = await Server.start(config, note=lambda _: None)
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        client = await RawClient.connect(server.address)
        finish, told, store = server.driver.finish, list[str](), server.driver.duties._store

        def write(image: CheckpointImage) -> None:
            assert image.hurried, "who stops it waits, and a node that ends gives way to nobody"
            told.append("written")
            store(image)

        server.driver.duties._store = write

        async def finish_late() -> None:
            assert await client.hung_up()
            told.append("hung up")
            await finish()

        server.driver.finish = finish_late  # type: ignore[method-assign]  # a last checkpoint that takes its time
        server.leave()
        await server.run()
        await server.close()
        assert told == ["hung up", "written"]

    asyncio.run(story())


def test_it_is_not_gone_before_another_may_have_its_directory(tmp_path: Path) -> None:
    """`foreshore node stop` said so 20 s too early, and the start that followed found the directory in use."""

    async def story() -> None:
        notes: list[str] = []
        config = ServerConfig(
            data=tmp_path / "n1", listen="127.0.0.1:0", node="n1", settings=Settings(partitions=4, backups=0)
        )
        server = await Server.start(config, note=notes.append)
        finish, told = server.driver.finish, list[str]()

        async def finish_late() -> None:
            assert await listens(server.address)
            for _ in range(2):
                with pytest.raises(Unavailable, match="refused: n1 ends, and writes its last checkpoint"):
                    await ask(server.address, "status")
            await finish()
            told.append("finished")

        server.driver.finish = finish_late  # type: ignore[method-assign]  # a last checkpoint that takes its time
        server.leave()
        await server.run()
        await server.close()
        assert told == ["finished"]
        assert not await listens(server.address)
        with held(config.data):
            pass
        assert not [note for note in notes if "refused" in note], "everybody dials again and again meanwhile"

    asyncio.run(story())
