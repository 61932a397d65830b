"""Stories of who is in the map and who is waited for: slow disks, broken links, orders of a person."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.client.calls import PutCall
from engine.data.sizes import size_of
from engine.messages import Message, Replicate, Supply
from rebalance.going import going
from tests.conversations.in_turn import in_turn
from tests.sim.draws import Draws
from tests.sim.namesakes import Namesake
from tests.sim.network import MS, Rule
from tests.sim.observer import Observer
from tests.sim.oracles import compare_copies
from tests.sim.oracles.equality import CONTENTS_EVERY
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, PARTITIONS, REST_NS, SETTINGS, Stage, Stories, key, told
from tests.sim.transactions import SimTransaction
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant, World
from wal import records as r
from wal.ids import DECISIONS, NodeId

LINK_BYTES_PER_S = 1 << 20
LARGE_BYTES = 3 << 20
MEMBERS = Stories()
story = MEMBERS.story


def _slow(stage: Stage, name: NodeId, sync_ms: int = 1_000) -> None:
    """Each sync of a node's disk takes so long from now on."""
    speed = stage[name].speed
    speed.slow, speed.slow_until = sync_ms * MS // speed.sync, 1 << 62


def _in_sync(stage: Stage, partition: int) -> tuple[NodeId, ...]:
    newest = stage.world.newest()
    assert newest is not None
    return newest.placements[partition].in_sync


def _busy(stage: Stage, seconds: int, partition: int = 0) -> None:
    """There is something to sync all the time."""
    for _ in range(4 * seconds):
        stage.begin_put(key(partition), b"busy")
        stage.wait(250)


@story
def a_second_slow_disk_and_then_the_last_fast_one_breaks(plant: Plant | None) -> None:
    """Of three copies two are slow, one after the other; then the third is lost. The slow ones are here and answer."""
    with Stage(plant, nodes=5) as stage:
        _slow(stage, "n2")
        _busy(stage, 10)
        stage.must(_in_sync(stage, 0) == ("n1", "n3"), "one slow copy of three is not waited for")
        _slow(stage, "n3")
        _busy(stage, 10)
        stage.put(key(0), b"acknowledged")
        first = stage["n1"]
        first.stop("its disk broke", calls=0)
        first.wipe()
        stage.world.destroyed(first, "lost its disk")
        stage.until(lambda: stage.primary(0, "n3"), "the slow copy serves")
        for name in ("n2", "n3"):
            stage[name].speed.slow_until = 0
        stage.start("n1")
        stage.wait(40_000)
        stage.curtain()


