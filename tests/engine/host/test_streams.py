"""Real transports over connections that cut, delay and break what is said at every place (`tests.engine.host.streams`).

Whatever the streams do: what is heard was said, by whom it seems to be, once and in its order; who is refused is heard of
no more; who comes and goes is told once; and when nothing breaks any more each node is connected to each other once, and
what is said arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from engine.errors import ProtocolError
from engine.host import links as links_module
from engine.host import transport as transport_module
from engine.host.links import Link
from engine.host.transport import Transport
from engine.messages import Leave, Message, Replicated, Supply
from engine.protocol.requests import Done, Failed, GetStatus, Put, Reply
from engine.protocol.roles import PEERS
from engine.protocol.wire import MAGIC, PROTOCOL, FrameReader, Hello, decode_hello, decode_replies, frame
from engine.turn.events import Asked, ClientSeen, Event, PeerSeen, Received
from engine.turn.settings import Settings
from tests.engine.host.streams import MS, SECOND, End, Streams
from wal.ids import NO_VERSION

NAMES = ("n1", "n2", "n3")
BACKLOG = 4_000
ANSWER = 600
"""So much at most is answered at once."""


class Host:
    """A node's transport, and what it has heard. It answers each request at once."""

    def __init__(self, loop: Streams, name: str) -> None:
        self.loop = loop
        self.name = name
        self.heard: dict[str, list[int]] = {other: [] for other in NAMES}  # numbers that peers said
        self.reminded: dict[str, list[int]] = {other: [] for other in NAMES}  # the same, over the connections for that
        self.supplied: dict[str, list[int]] = {other: [] for other in NAMES}
        self.said: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.sessions: dict[int, list[int]] = {}  # requests of clients that are connected
        self.gone: dict[int, None] = {}
        self.met: dict[str, None] = {}  # clients, by what they call themselves
        self.notes: list[str] = []
        self.taken = ""  # whose name is refused
        self.transport = Transport(
            loop,
            identity=PeerSeen(name, f"{name}-disk", 1, f"{name}:7000", "", ""),
            settings=Settings(cluster="c"),
            cluster_id=lambda: "",
            taken=lambda hello: "another life has the name" if hello.node == self.taken else "",
            inbox=self._hear,
            note=self.notes.append,
        )
        listening = loop.create_task(self.transport.listen(f"{name}:7000"))
        loop.run_for(0)
        assert listening.result() == f"{name}:7000"

    def _hear(self, event: Event, weight: int) -> None:
        match event:
            case Received(sender, allocation, incarnation, message):
                assert (allocation, incarnation) == (f"{sender}-disk", 1)
                self._take(sender, message)
            case ClientSeen(session, label, address) if address:
                self.met[label] = None
                assert session not in self.sessions
                assert session not in self.gone
                self.sessions[session] = []
            case ClientSeen(session):
                assert session not in self.gone, "it goes once"
                self.gone[session] = None
                del self.sessions[session]
            case Asked(session, request):
                asked = self.sessions[session]  # of who is here
                assert request.id == len(asked) + 1, f"each request, and in order: {request.id} after {asked}"
                asked.append(request.id)
                self.transport.reply([(session, Done(request.id, True, b"v" * self.loop.draw.choice((0, 5, 500))))])
            case _:
                pass

    def _take(self, sender: str, message: Message) -> None:
        """What a peer says over one connection comes once, and in order; over several, in any."""
        if isinstance(message, Leave):
            heard, number = self.reminded[sender], message.incarnation
        elif isinstance(message, Supply):
            heard, number = self.supplied[sender], message.session
        else:
            assert isinstance(message, Replicated)
            assert message.sequences[1:] == [message.sequences[0]] * message.durable_lsn, "it is what was said"
            heard, number = self.heard[sender], message.sequences[0]
        assert number not in heard, "once"
        assert heard is not self.heard[sender] or not heard or number > heard[-1], "in order"
        heard.append(number)

    def say(self, to: str, size: int) -> None:
        """Something with a number, to a peer; and its number over the others, as heartbeats go and what is large."""
        self.said[to] = number = self.said[to] + 1
        message = Replicated(NO_VERSION, [number] * (size + 1), size)
        beside = Leave(self.name, number), Supply(NO_VERSION, number, 1)
        self.transport.send([((to,), said) for said in (message, *beside)])

    def meet(self, *others: str) -> None:
        """Be connected to them."""
        for other in others:
            self.transport.connect(f"{other}:7000")


