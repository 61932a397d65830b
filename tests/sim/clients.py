"""Clients: the real `Router`, driven by coroutines over connections that break, and never double or reorder.

A workload is written as `async def` and awaits calls and pauses; there is no event loop, the world steps each coroutine
when what it awaits has happened. A client may live on a node's machine, and is cut off, and dies, with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engine import errors
from engine.client.calls import Call
from engine.client.routing import Router
from engine.protocol.addresses import Address
from engine.protocol.requests import Reply, Request
from engine.protocol.wire import decode_replies, decode_requests, frame
from engine.turn.events import Asked, ClientSeen
from tests.sim.network import MS, REDIAL_NS, Side
from tests.sim.trace import FRAME_HEADER_BYTES
from wal.ids import TxId

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

T = TypeVar("T")
C = TypeVar("C", bound=Call)

RETRY_BLOCKED_NS = 20 * MS
CONNECT_TIMEOUT_NS = 5_000 * MS
TICK_NS = 10 * MS
"""How often a session looks at its router; see `engine.client.session`."""


class Later(Generic[T]):
    """Something that will have happened; one coroutine may await it."""

    __slots__ = ("done", "task", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.task: Task | None = None

    def __await__(self) -> Generator[Later[T], None, T | None]:
        if not self.done:
            yield self
        return self.value

    def set(self, value: T | None = None) -> None:
        """It has happened."""
        if self.done:
            return
        self.done, self.value = True, value
        if self.task is not None:
            self.task.world.after(0, self.task.step)


class Task:
    """A coroutine that the world steps. `failure` is what it raised, if anything."""

    def __init__(self, world: World, coroutine: Coroutine[Later[Any], None, object], name: str) -> None:
        self.world = world
        self.name = name
        self.done = False
        self.cancelled = False
        self.failure: BaseException | None = None
        self.result: object = None
        self._coroutine = coroutine

    def step(self) -> None:
        """Go on to the next await, or to the end."""
        if self.done:
            return
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
        except errors.Error as error:
            self.done, self.failure = True, error
        else:
            awaited.task = self
            if awaited.done:
                self.world.after(0, self.step)

    def cancel(self) -> None:
        """Its client is gone."""
        self.done = self.cancelled = True
        self._coroutine.close()


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

    def ask(self, requests: list[Request]) -> None:
        """Requests leave for the node."""
        network, name = self.client.world.network, self.client.name
        if network.rules:
            requests = [
                r for r in requests if not network.catches(name, self.machine.name, r, r, partial(self._send_up, [r]))
            ]
        if requests:
            self._send_up(requests)

    def _send_up(self, requests: list[Request]) -> None:
        if self.open:
            self._queue(self._up, frame(requests), self._arrive_up)

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

    def _arrive_up(self) -> None:
        world, machine = self.client.world, self.machine
        while self._up and self._up[0][0] <= world.now:
            if not self.open or not machine.up or machine.boot != self.boot:
                return
            if not world.network.passes(self.client.side, machine.name):
                world.after(RETRY_BLOCKED_NS, self._arrive_up)
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
                world.after(RETRY_BLOCKED_NS, self._arrive_down)
                return
            _, data = self._down.popleft()
            for reply in decode_replies(data[FRAME_HEADER_BYTES:]):
                world.trace.add(world.now, "answer", machine.name, self.client.name, reply)
                world.network.said_at = world.now
                if self.client.listener is not None:
                    self.client.listener(reply)
                self.client.take(machine.address, reply)

    def break_off(self) -> None:
        """The connection is gone, and what was under way on it."""
        if self.open:
            self.open = False
            self.machine.sessions.pop(self.session, None)
            self._up.clear()
            self._down.clear()
            self.client.lost(self)


class Client:
    """One client program: a router, its connections, its clock, and its coroutines."""

    def __init__(self, world: World, name: str, *, host: Machine | None = None) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.alive = True
        self.sheltered = False  # no fault befalls it
        self.listener: Callable[[Request | Reply], None] | None = None  # who speaks in its name, so no oracle minds it
        self.wall_offset_ms = 0
        self.tasks: list[Task] = []
        self.connections: dict[Address, Connection] = {}
        self._draw = world.draws.of(f"client {name}")
        self._attempts: dict[Address, int] = {}
        self._dialing: dict[Address, None] = {}
        self._alarm: int | None = None
        self._flushing = False
        seeds = [machine.address for machine in world.machines.values()]
        self.router = Router(seeds, draw=self._draw.getrandbits(128), now=world.now, wall_ms=world.wall_ms)
        self._flush()

    @property
    def side(self) -> Side:
        """Where it is, for what is cut off from what."""
        return self.host.name if self.host is not None else self.name

    @property
    def clock_us(self) -> int:
        """Its wall clock, which may be anything."""
        return max(1, (self.world.wall_ms + self.wall_offset_ms) * 1000)

    def delay(self) -> int:
        """How long something takes from or to it."""
        weather = self.world.network.weather
        return weather.delay + (self._draw.randrange(weather.jitter) if weather.jitter else 0)

    def new_tx(self, label: str = "") -> TxId:
        """A new transaction id."""
        return self.router.identity.new_tx(self.world.now, label)

    def new_owner(self) -> TxId:
        """An id that only holds locks."""
        return self.router.identity.new_owner()

    def unused(self, tx: TxId) -> None:
        """Nothing was asked, or will be asked any more, under this id."""
        self.router.identity.close(tx)

    # Coroutines.

    def spawn(self, coroutine: Coroutine[Later[Any], None, object], name: str = "") -> Task:
        """Run a coroutine of this client."""
        task = Task(self.world, coroutine, name or self.name)
        self.tasks.append(task)
        self.world.after(0, task.step)
        return task

    async def pause(self, ns: int) -> None:
        """Do nothing for a while."""
        later: Later[None] = Later()
        self.world.after(ns, later.set)
        await later

    async def call(self, call: C, *, timeout_ns: int) -> C:
        """Do a call; raise its error."""
        later: Later[None] = Later()
        call.waiter = later
        self.router.begin(call, self.world.now, self.world.now + timeout_ns)
        self._flush_soon()
        await later
        if call.error is not None:
            raise call.error
        return call

    # The router's doing half.

    def _flush_soon(self) -> None:
        """What is asked in one moment leaves together, as `engine.client.session` does it."""
        if not self._flushing:
            self._flushing = True
            self.world.after(0, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        router = self.router
        if not self.alive:
            return
        wanted, router.places.to_connect = router.places.to_connect, []
        for address in wanted:
            self._dial(address)
        sends, router.sends = router.sends, []
        by_address: dict[Address, list[Request]] = {}
        for address, request in sends:
            by_address.setdefault(address, []).append(request)
        for address, requests in by_address.items():
            connection = self.connections.get(address)
            if connection is not None:
                connection.ask(requests)
        done, router.done = router.done, []
        for call in done:
            if isinstance(call.waiter, Later):
                call.waiter.set()
        self._plan()

    def _plan(self) -> None:
        if self._alarm is not None and self._alarm <= self.world.now + TICK_NS:
            return  # it looks that soon whatever there is to do
        wake = self.router.wake_at
        if wake is None:
            return
        at = max(wake, self.world.now + TICK_NS)
        if self._alarm is None or at < self._alarm:
            self._alarm = at
            self.world.at(at, self._tick, at)

    def _tick(self, planned: int) -> None:
        if self._alarm != planned or not self.alive:
            return
        self._alarm = None
        self.router.tick(self.world.now)
        self._flush()

    def take(self, address: Address, reply: Reply) -> None:
        """A reply arrived."""
        self.router.on_reply(address, reply, self.world.now)
        self._flush()

    # Connections.

    def _dial(self, address: Address) -> None:
        if address in self._dialing or address in self.connections:
            return
        self._dialing[address] = None
        tries = self._attempts.get(address, 0)
        self._attempts[address] = tries + 1
        pause = REDIAL_NS[min(tries - 1, len(REDIAL_NS) - 1)] if tries else 0
        self.world.after(pause + 2 * self.delay(), self._dialed, address)

    def _dialed(self, address: Address) -> None:
        world = self.world
        machine = world.machine_at(address)
        if not self.alive:
            return
        passes = world.network.passes
        if machine is not None and not (passes(self.side, machine.name) and passes(machine.name, self.side)):
            world.after(CONNECT_TIMEOUT_NS // 5, self._refused, address)
        elif machine is None or not machine.up or machine.paused:
            self._refused(address)
        else:
            self._dialing.pop(address, None)
            self._attempts.pop(address, None)
            self.connections[address] = Connection(self, machine)
            self.router.on_connected(address, world.now)
            self._flush()

    def _refused(self, address: Address) -> None:
        self._dialing.pop(address, None)
        if self.alive:
            self.router.on_disconnected(address, self.world.now)
            self._flush()

    def lost(self, connection: Connection) -> None:
        """A connection broke."""
        address = connection.machine.address
        if self.connections.get(address) is connection:
            del self.connections[address]
        if self.alive:
            self.router.on_disconnected(address, self.world.now)
            self._flush()

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
        self.alive = False
        for task in self.tasks:
            task.cancel()
        for connection in list(self.connections.values()):
            connection.break_off()
