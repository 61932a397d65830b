"""Stories of the doing half: of what goes on in the background when something else is wanted."""

from __future__ import annotations

import msgspec

from engine.client.calls import PutCall
from engine.errors import DiskFull
from engine.protocol.requests import Put
from engine.state.store import ROW_OVERHEAD_BYTES
from engine.turn.core import BACKLOGGED_AT
from engine.turn.events import Asked
from engine.turn.settings import Durability
from tests.sim.costs import Modelled
from tests.sim.network import MS
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, PARTITIONS, SETTINGS, Stage, Stories, key
from tests.sim.violation import Violation
from tests.sim.world import SECOND, Plant
from wal import verify
from wal.ids import PARTITIONS_MAX, partition_of

DEEDS = Stories()
story = DEEDS.story


def _batch(stage: Stage, value: bytes, count: int) -> None:
    names = [name for n in range(count) if partition_of(name := b"row%d" % n, PARTITIONS) == 0]
    call = PutCall(stage.client.new_tx(), NAMESPACE, names, [value] * len(names))
    stage.do(stage.client.call(call, timeout_ns=ANSWER_NS))


@story
def a_joiner_dies_while_its_history_is_read(plant: Plant | None) -> None:
    """A supplier that reads its log slowly closes the supply in the middle of it; the supplier lives on."""
    settings = msgspec.structs.replace(SETTINGS, prefer_history=True, supply_batch_bytes=1 << 10, supply_credit=1)
    with Stage(plant, settings=settings) as stage:
        supplier = stage["n1"]
        stage["n2"].stop("killed", process_only=True)
        stage.wait(3_000)
        for number in range(12):
            _batch(stage, b"%02d" % number + b"x" * 200, 60)
        supplier.speed.checkpoint = 20 * SECOND
        for _ in range(3):
            stage.start("n2")
            stage.until(lambda: "history" in supplier.works_on, "n1 reads its log for n2", look_every=MS)
            stage["n2"].stop("killed", process_only=True)
            stage.left_out("n2")
            stage.must(supplier.up, f"the supplier lives on: {supplier.why}")
        supplier.speed.checkpoint = 2 * MS
        stage.start("n2")
        stage.curtain()


