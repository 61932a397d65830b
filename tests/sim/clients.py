"""Clients: the real `Session` and all that is above it, over connections that break, and never double or reorder.

A workload is written as `async def`; each client has an event loop on the world's clock (`tests.sim.loop`). A client may
live on a node's machine, and is cut off, and dies, with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from engine import errors
from engine.aio import Database
from engine.client.calls import Call
from engine.client.namespace import Namespace as RawNamespace
from engine.client.routing import Router
from engine.client.session import Session
from engine.client.timing import Surroundings
from engine.protocol.addresses import Address
from engine.protocol.redial import pause_after
from engine.protocol.requests import Reply, Request
from engine.protocol.wire import decode_replies, decode_requests, frame, frames
from engine.turn.events import Asked, ClientSeen
from tests.sim.loop import Loop
from tests.sim.network import MS, Side
from tests.sim.trace import FRAME_HEADER_BYTES
from wal.ids import Namespace, TxId

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

C = TypeVar("C", bound=Call)

SECOND = 1_000 * MS
RETRY_BLOCKED_NS = 20 * MS
CONNECT_TIMEOUT_NS = 5_000 * MS
KEPT_ALIVE_NS = 60_000 * MS
"""After so long a node's system gives up a connection of which nothing comes back (`engine/host/sockets.py`)."""
TIMEOUT_SECONDS = 10.0
"""So long a client waits for a call of which it says nothing else."""


class Task:
    """What a client is at. `failure` is what it was told, if that ended it."""

    def __init__(self, client: Client, coroutine: Coroutine[Any, Any, object], name: str) -> None:
        self.name = name
        self.done = False
        self.failure: errors.Error | None = None
        self.result: object = None
        self._task = client.loop.create_task(coroutine)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self.done = True
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, errors.Error):
            self.failure = error
        elif error is None:
            self.result = task.result()

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._task.cancel()


