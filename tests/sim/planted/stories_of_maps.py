"""Stories of maps and primaries: two coordinators, a lost disk, a deposed primary, gaps, copies that are still loading."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from engine.client.calls import Call, GetCall, LockCall, PutCall, SwapCall
from engine.messages import Replicate, Replicated
from rebalance.table import Placement
from tests.sim.draws import Draws
from tests.sim.explore.catalogue import WORLDS
from tests.sim.explore.nodes import Happening
from tests.sim.explore.search import Walk
from tests.sim.machine import all_of
from tests.sim.network import MS, Rule
from tests.sim.oracles import watch
from tests.sim.planted import deeds
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key, told
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant, World
from wal import records as r

MAPS = Stories()
story = MAPS.story

# The exchange.


@story
def a_committed_map_is_found_by_the_next_coordinator(plant: Plant | None) -> None:
    """n1 commits a map with n2's accept and dies before anybody hears of it; n2 restarts, and n3 is back."""
    with Stage(plant) as stage:
        stage.power_cut("n3")
        untold = stage.lose("commit", "n1")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: node.core.version.major == 2, "n1 commits a map without n3")
        stage.power_cut("n1", "n2")
        stage.end(untold)
        stage.start("n2", "n3")
        stage.wait(8_000)
        stage.curtain()


@story
def two_accepted_maps_and_the_higher_ballot(plant: Plant | None) -> None:
    """n1 alone accepts its map; n2's is accepted by n2, n3 and n4, and n2 alone knows that, when it dies. n1 comes back."""
    with Stage(plant, nodes=5) as stage:
        stage.put(key(0), b"first")
        first, second = stage["n1"].node, stage["n2"].node
        assert first is not None
        assert second is not None
        version = second.core.version
        unheard = stage.lose("full-map", "n1")
        stage.power_cut("n5")
        stage.until(lambda: bool(first.exchange.accepted[1]), "n1 accepted its own map")
        others = [pair for other in ("n2", "n3", "n4", "n5", "c1") for pair in (("n1", other), (other, "n1"))]
        stage.world.network.cut("n1 is alone", others)
        silent = stage.lose("commit", "n2")
        stage.until(lambda: second.core.version > version, "n2 committed its map")
        stage.power_cut("n2")
        stage.world.network.heal()
        stage.end(unheard, silent)
        stage.until(lambda: first.core.version > version, "n1 has a map")
        stage.curtain()


@story
def a_voter_misses_the_map_that_settled_a_claim(plant: Plant | None) -> None:
    """n5 is cut off while n1 starts again, is let in and dies; it takes a map without n1, which is back with all it had."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, backups=0)) as stage:
        stage.put(key(0), b"n1 alone has it")
        stage.wait(2_000)
        others = [pair for other in ("n1", "n2", "n3", "n4") for pair in (("n5", other), (other, "n5"))]
        stage.world.network.cut("n5 is alone", others)
        stage.left_out("n5")
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.start("n1")
        stage.until(lambda: stage.primary(0, "n1"), "n1 serves again")
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.world.network.heal()
        stage.until(
            lambda: (newest := stage.world.newest()) is not None and newest.member("n5") is not None, "n5 is let in"
        )
        stage.curtain()


@story
def a_voter_is_wiped_between_two_ballots(plant: Plant | None) -> None:
    """n2 promised n1, and then decides with n3; its new disk, which promised nothing, gets n1's old proposal."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, exchange_retry_ms=5_000)) as stage:
        first, third = stage["n1"].node, stage["n3"].node
        assert first is not None
        assert third is not None
        version = third.core.version
        unheard = stage.lose("full-map", "n1")
        stage.power_cut("n2")
        stage.start("n2")
        stage.until(lambda: first.exchange.attempt is not None and bool(first.exchange.attempt.proposed), "n1 proposes")
        alone = [pair for other in ("n2", "n3") for pair in (("n1", other), (other, "n1"))]
        stage.world.network.cut("n1 is alone", alone)
        stage.until(lambda: third.core.version > version, "n3 has a map")
        second = stage["n2"]
        second.stop("it is wiped", calls=0)
        second.wipe()
        stage.world.destroyed(second, "lost its disk")
        stage.end(unheard)
        stage.world.network.heal()
        stage.world.network.cut("n3 is alone", [pair for n in ("n1", "n2") for pair in (("n3", n), (n, "n3"))])
        stage.start("n2")
        stage.wait(3_000)
        stage.curtain()


