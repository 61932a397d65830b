"""Stories of copies that catch up, and of what a checkpoint and a recovery keep."""

from __future__ import annotations

import msgspec

from engine.client.calls import PutCall
from engine.errors import CommitUnknown
from engine.messages import AcceptStep, Demand
from engine.protocol.requests import Done, Put
from engine.state.ahead import LARGE_KEYS
from engine.turn.events import Asked
from engine.turn.settings import Durability
from tests.sim.network import MS, Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, PARTITIONS, SETTINGS, Stage, Stories, key, told
from tests.sim.world import SECOND, Plant
from tests.support.memory_disk import Unsynced
from wal.ids import partition_of

DATA = Stories()
SOON_NS = 1 * SECOND
"""In which a copy is whole that had little to catch up. With a fault it may ask and be told without end meanwhile."""
story = DATA.story

# Requests that come late.


@story
def a_copy_of_a_request_comes_late_to_another_primary(plant: Plant | None) -> None:
    """A put was answered, that was acknowledged, and the answer forgotten. Then n1 is lost, and a copy of the request comes
    to n2, which never heard of its client: the map by which it was sent is older than n2's reign."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, answers_kept=1)) as stage:
        sent: list[Put] = []

        def listen(src: str, _dst: str, said: object) -> bool:
            if src == stage.client.name and isinstance(said, Put) and not sent:
                sent.append(said)
            return False

        stage.world.network.rules.append(Rule("the put", listen, drop=False))
        stage.put(key(0), b"first")
        for _ in range(20):
            stage.put(key(0), b"later")
        stage.wait(500)
        stage.power_cut("n1")
        stage.left_out("n1")
        replies: list[object] = []
        n2 = stage["n2"]
        n2.receive(Asked(n2.new_session(replies.append), sent[0]))
        stage.wait(500)
        stage.must(stage.get(key(0), stage.another()) == b"later", f"what was done long ago is not done again: {replies}")
        stage.curtain()


def _untold(stage: Stage) -> Rule:
    """The answers to a client are lost from now on."""
    to = stage.client.name
    rule = Rule("answers", lambda _src, dst, said: dst == to and isinstance(said, Done), drop=True)
    stage.world.network.rules.append(rule)
    return rule


def _hang_up(stage: Stage) -> None:
    for connection in list(stage.client.connections.values()):
        connection.break_off()


@story
def all_nodes_die_before_an_answer_arrives(plant: Plant | None) -> None:
    """A put is done, and then there is nobody who could say so, for as long as its client waits."""
    with Stage(plant) as stage:
        stage.put(key(0, 1), b"before")
        untold, put = _untold(stage), PutCall(stage.client.new_tx(), NAMESPACE, [key(0)], [b"1"])
        putting = stage.begin(stage.client.call(put, timeout_ns=SECOND))
        stage.wait(200)
        for name in ("n1", "n2", "n3"):
            stage[name].stop("killed", process_only=True)
        stage.wait(1_500)
        found = putting.failure
        stage.must(isinstance(found, CommitUnknown), f"it may be done, and its client was told {found!r}")
        stage.end(untold)
        stage.start("n1", "n2", "n3")
        stage.must(stage.get(key(0), stage.another()) == b"1", "it is done")
        stage.curtain()


@story
def an_answer_is_lost_and_its_request_comes_once_more(plant: Plant | None) -> None:
    """Meanwhile another client has written the key."""
    with Stage(plant) as stage:
        untold = _untold(stage)
        first = stage.begin_put(key(0), b"first")
        stage.wait(200)
        stage.put(key(0), b"second", stage.another())
        stage.end(untold)
        _hang_up(stage)
        stage.until(lambda: first.done, "the first is answered")
        stage.must(told(first), f"it was done, and its client was told {first.failure!r}")
        stage.must(stage.get(key(0)) == b"second", "it is not done once more")
        stage.curtain()


@story
def a_request_is_lost_and_a_later_one_is_answered(plant: Plant | None) -> None:
    """The connection breaks after it, and the first is asked once more: it has no answer yet, and was not acknowledged."""
    with Stage(plant) as stage:
        who = stage.client.name
        lost = Rule("the put", lambda src, _dst, said: src == who and isinstance(said, Put), drop=True, left=1)
        stage.world.network.rules.append(lost)
        first = stage.begin_put(key(0), b"first")
        stage.wait(100)
        stage.put(key(0, 1), b"second")
        stage.put(key(0, 2), b"third")
        _hang_up(stage)
        stage.until(lambda: first.done, "the first is answered")
        stage.must(told(first), f"it is done when it is asked again, and its client was told {first.failure!r}")
        stage.curtain()


@story
def a_part_of_a_batch_is_lost(plant: Plant | None) -> None:
    """Of two nodes one is not asked, and the other has answered: the batch is done when both have."""
    with Stage(plant) as stage:
        who, keys = stage.client.name, [key(0), key(1)]
        lost = Rule("a part", lambda src, dst, said: (src, dst) == (who, "n2") and isinstance(said, Put), drop=True, left=1)
        stage.world.network.rules.append(lost)
        putting = stage.begin(
            stage.client.call(PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"1", b"1"]), timeout_ns=ANSWER_NS)
        )
        stage.wait(300)
        _hang_up(stage)
        stage.until(lambda: putting.done, "it is answered")
        stage.must(told(putting), f"it is done, and its client was told {putting.failure!r}")
        stage.must([stage.get(each, stage.another()) for each in keys] == [b"1", b"1"], "all of it is done")
        stage.curtain()


# Copies.


@story
def a_deleted_key_and_a_copy_that_comes_back(plant: Plant | None) -> None:
    """While n3 is away a key is deleted, the tombstone goes, and the log is trimmed: n3 takes all of it in full."""
    small = msgspec.structs.replace(SETTINGS, wal_segment_bytes=4 << 10, wal_total_bytes=12 << 10, checkpoint_ms=200)
    with Stage(plant, settings=small) as stage:
        stage.put(key(0), b"deleted later")
        stage.wait(500)
        stage.power_cut("n3")
        stage.put(key(0), None)
        for number in range(60):
            stage.put(key(0, 1 + number % 3), b"x" * 500)
        stage.wait(1_000)
        stage.start("n3")
        stage.curtain()


@story
def the_log_is_trimmed_while_it_is_supplied(plant: Plant | None) -> None:
    """n3 takes its history in small batches, and stops; n1 goes on writing until its log has lost what n3 needs."""
    small = msgspec.structs.replace(
        SETTINGS,
        wal_segment_bytes=4 << 10,
        wal_total_bytes=48 << 10,
        checkpoint_ms=200,
        supply_batch_bytes=1 << 10,
        supply_credit=1,
        prefer_history=True,
    )
    with Stage(plant, settings=small) as stage:
        stage.put(key(0), b"0")
        stage.wait(500)
        stage.power_cut("n3")
        stage.left_out("n3")
        for number in range(30):
            stage.put(key(0, number % 20), b"x" * 300)
        stuck = stage.lose("more", "n3")
        stage.start("n3")
        stage.until(lambda: stuck.caught > 0, "n3 took the first batch")
        for number in range(120):
            stage.put(key(0, number % 20), b"y" * 500)
        stage.end(stuck)
        stage.curtain()


@story
def a_write_that_nobody_got_is_undone(plant: Plant | None) -> None:
    """n1 logged a write that reached nobody, and comes back when n2 has gone on: its row must be as it was before."""
    with Stage(plant) as stage:
        stage.put(key(0), b"before")
        lost = stage.lose("replicate", "n1")
        stage.begin_put(key(0), b"undone")
        stage.until(lambda: lost.caught > 0, "the batch is lost")
        stage.wait(20)
        stage.client.die()
        stage.power_cut("n1")
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.start("n1")
        stage.curtain(at_most=SOON_NS)


@story
def a_copy_is_vouched_for_and_misses_a_write(plant: Plant | None) -> None:
    """n2 has caught up and the map that says so is on its way; what n1 writes meanwhile must not count without it."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.put(key(0), b"second")
        stage.start("n2")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: (0, "n2") in node.supply.vouching.vouched, "n1 vouches for n2", look_every=MS // 10)
        lost = stage.lose("replicate", "n1", "n2")
        doing = stage.begin_put(key(0), b"third")
        stage.until(lambda: "n2" in node.core.local[0].placement.in_sync, "n2 is in sync")
        stage.succeeded(doing, b"third", lost)
        stage.curtain()


