"""The doing half with an event loop and threads: it brings events to the node, and does what `engine.host.duties` asks.

A turn takes everything that arrived while the last one was paid, so group commit needs no tuning: the longer the disk
takes, the more there is to write at once. The log is written in this thread: nothing else of the node could go on in the
meantime (no turn begins before the last one is paid), and handing each block to another thread and back costs more than
it saves. Checkpoints, history, the next segment's file and the removal of old ones are for the background.

Fail-stop: whatever the log, the store or an assertion throws ends the node. Nothing is retried; coming back is recovery,
which is the tested path.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from engine.host.data_directory import DataDirectory
from engine.host.duties import Duties
from engine.messages import Message
from engine.node.node import Node
from engine.protocol.requests import Reply
from engine.turn.events import Event, SessionId
from rebalance.ports import MS
from wal.ids import NodeId

TURN_BYTES_MAX = 8 << 20
WORKERS = 4
ROOM_MS = 1_000
"""So often it is looked how much the disk has left, whether the directory is where it was, and a checkpoint late."""

T = TypeVar("T")


class Carrier(Protocol):
    """What takes messages and replies away: sockets, or the calls of the same process."""

    def send(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        """Say things to peers."""
        ...

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        """Answer clients."""
        ...

    def connect(self, address: str) -> None:
        """Keep a connection to an address."""
        ...


class Driver:
    """The loop of one node. `note` tells the operator; `stopped` holds why it ended."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, directory: DataDirectory, node: Node, *, note: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.directory = directory
        self.node = node
        self.note = note
        self.carrier: Carrier | None = None
        self.stopped: asyncio.Future[str] = loop.create_future()
        self.duties = Duties(self, node, directory.log, directory.write_checkpoint, tells=True)
        self._events: list[Event] = []
        self._weights: list[int] = []  # bytes, of each event
        self._scheduled = False
        self._due = 0  # when the first of them came, or it was time for a turn
        self._look_at = 0
        self._finishing = False  # whoever stopped it waits for its last checkpoint, and for one that is under way
        self._timer: asyncio.TimerHandle | None = None
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="foreshore")

    def inbox(self, event: Event, weight: int = 0) -> None:
        """Something happened; `weight` is how many bytes came with it."""
        self._events.append(event)
        self._weights.append(weight)
        if not self._scheduled:
            self._scheduled, self._due = True, time.monotonic_ns()
            self.loop.call_soon(self._turn)

    def start(self) -> None:
        """Take the first turn."""
        self._scheduled = True
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.duties.over or self.stopped.done():
            return
        try:
            self._pay()
        except BaseException as error:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """What goes wrong ends the node, and so does what interrupts it, as Ctrl-C does the thread of a loop in which an
        application has a node: half of a turn was taken, and its log has nothing of that."""
        if isinstance(error, Exception):
            self.stop(error)
            return
        what = f"{type(error).__name__} came in the middle of a turn"
        self.stop(RuntimeError(f"{what}; close it and open it again, what was acknowledged is there"))
        raise error

    def _pay(self) -> None:
        duties = self.duties
        node = self.node
        began, events = time.thread_time_ns(), self._take_events()
        now = time.monotonic_ns()
        duties.begin(now, self._due)
        node.core.wall = time.time_ns() // MS
        if now >= self._look_at:
            self._look(now)
        effects = node.turn(now, events)
        now = time.monotonic_ns()
        duties.early(effects, now)
        duties.write(effects.log, now=now, wall_ms=time.time_ns() // MS)
        duties.rest(effects, time.monotonic_ns())
        self._plan(effects.wake_at)
        node.turns.note(time.thread_time_ns() - began, events)

    def _look(self, now: int) -> None:
        """See how the directory is, and whether somebody waits for its checkpoint, now and then."""
        core, directory = self.node.core, self.directory
        core.room, self._look_at = directory.room(), now + ROOM_MS * MS
        if self.node.checkpoint_is_late or self._finishing:
            directory.hurry()
        moved = directory.moved()
        if moved and not core.moved:
            self.note(f"{directory.path} was moved, or another one is in its place: goes on in what it has open")
        core.moved = moved

    def _take_events(self) -> list[Event]:
        """All that waits; but no more than one block of the log can hold, the rest in the next turn."""
        events, weights = self._events, self._weights
        if sum(weights) <= TURN_BYTES_MAX:
            self._events, self._weights = [], []
            return events
        taken, size = 0, 0
        while taken < len(events) and (not taken or size + weights[taken] <= TURN_BYTES_MAX):
            size += weights[taken]
            taken += 1
        self._events, self._weights = events[taken:], weights[taken:]
        if self._events and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)
        return events[:taken]

    def _plan(self, wake_at: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None and not self._scheduled and not self.duties.over:
            pause = wake_at - time.monotonic_ns()
            if pause <= 0:
                self._scheduled = True
                self.loop.call_soon(self.loop.call_soon, self._turn)  # what has arrived is read in between
            else:
                self._timer = self.loop.call_later(math.ceil(pause / MS) / 1_000, self._wake)

    def _wake(self) -> None:
        """Something is due; where a turn is about to be taken in any case, that is the one.

        The loop rounds to ms: what it was told exactly it would call up to half of one early, and then for nothing.
        """
        self._timer = None
        if not self._scheduled:
            self._due = time.monotonic_ns()
            self._turn()

    # What duties ask.

    def send(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        """Say things to peers."""
        self._carrier.send(sends)

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        """Answer clients."""
        self._carrier.reply(replies)

    def connect(self, address: str) -> None:
        """Keep a connection to an address."""
        self._carrier.connect(address)

    @property
    def _carrier(self) -> Carrier:
        assert self.carrier is not None, "the driver was started before it had a carrier"
        return self.carrier

    def background(self, name: str, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        """Do something slow in a thread. What nobody expected of it stops the node."""

        def returned(done: Future[T]) -> None:
            error = done.exception()
            try:
                if error is None:
                    back(done.result(), None)
                elif isinstance(error, Exception):
                    back(None, error)
                else:
                    raise error
            except BaseException as error:
                self._end(error)

        def over(done: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody takes a turn any more
                self.loop.call_soon_threadsafe(returned, done)

        self._workers.submit(run).add_done_callback(over)

    def stop(self, reason: str | Exception) -> None:
        """No further turn is taken."""
        self.duties.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.stopped.done():
            return
        if isinstance(reason, Exception):
            self.stopped.set_exception(reason)
        else:
            self.stopped.set_result(reason)

    # The end.

    @property
    def failed(self) -> bool:
        """Whether an error ended the node: nothing more is written then."""
        return self.stopped.done() and self.stopped.exception() is not None

    async def finish(self) -> None:
        """End in good order, with a last checkpoint. Raises what went wrong with it."""
        if self.failed:
            return
        finished: asyncio.Future[None] = self.loop.create_future()

        def done(error: Exception | None) -> None:
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        self._finishing, self._look_at = True, 0
        self.duties.finish(done)
        awaited: list[asyncio.Future[Any]] = [finished]
        if not self.stopped.done():
            awaited.append(self.stopped)
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            self.stop("closed")
            finished.result()

    def close(self) -> None:
        """Let go of the threads; background work that is under way ends first."""
        self._workers.shutdown(wait=True)
        self.duties.close()
