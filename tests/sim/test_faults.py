"""Every kind of fault, by itself: it happens when its rate says so, the cluster finds back, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import errors
from engine.turn.settings import Settings
from tests.sim.clients import Client
from tests.sim.draws import Draws
from tests.sim.faults import GIVING_UP, RATES, Faults
from tests.sim.knobs import Knobs
from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.oracles import compare_copies, out_of_sync, unsettled
from tests.sim.run import run_seed
from tests.sim.shapes import SMALL
from tests.sim.workloads import WORKLOADS, set_up
from tests.sim.world import SECOND, World
from tests.support.memory_disk import SECTOR, Unsynced

NAMES = ["n1", "n2", "n3"]


NEEDED = {"old-disk": "kill", "baseline": "join", "leave": "join"}
"""What must happen first: an image is made of a disk at rest, and a cluster of three nodes takes nobody out."""


OF_ALL = {
    *("old-disk", "leave", "baseline", "init-again", "checkpoint", "everybody", "lull", "weather", "lost-majority"),
    *("namesake", "rot", "migrations", "tired", "refetch"),
}
"""What hangs on more than one machine, or on what came before, has a storm that goes on until it came and much was said."""
BRIEF = replace(SMALL, storms=1)
"""A storm of one kind of fault is over at its time, however little was said in it."""
OFTEN = Knobs(density=4)
"""The first strike comes after 0.4 s instead of 1.6, and most kinds strike again before the second is over."""


@pytest.mark.parametrize("kind", [kind for kind in RATES if kind != GIVING_UP])
def test_a_fault_comes_at_its_rate_and_the_cluster_finds_back(kind: str) -> None:
    rates = {kind: 1.0} | ({NEEDED[kind]: 1.0} if kind in NEEDED else {})
    if kind in OF_ALL:
        result = run_seed(2, rates=rates, storm_ns=2 * SECOND, digest=False)
    else:
        result = run_seed(2, rates=rates, storm_ns=SECOND, digest=False, shape=BRIEF, knobs=OFTEN)
    assert result.violation is None, str(result.violation)
    assert set(result.faults) == set(rates)


@pytest.mark.slow
def test_what_nobody_can_spare_goes_and_an_operator_gives_it_up() -> None:
    """Of what clients were told nothing is judged any more; everything else is."""
    result = run_seed(
        6, rates={GIVING_UP: 3.0, "wipe": 2.0, "kill": 2.0, "old-disk": 1.0}, storm_ns=4 * SECOND, digest=False
    )
    assert result.violation is None, str(result.violation)
    assert result.faults[GIVING_UP]


def test_without_rates_nothing_goes_wrong_and_everything_is_done() -> None:
    result = run_seed(1, rates={}, storm_ns=4 * SECOND, digest=False)
    assert result.violation is None, str(result.violation)
    assert result.faults == {}
    assert set(WORKLOADS) - {"strays"} <= {name for name, count in result.done.items() if count >= 10}


def test_a_node_refuses_to_start_with_damage_and_takes_all_from_its_peers_once_it_is_wiped() -> None:
    with _written_to() as world:
        machine = world.machines["n2"]
        machine.stop("power cut")
        live = machine.disk.names()[0]
        machine.disk.overwrite(live, SECTOR, b"\xa5" * SECTOR)  # and behind it there are blocks that verify
        before = machine.disk.image(live)
        assert not machine.start()
        assert machine.why.startswith("LogDamaged")
        assert machine.disk.image(live) == before, "a refusal changes nothing"
        machine.wipe()
        assert machine.start()
        assert world.run_while(lambda: bool(unsettled(world)), at_most=30 * SECOND), unsettled(world)
        compare_copies(world)


def test_the_end_of_a_log_is_spared_if_nobody_who_is_there_has_heard_of_it() -> None:
    with _written_to() as world:
        faults, machine = Faults(world, {"damage": 1.0}, pause_ns=SECOND), world.machines["n1"]
        world.run_for(5 * SECOND)
        assert machine.node is not None
        end = machine.node.core.durable_lsn - 1
        assert faults._is_remembered(machine, end), "two others have heard of more"
        world.machines["n2"].stop("power cut")
        assert not faults._is_remembered(machine, end), "one of them has forgotten it, and is a majority with this one"
        assert faults._is_remembered(machine, end + 1), "there is nothing to forget"


def test_a_node_stops_when_its_disk_refuses_and_comes_back_with_everything_it_had_promised() -> None:
    with _written_to() as world:
        machine = world.machines["n3"]
        machine.disk.fail("sync", 1)
        client = world.add_client("c2")
        writing = client.spawn(_set_up_in_the_end(client))
        assert world.run_while(lambda: machine.up, at_most=5 * SECOND)
        assert machine.why.startswith("DiskError")
        machine.disk.repair()
        assert machine.start()
        assert world.run_while(lambda: not writing.done or bool(unsettled(world)), at_most=30 * SECOND), unsettled(world)
        assert writing.failure is None


async def _set_up_in_the_end(client: Client) -> None:
    """Whose node ends in the midst of it may find it aborted, and begins again."""
    try:
        await set_up(client)
    except errors.Conflict:
        await set_up(client)


def test_of_what_was_not_synced_any_subset_may_survive() -> None:
    with _written_to() as world:
        machine = world.machines["n1"]
        offered: list[Unsynced] = []

        def every_other(thing: Unsynced) -> bool:
            offered.append(thing)
            return len(offered) % 2 == 0

        _let_it_write(world, machine)
        machine.stop("power cut", torn=every_other, calls=1)
        assert offered, "something was on its way to the disk"
        assert machine.start()
        assert world.run_while(lambda: bool(out_of_sync(world)), at_most=30 * SECOND), out_of_sync(world)


def _let_it_write(world: World, machine: Machine) -> None:
    client = world.add_client("c2")
    client.spawn(set_up(client))
    assert world.run_while(lambda: not machine.busy, at_most=5 * SECOND, look_every=1_000), "it never writes"


def _written_to(partitions: int = 4, backups: int = 2) -> World:
    """Three nodes that hold the bank and the ring; a checkpoint never comes."""
    settings = Settings(
        cluster="sim", partitions=partitions, backups=backups, checkpoint_ms=3_600_000, wal_segment_bytes=64 << 10
    )
    world = World(Draws("faults"), settings)
    for name in NAMES:
        world.add_machine(name)
    world.form(NAMES)
    client = world.add_client("c1")
    writing = client.spawn(set_up(client))
    assert world.run_while(lambda: not writing.done, at_most=10 * SECOND)
    assert writing.failure is None
    return world


def test_a_disk_is_spared_on_which_a_map_relies_that_is_being_made() -> None:
    """One whose report does not get through is left out of it: then the others must have a copy of everything."""
    with _written_to(partitions=16, backups=1) as world:
        leading, victim = world.machines["n1"], world.machines["n3"]
        faults = Faults(world, {"wipe": 1.0}, pause_ns=SECOND)
        assert faults.spares_enough(victim)
        world.network.cut("unheard", [("n2", "n1")])
        world.command(leading, "stop", {})
        assert leading.node is not None
        exchange = leading.node.exchange
        assert world.run_while(lambda: exchange.attempt is None, at_most=5 * SECOND, look_every=MS)
        assert not faults.spares_enough(victim), "n2 has not reported"
        exchange.attempt = None
        assert faults.spares_enough(victim)


def test_a_disk_is_spared_where_whoever_else_has_reported_leaves_with_the_map_that_is_being_made() -> None:
    with _written_to(partitions=16, backups=2) as world:
        leading, victim = world.machines["n1"], world.machines["n3"]
        faults = Faults(world, {"wipe": 1.0}, pause_ns=SECOND)
        world.network.cut("unheard", [("n2", "n1")])
        world.command(leading, "stop", {})
        assert leading.node is not None
        exchange = leading.node.exchange
        assert world.run_while(lambda: exchange.attempt is None, at_most=5 * SECOND, look_every=MS)
        attempt = exchange.attempt
        assert attempt is not None
        assert world.run_while(lambda: len(attempt.singles) < 2, at_most=5 * SECOND, look_every=MS)
        assert list(attempt.singles) == ["n1", "n3"]
        assert attempt.intent.leaving == ["n1"]
        assert not faults.spares_enough(victim)
        attempt.intent.leaving = []
        assert faults.spares_enough(victim)


def test_who_has_left_is_heard_again_whoever_starts_it() -> None:
    """Its disk rots meanwhile, and whoever sees to that starts it: nobody dials a machine that is gone for good."""
    with _written_to() as world:
        machine = world.machines["n3"]
        world.command(machine, "stop")
        assert world.run_while(lambda: not machine.gone, at_most=10 * SECOND)
        world.run_for(5 * SECOND)  # the others give it up
        assert machine.start()
        assert world.run_while(lambda: bool(out_of_sync(world)), at_most=30 * SECOND), out_of_sync(world)
