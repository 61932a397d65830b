"""Clients and members that speak nonsense to a cluster: well formed, made of what they heard, and without a meaning.

A heckler hears what some clients ask and are answered, or what nodes say to each other, and says things of the same kinds
(`tests.sim.nonsense`). Whatever comes of that is its own business; what others are promised has to hold beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from engine import errors
from engine.client.calls import GetCall, KeepLocksCall, LockCall, PutCall, SwapCall, UnlockCall, Whereabouts
from engine.client.cuts import KeepCutCall, TakeCutCall
from engine.client.ends import StatusCall
from engine.client.scans import CountCall, ScanCall
from engine.messages import KINDS, Message, kind_of
from engine.protocol.requests import REQUESTS, Admin, Reply, Request
from engine.protocol.wire import decode_messages, decode_requests, frame
from engine.turn.events import Asked, ClientSeen, Received
from tests.sim.nonsense import Nonsense
from tests.sim.observer import Observer
from tests.sim.trace import FRAME_HEADER_BYTES
from tests.sim.transactions import SimTransaction
from wal.ids import SESSION_BYTES

if TYPE_CHECKING:
    from engine.turn.core import Core
    from tests.sim.clients import Client
    from tests.sim.damage import Damage
    from tests.sim.machine import Machine
    from tests.sim.world import World
    from wal.ids import NodeId, TxId

COMMANDS = (
    "status",
    "counters",
    "progress",
    "checkpoint",
    "namespaces",
    "locks",
    "transactions",
    "give-up",
    "refetch",
    "?",
)
"""What it may ask of an operator's: all others change or end the cluster, as they are meant to."""
SESSIONS = 3
ECHOED = 0.1
"""The share of what members say that a liar says again, and says otherwise."""


class Heckler:
    """Clients that ask nonsense. `heard`: the clients that it listens to, and in whose name it speaks."""

    def __init__(self, world: World, draw: Random, heard: Sequence[Client], commands: Sequence[str] = COMMANDS) -> None:
        self.world = world
        self.nonsense = Nonsense(draw)
        self.asked_of: dict[
            tuple[NodeId, int, int], dict[int, Request]
        ] = {}  # what is not answered, by node, life, session
        self.kinds: Counter[type[Request]] = Counter()  # what it asked
        self.told: Counter[type[Reply]] = Counter()  # and was answered
        self._draw = draw
        self._commands = commands
        self._sessions: dict[tuple[NodeId, int, int], int] = {}
        self._ids = 0
        for client in heard:
            client.listener = self._hear

    def _hear(self, said: Request | Reply) -> None:
        """A client asked something, or was answered."""
        self.nonsense.hear(said)
        for tx in ids_of(said):
            self.world.meaningless[tx] = None
            self.nonsense.know("sessions.0", tx[:SESSION_BYTES])

    # What it says.

    def heckle(self) -> None:
        """Ask something of some node."""
        running = [machine for machine in self.world.machines.values() if machine.up]
        if not running:
            return
        machine = self._draw.choice(running)
        request = self._request()
        session = self._session(machine, self._draw.randrange(SESSIONS))
        self.asked_of[machine.name, machine.boot, session][request.id] = request
        self.kinds[type(request)] += 1
        self.world.trace.add(self.world.now, "ask", "heckler", machine.name, request)
        self.world.meaningless |= dict.fromkeys(ids_of(request))
        machine.receive(Asked(session, request))

    def _request(self) -> Request:
        said = self.nonsense.say(self._draw.choice(REQUESTS))
        self._ids += 1
        said = msgspec.structs.replace(said, id=self._ids)  # so that it knows what was answered
        if isinstance(said, Admin) and said.command not in self._commands:
            said = msgspec.structs.replace(said, command=self._draw.choice(self._commands))
        (request,) = decode_requests(frame([said])[FRAME_HEADER_BYTES:])
        return request

    def _session(self, machine: Machine, number: int) -> int:
        key = machine.name, machine.boot, number
        session = self._sessions.get(key)
        if session is None:
            waiting: dict[int, Request] = {}

            def told(reply: Any) -> None:
                self.told[type(reply)] += 1
                assert waiting.pop(reply.id, None) is not None, f"{machine.name} answered what was not asked: {reply}"

            session = self._sessions[key] = machine.new_session(told)
            self.asked_of[machine.name, machine.boot, session] = waiting
            machine.receive(ClientSeen(session, "heckler", "heckler:1"))
        return session

    @property
    def asked_times(self) -> int:
        """How often it asked for anything."""
        return self.kinds.total()

    def unanswered(self) -> list[Request]:
        """What it asked of nodes that still live, and was neither answered nor refused, though it had no end."""
        living = {(machine.name, machine.boot) for machine in self.world.running}
        waits = [waiting.values() for (name, boot, _), waiting in self.asked_of.items() if (name, boot) in living]
        return [request for some in waits for request in some if not getattr(request, "within_ms", 0)]


