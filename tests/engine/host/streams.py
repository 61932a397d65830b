"""Connections without sockets: bytes that come in pieces of any size, at any time, or not at all, on a clock of their own.

What asyncio's transports promise holds here: what is written arrives in order and whole up to where it breaks off; `close`
sends first what was written; `abort` does not; the end of a connection is told once. All else is drawn: how much comes at
once, and when; whether a connection breaks on the way, on both sides or on one; who reads nothing for how long.

Whoever dials from a place of his own (`At`) may be cut off from others: then what asks to connect is lost, and asked again
when kernels do; what is written stands still until the way is whole and a kernel tries again, or has tried for too long.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from tests.sim.loop import Loop

SECOND = 1_000_000_000
MS = SECOND // 1_000
KEPT_ALIVE_NS = 60 * SECOND
ASKS_AGAIN_SECONDS = (1, 2, 4, 8, 16, 32)
"""Between two times at which a kernel asks to connect."""
SAYS_AGAIN_NS = 200 * MS
"""Until a kernel says again what was not acknowledged; then twice as long, and so on."""
Factory = Callable[[], asyncio.BaseProtocol]


class Clock:
    """What `tests.sim.loop.Loop` asks of a world: what time it is, and that something happens then."""

    def __init__(self) -> None:
        self.now = 0
        self._numbers = count()
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: int, do: Callable[..., None], *args: Any) -> None:
        """It happens then."""
        heappush(self._heap, (when, next(self._numbers), do, args))

    def after(self, ns: int, do: Callable[..., None], *args: Any) -> None:
        """It happens so much later."""
        self.at(self.now + ns, do, *args)

    def run_for(self, ns: int) -> None:
        """Let all happen that does within so much time."""
        until = self.now + ns
        while self._heap and self._heap[0][0] <= until:
            self.now, _, do, args = heappop(self._heap)
            do(*args)
        self.now = until


class Streams(Loop):
    """An event loop whose connections are such: all who use it reach each other."""

    def __init__(self, draw: Random) -> None:
        self.clock = Clock()
        super().__init__(self.clock)  # type: ignore[arg-type]  # it has what is asked of a world
        self.draw = draw
        self.ends: list[End] = []  # that are open
        self.calm = False  # what is written comes soon, in pieces of any size, and nothing breaks
        self.cuts: dict[tuple[str, str], None] = {}  # nothing passes from one place to another
        self.off: dict[str, None] = {}  # machines without power
        self.names: dict[str, str] = {}  # where host names lead, of those that are no places themselves
        self._listening: dict[tuple[str, int], Factory] = {}
        self._ports = count(1_000)

    def passes(self, here: str, there: str) -> bool:
        """Whether anything gets from one place to another, and back; nobody can be cut off who has no place."""
        whole = (here, there) not in self.cuts and (there, here) not in self.cuts
        return whole and here not in self.off and there not in self.off

    def run_for(self, ns: int) -> None:
        """Let everything go on for so long."""
        self.clock.run_for(ns)

    async def create_server(self, factory: Factory, host: str, port: int, **_: Any) -> Listener:  # type: ignore[override]
        """Listen at a port, or at one that is free."""
        place = host, port or next(self._ports)
        if place in self._listening:
            raise OSError(f"{place} is taken")
        self._listening[place] = factory
        return Listener(self, place)

    def hear_no_more(self, place: tuple[str, int]) -> None:
        """Nobody listens there."""
        self._listening.pop(place, None)

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:  # type: ignore[override]
        """A name stands for one address."""
        return [(0, 0, 0, "", (self.names.get(host, host), port))]

    async def create_connection(  # type: ignore[override]
        self, factory: Factory, host: str, port: int
    ) -> tuple[End, asyncio.BaseProtocol]:
        """Connect, as asyncio does: who is cancelled on the way has what was made of it closed."""
        if not self.calm and self.draw.random() < 0.1:
            await asyncio.sleep(3_600)  # what asks to connect gets lost
        await asyncio.sleep(self.draw.choice((0, 1, 20)) / 1_000)
        return await self.meet("", factory, host, port)

    async def meet(self, here: str, factory: Factory, host: str, port: int) -> tuple[End, asyncio.BaseProtocol]:
        """What asks to connect has come there."""
        listening = self._listening.get((host, port))
        if listening is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        mine, theirs = End(self, factory(), here), End(self, listening(), host)
        mine.other, theirs.other = theirs, mine
        for end in (mine, theirs):
            self.call_soon(end.begin)
        try:
            await asyncio.sleep(self.draw.choice((0, 0, 5_000 * (not self.calm))) / 1_000)
        except BaseException:
            mine.close()
            raise
        return mine, mine.protocol


class At:
    """The loop, as somebody has it who is at a place."""

    def __init__(self, loop: Streams, place: str) -> None:
        self._loop = loop
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Factory, host: str, port: int) -> tuple[End, asyncio.BaseProtocol]:
        """Connect: as often as nothing comes back it is asked again, later each time."""
        loop = self._loop
        for again in ASKS_AGAIN_SECONDS:
            await asyncio.sleep(loop.draw.choice((0, 1, 20)) / 1_000)
            if loop.passes(self._place, host):
                return await loop.meet(self._place, factory, host, port)
            await asyncio.sleep(again)
        raise TimeoutError(f"{host} does not answer")


class Listener:
    """A server's socket."""

    def __init__(self, loop: Streams, place: tuple[str, int]) -> None:
        self._loop = loop
        self.place = place

    @property
    def sockets(self) -> list[Listener]:
        """It has one."""
        return [self]

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self.place

    def close(self) -> None:
        """Listen no more."""
        self._loop.hear_no_more(self.place)


