"""What a turn costs that takes very many requests or messages at once, counted in functions that it calls.

Each is little. But they come together: a program asks for all that it wants in one moment, a map lets all go on that
waited for it, and who stood still finds all that was said to it meanwhile, again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.protocol.requests import CommitTx, Done, Put, Request
from engine.turn.settings import Settings
from tests.sim.draws import Draws
from tests.sim.test_turns import NODES
from tests.sim.test_turns_of_data import CALLS_MAX, Busy, Stand, _node, _tx
from tests.sim.world import SECOND, World
from wal.ids import partition_of


def _most_calls(stand: Stand, requests: Sequence[Request]) -> int:
    """Of one turn, while all of these are asked at once and answered."""
    calls = stand.world.costs = Busy()
    stand.ask(*requests)
    assert stand.world.run_while(lambda: len(stand.replies) < len(requests), at_most=30 * SECOND)
    assert all(isinstance(reply, Done) for reply in stand.replies)
    return calls.most


@pytest.mark.parametrize("nodes", [NODES[:1], NODES], ids=["alone", "with copies"])
def test_very_many_puts_of_as_many_partitions_are_taken_in_several_turns(nodes: list[str]) -> None:
    """To write where nothing was written is three times as dear as to write there again."""
    partitions, many = 16_384, 2_400
    keys: dict[int, bytes] = {}
    with World(Draws(1), Settings(cluster="sim", partitions=partitions, backups=len(nodes) - 1)) as world:
        stand = Stand(world, nodes, [b"k"])
        topology = world.newest()
        assert topology is not None
        for key in map(b"k%d".__mod__, range(40 * many)):
            number = partition_of(key, partitions)
            if topology.placements[number].primary == stand.machine.name and len(keys) < many:
                keys.setdefault(number, key)
        assert len(keys) == many
        puts = [Put(n, _tx(1, n), "n", [key], [b"v"]) for n, key in enumerate(keys.values(), 1)]
        assert _most_calls(stand, puts) <= 2 * CALLS_MAX


@pytest.mark.parametrize("partitions", [1, 2], ids=["of one partition", "of two"])
@pytest.mark.parametrize("nodes", [NODES[:1], NODES], ids=["alone", "with copies"])
def test_very_many_commits_are_taken_in_several_turns(nodes: list[str], partitions: int) -> None:
    many = 1_200
    every = list(map(b"k%d".__mod__, range(8 * many)))
    keys = [[key for key in every if partition_of(key, 4) == number][:many] for number in range(partitions)]
    with World(Draws(1), Settings(cluster="sim", partitions=4, backups=len(nodes) - 1)) as world:
        stand = Stand(world, nodes, keys[0])
        commits: list[Request] = []
        for n, written in enumerate(zip(*keys, strict=True), 1):
            writes: list[tuple[str, list[bytes], list[bytes | None]]] = [("n", list(written), [b"v"] * len(written))]
            commits.append(CommitTx(n, _tx(n), _tx(n), True, writes, [], []))
        assert _most_calls(stand, commits) <= CALLS_MAX


@pytest.mark.parametrize("commits", [False, True], ids=["puts", "commits"])
def test_what_a_lost_copy_alone_had_not_answered_counts_in_several_turns_with_the_map(commits: bool) -> None:
    """All that was asked since it was lost waits for that map."""
    many = 3_000 if commits else 6_000
    keys = [b"k%d" % n for n in range(many)]
    with World(Draws(1), Settings(cluster="sim", partitions=1, backups=2)) as world:
        stand = Stand(world, NODES, keys)
        next(world.machines[name] for name in NODES if name != stand.machine.name).stop("killed", process_only=True)
        calls = world.costs = Busy()
        for n, key in enumerate(keys, 1):
            commit = CommitTx(n, _tx(n), _tx(n), True, [("n", [key], [b"v"])], [], [])
            stand.ask(commit if commits else Put(n, _tx(n), "n", [key], [b"v"]))
        world.run_for(SECOND // 5)
        assert not stand.replies
        assert world.run_while(lambda: len(stand.replies) < many, at_most=30 * SECOND)
        assert all(isinstance(reply, Done) for reply in stand.replies)
        assert calls.most <= CALLS_MAX, calls.over


def test_very_many_that_wait_for_a_map_are_looked_at_when_each_has_its_turn() -> None:
    many, key = 20_000, b"k"
    with World(Draws(1), Settings(cluster="sim", partitions=1, backups=2, parked_max=many)) as world:
        stand = Stand(world, NODES, [key])
        node = _node(stand.machine)
        next(world.machines[name] for name in NODES if name != stand.machine.name).stop("killed", process_only=True)
        for n in range(1, many + 1):
            node.desk.park(node.core.local[0], stand.session, Put(n, _tx(n), "n", [key], [b"v"], within_ms=60_000))
        calls = world.costs = Busy()
        before = world.newest()
        assert world.run_while(lambda: world.newest() is before, at_most=30 * SECOND)
        world.run_for(SECOND // 20)
        assert stand.replies
        assert not node.desk.parked_bytes
        assert calls.most <= CALLS_MAX, calls.over
