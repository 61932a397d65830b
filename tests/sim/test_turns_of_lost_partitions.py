"""What a turn costs a primary that has very much under way in a partition, and loses it, counted in functions it calls.

It is cut off from the others, who go on without it, and is told so when it is not any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from engine.node.node import Node
from engine.protocol.requests import CommitTx, Done, Failed, Lock, Put, Remap, Request
from engine.turn.effects import Effects
from engine.turn.events import Event
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.test_turns import NODES
from tests.sim.test_turns_of_data import Busy, Stand, _node, _tx
from tests.sim.world import SECOND, World
from wal.ids import Version, partition_of

MANY = 4_000
PER_TURN = 22_000
"""Calls, fewer than six for each: to give one up takes ten and more."""


def _puts(keys: Sequence[Sequence[bytes]]) -> list[Request]:
    return [Put(n, _tx(n), "n", [key], [b"v"]) for n, key in enumerate(keys[0], 1)]


def _commits(keys: Sequence[Sequence[bytes]]) -> list[Request]:
    return [CommitTx(n, _tx(n), _tx(n), True, [("n", [key], [b"v"])], [], []) for n, key in enumerate(keys[0], 1)]


def _of_two(keys: Sequence[Sequence[bytes]]) -> list[Request]:
    return [
        CommitTx(n, _tx(n), _tx(n), True, [("n", list(both), [b"v", b"v"])], [], [])
        for n, both in enumerate(zip(*keys, strict=True), 1)
    ]


def _waiters(keys: Sequence[Sequence[bytes]]) -> list[Request]:
    return [Lock(n, _tx(n), "n", [keys[0][0]], 60_000) for n in range(1, len(keys[0]) + 1)]


def _writers_in_line(keys: Sequence[Sequence[bytes]]) -> list[Request]:
    first: Request = Lock(1, _tx(1), "n", [keys[0][0]], 60_000)
    return [first, *(Put(n, _tx(n), "n", [keys[0][0]], [b"v"], within_ms=60_000) for n in range(2, len(keys[0]) + 1))]


KINDS: dict[str, Callable[[Sequence[Sequence[bytes]]], list[Request]]] = {
    "puts": _puts,
    "commits": _commits,
    "commits of two partitions": _of_two,
    "waiters": _waiters,
    "writers in line": _writers_in_line,
}


class Parting(Busy):
    """The same, of turns in which a node gives up what it has under way, or another map takes effect."""

    def turn(self, node: Node, now: int, events: Sequence[Event]) -> tuple[Effects, int]:
        """Take it."""
        version, parting, most, over = node.core.version, node.core.parting, self.most, self.over
        taken = super().turn(node, now, events)
        if not (parting or node.core.parting) and node.core.version == version:
            self.most, self.over = most, over
        return taken


def _newest(world: World) -> Version:
    return max(_node(machine).core.version for machine in world.running)


def _lose(kind: str, many: int, calls: Busy) -> list[object]:
    """What was answered by a node that was cut off with so many under way, and has lost all that it led."""
    every = list(map(b"k%d".__mod__, range(3 * many)))
    keys = [[key for key in every if partition_of(key, 2) == number][:many] for number in range(2)]
    settings = Settings(cluster="sim", partitions=2, backups=2, lock_timeout_ms=60_000, lock_lease_ms=600_000)
    with World(Draws(1), settings) as world:
        stand = Stand(world, NODES, keys[0])
        name = stand.machine.name
        pairs = [(a, b) for a in NODES for b in NODES if (a == name) is not (b == name)]
        world.network.cut("alone", pairs)
        asked = KINDS[kind](keys)
        stand.ask(*asked)
        node = _node(stand.machine)
        assert world.run_while(lambda: node.core.asked < len(asked), at_most=30 * SECOND)
        before = node.core.version
        assert world.run_while(lambda: _newest(world) == before, at_most=30 * SECOND)
        assert node.core.version == before
        assert len(stand.replies) <= 1, stand.replies[:3]
        world.costs = calls
        world.network.heal("alone")
        assert world.run_while(lambda: node.core.version == before, at_most=30 * SECOND)
        world.run_for(5 * SECOND)
        assert not node.writes.under_way
        assert not node.coordinator.active
        assert not node.locks.waiters
        assert not len(node.locks)
        return stand.replies


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_under_way_in_a_partition_that_is_lost_is_given_up_in_several_turns(kind: str) -> None:
    calls = Parting()
    replies = _lose(kind, MANY, calls)
    assert len(replies) == MANY
    assert all(isinstance(reply, Remap | Failed | Done) for reply in replies)
    assert calls.most <= PER_TURN, calls.over