class End(asyncio.Transport):
    """One side of a connection."""

    other: End

    def __init__(self, loop: Streams, protocol: Any, place: str) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.place = place
        self.deaf_until = 0  # whoever is here reads nothing before
        self.breaks_after: int | None = None  # so many bytes, of those that are written from here on
        self._out = bytearray()  # written, and not there yet
        self._begun = self._closing = self._over = self._moving = self._told = False
        self._broken = False  # and its protocol will be told of it
        self.kept_alive = False
        self._unheard_ns = 0  # what stands still for longer was said in vain
        self._stands: int | None = None  # since when
        self.most = 0  # that ever waited

    def begin(self) -> None:
        """Its protocol is told of it."""
        self._begun = True
        self.loop.ends.append(self)
        self.protocol.connection_made(self)
        self._move()
        self.other._move()

    # What a protocol asks of its transport.

    def setsockopt(self, _: int, option: int, value: int) -> None:
        """Its kernel finds out by itself whether the other side is there."""
        self.kept_alive = True
        if option == getattr(socket, "TCP_USER_TIMEOUT", None):  # not on every system
            self._unheard_ns = value * MS

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Its socket, or where the other side is."""
        return {"socket": self, "peername": (self.other.place or "host", 1)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nobody here is told to pause."""

    def is_closing(self) -> bool:
        """Whether it was closed, here or over there."""
        return self._closing or self._over

    def get_write_buffer_size(self) -> int:
        """What was written and is not there yet."""
        return len(self._out)

    def write(self, data: Any) -> None:
        """Say it, in what time and in what pieces it takes; what is written after the end goes nowhere."""
        assert self._begun
        if not self._over and not self._closing and not self._broken:
            self._out += data
            self.most = max(self.most, len(self._out))
            self._move()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """The same, of several."""
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """End it when all was said."""
        self._closing = True
        self._move()

    def abort(self) -> None:
        """End it now."""
        self._out.clear()
        self._end(None)
        if self.loop.passes(self.place, self.other.place):
            self.loop.clock.after(self._delay(), self.other._end, ConnectionResetError("reset"))

    # What becomes of it.

    def cut(self) -> None:
        """It breaks: each side is told, at its time."""
        for end in (self, self.other):
            end._out.clear()
            end._broken = True
            self.loop.clock.after(self._delay(), end._end, ConnectionResetError("reset"))

    def vanish(self) -> None:
        """It is gone, and the other side is not told: it finds out when it says something, or by its kernel."""
        self._out.clear()
        self._end(ConnectionResetError("gone"))
        if self.other.kept_alive:
            self.loop.clock.after(KEPT_ALIVE_NS, self.other._end, ConnectionResetError("gone"))

    def _delay(self) -> int:
        return self.loop.draw.choice((0, 0, 1, 5) if self.loop.calm else (0, 0, 1, 5, 60, 1_500)) * MS

    def _move(self) -> None:
        """Some of it is on its way, or its end."""
        if not self._moving and self._begun and not self._over and not self._broken and (self._out or self._closing):
            self._moving = True
            self.loop.clock.after(max(self._delay(), self.other.deaf_until - self.loop.clock.now), self._arrive)

    def _arrive(self) -> None:
        self._moving = False
        other, draw = self.other, self.loop.draw
        if self._broken:
            return
        if not self.loop.passes(self.place, other.place) and not self._over:
            self._stand_still()
            return
        self._stands = None
        if other._over and not self._over:
            self._end(ConnectionResetError("nobody is there"))
            return
        if self._over or not other._begun or other.deaf_until > self.loop.clock.now:
            self._move() if other._begun else None
            return
        if not self._out:
            self._end(None)
            other.close() if not other._over else None
            return
        size = min(len(self._out), draw.choice((1, 1, 2, 7, 8, 9, 100, 1 << 16, 1 << 30)))
        if self.breaks_after is not None:
            size = min(size, self.breaks_after)
            self.breaks_after -= size
        data = bytes(self._out[:size])
        del self._out[:size]
        if data and not other.is_closing():
            self.loop.heard(other.protocol.data_received, data)
        if self.breaks_after == 0:
            self.cut()
        self._move()

    def _stand_still(self) -> None:
        """What is written waits until its kernel says it again, or gives up."""
        now, most = self.loop.clock.now, self._unheard_ns or KEPT_ALIVE_NS
        if self._stands is None:
            self._stands = now
        lasted = now - self._stands
        if lasted >= most:
            self._end(TimeoutError("nothing is acknowledged"))
            return
        self._moving = True
        self.loop.clock.after(min(max(SAYS_AGAIN_NS, lasted), most - lasted), self._arrive)

    def lose(self) -> None:
        """Its machine has no power any more: nobody is told."""
        self._out.clear()
        self._over = self._closing = self._told = True
        self.loop.ends.remove(self)

    def _end(self, why: Exception | None) -> None:
        self._over = self._closing = True
        if self._begun and not self._told:
            self._told = True
            self.loop.ends.remove(self)
            self.loop.call_soon(self.protocol.connection_lost, why)
