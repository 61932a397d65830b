"""Asynchronous copies in a whole cluster, and copies of either kind of which most batches are lost on the way."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from engine.client.calls import GetCall, PutCall
from engine.client.namespaces import AskNodes
from engine.messages import Replicate
from engine.protocol.requests import Get
from engine.state.store_memory import MemoryStore
from rebalance.migrations import Paused
from rebalance.partition import Role
from rebalance.supplier import OVER_AFTER_MS
from rebalance.table import Standing
from tests.conversations.in_turn import in_turn
from tests.sim.draws import Draws
from tests.sim.network import MS, Rule
from tests.sim.oracles import compare_copies, unsettled, watch
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, key
from tests.sim.world import SECOND, World
from tests.support.rot import rot
from wal.ids import NodeId

QUICK = msgspec.structs.replace(SETTINGS, anti_entropy_ms=600, retransmit_ms=100)
REST_NS = 120 * SECOND
"""Who was set aside, because it did not answer, returns after a while that grows (`rebalance.table.back_off_ms`)."""


def formed(world: World, nodes: int) -> None:
    """So many nodes, and a client."""
    names = [f"n{at}" for at in range(1, nodes + 1)]
    for name in names:
        world.add_machine(name)
    world.form(names)
    world.add_client("c1")


def put(world: World, at: int, value: bytes | None = b"v") -> None:
    """A row of some partition, acknowledged."""
    client = world.clients["c1"]
    call = PutCall(client.new_tx(), NAMESPACE, [key(at % 4, at // 4)], [value])
    task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
    assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)
    assert task.failure is None


def whole(world: World) -> bool:
    """Nobody is about to do anything, and every copy equals its primary's."""
    if unsettled(world):
        return False
    newest = world.newest()
    assert newest is not None
    for number, placement in enumerate(newest.placements):
        stands = []
        for name in placement.copies:
            node = world.machines[name].node
            assert node is not None
            fragment = node.core.replica.fragment((NAMESPACE, number))
            stands.append((fragment.counter.lwm, fragment.counter.ranges, fragment.digest, fragment.loading))
        if any(each != stands[0] for each in stands):
            return False
    return True