def ids_of(said: object) -> list[TxId]:
    """The ids under which something is asked."""
    named = (getattr(said, "tx", None), getattr(said, "owner", None))
    return [tx for tx in named if tx]


async def heckle(heckler: Heckler, client: Client, pause_ns: int, stop: Callable[[], bool]) -> None:
    """Ask again and again."""
    while not stop():
        heckler.heckle()
        await client.pause(pause_ns)


class Liar(Observer):
    """Members whose words mean nothing: by the name and the life of one that runs, to another one.

    `broken`: they are damaged on top of that. What cannot be read then ends their conversation, and is `refused`.
    """

    def __init__(
        self, world: World, draw: Random, kinds: Sequence[type[Message]] = KINDS, *, broken: Damage | None = None
    ) -> None:
        self.world = world
        self.nonsense = Nonsense(draw)
        self.kinds: Counter[type[Message]] = Counter()  # what it said
        self.refused = 0
        self.lying = False
        self._kinds = kinds
        self._broken = broken
        self._draw = draw
        world.watch([self])

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """A node said something to another one: some of it is said again at once, and means something else."""
        self.nonsense.hear(message)
        if self.lying and type(message) in self._kinds and self._draw.random() < ECHOED:
            self.world.after(0, self._say, src, dst, self.nonsense.garble(message, self._draw.choice((0, 1, 1, 2))))

    def lie(self) -> None:
        """Say something to some node."""
        running = [machine for machine in self.world.machines.values() if machine.up]
        if len(running) < 2:
            return
        src, dst = self._draw.sample(running, 2)
        self._say(src.name, dst.name, self.nonsense.say(self._draw.choice(self._kinds)))

    def _say(self, src: NodeId, dst: NodeId, said: msgspec.Struct) -> None:
        speaker, hearer = self.world.machines[src], self.world.machines[dst]
        if not (speaker.up and hearer.up):
            return
        assert speaker.node is not None
        core, payload = speaker.node.core, frame([said])[FRAME_HEADER_BYTES:]
        try:
            messages = decode_messages(payload if self._broken is None else self._broken(payload))
        except errors.ProtocolError:
            self.refused += 1
            self.world.network.reset((src, dst))
            return
        for message in messages:
            self._deliver(src, hearer, core, message)

    def _deliver(self, src: NodeId, hearer: Machine, core: Core, message: Message) -> None:
        self.kinds[type(message)] += 1
        self.world.say(f"{src} lies to {hearer.name}: {kind_of(message)}")
        hearer.receive(Received(src, core.allocation, core.incarnation, message))


# Something to listen to.


async def talk(client: Client, rng: Random, namespaces: Sequence[str], stop: Callable[[], bool]) -> None:
    """Do a bit of everything that clients do, whatever comes of it."""
    while not stop():
        with suppress(errors.Error, ValueError):  # somebody spoke in its name
            await rng.choice(_TALKS)(client, rng, rng.choice(namespaces))
        await client.pause(rng.randrange(40) * 1_000_000)


TIMEOUT_NS = 2_000_000_000