@story
def a_copy_is_vouched_for_and_a_demand_comes_once_more(plant: Plant | None) -> None:
    """n1 has given its word for n2 to the coordinator, which waits for the end of another step. Then n2 asks once more, in
    another session."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.put(key(0), b"second")
        asked: list[Demand] = []

        def is_accepted(src: str, dst: str, said: object) -> bool:
            if isinstance(said, Demand) and (src, dst) == ("n2", "n1"):
                asked.append(said)
            return isinstance(said, AcceptStep) and stage.listed("n2")

        accepts = Rule("accept-step", is_accepted, drop=False)
        network = stage.world.network
        network.rules.append(accepts)
        stage.start("n2")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: (0, "n2") in node.steps.caught_up, "the coordinator knows that n2 is whole", look_every=MS)
        lost = stage.lose("replicate", "n1", "n2")
        network.send(stage["n2"], ["n1"], msgspec.structs.replace(asked[0], session=asked[0].session + 1))
        stage.wait(5)
        doing = stage.begin_put(key(0), b"third")
        stage.wait(5)
        network.release([accepts], [held for held in network.held if held.rule is accepts])
        stage.until(lambda: "n2" in node.core.local[0].placement.in_sync, "n2 is in sync")
        stage.succeeded(doing, b"third", lost)
        stage.curtain()


@story
def a_copy_is_vouched_for_and_is_sent_a_write(plant: Plant | None) -> None:
    """The same, and the write reaches n2, which is still called MOVING: n2 has it when the map says that it is in sync."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        stage.put(key(0), b"second")
        stage.start("n2")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: (0, "n2") in node.supply.vouching.vouched, "n1 vouches for n2", look_every=MS)
        stage.put(key(0), b"third")
        stage.until(lambda: "n2" in node.core.local[0].placement.in_sync, "n2 is in sync")
        stage.power_cut("n1")
        stage.client.die()
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        found = stage.get(key(0), stage.another())
        stage.must(found == b"third", f"an acknowledged write is read; found {found!r}")
        stage.curtain()