class Caller(asyncio.Protocol):
    """A client with a mind of its own; what it is answered is what it has asked, in order, up to where that breaks off."""

    def __init__(self, loop: Streams, label: str) -> None:
        self.loop = loop
        self.label = label
        self.reader = FrameReader()
        self.socket: End | None = None
        self.hello: Hello | None = None
        self.asked = 0
        self.answered: list[int] = []
        self.refused = ""
        self.over = False

    def connection_made(self, transport: Any) -> None:
        self.socket = transport

    def data_received(self, data: bytes) -> None:
        for payload in self.reader.feed(data):
            assert not self.refused, "who is refused is told nothing more"
            if self.hello is None:
                self.hello = decode_hello(payload)
                self.reader.limit = 1 << 20
                self.refused = self.hello.refused
                continue
            for reply in decode_replies(payload):
                self._told(reply)

    def _told(self, reply: Reply) -> None:
        if isinstance(reply, Failed) and not reply.id:
            self.refused = reply.message
            return
        assert isinstance(reply, Done)
        assert reply.id == len(self.answered) + 1
        self.answered.append(reply.id)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True

    def greet(self) -> None:
        """Say hello."""
        self.write(frame(Hello(MAGIC, PROTOCOL, "client", client=self.label)))

    def ask(self, count: int) -> None:
        """Some requests, in one frame or in several."""
        requests = [GetStatus(self.asked + at, b"t" * 16, 0) for at in range(1, count + 1)]
        self.asked += count
        together = self.loop.draw.random() < 0.5
        self.write(frame(requests) if together else b"".join(frame([request]) for request in requests))

    def write(self, data: bytes) -> None:
        """These bytes."""
        if self.socket is not None:
            self.socket.write(data)


