"""`python -m tests.sim bytecodes`: how much the interpreter does for a put, a get and a transaction, on all nodes together.

A figure in seconds is another one each time, and on a shared machine by half. This one is the same in every run of the same
Python, so that two commits can be held against each other: the bytecodes that three nodes execute in their turns while
many clients ask at once. What a client does is not in it, nor what is done in C: hashing, encoding, the store's trees.
Beside it: how many messages the nodes say to each other for it, and how many records they write.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count as count_up
from types import CodeType, FrameType
from typing import Any, TypeAlias

from engine.client.calls import GetCall, PutCall
from engine.client.ends import CommitCall
from engine.messages import kind_of
from engine.node.node import Node
from engine.turn.effects import Effects
from engine.turn.events import Event
from engine.turn.settings import Settings
from rebalance.ports import MS
from tests.sim.calls import place_of
from tests.sim.clients import Client
from tests.sim.draws import Draws
from tests.sim.world import SECOND, Plant, World
from wal.ids import partition_of
from wal.records import kind_of as record_kind

PARTITIONS = 64
CLIENTS = 32
OWN_KEYS = 50
TURN_NS = MS
PATIENCE_NS = 600 * SECOND
VALUE = b"v" * 100


@dataclass
class Executed:
    """A world's costs (`tests.sim.costs`): each turn takes as long, and is looked at while `counting`."""

    by: Counter[CodeType] = field(default_factory=Counter)
    turns: int = 0
    counting: bool = False
    said: Counter[str] = field(default_factory=Counter)
    logged: Counter[str] = field(default_factory=Counter)

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take a turn, and count what it executes."""
        if not self.counting:
            return node.turn(now, events), TURN_NS
        self.turns += 1
        before = sys.gettrace()  # of whoever measures what tests reach
        collects = gc.isenabled()
        gc.disable()  # as in a node; others in this process may have something called whenever it collects
        sys.settrace(self._entered)
        try:
            effects = node.turn(now, events)
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()
        for targets, message in (*effects.early, *effects.send):
            self.said[kind_of(message)] += len(targets)
        self.logged.update(record_kind(record) for record in effects.log)
        return effects, TURN_NS

    def begin(self) -> None:
        """Count from here on."""
        for counter in (self.by, self.said, self.logged):
            counter.clear()
        self.turns, self.counting = 0, True

    def _entered(self, frame: FrameType, _event: str, _about: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._executed

    def _executed(self, frame: FrameType, event: str, _about: object) -> Callable[..., Any]:
        if event == "opcode":
            self.by[frame.f_code] += 1
        return self._executed


@dataclass(frozen=True)
class Counted:
    """What one operation costs, on the average: bytecodes, turns, and bytecodes by the function that executes them.

    `said` and `logged`: messages for one receiver, and records, by kind.
    """

    bytecodes: float
    turns: float
    by: list[tuple[str, float]]
    said: dict[str, float]
    logged: dict[str, float]


Ask: TypeAlias = Callable[[Client, int, int], Awaitable[object]]
"""What a client, which is the how manieth, asks for the how manieth time."""


def _key(client: int, at: int) -> bytes:
    return b"k%d.%d" % (client, at % OWN_KEYS)


def _put(client: Client, number: int, at: int) -> Awaitable[object]:
    return client.call(PutCall(client.new_tx(), "a", [_key(number, at)], [VALUE]), timeout_ns=PATIENCE_NS)


def _get(client: Client, number: int, at: int) -> Awaitable[object]:
    return client.call(GetCall("a", [_key(number, at)]), timeout_ns=PATIENCE_NS)


def _commit(client: Client, number: int, at: int) -> Awaitable[object]:
    tx = client.new_tx()
    keys = [_key(number, 2 * at), _key(number, 2 * at + 1)]
    writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("a", keys, [VALUE, VALUE])]
    call = CommitCall(tx, tx, optimistic=True, writes=writes, locks=[], reads=[])
    return client.call(call, timeout_ns=PATIENCE_NS)


def _commit_in_one(client: Client, number: int, at: int) -> Awaitable[object]:
    """The same where both keys are of one partition, and nobody needs to vote."""
    first = _key(number, at)
    beside = (b"k%d.%d.%d" % (number, at % OWN_KEYS, other) for other in count_up())
    second = next(key for key in beside if partition_of(key, PARTITIONS) == partition_of(first, PARTITIONS))
    tx = client.new_tx()
    writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("a", [first, second], [VALUE, VALUE])]
    call = CommitCall(tx, tx, optimistic=True, writes=writes, locks=[], reads=[])
    return client.call(call, timeout_ns=PATIENCE_NS)


OPERATIONS: dict[str, Ask] = {
    "put": _put,
    "get": _get,
    "transaction of two keys": _commit,
    "transaction in one partition": _commit_in_one,
}


def count(each: int = 20, clients: int = CLIENTS, *, plant: Plant | None = None) -> dict[str, Counted]:
    """What each operation costs when every client asks for it `each` times, one after the other."""
    executed = Executed()
    settings = Settings(cluster="sim", partitions=PARTITIONS, backups=2)
    found: dict[str, Counted] = {}
    with World(Draws(1), settings, costs=executed, plant=plant) as world:
        names = ["n1", "n2", "n3"]
        for name in names:
            world.add_machine(name)
        world.form(names)
        asking = [world.add_client(f"c{number}") for number in range(clients)]
        _ask_all(world, asking, _put, OWN_KEYS // 5)  # the map is known, most keys are there
        for what, ask in OPERATIONS.items():
            executed.begin()
            _ask_all(world, asking, ask, each)
            executed.counting = False
            done = each * clients
            by: Counter[str] = Counter()
            for code, times in executed.by.items():
                by[f"{place_of(code.co_filename)}:{code.co_name}"] += times
            spread = [(name, times / done) for name, times in by.most_common()]
            said, logged = ({kind: n / done for kind, n in of.most_common()} for of in (executed.said, executed.logged))
            found[what] = Counted(executed.by.total() / done, executed.turns / done, spread, said, logged)
    return found


def _ask_all(world: World, asking: list[Client], ask: Ask, each: int) -> None:
    async def go(client: Client, number: int) -> None:
        for at in range(each):
            await ask(client, number, at)

    tasks = [client.spawn(go(client, number)) for number, client in enumerate(asking)]
    assert world.run_while(lambda: not all(t.done for t in tasks), at_most=PATIENCE_NS, look_every=10 * MS), "no answer"
    for task in tasks:
        assert task.failure is None, task.failure


def show(*, functions: int = 0, tell: Callable[[str], None] = print) -> int:
    """Print what each operation costs, and which functions most of it; 0."""
    for what, counted in count().items():
        tell(f"{what}: {counted.bytecodes:,.0f} bytecodes on three nodes, in {counted.turns:.2f} turns")
        for verb, kinds in (("say", counted.said), ("write", counted.logged)):
            each = ", ".join(f"{times:.2f} {kind}" for kind, times in kinds.items()) or "nothing"
            tell(f"  they {verb} {sum(kinds.values()):.2f}: {each}")
        for name, times in counted.by[:functions]:
            tell(f"  {times:8.1f} {name}")
    return 0
