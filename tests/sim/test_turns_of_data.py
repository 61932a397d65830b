"""What a turn costs at the limits of data and transactions, in functions that it calls and in steps, and not in time.

Each is told of little and of much that was there before, and takes the same of both: costs grow with what changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.node.node import Node
from engine.protocol.requests import Failed, StageWrites, Unlock
from engine.turn.events import Asked, ClientSeen, Event
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.test_turns import Calls
from tests.sim.world import SECOND, World
from wal.ids import TxId


def _tx(session: int, number: int = 1) -> TxId:
    return session.to_bytes(10, "big") + number.to_bytes(6, "big")


def _node(machine: Machine) -> Node:
    assert machine.node is not None
    return machine.node


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