@story
def the_last_other_copy_beats_and_does_not_answer(plant: Plant | None) -> None:
    """n2 is away, and all that is replicated to n3 is lost: a write to n1 waits for what is no slow copy."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, suspicion_ms=600)) as stage:
        stage.power_cut("n2")
        stage.left_out("n2")
        lost = stage.lose("replicate", "", "n3")
        put = stage.begin_put(key(0), b"1")
        stage.wait(9_000)
        stage.must(told(put), "a write waits for a copy that never answers no longer than the slowest disk may take")
        stage.end(lost)
        stage.wait(15_000)
        stage.curtain()


@story
def two_members_do_not_hear_each_other(plant: Plant | None) -> None:
    """n2 and n3 are cut off from each other, and everyone else hears both."""
    with Stage(plant, nodes=5) as stage:
        stage.put(key(1), b"1")
        stage.world.network.cut("a link", [("n2", "n3"), ("n3", "n2")])
        stage.wait(8_000)
        put = stage.begin_put(key(1), b"2")
        stage.wait(3_000)
        stage.must(told(put), "one of two that do not hear each other is left out, and the rest goes on")
        stage.curtain()


@story
def the_one_with_the_data_does_not_hear_an_older_one(plant: Plant | None) -> None:
    """n2, which was away and has all of a partition, and n3, which has nothing, are cut off from each other."""
    its = key(PARTITIONS - 1)  # of the second half
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, partitions=2, backups=0)) as stage:
        stage.put(its, b"1")
        stage.power_cut("n2")
        stage.wait(4_000)
        stage.start("n2")
        stage.wait(8_000)
        stage.put(its, b"2")
        stage.world.network.cut("a link", [("n2", "n3"), ("n3", "n2")])
        stage.wait(8_000)
        put = stage.begin_put(its, b"3")
        stage.wait(3_000)
        stage.must(told(put), "who has the data stays, and who has none is left out")
        stage.curtain()


@story
def a_coordinator_with_a_slow_disk(plant: Plant | None) -> None:
    """Syncs of n1 and n2 take longer than n1 waits for answers. Of three no two are set aside, so n1 lets n3 in again."""
    quick = msgspec.structs.replace(
        SETTINGS,
        suspicion_ms=400,
        heartbeat_ms=60,
        connection_lost_ms=120,
        exchange_delay_ms=40,
        exchange_retry_ms=200,
        exchange_drain_ms=200,
        retransmit_ms=100,
    )
    with Stage(plant, settings=quick) as stage:
        for name in ("n1", "n2"):
            _slow(stage, name)
        _busy(stage, 5)
        stage.power_cut("n3")
        stage.start("n3")
        _busy(stage, 7)
        newest = stage.world.newest()
        assert newest is not None
        stage.must([m.node for m in newest.members] == ["n1", "n2", "n3"], "nobody is left out who is healthy")
        stage.must(newest.version.major == 2, "who has restarted is let in")
        stage.must(newest.version.minor <= 2, f"one exchange is enough, and not {newest.version.minor}")
        for name in ("n1", "n2"):
            stage[name].speed.slow_until = 0
        stage.wait(30_000)
        stage.curtain()


@story
def a_slow_coordinator_is_set_aside_by_the_next_one(plant: Plant | None) -> None:
    """Each sync of n1's disk takes a second. All stop while it is set aside, for no longer than two of these."""
    with Stage(plant, nodes=5) as stage:
        _slow(stage, "n1")
        stopped: list[int] = []

        def aside() -> bool:
            stage.begin_put(key(0), b"busy")
            if any(machine.node is not None and machine.node.core.frozen for machine in stage.world.running):
                stopped.append(stage.world.now)
            return "n1" not in _in_sync(stage, 0)

        stage.until(aside, "the slow one is set aside", look_every=50 * MS)
        took = (stopped[-1] - stopped[0]) // MS
        stage.must(took < 2_000, f"all stand still for less than two syncs of one disk, and not for {took} ms")
        stage["n1"].speed.slow_until = 0
        stage.wait(30_000)
        stage.curtain()


def _rests(stage: Stage) -> None:
    """n3 is set aside for being slow, and is not slow any more: it asks for nothing for a while."""
    _slow(stage, "n3")
    _busy(stage, 10)
    stage.must("n3" not in _in_sync(stage, 0), "one slow copy of three is not waited for")
    stage["n3"].speed.slow_until = 0


def _beyond(stage: Stage) -> int:
    """How many updates n3 keeps beyond a gap in partition 0."""
    node = stage["n3"].node
    assert node is not None
    return len(node.core.replica.fragment((NAMESPACE, 0)).beyond)


def _ends_something_at_n3(_: str, receiver: str, said: object) -> bool:
    return (
        receiver == "n3" and isinstance(said, Replicate) and any(isinstance(record, r.Outcome) for record in said.records)
    )


@story
def who_rests_and_lacks_something_is_written_to(plant: Plant | None) -> None:
    """n3 rests and is away for one write: it keeps none of what comes after, which would lie in memory for minutes."""
    with Stage(plant) as stage:
        _rests(stage)
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(0), b"missed")
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is a member again")
        for at in range(40):
            stage.put(key(0), b"%d" % at)
        stage.must("n3" not in _in_sync(stage, 0), "who was set aside rests, though it started again")
        stage.must(
            _beyond(stage) <= 1, f"but for what tells of a gap nothing waits behind it, and not {_beyond(stage)} updates"
        )
        stage.wait(10_000)
        stage.must("n3" in _in_sync(stage, 0), "it was supplied")
        stage.curtain()


@story
def who_rests_and_lacks_nothing_is_written_to(plant: Plant | None) -> None:
    """n3 rests, and lacks nothing but how a transaction ended: what is written meanwhile need not be supplied later."""
    with Stage(plant) as stage:
        _rests(stage)
        stage.wait(1_000)
        outcomes = Rule("outcomes", _ends_something_at_n3, drop=True)
        stage.world.network.rules.append(outcomes)
        transaction = stage.transaction()

        async def both() -> None:
            await transaction.put(NAMESPACE, {key(0, 1): b"both", key(1, 1): b"both"})
            await transaction.commit()

        stage.do(both())
        for at in range(40):
            stage.put(key(0), b"%d" % at)
        stage.must(_beyond(stage) > 1, "it has not heard how the transaction ended")
        stage.end(outcomes)
        stage.wait(2_000)
        first, third = stage["n1"].node, stage["n3"].node
        assert first is not None
        assert third is not None
        written, taken = (n.core.replica.fragment((NAMESPACE, 0)).counter.lwm for n in (first, third))
        stage.must("n3" not in _in_sync(stage, 0), "it rests")
        stage.must(written == taken, f"a copy without a gap goes on taking: it stands at {taken} of {written}")
        stage.wait(20_000)
        stage.curtain()


