"""Stories of migrations under an operator's orders: paused, resumed and limited, while nodes come, go and lead."""

from __future__ import annotations

import msgspec

from engine.client.calls import PutCall
from engine.messages import SetMigrations, Supply
from rebalance.migrations import NOT_ORDERED, Migrations, Paused
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key
from tests.sim.world import Plant

MIGRATIONS = Stories()
story = MIGRATIONS.story

LIMIT = 64 << 10
VALUE_BYTES = 16 << 10
VALUES = 40
"""Ten seconds of the limit, for a copy that takes them all."""


def _says(stage: Stage, name: str = "n1") -> Migrations:
    """What the map of a node says."""
    node = stage[name].node
    return node.core.topology.migrations if node is not None and node.core.topology is not None else NOT_ORDERED


def _order(stage: Stage, paused: Paused = Paused.NOTHING, limit: int = 0, *, by: str = "n1", seen: str = "") -> None:
    seen = seen or str(_says(stage, by).since)
    words: dict[str, list[str]] = {"seen": [seen], "paused": [str(paused)], "bytes_per_second": [str(limit)]}
    stage.world.command(stage[by], "migrations", words)


def _ordered(stage: Stage, paused: Paused = Paused.NOTHING, limit: int = 0) -> None:
    """Order it, and wait until it holds."""
    _order(stage, paused, limit)
    stage.until(lambda: (_says(stage).paused, _says(stage).bytes_per_second) == (paused, limit), "the order is carried out")


def _n4_takes_the_place_of_n3(stage: Stage) -> None:
    stage.start("n4")
    node = stage["n1"].node
    assert node is not None
    stage.until(lambda: node.core.topology is not None and node.core.topology.member("n4") is not None, "n4 joins")
    stage.world.command(stage["n1"], "baseline", {"nodes": ["n1", "n2", "n4"]})
    stage.until(lambda: node.core.topology is not None and "n4" in node.core.topology.baseline, "n4 is to hold data")


def _whole(stage: Stage, name: str) -> int:
    """Of how many partitions a node has a copy in sync, by the newest map."""
    newest = stage.world.newest()
    return 0 if newest is None else sum(name in p.in_sync for p in newest.placements)


def _fill(stage: Stage) -> None:
    """Rows of partition 0, some of them large."""
    for at in range(VALUES):
        put = PutCall(stage.client.new_tx(), NAMESPACE, [b"{k0}%05d" % at], [b"v" * VALUE_BYTES])
        stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))


def _weigh(stage: Stage) -> list[int]:
    """What is supplied from here on, in bytes; batches that bring nothing aside."""
    sent: list[int] = []

    def weigh(_src: str, _dst: str, said: object) -> bool:
        if isinstance(said, Supply) and (said.rows or said.writes):
            sent.append(said.size)
        return False

    stage.world.network.rules.append(Rule("supply", weigh, drop=True))
    return sent


@story
def a_pause_outlives_restarts_and_coordinators(plant: Plant | None) -> None:
    """n4 is to take the place of n3 while balancing is paused; all restart, the coordinator last; then it goes on."""
    with Stage(plant, absent=1) as stage:
        for partition in range(4):
            stage.put(key(partition), b"1")
        _ordered(stage, Paused.BALANCE)
        _n4_takes_the_place_of_n3(stage)
        for name in ("n3", "n2", "n1"):
            stage.power_cut(name)
            stage.left_out(name)
            stage.start(name)
            stage.until(lambda name=name: _says(stage, name).paused is Paused.BALANCE, f"{name} is back")  # type: ignore[misc]
        stage.wait(5_000)
        stage.must(_says(stage).paused is Paused.BALANCE, "an order holds until another one is given")
        _ordered(stage)
        stage.until(lambda: _whole(stage, "n4") == 4, "n4 has its copies")
        stage.curtain()


@story
def a_copy_that_would_be_better_elsewhere_waits(plant: Plant | None) -> None:
    """n4 is to take the place of n3 while balancing is paused: not a row moves, and no primary."""
    with Stage(plant, absent=1) as stage:
        for partition in range(4):
            stage.put(key(partition), b"1")
        _ordered(stage, Paused.BALANCE)
        sent = _weigh(stage)
        _n4_takes_the_place_of_n3(stage)
        stage.wait(5_000)
        stage.must(not sent and not _whole(stage, "n4"), "nothing moves that is paused")
        stage.must(stage.primary(2, "n3"), "no primary moves that is well where it is")
        _ordered(stage)
        stage.until(lambda: _whole(stage, "n4") == 4, "n4 has its copies")
        stage.curtain()


@story
def a_transfer_is_paused_while_it_is_under_way(plant: Plant | None) -> None:
    """n4 is taking large rows, slowly, when balancing is paused: what is supplied after that is nothing."""
    with Stage(plant, absent=1) as stage:
        _fill(stage)
        _ordered(stage, limit=LIMIT)
        sent = _weigh(stage)
        _n4_takes_the_place_of_n3(stage)
        stage.until(lambda: sum(sent) > LIMIT, "n4 is being filled")
        _ordered(stage, Paused.BALANCE, LIMIT)
        stage.wait(500)
        before = sum(sent)
        stage.wait(5_000)
        stage.must(sum(sent) == before, "nothing moves that is paused")
        _ordered(stage)
        stage.until(lambda: _whole(stage, "n4") == 4, "n4 has its copies")
        stage.curtain()


