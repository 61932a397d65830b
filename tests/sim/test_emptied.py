"""A copy that the map calls in sync and that is empty: no healthy cluster gets there, and one that does mends itself.

A copy that must undo what it has forgotten clears itself. The oracles watch that no seed ever comes to that, so here it is
brought about: a copy is told to undo all that it has settled. Then no oracle watches but the comparison at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from engine.client.calls import GetCall, PutCall
from engine.messages import AskTail
from rebalance.partition import LocalPartition, Role
from tests.conversations.in_turn import in_turn
from tests.sim.clients import Client
from tests.sim.draws import Draws
from tests.sim.network import MS, Rule
from tests.sim.oracles import compare_copies, unsettled
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, REST_NS, SETTINGS, key
from tests.sim.world import SECOND, World
from wal import records as r
from wal.ids import Fragment, NodeId

NAMES = ("n1", "n2", "n3")
FIRST: Fragment = (NAMESPACE, 0)


@pytest.fixture
def world() -> Iterator[World]:
    """Three nodes; partition 0 belongs to n1, then n2, then n3, and one row is on all of them."""
    with World(Draws("emptied"), SETTINGS, affinity=in_turn) as world:
        form(world)
        yield world


def form(world: World) -> None:
    """Three nodes, and the row."""
    for name in NAMES:
        world.add_machine(name)
    world.form(list(NAMES))
    put(world, world.add_client("c1"), b"kept")
    world.run_for(2 * SECOND)


def get(world: World, client: str) -> bytes | None:
    """The row, as a new client is told."""
    call = GetCall(NAMESPACE, [key(0)])
    who = world.add_client(client)
    task = who.spawn(who.call(call, timeout_ns=ANSWER_NS))
    assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)
    assert task.failure is None
    held: bytes | None = call.values[0][2]
    return held


def put(world: World, client: Client, value: bytes) -> None:
    """One row of partition 0."""
    call = PutCall(client.new_tx(), NAMESPACE, [key(0)], [value])
    task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
    assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)
    assert task.failure is None


def hold_of(world: World, name: NodeId) -> LocalPartition:
    """What the node is to partition 0."""
    node = world.machines[name].node
    assert node is not None
    return node.core.local[0]


def loading(world: World, name: NodeId) -> bool:
    """Whether the node's copy was emptied and is not whole."""
    node = world.machines[name].node
    assert node is not None
    return node.core.replica.fragment(FIRST).loading


def empty(world: World, name: NodeId) -> None:
    """The node must undo what it has forgotten: its copy clears itself."""
    node = world.machines[name].node
    assert node is not None
    fragment = node.core.replica.fragment(FIRST)
    fragment.note_stable(fragment.counter.lwm)
    assert fragment.stable
    node.core.log(r.Undo(NAMESPACE, 0, 0, []))
    assert loading(world, name)
    assert hold_of(world, name).in_sync


def until(world: World, holds: Callable[[], bool]) -> None:
    """Wait for it, not for ever; it may last for less than a millisecond."""
    assert world.run_while(lambda: not holds(), at_most=REST_NS, look_every=MS // 10), unsettled(world)


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_a_copy_that_emptied_itself_leaves_the_in_sync_set_and_catches_up(world: World, name: NodeId) -> None:
    """It says so, an exchange takes it out, it demands, and is vouched for: all without a restart, and nobody is lost."""
    empty(world, name)
    until(world, lambda: hold_of(world, name).role is Role.MOVING)
    until(world, lambda: hold_of(world, name).in_sync)
    until(world, lambda: not unsettled(world))
    assert not loading(world, name)
    compare_copies(world)
    newest = world.newest()
    assert newest is not None
    assert [m.node for m in newest.members] == list(NAMES)
    put(world, world.clients["c1"], b"after")


def test_it_is_no_survivor_when_its_primary_fails(world: World) -> None:
    """n2 would lead next and has nothing: n3 does, and the row is still there."""
    empty(world, "n2")
    world.machines["n1"].stop("power cut", calls=0)
    assert get(world, "c2") == b"kept"
    world.machines["n1"].start()
    until(world, lambda: not unsettled(world))
    compare_copies(world)


def test_where_nothing_else_is_left_the_partition_waits_for_the_disk_that_has_it() -> None:
    """There are two copies, and n1 fails: n2 is in sync by name, and must not begin with nothing."""
    with World(Draws("emptied"), msgspec.structs.replace(SETTINGS, backups=1), affinity=in_turn) as world:
        form(world)
        empty(world, "n2")
        world.machines["n1"].stop("power cut", calls=0)
        until(world, lambda: (newest := world.newest()) is not None and newest.member("n1") is None)
        world.run_for(3 * SECOND)
        newest = world.newest()
        assert newest is not None
        assert newest.placements[0].lost
        world.machines["n1"].start()
        until(world, lambda: not unsettled(world))
        compare_copies(world)
        assert get(world, "c2") == b"kept"


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_it_neither_leads_nor_tells_a_new_primary_what_it_has(world: World, name: NodeId) -> None:
    """The map that makes n2 primary is there already when it (or n3, which it asks) is emptied."""
    lost = Rule("ask-tail", lambda src, dst, said: isinstance(said, AskTail), drop=True)
    world.network.rules.append(lost)
    world.machines["n1"].stop("power cut", calls=0)
    until(world, lambda: lost.caught > 0)
    empty(world, name)
    world.network.release([lost], [])
    assert get(world, "c2") == b"kept"
    world.machines["n1"].start()
    until(world, lambda: not unsettled(world))
    compare_copies(world)


def test_a_copy_that_emptied_itself_and_restarts_is_not_taken_for_whole(world: World) -> None:
    """What it says of itself in its life is gone with that; its single map says the same."""
    empty(world, "n2")
    world.run_for(20 * MS)
    world.machines["n2"].stop("power cut", calls=0)
    world.machines["n2"].start()
    until(world, lambda: not unsettled(world) and not loading(world, "n2"))
    compare_copies(world)


def test_it_begins_again_with_nothing_where_an_operator_goes_on_with_it_alone() -> None:
    """n1 and n3 are gone for good, and n2 is in sync by name: it has nothing, and serves that."""
    with World(Draws("emptied"), SETTINGS, affinity=in_turn) as world:
        form(world)
        for gone in ("n1", "n3"):
            world.machines[gone].stop("its disk is gone", calls=0)
        empty(world, "n2")
        world.run_for(3 * SECOND)
        assert hold_of(world, "n2").in_sync
        left = world.machines["n2"]
        world.command(left, "recover", {"nodes": ["n2"], "yes": []})
        until(world, lambda: hold_of(world, "n2").role is Role.PRIMARY)
        assert get(world, "c2") is None