def holding(world: World) -> list[str]:
    """Who holds anything of a transfer, or for one."""
    found = []
    for machine in world.running:
        assert machine.node is not None
        node = machine.node
        if node.supply._sessions or node.demander._sessions or node.demander.behind:
            found.append(f"{machine.name}: {node.supply._sessions} {node.demander._sessions} {node.demander.behind}")
    return found


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("backups", "nodes"), [(1, 2), (1, 7), (2, 3), (2, 7), (3, 4), (3, 7)])
@pytest.mark.parametrize("percent", [65, 95])
def test_most_of_what_is_said_to_backups_is_lost_and_all_copies_end_equal(
    percent: int, backups: int, nodes: int, asynchronous: bool
) -> None:
    settings = msgspec.structs.replace(
        QUICK,
        backups=0 if asynchronous else backups,
        async_backups=backups if asynchronous else 0,
        backlog_bytes_max=1 << 10,  # what cannot be kept for who does not answer is lost for good
    )
    with World(Draws(f"lost {percent} {backups} {nodes} {asynchronous}"), settings, affinity=in_turn) as world:
        formed(world, nodes)
        draw = Random(percent * 100 + backups * 10 + nodes)
        rule = Rule(
            "to backups", lambda _src, _dst, said: isinstance(said, Replicate) and draw.random() * 100 < percent, drop=True
        )
        world.network.rules.append(rule)
        for at in range(60):
            if asynchronous:
                put(world, at, None if at % 7 == 6 else b"v%d" % at)
            else:  # nobody is told of what not all have: it is enough that it was asked for
                client = world.clients["c1"]
                call = PutCall(client.new_tx(), NAMESPACE, [key(at % 4, at // 4)], [b"v%d" % at])
                client.spawn(client.call(call, timeout_ns=ANSWER_NS))
                world.run_for(50 * MS)
        assert rule.caught > 20
        world.network.rules.remove(rule)
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world) or "copies differ"
        world.run_for((OVER_AFTER_MS + 1_000) * MS)
        assert not holding(world)
        compare_copies(world)


def role_of(world: World, name: NodeId, number: int = 0) -> Role:
    node = world.machines[name].node
    assert node is not None
    return node.core.local[number].role if node.core.local else Role.NONE


def test_it_steps_in_for_a_copy_that_is_away_and_may_lead_then() -> None:
    """n1 leads partition 0, n2 is in sync, n3 asynchronous; n2 goes, and then n1."""
    settings = msgspec.structs.replace(QUICK, backups=1, async_backups=1)
    with World(Draws("steps in"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 4)
        put(world, 0, b"first")
        newest = world.newest()
        assert newest is not None
        assert newest.placements[0].asynchronous == ("n3",)
        assert newest.placements[0].standing_of("n3") is Standing.ASYNC
        world.machines["n2"].stop("power cut")
        assert world.run_while(lambda: role_of(world, "n3") is not Role.BACKUP, at_most=20 * SECOND), "it is made whole"
        put(world, 0, b"second")
        world.machines["n1"].stop("power cut")
        assert world.machines["n2"].start()
        assert world.run_while(lambda: role_of(world, "n3") is not Role.PRIMARY, at_most=20 * SECOND)
        client = world.clients["c1"]
        call = GetCall(NAMESPACE, [key(0)])
        task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
        assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)
        assert call.values[0][2] == b"second"
        assert world.machines["n1"].start()
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world)
        assert world.run_while(lambda: role_of(world, "n1") is not Role.PRIMARY, at_most=20 * SECOND), "it leads again"
        newest = world.newest()
        assert newest is not None
        assert newest.placements[0].in_sync == ("n1", "n2")
        assert newest.placements[0].asynchronous == ("n3",)


def test_nobody_else_is_there_and_still_it_does_not_lead() -> None:
    """Of partition 0 only the asynchronous copy is left: it is LOST until one in sync is back."""
    settings = msgspec.structs.replace(QUICK, backups=0, async_backups=1)
    with World(Draws("does not lead"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 3)
        put(world, 0, b"kept")
        world.run_for(SECOND)
        world.machines["n1"].stop("power cut")

        def lost() -> bool:
            newest = world.newest()
            return newest is not None and newest.placements[0].lost

        assert world.run_while(lambda: not lost(), at_most=20 * SECOND)
        world.run_for(5 * SECOND)
        assert role_of(world, "n2") is Role.NONE
        held = world.machines["n2"].node
        assert held is not None
        assert held.core.replica.store.get((NAMESPACE, 0), key(0)) is not None, "what it has is kept"
        assert world.machines["n1"].start()
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world)


@pytest.mark.parametrize("value", [None, b"forged"])
def test_a_row_of_it_that_rots_is_taken_anew(value: bytes | None) -> None:
    """It reads its rows like any copy; as nobody relies on it, no map is needed to take them anew."""
    settings = msgspec.structs.replace(QUICK, backups=0, async_backups=1, checkpoint_ms=500)
    with World(Draws("rots"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 3)
        for at in range(0, 40, 4):
            put(world, at, b"kept")
        world.run_for(2 * SECOND)
        newest, node, store = world.newest(), world.machines["n2"].node, world.machines["n2"].vault.open()
        assert newest is not None
        assert node is not None
        assert isinstance(store, MemoryStore)
        assert newest.placements[0].asynchronous == ("n2",)
        rot(store, (NAMESPACE, 0), key(0, 3), value)
        assert world.run_while(lambda: _row(world, "n2", 0, key(0, 3)) != b"kept", at_most=REST_NS), unsettled(world)
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world)
        assert world.newest() is newest, "no map was made for it"
        assert not node.entropy.as_object()["wrong_here"]
        compare_copies(world)


@pytest.mark.parametrize("value", [None, b"forged"])
def test_one_that_was_filled_with_what_rotted_is_made_right(value: bytes | None) -> None:
    """A row of n1 has rotted, and n3 is filled by n1 before anybody has read it (seed 960008)."""
    settings = msgspec.structs.replace(QUICK, backups=1, async_backups=1, checkpoint_ms=500, anti_entropy_ms=3_000)
    with World(Draws("handed on"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 3)
        for at in range(0, 40, 4):
            put(world, at, b"kept")
        world.run_for(2 * SECOND)
        machine, node = world.machines["n1"], world.machines["n3"].node
        newest, store = world.newest(), machine.vault.open()
        assert newest is not None
        assert newest.placements[0].asynchronous == ("n3",)
        assert node is not None
        assert isinstance(store, MemoryStore)
        rot(store, (NAMESPACE, 0), key(0, 3), value)
        world.rotten.add(machine, (NAMESPACE, 0), key(0, 3), b"kept")
        assert not node.anew.order([(NAMESPACE, 0)])
        fragment = node.core.replica.fragment((NAMESPACE, 0))
        assert world.run_while(lambda: fragment.loading, at_most=REST_NS, look_every=MS)
        assert _row(world, "n3", 0, key(0, 3)) == value, "it was handed on"
        assert _row(world, "n1", 0, key(0, 3)) == value, "and nobody has noticed"
        world.rotten.look(world)
        assert "n3" in str(world.rotten)

        def wrong() -> bool:
            world.rotten.look(world)
            return bool(world.rotten) or not whole(world)

        assert world.run_while(wrong, at_most=REST_NS), f"{world.rotten} {unsettled(world)}"
        assert _row(world, "n3", 0, key(0, 3)) == b"kept"
        world.run_for(10 * SECOND)
        compare_copies(world)


def test_one_that_was_emptied_because_a_row_rotted_waits_while_the_operator_has_paused() -> None:
    """It is no repair, where there are as many copies in sync as there should be (seed 130005)."""
    settings = msgspec.structs.replace(QUICK, backups=0, async_backups=1, checkpoint_ms=500)
    with World(Draws("waits"), settings, affinity=in_turn) as world:
        formed(world, 3)
        put(world, 0, b"kept")
        world.run_for(2 * SECOND)
        _pause(world, Paused.BALANCE)
        machine, name = world.machines["n2"], (NAMESPACE, 0)
        store = machine.vault.open()
        assert isinstance(store, MemoryStore)
        rot(store, name, key(0), b"forged")
        world.rotten.add(machine, name, key(0), b"kept")
        world.rotten.look(world)
        assert len(world.rotten) == 1, "it is to be found"
        node = machine.node
        assert node is not None
        assert world.run_while(lambda: not node.core.replica.fragment(name).loading, at_most=REST_NS), "it was emptied"
        world.run_for(SECOND)
        world.rotten.look(world)
        assert len(world.rotten) == 0, "and waits"
        _pause(world, Paused.NOTHING)
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world)
        assert _row(world, "n2", 0, key(0)) == b"kept"


def _pause(world: World, what: Paused) -> None:
    topology = world.newest()
    assert topology is not None
    words = {"seen": [str(topology.migrations.since)], "paused": [str(what)], "bytes_per_second": ["0"]}
    world.command(world.machines["n1"], "migrations", words)
    assert world.run_while(lambda: (top := world.newest()) is None or top.migrations.paused is not what, at_most=REST_NS)


def test_one_may_be_ordered_anew() -> None:
    """By an operator, as any other copy; and here too its primary is whom it takes it from."""
    settings = msgspec.structs.replace(QUICK, backups=0, async_backups=1)
    with World(Draws("anew"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 3)
        put(world, 0, b"kept")
        world.run_for(SECOND)
        node = world.machines["n2"].node
        assert node is not None
        assert not node.anew.order([(NAMESPACE, 0)])
        assert node.core.replica.fragment((NAMESPACE, 0)).loading
        assert world.run_while(lambda: not whole(world), at_most=REST_NS), unsettled(world)
        assert _row(world, "n2", 0, key(0)) == b"kept"


def test_it_is_read_by_who_does_not_mind_its_age() -> None:
    settings = msgspec.structs.replace(QUICK, backups=0, async_backups=2)
    with World(Draws("read"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 3)
        put(world, 0, b"old")
        world.run_for(SECOND)
        asked: list[NodeId] = []

        world.network.rules.append(Rule("look", lambda _, to, said: _note(asked, to, said), drop=True))
        client = world.clients["c1"]
        for number in range(4):
            for age_ms in (-1, 1_000):
                call = GetCall(NAMESPACE, [key(number)], stale=True, age_ms=age_ms)
                task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
                assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)  # noqa: B023
                assert call.values[0][2] == (b"old" if not number else None)
        newest = world.newest()
        assert newest is not None
        leaders = [newest.placements[number].primary for number in range(4)]
        assert asked[1::2] == leaders, "how old it is only copies in sync can tell"
        assert asked[::2] != leaders, "and who does not ask is answered by any copy"


def test_one_namespace_may_have_them_where_no_other_has() -> None:
    """n2 leads the second partition of its group, n3 is in sync, n4 asynchronous, and paused while it is written."""
    settings = msgspec.structs.replace(QUICK, backups=2)
    with World(Draws("one namespace"), settings, affinity=in_turn) as world:
        watch(world)
        formed(world, 4)
        client = world.clients["c1"]
        order = {"name": [NAMESPACE], "seen": ["0.0"], "ttl_ms": ["0"], "backups": ["1"], "async_backups": ["1"]}
        client.spawn(client.call(AskNodes(order), timeout_ns=ANSWER_NS))
        assert world.run_while(lambda: not all(_usable(world, f"n{at}") for at in range(1, 5)), at_most=20 * SECOND)
        newest = world.newest()
        assert newest is not None
        number = newest.place(NAMESPACE, key(1))
        here = newest.placements[number]
        assert (here.owners, here.in_sync, here.asynchronous) == (("n2", "n3"), ("n2", "n3"), ("n4",))
        assert all(len(newest.placements[at].asynchronous) == 1 for at in newest.partitions_of(NAMESPACE))
        assert not any(newest.placements[at].asynchronous for at in range(newest.partitions)), "the cluster's have none"
        put(world, 1, b"first")
        world.machines["n4"].pause()
        put(world, 1, b"second")
        assert world.newest() is newest, "nobody waited for n4, nor for a map without it"
        world.machines["n4"].resume()
        assert world.run_while(lambda: bool(unsettled(world)) or _row(world, "n4", number) != b"second", at_most=REST_NS)
        asked: list[NodeId] = []
        world.network.rules.append(Rule("look", lambda _, to, said: _note(asked, to, said), drop=True))
        call = GetCall(NAMESPACE, [key(1)], stale=True)
        task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
        assert world.run_while(lambda: not task.done, at_most=ANSWER_NS)
        assert (asked, call.values[0][2]) == (["n4"], b"second")
        compare_copies(world)


def _usable(world: World, name: NodeId) -> bool:
    """Whether a node has the map by which the namespace has its copies."""
    node = world.machines[name].node
    said = node.core.namespaces.get(NAMESPACE) if node is not None else None
    return said is not None and said.usable


def _row(world: World, name: NodeId, number: int, row: bytes | None = None) -> bytes | None:
    node = world.machines[name].node
    held = node.core.replica.store.get((NAMESPACE, number), row or key(number % 4)) if node is not None else None
    return held.value if held is not None else None


def _note(asked: list[NodeId], to: str, said: object) -> bool:
    """Note who is asked for a key; nothing is lost."""
    if isinstance(said, Get):
        asked.append(to)
    return False