@story
def a_copy_returns_while_a_transaction_is_in_doubt(plant: Plant | None) -> None:
    """n3 comes back while a transaction is prepared; it becomes in sync, the outcome arrives, and n3 has it."""
    with Stage(plant) as stage:
        x, y = key(0), key(1)
        stage.put(x, b"0")
        stage.put(y, b"0")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.lose("finish", "n1", "n2")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {x: b"1", y: b"1"}))
        stage.do(tx.commit())
        stage.start("n3")
        stage.wait(3_000)
        stage.curtain()


@story
def a_backup_gets_writes_the_wrong_way_round(plant: Plant | None) -> None:
    """n2 gets the later writes of two keys first, one of them a delete, makes a checkpoint, and gets the earlier ones."""
    with Stage(plant) as stage:
        x, y = key(0), key(0, 1)
        lost = stage.lose("replicate", "n1", "n2")
        stage.begin_put(x, b"1")
        stage.begin_put(y, b"1")
        stage.until(lambda: lost.caught > 0, "the first writes are lost")
        stage.end(lost)
        stage.begin_put(x, b"2")
        stage.begin_put(y, None)
        stage.wait(10)
        stage.world.command(stage["n2"], "checkpoint")
        stage.wait(2_000)
        stage.compare()
        stage.curtain()


@story
def a_copy_says_that_it_has_no_gap(plant: Plant | None) -> None:
    """n1 alone is in sync and goes on writing; n2 catches up, gets nothing of that, and says that it is done."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        stage.power_cut("n2")
        stage.left_out("n2")
        node = stage["n1"].node
        assert node is not None
        stage.start("n2")
        asked = stage.lose("settled", "n2")
        stage.until(lambda: asked.caught > 0, "n2 has caught up")
        lost = stage.lose("replicate", "n1", "n2")
        stage.put(key(0), b"second")
        stage.end(asked)
        stage.wait(1_000)
        if "n2" in node.core.local[0].placement.in_sync:
            stage.power_cut("n1")
            stage.end(lost)
            stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
            found = stage.get(key(0), stage.another(without=["n1"]))
            stage.must(found == b"second", f"an acknowledged write is read; found {found!r}")
        stage.curtain()


@story
def a_batch_for_a_copy_that_is_half_in_sync(plant: Plant | None) -> None:
    """n3 is in sync in partition 3 and has demanded partition 0 again: of a batch with both it can take nothing yet."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, suspicion_ms=4_000)) as stage:
        x, z = key(0), key(3)
        stage.put(x, b"first")
        stage.put(z, b"first")
        stage.power_cut("n3")
        stage.left_out("n3")
        unsettled = stage.lose("settled", "n3", partition=0)
        stage.start("n3")
        stage.says_each("n3")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: "n3" in node.core.local[3].placement.in_sync, "n3 is in sync in partition 3")
        lost = stage.lose("replicate", "n1", "n3")
        stage.put(x, b"second")
        undemanded = stage.lose("demand", "n3")
        stage.end(unsettled)
        stage.until(lambda: undemanded.caught > 0, "n3 does not reach its marks, and demands partition 0 again")
        stage.end(lost)
        both = PutCall(stage.client.new_tx(), NAMESPACE, [x, z], [b"third", b"third"])
        stage.begin(stage.client.call(both, timeout_ns=ANSWER_NS))
        stage.wait(1_000)
        stage.end(undemanded)
        stage.curtain()


