"""A client's sockets to the nodes, dialed when they are wanted; and how it first reaches a cluster by them."""

from __future__ import annotations

import asyncio
from typing import cast

from engine import errors
from engine.client.session import Session
from engine.errors import ProtocolError
from engine.protocol.addresses import HELLO_SECONDS, Address, split_address
from engine.protocol.redial import pause_after
from engine.protocol.requests import Request
from engine.protocol.resolver import HostUnknown, Resolver, connected
from engine.protocol.wire import (
    FRAME_BYTES_MAX,
    MAGIC,
    PROTOCOL,
    FrameReader,
    Hello,
    decode_hello,
    decode_replies,
    frame,
    frames,
)


class _Connection(asyncio.Protocol):
    """A socket to one node. `met` is over as soon as the node answered the greeting, or the socket is gone; `cluster` is
    the id of the one that it said it is in."""

    def __init__(self, links: SocketLinks, address: Address) -> None:
        self.links = links
        self.address = address
        self.reader = FrameReader()
        self.socket: asyncio.Transport | None = None
        self.greeted = False
        self.cluster = ""
        self.met: asyncio.Future[None] = links.session.loop.create_future()
        self.reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        self.socket = transport
        transport.write(frame(Hello(MAGIC, PROTOCOL, "client", client=self.links.session.name)))

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self.reader.feed(data):
                if self.greeted:
                    self.links.session.on_replies(self.address, decode_replies(payload))
                    continue
                hello = decode_hello(payload)
                if problem := hello.refused or self.links.not_ours(hello.cluster):
                    raise ProtocolError(problem)
                self.greeted, self.cluster = True, hello.cluster
                self.reader.limit = FRAME_BYTES_MAX
                self._met()
                self.links.greeted(self, hello)
        except ProtocolError as error:
            self.hang_up(str(error))

    def hang_up(self, reason: str) -> None:
        """Nothing is to be heard from it any more."""
        self.reason = reason
        if self.socket is not None:
            self.socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reason = self.reason or (str(exc) if exc else "")
        self._met()
        if self.greeted:  # else whoever dialed tells
            del self.links.open[self.address]
            self.links.session.on_disconnected(self.address, self.reason)

    def _met(self) -> None:
        if not self.met.done():
            self.met.set_result(None)


class SocketLinks:
    """Connections to nodes over TCP, made when they are wanted."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.open: dict[Address, _Connection] = {}
        self.attempts: dict[Address, int] = {}
        self._dialing: dict[Address, asyncio.Task[None]] = {}
        self._resolver: Resolver | None = None

    def connect(self, address: Address) -> None:
        """Dial, after a pause that grows with every failure. There is one connection to an address, or none."""
        if address not in self._dialing and address not in self.open:
            self._dialing[address] = self.session.loop.create_task(self._dial(address))

    async def _dial(self, address: Address) -> None:
        """Connect and be greeted; a node that takes the connection and says nothing is hung up on."""
        tries, mine = self.attempts.get(address, 0), asyncio.current_task()
        self.attempts[address] = tries + 1
        connection = _Connection(self, address)
        self._resolver = self._resolver or Resolver(self.session.loop)
        try:
            if tries:
                await asyncio.sleep(pause_after(tries))
            host, port = split_address(address)
            hosts = await self._resolver.of(host, tries)
            async with asyncio.timeout(HELLO_SECONDS):
                await connected(self.session.loop, lambda: connection, hosts, port)
                await connection.met
            problem = connection.reason or "it hung up before it greeted"
        except (OSError, TimeoutError, ValueError, HostUnknown) as error:
            problem = str(error) or f"no answer within {HELLO_SECONDS:g} s"
        finally:
            if address in self._dialing and self._dialing[address] is mine:  # also where its loop is gone
                del self._dialing[address]
            if not connection.greeted and connection.socket is not None:
                connection.socket.abort()
        if not connection.greeted:  # else it tells by itself when it is lost
            self.session.on_disconnected(address, problem)

    def greeted(self, connection: _Connection, hello: Hello) -> None:
        """A node answered: from now on it can be asked."""
        address = connection.address
        self.open[address] = connection
        self._dialing.pop(address, None)
        self.attempts.pop(address, None)
        self.session.on_connected(address, hello.lock_lease_ms, hello.result_retention_ms)

    def not_ours(self, cluster: str) -> str:
        """Why a node in a cluster of this id is not to be asked, or nothing. An address may be another one's by now: what
        was meant for the node that was there before would be done, and read, in the wrong place."""
        topology = self.session.router.topology
        if topology is None or cluster == topology.cluster:
            return ""
        belongs = f"belongs to cluster id {cluster[:80]}" if cluster else "is in no cluster yet"
        return f"the node there {belongs}, expected {topology.cluster}"

    def send(self, address: Address, requests: list[Request]) -> None:
        """Write a frame, or several if they are too large together; the session hears of one that is too large alone."""
        connection = self.open.get(address)
        if connection is None or connection.socket is None:
            return
        if problem := self.not_ours(connection.cluster):
            connection.hang_up(problem)  # it greeted before it, or this client, was in one
            return
        ready, too_large = frames(requests)
        for data in ready:
            connection.socket.writelines(data)
        for request in too_large:
            self.session.on_unsendable(request)

    async def close(self) -> None:
        """Hang up: no socket is left, also none to a node that greets or reads no more."""
        dialing, connections = list(self._dialing.values()), list(self.open.values())
        for task in dialing:
            task.cancel()
        if self._resolver is not None:
            self._resolver.close()
        await asyncio.gather(*dialing, return_exceptions=True)
        sockets = [connection.socket for connection in connections if connection.socket is not None]
        for socket in sockets:
            socket.close()
        await asyncio.sleep(0)
        for socket in sockets:
            socket.abort()  # what was written and is not read is not waited for
        await asyncio.sleep(0)


async def reached(seeds: list[Address], timeout: float, *, domain: str, name: str) -> Session:
    """A session over sockets that has a cluster's table; Unavailable if no node gives one within `timeout` seconds."""
    session = Session(seeds, timeout=timeout, domain=domain, name=name)
    session.links = SocketLinks(session)
    session.begin()
    try:
        if not await session.wait_for_table(timeout):
            why = "; ".join(f"{address}: {session.router.places.why_not(address)}" for address in seeds)
            raise errors.Unavailable(f"no node of a formed cluster answered within {timeout} s ({why})")
    except BaseException:
        await session.close()
        raise
    return session
