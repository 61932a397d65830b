"""One machine of a world: a disk, checkpoints, clocks, and, while its process runs, a real `Node` on a real `Log`.

This is the doing half, as `engine.effects.Effects` lays it down and `engine.driver` does it, with one difference: time
passes where the world says so. A turn's early messages leave at once; then the log is written, which takes a while, and
whatever arrives in that time waits for the next turn; then everything else is paid. A crash can come at any point:
before the log was touched, between any two of the disk's operations, or after the sync and before the replies left.

A process that dies of its own (the disk refused) stops; an assertion that fails is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, assert_never

from engine.core import INCARNATION_BITS
from engine.effects import (
    CheckpointWritten,
    CloseHistory,
    Connect,
    Effects,
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
from engine.node import Node
from engine.recover import recover
from engine.settings import Durability, Settings
from engine.store import CheckpointImage, LayeredStore
from engine.store_errors import StoreError
from rebalance.affinity import Affinity
from tests.sim.vault import Vault
from tests.sim.violation import About, Violation
from tests.support.memory_disk import Keep, MemoryDisk, PowerCut, Unsynced
from wal import DiskError, HistoryCursor, Log, LogError, LogSettings
from wal.ids import NodeId
from wal.index import touched_by
from wal.log import SEGMENT_BYTES_MIN
from wal.records import Accepted, Boot, Committed, EpochStart, Promised, Record

if TYPE_CHECKING:
    from tests.sim.world import World

MS = 1_000_000
CLUSTER = "sim"
CONSENSUS = (Promised, Accepted, Committed, Boot, EpochStart)
PPM = 1_000_000
CUT_CALLS_MAX = 14
"""A turn that rotates the log makes about so many calls to the disk."""


class Speed:
    """How fast a machine is; times in ns."""

    def __init__(self, *, turn: int = 30_000, sync: int = 200_000, jitter: int = 0, checkpoint: int = 2 * MS) -> None:
        self.turn = turn
        self.sync = sync
        self.jitter = jitter
        self.checkpoint = checkpoint
        self.slow_until = 0  # a disk that has its bad minute
        self.slow = 1


class Machine:
    """One machine. `boot` counts its processes; `allocation` is its disk's name."""

    def __init__(
        self, world: World, name: NodeId, settings: Settings, vault: Vault, speed: Speed, affinity: Affinity
    ) -> None:
        self.world = world
        self.name = name
        self.address = f"{name}:7400"
        self.settings = settings
        self.vault = vault
        self.speed = speed
        self.affinity = affinity
        self.disks = 1
        self.allocation = f"{name}-disk1"
        self.disk = MemoryDisk()
        self.node: Node | None = None
        self.log: Log | None = None
        self.boot = 0
        self.up = False
        self.paused = False
        self.gone = False  # left for good
        self.why = "not started yet"
        self.wall_offset_ms = 0
        self.turns = 0
        self.sessions: dict[SessionId, Callable[[object], None]] = {}
        self._session = 0
        self._inbox: list[Event] = []
        self._unpaid: Effects | None = None
        self._left_over: list[Record] = []  # what the log refused
        self._resume: list[Callable[[], None]] = []  # what came due while the process was stopped
        self._waking: int | None = None  # when the heap will wake the node
        self._wanted: int | None = None  # when the node wants to be woken, which may be later
        self._clock = (0, 0, PPM)  # (world time, local time, rate): local runs on from there
        self._cursors: dict[tuple[NodeId, int], HistoryCursor] = {}
        self._kept: list[Record] = []
        self._synced_at = 0
        self._preparing = False
        self._draw = world.draws.of(f"machine {name}")

    # Clocks.

    def local(self, now: int) -> int:
        """The machine's monotonic clock at a time of the world."""
        world, local, rate = self._clock
        return local + (now - world) * rate // PPM

    def _world_time(self, local: int) -> int:
        world, then, rate = self._clock
        return world + max(0, -(-(local - then) * PPM // rate))

    def set_clock(self, *, jump_ns: int = 0, rate: int | None = None) -> None:
        """The monotonic clock jumps forward, or goes at another rate (in millionths) from now on."""
        assert jump_ns >= 0, "a monotonic clock does not go back"
        now = self.world.now
        self._clock = (now, self.local(now) + jump_ns, rate if rate is not None else self._clock[2])
        if self.up and self._waking is not None:
            self._waking = None
            self._plan(self.local(now))  # an alarm may be due already

    @property
    def wall_ms(self) -> int:
        """The wall clock, which may be anything."""
        return max(0, self.world.wall_ms + self.wall_offset_ms)

    # Life.

    def start(self) -> bool:
        """Recover what the disk holds and run; False if the log or the store refuses, with the reason in `why`."""
        assert not self.up, f"{self.name} runs already"
        self.disk.restore_power()
        try:
            base = self.vault.open()
            self.log = Log.open(
                self.disk,
                cluster=CLUSTER,
                node=self.name,
                settings=LogSettings(
                    segment_bytes=self.settings.wal_segment_bytes, total_bytes=self.settings.wal_total_bytes
                ),
                from_lsn=base.load().lsn + 1,
            )
            replica = recover(LayeredStore(base), self.log)
        except AssertionError as error:
            raise Violation(
                "node-assertion", f"{self.name} cannot recover: {error!r}", About(nodes=(self.name,))
            ) from error
        except (LogError, DiskError, StoreError, ValueError) as error:
            self.why = f"{type(error).__name__}: {error}"
            self.world.say(f"{self.name} refuses to start: {self.why}")
            self.vault.close()
            return False
        self.boot += 1
        self.node = Node(
            self.settings,
            replica,
            node=self.name,
            allocation=self.allocation,
            address=self.address,
            durable_lsn=self.log.durable_lsn,
            affinity=self.affinity,
            draw=self._draw.getrandbits(INCARNATION_BITS),
        )
        self.up, self.paused, self.why = True, False, ""
        self._inbox, self._unpaid, self._resume = [], None, []
        self._left_over = []
        self._waking = self._wanted = None
        self._cursors, self._kept, self._preparing = {}, [], False
        self.sessions = {}
        self.world.machine_started(self)
        self._turn()
        return True

    def stop(
        self,
        how: str,
        *,
        torn: Keep | None = None,
        process_only: bool = False,
        reset: bool | None = None,
        calls: int | None = None,
    ) -> None:
        """The process ends now, wherever it was. `torn` says what of the unsynced survives; the default is nothing.

        `process_only`: the system lives on, and so does everything that was written to it; unless `reset` says
        otherwise, it then tells whoever is connected. `calls` is how many more calls the disk does (drawn, if None).
        """
        assert self.up, f"{self.name} does not run"
        self._cut_short(calls)
        for watcher in self.world.watchers.crashed:
            watcher.crashed(self, how)
        self.up, self.why = False, how
        self.log = None
        self.vault.close()
        if not process_only:
            self.disk = self.disk.crash(torn or _nothing)
        self.world.machine_stopped(self, reset=process_only if reset is None else reset)

    def _cut_short(self, calls: int | None) -> None:
        """What was being written to the disk got as far as it got."""
        work: list[Callable[[], object]] = []
        if self._unpaid is not None and self._unpaid.log:
            work.append(lambda: self._write_log(self._unpaid.log if self._unpaid is not None else []))
        if self._preparing and self.log is not None:
            work.append(self.log.prepare_next)
        if not work:
            return
        self.disk.cut_power_after(self._draw.randrange(CUT_CALLS_MAX) if calls is None else calls)
        with suppress(PowerCut, DiskError):
            for writing in work:
                writing()

    def wipe(self) -> None:
        """A new, empty disk."""
        assert not self.up, f"{self.name} runs: crash it first"
        self.disks += 1
        self.allocation = f"{self.name}-disk{self.disks}"
        self.disk = MemoryDisk()
        self.vault.close()
        self.vault.wipe()

    def pause(self) -> None:
        """The process is stopped (SIGSTOP): the world goes on without it."""
        self.paused = True

    def resume(self) -> None:
        """The process goes on, with everything that piled up."""
        if not self.paused or not self.up:
            return
        self.paused = False
        due, self._resume = self._resume, []
        for work in due:
            work()
        if self._unpaid is None and self.up:
            self._turn()

    # Turns.

    def receive(self, event: Event) -> None:
        """Something happened; the node takes its turn as soon as it can."""
        if not self.up:
            return
        self._inbox.append(event)
        if self._unpaid is None and not self.paused:
            self._turn()

    def new_session(self, answer: Callable[[object], None]) -> SessionId:
        """A client connected; its replies go to `answer`."""
        self._session += 1
        self.sessions[self._session] = answer
        return self._session

    def _turn(self) -> None:
        node, world = self.node, self.world
        assert node is not None
        events, self._inbox = self._inbox, []
        self.turns += 1
        try:
            effects = node.turn(self.local(world.now), events)
        except Exception as error:
            raise Violation("node-assertion", f"{self.name} died: {error!r}", About(nodes=(self.name,))) from error
        for watcher in world.watchers.turned:
            watcher.turned(self, events, effects)
        self._begin_paying(effects)

    def _begin_paying(self, effects: Effects) -> None:
        """What may leave early leaves; the rest waits for the log."""
        for targets, message in effects.early:
            self.depart(targets, message, 0)
        if not effects.log:
            self._pay_rest(effects)
            return
        self._unpaid = effects
        self.world.trace.add(self.world.now, "log", self.name, "", effects.log)
        speed = self.speed
        took = speed.turn + speed.sync * (speed.slow if self.world.now < speed.slow_until else 1)
        if speed.jitter:
            took += self._draw.randrange(speed.jitter)
        self.world.after(took, self._paid, self.boot)

    def _paid(self, boot: int) -> None:
        if boot != self.boot or not self.up:
            return
        if self.paused:
            self._resume.append(lambda: self._paid(boot))
            return
        effects = self._unpaid
        assert effects is not None, "a turn is paid once"
        assert self.node is not None
        try:
            last_lsn = self._write_log(effects.log)
        except DiskError as error:
            self.fail(error)
            return
        self.node.core.durable_lsn = last_lsn
        for watcher in self.world.watchers.logged:
            watcher.logged(self, effects.log, last_lsn)
        self._unpaid = None
        self._pay_rest(effects)
        if self.up and self._inbox and self._unpaid is None and not self.paused:
            self._turn()

    def _write_log(self, records: list[Record]) -> int:
        """As `engine.driver` does it: as durably as the settings want, consensus always."""
        log, settings = self.log, self.settings
        assert log is not None
        local = self.local(self.world.now)
        due = local - self._synced_at > settings.sync_interval_ms * MS
        durable = True
        if settings.durability is Durability.LOG_ONLY:
            durable = due or any(isinstance(r, CONSENSUS) for r in records)
        elif settings.durability is not Durability.FSYNC:
            self._kept.extend(records)
            wanted = due and settings.durability is Durability.BACKGROUND
            if not wanted and not any(isinstance(r, CONSENSUS) for r in records):
                assert self.node is not None
                return self.node.core.durable_lsn
            records, self._kept = self._kept, []
        last = log.append(records, now_ms=self.wall_ms, durable=durable)
        if durable:
            self._synced_at = local
        if log.wants_next and not self._preparing:
            self._preparing = True
            self._later(self._background(), self._prepare_next)
        return last

    def _pay_rest(self, effects: Effects) -> None:
        """Messages, replies, notes and tasks, in this order."""
        needed = self.log.next_lsn - 1 if self.log is not None and effects.log else 0
        for targets, message in effects.send:
            self.depart(targets, message, needed)
        for session, reply in effects.reply:
            for watcher in self.world.watchers.answers:
                watcher.answers(self, session, reply, needed)
            answer = self.sessions.get(session)
            if answer is not None:
                answer(reply)
        for text in effects.notes:
            self.world.trace.add(self.world.now, "note", self.name, "", text)
        try:
            for task in effects.tasks:
                self._do(task)
        except (DiskError, StoreError) as error:
            self.fail(error)
            return
        if self.up and effects.wake_at is not None:
            self._plan(effects.wake_at)

    def depart(self, targets: tuple[NodeId, ...], message: object, needed_lsn: int) -> None:
        """A message leaves."""
        for watcher in self.world.watchers.departs:
            watcher.departs(self, targets, message, needed_lsn)  # type: ignore[arg-type]  # a message, or a node broke its type
        self.world.network.send(self, targets, message)  # type: ignore[arg-type]  # as above

    def fail(self, error: Exception) -> None:
        """The log or the store refused: the node stops, as the driver does."""
        self.world.say(f"{self.name} stops: {error}")
        if not isinstance(error, DiskError | StoreError):
            raise error
        if self._unpaid is not None:
            self._left_over = self._unpaid.log
        self._unpaid = None  # it was written as far as it was, and nothing of it is owed any more
        self._preparing = False
        self.stop(f"{type(error).__name__}: {error}", process_only=True)

    # Time.

    def _plan(self, wake_at: int) -> None:
        self._wanted = max(self._world_time(wake_at), self.world.now)
        self._set_alarm(self._wanted)

    def _set_alarm(self, at: int) -> None:
        if self._waking is None or at < self._waking:
            self._waking = at
            self.world.at(at, self._wake, self.boot, at)

    def _wake(self, boot: int, planned: int) -> None:
        if boot != self.boot or not self.up or self._waking != planned:
            return
        self._waking = None
        if self.paused:
            return  # it takes a turn when it is resumed
        if self._unpaid is not None or self._wanted is None:
            return  # the turn that is being paid plans anew when it is
        if self._wanted > self.world.now:
            self._set_alarm(self._wanted)
        else:
            self._turn()

    def _background(self) -> int:
        """How long something slow takes."""
        return self.speed.checkpoint + self._draw.randrange(self.speed.checkpoint)

    def _later(self, delay: int, work: Callable[[], None]) -> None:
        """Do something slow of this process; a stopped process does it when it goes on."""
        boot = self.boot

        def due() -> None:
            if boot != self.boot or not self.up:
                return
            if self.paused:
                self._resume.append(due)
                return
            try:
                work()
            except (DiskError, StoreError) as error:
                self.fail(error)

        self.world.after(delay, due)

    # Tasks.

    def _do(self, task: Task) -> None:
        log = self.log
        assert log is not None
        match task:
            case WriteCheckpoint(image):
                if self._kept:
                    kept, self._kept = self._kept, []
                    log.append(kept, now_ms=self.wall_ms, durable=True)
                log.sync()
                self._later(self._background(), lambda: self._write_checkpoint(image))
            case OpenHistory(session, wants):
                log.pin(f"supply {session[0]} {session[1]}", 1)
                self._cursors[session] = log.history(wants)
            case ReadHistory(session, size):
                cursor = self._cursors.get(session)
                if cursor is not None:
                    self._later(self._background() // 4, lambda: self._read_history(session, cursor, size))
            case CloseHistory(session):
                log.unpin(f"supply {session[0]} {session[1]}")
                closing = self._cursors.pop(session, None)
                if closing is not None:
                    closing.close()
            case TrimLog(first_lsn):
                log.trim(first_lsn)
            case Connect():
                pass  # everyone is dialled as long as it is there
            case Stop(reason):
                self.gone = True
                self.stop(reason, process_only=True)
            case _:
                assert_never(task)

    def _prepare_next(self) -> None:
        assert self.log is not None
        self._preparing = False
        self.log.prepare_next()

    def _write_checkpoint(self, image: CheckpointImage) -> None:
        assert self.log is not None
        assert self.node is not None
        for watcher in self.world.watchers.checkpoint:
            watcher.checkpoint(self, image)
        self.node.core.replica.store.base.write(image)
        trimmed = self.log.trimmable(image.lsn, None)
        self.receive(CheckpointWritten(image.lsn))
        if trimmed is not None:
            self.receive(LogGrew(trimmed))

    def _read_history(self, session: tuple[NodeId, int], cursor: HistoryCursor, size: int) -> None:
        if self._cursors.get(session) is not cursor:
            return
        writes = cursor.read(size)
        done = cursor.done
        self.receive(HistoryRead(session, writes, done, list(cursor.missed) if done else []))

    def checkpoint_now(self) -> None:
        """A last checkpoint, as a clean end of the process writes it. Whatever is unpaid must be paid."""
        assert self.node is not None
        assert self.log is not None
        assert self._unpaid is None, f"{self.name} is in the middle of a turn"
        replica = self.node.core.replica
        if self.node.checkpointing:
            replica.store.thaw()
        image = replica.begin_checkpoint(self.node.core.durable_lsn, self.node.replication.open_records())
        self.log.sync()
        for watcher in self.world.watchers.checkpoint:
            watcher.checkpoint(self, image)
        replica.store.base.write(image)

    def rotate_log(self) -> None:
        """The live segment is sealed, however little is in it, so that a trim can take all of it."""
        assert self.log is not None
        self.log._rotate(0, touched_by(()))

    def truncate_log(self) -> None:
        """The log is trimmed as if its cap were nothing: to what the last checkpoint does not hold."""
        assert self.log is not None
        assert self.node is not None
        wanted = self.log._settings
        self.log._settings = LogSettings(segment_bytes=SEGMENT_BYTES_MIN, total_bytes=3 * SEGMENT_BYTES_MIN)
        trimmed = self.log.trimmable(self.node.core.replica.store.base.load().lsn, None)
        self.log._settings = wanted
        if trimmed is not None:
            self.receive(LogGrew(trimmed))

    @property
    def unwritten(self) -> list[Record]:
        """What the node has decided and its disk may not hold."""
        return self._unpaid.log if self._unpaid is not None else self._left_over

    @property
    def busy(self) -> bool:
        """A turn is being paid."""
        return self._unpaid is not None


def _nothing(_: Unsynced) -> bool:
    return False


def all_of(_: Unsynced) -> bool:
    """Everything that was written survives."""
    return True


def events_of(kind: type[Event], events: Sequence[Event]) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]