class Story:
    """Three nodes, and clients that come and go."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.loop = Streams(self.draw)  # type: ignore[abstract]  # it has what transports use
        self.callers: list[Caller] = []
        self.answered: list[End] = []  # what nodes have of connections to clients
        with self.loop.entered():
            self.hosts = {name: Host(self.loop, name) for name in NAMES}
            for name, host in self.hosts.items():
                host.meet(*(other for other in NAMES if other != name))

    def play(self, steps: int = 150) -> None:
        """Things happen; then nothing breaks any more."""
        loop, draw = self.loop, self.draw
        with self.loop.entered():
            for _ in range(steps):
                draw.choice((self._say, self._say, self._call, self._ask, self._ask, self._trouble, self._rudely))()
                loop.run_for(draw.choice((0, 0, 1, 30, 400, 3_000)) * MS)
            self._calm_down()

    def _say(self) -> None:
        host, to = self.draw.choice(list(self.hosts.values())), self.draw.choice(NAMES)
        for _ in range(self.draw.choice((1, 1, 5))):
            host.say(to, self.draw.choice((0, 1, 300)))

    def _call(self) -> None:
        caller = Caller(self.loop, f"caller {len(self.callers)}")
        self.callers.append(caller)
        host = self.draw.choice(NAMES)
        coming = self.loop.create_connection(lambda: caller, host, 7_000)
        self.loop.create_task(self._come(coming, caller))

    async def _come(self, coming: Any, caller: Caller) -> None:
        end, _ = await coming
        self.answered.append(end.other)
        if self.loop.calm:
            end.abort()
            return
        if self.draw.random() < 0.2:
            caller.write(frame(Hello(MAGIC, PROTOCOL, "client", client="x" * 5_000)))  # which is refused
        caller.greet()
        if self.draw.random() < 0.5:
            caller.ask(2)  # before it is answered

    def _caller(self) -> Caller | None:
        here = [caller for caller in self.callers if caller.socket is not None and not caller.over]
        return self.draw.choice(here) if here else None

    def _ask(self) -> None:
        if (caller := self._caller()) is not None and caller.hello is not None:
            caller.ask(self.draw.choice((1, 3, 20)))

    def _rudely(self) -> None:
        caller, draw = self._caller(), self.draw
        if caller is None or caller.socket is None:
            return
        match draw.randrange(6):
            case 0:
                caller.write(b"\xc1" * draw.choice((1, 8, 200)))
            case 1:
                caller.write(frame([GetStatus(caller.asked + 1, b"t" * 16, 0)])[: draw.randrange(1, 30)])
                caller.socket.close()
            case 2:
                caller.socket.abort()
            case 3:
                caller.socket.deaf_until = self.loop.clock.now + draw.choice((1, 100)) * SECOND
            case 4:
                caller.write(frame(Hello(MAGIC, PROTOCOL, "client")))  # once more
            case _:
                caller.write(frame(Put(0, b"", "n", [], []))[:-1] + b"?")

    def _trouble(self) -> None:
        draw, loop = self.draw, self.loop
        host = draw.choice(list(self.hosts.values()))
        if draw.random() < 0.2:
            host.taken = draw.choice(("", *NAMES))
        if not loop.ends:
            return
        end = draw.choice(loop.ends)
        match draw.randrange(4):
            case 0:
                end.cut()
            case 1:
                end.breaks_after = draw.randrange(1, 400)
            case 2:
                end.deaf_until = loop.clock.now + draw.choice((1, 10)) * SECOND
            case _:
                end.vanish()

    def _calm_down(self) -> None:
        """Nobody is refused, deaf or cut off any more."""
        loop = self.loop
        loop.calm = True
        for host in self.hosts.values():
            host.taken = ""
        for caller in self.callers:
            if caller.socket is not None and not caller.over:
                caller.socket.abort()
        for end in list(loop.ends):
            end.deaf_until, end.breaks_after = 0, None
            end._move()
        for _ in range(12):
            for host in self.hosts.values():
                for other in NAMES:
                    if other != host.name:
                        host.say(other, 3)
            loop.run_for(10 * SECOND)
        self._look()
        for host in self.hosts.values():
            for other in NAMES:
                if other != host.name:
                    for heard in (self.hosts[other].heard, self.hosts[other].reminded, self.hosts[other].supplied):
                        assert max(heard[host.name]) == host.said[other], f"{host.name} to {other}"

    def _look(self) -> None:
        """Each node is connected to each other by three connections each way, and nothing else is left."""
        refused = [caller.label for caller in self.callers if caller.hello is not None and caller.hello.refused]
        for host in self.hosts.values():
            assert not [label for label in refused if label in host.met], "who is refused is not heard"
        for host in self.hosts.values():
            assert host.sessions == {} == host.transport.sessions, "clients that are gone"
            peers = sorted((c.peer.node, c.peer.role) for c in host.transport.incoming if c.peer is not None)
            assert peers == [(n, role) for n in NAMES if n != host.name for role in sorted(PEERS)], str(peers)
            links = sorted(node for node, link in host.transport.links_by_node.items() if link.connection is not None)
            assert links == [n for n in NAMES if n != host.name], f"{host.name} speaks to {links}"
        most = max(end.most for end in self.answered)
        assert most <= BACKLOG + ANSWER, f"{most} bytes waited for who does not read them"
        assert len(self.loop.ends) == 2 * len(PEERS) * len(NAMES) * (len(NAMES) - 1), "connections that nobody uses"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backlogs that a story can fill."""
    monkeypatch.setattr(transport_module, "CLIENT_BACKLOG_BYTES_MAX", BACKLOG)
    monkeypatch.setattr(links_module, "PEER_BACKLOG_BYTES_MAX", BACKLOG)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_streams_do_what_is_heard_was_said(seed: int) -> None:
    Story(seed).play()


