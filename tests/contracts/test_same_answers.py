"""One program, five doors: a node in this process and three servers, each by both forms, and a cluster that is simulated,
whose nodes lose their power between two steps. All give the same answers, and the same refusals, to the letter.

What names a transaction, a node, a version or a time differs, and is left out. Programs have good values and bad ones, in
the same places: what is refused by one must be refused by all, and must have done the same.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

import engine
from engine import aio
from engine.client.loop import Loop
from tests.contracts.conftest import SETTINGS
from tests.contracts.driven import Driven
from tests.contracts.test_bad_input import ANYTHING
from tests.sim.clients import Client
from tests.sim.planted.stage import SETTINGS as OF_THE_STAGE
from tests.sim.planted.stage import Stage

ANSWER_NS = 60_000_000_000
NODES = ("n1", "n2", "n3")
CODECS: dict[str, Any] = {"bytes": "bytes", "str": "str", "json": "json", "int": int, "tuple": engine.by_tuple("json")}
Step = tuple[str, tuple[Any, ...], dict[str, Any]]


class Simulated:
    """The loop of a client in a world, as `Driven` takes it: the world goes on until what is asked is done."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self._stage = stage
        self._client = client

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it, and tell what came of it."""
        task = self._client.spawn(work)
        assert self._stage.world.run_while(lambda: not task.done, at_most=ANSWER_NS, look_every=1_000_000)
        return task._task.result()


class Player:
    """One door, and what a program has open there."""

    def __init__(self, name: str, db: Any, stage: Stage | None = None) -> None:
        self.name = name
        self.db = db
        self.stage = stage

    def play(self, steps: Iterable[Step], name: str, codec: Any) -> list[str]:
        """What each step is answered. The namespace has a name of its own at each door: some lead to the same cluster."""
        self._called = f"{name}-{self.name.replace(' ', '-')}"
        self._outside = self.db.namespace(self._called, codec=codec)
        self._transaction: Any = None
        self._alone = False  # what is open locks what it reads
        self._snapshot: Any = None
        self._entries: dict[str, Any] = {}
        try:
            return [self._told(step) for step in steps]
        finally:
            self._end()

    def _end(self) -> None:
        if self._transaction is not None:
            self._transaction.rollback()
        if self._snapshot is not None:
            self._snapshot.__exit__(None, None, None)
        self._transaction = self._snapshot = None

    def _told(self, step: Step) -> str:
        try:
            return self._without_names(repr(self._plain(self._do(*step))))
        except (engine.Error, KeyError, TypeError) as error:  # TypeError: an application's function
            facts = (error.retryable, error.maybe_committed) if isinstance(error, engine.Error) else ()
            return self._without_names(f"{type(error).__name__}{facts}: {error}")

    def _do(self, where_and_what: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        where, _, what = where_and_what.partition(".")
        if (where == "out" or what == "transact") and self._alone:
            return "it would wait for what is open"
        if where == "power":
            if self.stage is not None and self._transaction is None and self._snapshot is None:
                self.stage.power_cut(what)
                self.stage.world.run_for(300_000_000)
                self.stage.start(what)
            return None
        if where == "db":
            return self._of_the_database(what, named)
        if where == "in":
            if self._transaction is None:
                return "there is none"
            place = self._transaction.namespace(self._outside)
        elif where == "then":
            if self._snapshot is None:
                return "there is none"
            place = self._snapshot.namespace(self._outside)
        else:
            place = self._outside
        entry = self._entries.get(repr(args[0])) if args else None  # of this key: another one's version says nothing
        if named.get("version"):
            named = named | {"version": getattr(entry, "version", None)}
        if "if_version" in named:
            if entry is None:
                return "there is none"
            named = named | {"if_version": entry.version}
        found = getattr(place, what)(*args, **named)
        if what == "get_entry":
            self._entries[repr(args[0])] = found
        if what == "expires_at":
            return found is not None
        return list(found) if isinstance(found, Iterator) else found

    def _of_the_database(self, what: str, named: dict[str, Any]) -> Any:
        if what == "begin":
            if self._transaction is not None:
                self._transaction.rollback()
                self._transaction, self._alone = None, False
            self._transaction = self.db.transaction(**named)
            self._alone = named["concurrency"] != "OPTIMISTIC"
        elif what == "snapshot":
            if self._snapshot is not None:
                self._snapshot.__exit__(None, None, None)
            self._snapshot = None
            self._snapshot = self.db.snapshot().__enter__()
        elif what == "transact":
            inside = self._outside._native if isinstance(self._outside, Driven) else self._outside
            return self.db.transact([kind(inside, *args, **more) for kind, args, more in named["operations"]])
        elif self._transaction is not None:
            ending, self._transaction, self._alone = self._transaction, None, False
            return getattr(ending, what)()
        return None

    def _without_names(self, said: str) -> str:
        """What is said, but for what each door names in its own way."""
        said = said.replace(self._called, "NS")
        said = re.sub(r"^(Conflict[^:]*): .*", r"\1", said)  # of several reasons, that of which is heard first
        said = re.sub(r"\b[0-9a-f]{32}(@\d+)?", "ID", said)
        said = re.sub(r"\bn-[0-9a-f]{6}\b|\bn[123]\b", "NODE", said)
        return re.sub(r"0x[0-9a-f]+|\bread \d+\.\d+, now \d+\.\d+|\bat \d+(\.\d+)?|\b\d+(\.\d+)? m?s\b", "SOME", said)

    def _plain(self, found: Any) -> Any:
        if isinstance(found, engine.Entry):
            return ("an entry", found.value)
        return ("a moment", found.value) if isinstance(found, engine.Aged) else found


@pytest.fixture(scope="module")
def doors(addresses: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Player]]:
    """All five."""
    loop = Loop()
    with (
        engine.open(tmp_path_factory.mktemp("same"), partitions=4, namespaces_max=10_000, durability="NONE") as embedded,
        engine.connect(addresses) as remote,
        Stage(None, settings=msgspec.structs.replace(OF_THE_STAGE, namespaces_max=SETTINGS.namespaces_max)) as stage,
    ):
        natives = [
            loop.run(aio.open(tmp_path_factory.mktemp("same"), partitions=4, namespaces_max=10_000, durability="NONE")),
            loop.run(aio.connect(addresses)),
        ]
        simulated: Any = Simulated(stage, stage.client)
        yield [
            Player("embedded", embedded),
            Player("cluster", remote),
            Player("embedded aio", Driven(natives[0], loop)),
            Player("cluster aio", Driven(natives[1], loop)),
            Player("simulated", Driven(stage.client.database, simulated), stage),
        ]
        stage.curtain()
        for native in natives:
            loop.run(native.close())
        loop.stop()


# Programs.

FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda held: held,
    lambda _: None,
    lambda _: "v",
    lambda _: 7,
    lambda held: held + held,
]
GOOD: dict[str, tuple[list[Any], list[Any]]] = {
    "bytes": ([b"a", b"ab", b"b", b"c"], [b"v", b"w", b"3", b"v" * 600]),
    "str": (["a", "ab", "b", "c"], ["v", "w", "3", "v" * 600]),
    "json": (["a", "ab", "b", "c"], [1, 2, "v", None, [1, 2], {"k": 1.5}]),
    "int": (["a", "ab", "b", "c"], [1, 2, -3, (1 << 63) - 1, 1 << 70]),
    "tuple": ([("a",), ("a", 1), ("b", -1.5), ("c", b"x")], [1, 2, "v", None]),
}
ODD = [given for given in ANYTHING if not isinstance(given, Iterator)]
READS = ("get", "get", "get_many", "scan", "scan")
EVERYWHERE = (
    *(
        *READS,
        "put",
        "put",
        "put",
        "put_many",
        "put_many",
        "delete",
        "delete",
        "put_if_absent",
        "replace",
        "compare_and_set",
    ),
    *("increment", "append", "get_and_put", "get_and_delete", "pop", "update", "get_entry", "get_entry", "put_if_version"),
    *("expires_at", "persist"),
)
ROOMS = {"out": (*EVERYWHERE, "delete_many", "count"), "in": EVERYWHERE, "then": (*READS, "count")}
STEPS = 60


class Author:
    """Writes programs over a namespace of one codec: one argument in ten is nonsense."""

    def __init__(self, codec: str, seed: int) -> None:
        self._chance = random.Random(f"{codec} {seed}")
        self._keys, self._values = GOOD[codec]
        self._open = self._optimistic = self._snapshot = False

    def program(self) -> list[Step]:
        """So many steps."""
        return [self._step() for _ in range(STEPS)]

    def _any(self, good: Sequence[Any], odd: Sequence[Any] = ODD) -> Any:
        return self._chance.choice(odd if self._chance.random() < 0.1 else good)

    def _key(self) -> Any:
        return self._any(self._keys)

    def _value(self) -> Any:
        return self._any(self._values)

    def _maybe(self, name: str, given: Callable[[], Any], share: float = 0.2) -> dict[str, Any]:
        return {name: given()} if self._chance.random() < share else {}

    def _ttl(self) -> dict[str, Any]:
        return self._maybe("ttl", lambda: self._any([None, 1000.0, 1e6], [0, -1, "3", True, 1e300, math.nan]))

    def _step(self) -> Step:
        kinds = ["power"] + ["db"] * (3 if self._open else 2) + ["then"] * (3 if self._snapshot else 0)
        if self._open:
            kinds += ["in"] * 12
        if not self._open or self._optimistic:  # else it would wait for what is open
            kinds += ["out"] * 8 + ["transact"]
        kind = self._chance.choice(kinds)
        if kind == "power":
            return f"power.{self._chance.choice(NODES)}", (), {}
        if kind == "db":
            return self._of_the_database()
        if kind == "transact":
            return "db.transact", (), {"operations": [self._operation() for _ in range(self._chance.randrange(4))]}
        what = self._chance.choice(ROOMS[kind])
        return f"{kind}.{what}", *self._arguments(what)

    def _of_the_database(self) -> Step:
        what = self._chance.choice(
            ["begin", "commit", "commit", "rollback"] if self._open else ["begin", "begin", "snapshot"]
        )
        named: dict[str, Any] = {}
        if what == "begin":
            named["concurrency"] = self._any(["PESSIMISTIC", "OPTIMISTIC"])
            named["isolation"] = self._any([None, "READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
            self._optimistic = named["concurrency"] == "OPTIMISTIC"
        self._open, self._snapshot = what == "begin", self._snapshot or what == "snapshot"
        return f"db.{what}", (), named

    def _operation(self) -> Any:
        kind = self._chance.choice([engine.Put, engine.Delete, engine.Check])
        value = [self._value()] if kind is engine.Put else []
        return kind, (self._key(), *value), self._maybe("if_value", self._value, 0.5)

    def _some(self, one: Callable[[], Any]) -> Any:
        return self._any([[one() for _ in range(self._chance.randrange(5))]])

    def _arguments(self, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        key, value = self._key, self._value
        if what in ("get_many", "delete_many"):
            return (self._some(key),), {}
        if what == "put_many":
            return (self._some(lambda: (key(), value())),), self._ttl()
        if what == "scan":
            named = self._maybe("prefix", key) | self._maybe("start", key) | self._maybe("end", key)
            return (), named | {"limit": self._any([None, None, 0, 1, 2, 100]), "reverse": self._any([False, True])}
        if what == "count":
            return (), {}
        if what in ("put", "put_if_absent"):
            return (key(), value()), self._ttl()
        if what == "delete":
            return (key(),), self._maybe("if_value", value, 0.3) or self._maybe("if_version", lambda: 1, 0.3)
        if what in ("replace", "compare_and_set"):
            return (key(), value(), value()), {}
        if what == "increment":
            return (key(),), {"by": self._any([1, -1, 5, 1 << 62]), "initial": self._any([0, 0, 7, -(1 << 63)])}
        if what == "update":
            return (key(), self._chance.choice(FUNCTIONS)), {}
        if what == "put_if_version":
            return (key(), value()), {"version": self._chance.choice([None, True, True])}
        return (key(), value()) if what in ("append", "get_and_put") else (key(),), {}


def difference(doors: list[Player], program: list[Step], name: str, codec: str) -> str:
    """Where the doors part over a program, or nothing."""
    answers = {door.name: door.play(program, name, CODECS[codec]) for door in doors}
    first = doors[0].name
    for at, step in enumerate(program):
        for door, told in answers.items():
            if told[at] != answers[first][at]:
                return f"step {at}, {step}:\n{door:>14}: {told[at]}\n{first:>14}: {answers[first][at]}"
    return ""


def shortened(program: list[Step], differs: Callable[[list[Step]], bool]) -> list[Step]:
    """Without the steps that it takes none of to tell the doors apart."""
    for at in reversed(range(len(program))):
        shorter = program[:at] + program[at + 1 :]
        if differs(shorter):
            program = shorter
    return program


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("codec", CODECS)
def test_all_doors_answer_alike(doors: list[Player], fresh: Callable[[], str], codec: str, seed: int) -> None:
    program = Author(codec, seed).program()
    if found := difference(doors, program, fresh(), codec):
        program = shortened(program, lambda shorter: bool(difference(doors, shorter, fresh(), codec)))
        steps = "\n".join(map(str, program))
        again = difference(doors, program, fresh(), codec)
        raise AssertionError(f"{found}\nand\n{again or 'nothing, another time'}\nin the program\n{steps}")


def test_a_difference_is_found_and_told_in_few_steps(doors: list[Player], fresh: Callable[[], str]) -> None:
    class Forgetful(Player):
        """Deletes nothing."""

        def _do(self, where_and_what: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return None if where_and_what == "out.delete" else super()._do(where_and_what, args, named)

    pair = [doors[0], Forgetful("forgetful", doors[0].db)]
    put: Step = ("out.put", ("k", 1), {})
    delete: Step = ("out.delete", ("k",), {})
    get: Step = ("out.get", ("k",), {})
    told = [put, get, ("out.put", ("other", 1), {}), delete, get]
    assert difference(pair, told, fresh(), "json").startswith("step 3, ('out.delete', ")
    assert shortened(told, lambda shorter: bool(difference(pair, shorter, fresh(), "json"))) == [delete]
    assert not difference(pair, told[:3], fresh(), "json")
