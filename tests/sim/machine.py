"""One machine of a world: a disk, checkpoints, clocks, and, while its process runs, a real `Node` on a real `Log`.

The doing half is `engine.host.duties`, as the real driver has it, with one difference: time passes where the world says
so. A turn's early messages leave at once; then the log is written, which takes a while, and whatever arrives in that time
waits for the next turn; then everything else is paid. What is done in the background begins, pauses between calls of the
disk and is back at times that the seed draws (`tests.sim.background`). A crash can come at any point: before the log was
touched, between any two of the disk's operations, or after the sync and before the replies left.

A process that dies of its own (the disk refused) stops; an assertion that fails is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from engine.host.duties import Duties, log_settings
from engine.host.links import PEER_BACKLOG_BYTES_MAX
from engine.messages import Message
from engine.node.node import Node
from engine.protocol.requests import Reply
from engine.state.recover import recover
from engine.state.store import CheckpointImage
from engine.state.store_errors import StoreError, StoreFailed, StoreFull
from engine.turn.effects import Effects
from engine.turn.events import Event, LogMayShrink, SessionId
from engine.turn.settings import Settings
from rebalance.affinity import Affinity
from rebalance.lives import INCARNATION_BITS
from tests.sim.background import Fibre, Turnstile
from tests.sim.costs import CountingStore
from tests.sim.vault import Vault
from tests.sim.violation import About, Violation
from tests.support.memory_disk import Keep, MemoryDisk, PowerCut, Unsynced
from wal import DiskError, Log, LogError, LogSettings
from wal.ids import NodeId
from wal.noting import NOTHING
from wal.records import Record
from wal.recovery import examine, require
from wal.settings import SEGMENT_BYTES_MIN

if TYPE_CHECKING:
    from tests.sim.world import World

MS = 1_000_000
EPOCH_MS = 1_700_000_000_000
"""What all wall clocks read when a world begins."""
CLUSTER = "sim"
PPM = 1_000_000
CUT_CALLS_MAX = 14
"""A turn that rotates the log makes about so many calls to the disk."""
EXPECTED = (DiskError, LogError, StoreError)
"""What background work may raise: the disk's."""

T = TypeVar("T")
Portions: TypeAlias = tuple[int | None, int | None]
"""Who goes on finds so many events in the first turn, and in each that follows until nothing waits; None: all."""

ALL_AT_ONCE: Portions = (None, None)

SLOW = 10
"""A processor that takes so many times as long as the usual one is ill."""

STORING_NS_MAX = 4_000 * MS
"""A store that is slow takes no longer than that for one checkpoint: a storm lasts some seconds."""
WRITTEN_SLOWLY_NS = 500 * MS
"""Where a checkpoint takes its store longer than that, or a block the log, all who write wait for it most of the time."""


