"""The doing half: it brings events to the node and pays what the node owes, in the order that `Effects` lays down.

A turn takes everything that arrived while the last one was paid, so group commit needs no tuning: the longer the disk
takes, the more there is to write at once. The log is written in this thread: nothing else of the node could go on in the
meantime (no turn begins before the last one is paid), and handing each block to another thread and back costs more than
it saves. Checkpoints, history and the next segment's file are made in threads of their own.

Fail-stop: whatever the log, the store or an assertion throws ends the node. Nothing is retried; coming back is recovery,
which is the tested path.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, assert_never

from engine.core import MS
from engine.effects import (
    CheckpointWritten,
    CloseHistory,
    Connect,
    Event,
    HistoryRead,
    LogGrew,
    OpenHistory,
    ReadHistory,
    SessionId,
    Stop,
    Task,
    TrimLog,
    WriteCheckpoint,
)
from engine.home import Home
from engine.messages import Message
from engine.node import Node
from engine.requests import Reply
from engine.settings import Durability
from engine.store import CheckpointImage
from wal import HistoryCursor
from wal.ids import NodeId
from wal.records import Accepted, Boot, Committed, EpochStart, Promised, Record

CONSENSUS = (Promised, Accepted, Committed, Boot, EpochStart)
"""What must be on disk before it is spoken of, whatever durability the data has."""
KEPT_MAX = 10_000
TURN_BYTES_MAX = 64 << 20
CHECKPOINT_SWITCH_SECONDS = 0.0001


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

    def __init__(self, loop: asyncio.AbstractEventLoop, home: Home, node: Node, *, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.home = home
        self.node = node
        self.note = note
        self.carrier: Carrier | None = None
        self.stopped: asyncio.Future[str] = loop.create_future()
        self._events: list[Event] = []
        self._weights: list[int] = []  # bytes, of each event
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._cursors: dict[tuple[NodeId, int], HistoryCursor] = {}
        self._workers = ThreadPoolExecutor(3, thread_name_prefix="foreshore")
        self._synced_at = 0
        self._kept: list[Record] = []  # not handed to the operating system yet (BACKGROUND and NONE)
        self._preparing = False

    def inbox(self, event: Event, weight: int = 0) -> None:
        """Something happened; `weight` is how many bytes came with it."""
        self._events.append(event)
        self._weights.append(weight)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def start(self) -> None:
        """Take the first turn."""
        self._scheduled = True
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.stopped.done():
            return
        try:
            self._pay()
        except Exception as error:
            self.stop(error)

    def _pay(self) -> None:
        node, _log, carrier = self.node, self.home.log, self.carrier
        assert carrier is not None, "the driver was started before it had a carrier"
        began, events = time.thread_time_ns(), self._take_events()
        effects = node.turn(time.monotonic_ns(), events)
        if effects.early:
            carrier.send(effects.early)
        if effects.log:
            self._log(effects.log)
        if effects.send:
            carrier.send(effects.send)
        if effects.reply:
            carrier.reply(effects.reply)
        for text in effects.notes:
            self.note(text)
        for task in effects.tasks:
            self._do(task)
        self._plan(effects.wake_at)
        node.turns.note(time.thread_time_ns() - began, events)

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
        if wake_at is not None and not self._scheduled:
            pause = (wake_at - time.monotonic_ns()) / 1e9
            if pause <= 0:
                self._scheduled = True
                self.loop.call_soon(self._turn)
            else:
                self._timer = self.loop.call_later(pause, self._turn)

    def _log(self, records: list[Record]) -> None:
        """Append a turn's records as one block, as durably as the cluster wants it; consensus always on disk."""
        settings, now = self.node.core.settings, time.monotonic_ns()
        due = now - self._synced_at > settings.sync_interval_ms * MS
        match settings.durability:
            case Durability.FSYNC:
                self._append(records, durable=True)
            case Durability.LOG_ONLY:
                self._append(records, durable=due or any(isinstance(r, CONSENSUS) for r in records))
            case Durability.BACKGROUND | Durability.NONE:
                self._kept.extend(records)
                wanted = due and settings.durability is Durability.BACKGROUND
                if wanted or len(self._kept) > KEPT_MAX or any(isinstance(r, CONSENSUS) for r in records):
                    self._write_kept()
            case _:
                assert_never(settings.durability)

    def _write_kept(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._append(kept, durable=True)

    def _append(self, records: list[Record], *, durable: bool) -> None:
        log = self.home.log
        self.node.core.durable_lsn = log.append(records, now_ms=time.time_ns() // MS, durable=durable)
        if durable:
            self._synced_at = time.monotonic_ns()
        if log.wants_next and not self._preparing:
            self._preparing = True
            self._background(self._prepare_next)

    def _prepare_next(self) -> None:
        try:
            self.home.log.prepare_next()
        finally:
            self._preparing = False

    # Tasks.

    def _do(self, task: Task) -> None:
        match task:
            case WriteCheckpoint(image):
                self._write_kept()
                self.home.log.sync()  # the store must never be ahead of the log
                self._background(lambda: self._write_checkpoint(image))
            case OpenHistory(session, wants):
                self.home.log.pin(f"supply {session[0]} {session[1]}", 1)
                self._cursors[session] = self.home.log.history(wants)
            case ReadHistory(session, size):
                cursor = self._cursors.get(session)
                if cursor is not None:
                    self._background(lambda: self._read_history(session, cursor, size))
            case CloseHistory(session):
                self.home.log.unpin(f"supply {session[0]} {session[1]}")
                closing = self._cursors.pop(session, None)
                if closing is not None:
                    closing.close()
            case TrimLog(first_lsn):
                self.home.log.trim(first_lsn)
            case Connect(_, address):
                assert self.carrier is not None
                self.carrier.connect(address)
            case Stop(reason):
                self.stop(reason)
            case _:
                assert_never(task)

    def _background(self, work: Callable[[], object]) -> None:
        """Do something slow in a thread; what it throws stops the node."""
        future = self.loop.run_in_executor(self._workers, work)

        def finished(done: asyncio.Future[object]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                self.stop(error)

        future.add_done_callback(finished)

    def _write_checkpoint(self, image: CheckpointImage) -> None:
        # Every operation of the store gives up the interpreter's lock and may wait a whole switch interval to get it
        # back: beside a busy loop a checkpoint would take a hundred times as long at Python's default of 5 ms.
        usual = sys.getswitchinterval()
        sys.setswitchinterval(CHECKPOINT_SWITCH_SECONDS)
        try:
            self.home.store.write(image)
        finally:
            sys.setswitchinterval(usual)
        self.loop.call_soon_threadsafe(self._checkpoint_written, image.lsn)

    def _checkpoint_written(self, lsn: int) -> None:
        if self.stopped.done():
            return
        self.inbox(CheckpointWritten(lsn))
        trimmed = self.home.log.trimmable(lsn, None)
        if trimmed is not None:
            self.inbox(LogGrew(trimmed))

    def _read_history(self, session: tuple[NodeId, int], cursor: HistoryCursor, size: int) -> None:
        writes = cursor.read(size)
        done = cursor.done
        event = HistoryRead(session, writes, done, list(cursor.missed) if done else [])
        self.loop.call_soon_threadsafe(self.inbox, event)

    # The end.

    def stop(self, reason: str | BaseException) -> None:
        """End the node: no further turn is taken."""
        if self.stopped.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(reason, BaseException):
            self.stopped.set_exception(reason)
        else:
            self.stopped.set_result(reason)

    async def checkpoint(self) -> None:
        """Write a last checkpoint, for a quick start next time."""
        while self.node.checkpointing and not self.stopped.done():
            await asyncio.sleep(0.01)
        core = self.node.core
        self._write_kept()
        image = core.replica.begin_checkpoint(core.durable_lsn, self.node.replication.open_records())
        self.home.log.sync()
        await self.loop.run_in_executor(self._workers, self.home.store.write, image)

    def close(self) -> None:
        """Let go of the threads; background work that is under way ends first."""
        self._workers.shutdown(wait=True)