def _keys(rng: Random) -> list[bytes]:
    return [b"k%d" % at for at in rng.sample(range(12), rng.choice((1, 2, 3)))]


async def _write(client: Client, rng: Random, namespace: str) -> None:
    keys, ttl_ms = _keys(rng), rng.choice((0, 0, 50, 5_000))
    values = [rng.choice((None, b"v", b"w" * 40)) if not ttl_ms else b"x" for _ in keys]
    await client.call(PutCall(client.new_tx(), namespace, keys, values, ttl_ms), timeout_ns=TIMEOUT_NS)


async def _swap(client: Client, rng: Random, namespace: str) -> None:
    call = SwapCall(client.new_tx(), namespace, _keys(rng)[0], rng.choice(("absent", "present", "always")), new=b"5")
    await client.call(call, timeout_ns=TIMEOUT_NS)


async def _read(client: Client, rng: Random, namespace: str) -> None:
    await client.call(GetCall(namespace, _keys(rng)), timeout_ns=TIMEOUT_NS)


async def _look(client: Client, rng: Random, namespace: str) -> None:
    if rng.random() < 0.2:
        await client.call(CountCall(namespace), timeout_ns=TIMEOUT_NS)
        return
    scan = ScanCall(namespace, b"", None, rng.choice((1, 3, 100)), reverse=rng.random() < 0.3, unlocked=rng.random() < 0.3)
    await client.call(scan, timeout_ns=TIMEOUT_NS)


async def _transact(client: Client, rng: Random, namespace: str) -> None:
    tx = SimTransaction(
        client, optimistic=rng.random() < 0.5, timeout_ns=TIMEOUT_NS, lock_timeout_ms=200, lasts_ns=2 * TIMEOUT_NS
    )
    keys = _keys(rng)
    await tx.get(namespace, keys)
    await client.pause(rng.randrange(30) * 1_000_000)
    if rng.random() < 0.3:
        await tx.scan(namespace, b"", b"z")
    if rng.random() < 0.7:
        await tx.put(namespace, dict.fromkeys(keys[:2], b"t"))
    choice = rng.random()
    if choice < 0.15 and tx.written:
        await tx.prepare()
        await client.call(StatusCall(tx.tx, rng.randrange(4)), timeout_ns=TIMEOUT_NS)
    elif choice < 0.3:
        await tx.rollback()
    else:
        await tx.commit()


async def _hold(client: Client, rng: Random, namespace: str) -> None:
    owner, keys = client.new_owner(), _keys(rng)
    held = [(namespace, key) for key in keys]
    await client.call(LockCall(owner, namespace, keys, 100, shared=rng.random() < 0.5), timeout_ns=TIMEOUT_NS)
    await client.pause(rng.randrange(50) * 1_000_000)
    if rng.random() < 0.5:
        await client.call(KeepLocksCall(owner, Whereabouts(held)), timeout_ns=TIMEOUT_NS)
    if rng.random() < 0.7:
        await client.call(UnlockCall(owner, Whereabouts(held)), timeout_ns=TIMEOUT_NS)


async def _remember(client: Client, rng: Random, namespace: str) -> None:
    readers = [(rng.randbytes(16), TakeCutCall(b"")) for _ in range(rng.choice((1, 2)))]
    for holder, taken in readers:
        taken.holder = holder
        await client.call(taken, timeout_ns=TIMEOUT_NS)
    holder, taken = readers[0]
    await client.call(GetCall(namespace, _keys(rng), cut=taken.cut), timeout_ns=TIMEOUT_NS)
    await client.call(ScanCall(namespace, b"", None, rng.choice((1, 100)), cut=taken.cut), timeout_ns=TIMEOUT_NS)
    others = [(other.cut, name) for name, other in readers[1:]]
    for over in (False, rng.random() < 0.5):  # else it is forgotten, and found when its lease is over
        await client.call(KeepCutCall(taken.cut, holder, over=over, others=others), timeout_ns=TIMEOUT_NS)


_TALKS = (_write, _write, _swap, _read, _look, _transact, _transact, _hold, _remember)