@story
def a_large_write_is_under_way(plant: Plant | None) -> None:
    """n1 has worked out what thousands of keys of a partition are to be, and n2 has not answered: nothing shows of it."""
    keys = [name for name in (b"k%d" % n for n in range(1 << 15)) if partition_of(name, PARTITIONS) == 0][: 2 * LARGE_KEYS]
    with Stage(plant) as stage:
        lost = stage.lose("replicate", "n1", "n2")
        call = PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"v"] * len(keys))
        put = stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))
        stage.until(lambda: lost.caught > 0, "the batch is lost")
        stage.wait(20)
        for name in (keys[0], keys[-1]):
            read = stage.begin_get(name)
            stage.until(lambda read=read: read.done or put.done, "it is read")  # type: ignore[misc]
            stage.must(put.done or read.result is None, "nothing is read of what does not count yet")
        stage.end(lost)
        stage.until(lambda: put.done, "the batch counts")
        stage.must(stage.get(keys[0]) == stage.get(keys[-1]) == b"v", "all of it is read")
        stage.curtain()


# Checkpoints.


@story
def a_write_comes_while_a_checkpoint_is_written(plant: Plant | None) -> None:
    """Every node begins a checkpoint, a write is acknowledged before it is finished, and all lose their power."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        for name in ("n1", "n2", "n3"):
            stage[name].speed.checkpoint *= 10
            stage.world.command(stage[name], "checkpoint")
        stage.put(key(0), b"second")
        stage.wait(100)
        stage.power_cut("n1", "n2", "n3")
        stage.start("n1", "n2", "n3")
        found = stage.get(key(0), stage.another())
        stage.must(found == b"second", f"what was acknowledged is there when the power is back; found {found!r}")
        stage.curtain()


@story
def a_checkpoint_of_a_write_that_does_not_count_yet(plant: Plant | None) -> None:
    """n1 has logged a write and makes a checkpoint before n2 has it; then it counts; n2 loses its disk, n1 its power."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, backups=1)) as stage:
        stage.put(key(0), b"first")
        late = stage.lose("replicate", "n1", "n2")
        doing = stage.begin_put(key(0), b"second")
        stage.until(lambda: late.caught > 0, "n1 has logged the write")
        stage.world.command(stage["n1"], "checkpoint")
        stage.wait(50)
        stage.end(late)
        stage.until(lambda: told(doing), "the write counts")
        stage.power_cut("n1")
        stage["n2"].stop("its disk broke")
        stage["n2"].wipe()
        stage.start("n1", "n2")
        found = stage.get(key(0), stage.another())
        stage.must(found == b"second", f"what was acknowledged is there when the power is back; found {found!r}")
        stage.curtain()


@story
def power_is_cut_behind_a_checkpoint(plant: Plant | None) -> None:
    """With LOG_ONLY the log is synced once a second, but before a checkpoint is written: the store never leads it."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, durability=Durability.LOG_ONLY)) as stage:
        stage.wait(2_000)
        stage.put(key(0), b"synced, since the last sync was long ago")
        stage.put(key(0), b"only handed to the system")
        stage.world.command(stage["n1"], "checkpoint")
        stage.wait(400)
        stage.power_cut("n1")
        stage.start("n1")
        stage.curtain()


@story
def a_block_is_torn(plant: Plant | None) -> None:
    """Power is cut while a large value is written, and one of its sectors is lost; the client asks again."""
    with Stage(plant, nodes=1) as stage:
        stage.put(key(0), b"first")
        call = PutCall(stage.client.new_tx(), NAMESPACE, [key(0)], [b"x" * 4_000])
        stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))
        stage.until(lambda: stage["n1"].busy, "n1 writes the block", look_every=50_000)
        asked: list[Unsynced] = []

        def all_but_the_fourth(thing: Unsynced) -> bool:
            asked.append(thing)
            return len(asked) != 4

        stage["n1"].stop("power cut", torn=all_but_the_fourth, calls=1)
        stage.client.die()
        stage.start("n1")
        again = stage.another()
        stage.do(again.call(PutCall(call.tx, NAMESPACE, [key(0)], [b"x" * 4_000]), timeout_ns=ANSWER_NS), again)
        stage.must(stage.get(key(0), again) == b"x" * 4_000, "what is read was written")
        stage.curtain()
