"""Sockets: accepts peers and clients, keeps a connection to every peer, and brings what they say as events.

It decides nothing. A peer connection carries messages one way: each node dials those it wants to speak to and listens to
those that dial it; and it dials each of them more than once (`host.links`), because a heartbeat that stood behind a large
frame on a slow link would come too late for a node that lives. Bytes that cannot be sent are dropped beyond a bound (peers
send again what was not answered), a client that does not read its answers is cut off, and whoever does not speak the
protocol is told why and hung up on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from engine.errors import ProtocolError
from engine.host.links import LARGE_BYTES, MAY_BE_LARGE, Link, apart, life_of, seen_of, way_of
from engine.host.sockets import Complaints, address_of, crowd_of, files_max, keep_alive
from engine.messages import Message, PrepareParts, kind_of
from engine.protocol.addresses import HELLO_SECONDS, Address, split_address
from engine.protocol.limits import label_problem
from engine.protocol.requests import Code, Failed, Reply
from engine.protocol.resolver import Resolver
from engine.protocol.roles import BESIDE, BULK, PEER, PEERS, Role
from engine.protocol.wire import (
    FRAME_BYTES_MAX,
    MAGIC,
    PEER_FRAME_BYTES_MAX,
    PROTOCOL,
    FrameReader,
    Hello,
    decode_hello,
    decode_messages,
    decode_requests,
    frame,
    frames,
)
from engine.turn.events import Asked, ClientSeen, Event, PeerLost, PeerSeen, Received, SessionId
from engine.turn.lent import NotSent
from engine.turn.settings import Settings
from wal.ids import NAME, NodeId

CLIENT_BACKLOG_BYTES_MAX = 128 << 20
LOOK_SECONDS = 0.5  # so often it is seen whether whoever is connected may still speak under its name


class _Incoming(asyncio.Protocol):
    """A connection that someone made to us: a peer that speaks, or a client that asks."""

    def __init__(self, owner: Transport) -> None:
        self.owner = owner
        self.reader = FrameReader()
        self.socket: asyncio.Transport | None = None
        self.peer: Hello | None = None
        self.session: SessionId | None = None
        self._patience: asyncio.TimerHandle  # since it is connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        self.socket = transport
        keep_alive(transport)
        self.owner.incoming[self] = None
        self._patience = self.owner.loop.call_later(HELLO_SECONDS, transport.close)
        if len(self.owner.incoming) - len(self.owner.sessions) > self.owner.crowd.others:
            self._refuse(self.owner.crowd.too_many_others)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self.reader.feed(data):
                if (peer := self.peer) is not None:
                    receive, messages = self.owner.inbox, decode_messages(payload)
                    weight = len(payload) // max(1, len(messages))
                    for message in messages:
                        receive(Received(peer.node, peer.allocation, peer.incarnation, message), weight)
                elif self.session is not None:
                    requests = decode_requests(payload)
                    weight = len(payload) // max(1, len(requests))
                    for request in requests:
                        self.owner.inbox(Asked(self.session, request), weight)
                else:
                    self._greet(decode_hello(payload))
                    if self.peer is None and self.session is None:
                        return  # who is refused is not heard
        except ProtocolError as error:
            self._refuse(str(error))

    def _greet(self, hello: Hello) -> None:
        owner = self.owner
        assert self.socket is not None
        self._patience.cancel()
        problem = owner.problem_with(hello)
        taken = owner.taken(hello) if hello.role in PEERS and not problem else ""
        if problem or taken:
            self._refuse(problem or taken, name_taken=bool(taken))
            return
        self.socket.write(frame(owner.hello("node")))
        if hello.role in PEERS and life_of(hello) == life_of(owner.identity):
            self.socket.close()  # it has dialed itself, and hears so
        elif hello.role in PEERS:
            self.reader.limit = PEER_FRAME_BYTES_MAX
            self.peer = hello
            if hello.role == PEER:
                owner.inbox(seen_of(hello, PEER), 0)
                for link in owner.links_to(hello.address):
                    link.heard(hello)
        else:
            self.reader.limit = FRAME_BYTES_MAX
            self.session = owner.new_session(self)
            owner.inbox(ClientSeen(self.session, hello.client, address_of(self.socket)), 0)

    def _refuse(self, reason: str, *, name_taken: bool = False) -> None:
        if self.socket is not None and not self.socket.is_closing():
            if self.session is not None:
                self.socket.write(frame([Failed(0, Code.USAGE, reason)]))
            elif self.peer is None:
                self.socket.write(frame(Hello(MAGIC, PROTOCOL, "node", refused=reason, name_taken=name_taken)))
            if not self.owner.ends:
                self.owner.complain(f"a connection was refused: {reason}")
            self.socket.close()  # when what it was told is sent, or
            self._patience = self.owner.loop.call_later(HELLO_SECONDS, self.socket.abort)

    def look(self) -> None:
        """Hang up on whoever may not speak under its name any more; it is told why when it connects again."""
        if self.peer is not None and self.socket is not None and self.owner.taken(self.peer):
            self.socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self.owner.incoming.pop(self, None)
        if self.session is not None:
            self.owner.sessions.pop(self.session, None)
            self.owner.inbox(ClientSeen(self.session), 0)


class Transport:
    """All connections of one node. `inbox` takes each event as it comes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        identity: PeerSeen,
        settings: Settings,
        cluster_id: Callable[[], str],
        taken: Callable[[Hello], str],
        inbox: Callable[[Event, int], None],
        note: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.identity = identity
        self.inbox = inbox
        self.note = note
        self.settings = settings
        self.resolver = Resolver(loop)
        self._cluster_id = cluster_id
        self.taken = taken  # why a node may not speak under its name now, or nothing
        self.incoming: dict[_Incoming, None] = {}
        self.sessions: dict[SessionId, _Incoming] = {}
        self.links: dict[Address, Link] = {}
        self.links_by_node: dict[NodeId, Link] = {}
        self.beside: dict[tuple[Role, Address], Link] = {}
        self.beside_by_node: dict[tuple[Role, NodeId], Link] = {}
        self.not_sent: dict[NodeId, NotSent] = {}
        self.crowd = crowd_of(files_max())
        self._last_session = 0
        self.complain = Complaints(loop, note)
        self.ends = False
        self._server: asyncio.Server | None = None
        self._timer = loop.call_later(LOOK_SECONDS, self._look)

    async def listen(self, address: Address) -> Address:
        """Accept connections; return the address with the port that was taken. Raises OSError."""
        host, port = split_address(address)
        self._server = await self.loop.create_server(lambda: _Incoming(self), host, port, backlog=512)
        taken = self._server.sockets[0].getsockname()
        return f"{host if ':' not in host else f'[{host}]'}:{taken[1]}"

    def hello(self, role: str) -> Hello:
        """What this node says first."""
        me = self.identity
        return Hello(
            MAGIC,
            PROTOCOL,
            role=role,
            cluster_name=self.settings.cluster,
            cluster=self._cluster_id(),
            node=me.node,
            allocation=me.allocation,
            incarnation=me.incarnation,
            address=me.address,
            domain=me.domain,
            lock_lease_ms=self.settings.lock_lease_ms,
            result_retention_ms=self.settings.result_retention_ms,
            habits=me.habits,
        )

    def problem_with(self, hello: Hello) -> str:
        """Why a caller is not welcome, or nothing."""
        mine = self._cluster_id()
        if self.ends:
            return f"{self.identity.node} ends, and writes its last checkpoint"
        if hello.role == "client":
            if len(self.sessions) >= self.crowd.clients:
                return self.crowd.too_many_clients
            return label_problem(hello.client)
        if hello.role not in PEERS:
            return f"role {hello.role[:20]!r} is not known"
        if not NAME.fullmatch(hello.node):
            return f"node id {hello.node[:80]!r} is not a legal name: expected 1 to 64 letters, digits, '.', '_' or '-'"
        if hello.cluster_name != self.settings.cluster:
            return f"cluster {hello.cluster_name[:80]!r} was expected to be {self.settings.cluster!r}: check --cluster"
        if hello.cluster and mine and hello.cluster != mine:
            other = hello.cluster[:80]
            return f"node {hello.node} belongs to cluster id {other}, this is {mine}: its directory is another's"
        return ""

    def new_session(self, connection: _Incoming) -> SessionId:
        """Number a client connection."""
        self._last_session += 1
        self.sessions[self._last_session] = connection
        return self._last_session

    def connect(self, address: Address) -> None:
        """Keep a connection to an address."""
        if address and address != self.identity.address and address not in self.links:
            self.links[address] = Link(self, address, PEER)
            self.beside |= {(role, address): Link(self, address, role) for role in BESIDE}

    def links_to(self, address: Address) -> Iterator[Link]:
        """All connections to an address."""
        if address in self.links:
            yield self.links[address]
            yield from (self.beside[role, address] for role in BESIDE)

    def listening_at(self, address: Address) -> Iterator[Hello]:
        """Who speaks to this node, and says that it listens there."""
        return (c.peer for c in self.incoming if c.peer is not None and c.peer.address == address)

    def lost(self, node: NodeId, role: Role) -> None:
        """A connection to a peer broke; if it is connected by another address, or another life of it, that is spoken to."""
        for link in self.links.values() if role == PEER else self.beside.values():
            if link.role == role and link.connection is not None and link.leads_to(node):
                if role == PEER:
                    self.links_by_node[node] = link
                else:
                    self.beside_by_node[role, node] = link
        if role == PEER:
            self.inbox(PeerLost(node), 0)
        elif role == BULK and self.speaks(PEER, node) and (peer := self.links_by_node[node].peer) is not None:
            self.inbox(seen_of(peer, BULK), 0)  # what was on its way is not any more, and goes by the other one

    def speaks(self, role: Role, node: NodeId) -> bool:
        """Whether there is such a connection to a peer."""
        link = self.links_by_node.get(node) if role == PEER else self.beside_by_node.get((role, node))
        return link is not None and link.connection is not None and link.leads_to(node)

    def _look(self) -> None:
        self._timer = self.loop.call_later(LOOK_SECONDS, self._look)
        for look in [c.look for some in (self.links.values(), self.beside.values(), self.incoming) for c in some]:
            look()

    def address_of(self, node: NodeId) -> Address:
        """Where a peer listens that this node is connected to, or nothing; no name, so that who wants to be heard at once
        need not ask where it leads. From any thread."""
        link = self.links_by_node.get(node)
        return link.place if link is not None and link.leads_to(node) else ""

    def send(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        """Say things to peers; what goes to the same peers in a row is encoded once."""
        by_way: dict[tuple[tuple[NodeId, ...], Role], list[Message]] = {}
        for targets, message in sends:
            by_way.setdefault((targets, way_of(message, behind=self._is_behind(targets))), []).append(message)
        for (targets, role), messages in by_way.items():
            for some in ([message] for message in messages) if role is BULK else (messages,):
                self._say(targets, role, some)

    def _say(self, targets: tuple[NodeId, ...], role: Role, messages: Sequence[Message]) -> None:
        ready, too_large = frames(messages, PEER_FRAME_BYTES_MAX)
        if role is PEER and any(len(piece) >= LARGE_BYTES for data in ready for piece in data):
            if len(messages) > 1 and any(type(message) in MAY_BE_LARGE for message in messages):
                for some in apart(messages):
                    self._say(targets, role, some)
                return
            role = BULK if type(messages[0]) is PrepareParts else PEER
        links = [link for t in targets if (link := self._link_to(t, role)) is not None]
        for data in ready:
            for link in links:
                link.send(data)
        if too_large:
            told = ", ".join(dict.fromkeys(kind_of(message) for message in too_large))
            self.note(f"{told} for {', '.join(targets)}: more than {PEER_FRAME_BYTES_MAX} bytes at once, not sent")

    def _is_behind(self, targets: tuple[NodeId, ...]) -> bool:
        return any((link := self.links_by_node.get(t)) is not None and link.is_behind for t in targets)

    def _link_to(self, node: NodeId, role: Role) -> Link | None:
        if role is not PEER and self.speaks(role, node):
            return self.beside_by_node[role, node]
        link = self.links_by_node.get(node)
        return link if link is not None and link.leads_to(node) else None

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        """Answer clients."""
        by_session: dict[SessionId, list[Reply]] = {}
        for session, answer in replies:
            by_session.setdefault(session, []).append(answer)
        for session, answers in by_session.items():
            connection = self.sessions.get(session)
            if connection is None or connection.socket is None or connection.socket.is_closing():
                continue
            if connection.socket.get_write_buffer_size() > CLIENT_BACKLOG_BYTES_MAX:
                self.note(f"a client does not read its answers ({CLIENT_BACKLOG_BYTES_MAX} bytes wait): cut off")
                connection.socket.abort()
                continue
            ready, too_large = frames(answers)
            for data in ready:
                connection.socket.writelines(data)
            for refused in too_large:
                reason = f"the answer has more than {FRAME_BYTES_MAX} bytes: ask for less at once"
                connection.socket.write(frame([Failed(refused.id, Code.USAGE, reason)]))

    async def hang_up(self) -> None:
        """Hang up on everyone; who dials from now on is told that the node ends."""
        self.ends = True
        self._timer.cancel()
        self.resolver.close()
        for link in (*self.links.values(), *self.beside.values()):
            link.close()
        for connection in list(self.incoming):
            if connection.socket is not None:
                connection.socket.close()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        await self.hang_up()
