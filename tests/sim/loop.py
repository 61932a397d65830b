"""The event loop of a simulated client: asyncio's own tasks, futures and timers, on the clock of a world.

So what a client does with an event loop (`engine.client.session`, `engine.client.transaction` and what they use) runs
here as it is. What is to run now runs in one go, in the order in which it was asked for; nothing else decides the order.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from engine import errors

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
SECOND = 1_000_000_000


class Loop(asyncio.AbstractEventLoop):
    """One client's. It has no sockets, no threads and no end of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = False
        self._running = False
        self._over = False
        self._still_until = 0  # it does not run before
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # What asyncio asks of a loop.

    def time(self) -> float:
        """What the world's clock reads, in seconds."""
        return self._world.now / SECOND

    def get_debug(self) -> bool:
        """Nobody wants to know more."""
        return False

    def is_running(self) -> bool:
        """It has no other state."""
        return True

    def is_closed(self) -> bool:
        """Whether its client is gone."""
        return self._over

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        """Run it now, after what is to run before it."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._plan()
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run it after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run it then."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(max(self._world.now, round(when * SECOND)), self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the world's heap, and does nothing."""

    def create_future(self) -> asyncio.Future[Any]:
        """Something that will be."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Run a coroutine. What it raises, unless that is an error that clients are told, ends the world."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raises ends the world; that a task was left undone says nothing, for clients die."""
        if "handle" in context:
            raise context["exception"]

    # How the world goes on.

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What runs inside finds itself in this loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def stand_still(self, until: int) -> None:
        """Its process, or its machine, is stopped until then, with all that comes meanwhile."""
        self._still_until = max(self._still_until, until)

    def heard(self, told: Callable[[*Ts], None], *args: *Ts) -> None:
        """Something arrives from outside."""
        if self._world.now < self._still_until:
            self._world.at(self._still_until, self.heard, told, *args)
        elif not self._over:
            told(*args)

    def end(self) -> None:
        """The client is gone: what it was at is cut off where it is."""
        self._over = True
        for task in list(self._tasks):
            task.cancel()
        if not self._running:
            self._run()

    def _plan(self) -> None:
        if not (self._planned or self._running or self._over):
            self._planned = True
            self._world.after(0, self._run)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if handle.cancelled() or self._over:
            return
        if self._world.now < self._still_until:
            self._world.at(self._still_until, self._due, handle)
            return
        self._ready.append(handle)
        self._run()

    def _run(self) -> None:
        self._planned = False
        if self._running:
            return
        if self._world.now < self._still_until and not self._over:
            self._planned = True
            self._world.at(self._still_until, self._run)
            return
        self._running = True
        ready, before = self._ready, events._get_running_loop()
        events._set_running_loop(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(before)
            self._running = False
            if ready:
                self._plan()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, errors.Error):
            raise error
