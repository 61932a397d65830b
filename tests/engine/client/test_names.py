"""A name may stand for several addresses, of which one takes connections and says nothing: the next one is tried then."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from engine import aio
from engine.client import sockets
from engine.client.admin import ask
from engine.client.session import Session
from engine.client.sockets import SocketLinks
from engine.host.server import Server, ServerConfig
from engine.protocol.addresses import split_address
from engine.turn.settings import Settings
from tests.support.patience import PATIENCE_SECONDS


def test_a_name_whose_first_address_is_mute_is_reached_by_its_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def named(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        if host != "two.example":
            return resolve(host, port, *rest, **more)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (to, port)) for to in ("127.0.0.2", "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", named)
    monkeypatch.setattr(sockets, "HELLO_SECONDS", 0.5)

    async def story() -> None:
        config = ServerConfig(
            data=tmp_path / "n1", listen="127.0.0.1:0", node="n1", settings=Settings(partitions=4, backups=0)
        )
        server = await Server.start(config, note=lambda _: None)
        await ask(server.address, "init", cluster=["c1"], nodes=["n1"])
        port = split_address(server.address)[1]
        with socket.create_server(("127.0.0.2", port)):  # takes connections, and nobody reads them
            async with await aio.connect(f"two.example:{port}", timeout=PATIENCE_SECONDS) as db:
                await db.namespace("ns").put(b"a", b"1")
        server.leave()
        await server.run()
        await server.close()

    asyncio.run(story())


def test_a_link_local_address_keeps_its_scope() -> None:
    """Without it the kernel knows no way there."""
    dialed: list[str] = []

    class Loop:
        async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
            kind = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, (f"fe80::{n}", port, 0, scope)) for n, scope in ((1, 2), (2, 3), (3, 0))]

        async def create_connection(self, _: object, host: str, port: int) -> None:
            dialed.append(host)
            raise OSError("no way there")

        def create_task(self, work: Any) -> asyncio.Task[Any]:
            return asyncio.get_running_loop().create_task(work)

        def create_future(self) -> asyncio.Future[None]:
            return asyncio.get_running_loop().create_future()

    async def story() -> None:
        session = Session([], timeout=1.0)
        session.links = links = SocketLinks(session)
        session.loop = cast("asyncio.AbstractEventLoop", Loop())
        for _ in range(2):
            await links._dial("near.example:7400")
        session.loop = asyncio.get_running_loop()
        await session.close()

    asyncio.run(story())
    assert dialed == ["fe80::1%2", "fe80::2%3", "fe80::3", "fe80::2%3", "fe80::3", "fe80::1%2"]
