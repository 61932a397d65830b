"""Connections that a node makes to its peers, to speak to them: dialed until they are there, and again when they break.

There are three to each peer, because what is said over a connection stands behind what is large there, on a slow link for
seconds: one for what members say of each other, on which nothing is large; one for what is large and no write waits for,
as transfers are; and one for the rest, writes above all. Which of them something goes by is said here (`way_of`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast, get_args

from engine.errors import ProtocolError
from engine.host.sockets import address_of, give_up_soon, keep_alive
from engine.messages import Credit, Message, PrepareParts, Replicate, Replicated, Supply, Tail
from engine.messages.cluster import ToExchange, ToMembership, ToSteps
from engine.protocol.addresses import HELLO_SECONDS, Address, split_address
from engine.protocol.redial import Redial
from engine.protocol.resolver import HostUnknown, Resolver, connected
from engine.protocol.roles import BEAT, BULK, PEER, Role
from engine.protocol.wire import Framed, FrameReader, Hello, decode_hello, frame
from engine.turn.events import Event, NameTaken, PeerSeen
from engine.turn.lent import NotSent
from engine.turn.settings import Settings
from wal.ids import NodeId

PEER_BACKLOG_BYTES_MAX = 128 << 20
UNHEARD_MS_MIN, UNHEARD_SUSPICIONS = 5_000, 3
OF_MEMBERS = (*get_args(ToMembership), *get_args(ToExchange), *get_args(ToSteps))
"""What nodes say of who is here and of the next map."""
MAY_BE_LARGE = (Replicate, PrepareParts)
"""Beside what goes as `BULK` in any case."""
LARGE_BYTES = 64 << 10
"""What stands behind a frame of so many is late on a slow link, if it waits for that."""


def way_of(message: Message, *, behind: bool) -> Role:
    """By which connection something goes to a peer, if it is there; `behind`: on the one for writes something large may be
    on its way. What is small goes by that one where it can: one connection costs less than two."""
    match message:
        case Supply(batch=batch) if batch:  # 0 brings nothing, and says that its supplier is there
            return BULK
        case Tail():
            return BULK
        case Replicated() | Credit() | Supply():  # are never large, and others wait for them
            return BEAT if behind else PEER
        case _:
            return BEAT if isinstance(message, OF_MEMBERS) else PEER


def apart(messages: Sequence[Message]) -> list[list[Message]]:
    """What is too large together to go in one frame, because what is small would come no sooner than all of it."""
    small = [message for message in messages if type(message) not in MAY_BE_LARGE]
    return [*([small] if small else []), *([message] for message in messages if type(message) in MAY_BE_LARGE)]


def unheard_ms(settings: Settings) -> int:
    """What no kernel has acknowledged for so long was said in vain.

    No rule finds out that one connection of three is dead while the others live: who is heard over those is no suspect, and
    waits for what never comes.
    """
    return max(UNHEARD_MS_MIN, UNHEARD_SUSPICIONS * settings.suspicion_ms)


def seen_of(hello: Hello, *over: Role) -> PeerSeen:
    """Who has greeted, and what goes anew from now on: by which connections, or instead of which."""
    return PeerSeen(*life_of(hello), hello.address, hello.domain, hello.cluster, hello.habits, over)


def life_of(who: Hello | PeerSeen) -> tuple[NodeId, str, int]:
    """Which node it is, on which disk, and which of its lives."""
    return who.node, who.allocation, who.incarnation


class Owner(Protocol):
    """Whoever has links: a node's transport."""

    loop: asyncio.AbstractEventLoop
    resolver: Resolver
    identity: PeerSeen
    inbox: Callable[[Event, int], None]
    note: Callable[[str], None]
    taken: Callable[[Hello], str]
    settings: Settings
    not_sent: dict[NodeId, NotSent]
    links_by_node: dict[NodeId, Link]
    beside_by_node: dict[tuple[Role, NodeId], Link]

    def hello(self, role: str) -> Hello:
        """What the node says first."""

    def speaks(self, role: Role, node: NodeId) -> bool:
        """Whether there is such a connection to a peer."""

    def lost(self, node: NodeId, role: Role) -> None:
        """A connection to a peer broke."""

    def links_to(self, address: Address) -> Iterator[Link]:
        """All to one address."""

    def listening_at(self, address: Address) -> Iterator[Hello]:
        """Who speaks to this node, and says that it listens there."""


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
        keep_alive(transport)
        give_up_soon(transport, unheard_ms(self.link.owner.settings))
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
        self.place: Address = ""  # what of it answered last: where a name led then
        self.role = role
        self.peer: Hello | None = None  # who answered last
        self.connection: Outgoing | None = None
        self._redial = Redial()
        self._complained = set[str]()  # the reasons of which the operator was told since it was connected
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._behind_until = 0.0  # of the loop's clock
        self._drops_on: Outgoing | None = None  # the last connection for which too much waited
        self.dial()

    def dial(self) -> None:
        """Try to connect, unless that is so, or being tried."""
        if not self.closed and self._task is None and self.connection is None:
            self._redial.begin(self.owner.loop.time())
            self._task = self.owner.loop.create_task(self._dial())

    async def _dial(self) -> None:
        """Connect and be greeted; who takes the connection and says nothing is hung up on, and dialed again."""
        host, port = split_address(self.address)
        connection: Outgoing | None = None
        mine = asyncio.current_task()
        try:
            hosts = await self.owner.resolver.of(host, self._redial.attempts)
            async with asyncio.timeout(HELLO_SECONDS):
                connection = await connected(self.owner.loop, lambda: Outgoing(self), hosts, port)
                await connection.met
        except (OSError, TimeoutError, HostUnknown) as error:
            self.refused(f"cannot connect: {str(error) or f'no answer within {HELLO_SECONDS:g} s'}")
            if connection is None:
                self._dial_later()
        finally:
            if self._task is mine:  # else it was given up for another one
                self._task = None
            if connection is not None and not connection.ready and connection.socket is not None:
                connection.socket.abort()

    def _dial_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed:
            self._timer = self.owner.loop.call_later(self._redial.pause(), self.dial)

    def heard(self, hello: Hello) -> None:
        """Whoever listens there speaks to this node: to wait before the next attempt is for nothing, and so is what was
        begun before it could be heard there: an attempt, or a connection to another life of it, or to somebody who listens
        elsewhere."""
        if self.connection is not None:
            if self.is_over(hello) or (self.peer is not None and self._is_stray(self.peer, hello)):
                self.abort()
        else:
            if self._task is not None and self._redial.is_vain(self.owner.loop.time()):
                self._task.cancel()
                self._task = None
            if self._timer is not None:
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
            self.refused("this node itself answers there")  # a seed that is; or a name that leads elsewhere by and by
            if not any(self.owner.listening_at(self.address)):
                self._redial.met_itself()
            connection.socket.close()
            return
        if taken := self.owner.taken(hello):
            self.refused(taken)  # what listens here another time may be the one that the map lists
            connection.socket.close()
            return
        for wanted in self.owner.listening_at(self.address):
            if self._is_stray(hello, wanted):
                self.refused(f"{hello.node} answers, where {wanted.node} listens")
                connection.socket.close()
                return
        if self.connection is not None:
            return  # an attempt that had been given up was answered, too
        self._redial.met()
        self._complained.clear()
        self.peer, self.connection = hello, connection
        self.place = address_of(connection.socket)
        connection.ready = True
        for other in self.owner.links_to(self.address):
            if other.is_over(hello):
                other.abort()  # though nobody has said so
        if self.role == PEER:
            self.owner.links_by_node[hello.node] = self
        else:
            self.owner.beside_by_node[self.role, hello.node] = self
        if self.role == BULK or (self.role == PEER and self.owner.speaks(BULK, hello.node)):
            self.owner.inbox(seen_of(hello, self.role), 0)  # what was on its way over another connection is not any more
        elif self.role == PEER:
            self.owner.inbox(seen_of(hello, PEER, BULK), 0)  # what is large goes by this one, too, until it has its own

    def refused(self, reason: str) -> None:
        """Tell the operator, of each reason once until it is connected."""
        if reason not in self._complained and self.role == PEER:
            self._complained.add(reason)
            self.owner.note(f"{self.address}: {reason}")

    def lost(self, connection: Outgoing) -> None:
        """The connection broke: report it, and dial again."""
        if self.connection is connection:
            self.connection, self._behind_until = None, 0.0
            if self.peer is not None:
                self.owner.lost(self.peer.node, self.role)
        if self.connection is None:
            self._dial_later()

    def is_over(self, hello: Hello) -> bool:
        """Whether it is connected to a life that is over, as another one of that node greets so. Another node that does
        says nothing of it: a name may stand for several machines."""
        peer = self.peer
        return (
            self.connection is not None and peer is not None and peer.node == hello.node and life_of(peer) != life_of(hello)
        )

    def _is_stray(self, found: Hello, wanted: Hello) -> bool:
        """Whether a name leads to one node, and is another's: it did lead there before, or will."""
        return found.node != wanted.node and wanted.address == self.address != found.address

    def leads_to(self, node: NodeId) -> bool:
        """Whether it was this one who answered last: at the same address another node may, another time."""
        return self.peer is not None and self.peer.node == node

    def abort(self) -> None:
        """Hang up, whatever waits to be sent."""
        if self.connection is not None and self.connection.socket is not None:
            self.connection.socket.abort()

    def look(self) -> None:
        """Hang up on whoever may not speak under its name any more; it is told why when it answers again."""
        connection = self.connection
        if connection is not None and connection.socket is not None and self.peer and self.owner.taken(self.peer):
            connection.socket.close()

    def send(self, data: Framed) -> None:
        """Write a frame, or drop it, where too much waits already: what matters is sent again."""
        connection, size = self.connection, sum(map(len, data))
        if connection is None or connection.socket is None or connection.socket.is_closing():
            return
        if (waits := connection.socket.get_write_buffer_size()) >= PEER_BACKLOG_BYTES_MAX:
            self._drop(size, waits)
            return
        connection.socket.writelines(data)
        if size >= LARGE_BYTES:
            now = self.owner.loop.time()
            self._behind_until = max(now, self._behind_until) + size / self.owner.settings.link_bytes_per_s

    def _drop(self, size: int, waits: int) -> None:
        """The operator is told, once for each connection; how much it was stands in the status."""
        assert self.peer is not None
        if self._drops_on is not self.connection:
            self._drops_on = self.connection
            self.owner.note(f"{self.peer.node}: {waits} bytes wait to be sent: what comes now is dropped, and said again")
        dropped = self.owner.not_sent.setdefault(self.peer.node, NotSent())
        dropped.frames, dropped.bytes = dropped.frames + 1, dropped.bytes + size

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
