"""Something that listens where a node should, and greets, or takes a connection and says nothing."""

from __future__ import annotations

import asyncio

from engine.protocol.wire import MAGIC, PROTOCOL, Hello, frame


class Host:
    """Takes connections, and greets or says nothing."""

    def __init__(self, *, greets: bool) -> None:
        self.greets = greets
        self.came = 0
        self.here = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the other side hangs up."""
        self.came += 1
        self.here += 1
        if self.greets:
            writer.write(frame(Hello(MAGIC, PROTOCOL, "node")))
        try:
            while await reader.read(1 << 16):
                pass
        except OSError:  # it was cut off
            pass
        finally:
            self.here -= 1
            writer.close()