@story
def two_of_three_disks_are_slow(plant: Plant | None) -> None:
    """n2 does not get the answers of n1 and n3 in time, and says so of both; they blame nobody."""
    with Stage(plant) as stage:
        for name in ("n1", "n3"):
            _slow(stage, name, 1_500)
        for _ in range(10):
            for partition in range(3):
                _busy(stage, 1, partition)
        stage.must("n2" in _in_sync(stage, 0), "the only fast one is waited for")
        for name in ("n1", "n3"):
            stage[name].speed.slow_until = 0
        stage.wait(60_000)
        stage.curtain()


@story
def who_waits_for_an_exchange_takes_its_leader_for_slow(plant: Plant | None) -> None:
    """n1 lets n4 in, and the others do not hear of it for a while; n1 has stopped, and answers no write of n3."""
    quick = msgspec.structs.replace(SETTINGS, suspicion_ms=400, heartbeat_ms=60, connection_lost_ms=120, backups=1)
    with Stage(plant, settings=quick, absent=1) as stage:
        first = stage["n1"].node
        assert first is not None
        lost = [stage.lose("announce", "n1", name) for name in ("n2", "n3")]
        stage.start("n4")
        stage.until(lambda: first.exchange.attempt is not None, "n4 is to be let in")
        ballot = first.exchange.attempt.ballot if first.exchange.attempt is not None else None
        put = stage.begin_put(key(2), b"1")
        stage.wait(1_500)
        stage.must(first.exchange.promised == ballot, f"who waits bids no higher, and not {first.exchange.promised}")
        stage.end(*lost)
        stage.until(lambda: told(put), "all go on")
        stage.curtain()


@story
def a_copy_in_sync_empties_itself(plant: Plant | None) -> None:
    """n2 must undo what it has forgotten. No oracle watches meanwhile: no seed is to come to that."""
    with World(Draws("a story"), SETTINGS, affinity=in_turn, plant=plant) as world:
        names = ["n1", "n2", "n3"]
        for name in names:
            world.add_machine(name)
        world.form(names)
        client, node = world.add_client("c1"), world.machines["n2"].node
        assert node is not None
        put = client.spawn(client.call(PutCall(client.new_tx(), NAMESPACE, [key(0)], [b"1"]), timeout_ns=ANSWER_NS))
        world.run_for(4 * SECOND)
        assert told(put)
        fragment = node.core.replica.fragment((NAMESPACE, 0))
        fragment.note_stable(fragment.counter.lwm)
        node.core.log(r.Undo(NAMESPACE, 0, 0, []))
        assert fragment.loading
        if not world.run_while(lambda: fragment.loading or not node.core.local[0].in_sync, at_most=REST_NS):
            raise Violation("story", "an emptied copy leaves the in-sync set, catches up, and is let back in")
        compare_copies(world)


@story
def a_partition_is_lost_twice_and_ordered_once(plant: Plant | None) -> None:
    """n1 has the only copy and goes; the order to begin again is not heard by n2, who leads; n1 returns, and both go."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, backups=0)) as stage:
        stage.put(key(0), b"1")
        stage.power_cut("n1")
        stage.left_out("n1")
        unheard = stage.lose("reset-lost")
        stage.world.command(stage["n3"], "reset-lost", {"yes": []})
        stage.wait(1_000)
        stage.start("n1")
        stage.until(lambda: stage.primary(0, "n1"), "n1 is back with its copy")
        stage.put(key(0), b"2")
        stage.power_cut("n1", "n2")
        stage.left_out("n1")
        stage.wait(5_000)
        stage.end(unheard)
        stage.start("n1", "n2")
        stage.until(lambda: stage.primary(0, "n1"), "n1 is back with its copy, once more")
        stage.must(stage.get(key(0)) == b"2", "an order about a partition that was LOST is void once it was found")
        stage.curtain()


@story
def the_best_of_two_old_copies(plant: Plant | None) -> None:
    """n3 missed one write, n1 the next; then n2's disk is lost, and the operator lets the partition begin again."""
    with Stage(plant, nodes=5) as stage:
        stage.put(key(0), b"all have it")
        stage.wait(2_000)
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(0), b"n1 and n2 have it")
        stage.wait(2_000)
        stage.power_cut("n1")
        stage.left_out("n1")
        stage.put(key(0), b"n2 alone has it")
        _lose(stage, "n2")
        stage.start("n1", "n3")
        stage.wait(5_000)
        stage.world.command(stage["n4"], "reset-lost", {"yes": []})
        stage.wait(3_000)
        stage.must(stage.get(key(0), stage.another()) == b"n1 and n2 have it", "the best copy that is left is taken")


