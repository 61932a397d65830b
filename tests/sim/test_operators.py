"""Operators who only look: each answer is one, and well formed; nothing comes of it; and whatever is wrong is noticed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from engine.protocol.requests import Admin, Done, Lock, Put, Reply, Report, Request, Values
from engine.turn.events import SessionId
from engine.turn.settings import Settings
from tests.sim.costs import Modelled
from tests.sim.draws import Draws
from tests.sim.explore.nodes import Happening, Nodes, ask
from tests.sim.heckling import talk
from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.planted.fault import around
from tests.sim.recorder import Recorder
from tests.sim.violation import Violation
from tests.sim.workloads.load import Load
from tests.sim.workloads.operator import REFUSED, Looking, look_on
from tests.sim.world import SECOND, Plant, World
from wal.ids import NodeId

NODES: list[NodeId] = ["n1", "n2", "n3"]
SETTINGS = Settings(cluster="sim", partitions=8, backups=2, lock_timeout_ms=300, lock_lease_ms=1_000)


def _looked_at(seed: int, *, plant: Plant | None = None, seconds: int = 20) -> list[Looking]:
    """A small cluster in use, two operators, and a node that is killed now and then."""
    draws = Draws(f"operators {seed}")
    with World(draws, SETTINGS, plant=plant, costs=Modelled()) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        load, draw = Load(Recorder(world)), draws.of("when")
        for at in range(3):
            client = world.add_client(f"talker {at}")
            client.spawn(talk(client, draws.of(client.name), ("bank", "lists"), lambda: load.stopping))
        looking = [Looking(load, world.add_client(f"operator {at}"), draws.of(f"operator {at}")) for at in range(2)]
        tasks = [each.client.spawn(look_on(each, 20 * MS, lambda: load.stopping)) for each in looking]
        for _ in range(seconds // 2):
            world.run_for(2 * SECOND)
            machine = draw.choice(world.running)
            machine.stop("killed", process_only=True)
            world.run_for(draw.choice((0, 50, 1_000)) * MS)
            assert machine.start(), machine.why
        load.stop()
        if not world.run_while(lambda: not all(task.done for task in tasks), at_most=20 * SECOND):
            raise Violation("liveness", "an operator waits for an answer")
        for task in tasks:
            assert task.failure is None, task.failure
    return looking


def test_all_that_is_asked_is_answered_and_what_is_to_be_refused_is() -> None:
    looking = _looked_at(1)
    told = looking[0].told + looking[1].told
    assert set(told) >= {command for command, _ in REFUSED}
    assert set(told) >= {"status", "progress", "namespaces", "checkpoint", "reset-lost"}
    assert told.total() > 400


# That it would be noticed.


def _goes_round(machine: Machine) -> None:
    """The page of locks behind the last one is the first."""
    assert machine.node is not None
    inquiry: Any = machine.node.admin._inquiry

    def locks(original: Callable[..., Generator[int, None, dict[str, Any]]], *words: Any) -> Generator[int, None, Any]:
        body = yield from original(*words)
        return body | {"next": body["next"] or ["0", "0"]}

    around(inquiry, "_locks", locks)


def _gives_up(machine: Machine) -> None:
    """Who asks what giving up would take has it done."""
    assert machine.node is not None
    inquiry: Any = machine.node.admin._inquiry
    around(inquiry, "_give_up", lambda original, tx, **_: original(tx, sure=True))


def _answers_twice(machine: Machine) -> None:
    """Whoever asks for a checkpoint is told twice that there will be one."""
    assert machine.node is not None
    desk = machine.node.desk

    def reply(original: Callable[..., None], session: SessionId, said: Any) -> None:
        original(session, said)
        if said == Report(said.id, b"{}"):
            original(session, said)

    around(desk, "reply", reply)


def _is_silent(machine: Machine) -> None:
    """Of partitions of which there are none nobody is told."""
    assert machine.node is not None
    admin: Any = machine.node.admin

    def tell(original: Callable[..., Any], session: SessionId, request: Admin) -> Any:
        if request.arguments.get("partitions", ["0"])[0] != "99000":
            yield from original(session, request)

    around(admin, "_tell_counters", tell)


def _obeys(machine: Machine) -> None:
    """What was planned for another map is done."""
    assert machine.node is not None
    admin: Any = machine.node.admin
    around(admin, "_changed_since", lambda _original, _planned: "")


def _walks_everything(machine: Machine) -> None:
    """A status comes with all that there is, so that its turn is none."""
    assert machine.node is not None
    admin: Any = machine.node.admin
    around(admin, "status", lambda original: original() | {"all": "x" * 60_000_000})


@pytest.mark.parametrize(
    ("plant", "oracle"),
    [
        (_goes_round, "operator"),
        (_gives_up, "operator"),
        (_answers_twice, "operator"),
        (_is_silent, "liveness"),
        (_obeys, "operator"),
        (_walks_everything, "turn"),
    ],
)
def test_what_is_wrong_with_an_answer_is_noticed(plant: Plant, oracle: str) -> None:
    with pytest.raises(Violation) as found:
        _looked_at(1, plant=plant)
    assert found.value.oracle == oracle


# That nothing comes of it.

QUESTIONS: list[tuple[str, dict[str, list[str]]]] = [
    *REFUSED,
    ("status", {}),
    ("counters", {}),
    ("counters", {"namespace": ["a", "nobody"], "partitions": ["0", "8"]}),
    ("progress", {}),
    ("namespaces", {}),
    ("locks", {}),
    ("locks", {"tx": ["74" * 16]}),
    ("transactions", {}),
    ("transactions", {"after": ["1", "0"]}),
    ("give-up", {"tx": ["74" * 16]}),
    ("reset-lost", {}),
    ("recover", {"nodes": ["n1"]}),
]


def _in_use(plant: Plant | None = None) -> tuple[Nodes, int]:
    """A cluster of one node, with rows, a lock that is held, and somebody who waits for it; the number of its state."""
    nodes = Nodes(("n1",), Settings(cluster="sim", partitions=8, backups=0), plant)
    state = nodes.begin("n1").state
    holds, waits = b"t" * 16, b"w" * 16
    asked: list[tuple[Request, type[Reply] | None]] = [
        (Admin(1, "init", {"cluster": ["c1"], "nodes": ["n1"]}), Report),
        (Put(2, b"p" * 16, "a", [b"%d" % at for at in range(20)], [b"v"] * 20), Done),
        (Lock(3, holds, "a", [b"1", b"2", b"3"], 60_000), Values),
        (Lock(4, waits, "a", [b"2"], 60_000), None),
        (Admin(5, "status", {}), Report),  # what a status counts it counts once for each map
    ]
    for request, told in asked:
        step = nodes.step(state, ask("n1", request))
        state = step.state
        assert [type(reply) for _, reply in step.answers] == ([told] if told else []), step.answers
    return nodes, nodes.step(state, Happening("wait", "n1")).state


@pytest.mark.parametrize(("command", "words"), QUESTIONS)
def test_who_only_looks_leaves_a_node_as_it_was(command: str, words: dict[str, list[str]]) -> None:
    nodes, state = _in_use()
    step = nodes.step(state, ask("n1", Admin(9, command, words)))
    assert len(step.answers) == 1
    assert not step.logged
    assert not step.said
    assert step.state == nodes.step(state, Happening("wait", "n1")).state


def test_what_is_left_of_a_question_is_noticed() -> None:
    nodes, state = _in_use(_gives_up)
    step = nodes.step(state, ask("n1", Admin(9, "give-up", {"tx": ["74" * 16]})))
    assert step.state != nodes.step(state, Happening("wait", "n1")).state
