"""Copies that are wrong although their counters are right are found by live members, and healed without an operator."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import lmdb
import msgspec
import pytest

from engine.client.calls import PutCall
from engine.messages import Replicate
from engine.state.store_envelope import ROWS as ROWS_DB
from engine.state.store_envelope import fragment_key
from engine.state.store_memory import MemoryStore
from engine.turn.settings import Settings
from rebalance.migrations import Paused
from rebalance.partition import Role
from tests.conversations.in_turn import in_turn
from tests.sim.draws import Draws
from tests.sim.network import Rule, Side
from tests.sim.oracles import compare_copies, unsettled
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, key
from tests.sim.test_emptied import FIRST, NAMES, form, get, hold_of, put, until
from tests.sim.vault import LmdbVault
from tests.sim.world import SECOND, World
from tests.support.rot import rot
from wal.ids import NodeId

RETURN_NS = 90 * SECOND
"""Who was set aside, because it did not answer, returns after a while that grows (`rebalance.table.back_off_ms`)."""
QUICK = msgspec.structs.replace(SETTINGS, anti_entropy_ms=3_000, checkpoint_ms=500)


@pytest.fixture
def world() -> Iterator[World]:
    """Three nodes; partition 0 belongs to n1, then n2, then n3; one row is in the checkpoints of all of them."""
    with World(Draws("entropy"), QUICK, affinity=in_turn) as world:
        form(world)
        yield world


def rots(world: World, name: NodeId, value: bytes | None) -> None:
    """The row is another one, or gone, in the checkpoint of a node."""
    store = world.machines[name].vault.open()
    assert isinstance(store, MemoryStore)
    rot(store, FIRST, key(0), value)


def is_healed(world: World) -> bool:
    """All copies have the row, and nobody is about to do anything."""
    for name in NAMES:
        node = world.machines[name].node
        if node is None:
            return False
        held = node.core.replica.store.get(FIRST, key(0))
        found = node.entropy.as_object()
        if held is None or held.value != b"kept" or found["wrong_here"] or found["undecided"]:
            return False
    return not unsettled(world)


@pytest.mark.parametrize("value", [None, b"forged"])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_rots_while_its_node_runs_is_healed(world: World, name: NodeId, value: bytes | None) -> None:
    rots(world, name, value)
    until(world, lambda: hold_of(world, name).role is Role.MOVING)
    until(world, lambda: is_healed(world))
    compare_copies(world)
    assert get(world, "c2") == b"kept"
    put(world, world.clients["c1"], b"after")


def pause(world: World, what: Paused) -> None:
    """An operator orders it, and it holds."""
    node = world.machines["n1"].node
    assert node is not None
    assert node.core.topology is not None
    words = {"seen": [str(node.core.topology.migrations.since)], "paused": [str(what)], "bytes_per_second": ["0"]}
    world.command(world.machines["n1"], "migrations", words)
    until(world, lambda: world.newest() is not None and world.newest().migrations.paused is what)  # type: ignore[union-attr]


def test_a_row_that_rots_while_its_copy_waits_to_move_is_yet_to_be_healed(world: World) -> None:
    """It is not waited for while migrations are paused; and it is not well because of that."""
    machine, rotten = world.machines["n2"], world.rotten
    machine.stop("power cut")
    until(world, lambda: len(hold_of(world, "n1").placement.in_sync) == 2)
    pause(world, Paused.ALL)
    assert machine.start()
    until(world, lambda: machine.node is not None and bool(machine.node.core.local))
    until(world, lambda: hold_of(world, "n2").role is Role.MOVING)
    rots(world, "n2", None)
    rotten.add(machine, FIRST, key(0), b"kept")
    rotten.look(world)
    assert rotten.holds(machine, FIRST)
    assert not rotten
    pause(world, Paused.NOTHING)
    rotten.look(world)
    assert rotten


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_a_row_that_rots_between_two_lives_is_healed(world: World, name: NodeId) -> None:
    world.machines[name].stop("power cut")
    rots(world, name, None)
    world.run_for(SECOND)
    assert world.machines[name].start()
    until(world, lambda: is_healed(world))
    compare_copies(world)


def test_a_row_that_lmdb_lost_is_healed() -> None:
    """The real store, whose file is changed between two lives: LMDB is whole, and one row is not in it."""
    with World(Draws("entropy"), QUICK, affinity=in_turn) as world:
        for name in NAMES:
            world.add_machine(name, lmdb=True)
        world.form(list(NAMES))
        put(world, world.add_client("c1"), b"kept")
        world.run_for(2 * SECOND)
        machine = world.machines["n2"]
        machine.stop("power cut")
        assert isinstance(machine.vault, LmdbVault)
        with lmdb.open(str(machine.vault.path), max_dbs=4) as env:
            rows = env.open_db(ROWS_DB)
            with env.begin(write=True) as txn:
                assert txn.delete(fragment_key(FIRST) + key(0), db=rows)
        assert machine.start()
        until(world, lambda: is_healed(world))
        compare_copies(world)


def test_a_row_whose_checksum_is_wrong_does_not_end_its_node() -> None:
    with World(Draws("entropy"), QUICK, affinity=in_turn) as world:
        for name in NAMES:
            world.add_machine(name, lmdb=True)
        world.form(list(NAMES))
        client, keys = world.add_client("c1"), sorted(key(0, at) for at in range(5))
        for each in keys:
            call = PutCall(client.new_tx(), NAMESPACE, [each], [b"kept"])
            task = client.spawn(client.call(call, timeout_ns=ANSWER_NS))
            assert world.run_while(lambda task=task: not task.done, at_most=ANSWER_NS)  # type: ignore[misc]
        world.run_for(2 * SECOND)
        machine = world.machines["n2"]
        machine.stop("power cut")
        assert isinstance(machine.vault, LmdbVault)
        with lmdb.open(str(machine.vault.path), max_dbs=4) as env:
            rows = env.open_db(ROWS_DB)
            with env.begin(write=True) as txn:
                full = fragment_key(FIRST) + keys[2]  # no scan of another fragment comes near it
                raw = txn.get(full, db=rows)
                assert raw is not None
                txn.put(full, raw[:-1] + bytes([raw[-1] ^ 1]), db=rows)
        assert machine.start()
        until(world, lambda: hold_of(world, "n2").role is Role.BACKUP)
        until(world, lambda: hold_of(world, "n2").role is Role.MOVING)
        until(world, lambda: not unsettled(world))
        assert machine.up
        compare_copies(world)


class _Loses(Rule):
    """Most of what primaries say to their copies is lost."""

    def __init__(self, share: float) -> None:
        draw = Random(1)

        def matches(_src: Side, _dst: Side, said: object) -> bool:
            return isinstance(said, Replicate) and draw.random() < share

        super().__init__("most of the replication", matches, drop=True)


@pytest.mark.parametrize("share", [0.65, 0.95])
@pytest.mark.parametrize(("backups", "nodes"), [(1, 2), (1, 7), (2, 3), (2, 7), (3, 4), (3, 7)])
def test_all_copies_end_equal_though_most_of_replication_is_lost(backups: int, nodes: int, share: float) -> None:
    """The matrix of Hazelcast's `AntiEntropyCorrectnessTest`: nothing is left over that anybody was allowed meanwhile."""
    settings = Settings(cluster="sim", partitions=16, backups=backups, anti_entropy_ms=3_000, checkpoint_ms=500)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    with World(Draws("loss"), settings) as world:
        for name in names:
            world.add_machine(name)
        world.form(names)
        client = world.add_client("c1")
        loses = _Loses(share)
        world.network.rules.append(loses)
        for at in range(3):
            keys = [f"key{at}.{n}".encode() for n in range(16)]
            call = PutCall(client.new_tx(), NAMESPACE, keys, [b"value"] * 16)
            task = client.spawn(client.call(call, timeout_ns=6 * ANSWER_NS))
            assert world.run_while(lambda task=task: not task.done, at_most=6 * ANSWER_NS)  # type: ignore[misc]
        assert loses.caught > 0
        world.network.release([loses], [])
        for _ in range(2):
            assert world.run_while(lambda: bool(unsettled(world)), at_most=RETURN_NS), unsettled(world)
            world.run_for(6 * SECOND)
        compare_copies(world)
        for machine in world.running:
            assert machine.node is not None
            entropy, supply = machine.node.entropy, machine.node.supply
            assert (len(entropy.proving), entropy.suspected, entropy.proving.disproved) == (0, {}, {})
            assert entropy.as_object()["ordered"] == {}
            assert machine.node.anew.as_object() == {"wanted": [], "loading": [], "kept": []}
            assert machine.node.demander.behind == 0
            assert supply.vouching.pending == {}