@story
def a_node_is_told_to_end_while_it_writes_a_checkpoint(plant: Plant | None) -> None:
    """It ends in good order, with a last checkpoint after that one, and is back with all it had."""
    with Stage(plant, nodes=1) as stage:
        node = stage["n1"]
        for number in range(6):
            stage.put(key(0), b"round %d" % number)
            stage.world.command(node, "checkpoint")
            stage.until(lambda: "checkpoint" in node.works_on, "it writes one", look_every=MS // 20)
            node.finish()
            stage.until(lambda: not node.up, "it has ended")
            stage.must(node.why == "ended in good order", f"it ended in good order: {node.why}")
            stage.start("n1")
            again = stage.another()
            stage.must(stage.get(key(0), again) == b"round %d" % number, "what was written is there")
            stage.client.die()
            stage.client = again
        stage.curtain()


@story
def a_checkpoint_takes_several_turns(plant: Plant | None) -> None:
    """What is written while it is encoded is there when power was cut after it, although less of the log is read again."""
    many = msgspec.structs.replace(SETTINGS, partitions=2_048, backups=0, checkpoint_ms=86_400_000)
    with Stage(plant, nodes=1, settings=many) as stage:
        node, names = stage["n1"], [b"row%d" % number for number in range(2_500)]
        for namespace in ("first", NAMESPACE):  # which are encoded in this order
            old = PutCall(stage.client.new_tx(), namespace, names, [b"old"] * len(names))
            stage.do(stage.client.call(old, timeout_ns=ANSWER_NS))
        stage.world.command(node, "checkpoint")
        replies: list[object] = []
        new = Put(1, b"%016d" % 1, NAMESPACE, names[::-1], [b"new"] * len(names))
        node.receive(Asked(node.new_session(replies.append), new))  # in the turn in which the checkpoint begins
        stage.until(lambda: bool(replies), "all is written")
        stage.until(lambda: node.node is not None and not node.node.checkpointing, "the checkpoint is written")
        stage.power_cut("n1")
        stage.start("n1")
        again = stage.another()
        for name in names[::100]:
            stage.must(stage.get(name, again) == b"new", f"{name.decode()} is what was written last")
        stage.curtain()


@story
def a_checkpoint_of_all_there_may_be(plant: Plant | None) -> None:
    """Each of 16,384 partitions has changed when it begins, and no turn is longer than it may be."""
    most = msgspec.structs.replace(SETTINGS, partitions=PARTITIONS_MAX, backups=0, checkpoint_ms=86_400_000)
    with Stage(plant, nodes=1, settings=most) as stage:
        node = stage["n1"]
        stage.world.costs = Modelled()
        stage.world.command(node, "checkpoint")
        stage.wait(1_000)
        stage.until(lambda: node.node is not None and not node.node.checkpointing, "the checkpoint is written")
        stage.must(node.node is not None and node.node.core.replica.changes.encoded >= PARTITIONS_MAX, "all is in it")


@story
def nothing_is_written_after_the_last_write(plant: Plant | None) -> None:
    """With LOG_ONLY what was acknowledged is on disk within the interval, though nobody writes again."""
    less = msgspec.structs.replace(SETTINGS, durability=Durability.LOG_ONLY, sync_interval_ms=300, checkpoint_ms=600_000)
    with Stage(plant, nodes=1, settings=less) as stage:
        stage.put(key(0), b"the last one")
        stage.wait(600)  # within a second the node itself writes that it is settled
        stage.power_cut("n1")
        stage.start("n1")
        stage.must(stage.get(key(0), stage.another()) == b"the last one", "what was written before that is on disk")
        stage.curtain()


@story
def power_is_cut_while_a_checkpoint_is_written(plant: Plant | None) -> None:
    """The log of a node is over its cap, and its checkpoints take long; it finds all it needs whenever it dies."""
    tight = msgspec.structs.replace(SETTINGS, wal_segment_bytes=2 << 10, wal_total_bytes=6 << 10, checkpoint_ms=100)
    with Stage(plant, nodes=1, settings=tight) as stage:
        node = stage["n1"]
        node.speed.checkpoint = SECOND // 2
        for number in range(6):
            for at in range(20):
                stage.put(key(0, at), b"%d" % number + b"x" * 200)
            stage.until(lambda: "checkpoint" in node.works_on, "it writes one", look_every=MS)
            stage.wait(50 * number)
            stage.power_cut("n1")
            stage.start("n1")
            again = stage.another()
            for at in range(20):
                found = stage.get(key(0, at), again)
                stage.must(found == b"%d" % number + b"x" * 200, f"what was acknowledged is there: {found!r}")
            stage.client.die()
            stage.client = again
        stage.curtain()


@story
def power_is_cut_when_an_archive_has_its_name(plant: Plant | None) -> None:
    """Old segments become archives; whenever power is cut, each record of the log is in the one or the other."""
    small = msgspec.structs.replace(
        SETTINGS, wal_segment_bytes=2 << 10, checkpoint_ms=100, wal_archive_bytes_per_s=64 << 20
    )
    with Stage(plant, nodes=1, settings=small) as stage:
        node = stage["n1"]
        for number in range(3):
            known = sum(name.endswith(".walz") for name in node.disk.names())
            for at in range(20):
                stage.put(key(0, at), b"%d" % number + b"x" * 200)

            def more(known: int = known) -> bool:
                return sum(name.endswith(".walz") for name in node.disk.names()) > known

            stage.until(more, "another segment is an archive", look_every=MS)
            stage.power_cut("n1")
            told = verify(node.disk.copy()).findings
            stage.must(not any(one.damage for one in told), f"the log is whole: {told[:1]}")
            stage.start("n1")
            stage.client.die()
            stage.client = stage.another()
        stage.curtain()


def _each_loses_power(plant: Plant | None, mode: Durability) -> None:
    """In turn each of three nodes loses all that it had not synced. What was acknowledged is on the others."""
    less = msgspec.structs.replace(SETTINGS, durability=mode, sync_interval_ms=400, checkpoint_ms=700)
    with Stage(plant, settings=less) as stage:
        for number, name in enumerate(("n2", "n1", "n3", "n1", "n2")):
            for at in range(8):
                stage.put(key(at % PARTITIONS, at), b"%d" % number)
                if at == 4:
                    stage.wait(150 * number)
            stage.power_cut(name)
            again = stage.another(without=[name])
            if number % 2:  # or it is back before anybody noticed
                stage.left_out(name)
                stage.put(key(0, 9), b"while it is away %d" % number, again)
            stage.start(name)
            stage.rest()
            for at in range(8):
                found = stage.get(key(at % PARTITIONS, at), again)
                stage.must(found == b"%d" % number, f"what was acknowledged is on the others: {found!r}, not {number}")
            stage.client.die()
            stage.client = stage.another()
        stage.curtain()


@story
def each_loses_power_with_log_only(plant: Plant | None) -> None:
    """What was handed to the system, and not synced, is lost on one node."""
    _each_loses_power(plant, Durability.LOG_ONLY)


@story
def each_loses_power_with_background(plant: Plant | None) -> None:
    """What was in memory for less than the interval is lost on one node."""
    _each_loses_power(plant, Durability.BACKGROUND)


@story
def each_loses_power_with_none(plant: Plant | None) -> None:
    """What was in memory since the last checkpoint is lost on one node."""
    _each_loses_power(plant, Durability.NONE)


@story
def a_node_that_keeps_all_in_memory_is_told_to_end(plant: Plant | None) -> None:
    """With NONE what was acknowledged survives a stop in good order."""
    less = msgspec.structs.replace(SETTINGS, durability=Durability.NONE, checkpoint_ms=3_600_000)
    with Stage(plant, nodes=1, settings=less) as stage:
        stage.put(key(0), b"only in memory")
        node = stage["n1"]
        node.finish()
        stage.until(lambda: not node.up, "it has ended")
        stage.start("n1")
        stage.must(stage.get(key(0), stage.another()) == b"only in memory", "what was acknowledged is there")
        stage.curtain()


@story
def a_disk_stalls(plant: Plant | None) -> None:
    """A sync takes longer than the silence after which a node is suspected, and no node is left out for it."""
    with Stage(plant) as stage:
        stage.put(key(0), b"before")
        slow = stage["n3"]
        slow.speed.sync, usual = 2 * SECOND, slow.speed.sync
        stage.begin_put(key(0), b"meanwhile")
        before = stage.world.newest()
        stage.wait(5_000)
        newest = stage.world.newest()
        assert before is not None
        assert newest is not None
        stage.must(newest.version.major == before.version.major, "a node that waits for its disk is not dead")
        slow.speed.sync = usual
        stage.curtain()


@story
def a_disk_is_stuck(plant: Plant | None) -> None:
    """A node whose log will never be synced is found, and the others go on without it."""
    with Stage(plant) as stage:
        stage.put(key(0), b"before")
        stage["n3"].speed.sync = 3_600 * SECOND
        waiting = stage.begin_put(key(0), b"meanwhile")
        stage.left_out("n3")
        stage.until(lambda: waiting.done, "the put is answered")
        stage["n3"].stop("killed", process_only=True)
        stage["n3"].speed.sync = MS // 5
        stage.curtain()


@story
def a_store_that_does_not_keep_up(plant: Plant | None) -> None:
    """The store of n3 takes a third of a second for what comes within a few milliseconds. Clients that put, and those that
    commit, wait for it: n3 has little in memory at any time, and each of them is served in the end."""
    small = msgspec.structs.replace(SETTINGS, checkpoint_bytes=8 << 10)
    at_once, size = 8, 1 << 10
    with Stage(plant, settings=small) as stage:
        stage["n3"].speed.store = 20_000
        most = 0
        for turn in range(24):
            names = [key(n % PARTITIONS, at_once * turn + n) for n in range(at_once)]
            for task in [stage.begin(_write(stage, name, b"v" * size, alone=bool(turn % 2))) for name in names]:
                stage.until(lambda task=task: task.done, "a client is served")  # type: ignore[misc]  # its own
                stage.must(task.failure is None, f"a client was told {task.failure!r}")
            node = stage["n3"].node
            assert node is not None
            most = max(most, node.core.replica.store.active_bytes)
        enough = BACKLOGGED_AT * small.checkpoint_bytes + 2 * at_once * (size + ROW_OVERHEAD_BYTES)
        stage.must(small.checkpoint_bytes < most <= enough, f"{enough} bytes lie in memory at most, and not {most}")
        stage.curtain()


@story
def the_disks_of_all_nodes_are_full(plant: Plant | None) -> None:
    """No node finds room for the next segment of its log. Writes are refused, of one key as of several; reads are answered;
    nobody ends, however long that lasts, and it goes on when there is room."""
    with Stage(plant) as stage:
        _fill(stage, "n1", "n2", "n3")
        stage.must(stage.get(key(0)) == b"first", "what is there is read")
        logged = _logged(stage)
        stage.wait(30_000)
        for name in (key(0), key(1), key(2)):
            _must_be_refused(stage, name, alone=True)
            _must_be_refused(stage, name, alone=False)
        stage.must(stage.get(key(0)) == b"first", "and still after half a minute")
        stage.must(_logged(stage) - logged <= BY_THEMSELVES, "the room that is left is not filled for nothing")
        _empty(stage, "n1", "n2", "n3")


@story
def the_disks_of_most_nodes_are_full(plant: Plant | None) -> None:
    """n3 has room and a copy of everything. Without n1 and n2 it could decide nothing: nothing is written that they get."""
    with Stage(plant) as stage:
        _fill(stage, "n1", "n2")
        _must_be_refused(stage, key(2), alone=True)
        stage.must(stage.get(key(0)) == b"first", "what is there is read")
        _empty(stage, "n1", "n2")


@story
def the_disk_of_one_node_is_full(plant: Plant | None) -> None:
    """The others are a majority and have all of it: they go on, also when n3 had no room left and has ended."""
    with Stage(plant) as stage:
        node = stage["n3"]
        node.disk.capacity = node.disk.used
        for number in range(400):
            stage.put(key(0, number % 8), b"v" * FILLS)
        stage.must(not node.up, "n3 has ended")
        node.disk.repair()
        stage.start("n3")
        stage.curtain()


@story
def the_checkpoints_of_all_nodes_find_no_room(plant: Plant | None) -> None:
    """Their logs have some yet. Writes are refused, reads are answered, and nobody ends, save in good order who is told to.
    When there is room each writes what it could not, and its log goes on from there."""
    with Stage(plant) as stage:
        _no_checkpoints(stage, "n1", "n2", "n3")
        before = [_stored(stage, name) for name in stage.world.machines]
        _must_be_refused(stage, key(2), alone=True)
        _must_be_refused(stage, key(1), alone=False)
        stage.wait(30_000)
        stage.must(stage.get(key(0, 8)) == b"v" * FILLS, "what is in no checkpoint is read")
        stage.must([_stored(stage, name) for name in stage.world.machines] == before, "there is no room for a checkpoint")
        stage["n3"].finish()
        stage.until(lambda: not stage["n3"].up, "n3 has ended")
        stage.must(stage["n3"].why == "ended in good order", f"it ended in good order: {stage['n3'].why}")
        stage.start("n3")
        _empty(stage, "n1", "n2", "n3")
        stage.must(_stored(stage, "n1") > before[0] and _stored(stage, "n2") > before[1], "what waited is in the store")
        for machine in stage.world.machines.values():
            machine.truncate_log()
        stage.wait(1_000)
        for name in ("n1", "n2", "n3"):
            stage[name].stop("power cut")
        for name in ("n1", "n2", "n3"):
            stage.start(name)
        stage.must(stage.get(key(0, 8), stage.another()) == b"v" * FILLS, "what was acknowledged is there")


@story
def a_checkpoint_of_one_node_finds_no_room(plant: Plant | None) -> None:
    """The others have all of it, and a majority: they go on while n3 has some memory left, and when it has ended for want
    of any. When it is back with room it has all there is."""
    small = msgspec.structs.replace(SETTINGS, checkpoint_bytes=8 << 10, wal_segment_bytes=4 << 20, wal_total_bytes=32 << 20)
    with Stage(plant, settings=small) as stage:
        node, most = stage["n3"], 0
        stage.put(key(0), b"first")
        node.disk.capacity = node.disk.used
        for number in range(100):
            stage.put(key(0, number % 8), b"v" * FILLS)
            if node.node is not None and node.up:
                most = max(most, node.node.core.replica.store.active_bytes)
        stage.must(not node.up, "n3 has ended")
        enough = BACKLOGGED_AT * small.checkpoint_bytes + HEARD_LATE * (FILLS + ROW_OVERHEAD_BYTES)
        stage.must(most <= enough, f"{enough} bytes lie in memory at most, and not {most}")
        node.disk.repair()
        stage.start("n3")
        stage.curtain()


@story
def a_disk_that_fails_beside_a_checkpoint_ends_its_node(plant: Plant | None) -> None:
    """That there is no room is one thing; whatever else a disk says is believed at once."""
    with Stage(plant) as stage:
        stage.put(key(0), b"first")
        stage["n3"].store_fails = True
        stage.world.command(stage["n3"], "checkpoint")
        stage.until(lambda: not stage["n3"].up, "n3 has ended")
        stage["n3"].store_fails = False
        stage.start("n3")
        stage.curtain()


FILLS = 1 << 10
HEARD_LATE = 12
"""So many puts may come before others hear that a store is behind."""
BY_THEMSELVES = 30
"""So many records three nodes may log when nobody writes."""


def _logged(stage: Stage) -> int:
    """How many records are in the logs of all nodes."""
    nodes = [machine.node for machine in stage.world.machines.values()]
    return sum(node.core.durable_lsn for node in nodes if node is not None)


def _fill(stage: Stage, *names: str) -> None:
    """Fill the disks of some nodes, and write until that is refused."""
    stage.put(key(0), b"first")
    for name in names:
        stage[name].disk.capacity = stage[name].disk.used
    for number in range(400):
        task = stage.begin(_write(stage, key(1, number % 8), b"v" * FILLS, alone=bool(number % 2)))
        stage.until(lambda task=task: task.done, "a client is answered")  # type: ignore[misc]  # its own
        if task.failure is not None:
            stage.must(isinstance(task.failure, DiskFull), f"a client was told {task.failure!r}")
            return
    raise Violation("story", "disks without room are written to for ever")


def _no_checkpoints(stage: Stage, *names: str) -> None:
    """Write, and let the nodes find no room for checkpoints of that: their disks have little left."""
    for number in range(20):
        stage.put(key(0, number), b"v" * FILLS)
    for name in names:
        stage[name].disk.capacity = stage[name].disk.used + FILLS
        stage.world.command(stage[name], "checkpoint")
    stage.until(lambda: all(_is_cramped(stage, name) for name in names), "they find no room")
    stage.wait(2_000)
    for name in names:
        stage.must(stage[name].up, f"{name} goes on: {stage[name].why}")


def _is_cramped(stage: Stage, name: str) -> bool:
    machine = stage[name]
    stage.must(machine.node is not None and machine.up, f"{name} goes on: {machine.why}")
    return machine.node is not None and machine.node.core.is_cramped


def _stored(stage: Stage, name: str) -> int:
    """Up to where the store of a node holds its log."""
    node = stage[name].node
    assert node is not None
    return node.core.replica.store.base.load().lsn


def _must_be_refused(stage: Stage, name: bytes, *, alone: bool) -> None:
    task = stage.begin(_write(stage, name, b"another", alone=alone))
    stage.until(lambda: task.done, "a client is answered")
    stage.must(isinstance(task.failure, DiskFull), f"it is said that disks are full, and not {task.failure!r}")


def _empty(stage: Stage, *names: str) -> None:
    """Nobody has ended. There is room again: writes go on."""
    for name in names:
        stage.must(stage[name].up, f"{name} goes on: {stage[name].why}")
        stage[name].disk.repair()
    stage.wait(5_000)
    for number in range(PARTITIONS):
        stage.put(key(number), b"last")
    stage.curtain()


async def _write(stage: Stage, name: bytes, value: bytes, *, alone: bool) -> None:
    """By a put, or by a transaction that writes in another partition, too."""
    if alone:
        await stage.client.call(PutCall(stage.client.new_tx(), NAMESPACE, [name], [value]), timeout_ns=ANSWER_NS)
        return
    transaction = stage.transaction()
    half = value[: len(value) // 2]
    await transaction.put(NAMESPACE, {name: half, name + b"'": half})
    await transaction.commit()
