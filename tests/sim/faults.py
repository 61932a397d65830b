"""What goes wrong in a world, and when: each kind with a rate of its own, all drawn from the seed.

A seed takes part of the kinds only (a swarm): a fault that happens all the time hides what another one would have
shown. Faults come one after the other and overlap as they fall; `calm` ends all of them, and from then on the cluster
must find back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rebalance import table as topologies
from rebalance.migrations import BYTES_PER_SECOND_MIN, Paused
from tests.sim.lulls import TROUBLES, Lull
from tests.sim.machine import Speed
from tests.sim.majority import LostMajority
from tests.sim.namesakes import Namesake
from tests.sim.network import MS, Weather
from tests.sim.oracles.ruined import Ruined
from tests.sim.ordering import Operators
from tests.sim.rotting import rot_one
from tests.sim.sleeping import Sleep
from tests.sim.vault import MemoryVault
from tests.sim.violation import About, Violation
from tests.sim.ways import Ways, lasting
from tests.support.memory_disk import SECTOR

if TYPE_CHECKING:
    from engine.node.node import Node
    from rebalance.table import Topology
    from tests.sim.machine import Machine
    from tests.sim.vault import Vault
    from tests.sim.world import World
    from tests.support.memory_disk import MemoryDisk
    from wal.ids import NodeId
    from wal.records import Claim

RATES = {
    "power": 3.0,  # a machine loses power: a random part of what was not synced is gone
    "kill": 3.0,  # a process is killed; its system lives on
    "stop": 2.0,  # a process is stopped for a while (SIGSTOP)
    "sleep": 3.0,  # a process, or its machine, stops for 10 to 90 s, or all of them do
    "split": 3.0,  # some nodes are cut off from the others
    "one-way": 2.0,  # nothing passes from one node to another
    "partial": 1.0,  # any of the ways between nodes are cut, each in its direction
    "late": 2.0,  # a few messages of one kind arrive seconds later, whatever has happened since
    "clog": 2.0,  # what one node sends to another arrives late, and all at once
    "narrow": 3.0,  # few bytes a second pass between some nodes
    "reset": 2.0,  # a connection breaks
    "slow-disk": 1.0,
    "disk-error": 1.0,  # a write or a sync is refused once; the node stops
    "read-error": 1.0,  # a read is refused: of a node that supplies history, or that starts
    "disk-full": 1.0,
    "full": 3.0,  # the disks of all machines are full at once, for a while
    "damage": 1.0,  # a machine comes back with sectors that rotted, or that hold what was meant for others
    "wipe": 1.0,  # a machine comes back with an empty disk
    "old-disk": 1.0,  # a machine comes back with an old image of its disk
    "swapped-disks": 0.5,  # two machines come back each with the other's disk: both must refuse it
    "clock-jump": 1.0,  # a monotonic clock jumps ahead, by up to an hour
    "clock-rate": 1.0,  # a monotonic clock runs up to a tenth fast or slow
    "wall-clock": 1.0,  # a wall clock is set to any time
    "client": 1.5,  # a client dies with what it holds, and another one comes; or it stands still for a while
    "join": 0.7,  # a new node comes
    "leave": 1.0,  # a node leaves on purpose, and comes back
    "baseline": 1.0,  # an operator changes who is meant to hold data
    "init-again": 0.5,  # an operator forms the cluster once more, at a node that may be new
    "checkpoint": 2.0,  # an operator asks for a checkpoint
    "everybody": 0.4,  # all machines lose power at once
    "lull": 0.6,  # one thing stays wrong for long, and nothing else happens: the others must serve
    "weather": 3.0,  # loss, duplicates, delay, reordering; another one every few seconds
    "lost-majority": 1.0,  # most voters' disks are gone at once, and an operator goes on by force from what is left
    "namesake": 2.0,  # a second process is started under the name of a node that is there
    "rot": 3.0,  # a row of a checkpoint changes or goes, and nothing tells: anti-entropy is to find it
    "migrations": 2.0,  # an operator pauses migrations, resumes or limits them, on what a node knows that may be behind
    "tired": 1.0,  # a disk is slow until its member is set aside, whose power fails: it lacks something, and rests
    "refetch": 2.0,  # an operator wants a copy of a node taken anew
    "reset-lost": 2.0,  # an operator has what is LOST begin again, whatever that loses; and disks go that nobody can spare
}
"""How often each kind comes, relative to the others, in a seed that has it."""

GIVING_UP = "reset-lost"
GIVING_UP_SHARE = 0.1
"""The share of the seeds in which an operator gives up what is LOST. Of what clients were told nothing is judged then."""
MAJORITY_LOST = "lost-majority"
MAJORITY_LOST_SHARE = 0.06
"""The share of the seeds in which that happens; once in each."""
NAMESAKE = "namesake"
NAMESAKE_SHARE = 0.15
"""The share of the seeds in which that happens."""
ROT = "rot"
ROT_SHARE = 0.15
"""The share of the seeds in which that happens, and anti-entropy is on. Then no disk is lost: a row may be right on one."""
ORDERED = "migrations"
ORDERED_SHARE = 0.2
"""The share of the seeds in which an operator has orders for migrations."""
FULL = "full"
FULL_SHARE = 0.1
"""The share of the seeds in which that happens."""
REFETCH = "refetch"
REFETCH_SHARE = 0.15
"""The share of the seeds in which that happens; not beside rot, which may be in the copy that it is taken from."""
NARROW = "narrow"
NARROW_SHARE = 0.2
"""The share of the seeds in which links have a rate now and then."""
SLEEP = "sleep"
SLEEP_SHARE = 0.08
"""The share of the seeds in which that happens, once in each: the storm goes on until whoever sleeps is awake."""
TIRED = "tired"
TIRED_SHARE = 0.1
"""The share of the seeds in which that happens."""
HURRIED_NS = 300 * MS
"""The shortest pause between faults that seeds draw: where enough was said before enough went wrong, it is that from then
on, or a storm around busy clients goes on for as long as five others."""
TIRED_NS, TIRED_LOOK_NS = 30_000 * MS, 500 * MS
LAST_WORD_NS = 2_000 * MS
"""In the calm the operator looks so often whether what he ordered last holds."""
LAST_RESORT_NS = 15_000 * MS
"""In the calm what is LOST is given up after so long, if its disks are gone."""


DESTRUCTIVE = ("wipe", "old-disk", "damage")
"""These take a copy away for good, whenever they fall, as long as what is left can come back without an operator."""
NODES_MAX = 6


class Faults:
    """The faults of one run. `happened` counts them by kind."""

    def __init__(self, world: World, rates: dict[str, float], *, pause_ns: int) -> None:
        self.world = world
        self.rates = {kind: rate for kind, rate in rates.items() if rate > 0}
        self.happened: dict[str, int] = {}
        self.over = False
        self.hurried = False  # enough was said: what is still waited for is that enough goes wrong
        self._pause_ns = pause_ns
        self._draw = world.draws.of("faults")
        self._images: dict[str, tuple[str, int, MemoryDisk, Vault]] = {}  # of a disk, and where its log ended
        self._ruined = Ruined()
        self._lull: Lull | None = None
        self._namesakes: list[Namesake] = []
        self.majority = LostMajority(world, self._ruined, self._replace_disk)
        self.operators = Operators(world, over=lambda: self.over)
        self.sleep = Sleep(world, world.draws.of("who sleeps"))
        ways = Ways(world, self._draw)
        self._kinds: dict[str, Callable[[Machine], bool]] = {
            "power": self._power,
            "kill": self._kill,
            "stop": self._stop,
            SLEEP: self.sleep.come,
            "split": ways.split,
            "one-way": ways.one_way,
            "partial": ways.partial,
            "late": ways.late,
            "clog": ways.clog,
            NARROW: ways.narrow,
            "reset": ways.reset,
            "slow-disk": self._slow_disk,
            "disk-error": self._disk_error,
            "disk-full": self._disk_full,
            FULL: self._full,
            "clock-jump": self._clock_jump,
            "clock-rate": self._clock_rate,
            "wall-clock": self._wall_clock,
            "read-error": self._read_error,
            "damage": self._damage,
            "wipe": self._wipe,
            "old-disk": self._old_disk,
            "swapped-disks": self._swap_disks,
            "init-again": self._init_again,
            "join": self._join,
            "leave": self._leave,
            "baseline": self._baseline,
            "checkpoint": self._checkpoint,
            "client": self._client,
            "lost-majority": lambda _: self.majority.strike(self._draw),
            NAMESAKE: self._namesake,
            ORDERED: self._order_migrations,
            TIRED: self._tire,
            "reset-lost": self._reset_lost,
            REFETCH: self._refetch,
            ROT: lambda machine: rot_one(world, machine, self._draw),
            "everybody": self._everybody,
            "lull": self._begin_lull,
        }
        assert set(self._kinds) | {"weather"} == set(RATES), "every kind of fault has a rate"

    def begin(self) -> None:
        """From now on things go wrong."""
        if "weather" in self.rates:
            self._change_weather()
        self._next()

    def _change_weather(self) -> None:
        if self.over:
            return
        draw = self._draw
        if self._lull is not None:
            self.world.after(draw.randrange(1, 10) * 1_000 * MS, self._change_weather)
            return
        self._count("weather")
        self.world.network.weather = Weather(
            loss=draw.choice([0.0, 0.01, 0.05, 0.15, 0.3]),
            duplicate=draw.choice([0.0, 0.02, 0.1, 0.5]),
            jitter=draw.choice([0, 300_000, 3 * MS]),
            spike=draw.choice([0.0, 0.01, 0.05]),
            reorder=draw.random() < 0.5,
            refuse=draw.choice([0.0, 0.1]),
        )
        self.world.after(draw.randrange(1, 10) * 1_000 * MS, self._change_weather)

    def _count(self, kind: str) -> None:
        self.happened[kind] = self.happened.get(kind, 0) + 1

    def _next(self) -> None:
        if self._lull is not None:
            self.world.after(self._lull.lasts_ns, self._lull_is_over)
            return
        pause = min(self._pause_ns, HURRIED_NS) if self.hurried else self._pause_ns
        self.world.after(self._draw.randrange(pause // 4, pause), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        kinds = [kind for kind in self.rates if kind != "weather"]
        if kinds:
            kind = self._draw.choices(kinds, [self.rates[k] for k in kinds])[0]
            machine = self._draw.choice(self._victims(kind))
            if (kind not in DESTRUCTIVE or self.spares_enough(machine)) and self._kinds[kind](machine):
                self._count(kind)
        self._next()

    def _victims(self, kind: str) -> list[Machine]:
        """Whom it may happen to: there is an old image of a few disks only."""
        machines = list(self.world.machines.values())
        imaged = [machine for machine in machines if machine.name in self._images]
        return imaged if kind == "old-disk" and imaged else machines

    # Processes and power.

    def _power(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        kept = self._draw.random()
        machine.stop("power cut", torn=lambda _: self._draw.random() < kept)
        self._start_later(machine)
        return True

    def _kill(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        machine.stop("killed", process_only=True)
        self._start_later(machine)
        return True

    def _everybody(self, _: Machine) -> bool:
        for machine in self.world.running:
            self._power(machine)
        return True

    def _start_later(self, machine: Machine) -> None:
        self.world.after(self._draw.choice([20 * MS, 500 * MS, 2_000 * MS, 6_000 * MS]), self._start, machine)

    def _start(self, machine: Machine) -> None:
        if machine.up or machine.gone or machine.name in self.majority.buried:
            return
        machine.disk.repair()
        if self._draw.random() < 0.5 and machine.name not in self._images:
            copied = machine.disk.copy(), machine.vault.copy()
        else:
            copied = None
        boots = machine.boot
        if "read-error" in self.rates and not self.over and self._draw.random() < 0.1:
            machine.disk.fail("read", self._draw.randrange(1, 10))
            if not machine.start():
                self._count("read-error")
                self._start_later(machine)
            machine.disk.repair()
        elif not machine.start():
            raise Violation("recovery", f"{machine.name} does not start: {machine.why}", About(nodes=(machine.name,)))
        if copied is not None and machine.node is not None and machine.boot > boots:
            self._images[machine.name] = (machine.allocation, machine.node.core.boot_lsn, *copied)

    def _stop(self, machine: Machine) -> bool:
        if not machine.up or machine.paused:
            return False
        machine.pause()
        self.world.say(f"{machine.name} is stopped")
        self.world.after(self._draw.choice([100 * MS, 1_000 * MS, 4_000 * MS]), machine.resume)
        return True

    # Disks.

    def _slow_disk(self, machine: Machine) -> bool:
        machine.speed.slow = self._draw.choice([10, 100, 1_000])
        machine.speed.slow_until = self.world.now + lasting(self._draw)
        return True

    def _tire(self, machine: Machine) -> bool:
        if not machine.up or machine.paused or machine.speed.slow_until > self.world.now:
            return False
        machine.speed.slow = max(1, 1_000 * MS // machine.speed.sync)
        machine.speed.slow_until = until = self.world.now + TIRED_NS
        self.world.after(TIRED_LOOK_NS, self._is_tired, machine, until)
        return True

    def _is_tired(self, machine: Machine, until: int) -> None:
        newest = self.world.newest()
        if self.over or machine.speed.slow_until != until or self.world.now >= until:
            return
        if newest is None or newest.aside.get(machine.name, 0) <= 0:
            self.world.after(TIRED_LOOK_NS, self._is_tired, machine, until)
            return
        machine.speed.slow_until = 0
        self._power(machine)

    def _disk_error(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        machine.disk.fail(self._draw.choice(["sync", "write"]), self._draw.randrange(1, 20), "EIO")
        self._repair_later(machine)
        return True

    def _disk_full(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        machine.disk.capacity = machine.disk.used + self._draw.randrange(1 << 16)
        self._repair_later(machine)
        return True

    def _full(self, _: Machine) -> bool:
        full = [machine for machine in self.world.running if self._disk_full(machine)]
        return bool(full)

    def _swap_disks(self, machine: Machine) -> bool:
        """Each of two machines has the other's disk, until somebody notices that they do not start."""
        other = self._draw.choice(list(self.world.machines.values()))
        if other is machine or machine.gone or other.gone or not (machine.disk.names() and other.disk.names()):
            return False  # from an empty one a node starts
        for each in (machine, other):
            if each.up:
                each.stop("its disk is taken out")
        for each, theirs in ((machine, other), (other, machine)):
            own, each.disk = each.disk, theirs.disk.copy()
            if each.start():
                wrong = f"{each.name} starts from the disk of {theirs.name}"
                raise Violation("recovery", wrong, About(nodes=(each.name, theirs.name)))
            each.disk = own
            self._start_later(each)
        return True

    def _read_error(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        machine.disk.fail("read", self._draw.randrange(1, 5), "EIO")
        self._repair_later(machine)
        return True

    def _repair_later(self, machine: Machine) -> None:
        def repair() -> None:
            machine.disk.repair()
            if machine.why.startswith("Disk"):
                self._start(machine)

        self.world.after(lasting(self._draw), repair)

    def spares_enough(self, machine: Machine) -> bool:
        """Whether a majority of the voters and a copy in sync of everything are left without this disk.

        Beyond that nothing comes back by itself; where an operator gives up what is LOST a majority is enough.
        """
        machines = list(self.world.machines.values())
        nodes = [m.node for m in machines if m.node is not None]
        maps = [node.core.topology for node in nodes if node.core.topology is not None]
        if not maps:
            return False
        newest = max(maps, key=lambda topology: topology.version)
        accepted = [node.core.replica.accepted for node in nodes]
        coming = [topologies.decode(encoded) for after, _, encoded in accepted if encoded and after >= newest.version]
        whole = frozenset(m.name for m in machines if m is not machine and self._ruined.forgive(m, newest))
        if GIVING_UP in self.rates:
            return all(topology.carried_by(whole) for topology in (newest, *coming))
        leading = [m.node for m in machines if m.up and m.node is not None and m.node.exchange.attempt is not None]
        reported = [whole & self._reported(node, newest) for node in leading]
        return all(
            topology.carried_by(whole) and all(any(node in left for node in p.in_sync) for p in topology.placements)
            for topology, left in ((newest, whole), *((t, whole) for t in coming), *((newest, some) for some in reported))
        )

    def _reported(self, node: Node, newest: Topology) -> frozenset[NodeId]:
        """Whom a map may rely on that is being made of what was reported: nobody whose report may yet be lost, or who
        leaves with this map."""
        attempt = node.exchange.attempt
        if attempt is None or attempt.after != newest.version:
            return frozenset(self.world.machines)
        return frozenset(attempt.singles).difference(attempt.intent.leaving)

    def _is_remembered(self, machine: Machine, end: int) -> bool:
        """Whether what a node forgets whose log is set back to `end` is known to the others, as far as it could matter.

        If it promised to keep it, and whoever else knows that is away, then it and those who do not are a majority that
        nobody can tell from one whose log always ended there: it never decided, or its copies are whole. No protocol of so
        few nodes survives that, so it does not happen here.
        """
        node = machine.node
        if node is None or node.core.topology is None or max(node.core.voted_lsn, node.core.durable_lsn) <= end:
            return True
        replica, topology, newest = node.core.replica, node.core.topology, self.world.newest()
        votes = node.core.voted_lsn > end
        voted = max(replica.promised[0], replica.accepted[0])
        counts = newest is None or any(machine.name in placement.in_sync for placement in newest.placements)
        ignorant = 0
        for other in (self.world.machines.get(name) for name in topology.voters if name != machine.name):
            if other is None or other.node is None:
                ignorant += 1
                continue
            core = other.node.core
            logged = [*core.replica.claims, *(core.topology.claims if core.topology is not None else ())]
            kept = _claimed(machine, logged) > end
            heard = kept or (other.up and _claimed(machine, other.node.claims.known()) > end)
            ignorant += (votes and core.version <= voted and not kept) or (counts and not heard)
        return ignorant < topology.majority - 1

    def _destroyed(self, machine: Machine, how: str) -> None:
        self._ruined.add(machine)
        self.world.destroyed(machine, how)

    def _wipe(self, machine: Machine) -> bool:
        if machine.up:
            machine.stop("its disk broke")
        self._replace_disk(machine)
        self._start_later(machine)
        return True

    def _replace_disk(self, machine: Machine) -> None:
        machine.wipe()
        self._images.pop(machine.name, None)
        self._destroyed(machine, "was wiped")

    def _old_disk(self, machine: Machine) -> bool:
        image = self._images.pop(machine.name, None)
        if image is None or image[0] != machine.allocation or not self._is_remembered(machine, image[1]):
            return False
        if machine.up:
            machine.stop("it is set back")
        machine.vault.close()
        machine.disk, machine.vault = image[2].copy(), image[3].copy()
        self._destroyed(machine, "was set back to an old image of its disk")
        self._start_later(machine)
        return True

    def _damage(self, machine: Machine) -> bool:
        """It must refuse to start, unless what rotted is nothing that it needs, or looks like the end of its log."""
        if machine.up:
            machine.stop("its power fails and its disk rots")
        rotten = machine.disk.copy()
        if rotten.names():
            self._rot(rotten)
        end = machine.log_end(rotten)
        if end is not None and not self._is_remembered(machine, end):
            self._start_later(machine)
            return False
        machine.disk = rotten
        self._destroyed(machine, "has damaged sectors")
        if not machine.start():
            self._replace_disk(machine)
            self._start_later(machine)
        return True

    def _rot(self, disk: MemoryDisk) -> None:
        """Some sectors of the log lose their contents, or take those of another sector."""
        draw = self._draw
        for _ in range(draw.randrange(1, 4)):
            name, other = draw.choice(disk.names()), draw.choice(disk.names())
            at = SECTOR * draw.randrange(max(1, len(disk.image(name)) // SECTOR))
            if draw.random() < 0.5:
                data = draw.randbytes(SECTOR)
            else:
                source = SECTOR * draw.randrange(max(1, len(disk.image(other)) // SECTOR))
                data = disk.image(other)[source : source + SECTOR]
            disk.overwrite(name, at, data)

    # The operator.

    def _join(self, _: Machine) -> bool:
        machines = self.world.machines
        if len(machines) >= NODES_MAX:
            return False
        like = next(iter(machines.values()))
        lmdb = not isinstance(like.vault, MemoryVault)
        machine = self.world.add_machine(f"n{len(machines) + 1}", speed=Speed(sync=like.speed.sync), lmdb=lmdb)
        self._start(machine)
        return True

    def _leave(self, machine: Machine) -> bool:
        newest = self.world.newest()
        if not machine.up or machine.paused or newest is None or len(newest.members) < 4 or self._any_gone():
            return False
        self.operators.order(machine, "stop")
        self.world.after(self._draw.choice([3_000, 8_000]) * MS, self._come_back, machine)
        return True

    def _come_back(self, machine: Machine, looks: int = 60) -> None:
        """Whoever was told to leave comes back when it has, be that after the calm has begun: it may be stopped first."""
        if machine.up and looks:
            self.world.after(1_000 * MS, self._come_back, machine, looks - 1)
        else:
            self._return(machine)

    def _any_gone(self) -> bool:
        return any(machine.gone for machine in self.world.machines.values())

    def _return(self, machine: Machine) -> None:
        if machine.gone:
            machine.gone = False
            self._start(machine)
        elif machine.up and machine.node is not None and machine.node.membership.leaving.since is not None:
            self.world.after(1_000 * MS, self._return, machine)

    def _namesake(self, machine: Machine) -> bool:
        """Somebody starts a second process under the name of a node, and notices after a while."""
        if not machine.up or machine.node is None or not machine.node.core.serving:
            return False
        if any(not other.over for other in self._namesakes):
            return False
        number = len(self._namesakes) + 1
        other = Namesake(self.world, machine, draw=self._draw.getrandbits(32), number=number)
        self._namesakes.append(other)
        self.world.after(self._draw.choice([1_000, 5_000, 20_000]) * MS, other.end)
        return True

    def _baseline(self, machine: Machine) -> bool:
        """Somebody is taken out, or everybody in."""
        newest = self.world.newest()
        if not machine.up or machine.paused or newest is None:
            return False
        nodes = sorted({*newest.baseline, *(m.node for m in newest.members)})
        if len(nodes) > 3 and self._draw.random() < 0.6:
            out = self._draw.choice(nodes)
            nodes.remove(out)
            if nodes != sorted(newest.baseline) and out in newest.baseline and self.operators.say_so():
                self.operators.order(machine, "remove", {"nodes": [out], "yes": []})
                return True
        if nodes == sorted(newest.baseline):
            return False
        self.operators.order(machine, "baseline", {"nodes": nodes, "yes": []})
        return True

    def _refetch(self, machine: Machine) -> bool:
        if not machine.up or machine.paused or machine.node is None:
            return False
        core = machine.node.core
        mine = [core.replica.partition(local.number) for local in core.local if local.in_sync]
        written = [partition for partition in mine if partition.fragments]
        if not written:
            return False
        namespace, number = self._draw.choice([f.name for f in self._draw.choice(written).fragments.values()])
        self.operators.order(machine, "refetch", {"fragments": [f"{namespace}/{number}"]})
        return True

    def _order_migrations(self, machine: Machine) -> bool:
        if not machine.up or machine.paused or machine.node is None or machine.node.core.topology is None:
            return False
        paused, limit = self._draw.choice(list(Paused)), self._draw.choice([0, 0, BYTES_PER_SECOND_MIN, 1 << 20])
        self._say_of_migrations(machine, machine.node.core.topology, paused, limit)
        return True

    def _say_of_migrations(self, machine: Machine, topology: Topology, paused: Paused, limit: int = 0) -> None:
        words = {"seen": [str(topology.migrations.since)], "paused": [str(paused)], "bytes_per_second": [str(limit)]}
        self.operators.order(machine, "migrations", words)

    def _last_word(self, paused: Paused) -> None:
        """Nothing is limited any more, and balancing is what may stay paused."""
        newest = self.world.newest()
        machine = next((m for m in self.world.running if m.node is not None and m.node.core.serving), None)
        if newest is not None and machine is not None:
            stands = newest.migrations
            if (stands.paused, stands.bytes_per_second) != (paused, 0):
                self._say_of_migrations(machine, newest, paused)
        self.world.after(LAST_WORD_NS, self._last_word, paused)

    def _reset_lost(self, machine: Machine) -> bool:
        newest = self.world.newest()
        if not machine.up or machine.paused or newest is None or not any(p.lost for p in newest.placements):
            return False
        self.operators.order(machine, "reset-lost", {"yes": []})
        return True

    def _last_resort(self) -> None:
        """What is LOST for good begins again; it is nothing that a disk which is here could tell."""
        newest = self.world.newest()
        assert newest is not None
        machines = self.world.machines
        for number, placement in enumerate(newest.placements):
            here = [n for n in placement.in_sync if placement.lost and n in machines and machines[n] not in self._ruined]
            if here:
                lost = f"partition {number} is LOST, and {', '.join(here)} has the disk that it waits for"
                raise Violation("liveness", lost, About(partitions=(number,)))
        self._reset_lost(self.world.running[0])
        self.world.after(LAST_RESORT_NS, self._last_resort)

    def _init_again(self, machine: Machine) -> bool:
        if not machine.up or machine.paused:
            return False
        self.operators.order(machine, "init", {"cluster": ["c2"], "nodes": list(self.world.machines)})
        return True

    def _checkpoint(self, machine: Machine) -> bool:
        if not machine.up:
            return False
        self.operators.order(machine, "checkpoint")
        return True

    # Clocks and clients.

    def _clock_jump(self, machine: Machine) -> bool:
        machine.set_clock(jump_ns=self._draw.choice([100 * MS, 2_000 * MS, 60_000 * MS, 3_600_000 * MS]))
        return True

    def _clock_rate(self, machine: Machine) -> bool:
        machine.set_clock(rate=self._draw.randrange(900_000, 1_100_000))
        return True

    def _wall_clock(self, machine: Machine) -> bool:
        machine.wall_offset_ms = self._draw.randrange(-86_400_000, 86_400_000)
        return True

    def _client(self, _: Machine) -> bool:
        alive = [c for c in self.world.clients.values() if c.alive and not c.sheltered]
        if not alive:
            return False
        client = self._draw.choice(alive)
        if self._draw.random() < 0.5:
            client.die()
        else:
            client.loop.stand_still(self.world.now + self._draw.choice([200, 1_500, 6_000]) * MS)
        return True

    # Lulls.

    @property
    def lulled(self) -> bool:
        """Nothing new happens, for a while."""
        return self._lull is not None

    def _begin_lull(self, machine: Machine) -> bool:
        """Until it is over nothing else happens. It is long, so there is one of them."""
        if "lull" in self.happened:
            return False
        trouble = self._draw.choice(TROUBLES)
        self._lull = Lull(self.world, trouble, machine, self._draw)
        self.world.say(f"a lull: {trouble} for {self._lull}")
        self.world.network.weather = Weather(loss=self._draw.choice([0.0, 0.0, 0.01]), jitter=300_000)
        return True

    def _lull_is_over(self) -> None:
        if self._lull is not None:
            self.world.say("the lull is over")
            self._end_lull()
        self._next()

    def _end_lull(self) -> None:
        assert self._lull is not None
        lull, self._lull = self._lull, None
        lull.end()
        for machine in lull.down:
            self._start(machine)

    # The end.

    def calm(self) -> None:
        """Nothing is wrong any more; whoever is down is started."""
        self.over = True
        world = self.world
        if self._lull is not None:
            self._end_lull()
        world.say("calm")
        if GIVING_UP in self.rates:
            world.after(LAST_RESORT_NS, self._last_resort)
        if ORDERED in self.rates:
            self._last_word(self._draw.choice([Paused.NOTHING, Paused.BALANCE]))
        for other in self._namesakes:
            other.end()
        world.network.heal()
        world.network.widen()
        world.network.release(list(world.network.rules), list(world.network.held))
        world.network.weather = Weather()
        for machine in world.machines.values():
            machine.disk.repair()
            machine.speed.slow_until = machine.speed.store = 0
            machine.set_clock(rate=1_000_000)
            machine.resume()
            self._return(machine)
            self._start(machine)


def _claimed(machine: Machine, claims: Iterable[Claim]) -> int:
    """The most that was heard of the machine's disk."""
    disk = (machine.name, machine.allocation)
    return max((c.durable_lsn for c in claims if (c.node, c.allocation) == disk), default=0)