@story
def a_copy_is_missing_while_balancing_is_paused(plant: Plant | None) -> None:
    """n1 loses its disk while balancing is paused; its copies are made anew all the same, and n2 goes on leading."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        _ordered(stage, Paused.BALANCE)
        stage.power_cut("n1")
        stage.client.die()
        stage["n1"].wipe()
        stage.left_out("n1")
        stage.start("n1")
        stage.until(lambda: _whole(stage, "n1") == 4, "n1 has its copies")
        stage.wait(3_000)
        stage.must(stage.primary(0, "n2"), "no primary moves that is well where it is")
        _order(stage)
        stage.until(lambda: stage.primary(0, "n1"), "n1 leads again")
        stage.curtain()


@story
def a_primary_fails_while_everything_is_paused(plant: Plant | None) -> None:
    """n1 fails and comes back while all copying is paused: n2 leads at once, and n1 waits for the operator."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        _ordered(stage, Paused.ALL)
        stage.power_cut("n1")
        stage.client.die()
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.must(stage.get(key(0), stage.another()) == b"1", "a failover waits for nobody")
        stage.start("n1")
        stage.wait(3_000)
        stage.must(not _whole(stage, "n1"), "nothing is copied that is paused")
        _order(stage, by="n2")
        stage.until(lambda: _whole(stage, "n1") == 4, "n1 has its copies")
        stage.curtain()


@story
def a_copy_that_waits_is_written_to(plant: Plant | None) -> None:
    """n3 lacks some writes when all copying is paused: it keeps none of what is written then, which would lie in memory."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        _ordered(stage, Paused.ALL)
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(0), b"missed")
        stage.start("n3")
        stage.until(lambda: _says(stage, "n3").paused is Paused.ALL, "n3 is a member again")
        for at in range(VALUES):
            stage.put(key(0), b"%d" % at)
        node = stage["n3"].node
        assert node is not None
        waits = len(node.core.replica.fragment((NAMESPACE, 0)).beyond)
        stage.must(not waits, f"nothing of what is written waits behind a gap, and not {waits} updates: a supply brings it")
        _ordered(stage)
        stage.until(lambda: _whole(stage, "n3") == 4, "n3 has its copies")
        stage.curtain()


@story
def a_limit_is_kept_by_the_next_coordinator(plant: Plant | None) -> None:
    """n3 is filled anew under a limit, of which n1 dies that led when it was ordered."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, retransmit_ms=100)) as stage:
        _fill(stage)
        _ordered(stage, limit=LIMIT)
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.start("n1")
        stage.until(lambda: _whole(stage, "n1") == 4, "n1 is back")
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        sent, begun = _weigh(stage), stage.world.now
        stage.start("n3")
        stage.until(lambda: _whole(stage, "n3") == 4, "a limit is no end", look_every=100_000_000)
        took = (stage.world.now - begun) / 1e9
        most = 3 * (LIMIT * (took + 1) + VALUE_BYTES)  # each of the others supplies what it leads
        stage.must(sum(sent) <= most and took > 5, f"a limit is kept: {sum(sent)} bytes in {took:.1f} s")
        stage.curtain()


@story
def an_order_about_migrations_comes_late(plant: Plant | None) -> None:
    """n2 remembers a pause that n1 has carried out, and leads when it has been ended."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        _order(stage, Paused.ALL, by="n2")
        stage.until(lambda: _says(stage).paused is Paused.ALL, "the order is carried out")
        _ordered(stage)
        stage.power_cut("n1")
        stage.client.die()
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(2_000)
        stage.must(_says(stage, "n2").paused is Paused.NOTHING, "an order is carried out once")
        stage.curtain()


@story
def two_operators_order_at_once(plant: Plant | None) -> None:
    """n2 and n3 are told otherwise of the same map; what n3 says to n1 comes when n1 has carried out the first order."""
    with Stage(plant) as stage:
        network = stage.world.network
        late = Rule("set-migrations", lambda src, _, said: src == "n3" and isinstance(said, SetMigrations), drop=False)
        network.rules.append(late)
        _order(stage, Paused.ALL, by="n2")
        _order(stage, limit=LIMIT, by="n3")
        stage.until(lambda: _says(stage) != NOT_ORDERED, "an order is carried out")
        first = _says(stage)
        network.release([late], list(network.held))
        stage.wait(2_000)
        stage.must(_says(stage) == first, "of two orders on the same one holds")
        _order(stage, limit=LIMIT, by="n3", seen="0.0")
        stage.wait(500)
        stage.must(_says(stage) == first, "an order on what stands no more is refused")
        _ordered(stage)
        stage.curtain()
