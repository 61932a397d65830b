"""The stage of one story: its world, its clients, what they do by name, what is held, and how time passes.

Time passes only where a statement says or implies it: `run`, `settle`, and whatever waits for an answer. A statement
that waits goes on 20 ms (and a hundred times the latency beyond the default) after the answer, so that what follows an
answer has arrived, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from rebalance.affinity import assign
from tests.conversations.names import key_in
from tests.sim.clients import Client
from tests.sim.draws import Draws
from tests.sim.machine import Machine, Speed
from tests.sim.network import MS, Weather
from tests.sim.oracles import watch
from tests.sim.scenario.holds import Hold
from tests.sim.scenario.knobs import Shape, ring
from tests.sim.scenario.language import Statement, duration, unknown
from tests.sim.scenario.matching import Batches, Wanted, matches
from tests.sim.scenario.operations import Ledger, Operation
from tests.sim.scenario.watch import Awaited, Logged, Supplies
from tests.sim.vault import Vault
from tests.sim.violation import NOTHING, About
from tests.sim.world import SECOND, World
from tests.support.memory_disk import MemoryDisk
from tests.support.probes import listen_here
from wal.ids import DECISIONS, Fragment, Namespace, NodeId, TxId, check_name

CLIENT = "client"
"""The client that is always there."""
TIMEOUT_NS = 10 * SECOND
BREATH_NS = 20 * MS
HELD_BACK_NS = 300 * MS
"""A statement waits so long after one of its own messages was held back."""
HELD_PATIENCE_NS = 5 * SECOND
"""It waits so long at most while anything is held back: what it needs may hang on that in a way that does not show."""
SETTLE_NS = 120 * SECOND
PATIENCE = ("suspicion_ms", "exchange_retry_ms", "in_doubt_ms", "exchange_drain_ms", "sync_interval_ms")
"""How long nodes wait before they do something by themselves."""
KEYS_MAX = 100_000


class Unmet(Exception):
    """The story did not go as it says: exit code 1."""

    def __init__(self, statement: Statement, expected: str, found: str, about: About = NOTHING) -> None:
        super().__init__(f"{statement.where}: expected {expected}\n    found {found}")
        self.about = about


class Stage:
    """Everything that a statement may need. Used in a `with`."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.world = World(Draws(shape.seed), shape.settings, affinity=ring if shape.ring else assign)
        self.world.network.weather = Weather(delay=shape.latency_ns)
        self.batches, self.supplies, self.records = Batches(), Supplies(), Logged()
        self.reached: Counter[str] = Counter()
        self.ledger = Ledger()
        self.operations: dict[str, Operation] = {}
        self.namespaces: dict[Namespace, None] = {DECISIONS: None}
        self.where = ""  # the statement that is being done
        self.expectations = 0
        self.coming: list[str] = []  # names that later statements will give
        self.images: dict[NodeId, tuple[str, MemoryDisk, Vault]] = {}
        self.cuts = 0
        self.due = 0  # when the last thing happens that the story has set a time for
        self._reserved: dict[str, TxId] = {}
        self._keys: dict[Fragment, list[str]] = {}  # what the story calls the keys that it wrote, and did not delete
        self._made: Counter[tuple[Namespace, int, str]] = Counter()
        self._caught: list[tuple[int, object]] = []
        self._deaf: Callable[[], None] | None = None
        self.oracles = watch(self.world)
        self.world.watch([self.batches, self.supplies, self.records])
        for name in shape.nodes:
            self.add_machine(name)

    def __enter__(self) -> Stage:
        self._deaf = listen_here(lambda name: self.reached.update((name,)))
        return self

    def __exit__(self, *_: object) -> None:
        if self._deaf is not None:
            self._deaf()
        self.world.__exit__()

    def open(self) -> None:
        """Form the cluster, and let a client come."""
        self.world.form(self.shape.nodes)
        self.client(CLIENT)
        self.world.run_for(BREATH_NS)

    # Who and what.

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.shape.settings.partitions

    def add_machine(self, name: NodeId) -> Machine:
        """A machine that is not started."""
        settings = self.shape.settings
        if name in self.shape.domains:
            settings = msgspec.structs.replace(settings, domain=self.shape.domains[name])
        return self.world.add_machine(name, settings=settings, speed=Speed(sync=self.shape.fsync_ns), lmdb=self.shape.lmdb)

    def add_new(self, statement: Statement, name: str) -> Machine:
        """A machine that nobody knew of."""
        try:
            check_name("node", name)
        except ValueError as error:
            raise statement.error(str(error)) from None
        return self.add_machine(name)

    def machine(self, statement: Statement, name: str) -> Machine:
        """A machine by its name."""
        return self.world.machines[self.known(statement, name, "node", list(self.world.machines))]

    def client(self, name: str) -> Client:
        """The client of this name; one that is called like a node lives on it."""
        known = self.world.clients.get(name)
        if known is not None and known.alive:
            return known
        if known is not None:
            del self.world.clients[name]
        return self.world.add_client(name, host=self.world.machines.get(name))

    def client_for(self, statement: Statement) -> Client:
        """Who does what the statement says: `from=`, or the client that is always there."""
        name = statement.option("from", CLIENT)
        return self.client(self.known(statement, name, "client", [*self.world.clients, *self.world.machines]))

    def operation(self, statement: Statement, name: str) -> Operation:
        """A transaction, write or read by its name."""
        return self.operations[self.known(statement, name, "transaction or operation", list(self.operations))]

    def tx(self, statement: Statement, name: str) -> TxId:
        """The id of a transaction, or of one that is yet to begin."""
        if name in self.operations:
            return self.operations[name].tx
        self.known(statement, name, "transaction or operation", [*self.operations, *self.coming])
        if name not in self._reserved:
            self._reserved[name] = self.client(CLIENT).new_tx()
        return self._reserved[name]

    @staticmethod
    def known(statement: Statement, name: str, what: str, names: list[str]) -> str:
        """`name`, if it is one of `names`; else an error that tells the nearest."""
        if name not in names:
            raise unknown(statement, name, what, names)
        return name

    def partition(self, statement: Statement, text: str) -> int:
        """A partition's number: `3` or `p3`."""
        digits = text.removeprefix("p")
        newest = self.world.newest()
        most = len(newest.placements) if newest is not None else self.partitions
        if not digits.isdigit() or int(digits) >= most:
            raise statement.error(f"{text!r} is no partition: expected 0 to {most - 1}")
        return int(digits)

    def fragment(self, statement: Statement, text: str) -> Fragment:
        """A fragment: `acc/0`."""
        namespace, slash, number = text.rpartition("/")
        if not slash:
            raise statement.error(f"{text!r} is no fragment: expected namespace/partition, such as acc/0")
        return self.namespace(statement, namespace), self.partition(statement, number)

    def namespace(self, statement: Statement, name: str) -> Namespace:
        """A namespace that the story has written to."""
        return self.known(statement, name, "namespace", list(self.namespaces))

    def about(self, words: list[str]) -> About:
        """What a statement's words speak of, for its story."""
        txs, fragments, partitions, nodes = [], [], [], []
        for word in words:
            namespace, slash, number = word.rpartition("/")
            if slash and number.isdigit():
                fragments.append((namespace, int(number)))
            elif word in self.operations:
                txs.append(self.operations[word].tx)
            elif word.removeprefix("p").isdigit():
                partitions.append(int(word.removeprefix("p")))
            elif word in self.world.machines:
                nodes.append(word)
            elif word in self.namespaces:
                fragments.extend(name for name in self._keys if name[0] == word)
        if txs or fragments or partitions:
            nodes = []  # a node's whole life would bury the rest
        return About(tuple(txs), tuple(fragments), tuple(partitions), tuple(nodes))

    # Keys.

    def place(self, statement: Statement) -> tuple[Namespace, int | None]:
        """`ns=` and `partition=` of a statement."""
        namespace = statement.option("ns")
        try:
            check_name("namespace", namespace)
        except ValueError as error:
            raise statement.error(f"ns={namespace}: {error}") from None
        number = statement.option("partition")
        return namespace, self.partition(statement, number) if number else None

    def key(self, name: str, partition: int | None) -> bytes:
        """The key that a story calls `name`; with a partition, one of that name which falls into it."""
        return name.encode() if partition is None else key_in(partition % self.partitions, self.partitions, name)

    def place_of(self, namespace: Namespace, key: bytes) -> int:
        """The partition of a key, by the newest map."""
        newest = self.world.newest()
        assert newest is not None, "a story begins with a cluster"
        return newest.place(namespace, key)

    def new_keys(self, statement: Statement, prefix: str) -> list[bytes]:
        """The keys that a statement writes: `key=`, `keys=`, or `n=` new ones, round all partitions if it names none."""
        namespace, partition = self.place(statement)
        self.namespaces[namespace] = None
        names = self._named(statement)
        if names:
            for name in names:
                self._note(namespace, partition, name)
            return [self.key(name, partition) for name in names]
        made: list[bytes] = []
        for number in range(self._count(statement, 1)):
            where = partition if partition is not None else number % self.partitions
            self._made[(namespace, where, prefix)] += 1
            name = f"{prefix}{self._made[(namespace, where, prefix)]}"
            self._note(namespace, where, name)
            made.append(key_in(where, self.partitions, name))
        return made

    def old_keys(self, statement: Statement) -> list[bytes]:
        """The keys that a statement deletes: `key=`, `keys=`, or the `n=` oldest of the partition."""
        namespace, partition = self.place(statement)
        self.namespace(statement, namespace)
        names = self._named(statement)
        if not names:
            if partition is None:
                raise statement.error("which keys? Give key=, keys=, or partition= and n=")
            there = self._keys.get((namespace, partition), [])
            count = self._count(statement, 1)
            if count > len(there):
                raise statement.error(f"{namespace}/{partition} has {len(there)} keys that this story wrote, not {count}")
            names = there[:count]
        for name in names:
            here = self._keys.get((namespace, partition if partition is not None else -1), [])
            if name in here:
                here.remove(name)
        return [self.key(name, partition) for name in names]

    def _named(self, statement: Statement) -> list[str]:
        text = statement.option("keys") or statement.option("key")
        return [name for name in text.split(",") if name]

    def _note(self, namespace: Namespace, partition: int | None, name: str) -> None:
        names = self._keys.setdefault((namespace, partition if partition is not None else -1), [])
        if name not in names:
            names.append(name)

    def _count(self, statement: Statement, default: int) -> int:
        count = statement.number("n", default)
        if not 1 <= count <= KEYS_MAX:
            raise statement.error(f"n={count}: expected 1 to {KEYS_MAX}")
        return count

    # Operations.

    def begin(self, statement: Statement, name: str, client: Client) -> Operation:
        """A new operation; without a name it gets one, and must succeed."""
        if name in self.operations:
            raise statement.error(f"{name} is there already: expected a new name")
        tx = self._reserved.get(name) or client.new_tx()
        op = Operation(name or f"({len(self.operations) + 1})", client, tx)
        self.operations[op.name] = op
        self.world.trace.names.give(op.tx, op.name)
        return op

    def perform(self, statement: Statement, op: Operation, doing: Coroutine[Any, None, None]) -> None:
        """Do a step of an operation, and wait for its answer unless it is `async`."""
        task = op.run(doing)
        if "async" not in statement.words:
            self._await(lambda: task.done, op)
        self.breathe()
        if op.name.startswith("(") and "async" not in statement.words and (op.error is not None or op.busy):
            found = f"{type(op.error).__name__}: {op.error}" if op.error is not None else "no answer"
            raise Unmet(statement, f"{statement.verb} to be done (give it a name with as= if it may fail)", found)

    def _await(self, done: Callable[[], bool], op: Operation) -> None:
        """Until it is done, or waits for something that the story holds back."""
        world, began, looked = self.world, self.world.now, len(self._caught)
        end = began + (int(op.transaction.patience * SECOND) if op.transaction is not None else TIMEOUT_NS) + TIMEOUT_NS
        wanted = Wanted("any", op.tx)
        held_at: int | None = None
        while not done() and world.now < end:
            world.run_for(MS)
            for when, said in self._caught[looked:]:
                mine = matches(wanted, self.batches, "", "", said) or self._is_of(said, op)
                if mine and held_at is None:
                    held_at = when
            looked = len(self._caught)
            if held_at is not None and world.now >= held_at + HELD_BACK_NS:
                return
            if self.world.network.rules and world.now >= began + HELD_PATIENCE_NS:
                return

    def _is_of(self, said: object, op: Operation) -> bool:
        """Whether a request, or a reply, belongs to an operation."""
        asked, owner = self.batches.request_of(said), op.transaction.owner if op.transaction is not None else op.tx
        return op.tx in (getattr(said, "tx", None), getattr(asked, "tx", None)) or owner == getattr(said, "owner", None)

    def hold(self, text: str, wanted: Wanted, *, drop: bool, left: int | None) -> None:
        """From now on this is held back, or lost."""

        def caught(said: object) -> None:
            self._caught.append((self.world.now, said))

        self.world.network.rules.append(Hold(text, wanted, self.batches, drop=drop, left=left, caught=caught))

    def watch_for(self, wanted: Wanted, then: Callable[[], None]) -> None:
        """Do something as soon as a message of this kind was delivered, once."""
        self.world.watch([Awaited(self.world, wanted, self.batches, then)])

    # Time.

    def breathe(self) -> None:
        """A moment passes."""
        self.world.run_for(BREATH_NS + 100 * max(0, self.shape.latency_ns - 200_000))
        self.oracles.look(self.world)

    def settle(self) -> bool:
        """Run until nothing has changed for longer than anybody waits before doing something; False if it never ends."""
        settings = self.shape.settings
        quiet = SECOND + 2 * max(*(getattr(settings, n) for n in PATIENCE), 5 * settings.retransmit_ms) * MS
        end = max(self.world.now, self.due) + max(SETTLE_NS, 4 * quiet)
        seen, since = self._standing(), self.world.now
        while self.world.now < max(since + quiet, self.due):
            if self.world.now >= end:
                return False
            self.world.run_for(50 * MS)
            now = self._standing()
            if now != seen:
                seen, since = now, self.world.now
        self.oracles.look(self.world)
        return True

    def _standing(self) -> list[object]:
        """Where everything stands: what changes as long as something happens, but for what streams write."""
        found: list[object] = [[(op.name, op.answer, op.busy) for op in self.operations.values()]]
        streaming = any(op.streams and op.busy for op in self.operations.values())
        for machine in self.world.machines.values():
            node = machine.node
            if not machine.up or node is None:
                found.append((machine.name, machine.why))
                continue
            core = node.core
            found.append(
                (
                    machine.name,
                    machine.paused,
                    core.version,
                    core.frozen,
                    core.serving,
                    core.quorum,
                    node.demander.behind,
                    node.participant.in_doubt(),
                    0 if streaming else len(node.locks),
                    [hold.role for hold in core.local],
                    [(n, "" if streaming else str(f.counter), f.loading) for n, f in core.replica.fragments.items()],
                )
            )
        return found


def time_of(statement: Statement, text: str, what: str) -> int:
    """A time in ns."""
    try:
        return duration(text)
    except ValueError as error:
        raise statement.error(f"{what}: {error}") from None