def test_who_reads_nothing_is_not_waited_for_when_it_is_hung_up_on() -> None:
    """What it was answered was to be sent before its connection ended: for ever, and it stayed among those who are here."""
    loop = Streams(Random(1))  # type: ignore[abstract]  # the same
    loop.calm = True
    with loop.entered():
        host, caller = Host(loop, "n1"), Caller(loop, "deaf")
        coming = loop.create_task(loop.create_connection(lambda: caller, "n1", 7_000))
        loop.run_for(SECOND)
        end = coming.result()[0]
        caller.greet()
        loop.run_for(SECOND)
        end.deaf_until = loop.clock.now + 3_600 * SECOND
        caller.ask(5)
        loop.run_for(SECOND)
        assert list(host.sessions.values()) == [[1, 2, 3, 4, 5]]
        caller.write(b"\xc1" * 100)
        loop.run_for(60 * SECOND)
        assert host.sessions == {} == host.transport.sessions
        assert not host.transport.incoming


# That it would be noticed.


def _forgets_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of a header in several parts is forgotten with each."""
    feed = FrameReader.feed

    def fed(reader: FrameReader, data: bytes) -> Iterator[bytes]:
        reader._begun = b""
        return feed(reader, data)

    monkeypatch.setattr(FrameReader, "feed", fed)


def _takes_half_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that comes in parts is given out once for each of them."""
    feed = FrameReader.feed

    def fed(reader: FrameReader, data: bytes) -> Iterator[bytes]:
        parts = [*reader._parts] if reader._missing and len(data) >= reader._missing else []
        for payload in feed(reader, data):
            yield payload
            if parts:
                yield payload

    monkeypatch.setattr(FrameReader, "feed", fed)


def _never_dials_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who breaks off is not dialed any more."""
    monkeypatch.setattr(Link, "lost", lambda link, _: setattr(link, "connection", None))


def _dials_whoever_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection that ends, and each attempt that is over, has another one made, also where one is in use."""
    dial, lost = Link.dial, Link.lost

    def dialed(link: Link) -> None:
        used, link.connection = link.connection, None
        dial(link)
        link.connection = used

    def lose(link: Link, connection: Any) -> None:
        used = link.connection
        lost(link, connection)
        if used is not None and used is not connection:
            link._dial_later()

    def redial(link: Link) -> None:
        link._redial.pause()
        link.owner.loop.call_later(1, link.dial)

    monkeypatch.setattr(Link, "dial", dialed)
    monkeypatch.setattr(Link, "lost", lose)
    monkeypatch.setattr(Link, "_dial_later", redial)


def _keeps_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's session stays when its connection is lost."""
    monkeypatch.setattr(transport_module._Incoming, "connection_lost", lambda end, _: end.owner.incoming.pop(end, None))


def _hears_who_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is refused, and greets again before it is hung up on, is welcome."""
    receive, greet = transport_module._Incoming.data_received, transport_module._Incoming._greet

    def received(end: Any, data: bytes) -> None:
        end.rest = end.reader.feed(data)
        end.reader.feed = lambda _: end.rest
        receive(end, data)
        del end.reader.feed
        if end.peer is None and end.session is None:
            with suppress(ProtocolError):
                for payload in end.rest:
                    greet(end, decode_hello(payload))

    monkeypatch.setattr(transport_module._Incoming, "data_received", received)


def _waits_for_who_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing is answered all the same, in memory."""
    monkeypatch.setattr(transport_module, "CLIENT_BACKLOG_BYTES_MAX", 1 << 30)


def _play_all() -> None:
    for seed in range(40):
        Story(seed).play()


@pytest.mark.parametrize(
    "fault",
    [
        _forgets_what_was_begun,
        _takes_half_for_all,
        _never_dials_again,
        _dials_whoever_is_connected,
        _keeps_who_is_gone,
        _hears_who_is_refused,
        _waits_for_who_reads_nothing,
    ],
)
def test_what_is_wrong_with_connections_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, ProtocolError, KeyError)):
        _play_all()