class Connection:
    """One client's connection to one node: in order, or broken."""

    def __init__(self, client: Client, machine: Machine) -> None:
        self.client = client
        self.machine = machine
        self.boot = machine.boot
        self.open = True
        self._met = False
        self.session = machine.new_session(self._answer)
        self._up: deque[tuple[int, bytes]] = deque()
        self._down: deque[tuple[int, bytes]] = deque()
        self._blocked: dict[Callable[[], None], None] = {}  # what is to be looked at again, once for all that waits

    def ask(self, requests: list[Request]) -> None:
        """Requests leave for the node."""
        network, name = self.client.world.network, self.client.name
        if self.client.listener is None:
            for request in requests:
                self.client.world.said.hear(request)
        if network.rules:
            requests = [
                r for r in requests if not network.catches(name, self.machine.name, r, r, partial(self._send_up, [r]))
            ]
        if requests:
            self._send_up(requests)

    def _send_up(self, requests: list[Request]) -> None:
        if self.open:
            ready, too_large = frames(requests)
            for parts in ready:
                self._queue(self._up, b"".join(parts), self._arrive_up)
            for request in too_large:
                self.client.session.on_unsendable(request)

    def _answer(self, reply: object) -> None:
        """A reply leaves for the client."""
        network, name = self.client.world.network, self.client.name
        if not network.rules or not network.catches(self.machine.name, name, reply, reply, partial(self._send_down, reply)):
            self._send_down(reply)

    def _send_down(self, reply: object) -> None:
        if self.open:
            self._queue(self._down, frame([reply]), self._arrive_down)

    def _queue(self, queue: deque[tuple[int, bytes]], data: bytes, arrive: Any) -> None:
        world = self.client.world
        due = world.now + self.client.delay()
        if queue:
            due = max(due, queue[-1][0])
        queue.append((due, data))
        world.at(due, arrive)

    def _later(self, arrive: Callable[[], None]) -> None:
        """The way is blocked: what waits for it tries again, all of it together."""
        if arrive not in self._blocked:
            self._blocked[arrive] = None
            self.client.world.after(RETRY_BLOCKED_NS, self._again, arrive)

    def _again(self, arrive: Callable[[], None]) -> None:
        del self._blocked[arrive]
        arrive()

    def _arrive_up(self) -> None:
        world, machine = self.client.world, self.machine
        while self._up and self._up[0][0] <= world.now:
            if not self.open or not machine.up or machine.boot != self.boot:
                return
            if not world.network.passes(self.client.side, machine.name):
                self._later(self._arrive_up)
                return
            _, data = self._up.popleft()
            if not self._met:
                self._met = True
                machine.receive(ClientSeen(self.session, self.client.name, f"{self.client.name}:1"))
            for request in decode_requests(data[FRAME_HEADER_BYTES:]):
                world.trace.add(world.now, "ask", self.client.name, machine.name, request)
                world.network.said_at = world.now
                if self.client.listener is not None:
                    self.client.listener(request)
                else:
                    for watcher in world.watchers.asked:
                        watcher.asked(machine, self.session, request)
                machine.receive(Asked(self.session, request))

    def _arrive_down(self) -> None:
        world, machine = self.client.world, self.machine
        while self._down and self._down[0][0] <= world.now:
            if not self.open:
                return
            if not world.network.passes(machine.name, self.client.side):
                self._later(self._arrive_down)
                return
            _, data = self._down.popleft()
            replies = decode_replies(data[FRAME_HEADER_BYTES:])
            for reply in replies:
                world.trace.add(world.now, "answer", machine.name, self.client.name, reply)
                world.network.said_at = world.now
                if self.client.listener is not None:
                    self.client.listener(reply)
            self.client.loop.heard(self.client.session.on_replies, machine.address, replies)

    def break_off(self) -> None:
        """The connection is gone, and what was under way on it."""
        if self.open:
            self.open = False
            self.machine.sessions.pop(self.session, None)
            self._up.clear()
            self._down.clear()
            if self._met:
                passes = self.client.world.network.passes(self.client.side, self.machine.name)
                self.client.world.after(self.client.delay() if passes else KEPT_ALIVE_NS, self._gone)
            self.client.lost(self)

    def _gone(self) -> None:
        """The node hears that its client has hung up, or finds that nobody is there any more."""
        if self.machine.boot == self.boot:
            self.machine.receive(ClientSeen(self.session))


