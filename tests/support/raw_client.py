"""A client without manners: it sends what it likes to a node, frame by frame, and looks at what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from engine.protocol.addresses import split_address
from engine.protocol.requests import Reply, Request
from engine.protocol.wire import FRAME_BYTES_MAX, MAGIC, PROTOCOL, FrameReader, Hello, decode_hello, decode_replies, frame
from tests.support.patience import PATIENCE_SECONDS


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = FrameReader()
        self._payloads: list[bytes] = []

    @classmethod
    async def dial(cls, address: str) -> RawClient:
        """A connection on which nothing was said."""
        return cls(*await asyncio.open_connection(*split_address(address)))

    @classmethod
    async def connect(cls, address: str) -> RawClient:
        """A connection as a client."""
        client = await cls.dial(address)
        client.writer.write(frame(Hello(MAGIC, PROTOCOL, "client")))
        hello = await client.hello()
        assert not hello.refused, hello.refused
        client._frames.limit = FRAME_BYTES_MAX
        return client

    async def hello(self) -> Hello:
        """What the node says first."""
        return decode_hello(await self._payload())

    async def send(self, requests: Sequence[Request]) -> None:
        """Ask."""
        self.writer.write(frame(requests))
        await self.writer.drain()

    async def replies(self, count: int) -> list[Reply]:
        """So many answers, or more."""
        found: list[Reply] = []
        while len(found) < count:
            found += decode_replies(await self._payload())
        return found

    async def hung_up(self) -> bool:
        """Wait until the node has hung up; what it says before is left unread."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass
        await self.close()
        return True

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _payload(self) -> bytes:
        while not self._payloads:
            async with asyncio.timeout(PATIENCE_SECONDS):
                data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("the node hung up")
            self._payloads.extend(self._frames.feed(data))
        return self._payloads.pop(0)
