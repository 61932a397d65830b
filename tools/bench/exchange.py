"""What an exchange costs, by the number of nodes: one of many is gone, and the others agree on the next map.

All nodes are in this process, without network and disks. Time is counted: a turn takes what it took of the processor, with
the decoding of what it was told, the encoding of what it says and of what it logs; a log is synced in a millisecond; a
message is there at once. So each node has a processor of its own, as it would in a cluster, and this one may be slow or
busy for as long as it likes: only what it computes counts.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.messages import Message
from engine.node.node import Node
from engine.protocol.wire import decode_messages, framed
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import Connect, Event, PeerLost, PeerSeen, Received, Stop, WriteCheckpoint
from engine.turn.settings import Settings
from rebalance import table as topologies
from rebalance.partition import Role
from rebalance.plan import first_topology
from rebalance.ports import MS
from rebalance.table import Candidate, Topology
from tools.bench.figures import Measured, Setting, count_is
from wal import records as r
from wal.codec import BLOCK_BYTES_MAX, encode_body
from wal.ids import NodeId

PARTITIONS = 16_384
NODES = (10, 30, 100)
NAMESPACES = (1, 100)
SYNC_NS = MS
SETTLED_NS = 120_000 * MS
"""So long a cluster has to come up, and to have lost a node."""
COPIES_OF_UPDATE = 5
"""So many copies of fragments are made for each of `--updates`: more namespaces than that allows are not measured, because
each takes a KB of memory or so."""
GOAL_NODES, GOAL_MS = 30, 1_500.0
PEER_BYTES_MAX = 256 << 20


class Machine:
    """One node, with a processor of its own."""

    def __init__(self, node: Node, name: NodeId) -> None:
        self.node = node
        self.name = name
        self.inbox: list[tuple[NodeId, bytes] | Event] = []
        self.free_at = 0  # when it has done what it does
        self.turn_at: int | None = None
        self.spent = 0
        self.logged = 0
        self.said: Counter[str] = Counter()  # bytes, by kind of message

    def begin_to_count(self) -> None:
        """What follows is what is measured."""
        self.spent = self.logged = 0
        self.said.clear()
        self.node.core.maps.longest = self.node.core.maps.stopped = 0


class Cluster:
    """All of them, and what happens next."""

    def __init__(self, partitions: int, nodes: int) -> None:
        self.now = 0
        self.settings = Settings(partitions=partitions, backups=2, checkpoint_ms=86_400_000, checkpoint_bytes=1 << 36)
        self.candidates = [Candidate(f"n{n:03}", f"disk-{n:03}", 1, f"n{n:03}:7400", "") for n in range(nodes)]
        self.map = first_topology("bench", "bench", partitions, 2, self.candidates)
        self.machines: dict[NodeId, Machine] = {}
        self._heap: list[tuple[int, int, NodeId]] = []
        self._said = 0
        self._turned: NodeId = ""

    def load(self, namespaces: int) -> int:
        """Every copy of every fragment has had one update, which is everywhere; how many copies that are."""
        encoded, count = topologies.encode(self.map), 0
        for candidate in self.candidates:
            replica = Replica(LayeredStore(MemoryStore()))
            replica.apply(r.Committed(self.map.version, encoded))
            for number, placement in enumerate(self.map.placements):
                if candidate.node in placement.owners:
                    replica.apply(r.EpochStart(number, placement.epoch, [], []))
                    writes = [
                        r.Write(f"ns{n}", number, placement.epoch, 0, keys=[b"k"], values=[b"v"]) for n in range(namespaces)
                    ]
                    replica.apply(r.Update(writes))
                    count += namespaces
                    for fragment in replica.partition(number).fragments.values():
                        fragment.note_stable(1)
            self.machines[candidate.node] = Machine(self._node(replica, candidate), candidate.node)
        for machine in self.machines.values():
            machine.inbox += [_seen(c) for c in self.candidates if c.node != machine.name]
            self._wake(machine, 0)
        return count

    def _node(self, replica: Replica, candidate: Candidate) -> Node:
        return Node(
            self.settings,
            replica,
            node=candidate.node,
            allocation=candidate.allocation,
            address=candidate.address,
            durable_lsn=1,
        )

    # Time.

    def run(self, until: int) -> Iterator[None]:
        """Take one turn after the other."""
        while self._heap and self._heap[0][0] <= until:
            at, _, name = heapq.heappop(self._heap)
            machine = self.machines.get(name)
            if machine is None or machine.turn_at != at:
                continue
            self.now, machine.turn_at = at, None
            self._turn(machine)
            yield

    def lose(self, name: NodeId) -> None:
        """A node is gone, and all connections to it break."""
        del self.machines[name]
        for machine in self.machines.values():
            machine.inbox.append(PeerLost(name))
            self._wake(machine, self.now)

    def _wake(self, machine: Machine, at: int) -> None:
        at = max(at, machine.free_at)
        if machine.turn_at is None or at < machine.turn_at:
            machine.turn_at = at
            self._said += 1
            heapq.heappush(self._heap, (at, self._said, machine.name))

    def _turn(self, machine: Machine) -> None:
        """Take a turn, and pay for it."""
        if self._turned != machine.name:  # what another node took apart is not known to this one
            self._turned = machine.name
            topologies.decode.cache_clear()
        inbox, machine.inbox = machine.inbox, []
        began = time.thread_time_ns()
        events: list[Event] = []
        for came in inbox:
            if isinstance(came, tuple):
                sender, payload = came
                life = self.machines[sender].node.core if sender in self.machines else None
                if life is not None:
                    heard = decode_messages(payload)
                    events += [Received(sender, life.allocation, life.incarnation, message) for message in heard]
            else:
                events.append(came)
        core = machine.node.core
        effects = machine.node.turn(self.now + 1, events)
        logged = len(encode_body(effects.log, BLOCK_BYTES_MAX)) if effects.log else 0
        early = [(to, self._framed(machine, message, len(to))) for to, message in effects.early]
        later = [(to, self._framed(machine, message, len(to))) for to, message in effects.send]
        spent = time.thread_time_ns() - began
        core.durable_lsn += len(effects.log)
        machine.spent += spent
        machine.logged += logged
        self._deliver(machine, early, self.now + spent)
        machine.free_at = self.now + spent + (SYNC_NS if logged else 0)
        self._deliver(machine, later, machine.free_at)
        for task in effects.tasks:
            match task:
                case Connect(node, _):
                    machine.inbox += [_seen(c) for c in self.candidates if c.node == node and node in self.machines]
                case Stop(reason):
                    raise AssertionError(f"{machine.name} stops: {reason}")
                case WriteCheckpoint():
                    raise AssertionError("no checkpoint is due")
                case _:
                    pass  # transfers: nothing is to be moved while the map is made
        if machine.inbox or machine.node.untaken:
            self._wake(machine, machine.free_at)
        if effects.wake_at is not None:
            self._wake(machine, effects.wake_at)

    def _framed(self, machine: Machine, message: Message, times: int) -> bytes:
        payload = framed([message], PEER_BYTES_MAX)
        data = payload[1] if len(payload) > 1 else payload[0][8:]
        machine.said[type(message).__name__] += len(data) * times
        return data

    def _deliver(self, machine: Machine, said: Sequence[tuple[tuple[NodeId, ...], bytes]], at: int) -> None:
        for targets, data in said:
            for target in targets:
                if (other := self.machines.get(target)) is not None:
                    other.inbox.append((machine.name, data))
                    self._wake(other, at)

    # What is asked of it.

    def serves(self, members: int) -> bool:
        """Whether a map of so many members is everywhere, and every partition has a primary that serves."""
        serving = 0
        for machine in self.machines.values():
            core = machine.node.core
            if core.topology is None or len(core.topology.members) != members or core.frozen or not core.serving:
                return False
            serving += sum(local.role is Role.PRIMARY for local in core.local)
        return serving == self.settings.partitions


def _seen(candidate: Candidate) -> PeerSeen:
    return PeerSeen(
        candidate.node,
        candidate.allocation,
        candidate.incarnation,
        address=candidate.address,
        domain=candidate.domain,
        cluster="bench",
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """As in a node's process (`engine.turn.turns.collect_nothing`)."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def exchanges(setting: Setting, figure: str) -> list[Measured]:
    """One of so many nodes is lost, with one namespace and with as many as there may be."""
    found: list[Measured] = []
    most = max(1, setting.updates * COPIES_OF_UPDATE // (3 * PARTITIONS))
    for nodes in NODES:
        for namespaces in dict.fromkeys(min(most, n) for n in NAMESPACES):
            setting.say(f"{figure}: one of {nodes} nodes, {namespaces} namespaces")
            with _no_collection():
                found.append(failover(figure, nodes, namespaces))
    return found


def failover(figure: str, nodes: int, namespaces: int, partitions: int = PARTITIONS) -> Measured:
    """One of so many nodes is lost."""
    cluster, began = Cluster(partitions, nodes), time.perf_counter()
    fragments = cluster.load(namespaces)
    _until(cluster, nodes)
    for machine in cluster.machines.values():
        machine.begin_to_count()
    gone, lost_at = cluster.candidates[-1].node, cluster.now
    cluster.lose(gone)
    _until(cluster, nodes - 1)
    took, machines = cluster.now - lost_at, list(cluster.machines.values())
    count_is("members", (nodes - 1) * (nodes - 1), sum(_members(machine) for machine in machines))
    spent = sorted(machine.spent for machine in machines)
    said = sum((machine.said for machine in machines), Counter[str]())
    return Measured(
        figure=figure,
        what=f"until all serve again, one of {nodes} nodes is lost: {partitions:,} partitions, {namespaces} namespaces",
        value=round(took / MS, 1),
        unit="ms",
        goal=GOAL_MS if nodes == GOAL_NODES else None,
        at_most=True,
        counted=fragments,
        seconds=round(time.perf_counter() - began, 1),
        parts={
            "longest stop of writes ms": round(max(m.node.core.maps.longest for m in machines) / MS, 1),
            "processor ms of the coordinator": round(cluster.machines[cluster.candidates[0].node].spent / MS, 1),
            "of a node": round(spent[len(spent) // 2] / MS, 1),
            "single map KB of a node": round(said["SingleMap"] / 1000 / len(machines), 1),
            "other messages KB of a node": round((said.total() - said["SingleMap"]) / 1000 / len(machines), 1),
            "logged KB of a node": round(sum(m.logged for m in machines) / 1000 / len(machines), 1),
            "map KB": round(len(topologies.encode(cluster.map)) / 1000, 1),
        },
    )


def _until(cluster: Cluster, members: int) -> None:
    """Go on until a map of so many members is there, and all serve by it."""
    looked = 0
    for _ in cluster.run(cluster.now + SETTLED_NS):
        if cluster.now >= looked:
            looked = cluster.now + MS
            if cluster.serves(members):
                return
    raise AssertionError(f"{members} nodes do not serve: {_state(cluster)}")


def _members(machine: Machine) -> int:
    topology: Topology | None = machine.node.core.topology
    return len(topology.members) if topology is not None else 0


def _state(cluster: Cluster) -> str:
    first = next(iter(cluster.machines.values())).node.core
    return f"{first.version}, frozen {first.frozen}, serving {first.serving}, at {cluster.now // MS} ms"