@story
def a_voter_is_set_back_when_all_lost_their_power(plant: Plant | None) -> None:
    """n1 and n2 decide a map that n3 never sees; all lose their power; n2's disk is an old image, and n1 stays away."""
    with Stage(plant, absent=1) as stage:
        stage.put(key(0), b"first")
        first, second = stage["n1"].node, stage["n2"]
        assert first is not None
        version = first.core.version
        disk, vault = second.disk.crash(all_of), second.vault.copy()
        rules = [stage.lose("announce", "", "n3"), stage.lose("full-map", "", "n3"), stage.lose("commit", "n1")]
        stage.start("n4")
        stage.until(lambda: first.core.version > version, "n1 committed a map")
        stage.wait(1_000)
        stage.power_cut("n1", "n2", "n3", "n4")
        second.vault.close()
        second.disk, second.vault = disk, vault
        stage.world.destroyed(second, "was set back to an old image of its disk")
        stage.end(*rules)
        stage.start("n2", "n3")
        stage.wait(12_000)
        stage.curtain()


@story
def two_operators_form_a_cluster(plant: Plant | None) -> None:
    """Two operators give the order to form a cluster of the same nodes, at two of them and at the same moment."""
    with World(Draws("a story"), SETTINGS, plant=plant) as world:
        names = ["n1", "n2", "n3"]
        for name in names:
            world.add_machine(name)
        oracles = watch(world)
        for name in names:
            world.machines[name].start()
        world.run_for(2 * SECOND)
        for name in names[:2]:
            world.command(world.machines[name], "init", {"cluster": [f"c-{name}"], "nodes": names})
        world.run_for(8 * SECOND)
        oracles.finish(world)


@story
def an_order_about_an_older_baseline(plant: Plant | None) -> None:
    """n2 and n1 are told different baselines; n1 does what it was told, and dies, and n2 leads."""
    with Stage(plant, nodes=4) as stage:
        late = stage.lose("set-baseline")
        stage.world.command(stage["n2"], "baseline", {"nodes": ["n1", "n2", "n3"]})
        stage.world.command(stage["n1"], "baseline", {"nodes": ["n1", "n2", "n4"]})
        stage.wait(4_000)
        stage.end(late)
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.wait(4_000)
        newest = stage.world.newest()
        assert newest is not None
        stage.must(newest.baseline == ("n1", "n2", "n4"), f"the last order holds, not {', '.join(newest.baseline)}")
        stage.curtain()


@story
def a_baseline_that_cannot_decide_waits(plant: Plant | None) -> None:
    """n2 is told of a baseline without n3; n1, who does not hear of it, and n4 die, and n2 leads."""
    with Stage(plant, nodes=5) as stage:
        late = stage.lose("set-baseline")
        stage.world.command(stage["n2"], "baseline", {"nodes": ["n1", "n2", "n4", "n5"]})
        stage.wait(100)
        stage.end(late)
        stage.power_cut("n1", "n4")
        stage.wait(4_000)
        put = stage.begin_put(key(0), b"1")
        stage.wait(4_000)
        stage.must(told(put), "three of five write, though two of them would be too few of the four that are ordered")
        stage.start("n1", "n4")
        stage.curtain()


@story
def a_copy_that_beats_and_does_not_answer(plant: Plant | None) -> None:
    """All that is replicated to n2 is lost, and nothing else."""
    with Stage(plant) as stage:
        lost = stage.lose("replicate", "", "n2")
        put = stage.begin_put(key(0), b"1")
        stage.wait(4_000)
        stage.must(told(put), "a write waits for a copy that does not answer no longer than an exchange takes")
        stage.end(lost)
        stage.wait(15_000)
        stage.curtain()


