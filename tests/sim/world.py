"""A world: simulated time, machines, clients and the network between them, and one heap of what happens next.

Nothing in here draws from anything but the seed, reads a clock, or iterates a set: the same seed gives the same world,
byte for byte, in every process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from engine.protocol.requests import Admin, Failed, Reply
from engine.turn.events import Asked
from engine.turn.settings import Settings
from rebalance.affinity import Affinity, assign
from rebalance.partition import Role
from rebalance.table import Topology
from tests.sim.clients import Client
from tests.sim.costs import Costs, Free
from tests.sim.draws import Draws
from tests.sim.machine import EPOCH_MS, Machine, Speed
from tests.sim.network import Network
from tests.sim.observer import Observer, Watchers
from tests.sim.parted import part_slowly
from tests.sim.rotting import Rotten
from tests.sim.said import Said
from tests.sim.trace import Trace
from tests.sim.vault import LmdbVault, MemoryVault, Vault
from tests.sim.violation import Violation
from wal.ids import NodeId, TxId

SECOND = 1_000_000_000
BEGIN_NS = SECOND
"""A world begins a second after zero, because a monotonic clock never reads zero."""
SHARED_MEMORY = Path("/dev/shm")

Plant = Callable[[Machine], None]
"""A deliberate fault: what is done to each node as it starts (`tests.sim.planted`)."""


class World:
    """Made by a seed or a scenario. Used in a `with`: LMDB files are removed at the end."""

    def __init__(
        self,
        draws: Draws,
        settings: Settings,
        *,
        affinity: Affinity = assign,
        machine_class: type[Machine] = Machine,
        plant: Plant | None = None,
        costs: Costs | None = None,
        traced: bool = True,
    ) -> None:
        self.draws = draws
        self.costs = costs or Free()
        self.settings = settings
        self.affinity = affinity
        self.now = BEGIN_NS
        self.trace = Trace(kept=traced)
        self.watchers = Watchers()
        self.said = Said()  # by clients
        self.machines: dict[NodeId, Machine] = {}
        self.clients: dict[str, Client] = {}
        self.network = Network(self)
        self.events = 0
        self.console: list[Reply] = []  # answers to the operator
        self.ordered_anew: Counter[tuple[NodeId, int]] = Counter()  # how often an operator wants which node's copy anew
        self.rotten = Rotten()
        self.meaningless: dict[TxId, None] = {}  # ids under which different things may have been asked
        self.set_anew: Callable[[Machine], Settings] = lambda machine: machine.settings  # to what, as it starts
        self.behind = False  # namespaces may have asynchronous copies of their own
        self.large_map: int | None = None  # a map of more partitions is worked out in pieces, and parted by
        self._console_sessions: dict[NodeId, int] = {}
        self._machine_class = machine_class
        self._plant = plant
        self.plants_of_clients: dict[str, Callable[[Client], None]] = {}  # what a plant does to those that come
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._directory: Path | None = None

    # Time.

    @property
    def wall_ms(self) -> int:
        """What a right wall clock reads."""
        return EPOCH_MS + self.now // 1_000_000

    def at(self, when: int, do: Callable[..., None], *args: Any) -> None:
        """Do something at a time."""
        self._order += 1
        heappush(self._heap, (when, self._order, do, args))

    def after(self, delay: int, do: Callable[..., None], *args: Any) -> None:
        """Do something after a while."""
        self._order += 1
        heappush(self._heap, (self.now + delay, self._order, do, args))

    def run_until(self, end: int) -> None:
        """Let the world go on until a time."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            when, _, do, args = heappop(heap)
            assert when >= self.now, "time does not go back"
            self.now = when
            self.events += 1
            do(*args)
        self.now = max(self.now, end)

    def run_for(self, ns: int) -> None:
        """Let the world go on for a while."""
        self.run_until(self.now + ns)

    def run_while(self, condition: Callable[[], bool], *, at_most: int, look_every: int = 10_000_000) -> bool:
        """Let the world go on as long as a condition holds; False if it still does after `at_most` ns."""
        end = self.now + at_most
        while condition():
            if self.now >= end:
                return False
            self.run_until(min(end, self.now + look_every))
        return True

    # What is in it.

    def add_machine(
        self, name: NodeId, *, settings: Settings | None = None, speed: Speed | None = None, lmdb: bool = False
    ) -> Machine:
        """A new machine, not started."""
        vault: Vault = LmdbVault(self.directory, name) if lmdb else MemoryVault()
        machine = self._machine_class(self, name, settings or self.settings, vault, speed or Speed(), self.affinity)
        self.machines[name] = machine
        return machine

    def add_client(self, name: str, *, host: Machine | None = None, wall_offset_ms: int = 0) -> Client:
        """A new client."""
        assert name not in self.clients, f"client {name} is there already"
        client = self.clients[name] = Client(self, name, host=host, wall_offset_ms=wall_offset_ms)
        for plant in self.plants_of_clients.values():
            plant(client)
        return client

    def machine_at(self, address: str) -> Machine | None:
        """Who listens at an address."""
        return self.machines.get(address.partition(":")[0])

    @property
    def running(self) -> list[Machine]:
        """The machines whose process runs."""
        return [machine for machine in self.machines.values() if machine.up]

    def watch(self, observers: Iterable[Observer]) -> None:
        """Let these see everything."""
        for observer in observers:
            self.watchers.add(observer)

    @property
    def directory(self) -> Path:
        """Where files of this world live, in memory if there is such a place."""
        if self._directory is None:
            place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
            self._directory = Path(tempfile.mkdtemp(prefix="foreshore-sim-", dir=place))
        return self._directory

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            machine.kill_background()
            machine.vault.close()
        for client in self.clients.values():
            client.die()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # The cluster.

    def command(self, machine: Machine, command: str, arguments: dict[str, list[str]] | None = None) -> None:
        """An operator's command to a node that runs; its answer goes to `console`."""
        session = machine.new_session(self._console)
        if command == "refetch":
            numbers = [word.rpartition("/")[2] for word in (arguments or {}).get("fragments", [])]
            self.ordered_anew.update((machine.name, int(number)) for number in numbers if number.isdigit())
        machine.receive(Asked(session, Admin(len(self.console) + 1, command, arguments or {})))

    def _console(self, reply: object) -> None:
        self.console.append(reply)  # type: ignore[arg-type]  # a session answers with replies

    def form(self, names: list[NodeId]) -> None:
        """Start these machines and form a cluster of them."""
        for name in names:
            assert self.machines[name].start(), f"a new disk was refused: {self.machines[name].why}"
        first = self.machines[names[0]]
        others = set(names[1:])

        def unseen() -> bool:
            assert first.node is not None
            return not others <= set(first.node.membership.joining.seen)

        if not self.run_while(unseen, at_most=30 * SECOND):
            raise Violation("formation", f"{first.name} does not see everyone after 30 s")
        self.command(first, "init", {"cluster": ["c1"], "nodes": names})
        if not self.run_while(lambda: not self.console and not first.busy, at_most=SECOND):
            raise Violation("formation", "init was not answered")
        self.run_while(lambda: not self.console, at_most=SECOND)
        if not self.console or isinstance(self.console[-1], Failed):
            raise Violation("formation", f"init was refused: {self.console}")
        if not self.run_while(lambda: not self.serving(names), at_most=30 * SECOND):
            raise Violation("formation", "the cluster does not serve 30 s after it was formed")

    def serving(self, names: Iterable[NodeId]) -> bool:
        """Whether these nodes are members that have promoted all they are primary of."""
        for name in names:
            node = self.machines[name].node
            if node is None or not self.machines[name].up or not node.core.serving:
                return False
            if any(local.role is Role.PROMOTING for local in node.core.local):
                return False
        return True

    def newest(self) -> Topology | None:
        """The newest map that any running node has committed."""
        found: Topology | None = None
        for machine in self.running:
            assert machine.node is not None
            topology = machine.node.core.topology
            if topology is not None and (found is None or topology.version > found.version):
                found = topology
        return found

    # Lives.

    def machine_started(self, machine: Machine) -> None:
        """A process runs."""
        self.trace.add(self.now, "world", machine.name, "", f"starts, life {machine.boot}")
        if self.large_map is not None and machine.node is not None:
            machine.node.exchange.foresight.large = self.large_map
            part_slowly(machine.node)
        if self._plant is not None:
            self._plant(machine)
        for watcher in self.watchers.started:
            watcher.started(machine)
        self.network.started(machine)
        for client in list(self.clients.values()):
            client.machine_started(machine)

    def machine_stopped(self, machine: Machine, *, reset: bool) -> None:
        """A process is gone."""
        self.trace.add(self.now, "world", machine.name, "", f"ends: {machine.why}")
        self.network.stopped(machine, reset=reset)
        for client in list(self.clients.values()):
            if client.host is machine:
                client.die()
            else:
                client.machine_stopped(machine, reset=reset)

    def destroyed(self, machine: Machine, how: str) -> None:
        """A machine's disk lost what it had promised to keep."""
        self.say(f"{machine.name} {how}")
        for watcher in self.watchers.destroyed:
            watcher.destroyed(machine, how)

    def say(self, text: str) -> None:
        """Something happened that is no message."""
        self.trace.add(self.now, "world", text)
