"""Connections that a node makes to its peers, to speak to them: dialed until they are there, and again when they break.

There are two to each peer. What is said over the one stands behind what is large there, on a slow link for seconds; over
the other nothing large is said. Which of them something goes by, `host.transport` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from engine.data.batches import SLOW_LINK_BYTES_PER_S
from engine.errors import ProtocolError
from engine.protocol.addresses import HELLO_SECONDS, REDIAL_SECONDS, Address, split_address
from engine.protocol.wire import Framed, FrameReader, Hello, decode_hello, frame
from engine.turn.events import Event, NameTaken, PeerSeen
from wal.ids import NodeId

PEER_BACKLOG_BYTES_MAX = 128 << 20
PEER = "peer"
BEAT = "beat"  # a peer of which heartbeats come this way: they have a connection of their own
PEERS = (PEER, BEAT)
LARGE_BYTES = 64 << 10
"""What stands behind a frame of so many is late on a slow link, if it waits for that."""


def seen_of(hello: Hello) -> PeerSeen:
    """Who has greeted."""
    life = hello.node, hello.allocation, hello.incarnation
    return PeerSeen(*life, hello.address, hello.domain, hello.cluster, hello.habits)


class Owner(Protocol):
    """Whoever has links: a node's transport."""

    loop: asyncio.AbstractEventLoop
    identity: PeerSeen
    inbox: Callable[[Event, int], None]
    note: Callable[[str], None]
    taken: Callable[[Hello], str]
    links_by_node: dict[NodeId, Link]
    beats_by_node: dict[NodeId, Link]

    def hello(self, role: str) -> Hello:
        """What the node says first."""

    def lost(self, node: NodeId) -> None:
        """A connection to a peer broke."""


class Outgoing(asyncio.Protocol):
    """A connection that we made to a peer, to speak to it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.reader = FrameReader()
        self.socket: asyncio.Transport | None = None
        self.met: asyncio.Future[None] = link.owner.loop.create_future()  # over when it was answered, or is gone
        self.ready = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        self.socket = transport
        transport.set_write_buffer_limits(high=PEER_BACKLOG_BYTES_MAX)
        transport.write(frame(self.link.owner.hello(self.link.role)))

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self.reader.feed(data):
                self.link.greeted(self, decode_hello(payload))
                self._met()
        except ProtocolError as error:
            self.link.refused(str(error))
            if self.socket is not None:
                self.socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._met()
        self.link.lost(self)

    def _met(self) -> None:
        if not self.met.done():
            self.met.set_result(None)


class Link:
    """The wish to be connected to one address, for as long as it is wanted. Who is there is told by the one for PEER."""

    def __init__(self, owner: Owner, address: Address, role: str) -> None:
        self.owner = owner
        self.address = address
        self.role = role
        self.peer: Hello | None = None  # who answered last
        self.connection: Outgoing | None = None
        self._attempts = 0
        self._complained = ""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._behind_until = 0.0  # of the loop's clock
        self.dial()

    def dial(self) -> None:
        """Try to connect, unless that is so, or being tried."""
        if not self.closed and self._task is None and self.connection is None:
            self._task = self.owner.loop.create_task(self._dial())

    async def _dial(self) -> None:
        """Connect and be greeted; who takes the connection and says nothing is hung up on, and dialed again."""
        host, port = split_address(self.address)
        connection: Outgoing | None = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                _, connection = await self.owner.loop.create_connection(lambda: Outgoing(self), host, port)
                await connection.met
        except (OSError, TimeoutError) as error:
            self.refused(f"cannot connect: {str(error) or f'no answer within {HELLO_SECONDS:g} s'}")
            if connection is None:
                self._redial()
        finally:
            self._task = None
            if connection is not None and not connection.ready and connection.socket is not None:
                connection.socket.abort()

    def _redial(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed:
            pause = REDIAL_SECONDS[min(self._attempts, len(REDIAL_SECONDS) - 1)]
            self._attempts += 1
            self._timer = self.owner.loop.call_later(pause, self.dial)

    def hurry(self) -> None:
        """Whoever listens there speaks to this node: a pause before the next attempt is for nothing."""
        if self._timer is not None and self._task is None and self.connection is None:
            self._timer.cancel()
            self.dial()

    def greeted(self, connection: Outgoing, hello: Hello) -> None:
        """The peer answered."""
        assert connection.socket is not None
        if hello.refused:
            self.refused(hello.refused)
            if hello.name_taken and self.role == PEER:
                self.owner.inbox(NameTaken(hello.refused), 0)
            connection.socket.close()
            return
        if hello.node == self.owner.identity.node:
            self.close()  # a seed that is this node itself
            return
        if taken := self.owner.taken(hello):
            self.refused(taken)  # what listens here another time may be the one that the map lists
            connection.socket.close()
            return
        self._attempts, self._complained = 0, ""
        self.peer, self.connection = hello, connection
        connection.ready = True
        if self.role == BEAT:
            self.owner.beats_by_node[hello.node] = self
            return
        self.owner.links_by_node[hello.node] = self
        self.owner.inbox(seen_of(hello), 0)

    def refused(self, reason: str) -> None:
        """Tell the operator, once per reason."""
        if reason != self._complained and self.role == PEER:
            self._complained = reason
            self.owner.note(f"{self.address}: {reason}")

    def lost(self, connection: Outgoing) -> None:
        """The connection broke: report it, and dial again."""
        if self.connection is connection:
            self.connection = None
            if self.peer is not None and self.role == PEER:
                self.owner.lost(self.peer.node)
        if self.connection is None:
            self._redial()

    def look(self) -> None:
        """Hang up on whoever may not speak under its name any more; it is told why when it answers again."""
        connection = self.connection
        if connection is not None and connection.socket is not None and self.peer and self.owner.taken(self.peer):
            connection.socket.close()

    def send(self, data: Framed) -> None:
        """Write a frame, or drop it: what matters is sent again."""
        connection = self.connection
        if connection is None or connection.socket is None or connection.socket.is_closing():
            return
        if connection.socket.get_write_buffer_size() < PEER_BACKLOG_BYTES_MAX:
            connection.socket.writelines(data)
            if (size := sum(map(len, data))) >= LARGE_BYTES:
                now = self.owner.loop.time()
                self._behind_until = max(now, self._behind_until) + size / SLOW_LINK_BYTES_PER_S

    @property
    def is_behind(self) -> bool:
        """Whether what is large may still be on its way, in the kernel or the network, where nobody sees it."""
        return self.owner.loop.time() < self._behind_until

    def close(self) -> None:
        """Do not want it any more."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None and self.connection.socket is not None:
            self.connection.socket.close()