def _compared(stage: Stage) -> None:
    """What copies have is compared with all that any ever had at the same counters."""
    for _ in range(CONTENTS_EVERY):
        stage.wait(100)


@story
def what_is_left_has_undone_a_write(plant: Plant | None) -> None:
    """n1 has undone what n2 went on without, and has yet to hear what stood there before when n2's disk burns. The operator
    lets the partition begin again with what there is."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"1")
        stage.wait(2_000)
        unheard = stage.lose("replicate", "n1", "n2")
        stage.begin_put(key(0), b"2")
        stage.wait(300)
        stage.power_cut("n1")
        stage.client.die()
        stage.end(unheard)
        stage.until(lambda: stage.primary(0, "n2"), "n2 goes on alone")
        stage.put(key(0, 1), b"3", stage.another())
        _compared(stage)
        lost = _lose_rows(stage)
        stage.start("n1")
        stage.until(lambda: bool(_suspects(stage, "n1")), "n1 has undone what it alone had")
        _lose(stage, "n2")
        stage.end(lost)
        stage.wait(5_000)
        stage.world.command(stage["n4"], "reset-lost", {"yes": []})
        stage.until(lambda: stage.primary(0, "n1"), "n1 begins again with what it has")
        _compared(stage)
        stage.put(key(0, 2), b"4", stage.another())
        stage.start("n2")
        stage.until(lambda: "n2" in _in_sync(stage, 0), "n2 gets all of that from it")


@story
def a_commit_is_lost_with_its_decision(plant: Plant | None) -> None:
    """n1 has decided a commit of which n2 has heard and n3 has not when n1's disk burns. Its partition begins again with
    nothing, and so knows of no transaction."""
    with Stage(plant, nodes=4, settings=msgspec.structs.replace(SETTINGS, backups=0)) as stage:
        keys = [key(0), key(1), key(2)]
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, dict.fromkeys(keys, b"1")))
        unheard = stage.lose("finish", "n1", "n3")
        stage.do(tx.commit())
        stage.wait(100)
        _lose(stage, "n1")
        stage.client.die()
        stage.end(unheard)
        stage.left_out("n1")
        stage.wait(1_000)
        stage.world.command(stage["n2"], "reset-lost", {"yes": []})
        reader = stage.another()
        found = [stage.get(one, reader) for one in keys]
        stage.must(found[1:] == [b"1", b"1"], f"what is left of a transaction that was committed is committed: {found}")
        stage.curtain()


@story
def a_commit_that_is_lost_with_its_decision_is_asked_for_again(plant: Plant | None) -> None:
    """The same, and before n3 asks for the outcome the client, who was not answered, asks again for its commit."""
    with Stage(plant, nodes=4, settings=msgspec.structs.replace(SETTINGS, backups=0)) as stage:
        keys = [key(0), key(1), key(2)]
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, dict.fromkeys(keys, b"1")))
        unheard, unresolved = stage.lose("finish", "n1", "n3"), stage.lose("resolve")
        stage.world.network.cut("deaf", [("n1", "c1")])
        committing = stage.begin(tx.commit())
        stage.wait(100)
        _lose(stage, "n1")
        stage.end(unheard)
        stage.left_out("n1")
        stage.wait(1_000)
        stage.world.command(stage["n2"], "reset-lost", {"yes": []})
        stage.until(lambda: committing.done, "its client is told what became of it")
        stage.end(unresolved)
        reader = stage.another()
        found = [stage.get(one, reader) for one in keys]
        stage.must(found[1:] == [b"1", b"1"], f"what is left of a transaction that was committed is committed: {found}")
        stage.must(told(committing), f"its client was told {committing.failure!r}")
        stage.curtain()


@story
def it_is_asked_what_became_of_a_commit_that_is_lost_with_its_decision(plant: Plant | None) -> None:
    """The same, and somebody asks for its status, who does not know where else it wrote."""
    with Stage(plant, nodes=4, settings=msgspec.structs.replace(SETTINGS, backups=0)) as stage:
        keys = [key(0), key(1), key(2)]
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, dict.fromkeys(keys, b"1")))
        unheard, unresolved = stage.lose("finish", "n1", "n3"), stage.lose("resolve")
        stage.do(tx.commit())
        stage.wait(100)
        _lose(stage, "n1")
        stage.client.die()
        stage.end(unheard)
        stage.left_out("n1")
        stage.wait(1_000)
        stage.world.command(stage["n2"], "reset-lost", {"yes": []})
        reader = stage.another()
        outcome = stage.status(tx.tx, 0, reader)
        stage.end(unresolved)
        found = [stage.get(one, reader) for one in keys]
        stage.must(found[1:] == [b"1", b"1"], f"what is left of a transaction that was committed is committed: {found}")
        stage.must(outcome == "committed", f"and its status is {outcome}")
        stage.curtain()


@story
def a_majority_is_lost_that_had_gone_on(plant: Plant | None) -> None:
    """n3 is away; n1 and n2 have made another map when their disks are lost, and n3 goes on by force."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(0), b"2")
        _lose(stage, "n1", "n2")
        stage.start("n3")
        stage.wait(3_000)
        stage.world.command(stage["n3"], "recover", {"nodes": ["n3"], "yes": []})
        stage.until(lambda: stage.primary(0, "n3"), "n3 goes on")
        stage.put(key(0), b"3", stage.another())


