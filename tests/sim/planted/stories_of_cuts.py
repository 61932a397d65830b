"""Stories of cuts that are taken, and read, while something is on its way."""

from __future__ import annotations

import msgspec

from engine.client.calls import GetCall
from engine.client.cuts import KeepCutCall, TakeCutCall
from engine.client.scans import ScanCall
from engine.errors import SnapshotLost
from engine.messages import EnterEra, Finish, Replicate
from rebalance.table import Placement
from tests.sim.clients import Task
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key, told
from tests.sim.world import Plant
from wal import records as r
from wal.ids import Era, NodeId

CUTS = Stories()
story = CUTS.story

HOLDER = bytes(16)
ONE_BACKUP = msgspec.structs.replace(SETTINGS, backups=1)
"""Partition 0 is n1's and n2's, 1 is n2's and n3's, 2 is n3's and n1's."""


def _taking(stage: Stage) -> tuple[TakeCutCall, Task]:
    call = TakeCutCall(HOLDER)
    return call, stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))


def _taken(stage: Stage) -> Era:
    call, task = _taking(stage)
    stage.until(lambda: told(task), "a cut is taken")
    return call.cut


def _reading(stage: Stage, name: bytes, cut: Era) -> tuple[GetCall, Task]:
    call = GetCall(NAMESPACE, [name], cut=cut)
    return call, stage.begin(stage.client.call(call, timeout_ns=ANSWER_NS))


def _read(stage: Stage, name: bytes, cut: Era) -> bytes | SnapshotLost | None:
    call, task = _reading(stage, name, cut)
    stage.until(lambda: task.done, "a cut is read")
    if isinstance(task.failure, SnapshotLost):
        return task.failure
    stage.must(task.failure is None, f"a reader was told {task.failure!r}")
    return call.values[0][2]


def _later(stage: Stage, kind: str, to: NodeId) -> Rule:
    """Messages of a kind are late."""
    rule = Rule(kind, lambda _, dst, said: dst == to and said.__class__ is _KINDS[kind], drop=False)
    stage.world.network.rules.append(rule)
    return rule


def _at_last(stage: Stage, rule: Rule) -> None:
    network = stage.world.network
    network.release([rule], [held for held in network.held if held.rule is rule])


_KINDS = {"enter-era": EnterEra, "finish": Finish, "replicate": Replicate}


@story
def one_node_enters_an_era_long_after_another(plant: Plant | None) -> None:
    """n3 hears late of a new era. A put at n1 is of it; who knows of that one puts at n3, which has not heard of it."""
    with Stage(plant, settings=ONE_BACKUP) as stage:
        stage.put(key(0), b"old")
        stage.put(key(2), b"old")
        late = _later(stage, "enter-era", "n3")
        taking, taken = _taking(stage)
        stage.until(lambda: late.caught > 0, "a cut is being taken")
        stage.wait(50)
        first = stage.begin_put(key(0), b"new")
        stage.wait(100)
        if told(first):
            stage.put(key(2), b"new")
        elif told(taken):
            stage.put(key(2), b"after")
        _at_last(stage, late)
        stage.until(lambda: told(taken) and told(first), "a cut is taken, and the first put is done")
        found = _read(stage, key(0), taking.cut), _read(stage, key(2), taking.cut)
        stage.must(found != (b"old", b"new"), f"the second put was begun when the first was done; at the cut: {found}")
        stage.must(b"after" not in found, f"a put that was begun after the cut was handed out is in it: {found}")
        stage.curtain()


@story
def a_put_is_on_its_way_when_a_cut_is_taken(plant: Plant | None) -> None:
    """A put is issued, and its copies hear late of it; a cut is taken and read, and read again when the put is done."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        late = Rule("the put", lambda src, _, said: src == "n1" and _is_update(said), drop=False)
        stage.world.network.rules.append(late)
        putting = stage.begin_put(key(0), b"new")
        stage.until(lambda: late.caught > 0, "the put is on its way")
        cut = _taken(stage)
        first, reading = _reading(stage, key(0), cut)
        stage.wait(100)
        _at_last(stage, late)
        stage.until(lambda: told(putting) and told(reading), "the put and the reader are done")
        again = _read(stage, key(0), cut)
        stage.must(first.values[0][2] == again, f"one cut was read as {first.values[0][2]!r} and as {again!r}")
        stage.curtain()


def _is_update(said: object) -> bool:
    return isinstance(said, Replicate) and any(isinstance(record, r.Update) for record in said.records)


@story
def an_outcome_is_on_its_way_when_a_cut_is_taken(plant: Plant | None) -> None:
    """A transaction is done, and n2 hears late of its outcome: when the cut has been taken, and is being read."""
    with Stage(plant) as stage:
        late = _later(stage, "finish", "n2")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {key(0): b"both", key(1): b"both"}))
        stage.do(tx.commit())
        cut = _taken(stage)
        second, reading = _reading(stage, key(1), cut)
        stage.wait(100)
        _at_last(stage, late)
        stage.until(lambda: told(reading), "the second key is read")
        found = _read(stage, key(0), cut), second.values[0][2]
        stage.must(found == (b"both", b"both"), f"a transaction that was done is in the cut, and found was {found}")
        stage.curtain()


@story
def a_key_is_overwritten_before_the_cut_is_handed_out(plant: Plant | None) -> None:
    """n1 has entered the era, and n3 has not; n1's key is overwritten meanwhile, and then n3's, by who was told."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        late = _later(stage, "enter-era", "n3")
        taking, taken = _taking(stage)
        stage.until(lambda: late.caught > 0, "a cut is being taken")
        stage.wait(50)
        putting = stage.begin_put(key(0), b"new")
        stage.wait(100)
        _at_last(stage, late)
        stage.until(lambda: told(taken) and told(putting), "the cut is taken, and the put done")
        stage.put(key(0), b"newer")
        found = _read(stage, key(0), taking.cut)
        stage.must(found in (b"old", b"new"), f"what stands now was put after the cut was handed out: {found!r}")
        stage.must(found == b"old", "the put was issued in the era after the cut")
        stage.curtain()


