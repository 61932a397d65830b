"""Stories of what copies tell each other: in full, after an undo, and when a primary is gone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from engine.client.calls import PutCall
from engine.messages import AllSettled, Demand, Message, Replicate, Settled, Supply
from engine.turn.core import CROWDED_AT
from engine.turn.effects import Effects
from engine.turn.events import Event, Received
from rebalance.leaves import leaf_count, leaf_of
from rebalance.supplier import MANY_UPDATES
from tests.sim.machine import Machine
from tests.sim.network import MS, Rule
from tests.sim.observer import Observer
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, Stories, key
from tests.sim.world import Plant
from wal import records as r
from wal.ids import Fragment, NodeId, partition_of

TRANSFERS = Stories()
story = TRANSFERS.story

FIRST: Fragment = (NAMESPACE, 0)
"""The fragment of `key(0)`."""


@story
def a_full_transfer_of_many_rows(plant: Plant | None) -> None:
    """n3 lost its disk, and one fragment has more rows than one look of its supplier; some keys end with NUL bytes."""
    keys = [b"{k0}%05d" % n + b"\0" * (n % 3) for n in range(2_500)] + [b"{k0}%05d\0\0" % n for n in range(0, 300, 3)]
    keys = list(dict.fromkeys(keys))
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, supply_batch_bytes=16 << 10)) as stage:
        for at in range(0, len(keys), 250):
            share = keys[at : at + 250]
            put = PutCall(stage.client.new_tx(), NAMESPACE, share, [b"v" * 20] * len(share))
            stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        for dead in keys[:40:4]:
            stage.put(dead, None)
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        stage.start("n3")
        stage.curtain()


class _Whole(Observer):
    """How often all that a session supplies waited for one turn of a node: nothing is done between its first and last."""

    def __init__(self, name: NodeId) -> None:
        self.count = 0
        self._name = name

    def turned(self, machine: Machine, events: Sequence[Event], effects: Effects) -> None:
        """Count the sessions of which the first batch and the last one came."""
        if machine.name == self._name:
            came = [e.message for e in events if isinstance(e, Received) and isinstance(e.message, Supply)]
            firsts = [said.session for said in came if said.batch == 1]
            self.count += sum(said.last and said.session in firsts for said in came)


@story
def a_batch_is_about_many_partitions_that_are_taken_one_at_a_time(plant: Plant | None) -> None:
    """n3 lost its disk and takes large partitions one by one; a write in all of them waits for one of them at most.

    Its new disk is slow, so that a supply comes while it writes, and is taken in the turn after that.
    """
    settings = msgspec.structs.replace(SETTINGS, partitions=32, max_parallel_migrations=1)
    keys: dict[int, list[bytes]] = {number: [] for number in range(0, settings.partitions, 3)}  # of which n1 is primary
    numbers = itertools.count()
    while any(len(those) < MANY_UPDATES for those in keys.values()):
        name = b"k%d" % next(numbers)
        those = keys.get(partition_of(name, settings.partitions))
        if those is not None and len(those) < MANY_UPDATES:
            those.append(name)
    firsts = [those[0] for those in keys.values()]
    with Stage(plant, settings=settings) as stage:
        for those in keys.values():
            put = PutCall(stage.client.new_tx(), NAMESPACE, those, [b""] * len(those))
            stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        stage.start("n3")
        seen, still = set[int](), dict[int, set[int]]()  # batches of n1 that n3 had put off: ever; at each demand

        def count(src: str, dst: str, said: object) -> bool:
            node = stage["n3"].node
            kept = set() if node is None else {at for sender, at in node.replication._early._batches if sender == "n1"}
            seen.update(kept)
            if (src, dst) == ("n3", "n1") and isinstance(said, Demand):
                still.setdefault(said.session, kept)
            return False

        stage.world.network.weather.delay = 10 * MS
        stage["n3"].speed.sync = 5 * MS
        stage.world.watch([whole := _Whole("n3")])
        stage.world.network.rules.append(watch := Rule("anything", count, drop=True))
        behind = True
        while behind:
            put = PutCall(stage.client.new_tx(), NAMESPACE, firsts, [b"live"] * len(firsts))
            stage.begin(stage.client.call(put, timeout_ns=ANSWER_NS))
            stage.world.run_for(10 * MS)
            node = stage["n3"].node
            behind = node is None or not node.core.serving or bool(node.demander.behind)
        stage.end(watch)
        stage.must(len(still) >= len(firsts) // 2, f"partitions are asked for a few at a time, in {len(still)} demands")
        stage.must(bool(seen), "writes overtake what was demanded, and are put off")
        stage.must(whole.count >= len(firsts) // 2, f"a supply is taken in one turn, {whole.count} times")
        twice = [one & next_one for one, next_one in itertools.pairwise(still.values())]
        stage.must(not any(twice), f"nothing is put off while two are asked for, one after the other; found {twice}")
        stage.curtain()


@story
def a_key_is_deleted_and_the_history_of_that_is_gone(plant: Plant | None) -> None:
    """n3 is away while a few of many rows are written and deleted; the log is trimmed, so that it gets what differs."""
    keys = [key(0, n) for n in range(100)]
    small = msgspec.structs.replace(SETTINGS, wal_segment_bytes=4 << 10, checkpoint_ms=100)
    with Stage(plant, settings=small) as stage:
        put = PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"v" * 100] * len(keys))
        stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.wait(500)
        stage.power_cut("n3")
        for at in range(0, len(keys), 20):
            stage.put(keys[at], None if at % 40 else b"changed")
        for number in range(20):
            stage.put(key(0, 1), b"x%d" % number + b"x" * 500)
        stage.wait(500)
        for name in ("n1", "n2"):
            stage[name].truncate_log()
        stage.wait(100)
        stage.start("n3")
        stage.wait(5_000)
        node = stage["n3"].node
        how = node.demander.progress.kinds.get(FIRST) if node is not None else None
        stage.must(how == "differential" or plant is not None, f"n3 caught up by the rows that differ, and not by {how}")
        stage.curtain()


@story
def what_was_changed_is_remembered(plant: Plant | None) -> None:
    """n3 is away while keys are written and deleted, between checkpoints and after them; the log is trimmed, and n1
    remembers which they were."""
    keys = [key(0, n) for n in range(100)]
    small = msgspec.structs.replace(SETTINGS, wal_segment_bytes=4 << 10, checkpoint_ms=100, mutations_bytes=1 << 20)
    with Stage(plant, settings=small) as stage:
        put = PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"v" * 100] * len(keys))
        stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.wait(500)
        stage.power_cut("n3")
        for at in range(0, len(keys), 10):
            stage.put(keys[at], None if at % 20 else b"changed")
            stage.wait(40)
        for number in range(20):
            stage.put(key(0, 1), b"x%d" % number + b"x" * 500)
        stage.wait(500)
        for name in ("n1", "n2"):
            stage[name].truncate_log()
        stage.wait(100)
        stage.start("n3")
        stage.wait(5_000)
        node = stage["n3"].node
        assert node is not None
        how, moved = node.demander.progress.kinds.get(FIRST), node.demander.progress.rows
        stage.must(how == "mutations" or plant is not None, f"n3 gets what is remembered, and not {how}")
        stage.must(moved == {"mutations": 11} or plant is not None, f"eleven keys were changed, and {moved} moved")
        stage.curtain()


@story
def a_transfer_of_what_differs_breaks_off(plant: Plant | None) -> None:
    """n3 made room beside a key that was new at its primary; before any row comes that is deleted, and n2 is primary."""
    keys = [key(0, n) for n in range(100)]
    count = leaf_count(len(keys))
    beside = next(k for n in range(100, 100_000) if leaf_of(k := key(0, n), count) == leaf_of(keys[5], count))
    small = msgspec.structs.replace(SETTINGS, wal_segment_bytes=4 << 10, checkpoint_ms=100)
    with Stage(plant, settings=small) as stage:
        put = PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"v" * 100] * len(keys))
        stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.wait(500)
        stage.power_cut("n3")
        stage.put(beside, b"new")
        for number in range(20):
            stage.put(key(0, 1), b"x%d" % number + b"x" * 500)
        stage.wait(500)
        for name in ("n1", "n2"):
            stage[name].truncate_log()
        stage.wait(100)
        lost = Rule("supply", lambda _, to, said: to == "n3" and isinstance(said, Supply) and bool(said.rows), drop=True)
        stage.world.network.rules.append(lost)
        stage.start("n3")
        stage.until(lambda: lost.caught > 0, "the rows are lost")
        node = stage["n3"].node
        how = node.demander.progress.kinds.get(FIRST) if node is not None else None
        stage.must(how == "differential", f"n3 catches up by the rows that differ, and not by {how}")
        stage.put(beside, None)
        stage.power_cut("n1")
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        stage.end(lost)
        stage.wait(5_000)
        stage.start("n1")
        stage.curtain()


@story
def a_batch_of_a_transfer_is_lost(plant: Plant | None) -> None:
    """n3 takes everything in full, one batch at a time, and the second one is lost on the way."""
    keys = [b"{k0}%05d" % n for n in range(500)]
    small = msgspec.structs.replace(SETTINGS, supply_batch_bytes=1 << 10, supply_credit=1)
    with Stage(plant, settings=small) as stage:
        for at in range(0, len(keys), 250):
            share = keys[at : at + 250]
            put = PutCall(stage.client.new_tx(), NAMESPACE, share, [b"v" * 20] * len(share))
            stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        sent: list[int] = []

        def is_the_second(src: str, dst: str, said: object) -> bool:
            if isinstance(said, Supply) and (src, dst) == ("n1", "n3"):
                sent.append(said.batch)
            return isinstance(said, Supply) and len(sent) == 2

        stage.world.network.rules.append(Rule("supply", is_the_second, drop=True))
        stage.start("n3")
        stage.wait(10_000)
        newest = stage.world.newest()
        stage.must(newest is not None and "n3" in newest.placements[0].in_sync, "what was lost is sent again, and no more")
        stage.curtain()


@story
def more_comes_than_memory_is_for(plant: Plant | None) -> None:
    """n3 takes everything in full, of which little may be in its memory at a time: it goes on as checkpoints begin."""
    keys = [key(0, n) for n in range(500)]
    least = msgspec.structs.replace(SETTINGS, checkpoint_bytes=64 << 10, supply_batch_bytes=2 << 10, supply_credit=4)
    with Stage(plant, settings=least) as stage:
        put = PutCall(stage.client.new_tx(), NAMESPACE, keys, [b"v" * 100] * len(keys))
        stage.do(stage.client.call(put, timeout_ns=ANSWER_NS))
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        most = 0

        def look(_: str, to: str, said: object) -> bool:
            nonlocal most
            if to == "n3" and isinstance(said, Supply) and (node := stage["n3"].node) is not None:
                most = max(most, node.core.replica.store.active_bytes)
            return False

        stage.world.network.rules.append(Rule("look", look, drop=True))
        stage.start("n3")
        stage.wait(10_000)
        newest = stage.world.newest()
        stage.must(newest is not None and "n3" in newest.placements[0].in_sync, "n3 gets all of it in the end")
        enough = least.checkpoint_bytes // CROWDED_AT + 2 * least.supply_batch_bytes
        stage.must(0 < most <= enough, f"{enough} bytes lie in memory at most, and not {most}")
        stage.curtain()


@story
def a_checkpoint_between_an_undo_and_its_fetch(plant: Plant | None) -> None:
    """n1 undoes a write that nobody got, takes a checkpoint before it is told what the row should be, and loses power."""
    small = msgspec.structs.replace(SETTINGS, checkpoint_ms=100, supply_credit=1)
    with Stage(plant, settings=small) as stage:
        stage.put(key(0), b"before")
        lost = stage.lose("replicate", "n1")
        stage.begin_put(key(0), b"undone")
        stage.until(lambda: lost.caught > 0, "the batch is lost")
        stage.wait(20)
        stage.client.die()
        stage.power_cut("n1")
        stage.end(lost)
        stage.until(lambda: stage.primary(0, "n2"), "n2 is primary of partition 0")
        more = stage.lose("more", "n1", "n2")
        stage.start("n1")

        def undone() -> bool:
            node = stage["n1"].node
            fragment = node.core.replica.fragments.get(FIRST) if node is not None else None
            return fragment is not None and bool(fragment.suspects)

        stage.until(undone, "n1 undid its write")
        stage.wait(400)  # a checkpoint or two
        stage.power_cut("n1")
        stage.end(more)
        stage.start("n1")
        stage.curtain()


@story
def a_deleted_row_that_the_transfer_does_not_name(plant: Plant | None) -> None:
    """n3 loads in full, and a put reaches it that was counted before it asked; the delete that followed does not, and
    its supplier has dropped the tombstone long ago: when the transfer ends, the row must go."""
    small = msgspec.structs.replace(SETTINGS, checkpoint_ms=100, supply_credit=1, retransmit_ms=100)
    dead = key(0, 1)

    def has(record: r.Record, value: bytes | None) -> bool:
        return isinstance(record, r.Update) and any(
            (dead, value) in zip(w.keys, w.values, strict=True) for w in record.writes
        )

    def delete_for_n3(_: str, receiver: str, said: object) -> bool:
        return receiver == "n3" and isinstance(said, Replicate) and any(has(record, None) for record in said.records)

    with Stage(plant, settings=small) as stage:
        for at in range(5):
            stage.put(key(0, 10 + at), b"old")
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        demand = stage.lose("demand", "n3")
        live = stage.lose("replicate", "n1", "n3")
        stage.start("n3")
        stage.until(lambda: demand.caught > 0, "n3 asked")
        stage.put(dead, b"deleted later")
        stage.put(dead, None)
        for at in range(6):
            stage.put(key(0, 10 + at % 3), b"new")
            stage.wait(150)  # the tombstone settles, and a checkpoint drops it
        n1, n3 = stage["n1"].node, stage["n3"].node
        assert n1 is not None
        assert n3 is not None
        stage.until(lambda: n1.core.replica.store.get(FIRST, dead) is None, "n1 has dropped the tombstone")
        more = stage.lose("more", "n3", "n1")
        stage.world.network.rules.append(Rule("the delete", delete_for_n3, drop=True))

        def due_soon() -> bool:
            due = [
                b.due - n1.core.now
                for b in n1.replication._batches.values()
                if any(has(x, b"deleted later") for x in b.records)
            ]
            return bool(due) and 200_000_000 < due[0] < 300_000_000

        stage.until(due_soon, "the put is about to be sent once more")
        stage.end(demand)
        stage.until(lambda: more.caught > 0, "n3 took the first batch")
        stage.end(live)
        joiner = n3.core.replica
        stage.until(lambda: joiner.store.get(FIRST, dead) is not None, "the put reached n3 while it loads")
        stage.end(more)
        stage.wait(1_500)  # and still without the delete
        stage.curtain()


@story
def a_survivor_of_a_newer_epoch_tells_all(plant: Plant | None) -> None:
    """Above a gap lies an acknowledged write. n2 becomes primary, issues it again in epoch 2, reaches n4 and not n3, and
    dies. n3 has the counter of epoch 1: n4 must send what epoch 2 made of it all the same, or n3 closes it as a gap."""
    x, y = key(0, 1), key(0, 2)
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, backups=3)) as stage:
        stage.put(key(0), b"first")
        lost = stage.lose("replicate", "n1")
        stage.begin_put(x, b"nobody has it")
        stage.until(lambda: lost.caught > 0, "the batch is lost")
        stage.end(lost)
        stage.put(y, b"acknowledged", stage.another())
        stage.power_cut("n1")
        stage.client.die()
        not_to_n3 = stage.lose("replicate", "n2", "n3")

        def epoch_on_n4() -> int:
            node = stage["n4"].node
            return node.core.replica.partition(0).epoch if node is not None else 0

        stage.until(lambda: epoch_on_n4() == 2, "n4 took part in epoch 2")
        stage.power_cut("n2")
        stage.end(not_to_n3)
        stage.until(lambda: stage.primary(0, "n3"), "n3 is primary of partition 0")
        found = stage.get(y, stage.another())
        stage.must(found == b"acknowledged", f"an acknowledged write is read; found {found!r}")
        stage.curtain()


@story
def a_copy_is_ordered_anew(plant: Plant | None) -> None:
    """An operator orders n2 to take a fragment anew, and writes go on."""
    with Stage(plant) as stage:
        stage.put(key(0), b"before")
        stage.world.command(stage["n2"], "refetch", {"fragments": [f"{NAMESPACE}/0"]})
        stage.wait(20)
        stage.put(key(0, 1), b"meanwhile")
        stage.wait(500)
        stage.curtain()


class _Said(Observer):
    """How often one node said something to another."""

    def __init__(self, kinds: tuple[type[Message], ...], src: NodeId, dst: NodeId) -> None:
        self.count = 0
        self._kinds = kinds
        self._way = src, dst

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Count."""
        self.count += type(message) in self._kinds and (src, dst) == self._way


