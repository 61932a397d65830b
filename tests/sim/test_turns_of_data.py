"""What a turn costs at the limits of data and transactions, in functions that it calls and in steps, and not in time.

Each is told of little and of much that was there before, and takes the same of both: costs grow with what changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from engine.node.node import Node
from engine.protocol.requests import (
    CommitTx,
    Cut,
    Failed,
    Get,
    KeepCut,
    Put,
    Request,
    Rows,
    Scan,
    StageWrites,
    TakeCut,
    Unlock,
    Values,
)
from engine.turn.events import Asked, ClientSeen, Event
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.test_turns import NODES, Calls
from tests.sim.world import SECOND, World
from wal.ids import Era, TxId, partition_of


def _tx(session: int, number: int = 1) -> TxId:
    return session.to_bytes(10, "big") + number.to_bytes(6, "big")


def _node(machine: Machine) -> Node:
    assert machine.node is not None
    return machine.node


def _keys_of(partition: int, count: int) -> list[bytes]:
    """So many keys of one of 64 partitions."""
    all_of_it = (key for key in map(b"k%d".__mod__, range(100 * count)) if partition_of(key, 64) == partition)
    return sorted(islice(all_of_it, count))


def _told(world: World, machine: Machine, events: Sequence[Event]) -> int:
    """How many functions were called by the turn that called the most, of those that took these events at once."""
    calls = world.costs = Calls()
    for event in events:
        machine.receive(event)
    world.run_for(SECOND // 100)
    return calls.most


# What is staged of large transactions.


def _of_staged(many: int) -> list[int]:
    """A hundred pieces, a hundred transactions given up, a connection that breaks and leases that end, beside so many."""
    found: list[int] = []
    with World(Draws(1), Settings(cluster="sim", partitions=1, backups=0)) as world:
        machine = world.add_machine("n1")
        world.form(["n1"])
        replies: list[object] = []
        one, other = machine.new_session(replies.append), machine.new_session(replies.append)

        def staged(number: int, session: int) -> Asked:
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [b"k"], [b"v"])]
            return Asked(session, StageWrites(number, _tx(number), _tx(number), 0, 1, 9, writes))

        for number in range(many):
            machine.receive(staged(number, one))
        world.run_for(SECOND // 10)
        found.append(_told(world, machine, [staged(many + n, other) for n in range(100)]))
        given_up = [Asked(one, Unlock(n, _tx(n))) for n in range(100)]
        found.append(_told(world, machine, given_up))
        found.append(_told(world, machine, [ClientSeen(other, "", "")]))
        assert len(_node(machine).coordinator.staging._staged) == many - 100
        calls = world.costs = Calls()
        world.run_for(60 * SECOND)
        found.append(calls.most)
        assert not _node(machine).coordinator.staging._staged
        assert not any(isinstance(reply, Failed) for reply in replies), replies
    return found


def test_what_others_have_staged_costs_nobody_anything() -> None:
    few, many = _of_staged(1_000), _of_staged(4_000)
    for little, much in zip(few, many, strict=True):
        assert much <= little + 500, f"{few}, {many}"


# Snapshots.


def _of_cuts(many: int) -> list[int]:
    """Outcomes, a page and values of the past, cuts that are let go of, a member that is lost, and the end of all leases,
    beside so many snapshots, in each of which the same fragment was overwritten."""
    found: list[int] = []
    with World(Draws(1), Settings(cluster="sim", partitions=64, backups=2)) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        topology = world.newest()
        assert topology is not None
        machine = world.machines[topology.placements[0].primary or ""]
        replies: list[object] = []
        session = machine.new_session(replies.append)

        def ask(*requests: Request) -> list[object]:
            replies.clear()
            calls = world.costs = Calls()
            for request in requests:
                machine.receive(Asked(session, request))
            assert world.run_while(lambda: len(replies) < len(requests), at_most=10 * SECOND, look_every=SECOND // 1_000)
            found.append(calls.most)
            return list(replies)

        one, two = _keys_of(0, 600), _keys_of(1, 100)
        ask(Put(1, _tx(1), "n", one, [b"v"] * len(one)))
        cuts: list[Era] = []
        for number in range(many):
            for answer in ask(TakeCut(1, b"%016d" % number)):
                assert isinstance(answer, Cut), answer
                cuts.append(answer.cut)
            ask(Put(1, _tx(2, 1 + number), "n", one[:1], [b"%d" % number]))
        found.clear()
        every = [Scan(1, "n", [0], b"", None, 1_000, cut=cuts[0], marks=True), Get(2, "n", one, cut=cuts[0])]
        rows, values = sorted(ask(*every), key=lambda answer: isinstance(answer, Values))
        assert isinstance(rows, Rows)
        assert isinstance(values, Values)
        assert rows.values == [b"v"] * len(one)
        assert 100 < len(values.values) <= len(one), "of many cuts the rest is to be asked for again"
        assert all(value == b"v" for _, _, value in values.values)
        for number in range(100):
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", [one[number], two[number]], [b"w", b"w"])]
            machine.receive(Asked(session, CommitTx(number, _tx(3 + number), _tx(3 + number), True, writes, [], [])))
        calls = world.costs = Calls()
        world.run_for(SECOND // 10)
        found.append(calls.most)
        gone = [(cut, b"%016d" % number) for number, cut in enumerate(cuts)][1:-1:2]
        ask(KeepCut(1, *gone[0], over=True, others=gone[1:10]))
        calls = world.costs = Calls()
        next(world.machines[name] for name in NODES if name != machine.name).stop("killed", process_only=True)
        world.run_for(5 * SECOND)
        found.append(calls.most)
        assert len(_node(machine).cuts.leases) == many - 10
        calls = world.costs = Calls()
        world.run_for(20 * SECOND)
        found.append(calls.most)
        assert not _node(machine).cuts.leases
    return found


def test_a_turn_costs_the_same_however_many_snapshots_are_open() -> None:
    """But for those by which the one fragment was overwritten that is read: its readers ask one after the other."""
    few, many = _of_cuts(50), _of_cuts(400)
    for little, much in zip(few, many, strict=True):
        assert much <= 2 * little + 400, f"{few}, {many}"
