"""A node that ends hangs up first: who asked it asks another at once, and does not wait for its last checkpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.client.admin import ask
from engine.host.server import Server, ServerConfig
from engine.turn.settings import Settings
from tests.support.raw_client import RawClient


def test_clients_are_hung_up_on_before_the_last_checkpoint_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        config = ServerConfig(
            data=tmp_path / "n1", listen="127.0.0.1:0", node="n1", settings=Settings(partitions=4, backups=0)
        )
        server = await Server.start(config, note=lambda _: None)
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        client = await RawClient.connect(server.address)
        finish, told = server.driver.finish, list[str]()

        async def finish_late() -> None:
            assert await client.hung_up()
            told.append("hung up")
            await finish()

        server.driver.finish = finish_late  # type: ignore[method-assign]  # a last checkpoint that takes its time
        server.leave()
        await server.run()
        await server.close()
        assert told == ["hung up"]

    asyncio.run(story())