@story
def a_copy_misses_a_batch_three_times(plant: Plant | None) -> None:
    """One write is lost on its way to n2, and twice more, and nothing else ever is: n2 is not set aside for that."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")

        def is_a_write(sender: str, receiver: str, said: object) -> bool:
            if (sender, receiver) != ("n1", "n2") or not isinstance(said, Replicate):
                return False
            return any(isinstance(record, r.Update) for record in said.records)

        lost = Rule("replicate", is_a_write, drop=True, left=3)
        stage.world.network.rules.append(lost)
        put = stage.begin_put(key(0), b"2")
        stage.wait(2_500)
        stage.must(lost.caught == 3 and told(put), "what was lost three times comes the fourth time")
        newest = stage.world.newest()
        assert newest is not None
        stage.must("n2" in newest.placements[0].in_sync, "n2 answers all that it gets, and is in sync")
        stage.curtain()


@story
def a_node_is_stopped_and_another_dies(plant: Plant | None) -> None:
    """n3 is stopped in good order, n1 dies, n3 comes back: two of the three that were meant to hold data."""
    with Stage(plant) as stage:
        stage.world.command(stage["n3"], "stop")
        stage.wait(3_000)
        stage.power_cut("n1")
        stage.wait(2_000)
        stage["n3"].gone = False
        stage.start("n3")
        stage.wait(6_000)
        stage.must(stage["n2"].node is not None and stage["n2"].node.core.quorum, "two of three voters are a majority")
        stage.curtain()


@story
def a_coordinator_that_nobody_accepts(plant: Plant | None) -> None:
    """n1 proposes a map which no other node gets to see, and dies; the others make one of their own."""
    with Stage(plant) as stage:
        stage.power_cut("n3")
        unseen = [stage.lose("full-map", "n1"), stage.lose("commit", "n1")]
        stage.until(lambda: unseen[0].caught > 1, "n1 proposes")
        stage.power_cut("n1")
        stage.end(*unseen)
        stage.start("n3")
        stage.wait(8_000)
        stage.curtain()


def _two_coordinators(plant: Plant | None, *, restart: bool = False, announce: bool = False) -> None:
    """n1 and n2 hear only n3, and both want to lead; n3 promised n2 the higher ballot, and n1 asks again and again."""
    with Stage(plant) as stage:
        unheard = [stage.lose("single-map", "n3", "n1")] if announce else []
        stage.world.network.cut("apart", [("n2", "n1")])
        stage.wait(250)  # n1 is the first to miss the other
        stage.world.network.cut("apart", [("n1", "n2"), ("n2", "n1")])
        held = [stage.lose("full-map", "n1", "n3"), stage.lose("full-map", "n2", "n3")]
        untold = stage.lose("commit")
        stage.until(lambda: held[1].caught > 0, "n2 was promised a higher ballot and proposes")
        if restart:
            stage.power_cut("n3")
            stage.start("n3")
        stage.end(held[0], *unheard)
        stage.wait(1_500)
        stage.end(held[1])
        stage.wait(1_500)
        stage.end(untold)
        stage.curtain()


@story
def a_promise_to_the_second_of_two_coordinators(plant: Plant | None) -> None:
    """n1 and n2 both lead an exchange, and n3, which has promised n2 the higher ballot, is asked by n1 again."""
    _two_coordinators(plant)


@story
def an_announcement_after_a_promise_to_another(plant: Plant | None) -> None:
    """The same, and n1 has not even heard n3's answer to its announcement, which it repeats."""
    _two_coordinators(plant, announce=True)


@story
def a_promise_survives_a_restart(plant: Plant | None) -> None:
    """The same, and n3 loses its power in between."""
    _two_coordinators(plant, restart=True)


@story
def a_partition_moves_to_a_new_node(plant: Plant | None) -> None:
    """n4 takes the place of n3 in the baseline; what n3 has goes only when n4 has it."""
    with Stage(plant, absent=1) as stage:
        for partition in range(4):
            stage.put(key(partition), b"1")
        stage.start("n4")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: node.core.topology is not None and node.core.topology.member("n4") is not None, "n4 joins")
        stage.world.command(stage["n1"], "baseline", {"nodes": ["n1", "n2", "n4"]})
        stage.wait(8_000)
        stage.curtain()


