"""Lives of one disk, in numbers that no story would write down."""

from __future__ import annotations

from engine.turn.settings import Settings
from rebalance.lives import LIVES_KEPT, LIVES_SAID
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.network import MS
from tests.sim.world import SECOND, World
from wal.ids import NodeId

NODES: list[NodeId] = ["n1", "n2", "n3"]


def _starts_again(machine: Machine) -> None:
    machine.stop("killed", process_only=True)
    assert machine.start()


def test_a_node_that_started_a_hundred_times_unheard_still_has_its_vote() -> None:
    """n3 heard an early one of its lives and none after it, and n2 is gone for good: n1 and n3 are the majority.

    n1 has all that it ever had: its disk was not set back, however many lives lie between the one that n3 heard and this.
    """
    with World(Draws(1), Settings(cluster="sim", partitions=8, backups=2)) as world:
        for name in NODES:
            world.add_machine(name)
        world.form(NODES)
        n1, n2, n3 = (world.machines[name] for name in NODES)
        n2.stop("gone for good")
        _starts_again(n1)

        def unheard() -> bool:
            assert n1.node is not None
            assert n3.node is not None
            return not any(claim.incarnation == n1.node.core.incarnation for claim in n3.node.claims.known())

        assert world.run_while(unheard, at_most=SECOND, look_every=MS)
        world.network.cut("alone", [("n1", "n3"), ("n3", "n1")])
        for _ in range(LIVES_SAID + 36):
            _starts_again(n1)
            world.run_for(10 * MS)
        assert n1.node is not None
        assert LIVES_SAID < len(n1.node.core.lives_before) < LIVES_KEPT
        world.network.heal()
        assert world.run_while(lambda: not world.serving(["n1", "n3"]), at_most=30 * SECOND)