class Client:
    """One client program: a session, its connections, its clock, and what it is at."""

    def __init__(self, world: World, name: str, *, host: Machine | None = None, wall_offset_ms: int = 0) -> None:
        """`wall_offset_ms`: by so much its wall clock is wrong."""
        self.world = world
        self.name = name
        self.host = host
        self.wall_offset_ms = wall_offset_ms
        self.alive = True
        self.sheltered = False  # no fault befalls it
        self.listener: Callable[[Request | Reply], None] | None = None  # who speaks in its name, so no oracle minds it
        self.tasks: list[Task] = []
        self.connections: dict[Address, Connection] = {}
        self._draw = world.draws.of(f"client {name}")
        self._attempts: dict[Address, int] = {}
        self._dialing: dict[Address, None] = {}
        self.loop = Loop(world)  # type: ignore[abstract]  # it has what its client uses
        around = Surroundings(
            clock=lambda: world.now,
            wall=lambda: (world.wall_ms + self.wall_offset_ms) * MS,
            chance=world.draws.of(f"chances of {name}"),
        )
        seeds = [machine.address for machine in world.machines.values()]
        with self.loop.entered():
            self.session = Session(seeds, timeout=TIMEOUT_SECONDS, name=name, around=around)
            self.session.links = self
            self.session.begin()
        self.database = Database(self.session, name)

    @property
    def router(self) -> Router:
        """Where it sends what."""
        return self.session.router

    @property
    def side(self) -> Side:
        """Where it is, for what is cut off from what."""
        return self.host.name if self.host is not None else self.name

    def delay(self) -> int:
        """How long something takes from or to it."""
        weather = self.world.network.weather
        return weather.delay + (self._draw.randrange(weather.jitter) if weather.jitter else 0)

    def new_tx(self, label: str = "") -> TxId:
        """A new transaction id."""
        return self.session.new_tx(label)

    def new_owner(self) -> TxId:
        """An id that only holds locks."""
        return self.router.identity.new_owner()

    def unused(self, tx: TxId) -> None:
        """Nothing was asked, or will be asked any more, under this id."""
        self.router.identity.close(tx)

    def raw(self, namespace: Namespace) -> RawNamespace:
        """A namespace of keys and values that are bytes."""
        return self.database.namespace(namespace)._raw

    def spawn(self, coroutine: Coroutine[Any, Any, object], name: str = "") -> Task:
        """Let the client do something."""
        task = Task(self, coroutine, name or self.name)
        self.tasks.append(task)
        return task

    async def pause(self, ns: int) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(ns / SECOND)

    async def call(self, call: C, *, timeout_ns: int) -> C:
        """Do a call; raise its error."""
        return await self.session.call(call, timeout=timeout_ns / SECOND)

    # What its session sees of the world.

    def connect(self, address: Address) -> None:
        """Begin to connect, after a pause that grows with every failure."""
        if address in self._dialing or address in self.connections:
            return
        self._dialing[address] = None
        tries = self._attempts.get(address, 0)
        self._attempts[address] = tries + 1
        pause = int(pause_after(tries) * SECOND) if tries else 0
        self.world.after(pause + 2 * self.delay(), self._dialed, address)

    def send(self, address: Address, requests: list[Request]) -> None:
        """Ask a node, if there is a way to it."""
        connection = self.connections.get(address)
        if connection is not None:
            connection.ask(requests)

    async def close(self) -> None:
        """Hang up."""
        self.die()

    # Connections.

    def _dialed(self, address: Address) -> None:
        world = self.world
        machine = world.machine_at(address)
        if not self.alive:
            return
        passes = world.network.passes
        if machine is not None and (
            not (passes(self.side, machine.name) and passes(machine.name, self.side)) or (machine.up and machine.paused)
        ):  # nobody answers; who is stopped takes the connection, and says nothing
            world.after(CONNECT_TIMEOUT_NS // 5, self._refused, address)
        elif machine is None or not machine.up:
            self._refused(address)
        else:
            self._dialing.pop(address, None)
            self._attempts.pop(address, None)
            self.connections[address] = Connection(self, machine)
            granted = machine.settings
            told = address, granted.lock_lease_ms, granted.result_retention_ms
            self.loop.heard(self.session.on_connected, *told)

    def _refused(self, address: Address) -> None:
        self._dialing.pop(address, None)
        if self.alive:
            self.loop.heard(self.session.on_disconnected, address, "it does not answer")

    def lost(self, connection: Connection) -> None:
        """A connection broke."""
        address = connection.machine.address
        if self.connections.get(address) is connection:
            del self.connections[address]
        if self.alive:
            self.loop.heard(self.session.on_disconnected, address, "it broke")

    def machine_stopped(self, machine: Machine, *, reset: bool) -> None:
        """A node's process is gone; if its system lives, it says so."""
        connection = self.connections.get(machine.address)
        if connection is not None and reset and self.world.network.passes(machine.name, self.side):
            self.world.after(self.delay(), connection.break_off)

    def machine_started(self, machine: Machine) -> None:
        """A node's system is there again, and knows nothing of older connections."""
        connection = self.connections.get(machine.address)
        if connection is not None and connection.boot != machine.boot:
            self.world.after(self.delay(), connection.break_off)

    def die(self) -> None:
        """The client program is gone; its connections break."""
        if self.alive:
            self.alive = False
            self.session.closed = True
            self.loop.end()
            for connection in list(self.connections.values()):
                connection.break_off()