# Primaries.


@story
def a_deposed_primary_is_read(plant: Plant | None) -> None:
    """Nobody hears n1, which hears everybody and does not learn that n2 took its place; a client reads at both."""

    def read(name: bytes) -> Call:
        return GetCall(NAMESPACE, [name])

    _ask_a_deposed_primary(plant, read, lambda call: isinstance(call, GetCall) and call.values[0][2])


@story
def a_copy_that_was_left_behind_is_asked_for_something_new(plant: Plant | None) -> None:
    """The same with a stale read that may be a second old: n1 knows that it does not know, and n2 has it."""

    def read(name: bytes) -> Call:
        return GetCall(NAMESPACE, [name], stale=True, age_ms=1_000)

    _ask_a_deposed_primary(plant, read, lambda call: isinstance(call, GetCall) and call.values[0][2], idle_ms=1_500)


@story
def a_copy_with_a_prepared_transaction_is_asked_for_something_new(plant: Plant | None) -> None:
    """A transaction is committed, and its client told; no copy of a participant hears of its end."""
    with Stage(plant) as stage:
        x, y = key(1), key(0)
        stage.put(x, b"old")
        stage.put(y, b"old")
        stage.lose("finish")
        transaction = stage.transaction()
        stage.do(transaction.put(NAMESPACE, {y: b"new", x: b"new"}))
        stage.do(transaction.commit())
        for name in ("n1", "n2", "n3"):
            here = stage.another(without=[other for other in ("n1", "n2", "n3") if other != name])
            call = GetCall(NAMESPACE, [x], stale=True, age_ms=5_000)
            stage.begin(here.call(call, timeout_ns=1_000 * MS), here)
            stage.wait(1_500)
            stage.must(call.values[0][2] != b"old", "what was acknowledged is not missing")
        stage.curtain()


@story
def a_deposed_primary_is_asked_to_write_on_a_condition(plant: Plant | None) -> None:
    """The same with a put_if_absent, which does not apply, and so tells what n1 believes to stand there."""

    def write(name: bytes) -> Call:
        return SwapCall(bytes(15) + b"s", NAMESPACE, name, "absent", new=b"mine")

    _ask_a_deposed_primary(plant, write, lambda call: isinstance(call, SwapCall) and call.found)


@story
def a_deposed_primary_is_asked_for_a_lock(plant: Plant | None) -> None:
    """The same with a lock, which reads what it locks."""

    def lock(name: bytes) -> Call:
        return LockCall(bytes(15) + b"o", NAMESPACE, [name], 1_000)

    _ask_a_deposed_primary(plant, lock, lambda call: isinstance(call, LockCall) and call.values[0][2])


