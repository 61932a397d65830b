"""Links that take time: what is sent to a node, and what it answers, arrives so much later, in order.

It is a delay and no limit: however much is under way, nothing waits for what was sent before it. Nodes listen at
127.0.0.2 and are told to others as 127.0.0.1 with the same port, where their front listens, in this process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Self

BEHIND, FRONT = "127.0.0.2", "127.0.0.1"
PIECE_BYTES = 256 << 10


class SlowLinks:
    """One front for each node: `add` before it is started. Use it in an `async with`."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self._servers: list[asyncio.Server] = []
        self._links: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def add(self) -> list[str]:
        """Another node's front; the options with which that node is to be started, so that all but itself meet it."""
        server = await asyncio.start_server(self._accept, FRONT, 0)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        return ["--listen", f"{BEHIND}:{port}", "--advertise", f"{FRONT}:{port}"]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links[link] = None
        link.add_done_callback(lambda done: self._links.pop(done, None))
        port = writer.get_extra_info("sockname")[1]
        with suppress(OSError, asyncio.CancelledError):
            back, out = await asyncio.open_connection(BEHIND, port)
            try:
                ways = self._carry(reader, out), self._carry(back, writer)
                await asyncio.gather(*ways)
            finally:
                out.close()
        writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Write all that is read so much later; over when the end of it was passed on, too."""
        loop, line, over = asyncio.get_running_loop(), deque[bytes](), asyncio.Event()

        def arrive() -> None:
            piece = line.popleft()
            if not writer.is_closing():  # whoever is gone gets nothing any more
                if piece:
                    writer.write(piece)
                else:
                    writer.write_eof()
            if not piece:
                over.set()

        piece = b"begun"
        while piece:
            try:
                piece = await reader.read(PIECE_BYTES)
            except ConnectionError:
                piece = b""
            line.append(piece)
            loop.call_later(self.delay_seconds, arrive)
        await over.wait()


def behind(address: str) -> str:
    """Where a node listens itself, by where others are told that it does."""
    return address.replace(FRONT, BEHIND)
