"""One operator's command to one node: connect, ask, hang up."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from engine import errors
from engine.protocol.addresses import split_address
from engine.protocol.requests import Admin, Failed, GetTable, Reply, Report, Table
from engine.protocol.resolver import HostUnknown, Resolver
from engine.protocol.wire import FRAME_BYTES_MAX, MAGIC, PROTOCOL, FrameReader, Hello, decode_hello, decode_replies, frame
from rebalance.table import Topology, decode

AGAIN_SECONDS = 0.1


async def ask(address: str, command: str, *, timeout: float = 10.0, **arguments: list[str]) -> dict[str, Any]:
    """A node's answer to a command. Raises UsageError (as the node says), and Unavailable: also where it may pass."""
    reply = await _asked(address, Admin(1, command, arguments), timeout)
    if not isinstance(reply, Report):
        raise errors.ProtocolError(f"unexpected answer: {reply}")
    answer = msgspec.json.decode(reply.body)
    assert isinstance(answer, dict), "a report is an object"
    return answer


async def table(address: str, *, timeout: float = 10.0) -> Topology | None:
    """The map that a node has; None if it is in no cluster yet. Raises Unavailable."""
    reply = await _asked(address, GetTable(1), timeout)
    if not isinstance(reply, Table):
        raise errors.ProtocolError(f"unexpected answer: {reply}")
    return decode(reply.topology) if reply.topology else None


async def _asked(address: str, request: Admin | GetTable, timeout: float) -> Reply:
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise errors.UsageError(str(error)) from None
    heard = f"no word from the name service of {host}"
    try:
        async with asyncio.timeout(timeout):
            hosts = await Resolver(asyncio.get_running_loop()).of(host)
            heard = "nothing"
            reader, writer = await _opened(hosts, port)
            try:
                writer.write(frame(Hello(MAGIC, PROTOCOL, "client")))
                frames = _Frames(reader)
                hello = decode_hello(await frames.next())
                if hello.refused:
                    raise errors.Unavailable(f"{address} refused: {hello.refused}")
                frames.reader.limit = FRAME_BYTES_MAX
                writer.write(frame([request]))
                reply = decode_replies(await frames.next())[0]
            finally:
                writer.close()
    except TimeoutError as error:
        raise errors.Unavailable(f"no answer from {address}: {str(error) or f'{heard} within {timeout:g} s'}") from None
    except asyncio.IncompleteReadError:
        raise errors.Unavailable(f"no answer from {address}: it hung up") from None
    except errors.ProtocolError as error:
        raise errors.ProtocolError(f"{address}: {error}") from None
    except (OSError, HostUnknown) as error:
        raise errors.Unavailable(f"no answer from {address}: {str(error) or type(error).__name__}") from None
    if isinstance(reply, Failed):
        raise errors.Unavailable(reply.message) if reply.retryable else errors.UsageError(reply.message)
    return reply


async def _opened(hosts: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams to the first of these that takes a connection. Raises OSError, of the last."""
    *others, last = hosts
    for host in others:
        with suppress(OSError):
            return await asyncio.open_connection(host, port)
    return await asyncio.open_connection(last, port)


async def form(address: str, nodes: Sequence[str], *, seconds: float) -> str:
    """Form a cluster of these nodes, by the one at `address`; its id. An order that was not answered is given again.

    Raises UsageError, and Unavailable if not all of them agreed within `seconds`.
    """
    cluster, until = secrets.token_hex(8), time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            await ask(address, "init", timeout=max(1.0, left), cluster=[cluster], nodes=list(nodes))
        except errors.Unavailable:
            if time.monotonic() >= until:
                raise
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return cluster


class _Frames:
    """The payloads of a stream, one by one."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self.stream = stream
        self.reader = FrameReader()
        self._ready: list[bytes] = []

    async def next(self) -> bytes:
        """The next payload."""
        while not self._ready:
            data = await self.stream.read(1 << 16)
            if not data:
                raise asyncio.IncompleteReadError(b"", None)
            self._ready.extend(self.reader.feed(data))
        return self._ready.pop(0)
