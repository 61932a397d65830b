"""A client's sockets to nodes that take a connection and say nothing: one each, for so long, and none when it closes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine import aio
from engine.client import sockets as links_module
from engine.client.admin import ask
from engine.client.session import Session
from engine.client.sockets import SocketLinks
from engine.host.server import Server, ServerConfig
from tests.support.hosts import Host
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def silent() -> Iterator[str]:
    """Where the kernel takes connections for a process that does not look: a node that was stopped where it stood."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        yield f"127.0.0.1:{listens.getsockname()[1]}"


def session() -> tuple[Session, SocketLinks]:
    """A client without an address to begin with."""
    made = Session([], timeout=1.0)
    made.links = links = SocketLinks(made)
    return made, links


async def until_gone(host: Host) -> None:
    """Wait until nobody is connected."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while host.here:
            await asyncio.sleep(0.005)


def test_connecting_to_a_node_that_says_nothing_ends(silent: str) -> None:
    says = rf"answered within 0\.3 s \({silent}: no answer yet; 127\.0\.0\.1:1: .*refused.*\)"
    with pytest.raises(engine.Unavailable, match=says):
        engine.connect([silent, "127.0.0.1:1"], timeout=0.3)


def test_a_node_in_no_cluster_is_told_as_such(tmp_path: Path) -> None:
    async def story() -> None:
        server = await Server.start(ServerConfig(data=tmp_path, listen="127.0.0.1:0", node="n1"), note=lambda _: None)
        with pytest.raises(engine.Unavailable, match=rf"\({server.address}: it is in no cluster yet\)"):
            await aio.connect(server.address, timeout=0.5)
        server.leave()
        await server.run()
        await server.close()

    asyncio.run(story())


def test_something_else_that_listens_there_is_told_as_such() -> None:
    async def story() -> None:
        async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        says = f"{address}: the other side does not speak Foreshore's protocol: it begins with b'HTTP/1.1'"
        with pytest.raises(engine.Unavailable, match=says):
            await aio.connect(address, timeout=0.5)
        with pytest.raises(engine.ProtocolError, match=f"^{says}"):
            await ask(address, "status")
        server.close()

    asyncio.run(story())


@pytest.mark.parametrize("greets", [True, False])
def test_there_is_one_connection_to_an_address_and_none_after_the_end(*, greets: bool) -> None:
    async def story() -> None:
        host = Host(greets=greets)
        server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client, links = session()
        for _ in range(20):
            links.connect(address)
            await asyncio.sleep(0.005)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not host.came or (greets and address not in links.open):
                await asyncio.sleep(0.005)
        links.connect(address)
        assert (host.came, host.here) == (1, 1)
        await client.close()
        await until_gone(host)
        server.close()

    asyncio.run(story())


def test_who_does_not_greet_is_hung_up_on_and_the_router_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "HELLO_SECONDS", 0.05)

    async def story() -> None:
        host = Host(greets=False)
        server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client, links = session()
        links.connect(address)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while address not in client.router.places.refusals:
                await asyncio.sleep(0.005)
        assert client.router.places.refusals[address] == "no answer within 0.05 s"
        await until_gone(host)
        links.connect(address)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while host.came < 2:
                await asyncio.sleep(0.005)
        await client.close()
        await until_gone(host)
        server.close()

    asyncio.run(story())
