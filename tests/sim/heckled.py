"""A small cluster among hecklers: `python -m tests.sim nonsense`. What must hold is what everybody else is promised.

Some clients talk, and what they say and are told is what hecklers know: ids, cuts, versions, keys. Another one says nothing
that anybody hears, and what it was told has to be there in the end. Nodes are killed on the way, so that maps change. No
exception may leave a turn and no turn may be too long (`tests.sim.machine`, `tests.sim.costs`); each request is answered or
refused; afterwards nothing is locked or in doubt, no table of a node has grown, copies are equal, and whoever comes is
served.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence, Sized
from typing import Any, get_args

import msgspec

from engine.client.calls import GetCall, PutCall
from engine.client.cuts import KeepCutCall, TakeCutCall
from engine.client.scans import CountCall, ScanCall
from engine.messages import KINDS, Halt, Leave, Message
from engine.messages.cluster import Order
from engine.node.node import Node
from tests.sim.clients import Client
from tests.sim.costs import Free, Modelled
from tests.sim.damage import Damage
from tests.sim.draws import Draws
from tests.sim.heckling import Heckler, Liar, talk
from tests.sim.network import MS
from tests.sim.oracles import look_inside, unsettled, watch
from tests.sim.run import draw_settings
from tests.sim.transactions import SimTransaction
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant, World

NAMES = ["n1", "n2", "n3"]
TALKED_OF = ("a", "b")
HONEST = "honest"
TIMEOUT_NS = 20 * SECOND
REST_NS = 120 * SECOND
FORGET_NS = 45 * SECOND
"""Longer than every lease, and than anybody waits for a vote."""
GROWS = ("Sessions._heard", "Sessions._nothing")
"""Who was heard of lately; for twice as long as answers are kept."""
SPARE = 40
"""Tables have bounds of their own, and are smaller than those; so many things are in one at once that nobody asked for."""


class Heckled:
    """One such cluster."""

    def __init__(self, seed: int, *, plant: Plant | None = None) -> None:
        draws = Draws(f"heckled {seed}")
        settings = msgspec.structs.replace(draw_settings(draws.of("options"), len(NAMES)), backups=2, anti_entropy_ms=0)
        self.world = World(draws, settings, plant=plant, costs=Modelled())
        for name in NAMES:
            self.world.add_machine(name)
        self.oracles = watch(self.world)
        self.draw = draws.of("when")
        self.stopping = False
        self.kept: dict[bytes, bytes] = {}  # that the honest client was told is written
        self.world.form(NAMES)
        self.talkers = [self.world.add_client(f"talker {at}") for at in range(3)]
        self.honest = self.world.add_client(HONEST)
        self.heckler = Heckler(self.world, draws.of("heckler"), self.talkers)

    def __enter__(self) -> Heckled:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.__exit__()

    def play(self, times: int) -> None:
        """The whole of it, with so many interruptions."""
        world = self.world
        self._begin_to_talk("first")
        world.run_for(2 * SECOND)
        self._fall_silent()
        world.run_for(FORGET_NS)
        before = {machine.name: sizes(machine.node) for machine in world.running if machine.node is not None}
        self._begin_to_talk("then")
        for _ in range(times):
            self._interrupt()
        self._fall_silent()
        world.run_for(FORGET_NS)
        self._come_to_rest()
        if left := self.heckler.unanswered():
            raise Violation("answered", f"{len(left)} requests were neither answered nor refused, such as {left[0]}")
        self._compare(before)
        self._serve()
        self._come_to_rest()  # a commit is told before its outcome is everywhere
        look_inside(world)
        self.oracles.finish(world)

    def _come_to_rest(self) -> None:
        world = self.world
        world.run_for(SECOND)
        if not world.run_while(lambda: bool(unsettled(world)), at_most=REST_NS, look_every=SECOND):
            raise Violation("liveness", f"among hecklers the cluster does not come to rest: {unsettled(world)}")

    def _interrupt(self) -> None:
        world, draw = self.world, self.draw
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            self.heckler.heckle()
        world.run_for(draw.choice((0, 0, 1, 1, 2, 10, 50)) * MS)
        if draw.random() < 0.01:
            machine = draw.choice(world.running)
            machine.stop("killed", process_only=True)
            world.run_for(draw.choice((0, 50, 2_000)) * MS)
            assert machine.start(), machine.why

    # Clients.

    def _begin_to_talk(self, when: str) -> None:
        self.stopping = False
        for client in self.talkers:
            client.spawn(talk(client, self.world.draws.of(f"{client.name} {when}"), TALKED_OF, lambda: self.stopping))
        self.honest.spawn(self._keep_writing())

    def _fall_silent(self) -> None:
        self.stopping = True
        clients = (*self.talkers, self.honest)
        if not self.world.run_while(lambda: any(not t.done for c in clients for t in c.tasks), at_most=REST_NS):
            raise Violation("liveness", "a client among hecklers waits for ever")
        if failure := next((task.failure for task in self.honest.tasks if task.failure is not None), None):
            raise Violation("client", f"a client beside hecklers was told {failure!r}")

    async def _keep_writing(self) -> None:
        client = self.honest
        while not self.stopping:
            key, value = b"h%d" % self.draw.randrange(20), b"%d" % self.draw.randrange(1 << 30)
            await client.call(PutCall(client.new_tx(), HONEST, [key], [value]), timeout_ns=TIMEOUT_NS)
            self.kept[key] = value
            await client.pause(30 * MS)

    def _serve(self) -> None:
        """Whoever comes now is served."""
        client = self.world.add_client("last")
        task = client.spawn(self._use(client))
        if not self.world.run_while(lambda: not task.done, at_most=REST_NS) or task.failure is not None:
            raise Violation("liveness", f"after hecklers a client is not served: {task.failure!r}")

    async def _use(self, client: Client) -> None:
        keys = sorted(self.kept)
        got = await client.call(GetCall(HONEST, keys), timeout_ns=TIMEOUT_NS)
        found = {key: value for key, (_, _, value) in zip(keys, got.values, strict=True)}
        if found != self.kept:
            raise Violation("story", f"a client beside hecklers has written {self.kept}, and finds {found}")
        counted = await client.call(CountCall(HONEST), timeout_ns=TIMEOUT_NS)
        looked = await client.call(ScanCall(HONEST, b"", None, 100), timeout_ns=TIMEOUT_NS)
        if not counted.counted == len(looked.rows) == len(keys):
            raise Violation(
                "story", f"{len(keys)} rows were written, {counted.counted} counted, {len(looked.rows)} scanned"
            )
        holder = bytes([7]) * 16
        taken = await client.call(TakeCutCall(holder), timeout_ns=TIMEOUT_NS)
        for namespace in TALKED_OF:
            tx = SimTransaction(client, timeout_ns=TIMEOUT_NS)
            touched = [b"k%d" % at for at in range(12)]
            await tx.get(namespace, touched)
            await tx.put(namespace, dict.fromkeys(touched, b"after"))
            await tx.commit()
        past = await client.call(GetCall(HONEST, keys, cut=taken.cut), timeout_ns=TIMEOUT_NS)
        if [value for _, _, value in past.values] != [self.kept[key] for key in keys]:
            raise Violation("story", "what was written beside hecklers cannot be read at a cut")
        await client.call(KeepCutCall(taken.cut, holder, over=True), timeout_ns=TIMEOUT_NS)

    # Tables.

    def _compare(self, before: dict[str, Counter[str]]) -> None:
        """No table has grown that was asked into being."""
        for machine in self.world.running:
            assert machine.node is not None
            now = sizes(machine.node)
            grown = {name: n for name, n in now.items() if n > before[machine.name][name] + SPARE and name not in GROWS}
            if grown:
                raise Violation("memory", f"{machine.name} keeps of nonsense: {grown}")


def sizes(node: Node) -> Counter[str]:
    """How many things are in each table of all machines of a node, by class and attribute; but not what is its data."""
    found: Counter[str] = Counter()
    met: dict[int, object] = {}
    left: deque[object] = deque([node])
    while left:
        thing = left.popleft()
        for name, value in _attributes(thing):
            if isinstance(value, Sized) and isinstance(value, dict | list | deque | set):
                found[f"{type(thing).__name__}.{name}"] += len(value)
            elif _is_a_machine(value) and id(value) not in met:
                met[id(value)] = value
                left.append(value)
    return found


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    slots: Sequence[str] = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in (*getattr(thing, "__dict__", ()), *slots):
        yield name, getattr(thing, name, None)


def _is_a_machine(value: object) -> bool:
    room = type(value).__module__
    return room.startswith(("engine.", "rebalance.")) and not room.startswith(("engine.state", "rebalance.table"))


def play(seed: int, times: int, *, plant: Plant | None = None) -> Heckler:
    """One cluster among hecklers, from its beginning to its end; raises Violation."""
    with Heckled(seed, plant=plant) as heckled:
        heckled.play(times)
        return heckled.heckler


def lie(seed: int, times: int, kinds: Sequence[type[Message]], *, broken: bool = False) -> Liar:
    """A cluster in which members say what means nothing, and are killed now and then: none of that ends another one.

    Who lies about data, or about what was decided, is believed: so what is there in the end is not judged. Where lies are
    of one kind, and so no story that hangs together, the cluster comes to rest afterwards. `broken`: and in frames that are
    damaged, most of which nobody can read.
    """
    draws = Draws(f"lied to {seed}")
    settings = msgspec.structs.replace(draw_settings(draws.of("options"), len(NAMES)), backups=2, anti_entropy_ms=0)
    with World(draws, settings, costs=Free() if broken else Modelled()) as world:  # who hears millions of things takes long
        for name in NAMES:
            world.add_machine(name)
        world.form(NAMES)
        stopping, draw = list[bool](), draws.of("when")
        for at in range(3):
            client = world.add_client(f"talker {at}")
            client.spawn(talk(client, draws.of(client.name), TALKED_OF, lambda: bool(stopping)))
        liar = Liar(world, draws.of("liar"), kinds, broken=Damage(draws.of("damage")) if broken else None)
        world.run_for(SECOND)
        liar.lying = True
        for _ in range(times):
            liar.lie()
            world.run_for(draw.choice((0, 0, 1, 1, 2, 10, 50)) * MS)
            if draw.random() < 0.02:
                machine = draw.choice(world.running)
                machine.stop("killed", process_only=True)
                world.run_for(draw.choice((0, 50)) * MS)
                assert machine.start(), machine.why
        liar.lying = False
        stopping.append(True)
        world.run_for(5 * SECOND)
        if ended := [machine.name for machine in world.machines.values() if not machine.up]:
            raise Violation("life", f"{', '.join(ended)} ended by what others said")
        alone = len(kinds) == 1 and kinds[0] not in ORDERS
        if alone and not world.run_while(lambda: bool(unsettled(world)), at_most=REST_NS, look_every=SECOND):
            raise Violation("liveness", f"after lies the cluster does not come to rest: {unsettled(world)}")
        return liar


OBEYED = (Halt, Leave)
"""What an operator ordered, as a member passes it on, stops nodes: it is meant to."""
ORDERS: tuple[type, ...] = get_args(Order)
"""The same, of what the map is to be like: not every one leaves copies where they were."""
LIES = [kind for kind in KINDS if kind not in OBEYED]


def play_many(seeds: Sequence[int], times: int, *, lies: bool = False) -> int:
    """Several of them, and tell of each; 1 if one of them found something. `lies`: by members, and not by clients."""
    again = "python -m tests.sim nonsense" + (" --lies" if lies else "")
    failed = 0
    for seed in seeds:
        try:
            said: Counter[Any] = Counter()
            for kinds in [*([kind] for kind in LIES), LIES] if lies else []:
                said.update(lie(seed, times, kinds).kinds)
            if lies:
                said.update(lie(seed, times, LIES, broken=True).kinds)
            if not lies:
                said.update(play(seed, times).told)
            print(
                f"seed {seed}: nothing found; {', '.join(f'{k.__name__} {n:,}' for k, n in said.most_common())}", flush=True
            )
        except Violation as violation:
            failed += 1
            print(f"seed {seed}: {violation}\n  again: {again} --seeds {seed} --times {times}", flush=True)
    print(f"{len(seeds)} seeds, {failed} failed")
    return 1 if failed else 0