def _lose(stage: Stage, *names: NodeId) -> None:
    """The disks of these nodes burn."""
    for name in names:
        machine = stage[name]
        machine.stop("its disk broke", calls=0)
        machine.wipe()
        stage.world.destroyed(machine, "lost its disk")


def _goes_on_alone(stage: Stage) -> None:
    """The disks of n1 and n2 are lost, and n3 goes on by force."""
    _lose(stage, "n1", "n2")
    stage.wait(3_000)
    stage.world.command(stage["n3"], "recover", {"nodes": ["n3"], "yes": []})
    stage.until(lambda: stage.primary(2, "n3"), "n3 goes on")


@story
def whoever_decided_leads_on_in_another_epoch(plant: Plant | None) -> None:
    """n3 reads its decisions anew as it goes on; what it was about to forget before is among them."""
    with Stage(plant) as stage:
        first = stage.transaction()
        stage.do(first.put(NAMESPACE, {key(2): b"1", key(0): b"1"}))
        stage.do(first.commit())
        stage.wait(1_000)
        _goes_on_alone(stage)
        client = stage.another()
        second = SimTransaction(client, timeout_ns=ANSWER_NS)
        stage.do(second.put(NAMESPACE, {key(2): b"2", key(0): b"2"}), client)
        stage.do(second.commit(), client)
        stage.wait(1_000)
        node = stage["n3"].node
        assert node is not None
        used = node.core.replica.fragment((DECISIONS, 2)).counter.hwm
        stage.must(used == 3, f"two decisions, and one that is forgotten, are three updates and not {used}")


