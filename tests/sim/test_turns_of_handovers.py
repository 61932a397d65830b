"""What a turn costs while partitions are handed over, or are led elsewhere from now on, counted in functions it calls.

Nothing new begins on what is to be handed over, and in each turn it is looked whether what has begun is over.
"""

from __future__ import annotations

from engine.messages import CaughtUp, HandOver
from engine.protocol.requests import CommitTx, Done, Get
from engine.turn.events import Received
from engine.turn.settings import Settings
from rebalance.partition import Role
from tests.sim.draws import Draws
from tests.sim.test_turns_of_data import Busy, Stand, _node, _one, _tx
from tests.sim.world import SECOND, World
from wal.ids import Ballot


def _hand_over(stand: Stand, numbers: list[int]) -> None:
    """The node is told to, by itself."""
    node = _node(stand.machine)
    core = node.core
    said = HandOver(core.version, Ballot(node.exchange.promised.round + 1, core.node), numbers)
    stand.machine.receive(Received(core.node, core.allocation, core.incarnation, said))


def test_what_is_handed_over_already_costs_no_turn_anything() -> None:
    """Of thousands of partitions one key of one is held: each turn looks for that, and at no partition."""
    many = 4_000
    with World(Draws(1), Settings(cluster="sim", partitions=many, backups=0)) as world:
        stand = Stand(world, ["n1"], _one(1))
        stand.lock_all(_tx(1), _one(1))
        node = _node(stand.machine)
        first = world.costs = Busy()
        _hand_over(stand, list(range(many)))
        assert world.run_while(lambda: not node.exchange.held_up, at_most=SECOND)
        assert all(local.role is Role.DRAINING for local in node.core.local)
        assert first.most <= 2 * many
        later = world.costs = Busy()
        stand.ask(Get(9, "n", _one(1)))
        world.run_for(SECOND // 10)
        assert later.most
        assert node.exchange.held_up == [_tx(1).hex()]
        assert later.most <= many // 4, later.over
        assert world.run_while(lambda: node.exchange.held_up != [], at_most=60 * SECOND)
        assert not node.locks.is_owner(_tx(1)), "it was waited for long enough"
        assert world.run_while(lambda: node.core.local[0].role is Role.DRAINING, at_most=60 * SECOND)
        assert all(local.role is Role.PRIMARY for local in node.core.local), "no step came"


def test_very_many_transactions_that_touch_nothing_of_what_is_handed_over_cost_a_turn_little() -> None:
    many, partitions = 4_000, 4
    keys = [b"k%d" % n for n in range(many)]
    settings = Settings(cluster="sim", partitions=partitions, backups=0, lock_lease_ms=600_000)
    with World(Draws(1), settings) as world:
        stand = Stand(world, ["n1"], keys)
        node = _node(stand.machine)
        held = node.core.topology.place("n", keys[0]) if node.core.topology is not None else 0
        for n, key in enumerate(keys):
            stand.ask(CommitTx(n, _tx(n), _tx(n), True, [("n", [key], [b"v"])], [], [], prepare_only=True))
        assert world.run_while(lambda: len(stand.replies) < many, at_most=30 * SECOND)
        assert all(isinstance(reply, Done) for reply in stand.replies)
        _hand_over(stand, [held])
        assert world.run_while(lambda: not node.exchange.held_up, at_most=SECOND)
        calls = world.costs = Busy()
        stand.ask(Get(many, "n", [keys[0]]))
        world.run_for(SECOND // 10)
        assert calls.most
        assert 0 < len(node.exchange.held_up) < many // 2
        assert calls.most <= many // 4, calls.over


def test_copies_that_primaries_vouch_for_all_at_once_are_left_to_later_turns() -> None:
    many, said = 4_000, 20
    with World(Draws(1), Settings(cluster="sim", partitions=many, backups=0)) as world:
        stand = Stand(world, ["n1"], _one(1))
        core = _node(stand.machine).core
        calls = world.costs = Busy()
        message = CaughtUp(core.fence, [(number, "n2") for number in range(many)], [], core.version)
        for _ in range(said):
            stand.machine.receive(Received(core.node, core.allocation, core.incarnation, message))
        world.run_for(SECOND // 10)
        assert many < calls.most <= 6 * many, calls.over
