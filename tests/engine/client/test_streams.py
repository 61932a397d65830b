"""A client's own sockets over connections that cut, delay and break what is said at every place
(`tests.engine.host.streams`), to the real transports of nodes that answer as a cluster would.

Whatever the streams do: what was acknowledged was done once; what failed for certain was not; whoever waits is told in
time; nothing is asked of who belongs to another cluster; and when nothing breaks any more there is one connection to each
node, over which all is done, and none after the end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from engine import errors
from engine.client.calls import GetCall, PutCall
from engine.client.routing import Router
from engine.client.session import Session
from engine.client.sockets import SocketLinks, _Connection
from engine.client.timing import Surroundings
from engine.host.transport import Transport
from engine.protocol.requests import Done, Get, GetTable, KeepSessions, Put, Remap, Reply, Request, Table, Values
from engine.turn.events import Asked, Event, PeerSeen
from engine.turn.settings import Settings
from rebalance import table as topology
from rebalance.table import Member, Placement, Topology
from tests.engine.host.streams import MS, SECOND, Streams
from wal.ids import TxId, Version

NAMES = ("n1", "n2", "n3")
PARTITIONS = 8
LATE_SECONDS = 1.0
"""So much later than its deadline whoever waits may be told."""


class Cluster:
    """What its nodes have; each partition has a primary, which moves now and then."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.done: dict[TxId, int] = {}  # how often
        self.minor = 0
        self.shift = 0

    @property
    def map(self) -> Topology:
        """The map of now."""
        members = tuple(Member(name, f"{name}-disk", 1, f"{name}:7000", at) for at, name in enumerate(NAMES, 1))
        placements = [Placement(1, 1, (NAMES[(at + self.shift) % 3],), NAMES) for at in range(PARTITIONS)]
        version = Version(1, self.minor)
        return Topology(version, "ours", "foreshore", PARTITIONS, 1, members, NAMES, tuple(placements), {}, {}, 3)

    def execute(self, put: Put) -> None:
        """Once, however often it is said."""
        if put.tx not in self.done:
            self.done[put.tx] = 0
            self.rows |= zip(put.keys, put.values, strict=True)
        self.done[put.tx] = 1


class Host:
    """A node at an address. `stranger`: what listens there now is a node of another cluster."""

    def __init__(self, loop: Streams, name: str, cluster: Cluster) -> None:
        self.loop = loop
        self.name = name
        self.cluster = cluster
        self.stranger = False
        self.asked_the_stranger: list[Request] = []
        self.transport = Transport(
            loop,
            identity=PeerSeen(name, f"{name}-disk", 1, f"{name}:7000", "", ""),
            settings=Settings(cluster="c"),
            cluster_id=lambda: "theirs" if self.stranger else "ours",
            taken=lambda _: "",
            inbox=self._hear,
            note=lambda _: None,
        )
        loop.create_task(self.transport.listen(f"{name}:7000"))
        loop.run_for(0)

    def _hear(self, event: Event, weight: int) -> None:
        if isinstance(event, Asked):
            if self.stranger:
                self.asked_the_stranger.append(event.request)
            later = self.loop.draw.choice((0, 0, 0, 0.01, 0.3))
            self.loop.call_later(later, self._answer, event.session, event.request, self.stranger)

    def _answer(self, session: int, request: Request, stranger: bool) -> None:
        if self.stranger == stranger and (reply := self._reply_to(request)) is not None:
            self.transport.reply([(session, reply)])

    def _reply_to(self, request: Request) -> Reply | None:
        cluster = self.cluster
        match request:
            case GetTable():
                return Table(request.id, cluster.map.version, topology.encode(cluster.map))
            case Put() | Get() if any(not self._leads(request.namespace, key) for key in request.keys):
                return Remap(request.id, cluster.map.version)
            case Put():
                cluster.execute(request)
                return Done(request.id)
            case Get():
                return Values(request.id, [(1, 1, cluster.rows.get(key)) for key in request.keys])
            case KeepSessions():
                return Done(request.id)
        raise AssertionError(f"nobody asks {request}")

    def _leads(self, namespace: str, key: bytes) -> bool:
        now = self.cluster.map
        return now.placements[now.place(namespace, key)].primary == self.name

    def become(self, *, stranger: bool) -> None:
        """Its process ends, and another one listens at its address."""
        self.stranger = stranger
        for end in list(self.loop.ends):
            if end.protocol in self.transport.incoming:
                end.cut()


