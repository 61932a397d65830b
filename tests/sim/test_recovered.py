"""Going on by force with the disks that are left, of the most partitions there may be: in pieces, and not beside others."""

from __future__ import annotations

from engine.cluster.rescue import JUMP
from engine.protocol.requests import Admin, Failed, Report
from engine.turn.events import Asked
from engine.turn.settings import Settings
from rebalance.ports import MS, WORK_MAX
from tests.sim.draws import Draws
from tests.sim.machine import Machine
from tests.sim.majority import has_nothing
from tests.sim.test_costs import Fixed
from tests.sim.test_turns import PARTITIONS_MOST, Calls, CallsOfMaps, _node
from tests.sim.world import SECOND, World
from tests.support.probes import heard
from wal.ids import NodeId

NODES: list[NodeId] = ["n1", "n2", "n3"]
CALLS_MAX = 42_000
"""Of functions, in one turn."""
TAKEN_CALLS_MAX = PARTITIONS_MOST // 4
"""The same, of that in which the map takes effect: what it changes was found out before."""


def _lost(world: World) -> Machine:
    """The one that is left of three."""
    for name in NODES:
        world.add_machine(name)
    world.form(NODES)
    for name in NODES[1:]:
        world.machines[name].stop("its disk broke", process_only=True)
    world.run_for(5 * SECOND)
    return world.machines["n1"]


def test_who_is_left_works_the_next_map_out_in_pieces() -> None:
    """It took one turn: of 49,152 partitions 590 ms."""
    calls = Calls()
    with World(Draws(1), Settings(cluster="sim", partitions=PARTITIONS_MOST, backups=2), costs=calls) as world:
        left = _lost(world)
        calls.most = 0
        world.console.clear()
        world.command(left, "recover", {"nodes": ["n1"], "yes": []})
        assert world.run_while(lambda: not world.console, at_most=60 * SECOND)
        assert isinstance(world.console[-1], Report), world.console
        world.run_for(SECOND)
        assert left.node is not None
        assert left.node.core.serving
        assert [m.node for m in left.node.core.topology.members] == ["n1"]  # type: ignore[union-attr]  # it is formed
    assert calls.most <= CALLS_MAX, f"{calls.most} calls: {calls.over}"


def test_where_it_takes_effect_partitions_are_not_called_one_by_one() -> None:
    """All of them become this node's in one step: of 49,152 it was 54 ms, and there may be 65,535."""
    calls = CallsOfMaps()
    with World(Draws(1), Settings(cluster="sim", partitions=PARTITIONS_MOST, backups=2), costs=calls) as world:
        left = _lost(world)
        calls.most = 0
        world.command(left, "recover", {"nodes": ["n1"], "yes": []})
        node = _node(world, "n1")
        assert world.run_while(lambda: node.core.version.major < JUMP, at_most=60 * SECOND)
    assert 0 < calls.most <= TAKEN_CALLS_MAX, f"{calls.most} calls: {calls.over}"


def test_of_who_comes_back_while_that_goes_on_nothing_is_given_up() -> None:
    """The order was given where no majority was heard of; by the time the map is made one is, and may decide the next."""
    settings = Settings(cluster="sim", partitions=2 * WORK_MAX, backups=2)
    with World(Draws(1), settings, costs=Fixed(MS)) as world, heard() as reached:
        left = _lost(world)
        node = left.node
        assert node is not None
        before, rescue = node.core.version, node.rescue
        world.console.clear()
        world.command(left, "recover", {"nodes": ["n1"], "yes": []})
        assert world.run_while(lambda: rescue._asked is None or not rescue._asked.deciding, at_most=SECOND, look_every=MS)
        assert not world.console, "it is being worked out"
        node.core.quorum = True  # others are heard
        assert world.run_while(lambda: not world.console, at_most=60 * SECOND)
        assert isinstance(world.console[-1], Failed)
        assert "rescue.another_map_came" in reached
        assert node.core.version == before


def _answered(world: World, left: Machine, *orders: dict[str, list[str]]) -> dict[int, object]:
    """What operators are told who give these orders at once, each in a session of his own."""
    replies: dict[int, object] = {}
    for number, words in enumerate(orders):
        session = left.new_session(lambda reply, number=number: replies.update({number: reply}))  # type: ignore[misc]
        left.receive(Asked(session, Admin(1, "recover", words)))
    world.run_for(6 * SECOND)
    return replies


def test_whoever_looks_what_that_costs_does_not_keep_another_from_it() -> None:
    """The second order took the place of the first, which was never answered: here one that is meant."""
    with World(Draws(1), Settings(cluster="sim", partitions=8, backups=2)) as world:
        left = _lost(world)
        meant, looks = {"nodes": ["n1"], "yes": []}, {"nodes": ["n1"]}
        replies = _answered(world, left, meant, looks, meant)
        assert isinstance(replies[0], Report), replies
        assert isinstance(replies[1], Failed)
        assert "under way" in replies[1].message
        assert isinstance(replies[2], Failed)
        assert left.node is not None
        assert left.node.core.serving
        assert left.node.core.version.major > 1_000


def test_of_a_node_that_is_named_twice_two_answers_are_not_waited_for() -> None:
    with World(Draws(1), Settings(cluster="sim", partitions=8, backups=2)) as world:
        left = _lost(world)
        for command in ("recover", "remove", "baseline"):
            world.console.clear()
            world.command(left, command, {"nodes": ["n1", "n1"]})
            world.run_for(SECOND)
            assert [reply.message for reply in world.console if isinstance(reply, Failed)] == [
                "a node was named twice: expected each once"
            ]


def test_an_operator_goes_on_without_who_came_with_an_empty_disk() -> None:
    """It has been told the map, and has nothing of what that speaks of: it is not heard of for the member of its name."""
    with World(Draws(1), Settings(cluster="sim", partitions=8, backups=2)) as world:
        left = _lost(world)
        stranger = world.machines["n2"]
        stranger.wipe()
        stranger.start()
        world.run_for(5 * SECOND)
        assert stranger.node is not None
        assert stranger.node.core.topology is not None
        newest = world.newest()
        assert [has_nothing(machine, newest) for machine in (left, stranger)] == [False, True]
        for nodes, answer in ((["n1", "n2"], Failed), (["n1"], Report)):
            world.console.clear()
            world.command(left, "recover", {"nodes": nodes, "yes": []})
            assert world.run_while(lambda: not world.console, at_most=60 * SECOND)
            told = world.console[-1]
            assert isinstance(told, answer), told
            if isinstance(told, Failed):
                assert told.message.startswith("n2 came with another disk"), told