@story
def nobody_heard_how_a_transaction_ended(plant: Plant | None) -> None:
    """n3 logs how it ended, and the disks of those who should hear it are lost; n3 goes on, in another epoch."""
    with Stage(plant) as stage:
        node = stage["n3"].node
        assert node is not None
        opened = node.replication.open_records
        transaction = stage.transaction()
        stage.do(transaction.put(NAMESPACE, {key(2): b"1", key(0): b"1"}))
        stage.begin(transaction.commit())
        stage.until(lambda: any(isinstance(o, r.Outcome) for o in opened()), "it is logged", look_every=MS // 20)
        _goes_on_alone(stage)
        stage.until(lambda: not node.participant.in_doubt(), "nothing is in doubt")


@story
def a_node_dies_and_another_process_has_its_name(plant: Plant | None) -> None:
    """Somebody started a second process under the name of n2, on an empty disk, which hears and says all that n2 does."""
    with Stage(plant) as stage:
        stage.put(key(1), b"before")
        other = Namesake(stage.world, stage["n2"], draw=1, number=1)
        stage.wait(2_000)
        stage.put(key(0), b"with both")
        stage["n2"].stop("killed", process_only=True)
        stage.until(lambda: stage.primary(1, "n3"), "nobody takes the other one for n2")
        stage.put(key(1), b"without n2")
        stage.wait(1_000)
        other.end()
        stage.start("n2")
        stage.curtain()


# Who goes.


def _is_update(said: object) -> bool:
    return isinstance(said, Replicate) and any(isinstance(record, r.Update) for record in said.records)


def _noted(stage: Stage, name: NodeId) -> bool:
    """Whether a node has heard that it is about to go."""
    node = stage[name].node
    return node is not None and node.core.topology is not None and name in going(node.core.topology)


@story
def who_goes_has_not_heard_that_it_leads_no_more(plant: Plant | None) -> None:
    """n3 is let go, and hears no map after the one that notes that; it is read, and so is who leads in its place."""
    with Stage(plant) as stage:
        stage.put(key(2), b"old")
        here = stage.another(without=["n1", "n2"])
        stage.must(stage.get(key(2), here) == b"old", "what was acknowledged is read")
        stage.world.command(stage["n3"], "stop")
        stage.until(lambda: _noted(stage, "n3"), "n3 is noted to go", look_every=MS // 20)
        unheard = [stage.lose(kind, receiver="n3") for kind in ("commit", "commit-step")]
        writing = stage.begin(
            (there := stage.another(without=["n3"])).call(
                PutCall(there.new_tx(), NAMESPACE, [key(2)], [b"new"]), timeout_ns=ANSWER_NS
            ),
            there,
        )
        stage.wait(1_500)
        found = stage.begin_get(key(2), here)
        stage.wait(500)
        stale = told(writing) and told(found) and found.result == b"old"
        stage.must(not stale, "what is acknowledged is read")
        stage.end(*unheard)
        stage.curtain()


@story
def a_write_waits_for_who_goes(plant: Plant | None) -> None:
    """n3 does not hear of a write of n1's, and goes in good order; the write counts without it."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        stage.world.command(stage["n3"], "stop")
        stage.until(lambda: _noted(stage, "n3"), "n3 is noted to go", look_every=MS // 20)
        unheard = Rule("the put", lambda _, dst, said: dst == "n3" and _is_update(said), drop=True)
        stage.world.network.rules.append(unheard)
        writing = stage.begin_put(key(0), b"second")
        stage.left_out("n3")
        stage.until(lambda: writing.done, "it is answered")
        stage.end(unheard)
        stage.curtain()


def _lose_rows(stage: Stage) -> Rule:
    """Lose what supplies rows, and not what begins with saying which writes are to be undone."""
    rule = Rule("rows", lambda _src, _dst, said: isinstance(said, Supply) and bool(said.rows), drop=True)
    stage.world.network.rules.append(rule)
    return rule


def _suspects(stage: Stage, name: NodeId) -> Mapping[bytes, int]:
    """The keys of partition 0 of which a copy has yet to hear what stood there before it undid a write."""
    node = stage[name].node
    assert node is not None
    return node.core.replica.fragment((NAMESPACE, 0)).suspects


class _Large(Observer):
    """How many large batches came to a copy."""

    def __init__(self) -> None:
        self.count = 0

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Count."""
        self.count += isinstance(message, Replicate) and size_of(message.records) >= LARGE_BYTES


@story
def large_values_go_over_links_of_one_megabyte(plant: Plant | None) -> None:
    """What n1 and n2 write takes each link for longer than it takes to be suspected, in both directions at once."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        names = [f"n{number}" for number in range(1, 4)]
        stage.world.network.narrow([(a, b) for a in names for b in names if a != b], LINK_BYTES_PER_S)
        said, before = _Large(), stage.world.newest()
        stage.world.watch([said])
        puts = [stage.begin_put(key(partition), bytes(LARGE_BYTES)) for partition in (0, 1)]
        stage.wait(500)
        puts.append(stage.begin_put(key(0, 1), b"behind it"))
        stage.wait(6_000)
        stage.must(all(map(told, puts)), "what is written is acknowledged as soon as it can have come to all copies")
        after = stage.world.newest()
        same = before is not None and after is not None and before.version == after.version
        stage.must(same, "nobody is left out, or set aside, whose link is busy")
        stage.must(said.count == 4, f"what is on its way is not sent once more: {said.count} came of 4")
        stage.curtain()
