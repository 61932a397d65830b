"""Stories of asynchronous copies: who leads, who is waited for, and what was lost on the way."""

from __future__ import annotations

import msgspec

from engine.messages import ProposeStep, Replicate
from engine.state.store import ROW_OVERHEAD_BYTES
from engine.turn.core import BACKLOGGED_AT
from rebalance.supplier import OVER_AFTER_MS
from tests.sim.network import Rule
from tests.sim.planted.stage import NAMESPACE, PARTITIONS, SETTINGS, Stage, Stories, key, told
from tests.sim.world import Plant
from wal import records as r
from wal.ids import NodeId

ASYNCHRONOUS = Stories()
story = ASYNCHRONOUS.story

BEHIND = msgspec.structs.replace(SETTINGS, backups=0, async_backups=1, anti_entropy_ms=600, retransmit_ms=100)
"""n1 leads partition 0, alone in its in-sync set, and n2 has an asynchronous copy."""


@story
def only_an_asynchronous_copy_is_left(plant: Plant | None) -> None:
    """What n1 acknowledged has not reached n2 when n1 dies: partition 0 is LOST until n1 is back."""
    with Stage(plant, settings=BEHIND) as stage:
        stage.put(key(0), b"first")
        silent = stage.lose("replicate", "n1", "n2")
        stage.put(key(0), b"second")
        stage.power_cut("n1")
        stage.end(silent)
        stage.wait(4_000)
        reading = stage.begin_get(key(0), stage.another())
        stage.wait(2_000)
        if told(reading):
            stage.must(reading.result == b"second", "an acknowledged write is read")
        stage.start("n1")
        stage.must(stage.get(key(0), stage.another()) == b"second", "and all the more when it is back")
        stage.curtain()


@story
def an_asynchronous_copy_says_nothing(plant: Plant | None) -> None:
    """What n2 has to say to n1 of its batches is lost: who writes is answered all the same, and at once."""
    with Stage(plant, settings=BEHIND) as stage:
        stage.put(key(0), b"first")
        silent = stage.lose("replicated", "n2", "n1")
        writing = stage.begin_put(key(0), b"second")
        stage.wait(300)
        stage.must(writing.done, "nobody waits for an asynchronous copy")
        stage.end(silent)
        stage.curtain()


def stands(stage: Stage, name: NodeId) -> tuple[int, int]:
    node = stage[name].node
    assert node is not None
    fragment = node.core.replica.fragment((NAMESPACE, 0))
    return fragment.counter.lwm, fragment.digest


@story
def what_an_asynchronous_copy_was_sent_last_is_lost(plant: Plant | None) -> None:
    """More is lost than can be kept to be said again, and nothing comes after it by which n2 could see that."""
    small = msgspec.structs.replace(BEHIND, backlog_bytes_max=1 << 10)
    with Stage(plant, settings=small) as stage:
        stage.put(key(0), b"first")
        lost = Rule("batches", lambda _, to, said: to == "n2" and isinstance(said, Replicate), drop=True)
        stage.world.network.rules.append(lost)
        for number in range(10):
            stage.put(key(0, number), b"x" * 500)
        stage.end(lost)
        stage.wait(3_000)
        stage.must(stands(stage, "n1") == stands(stage, "n2"), "n2 has found that it lacks something, and got it")
        stage.curtain()


@story
def that_a_reader_has_ended_is_lost(plant: Plant | None) -> None:
    """A transaction only reads in partition 0. n2 was told that it began there, and never that it ended: no counter says
    so, nor is it kept to be said again."""
    _a_reader_ends(plant, written=True)


@story
def that_a_reader_of_nothing_has_ended_is_lost(plant: Plant | None) -> None:
    """The same where nothing was ever written in partition 0."""
    _a_reader_ends(plant, written=False)


def _a_reader_ends(plant: Plant | None, *, written: bool) -> None:
    small = msgspec.structs.replace(BEHIND, backlog_bytes_max=1 << 10)
    with Stage(plant, settings=small) as stage:
        if written:
            stage.put(key(0), b"first")
        ends = Rule("outcomes", lambda _, to, said: to == "n2" and isinstance(said, Replicate) and _ends(said), drop=True)
        stage.world.network.rules.append(ends)
        tx = stage.transaction()
        stage.do(tx.get(NAMESPACE, [key(0)]))
        stage.do(tx.put(NAMESPACE, {key(1): b"a", key(2): b"b"}))
        stage.do(tx.commit())
        stage.until(lambda: ends.caught > 0 and not _readers(stage, "n1"), "it has ended on n1")
        silent = stage.lose("replicated", "n2", "n1")
        for number in range(10):
            stage.put(key(PARTITIONS - 1, number), b"x" * 500)  # which n1 leads, too
        stage.must(_readers(stage, "n2") > 0, "n2 knows of no end")
        stage.end(ends, silent)
        stage.wait(3_000)
        stage.must(not _readers(stage, "n2"), "n2 has asked, and knows that it ended")
        stage.curtain()


