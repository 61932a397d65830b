"""Links that can be cut: every node is dialled through a proxy, which knows by the greeting who dials.

What is cut is not closed: bytes wait in the proxy, as they do in a network that lost its way, and arrive when it is found
again; so a connection may be open for one side and dead for the other. `reset` closes it for both. Clients pass freely.
The proxies run in a thread of their own, whatever the event loop of the test is at.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from engine.errors import ProtocolError
from engine.protocol.roles import PEERS
from engine.protocol.wire import HELLO_BYTES_MAX, decode_hello

Pair = tuple[str, str]
HEADER = struct.Struct(">II")
PIECE_BYTES = 64 << 10
LOOK_SECONDS = 0.02
GREETING_SECONDS = 10.0


class Ways:
    """What is cut, what is slow and what is narrow, by (who sends, who is sent to)."""

    def __init__(self) -> None:
        self._cut: dict[Pair, None] = {}
        self._slow: dict[Pair, float] = {}
        self._rates: dict[Pair, float] = {}  # bytes a second, of all connections together
        self._taken: dict[Pair, float] = {}  # until when what has gone on its way takes the link
        self.passed = 0  # bytes
        self.held = 0  # pieces that had to wait

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Nothing passes in these directions until `heal`."""
        self._cut |= dict.fromkeys(pairs)

    def slow(self, pairs: Iterable[Pair], seconds: float) -> None:
        """What passes in these directions takes so long."""
        self._slow |= dict.fromkeys(pairs, seconds)

    def narrow(self, pairs: Iterable[Pair], rate: float) -> None:
        """So many bytes a second pass in these directions."""
        self._rates |= dict.fromkeys(pairs, rate)

    def heal(self) -> None:
        """Everything passes."""
        self._cut = {}
        self._slow = {}
        self._rates = {}

    async def passes(self, pair: Pair, size: int = 0) -> None:
        """Wait until so many bytes may go on their way."""
        rate, now = self._rates.get(pair), time.monotonic()
        if rate is not None and size:
            self._taken[pair] = max(now, self._taken.get(pair, now)) + size / rate
            await asyncio.sleep(self._taken[pair] - now)
        seconds = self._slow.get(pair)
        if seconds is not None:
            await asyncio.sleep(seconds)
        if pair in self._cut:
            self.held += 1
            while pair in self._cut:
                await asyncio.sleep(LOOK_SECONDS)


class Proxies:
    """One for each node: `add` says where it listens and whom it dials. Use it in a `with`."""

    def __init__(self) -> None:
        self.ways = Ways()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._open: dict[Pair, list[asyncio.StreamWriter]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._servers: list[asyncio.Server] = []
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self, node: str, port: int, target: int) -> None:
        """From now on whoever dials `port` reaches `node` at `target`."""

        async def listen() -> None:
            server = await asyncio.start_server(lambda r, w: self._serve(node, target, r, w), "127.0.0.1", port)
            self._servers.append(server)

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def reset(self, pairs: Iterable[Pair]) -> None:
        """The connections that the first of each pair made to the second break."""
        for pair in list(pairs):
            self._loop.call_soon_threadsafe(self._break, pair)

    def _break(self, pair: Pair) -> None:
        for writer in self._open.pop(pair, []):
            writer.transport.abort()

    async def _serve(self, node: str, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        out: asyncio.StreamWriter | None = None
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ProtocolError, asyncio.CancelledError):
            greeting, who = await asyncio.wait_for(_greeting(reader), GREETING_SECONDS)
            await self.ways.passes((who, node))
            back, out = await asyncio.open_connection("127.0.0.1", target)
            self._open.setdefault((who, node), []).extend((writer, out))
            out.write(greeting)
            ways = [self._pump((who, node), reader, out), self._pump((node, who), back, writer)]
            pumps = [asyncio.create_task(way) for way in ways]
            _, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in left:
                pump.cancel()
            self._open[who, node] = [w for w in self._open.get((who, node), []) if w not in (writer, out)]
        for side in (writer, out):
            if side is not None:
                side.transport.abort()

    async def _pump(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self.ways.passes(pair, len(data))
                self.ways.passed += len(data)
                writer.write(data)
                await writer.drain()
            await self.ways.passes(pair)  # that it ended is news as well

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(LOOK_SECONDS)  # for what was aborted to be closed


async def _greeting(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """The first frame, and which node sends it; a client is nobody."""
    header = await reader.readexactly(HEADER.size)
    length = HEADER.unpack(header)[0]
    if length > HELLO_BYTES_MAX:
        raise ProtocolError(f"a greeting of {length} bytes: expected at most {HELLO_BYTES_MAX}")
    payload = await reader.readexactly(length)
    hello = decode_hello(payload)
    return header + payload, hello.node if hello.role in PEERS else ""
