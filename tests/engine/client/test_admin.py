"""What an operator's command says of a node that does not answer: what was found, in words."""

from __future__ import annotations

import asyncio

import pytest

from engine.client.admin import ask
from engine.errors import Unavailable


async def _asked(hangs_up: bool) -> str:
    """What is said of somebody who takes the connection, and hangs up or says nothing."""
    held: list[asyncio.StreamWriter] = []

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.read(1 << 16)
        if hangs_up:
            writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(Unavailable) as told:
            await ask(address, "status", timeout=30.0 if hangs_up else 0.1)
        return str(told.value).replace(address, "ADDRESS")
    finally:
        for writer in held:
            writer.close()
        server.close()


def test_a_node_that_is_stopped_where_it_stands_is_not_a_reason_without_words() -> None:
    assert asyncio.run(_asked(hangs_up=False)) == "no answer from ADDRESS: nothing within 0.1 s"


def test_nor_is_one_that_hangs_up_a_count_of_bytes() -> None:
    assert asyncio.run(_asked(hangs_up=True)) == "no answer from ADDRESS: it hung up"