@story
def a_deposed_primary_hands_over_a_lock(plant: Plant | None) -> None:
    """What ends a transaction is on all copies, and their answers come late to n1: when somebody stands in line for its key
    who came after they were given, and when n2 has taken its place and the key was written there."""
    with Stage(plant) as stage:
        world = stage.world
        here = world.add_client("c2", host=stage["n1"])
        x = key(0)
        stage.put(x, b"old")
        stage.must(stage.get(x, here) == b"old", "what was written is read")
        holder = stage.transaction()
        stage.do(holder.put(NAMESPACE, {x: b"older"}))
        late = Rule("answers", lambda _, dst, said: dst == "n1" and isinstance(said, Replicated), drop=False)
        world.network.rules.append(late)
        stage.begin(holder.commit())
        stage.until(lambda: late.caught > 1, "both copies have it")
        call = LockCall(bytes(15) + b"o", NAMESPACE, [x], 60_000)
        waiting = stage.begin(here.call(call, timeout_ns=20_000 * MS), here)
        stage.wait(100)
        world.network.cut("deaf", [("n1", "n2"), ("n1", "n3")])
        for kind in ("announce", "full-map", "commit"):
            stage.lose(kind, receiver="n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.put(x, b"new", stage.another(without=["n1"]))
        world.network.release([late], [held for held in world.network.held if held.rule is late])
        stage.wait(1_000)
        if told(waiting):
            stage.must(call.values[0][2] == b"new", "what is told after an acknowledged write knows of it")
        stage.curtain()


def _ask_a_deposed_primary(
    plant: Plant | None, ask: Callable[[bytes], Call], found: Callable[[Call], object], *, idle_ms: int = 0
) -> None:
    with Stage(plant) as stage:
        world = stage.world
        here = world.add_client("c2", host=stage["n1"])
        x = key(0)
        stage.put(x, b"old")
        stage.must(stage.get(x, here) == b"old", "what was written is read")
        world.network.cut("deaf", [("n1", "n2"), ("n1", "n3")])
        for kind in ("announce", "full-map", "commit"):
            stage.lose(kind, receiver="n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.put(x, b"new", stage.another(without=["n1"]))
        stage.wait(idle_ms)
        call = ask(x)
        late = stage.begin(here.call(call, timeout_ns=10_000 * MS), here)
        stage.wait(1_000)
        if told(late):
            stage.must(found(call) == b"new", "what is told after an acknowledged write knows of it")
        stage.curtain()


@story
def a_deposed_primary_goes_on_writing(plant: Plant | None) -> None:
    """n1 was cut off with a write that nobody has; when it is heard again it says it again, before it knows of n2."""
    with Stage(plant) as stage:
        world = stage.world
        here = stage.another(without=["n2", "n3"])
        stage.put(key(0), b"first", here)
        world.network.cut("off", [(a, b) for a in ("n1",) for b in ("n2", "n3")])
        ignorant = stage.lose("commit", receiver="n1")
        call = PutCall(here.new_tx(), NAMESPACE, [key(0)], [b"stray"])
        stray = stage.begin(here.call(call, timeout_ns=ANSWER_NS), here)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.put(key(0), b"second", stage.another(without=["n1"]))
        world.network.heal("off")
        stage.wait(3_000)
        acknowledged = told(stray)
        stage.end(ignorant)
        stage.curtain()
        stage.must(not acknowledged, "a primary that was deposed acknowledges nothing")


@story
def gaps_on_the_copies(plant: Plant | None) -> None:
    """n1's first batch reaches nobody, its second one reaches n2 and n3; n1 dies, and n2 must close the gap."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        lost = stage.lose("replicate", "n1")
        stage.begin_put(key(0), b"lost")
        stage.until(lambda: lost.caught > 0, "the first batch is lost")
        stage.end(lost)
        lost = stage.lose("replicated", receiver="n1")
        stage.begin_put(key(0, 1), b"found")
        stage.until(lambda: lost.caught > 1, "the second one arrives")
        stage.power_cut("n1")
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(500)
        stage.compare()
        stage.curtain()


@story
def two_of_three_copies_die(plant: Plant | None) -> None:
    """Five nodes; n2 gets nothing, n3 answers; n1 and n3 die, and what was acknowledged must be on n2."""
    with Stage(plant, nodes=5) as stage:
        stage.put(key(0), b"first")
        silent = stage.lose("replicate", "n1", "n2")
        doing = stage.begin_put(key(0), b"second")
        stage.wait(100)
        acknowledged = told(doing)
        stage.power_cut("n1", "n3")
        stage.client.die()
        stage.end(silent)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        found = stage.get(key(0), stage.another())
        stage.must(found == b"second" or not acknowledged, f"an acknowledged write is read; found {found!r}")
        stage.curtain()


@story
def a_primary_dies_while_only_a_loading_copy_has_answered(plant: Plant | None) -> None:
    """n2 gets nothing, n3 is loading and answers; n1 dies, and what it acknowledged must be on n2."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n3")
        stage.left_out("n3")
        unsupplied = stage.lose("settled", "n3")
        stage.start("n3")
        stage.until(lambda: unsupplied.caught > 0, "n3 is loading")
        silent = stage.lose("replicate", "n1", "n2")
        doing = stage.begin_put(key(0), b"second")
        stage.wait(300)
        stage.succeeded(doing, b"second", silent, unsupplied)
        stage.curtain()


@story
def the_last_in_sync_copy_goes_away(plant: Plant | None) -> None:
    """n1 alone is in sync, n2 is loading; n1 dies, and its partition is lost until it is back."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.put(key(0), b"second")
        unsupplied = stage.lose("supply", "n1", "n2")
        stage.start("n2")
        stage.until(lambda: unsupplied.caught > 0, "n2 is loading")
        stage.power_cut("n1")
        stage.wait(4_000)
        reading = stage.begin_get(key(0))
        stage.wait(2_000)
        stage.end(unsupplied)
        if told(reading):
            stage.must(reading.result == b"second", "an acknowledged write is read")
        stage.rest()
        stage.must(stage.get(key(0)) == b"second", "an acknowledged write is read when its copy is back")
        stage.curtain()


@story
def everybody_loses_power(plant: Plant | None) -> None:
    """A write is acknowledged, and all nodes lose their power."""
    with Stage(plant) as stage:
        for number in range(3):
            stage.put(key(0, number), b"here")
        stage.power_cut("n1", "n2", "n3")
        stage.start("n1", "n2", "n3")
        for number in range(3):
            found = stage.get(key(0, number))
            stage.must(found == b"here", f"what was acknowledged is there when the power is back; found {found!r}")
        stage.curtain()


@story
def a_write_that_only_another_copy_has(plant: Plant | None) -> None:
    """n1's last write reached n3 and not n2; n1 dies, and n2 becomes primary and asks n3."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        lost = stage.lose("replicate", "n1", "n2")
        stage.begin_put(key(0), b"second")
        stage.wait(50)
        stage.power_cut("n1")
        stage.end(lost)
        stage.client.die()
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.wait(500)
        stage.compare()
        stage.curtain()


@story
def a_promotion_waits_for_a_survivor(plant: Plant | None) -> None:
    """n2 is named primary and cannot hear what n3 has; somebody writes meanwhile."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        lost = stage.lose("replicate", "n1", "n2")
        stage.begin_put(key(0), b"second")
        stage.wait(50)
        unheard = stage.lose("tail", "n3", "n2")
        stage.power_cut("n1")
        stage.end(lost)
        stage.client.die()
        stage.left_out("n1")
        writer = stage.another(without=["n1"])
        stage.begin(writer.call(PutCall(writer.new_tx(), NAMESPACE, [key(0)], [b"third"]), timeout_ns=ANSWER_NS), writer)
        stage.wait(200)
        stage.end(unheard)
        stage.wait(1_500)
        stage.compare()
        stage.curtain()


@story
def a_primary_moves_by_a_step_while_a_write_is_under_way(plant: Plant | None) -> None:
    """p1 moves from n3 to n2, which lacks n3's last write and does not hear what the others have; somebody writes."""
    with Stage(plant) as stage:
        stage.put(key(1), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        unasked = stage.lose("hand-over")
        stage.start("n2")
        oldest = stage["n1"].node
        assert oldest is not None

        def placement() -> Placement:
            assert oldest.core.topology is not None
            return oldest.core.topology.placements[1]

        stage.until(lambda: len(placement().in_sync) == 3, "n2 has an in-sync copy of partition 1")
        lost = stage.lose("replicate", "n3", "n2")
        stage.begin_put(key(1), b"second")
        stage.wait(50)
        stage.client.die()
        unheard = stage.lose("tail", receiver="n2")
        stage.end(unasked)
        stage.until(lambda: placement().primary == "n2", "n2 is to be primary of partition 1")
        writer = stage.another()
        stage.begin(writer.call(PutCall(writer.new_tx(), NAMESPACE, [key(1)], [b"third"]), timeout_ns=ANSWER_NS), writer)
        stage.wait(200)
        stage.end(lost, unheard)
        stage.until(lambda: stage.primary(1, "n2"), "n2 is primary of partition 1")
        stage.wait(1_500)
        stage.compare()
        stage.must(stage.primary(1, "n2") and not stage.primary(1, "n3"), "one node serves partition 1")
        stage.curtain()


@story
def who_was_primary_is_let_go_and_does_not_know(plant: Plant | None) -> None:
    """n2 is to hold nothing any more; p1 moves to n3, and n2 hears neither of that nor of what follows."""
    with Stage(plant, nodes=4, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(1), b"old")
        waiting = stage.lose("drained", "n2")
        stage.world.command(stage["n1"], "baseline", {"nodes": ["n1", "n3", "n4"]})
        stage.until(lambda: waiting.caught > 0, "partition 1 is to move")
        unheard = [stage.lose("commit-step", receiver="n2"), stage.lose("commit", receiver="n2")]
        stage.end(waiting)
        stage.until(lambda: (top := stage.world.newest()) is not None and top.placements[1].primary == "n3", "it moves")
        stage.wait(3_000)
        stage.must(not (stage.primary(1, "n2") and stage.primary(1, "n3")), "who leads next waits for who led before")
        stage.end(*unheard)
        stage.curtain()


@story
def a_read_before_the_epoch_is_on_the_copies(plant: Plant | None) -> None:
    """Five nodes; n2 becomes primary with a write that n3 lacks, and n3 does not get it; it is read, and n2 dies."""
    with Stage(plant, nodes=5) as stage:
        stage.put(key(0), b"first")
        lost = stage.lose("replicate", "n1", "n3")
        stage.begin_put(key(0), b"second")
        stage.wait(50)
        stage.power_cut("n1")
        stage.client.die()
        stage.end(lost)
        lost = stage.lose("replicate", "n2", "n3")
        stage.left_out("n1")
        reading = stage.begin_get(key(0), stage.another(without=["n1"]))
        stage.wait(300)
        seen = reading.result if told(reading) else None
        stage.power_cut("n2")
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n3"), "n3 is primary of partition 0")
        found = stage.get(key(0), stage.another(without=["n1", "n2"]))
        stage.must(seen in (None, found), f"what was read stays; read {seen!r}, and then {found!r}")
        stage.curtain()


@story
def live_writes_come_before_the_supply(plant: Plant | None) -> None:
    """n1 returns with a write that was not continued, and gets n2's new writes before it has undone its own."""
    with Stage(plant) as stage:
        x, y = key(0), key(0, 1)
        stage.put(x, b"first")
        lost = stage.lose("replicate", "n1")
        both = PutCall(stage.client.new_tx(), NAMESPACE, [x, y], [b"stray", b"stray"])
        stage.begin(stage.client.call(both, timeout_ns=ANSWER_NS))
        stage.until(lambda: lost.caught > 0, "n1 has logged two updates")
        stage.wait(20)
        stage.client.die()
        stage.power_cut("n1")
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        writer = stage.another(without=["n1"])
        stage.put(x, b"second", writer)
        unasked = stage.lose("demand", "n1")
        stage.start("n1")
        stage.until(lambda: unasked.caught > 0, "n1 is back")
        both = PutCall(writer.new_tx(), NAMESPACE, [x, y], [b"third", b"third"])
        stage.do(writer.call(both, timeout_ns=ANSWER_NS), writer)
        stage.wait(100)
        stage.curtain()


@story
def a_disk_is_set_back_behind_a_vote(plant: Plant | None) -> None:
    """n3 has a transaction prepared, and comes back with an image of its disk from before that."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        stage.power_cut("n3")
        third = stage["n3"]
        disk, vault = third.disk.copy(), third.vault.copy()
        stage.start("n3")
        stage.rest()
        tx = stage.transaction(optimistic=True)
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.prepare())
        third.stop("it is set back")
        third.vault.close()
        third.disk, third.vault = disk, vault
        stage.world.destroyed(third, "was set back to an old image of its disk")
        stage.start("n3")
        stage.until(lambda: stage.primary(2, "n3"), "n3 is back")
        committing = stage.begin(tx.commit())
        stage.until(lambda: committing.done, "the commit is answered")
        stage.curtain()


@story
def who_comes_back_is_listed_and_not_relied_on(plant: Plant | None) -> None:
    """n2 misses a write of n1 and is let in by a step; what it is sent is lost, and n1 fails: n2 must not lead."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.put(key(0), b"second")
        unsent = stage.lose("supply", receiver="n2")
        stage.start("n2")
        stage.until(lambda: stage.listed("n2"), "n2 is let in")
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.wait(2_000)
        stage.end(unsent)
        stage.start("n1")
        stage.must(stage.get(key(0)) == b"second", "what was acknowledged is read")
        stage.curtain()


@story
def who_was_set_back_joins_by_a_step_and_has_a_vote(plant: Plant | None) -> None:
    """n3 is let in by a step on an old image of its disk; then n1 is gone, and n3 starts again: it votes with n2."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        third = stage["n3"]
        disk, vault = third.disk.copy(), third.vault.copy()
        stage.put(key(1), b"second")
        stage.wait(1_000)
        third.stop("it is set back")
        third.vault.close()
        third.disk, third.vault = disk, vault
        stage.world.destroyed(third, "was set back to an old image of its disk")
        stage.left_out("n3")
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is let in")
        stage.rest()
        stage.power_cut("n1", "n3")
        stage.start("n3")
        stage.until(lambda: stage.primary(0, "n2"), "n2 and n3 are a majority")
        stage.put(key(0), b"third")
        stage.curtain()


@story
def light_steps_beside_another_coordinator(plant: Plant | None) -> None:
    """n1 proposes light steps while n3, which has heard of none of its ballots, begins exchanges: in every order."""
    _walk("light-step", plant, depth=15)


@story
def who_leads_next_asks_for_promises(plant: Plant | None) -> None:
    """n1 is about to go and may yet propose a step, while n2 asks for promises and lets it go: in every order."""
    _walk("leave", plant, depth=8)


@story
def other_voters_beside_who_led_before(plant: Plant | None) -> None:
    """n1 alone has voted, all three do by a step of it, and n2 and n3, who promised nothing, make a map: in every order."""
    _walk("baseline", plant, depth=12)


@story
def a_ballot_is_to_stand_where_a_step_was_accepted(plant: Plant | None) -> None:
    """n3 has accepted a step of n1, which has yet to hear of it, when n2 asks all for their promises, and lets it go."""
    if (walk := _begun("leave", plant)) is None:
        return
    walk.happen(Happening("step", "n1"))
    walk.deliver_all(lambda letter: letter.receiver == "n3")
    walk.happen(Happening("stand", "n2"))
    walk.deliver_all(lambda letter: letter.kind in {"lead-steps", "follows"})
    walk.deliver_all(lambda letter: letter.kind == "accept-step")
    walk.happen(Happening("let-go", "n2", names=("n1",)))
    walk.deliver_all(lambda letter: "n1" not in {letter.sender, letter.receiver})
    walk.deliver_all()
    if said := walk.world.judge(walk.state.facts):
        raise Violation("one-map", said)


@story
def a_voter_that_accepted_a_step_loses_its_power(plant: Plant | None) -> None:
    """n2 accepts a step of n1, says so and loses its power; n3, which heard of nothing, goes on with it."""
    if (walk := _begun("step-and-power", plant)) is None:
        return
    begin = Happening("begin", "n3", names=("n2", "n3"))
    walk.happen(Happening("step", "n1"))
    walk.deliver_all(lambda letter: letter.kind == "propose-step")
    for _ in range(2):  # by then its ballot is above that of n1
        walk.happen(begin)
        walk.deliver_all(lambda letter: "n1" not in {letter.sender, letter.receiver})
    walk.happen(Happening("start", "n2"))
    walk.happen(begin)
    walk.deliver_all(lambda letter: "n1" not in {letter.sender, letter.receiver})
    walk.deliver_all()
    if said := walk.world.judge(walk.state.facts):
        raise Violation("one-map", said)


def _begun(name: str, plant: Plant | None) -> Walk | None:
    """A small world where it begins (`tests.sim.explore`); none for a plant that is for whole nodes."""
    if plant is not None and plant.__module__ == deeds.__name__:
        return None  # its nodes are rules alone
    world = WORLDS[name]
    walk = Walk(world, plant)
    world.begin(walk)
    return walk


def _walk(name: str, plant: Plant | None, *, depth: int) -> None:
    """Walk a small world, so many steps far: however long it takes, else a busy machine would find nothing."""
    if (walk := _begun(name, plant)) is None:
        return
    found = walk.search(depth=depth, seconds=inf)
    if found.violation:
        raise Violation("one-map", str(found))
    assert found.whole or found.depth == depth, str(found)