class Story:
    """A client of three nodes."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.loop = Streams(self.draw)  # type: ignore[abstract]  # it has what transports use
        self.cluster = Cluster()
        self.told: dict[TxId, str] = {}
        self.keys: dict[bytes, bytes] = {}  # that were acknowledged
        self.waiting = 0
        self.number = 0
        around = Surroundings(lambda: self.loop.clock.now, lambda: self.loop.clock.now, Random(seed))
        with self.loop.entered():
            self.hosts = {name: Host(self.loop, name, self.cluster) for name in NAMES}
            self.session = Session([f"{name}:7000" for name in NAMES], timeout=10.0, around=around)
            self.session.links = self.links = SocketLinks(self.session)
            self.session.begin()
            self.loop.create_task(self.session.wait_for_table(3_600.0))

    def play(self, steps: int = 120) -> None:
        """Things happen; then nothing breaks any more, and at last the client goes."""
        loop, draw = self.loop, self.draw
        with loop.entered():
            for _ in range(steps):
                draw.choice((self._put, self._put, self._get, self._trouble, self._move))()
                loop.run_for(draw.choice((0, 0, 1, 30, 400, 3_000)) * MS)
                self._look()
            self._calm_down()
            closing = loop.create_task(self.session.close())
            loop.run_for(10 * SECOND)
            assert closing.done(), "it hangs up"
            assert not loop.ends, "nothing is left of it"

    def _put(self) -> None:
        self.number += 1
        key, value = b"k%d" % self.number, b"v%d" % self.number * self.draw.choice((1, 1, 50))
        self.loop.create_task(self._putting(key, value, self.draw.choice((0.05, 1.0, 30.0))))

    async def _putting(self, key: bytes, value: bytes, seconds: float) -> None:
        call = PutCall(self.session.new_tx(), "n", [key], [value])
        outcome = await self._in_time(call, seconds)
        self.told[call.tx] = outcome
        if outcome == "ok":
            assert call.tx in self.cluster.done, "what is acknowledged was done"
            self.keys[key] = value

    def _get(self) -> None:
        if self.keys:
            self.loop.create_task(self._getting(self.draw.choice(list(self.keys))))

    async def _getting(self, key: bytes) -> None:
        call = GetCall("n", [key])
        if await self._in_time(call, 1.0) == "ok":
            assert call.values[0][2] == self.keys[key]

    async def _in_time(self, call: PutCall | GetCall, seconds: float) -> str:
        until = self.loop.time() + seconds + LATE_SECONDS
        self.waiting += 1
        try:
            await self.session.call(call, timeout=seconds)
        except (errors.Unavailable, errors.CommitUnknown) as error:
            return "unknown" if error.maybe_committed else "failed"
        except errors.Error as error:
            raise AssertionError(repr(error)) from error
        else:
            return "ok"
        finally:
            self.waiting -= 1
            assert self.loop.time() <= until, "whoever waits is told in time"

    def _move(self) -> None:
        if self.draw.random() < 0.3:
            self.cluster.minor += 1
            self.cluster.shift = self.draw.randrange(3)

    def _trouble(self) -> None:
        draw, loop = self.draw, self.loop
        if draw.random() < 0.2:
            host = draw.choice(list(self.hosts.values()))
            host.become(stranger=not host.stranger)
        elif loop.ends:
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

    def _look(self) -> None:
        for host in self.hosts.values():
            told = [request for request in host.asked_the_stranger if not isinstance(request, GetTable)]
            assert self.session.router.topology is None or not told, f"asked of another cluster: {told}"
        dialed = [end for end in self.loop.ends if getattr(end.protocol, "links", None) is self.links]
        for name in NAMES:
            mine = [end for end in dialed if end.protocol.address == f"{name}:7000" and not end.is_closing()]
            assert len(mine) <= 1, f"{len(mine)} connections to {name}"

    def _calm_down(self) -> None:
        loop = self.loop
        loop.calm = True
        for host in self.hosts.values():
            if host.stranger:
                host.become(stranger=False)
        for end in list(loop.ends):
            end.deaf_until, end.breaks_after = 0, None
            end._move()
        loop.run_for(120 * SECOND)
        assert not self.waiting, "all were told"
        for at in range(30):
            loop.create_task(self._putting(b"calm %d" % at, b"v", 10.0))
        loop.run_for(15 * SECOND)
        assert sum(key.startswith(b"calm") for key in self.keys) == 30, "all is done"
        assert sorted(self.links.open) == [f"{name}:7000" for name in NAMES]
        assert len(loop.ends) == 2 * len(NAMES), "connections that nobody uses"
        self._look()
        for tx, outcome in self.told.items():
            assert outcome != "failed" or tx not in self.cluster.done, "what failed was not done"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_streams_do_what_is_acknowledged_was_done(seed: int) -> None:
    Story(seed).play()


# That it would be noticed.


def _play_all() -> None:
    for seed in range(40):
        Story(seed).play()


def _asks_whoever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks of which cluster a node is."""
    monkeypatch.setattr(SocketLinks, "not_ours", lambda *_: "")


def _dials_whoever_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second connection is made where there is one."""

    def connect(links: SocketLinks, address: str) -> None:
        links.session.loop.create_task(links._dial(address))

    monkeypatch.setattr(SocketLinks, "connect", connect)


def _does_not_tell_of_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks is open for ever."""
    monkeypatch.setattr(_Connection, "connection_lost", lambda *_: None)


def _leaves_its_connections_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes hangs up on nobody."""

    async def close(links: SocketLinks) -> None:
        links.open.clear()

    monkeypatch.setattr(SocketLinks, "close", close)


def _takes_what_broke_for_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent over a connection that broke is held not to have been done."""
    lost = Router.on_disconnected

    def on_disconnected(router: Router, address: str, now: int) -> None:
        flights = [flight for flight in router._flights.values() if flight.address == address]
        lost(router, address, now)
        for flight in flights:
            flight.errand.call.unanswered = False

    monkeypatch.setattr(Router, "on_disconnected", on_disconnected)


@pytest.mark.parametrize(
    "fault",
    [
        _asks_whoever_is_there,
        _dials_whoever_is_connected,
        _does_not_tell_of_what_is_lost,
        _leaves_its_connections_behind,
        _takes_what_broke_for_not_done,
    ],
)
def test_what_is_wrong_with_a_clients_connections_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        _play_all()