@story
def whoever_knew_the_era_of_a_transaction_dies(plant: Plant | None) -> None:
    """n2 has applied a transaction of n1's before a cut, and n3 has yet to hear of the outcome; n1 dies."""
    with Stage(plant) as stage:
        late = stage.lose("finish", "n1", "n3")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {key(0): b"all", key(1): b"all", key(2): b"all"}))
        stage.do(tx.commit())
        stage.wait(100)
        cut = _taken(stage)
        stage.power_cut("n1")
        stage.end(late)
        stage.left_out("n1")
        found = _read(stage, key(1), cut), _read(stage, key(2), cut)
        read = [value for value in found if not isinstance(value, SnapshotLost)]
        stage.must(all(value == b"all" for value in read), f"a transaction that was done is in the cut: {found}")
        stage.curtain()


@story
def another_leads_when_a_cut_is_read(plant: Plant | None) -> None:
    """n1 enters an era, and a key of its is overwritten; it dies, and n2, which has entered the era too, is asked."""
    with Stage(plant) as stage:
        stage.put(key(0), b"old")
        cut = _taken(stage)
        stage.put(key(0), b"new")
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        found = _read(stage, key(0), cut)
        stage.must(isinstance(found, SnapshotLost) or found == b"old", f"the key was {b'old'!r} at the cut: {found!r}")
        stage.curtain()


@story
def a_key_of_the_past_is_deleted_and_a_checkpoint_is_written(plant: Plant | None) -> None:
    """A key is deleted after a cut was taken, and a checkpoint forgets what deletes are known everywhere."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, checkpoint_ms=300)) as stage:
        stage.put(key(0), b"there")
        cut = _taken(stage)
        stage.put(key(0), None)
        for number in range(1, 9):
            stage.put(key(0, number), b"more")
            stage.wait(400)
            _read(stage, key(0), cut)
        page = ScanCall(NAMESPACE, b"\0", None, 100, cut=cut)
        stage.do(stage.client.call(page, timeout_ns=ANSWER_NS))
        stage.must(dict(page.rows) == {key(0): b"there"}, f"the cut has one row, and found was {page.rows}")
        stage.curtain()


@story
def a_primary_moves_while_an_era_is_entered(plant: Plant | None) -> None:
    """p3 moves to n4, which hears late of an era in which n5 has ended a transaction there, and n2 the other half of it."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(ONE_BACKUP, exchange_drain_ms=100)) as stage:
        first, second = key(1), key(3)
        stage.power_cut("n4")
        stage.left_out("n4")
        for name in (first, second):
            stage.put(name, b"old")
        stage.start("n4")
        stage.until(lambda: _placed(stage, 3).in_sync == ("n5", "n4"), "that counts")
        untaken = stage.lose("propose-step")
        tx = stage.transaction()
        stage.do(tx.put(NAMESPACE, {first: b"new", second: b"new"}))
        unvoted = stage.lose("replicate", "n2", "n3")
        committing = stage.begin(tx.commit())
        stage.until(lambda: untaken.caught > 0, "partition 3 is to move to n4")
        late = _later(stage, "enter-era", "n4")
        unheard = stage.lose("replicate", "n5", "n4")
        taking, taken = _taking(stage)
        stage.wait(10)
        stage.end(unvoted)
        stage.until(lambda: unheard.caught > 0, "n5 has the outcome")
        stage.end(untaken)
        stage.until(lambda: stage.primary(3, "n4"), "n4 is primary of partition 3")
        stage.end(unheard)
        _at_last(stage, late)
        stage.until(lambda: told(taken) and told(committing), "a cut is taken, and the transaction is done")
        found = _read(stage, first, taking.cut), _read(stage, second, taking.cut)
        read = {value for value in found if not isinstance(value, SnapshotLost)}
        stage.must(len(read) < 2, f"a transaction is in a cut or is not: {found}")
        stage.curtain()


def _placed(stage: Stage, partition: int) -> Placement:
    newest = stage.world.newest()
    assert newest is not None
    return newest.placements[partition]


@story
def readers_let_go_of_one_cut_together(plant: Plant | None) -> None:
    """One of them names another one of itself, who had let go before."""
    with Stage(plant) as stage:
        cut = _taken(stage)
        call = KeepCutCall(cut, HOLDER, over=True, others=[(cut, HOLDER), (cut, b"?" * 16)])
        stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))
        stage.curtain()