def _ends(said: Replicate) -> bool:
    return any(isinstance(record, r.Outcome) and record.partition == 0 for record in said.records)


def _readers(stage: Stage, name: NodeId) -> int:
    node = stage[name].node
    assert node is not None
    return sum(not prepare.writes for prepare in node.core.replica.partition(0).prepared.values())


@story
def the_last_answer_of_a_transfer_is_lost(plant: Plant | None) -> None:
    """n2 has taken all that it lacked, and what it says to that is lost: n1 keeps nothing for it."""
    small = msgspec.structs.replace(BEHIND, backlog_bytes_max=1 << 10)
    with Stage(plant, settings=small) as stage:
        stage.put(key(0), b"first")
        lost = Rule("batches", lambda _, to, said: to == "n2" and isinstance(said, Replicate), drop=True)
        stage.world.network.rules.append(lost)
        for number in range(10):
            stage.put(key(0, number), b"x" * 500)
        stage.end(lost)
        silent = stage.lose("more", "n2", "n1")
        stage.until(lambda: stands(stage, "n1") == stands(stage, "n2"), "n2 got what it lacked")
        stage.wait(1_000)
        stage.end(silent)
        stage.wait(OVER_AFTER_MS + 1_000)
        node = stage["n1"].node
        assert node is not None
        stage.must(not node.supply._sessions, "n1 keeps nothing of the transfer")
        stage.curtain()


def _counts(stage: Stage, name: NodeId) -> bool:
    newest = stage.world.newest()
    return newest is not None and name in newest.placements[0].in_sync


def _makes_count(said: object, name: NodeId) -> bool:
    return isinstance(said, ProposeStep) and any(name in placement.in_sync for _, placement in said.step.placements)


SIZE = 1 << 10
LITTLE = {"checkpoint_bytes": 8 << 10, "supply_batch_bytes": 2 << 10}
HEARD_LATE = 6
"""So many rows come, one after the other, before a primary has heard that a store does not keep up."""


def _write_much(stage: Stage, name: NodeId, count: int = 200) -> None:
    """Put large rows into partition 0. Little of that lies in the memory of a node whose store is slow, at any time."""
    most, store = 0, stage[name].speed.store
    stage[name].speed.store = 20_000
    for number in range(count):
        stage.put(key(0, number), b"v" * SIZE)
        node = stage[name].node
        assert node is not None
        most = max(most, node.core.replica.store.active_bytes)
    enough = BACKLOGGED_AT * LITTLE["checkpoint_bytes"] + HEARD_LATE * (SIZE + ROW_OVERHEAD_BYTES)
    stage.must(LITTLE["checkpoint_bytes"] < most <= enough, f"{enough} bytes lie in memory at most, and not {most}")
    stage[name].speed.store = store


@story
def the_store_of_an_asynchronous_copy_does_not_keep_up(plant: Plant | None) -> None:
    """The store of n2 takes a third of a second for what comes within a few milliseconds. Nobody waits for n2, which leads
    nothing that is written: it has little in memory all the same, and gets the rest when its store is quick again."""
    with Stage(plant, settings=msgspec.structs.replace(BEHIND, **LITTLE, anti_entropy_ms=0)) as stage:
        _write_much(stage, "n2")
        stage.wait(8_000)
        stage.must(stands(stage, "n1") == stands(stage, "n2"), "n2 has asked for what it passed over, and got it")
        stage.curtain()


@story
def the_store_of_a_copy_that_is_filled_does_not_keep_up(plant: Plant | None) -> None:
    """n3 is filled on a new disk. Its store is slow, and what is written meanwhile does not come to lie in its memory."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, **LITTLE)) as stage:
        for number in range(60):
            stage.put(key(0, number), b"u" * SIZE)
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        stage["n3"].speed.store = 20_000
        stage.start("n3")
        stage.until(lambda: stage.listed("n3"), "n3 is a member")
        _write_much(stage, "n3")
        stage["n3"].speed.store = 0
        stage.curtain()


@story
def the_store_of_a_copy_that_is_about_to_count_does_not_keep_up(plant: Plant | None) -> None:
    """n3 is back and whole, and no map says so, for proposals are lost. It is waited for: clients wait for its store, too,
    and what they were told is there when it counts and everybody else is gone."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, **LITTLE)) as stage:
        stage.put(key(0), b"before")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(0), b"missed")
        lost = Rule("steps", lambda *said: _makes_count(said[2], "n3"), drop=True)
        stage.world.network.rules.append(lost)
        stage.start("n3")
        node = stage["n1"].node
        assert node is not None
        stage.until(lambda: node.supply.vouching.stands_for(0, "n3"), "n3 is vouched for")
        _write_much(stage, "n3", 60)
        stage.must(node.supply.vouching.stands_for(0, "n3"), "n3 is vouched for as before")
        stage.end(lost)
        stage.until(lambda: _counts(stage, "n3"), "n3 is in sync")
        stage.must(stands(stage, "n3") == stands(stage, "n1"), "n3 has all that was acknowledged")
        stage.curtain()
