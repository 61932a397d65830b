"""What a driver owes a node, in which order, and for how long: the rules of the doing half, without a thread or a clock.

`engine.host.driver` does this with an event loop, sockets and threads; the simulator with a heap of what happens next. Both
hand in a `Doer`, so that both obey the same rules:

* A turn is paid in three steps: `early`, `write`, `rest`. Nothing of the rest leaves before the log is written as
  durably as the cluster wants it; what consensus promises is always on disk. What promises nothing, as most of a transfer,
  is synced with what does (`engine.host.syncing`).
* What takes long is done in the background: `run` elsewhere, and when it is back, `back` where the turns are. Each thing
  that is worked on in the background belongs to the work until it is back. Whoever wants it closed waits for that.
* A node that is busy with one turn, or with the sync of its log, for longer than a heartbeat lets its last heartbeat be
  repeated, with how long it has been busy. Not for ever: whoever is stuck must be found.
* A fault in the reading of one supply's history ends that supply's history. What is damaged in a part of the log that the
  node no longer needs is not trimmed. Any other fault of the log or of the store ends the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

import msgspec

from engine.data.sizes import size_of
from engine.errors import UsageError
from engine.host.archiving import Archiving
from engine.host.preparing import Preparing
from engine.host.syncing import UNSYNCED_BYTES, Kept, sacred, waits_for_the_disk
from engine.messages import Heartbeat, Message
from engine.node.node import Node
from engine.protocol.requests import Reply
from engine.state.store import CheckpointImage
from engine.state.store_errors import StoreFull
from engine.turn.effects import Effects
from engine.turn.events import (
    CheckpointWritten,
    Connect,
    Event,
    LogMayShrink,
    SessionId,
    Stop,
    Task,
    TrimLog,
    WriteCheckpoint,
)
from engine.turn.settings import Durability, Settings
from rebalance.ports import MS, CloseHistory, HistoryRead, OpenHistory, ReadHistory
from wal import HistoryCursor, Log, LogDamaged, LogSettings
from wal.ids import Fragment, NodeId
from wal.probe import probe
from wal.records import Record
from wal.want import Want

STUCK_SUSPICIONS = 4
"""After so many times the silence that makes a node suspected, a node that is busy with one turn falls silent."""

T = TypeVar("T")
Supply = tuple[NodeId, int]
"""A supply session: whose, and its number."""


def log_settings(settings: Settings) -> LogSettings:
    """A node's settings, as far as they are its log's."""
    return LogSettings(
        segment_bytes=settings.wal_segment_bytes, total_bytes=settings.wal_total_bytes, age_ms=settings.wal_age_ms
    )


class Doer(Protocol):
    """What only a world can do for a node: the real one, or a simulated one."""

    def send(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        """Say things to peers."""
        ...

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        """Answer clients."""
        ...

    def connect(self, address: str) -> None:
        """Keep a connection to an address."""
        ...

    def note(self, text: str) -> None:
        """Tell the operator."""
        ...

    def inbox(self, event: Event) -> None:
        """Something happened: for the next turn."""
        ...

    def background(self, name: str, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        """Do `run` beside the turns; then, between two of them, `back` with what it returned or raised."""
        ...

    def stop(self, reason: str | Exception) -> None:
        """The node ends: in good order, or because of an error. No further turn is taken."""
        ...


class _Reader:
    """The history of one supply. `reading`: its cursor belongs to the background until that is back."""

    def __init__(self, cursor: HistoryCursor, wants: list[Want]) -> None:
        self.cursor = cursor
        self.fragments: list[Fragment] = [want.fragment for want in wants]
        self.reading = False
        self.closed = False

    def close(self) -> None:
        """Nobody wants it any more: closed now, or when its reader is back."""
        self.closed = True
        if self.reading:
            probe("duties.closed_while_read")
        else:
            self.cursor.close()


class Duties:
    """What is owed for one life of a node. `over`: no further turn may be taken."""

    def __init__(
        self, doer: Doer, node: Node, log: Log, store: Callable[[CheckpointImage], None], *, tells: bool = False
    ) -> None:
        self.doer = doer
        self.node = node
        self.log = log
        self.over = False
        self._store = store  # writes a checkpoint, durably; in the background
        self._owing = False  # a turn was begun to be paid
        self._waits = True  # it says something that rests on the log
        self._busy_since: int | None = None
        self._rested_at = 0  # when the last turn was paid
        self._sync_since: int | None = None
        self._beat: tuple[tuple[NodeId, ...], Heartbeat] | None = None
        self._kept = Kept()
        self._synced_at: int | None = None
        self._wall_ms = 0  # when the last turn was written
        self._readers: dict[Supply, _Reader] = {}
        self._closing: list[_Reader] = []  # closed, and still read
        self._preparing = Preparing(doer, node, log, ends=lambda: self.over, fail=self._fail, write=self._write_checkpoint)
        self._writing = False
        self._doomed: list[str] = []  # files of the log that are to be removed, the oldest first
        self._tidying = False  # files are removed, or an archive is made: one at a time
        self._archiving = Archiving(node, log, doer.note)
        self._tells = tells  # who needs what of the log is said beside it
        self._telling = False
        self._told: tuple[int, frozenset[str]] | None = None
        self._in_the_way: dict[str, None] = {}  # segments that cannot be trimmed, because they cannot be read
        self._checkpoint_lsn = 0
        self._finish: Callable[[Exception | None], None] | None = None

    # A turn.

    def begin(self, now: int, due: int) -> None:
        """A turn is taken, of what came first at `due`, or was due then. Times are in ns, monotonic."""
        self.node.core.note_busy(now, max(0, due - self._rested_at))
        self._busy_since = now

    def early(self, effects: Effects, now: int) -> None:
        """What promises nothing about this disk leaves, and the log is about to be written."""
        self._owing = True
        self._waits = waits_for_the_disk(effects)
        self._sync_since = now if effects.log or (self._waits and self.log.unsynced_bytes) else None
        if effects.early:
            self.doer.send(effects.early)

    def write(self, records: list[Record], *, now: int, wall_ms: int) -> None:
        """Write a turn's records as one block, as durably as the cluster wants it; consensus always on disk.

        `now` in ns, monotonic. Called for each turn, though it logs nothing: what waits to be synced may be due.
        """
        core, log = self.node.core, self.log
        settings = core.settings
        self._wall_ms = wall_ms
        if self._synced_at is None:
            self._synced_at = now
        if not (records or self._kept.records or core.cramped) and log.durable_lsn == log.next_lsn - 1 == core.durable_lsn:
            return  # there is nothing to write or to sync, as in most turns
        due = now - self._synced_at >= settings.sync_interval_ms * MS
        match settings.durability:
            case Durability.FSYNC:
                durable = self._waits or sacred(records) or log.unsynced_bytes >= UNSYNCED_BYTES
                if records or (durable and log.durable_lsn < log.next_lsn - 1):
                    self._append(records, now, durable=durable)
            case Durability.LOG_ONLY:
                if records or (due and log.durable_lsn < log.next_lsn - 1):
                    self._append(records, now, durable=due or sacred(records))
            case Durability.BACKGROUND | Durability.NONE:
                size = size_of(records)
                if not self._kept.has_room_for(size):
                    self._write_kept(now)
                self._kept.add(records, size)
                due = due and settings.durability is Durability.BACKGROUND
                if self._kept.records and (due or self._kept.is_much or sacred(records)):
                    self._write_kept(now)
            case _:
                assert_never(settings.durability)
        if core.cramped:
            self._preparing.look(now)
        # What is claimed to others is what was acknowledged. A disk that comes back with less was set back.
        core.durable_lsn = log.next_lsn - 1 + len(self._kept.records)

    def rest(self, effects: Effects, now: int) -> None:
        """The log is written: what it promises may leave, and what takes long begins."""
        doer, core = self.doer, self.node.core
        if self._sync_since is not None:
            core.longest_sync = max(core.longest_sync, now - self._sync_since)
            self._sync_since = None
        if effects.beat is not None:
            self._beat = effects.beat
        if effects.send:
            doer.send(effects.send)
        if effects.reply:
            doer.reply(effects.reply)
        for text in effects.notes:
            doer.note(text)
        self._owing = False
        for task in effects.tasks:
            self._do(task)
        self._archive(now)
        self._busy_since, self._rested_at = None, now
        self._try_finish()

    def pulse(self, now: int) -> tuple[tuple[NodeId, ...], Heartbeat] | None:
        """What to tell the peers now, if this node is busy with one turn for longer than a heartbeat. From any thread."""
        since, syncing, said, settings = self._busy_since, self._sync_since, self._beat, self.node.core.settings
        if since is None or said is None or self.over or now - since < settings.heartbeat_ms * MS:
            return None
        if now - since > STUCK_SUSPICIONS * settings.suspicion_ms * MS:
            return None
        hearers, beat = said
        sync_ms = (now - syncing) // MS if syncing is not None else 0
        return hearers, msgspec.structs.replace(beat, sync_ms=sync_ms, busy_ms=(now - since) // MS)

    def _append(self, records: list[Record], now: int, *, durable: bool) -> None:
        self.log.append(records, now_ms=self._wall_ms, durable=durable)
        if durable:
            self._synced_at = now
        self._preparing.look(now)

    def _write_kept(self, now: int) -> None:
        if kept := self._kept.take():
            self._append(kept, now, durable=True)

    # Tasks.

    def _do(self, task: Task) -> None:
        match task:
            case WriteCheckpoint(image):
                self._write_checkpoint(image)
            case OpenHistory(session, wants):
                self._close(session)
                cursor = self.log.history(wants)
                self.log.pin(_pin(session), cursor.at_lsn, self._wall_ms)
                self._tell()
                self._readers[session] = _Reader(cursor, wants)
            case ReadHistory(session, size, updates):
                if (reader := self._readers.get(session)) is not None:
                    self._read(session, reader, size, updates)
            case CloseHistory(session):
                self._close(session)
            case TrimLog(first_lsn):
                self._doomed += self.log.forget(first_lsn)
                self._remove()
            case Connect(_, address):
                self.doer.connect(address)
            case Stop(reason, refused):
                self.over = True
                self.doer.stop(UsageError(reason) if refused else reason)
            case _:
                assert_never(task)

    # History.

    def _read(self, session: Supply, reader: _Reader, size: int, updates: int) -> None:
        assert not reader.reading, f"the history for {session} is read twice at a time"
        cursor = reader.cursor
        reader.reading = True

        def run() -> HistoryRead:
            writes = cursor.read(size, updates)
            return HistoryRead(session, writes, cursor.done, list(cursor.missed) if cursor.done else [])

        self.doer.background("history", run, lambda event, error: self._was_read(session, reader, event, error))

    def _was_read(self, session: Supply, reader: _Reader, event: HistoryRead | None, error: Exception | None) -> None:
        reader.reading = False
        if reader.closed:
            self._closing.remove(reader)
            reader.close()
        elif event is not None:
            self.log.pin(_pin(session), reader.cursor.at_lsn)
            self.doer.inbox(event)
        else:  # the supply falls back on rows
            probe("duties.history_failed")
            self.doer.note(f"the history for {session[0]} cannot be read, it gets rows instead: {error!r}")
            self._close(session)
            self.doer.inbox(HistoryRead(session, [], True, list(reader.fragments)))

    def _close(self, session: Supply) -> None:
        if (reader := self._readers.pop(session, None)) is None:
            return
        self.log.unpin(_pin(session))
        self._tell()
        reader.close()
        if reader.reading:
            self._closing.append(reader)

    # Checkpoints and the log's beginning.

    def _write_checkpoint(self, image: CheckpointImage) -> None:
        """The store must never be ahead of the log: what the image holds goes there first."""
        assert not self._writing, "one checkpoint at a time"
        self.write_all()
        self._writing = True
        self.doer.background("checkpoint", lambda: self._store(image), lambda _, error: self._checkpointed(image, error))

    def _checkpointed(self, image: CheckpointImage, error: Exception | None) -> None:
        self._writing = False
        if isinstance(error, StoreFull) and self.over:
            self._preparing.last_checkpoint(error)
        elif isinstance(error, StoreFull):
            self._preparing.checkpoint_full(image, error, ends=self._finish is not None)
        elif error is not None:
            self._fail(error)
            return
        elif not self.over:
            self._preparing.checkpoint_written()
            self.doer.inbox(CheckpointWritten(image.lsn))
            self._checkpoint_lsn = image.lsn
            self._archiving.may_go_up_to(image.lsn)
            self._trim(image.lsn)
            self._tell()
        self._try_finish()

    def _trim(self, checkpoint_lsn: int) -> None:
        """Have the log forget what it may; a segment that cannot be read stays, as nobody knows what would go with it."""
        try:
            if (trimmed := self.log.trimmable(checkpoint_lsn, self._wall_ms)) is not None:
                self.doer.inbox(LogMayShrink(trimmed))
        except LogDamaged as damage:
            if damage.segment not in self._in_the_way:
                probe("duties.damage_is_not_trimmed")
                self.doer.note(f"the log is not trimmed, and grows: {damage}")
                self._in_the_way[damage.segment] = None

    def _tell(self) -> None:
        """Say who needs what of the log, if that is another thing than was said last."""
        saying = self._checkpoint_lsn, frozenset(self.log.pins())
        if not self._tells or self._telling or self.over or saying == self._told:
            return
        self._telling, self._told = True, saying
        self.doer.background("tell", lambda: self.log.tell(saying[0]), self._was_told)

    def _was_told(self, _: None, error: Exception | None) -> None:
        self._telling = False
        self._tell() if error is None else self._fail(error)

    def _remove(self) -> None:
        """Remove what is to go, one after the other: a power cut must not leave a hole."""
        if self._tidying or not self._doomed:
            return
        names, self._doomed = self._doomed, []
        self._tidying = True
        self.doer.background("trim", lambda: self.log.remove(names), self._removed)

    def _removed(self, _: None, error: Exception | None) -> None:
        self._tidying = False
        if error is not None:
            self._fail(error)
        else:
            self._remove()

    def _archive(self, now: int) -> None:
        """Do the next part of making archives, if it is due."""
        if self._tidying or self.over or (run := self._archiving.due(now)) is None:
            return
        self._tidying = True
        self.doer.background("archive", run, lambda worked, error: self._archived(now, worked, error))

    def _archived(self, began: int, worked: int | None, error: Exception | None) -> None:
        if worked is not None:
            self._archiving.done(began, worked)
        self._removed(None, error)

    # The end.

    def finish(self, done: Callable[[Exception | None], None]) -> None:
        """End in good order: a last checkpoint, for a quick start next time; `done` when it is written.

        A checkpoint that is under way is taken by the node first; turns go on until then, and no longer.
        """
        assert self._finish is None, "it is finishing already"
        self._finish = done
        self._try_finish()

    def _try_finish(self) -> None:
        done = self._finish
        if done is None or self._owing or self._writing:
            return
        waits = self._preparing.waits
        if self.node.checkpointing and not waits:
            if self.over:
                self._finish = None
                done(None)  # that one is the last
            return  # else it is written, and the next turn takes it
        self.over, self._finish = True, None
        core = self.node.core
        cramped = core.is_cramped or waits  # there is no room for one, and what it would hold is in the log
        try:
            if not cramped:
                image = core.replica.begin_checkpoint(core.durable_lsn, self.node.replication.open_records())
                image = image._replace(hurried=True)  # whoever stops the node waits, and it does nothing else any more
            self.write_all()
        except Exception as error:  # the disk's, or an assertion
            done(error)
            return
        if cramped:
            done(None)
            return
        self._writing = True

        def written(_: None, error: Exception | None) -> None:
            self._writing = False
            done(self._preparing.last_checkpoint(error))

        self.doer.background("checkpoint", lambda: self._store(image), written)

    def write_all(self) -> None:
        """Everything that was acknowledged is on disk after this."""
        if kept := self._kept.take():
            self.log.append(kept, now_ms=self._wall_ms, durable=True)
        self.log.sync()

    def close(self) -> None:
        """Give the files back that history was read from. Nothing is in the background any more."""
        for reader in [*self._readers.values(), *self._closing]:
            reader.reading = False
            reader.close()
        self._readers, self._closing = {}, []

    def _fail(self, error: Exception) -> None:
        self.over = True
        self.doer.stop(error)


def _pin(session: Supply) -> str:
    return f"supply {session[0]} {session[1]}"