@story
def a_primary_has_nothing_to_give_yet(plant: Plant | None) -> None:
    """n2 leads after n1, and what n3 has to tell it of is lost; n1 is back, and asks n2 for what it missed."""
    with Stage(plant) as stage:
        stage.put(key(0), b"1")
        lost = stage.lose("tail", "n3", "n2")
        stage.power_cut("n1")
        stage.left_out("n1")
        said = _Said((Demand,), "n1", "n2")
        stage.world.watch([said])
        stage.start("n1")
        stage.until(lambda: said.count > 0, "n1 asks n2")
        stage.wait(2_000)
        often = 2_000 // SETTINGS.retransmit_ms + 3
        stage.must(said.count <= often, f"n1 asks at most {often} times in two seconds, and not {said.count} times")
        stage.end(lost)
        stage.curtain()


@story
def a_copy_that_is_whole_waits_for_a_map(plant: Plant | None) -> None:
    """n3 has all of what n2 leads, and what n2 says of it to n1 is lost, so that no map lets it count."""
    with Stage(plant) as stage:
        stage.put(key(1), b"1")
        stage.power_cut("n3")
        stage.left_out("n3")
        lost = stage.lose("caught-up", "n2")
        said = _Said((Settled, AllSettled), "n3", "n2")
        stage.world.watch([said])
        stage.start("n3")

        def counts() -> bool:
            newest = stage.world.newest()
            return newest is not None and "n3" in newest.placements[1].in_sync

        stage.wait(5_000)
        stage.must(not counts(), "nobody heard that n3 has everything")
        stage.must(said.count <= 5, f"it says so less and less often, and not {said.count} times in 5 s")
        stage.end(lost)
        stage.until(counts, "n2 has said so again")
        stage.curtain()
