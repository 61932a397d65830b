"""A stage for the stories of `stories`: a small calm world, a client, and messages that are lost or held by kind.

Partition 0 belongs to n1, then n2, then n3; partition 1 to n2, n3, n1; and so on. A story ends with `curtain`, where all
nodes are there again, come to rest, and their copies are compared; every oracle watches from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from engine.client.calls import GetCall, PutCall
from engine.client.ends import StatusCall
from engine.messages import KINDS as MESSAGES
from engine.messages import kind_of
from engine.turn.settings import Settings
from tests.conversations.in_turn import in_turn
from tests.sim.clients import Client, Task
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.network import MS, Rule
from tests.sim.oracles import compare_copies, look_inside, unsettled, watch
from tests.sim.planted.fault import replace
from tests.sim.transactions import SimTransaction
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant, World
from wal.ids import NodeId, TxId, partition_of

PARTITIONS = 4
NAMESPACE = "story"
SETTINGS = Settings(
    cluster="sim",
    partitions=PARTITIONS,
    backups=2,
    lock_lease_ms=2_000,
    lock_timeout_ms=500,
    in_doubt_ms=200,
    anti_entropy_ms=0,
    mutations_bytes=0,
    wal_segment_bytes=64 << 10,
    wal_total_bytes=4 << 20,
)
ANSWER_NS = 20 * SECOND
REST_NS = 12 * SECOND


def key(partition: int, number: int = 0) -> bytes:
    """A key of a partition; `number` tells several apart."""
    found = (b"k%d" % n for n in range(1 << 16) if partition_of(b"k%d" % n, PARTITIONS) == partition)
    for _ in range(number):
        next(found)
    return next(found)


Story = Callable[[Plant | None], None]
"""What is told to a cluster, with a fault or without; it raises Violation where a promise is broken."""


class Stories:
    """The stories of one module, by name."""

    def __init__(self) -> None:
        self.all: dict[str, Story] = {}

    def story(self, tell: Story) -> Story:
        """Note a story."""
        self.all[tell.__name__.replace("_", "-")] = tell
        return tell


def told(task: Task) -> bool:
    """Whether a client was told that what it asked is done."""
    return task.done and task.failure is None


class Stage:
    """A world and who acts in it. Used in a `with`."""

    def __init__(self, plant: Plant | None, *, nodes: int = 3, settings: Settings = SETTINGS, absent: int = 0) -> None:
        self.world = World(Draws("a story"), settings, affinity=in_turn, plant=plant)
        for number in range(1, nodes + absent + 1):
            self.world.add_machine(f"n{number}")
        self.oracles = watch(self.world)
        self.world.form([f"n{number}" for number in range(1, nodes + 1)])
        self.client = self.world.add_client("c1")

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.__exit__()

    def __getitem__(self, name: NodeId) -> Machine:
        return self.world.machines[name]

    # What clients do.

    def begin(self, doing: Coroutine[Any, Any, object], client: Client | None = None) -> Task:
        """Let a client do something, while the story goes on."""
        return (client or self.client).spawn(doing)

    def do(self, doing: Coroutine[Any, Any, object], client: Client | None = None) -> Any:
        """Let a client do something, and wait for the end of it."""
        task = self.begin(doing, client)
        if not self.world.run_while(lambda: not task.done, at_most=ANSWER_NS):
            raise Violation("liveness", f"no answer within {ANSWER_NS // SECOND} s")
        if task.failure is not None:
            raise Violation("client", f"a client was told {task.failure!r}")
        return task.result

    def begin_put(self, name: bytes, value: bytes | None) -> Task:
        """A put of which the story does not wait for the end."""
        return self.begin(self.client.call(PutCall(self.client.new_tx(), NAMESPACE, [name], [value]), timeout_ns=ANSWER_NS))

    def put(self, name: bytes, value: bytes | None, client: Client | None = None) -> None:
        """A put that is acknowledged."""
        who = client or self.client
        self.do(who.call(PutCall(who.new_tx(), NAMESPACE, [name], [value]), timeout_ns=ANSWER_NS), who)

    def begin_get(self, name: bytes, client: Client | None = None) -> Task:
        """A read of which the story does not wait for the end."""
        who = client or self.client
        return self.begin(_read(who, name), who)

    def get(self, name: bytes, client: Client | None = None) -> bytes | None:
        """A read."""
        who = client or self.client
        held: bytes | None = self.do(_read(who, name), who)
        return held

    def another(self, *, without: Sequence[NodeId] = ()) -> Client:
        """Another client, which knows nothing of connections to nodes that are gone, and does not reach some."""
        name = f"c{len(self.world.clients) + 1}"
        self.world.network.cut(name, [pair for node in without for pair in ((name, node), (node, name))])
        return self.world.add_client(name)

    def status(self, tx: TxId, partition: int, client: Client) -> str:
        """How a transaction ended."""
        call = StatusCall(tx, partition)
        self.do(client.call(call, timeout_ns=ANSWER_NS), client)
        return call.outcome

    def transaction(self, *, optimistic: bool = False) -> SimTransaction:
        """A transaction of the client."""
        return SimTransaction(self.client, optimistic=optimistic, timeout_ns=ANSWER_NS)

    # What happens to messages and nodes.

    def lose(self, kind: str, sender: str = "", receiver: str = "", *, partition: int | None = None) -> Rule:
        """Lose all messages of a kind (about a partition), until `end`; of what is settled also those about many copies."""
        kinds = (kind, "all-settled") if kind == "settled" and partition is None else (kind,)

        def matches(src: str, dst: str, said: object) -> bool:
            if said.__class__ not in MESSAGES or (sender and src != sender) or (receiver and dst != receiver):
                return False
            return kind_of(said) in kinds and partition in (None, getattr(said, "partition", None))

        rule = Rule(kind, matches, drop=True)
        self.world.network.rules.append(rule)
        return rule

    def says_each(self, name: NodeId) -> None:
        """This node says of each copy by itself that it is settled, as it does to a primary of an older version."""
        node = self[name].node
        assert node is not None
        replace(node.demander.settling, "may_say_together", lambda _primary, _may: None)

    def end(self, *rules: Rule) -> None:
        """These messages pass again."""
        self.world.network.release(rules, [])

    def power_cut(self, *names: NodeId) -> None:
        """These nodes lose what was not synced."""
        for name in names:
            self[name].stop("power cut", calls=0)

    def start(self, *names: NodeId) -> None:
        """These nodes come back."""
        for name in names:
            if not self[name].start():
                raise Violation("recovery", f"{name} does not start: {self[name].why}")

    def wait(self, ms: int) -> None:
        """Time passes."""
        self.world.run_for(ms * MS)
        self.oracles.look(self.world)

    def succeeded(self, doing: Task, written: bytes, *lost: Rule) -> None:
        """n1 loses its power, n2 leads partition 0 after it, and has what a client was told by then that n1 wrote."""
        acknowledged = told(doing)
        self.power_cut("n1")
        self.client.die()
        self.end(*lost)
        self.until(lambda: self.primary(0, "n2"), "n2 is primary of partition 0")
        found = self.get(key(0), self.another())
        self.must(found == written or not acknowledged, f"an acknowledged write is read; found {found!r}")

    def left_out(self, name: NodeId) -> None:
        """Wait until the others go on without a node."""

        def gone() -> bool:
            newest = self.world.newest()
            return newest is not None and newest.member(name) is None

        self.until(gone, f"{name} is left out")

    def listed(self, name: NodeId) -> bool:
        """Whether the newest map lists a node as it runs now."""
        newest, node = self.world.newest(), self[name].node
        member = newest.member(name) if newest is not None else None
        return member is not None and node is not None and member.incarnation == node.core.incarnation

    def until(self, holds: Callable[[], bool], what: str, *, look_every: int = 10 * MS) -> None:
        """Wait for something that the story needs."""
        if not self.world.run_while(lambda: not holds(), at_most=REST_NS, look_every=look_every):
            raise Violation("story", f"in vain waited for: {what}; {unsettled(self.world)}")
        self.oracles.look(self.world)

    def primary(self, partition: int, name: NodeId) -> bool:
        """Whether a node serves a partition."""
        node = self[name].node
        return self[name].up and node is not None and bool(node.core.local) and node.core.local[partition].active

    def must(self, holds: bool, what: str) -> None:
        """What a user was promised."""
        if not holds:
            raise Violation("story", what)

    def rest(self, *, at_most: int = REST_NS) -> None:
        """Nothing is wrong any more, and the cluster comes to rest."""
        world = self.world
        world.network.heal()
        self.end(*world.network.rules)
        for machine in world.machines.values():
            if machine.boot and not machine.up:
                self.start(machine.name)
                self.oracles.look(world)
        if not world.run_while(lambda: bool(unsettled(world)), at_most=at_most):
            raise Violation("liveness", f"the cluster does not come to rest: {unsettled(world)}")

    def compare(self) -> None:
        """All copies that the map names are equal now."""
        self.oracles.look(self.world)
        look_inside(self.world)
        compare_copies(self.world)

    def curtain(self, *, at_most: int = REST_NS) -> None:
        """The cluster comes to rest, and is looked at."""
        self.rest(at_most=at_most)
        self.compare()
        self.oracles.finish(self.world)


async def _read(client: Client, name: bytes) -> bytes | None:
    call = await client.call(GetCall(NAMESPACE, [name]), timeout_ns=ANSWER_NS)
    held: bytes | None = call.values[0][2]
    return held