class Speed:
    """How fast a machine is; times in ns."""

    def __init__(
        self,
        *,
        turn: int = 30_000,
        sync: int = 200_000,
        jitter: int = 0,
        checkpoint: int = 2 * MS,
        slowness: int = 1,
        attention: int = 0,
        store: int = 0,
    ) -> None:
        self.turn = turn
        self.sync = sync
        self.jitter = jitter
        self.checkpoint = checkpoint
        self.slowness = slowness  # its processor takes so many times as long as the usual one
        self.attention = attention  # until its loop, when idle, looks at what came: with what came meanwhile, at most
        self.store = store  # what is written to the store takes so many ns a byte
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
        self.store_fails = False  # whatever room there is
        self._storing = 0  # the next step of a checkpoint is so much later
        self._writes_until = 0  # what takes its store or its log long is written then
        self.disk = MemoryDisk()
        self.node: Node | None = None
        self.log: Log | None = None
        self.boot = 0
        self.backlog_max = PEER_BACKLOG_BYTES_MAX  # so much waits for a peer, and what comes then is dropped
        self.up = False
        self.powered = True  # its system runs, and says that nobody listens where nobody does
        self.paused = False
        self.gone = False  # left for good
        self.why = "not started yet"
        self.wall_offset_ms = 0
        self.befallen = 0  # how often something happened to it that it has to get over
        self.turns = 0
        self.sessions: dict[SessionId, Callable[[object], None]] = {}
        self._session = 0
        self._inbox: list[Event] = []
        self._due: int | None = None  # when the first of these came
        self._unpaid: Effects | None = None
        self._computing = False  # what is unpaid is still being decided
        self._summoned = False  # its loop is about to look at what came
        self._left_over: list[Record] = []  # what the log refused
        self._resume: list[Callable[[], None]] = []  # what came due while the process was stopped
        self._portions = ALL_AT_ONCE  # what its turns find when it goes on
        self._at_most: int | None = None  # so many events a turn takes, until nothing waits any more
        self._still: int | None = None  # what its clock reads while that stands still
        self._waking: int | None = None  # when the heap will wake the node
        self._wanted: int | None = None  # when the node wants to be woken, which may be later
        self._clock = (0, 0, PPM)  # (world time, local time, rate): local runs on from there
        self.duties: Duties | None = None
        self._fibres: dict[Fibre, Callable[[Any, Exception | None], None]] = {}  # in the background -> whom it is told
        self._current: Fibre | None = None  # the one that runs now
        self._back: list[Fibre] = []  # that came back while a turn was being paid
        self._needed = 0  # up to which LSN the log must be durable for what leaves now
        self._attends = world.draws.of(f"attention of {name}")
        self._draw = world.draws.of(f"machine {name}")
        self._chance = world.draws.of(f"background {name}")

    # Clocks.

    def local(self, now: int) -> int:
        """The machine's monotonic clock at a time of the world."""
        if self._still is not None:
            return self._still
        world, local, rate = self._clock
        return local + (now - world) * rate // PPM

    def _world_time(self, local: int) -> int:
        world, then, rate = self._clock
        return world - (then - local) * PPM // rate if local > then else world

    def set_clock(self, *, jump_ns: int = 0, rate: int | None = None) -> None:
        """The monotonic clock jumps forward, or goes at another rate (in millionths) from now on."""
        assert jump_ns >= 0, "a monotonic clock does not go back"
        self.befallen += 1
        now = self.world.now
        self._clock = (now, self.local(now) + jump_ns, rate if rate is not None else self._clock[2])
        if self._still is not None:
            self._still += jump_ns
        if self.up and self._waking is not None:
            self._waking = None
            self._plan(self.local(now))  # an alarm may be due already

    @property
    def wall_ms(self) -> int:
        """The wall clock, which may be anything."""
        reads = EPOCH_MS + self.world.now // MS + self.wall_offset_ms
        return reads if reads > 0 else 0

    # Life.

    def start(self) -> bool:
        """Recover what the disk holds and run; False if the log or the store refuses, with the reason in `why`."""
        assert not self.up, f"{self.name} runs already"
        self.disk.restore_power()
        self.settings = self.world.set_anew(self)
        try:
            base = self.vault.open()
            self.log = Log.open(
                self.disk,
                cluster=CLUSTER,
                node=self.name,
                settings=log_settings(self.settings),
                from_lsn=base.load().lsn + 1,
            )
            replica = recover(CountingStore(base), self.log)
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
        self.up, self.powered, self.paused, self.gone, self.why = True, True, False, False, ""
        self._inbox, self._unpaid, self._computing, self._summoned, self._resume = [], None, False, False, []
        self._due = None
        self._portions, self._at_most, self._still = ALL_AT_ONCE, None, None
        self._left_over = []
        self._waking = self._wanted = None
        self._fibres, self._current, self._back = {}, None, []
        self.disk.before_call = self._before_call
        turnstile = Turnstile(lambda: self._current, self._advance)
        self.log._preparing = turnstile  # type: ignore[assignment]  # the world does not wait for a lock
        self.duties = Duties(_Doer(self), self.node, self.log, self._checkpoint)
        self.sessions = {}
        self.world.machine_started(self)
        self._turn()
        return True

    def log_end(self, disk: MemoryDisk) -> int | None:
        """The last LSN that it would find on a disk; None: it would refuse it."""
        try:
            from_lsn = self.vault.open().load().lsn + 1
            found = examine(disk, cluster=CLUSTER, node=self.name, from_lsn=from_lsn)
            require(found, from_lsn)
        except (LogError, StoreError, ValueError):
            return None
        finally:
            self.vault.close()
        return found.live.next_lsn - 1 if found.live is not None else 0

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
        self.up, self.powered, self.why = False, process_only, how
        self.kill_background()
        self.log = self.duties = None
        self.vault.close()
        if not process_only:
            self.disk = self.disk.crash(torn or _nothing)
        self.world.machine_stopped(self, reset=process_only if reset is None else reset)

    @property
    def owed(self) -> Sequence[Record]:
        """What the turn that is being paid has applied, and the log gets next."""
        return self._unpaid.log if self._unpaid is not None else ()

    def _cut_short(self, calls: int | None) -> None:
        """What was being written to the disk got as far as it got."""
        if self._unpaid is None or not self._unpaid.log or self._computing:
            return
        self.disk.cut_power_after(self._draw.randrange(CUT_CALLS_MAX) if calls is None else calls)
        with suppress(PowerCut, DiskError):
            self._write_log(self._unpaid.log, self.local(self.world.now))

    def wipe(self) -> None:
        """A new, empty disk."""
        assert not self.up, f"{self.name} runs: crash it first"
        self.disks += 1
        self.allocation = f"{self.name}-disk{self.disks}"
        self.disk = MemoryDisk()
        self.vault.close()
        self.vault.wipe()

    def pause(self, *, clock_too: bool = False, portions: Portions = ALL_AT_ONCE) -> None:
        """The process is stopped (SIGSTOP): the world goes on without it. `clock_too`: all of the machine is."""
        self.paused = True
        self.befallen += 1
        self._portions = portions
        self._still = self.local(self.world.now) if clock_too else None

    def resume(self) -> None:
        """The process goes on, with everything that piled up."""
        if not self.paused or not self.up:
            return
        self.paused = False
        if self._still is not None:
            self._clock = (self.world.now, self._still, self._clock[2])
            self._still = None
        self.world.network.resumed(self)
        first, self._at_most = self._portions
        due, self._resume = self._resume, []
        for work in due:
            work()
        if self._unpaid is None and self.up:
            self._turn(first)

    # Turns.

    def receive(self, event: Event) -> None:
        """Something happened; the node takes its turn as soon as it can, and its loop has seen it."""
        if not self.up:
            return
        self._inbox.append(event)
        if self._due is None:
            self._due = self.local(self.world.now)
        if self._unpaid is not None or self.paused or self._summoned:
            return
        if self.speed.attention:
            self._summoned = True
            self.world.after(self._attends.randrange(self.speed.attention), self._look, self.boot)
        else:
            self._turn()

    def _look(self, boot: int) -> None:
        if boot != self.boot or not self.up:
            return
        self._summoned = False
        if self._inbox and self._unpaid is None and not self.paused:
            self._turn()

    def new_session(self, answer: Callable[[object], None]) -> SessionId:
        """A client connected; its replies go to `answer`."""
        self._session += 1
        self.sessions[self._session] = answer
        return self._session

    def _turn(self, at_most: int | None = None) -> None:
        node, world = self.node, self.world
        assert node is not None
        assert self.duties is not None
        if self.duties.over:
            return
        events, self._inbox = self._inbox, []
        at_most = self._at_most if at_most is None else at_most
        if at_most is not None:
            events, self._inbox = events[:at_most], events[at_most:]
            if self._inbox:
                world.after(0, self._look, self.boot)
            else:
                self._at_most = None
        self.turns += 1
        now = self.local(world.now)
        self.duties.begin(now, now if self._due is None else self._due)
        self._due = now if self._inbox else None
        node.core.wall = self.wall_ms
        try:
            effects, cost = world.costs.turn(node, now, events)
        except Violation:
            raise
        except Exception as error:
            raise self._died("", error) from error
        if effects.log:
            for watcher in world.watchers.decided:
                watcher.decided(self, effects.log)
        for watcher in world.watchers.turned:
            watcher.turned(self, events, effects)
        if cost:
            self._unpaid, self._computing = effects, True
            self._busy_for(cost * self.speed.slowness, self._computed)
        else:
            self._begin_paying(effects)

    def _computed(self, boot: int) -> None:
        """The turn is taken; until now nobody heard of it, and it heard nobody."""
        if boot != self.boot or not self.up:
            return
        if self.paused:
            self._resume.append(lambda: self._computed(boot))
            return
        effects = self._unpaid
        assert effects is not None, "a turn is computed once"
        self._unpaid, self._computing = None, False
        self._begin_paying(effects)
        if self._unpaid is None:
            self._go_on(boot)

    def _died(self, doing: str, error: Exception) -> Violation:
        """An error that no disk explains: a node's own mistake."""
        return Violation("node-assertion", f"{self.name} died{doing}: {error!r}", About(nodes=(self.name,)))

    def _begin_paying(self, effects: Effects) -> None:
        """What may leave early leaves; the rest waits for the log."""
        assert self.duties is not None
        self._needed = 0
        now = self.local(self.world.now)
        self.duties.early(effects, now)
        if not effects.log:
            self._pay(effects, now)
            return
        self._unpaid = effects
        self.world.trace.add(self.world.now, "log", self.name, "", effects.log)
        speed = self.speed
        sync = speed.sync * (speed.slow if self.world.now < speed.slow_until else 1)
        self._writes_slowly(sync)
        took = speed.turn + sync
        if speed.jitter:
            took += self._draw.randrange(speed.jitter)
        self._busy_for(took, self._paid)

    def _busy_for(self, took: int, then: Callable[[int], None]) -> None:
        """The loop does one thing for a while; a thread beside it lets others know that it lives."""
        self.world.after(took, then, self.boot)
        beat = self.settings.heartbeat_ms * MS
        if took > beat:
            self.world.after(beat, self._pulse, self.boot, self.turns)

    def _pulse(self, boot: int, turn: int) -> None:
        if boot != self.boot or not self.up or turn != self.turns or self._unpaid is None:
            return
        assert self.duties is not None
        said = self.duties.pulse(self.local(self.world.now))
        if said is not None and not self.paused:
            self.depart(*said, 0)
        self.world.after(self.settings.heartbeat_ms * MS, self._pulse, boot, turn)

    def _paid(self, boot: int) -> None:
        if boot != self.boot or not self.up:
            return
        if self.paused:
            self._resume.append(lambda: self._paid(boot))
            return
        effects = self._unpaid
        assert effects is not None, "a turn is paid once"
        self._pay(effects, self.local(self.world.now))
        self._go_on(boot)

    def _go_on(self, boot: int) -> None:
        """A turn is paid: what waited for it comes next."""
        if self._back:
            back, self._back = self._back, []
            for fibre in back:
                self._returned(boot, fibre)
        if self.up and self._inbox and self._unpaid is None and not self.paused:
            self._turn()

    def _pay(self, effects: Effects, now: int) -> None:
        """Write the log, and then pay the rest. What refuses stops the node, as in the driver."""
        assert self.node is not None
        assert self.log is not None
        assert self.duties is not None
        try:
            self._write_log(effects.log, now)
            if effects.log:
                for watcher in self.world.watchers.logged:
                    watcher.logged(self, effects.log, self.node.core.durable_lsn)
            self._needed = self.log.next_lsn - 1  # also of turns before: what is said now may rest on any of them
            self._unpaid = None
            self.duties.rest(effects, now)
        except EXPECTED as error:
            self.fail(error)
            return
        except Violation:
            raise
        except Exception as error:
            raise self._died(" while it paid a turn", error) from error
        if self.up and effects.wake_at is not None:
            self._plan(effects.wake_at)

    def _write_log(self, records: list[Record], now: int) -> None:
        assert self.duties is not None
        self.duties.write(records, now=now, wall_ms=self.wall_ms)

    def answer(self, session: SessionId, reply: Reply) -> None:
        """A client is answered."""
        for watcher in self.world.watchers.answers:
            watcher.answers(self, session, reply, self._needed)
        told = self.sessions.get(session)
        if told is not None:
            told(reply)

    def leave(self, targets: tuple[NodeId, ...], message: Message) -> None:
        """A message of the turn that is being paid leaves."""
        self.depart(targets, message, self._needed)

    def depart(self, targets: tuple[NodeId, ...], message: object, needed_lsn: int) -> None:
        """A message leaves."""
        for watcher in self.world.watchers.departs:
            watcher.departs(self, targets, message, needed_lsn)  # type: ignore[arg-type]  # a message, or a node broke its type
        self.world.network.send(self, targets, message)  # type: ignore[arg-type]  # as above

    def fail(self, error: Exception) -> None:
        """The log or the store refused: the node stops, as the driver does."""
        self.world.say(f"{self.name} stops: {error}")
        if not isinstance(error, EXPECTED):
            raise error
        if self._unpaid is not None:
            self._left_over = self._unpaid.log
        self._computing = False
        self._unpaid = None  # it was written as far as it was, and nothing of it is owed any more
        self.stop(f"{type(error).__name__}: {error}", process_only=True)

    # Time.

    def _plan(self, wake_at: int) -> None:
        at, now = self._world_time(wake_at), self.world.now
        self._wanted = at = at if at > now else now
        if self._waking is None or at < self._waking:
            self._set_alarm(at)

    def _set_alarm(self, at: int) -> None:
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

    # In the background.

    def background(self, name: str, run: Callable[[], T], back: Callable[[T | None, Exception | None], None]) -> None:
        """Do something slow beside the turns."""
        fibre = Fibre(name, run, self._chance)
        self._fibres[fibre] = back
        self._later(self._while(fibre), lambda: self._step(fibre))

    def _while(self, fibre: Fibre) -> int:
        """How long it is until the next step of a background task."""
        unit = self.speed.checkpoint if fibre.name == "checkpoint" else self.speed.checkpoint // 4
        took, self._storing = self._storing if fibre.name == "checkpoint" else 0, 0
        return took + self._chance.randrange(unit)

    def _later(self, delay: int, work: Callable[[], None]) -> None:
        """Do something of this process after a while; a stopped process does it when it goes on."""
        boot = self.boot

        def due() -> None:
            if boot != self.boot or not self.up:
                return
            if self.paused:
                self._resume.append(due)
            else:
                work()

        self.world.after(delay, due)

    def _step(self, fibre: Fibre) -> None:
        if not fibre.finished:  # somebody who needed it waited for it
            self._advance(fibre)
            if not fibre.finished:
                self._later(self._while(fibre), lambda: self._step(fibre))

    def _advance(self, fibre: Fibre) -> None:
        """Let a background task go on to its next pause; when it is at its end, it comes back after a while."""
        before, self._current = self._current, fibre
        try:
            fibre.resume()
        finally:
            self._current = before
        if fibre.finished:
            boot = self.boot
            self._later(self._while(fibre), lambda: self._returned(boot, fibre))

    def _returned(self, boot: int, fibre: Fibre) -> None:
        """What was done in the background is back, between two turns."""
        if boot != self.boot or not self.up:
            return
        if self._unpaid is not None:
            self._back.append(fibre)
            return
        error, back = fibre.error, self._fibres.pop(fibre)
        if error is not None and not isinstance(error, EXPECTED):
            if isinstance(error, Exception) and not isinstance(error, Violation):
                raise self._died(f" in the background ({fibre.name})", error) from error
            raise error
        try:
            back(fibre.result, error)
        except EXPECTED as refused:
            self.fail(refused)
        except Exception as wrong:
            raise self._died(f" when {fibre.name} was back", wrong) from wrong

    def _before_call(self) -> None:
        if self._current is not None:
            self._current.pause()

    def kill_background(self) -> None:
        """Whatever was in the background ends where it is."""
        fibres, self._fibres, self._writes_until = self._fibres, {}, 0
        for fibre in fibres:
            if not fibre.finished:
                fibre.kill()

    def _checkpoint(self, image: CheckpointImage) -> None:
        return self._write_checkpoint(image)  # type: ignore[return-value]  # in pieces; by its name: a fault may be planted

    def _write_checkpoint(self, image: CheckpointImage) -> Iterator[None]:
        """In the background. The store takes a checkpoint whole or not at all, so it is one step."""
        fibre = self._current
        assert fibre is not None
        assert self.node is not None
        fibre.quiet = True
        for watcher in self.world.watchers.checkpoint:
            watcher.checkpoint(self, image)
        fibre.quiet = False
        self._storing = self._time_to_store(image.weight)
        self._writes_slowly(self._storing)
        yield  # it takes a while, and is there at its end
        if self.store_fails:
            raise StoreFailed(f"{self.name}: its store cannot be written")
        room = self.disk.room
        if room is not None and image.weight > room:
            raise StoreFull(f"{self.name}: {image.weight} bytes found no room")
        self.node.core.replica.store.base.write(image)

    def _writes_slowly(self, took: int) -> None:
        """It is not well before that is written, also where its disk is by then."""
        if took > WRITTEN_SLOWLY_NS:
            self._writes_until = max(self._writes_until, self.world.now + took)

    def _time_to_store(self, weight: int) -> int:
        """How long the store takes for so many bytes: longer on a disk that has its bad minute, as long as that lasts."""
        speed, now = self.speed, self.world.now
        took = min(weight * speed.store, STORING_NS_MAX)
        return min(took * speed.slow, took + speed.slow_until - now) if now < speed.slow_until else took

    # The end.

    def finish(self) -> None:
        """The process is told to end: it writes a last checkpoint, and stops when that is done."""
        assert self.duties is not None
        try:
            self.duties.finish(self._finished)
        except AssertionError as error:
            raise self._died(" when it was told to end", error) from error

    def _finished(self, error: Exception | None) -> None:
        if error is not None:
            self.fail(error)
            return
        assert self.duties is not None
        assert self.log is not None
        self.duties.close()
        self.log.close()
        self.stop("ended in good order", process_only=True)

    def rotate_log(self) -> None:
        """The live segment is sealed, however little is in it, so that a trim can take all of it."""
        assert self.log is not None
        self.log._rotate(0, NOTHING)

    def truncate_log(self) -> None:
        """The log is trimmed as if its cap were nothing: to what the last checkpoint does not hold."""
        assert self.log is not None
        assert self.node is not None
        wanted = self.log._settings
        self.log._settings = LogSettings(segment_bytes=SEGMENT_BYTES_MIN, total_bytes=3 * SEGMENT_BYTES_MIN)
        trimmed = self.log.trimmable(self.node.core.replica.store.base.load().lsn)
        self.log._settings = wanted
        if trimmed is not None:
            self.receive(LogMayShrink(trimmed))

    @property
    def well(self) -> bool:
        """It runs, as fast as it was made to, and its log and its store keep up."""
        speed, slow_until = self.speed, max(self.speed.slow_until, self._writes_until)
        return self.up and not self.paused and slow_until <= self.world.now and speed.slowness <= SLOW

    @property
    def unwritten(self) -> list[Record]:
        """What the node has decided and its disk may not hold."""
        return self._unpaid.log if self._unpaid is not None else self._left_over

    @property
    def works_on(self) -> list[str]:
        """What it has begun to do in the background."""
        return [fibre.name for fibre in self._fibres if fibre.begun]

    @property
    def busy(self) -> bool:
        """A turn is being paid."""
        return self._unpaid is not None


class _Doer:
    """What duties ask of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.background = machine.background
        self.note = lambda text: machine.world.trace.add(machine.world.now, "note", machine.name, "", text)
        self.inbox = machine.receive

    def send(self, sends: list[tuple[tuple[NodeId, ...], Message]]) -> None:
        for targets, message in sends:
            self.machine.leave(targets, message)

    def reply(self, replies: list[tuple[SessionId, Reply]]) -> None:
        for session, reply in replies:
            self.machine.answer(session, reply)

    def connect(self, address: str) -> None:
        """Everyone is dialled as long as it is there."""

    def stop(self, reason: str | Exception) -> None:
        if isinstance(reason, Exception):
            self.machine.fail(reason)
        else:
            self.machine.gone = True
            self.machine.stop(reason, process_only=True)


def _nothing(_: Unsynced) -> bool:
    return False


def all_of(_: Unsynced) -> bool:
    """Everything that was written survives."""
    return True


def events_of(kind: type[Event], events: Sequence[Event]) -> list[Event]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]
