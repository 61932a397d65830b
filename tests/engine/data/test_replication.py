"""Batches on their way: how patiently they are sent again, how large they are, and what an old answer is worth."""

from __future__ import annotations

from itertools import pairwise

from engine.cluster.claims import Claims
from engine.data.batches import FEW, PATIENCE_MAX, SMALL_BYTES, SOON
from engine.data.concerns import work_of
from engine.data.replication import Replication
from engine.data.sizes import BATCH_WORK
from engine.messages import Message, Replicate, Replicated
from engine.state.ahead import KEYS_OF_WORK, LARGE_KEYS
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import BUSY_TIMES, Core
from engine.turn.effects import Effects
from engine.turn.settings import Settings
from rebalance.partition import LocalPartition, Role
from rebalance.ports import BYTES_OF_WORK, MS, WORK_MAX, Operation
from rebalance.promotion import EPOCH_WORK
from rebalance.rule import NEVER, NewMap
from rebalance.table import Member, Placement, Topology
from tests.support.called import called
from tests.support.placed import placed_at_once
from wal import records as r
from wal.ids import NodeId, Version

RETRANSMIT_MS = 100
TX = b"0123456789abcdef"


class Noted:
    """An update of partition 0 that notes what became of it."""

    def __init__(self, start: int, size: int = 1) -> None:
        self.records: list[r.Record] = [r.Update([r.Write("acc", 0, 1, start, [b"k%d" % start], [bytes(size)], 0)])]
        self.counts = False

    def counted(self) -> None:
        self.counts = True

    def abandoned(self) -> None:
        raise AssertionError("nobody takes the partition away")


class Primary:
    """A primary with one copy in sync (n2) and one that is MOVING (n3)."""

    def __init__(self) -> None:
        members = tuple(Member(node, node, 1, f"{node}:1", at) for at, node in enumerate(("n1", "n2", "n3")))
        placement = Placement(1, 1, ("n1", "n2", "n3"), ("n1", "n2"))
        topology = Topology(Version(1, 0), "c1", "foreshore", 1, 2, members, ("n1", "n2", "n3"), (placement,), {}, {}, 4)
        self.core = Core(
            Settings(retransmit_ms=RETRANSMIT_MS),
            Replica(LayeredStore(MemoryStore())),
            node="n1",
            allocation="n1",
            incarnation=1,
            address="n1:1",
            durable_lsn=0,
        )
        self.core.adopt(topology)
        self.local = LocalPartition(0, placement)
        self.local.role = Role.PRIMARY
        self.local.needed, self.local.moving = ("n2",), ("n3",)
        self.local.receivers = (("n2",), ("n3",))
        self.core.local = [self.local]
        self.replication = Replication(
            self.core,
            Claims(self.core),
            demanded=lambda _: False,
            passes_over=lambda _: False,
            compare=lambda _: None,
            hear=lambda _: None,
            overwrites=lambda _: iter(()),
        )

    def ship(self, *operations: Noted) -> None:
        """Ship operations in one turn."""
        for operation in operations:
            shipped = Operation(self.local, operation.records, counted=operation.counted, abandoned=operation.abandoned)
            self.replication.ship(shipped, self.local)
        self.replication.flush()

    def listens(self, ns: int) -> None:
        """Time goes by, in which it has nothing else to do."""
        self.core.attentive += ns

    def is_busy(self, ns: int) -> None:
        """The same, in which something else lies before it."""
        self.core.attentive += ns
        self.core.busy += ns

    def sent(self) -> list[tuple[tuple[NodeId, ...], Replicate]]:
        """The batches that left since this was asked last."""
        early, self.core.effects = self.core.effects.early, Effects()
        return [(targets, message) for targets, message in early if isinstance(message, Replicate)]

    def answer(self, node: NodeId, message: Message) -> None:
        """A copy has a batch."""
        assert isinstance(message, Replicate)
        self.replication.on_replicated(node, Replicated(Version(1, 0), [message.sequence], 1))

    def sendings(self, ms: int) -> list[int]:
        """When batches leave again, in ms from now, within so much time."""
        began, times = self.core.now, []
        while self.core.now < began + ms * MS:
            self.core.now += 10 * MS
            if self.core.now >= self.replication.wake_at:
                self.replication.tick()
            times += [(self.core.now - began) // MS for _ in self.sent()]
        return times


def _copy() -> Primary:
    """The same node as a copy in sync, which has begun the epoch of n2."""
    copy = Primary()
    copy.core.serving = True
    copy.local.role, copy.local.placement = Role.BACKUP, Placement(1, 1, ("n2", "n1"), ("n2", "n1"))
    copy.core.replica.apply(r.EpochStart(0, 1, [("acc", 1)]))
    return copy


def _shipped(primary: Primary, *operations: Noted) -> list[Replicate]:
    """What leaves when they are shipped in one turn."""
    primary.ship(*operations)
    return [batch for _, batch in primary.sent()]


def test_a_batch_without_an_answer_is_sent_again_after_pauses_that_double() -> None:
    primary = Primary()
    primary.ship(Noted(0, size=SMALL_BYTES))
    primary.sent()
    assert primary.sendings(4_000) == [100, 300, 700, 1_500, 3_100]
    longest = PATIENCE_MAX * RETRANSMIT_MS
    late = primary.sendings(20 * longest)
    assert {after - before for before, after in pairwise(late)} == {longest}


def test_a_small_batch_among_few_is_sent_again_soon() -> None:
    primary = Primary()
    primary.ship(Noted(0))
    primary.sent()
    times = primary.sendings(1_000)
    assert times[0] == RETRANSMIT_MS
    assert {after - before for before, after in pairwise(times)} == {10 * -(-RETRANSMIT_MS // SOON // 10)}


def _sent_thrice(answers: NodeId) -> int:
    """How many of many batches are sent for the third time soon after the second, if `answers` has a later one."""
    primary = Primary()
    for start in range(3 * FEW):
        primary.ship(Noted(start))
    primary.sent()
    assert set(primary.sendings(150)) == {100}
    primary.ship(Noted(3 * FEW))
    ((_, later),) = primary.sent()
    primary.answer(answers, later)
    primary.sendings(150)
    return len(primary.sendings(RETRANSMIT_MS))


def test_a_batch_among_many_is_sent_again_soon_when_a_copy_that_is_waited_for_answers_a_later_one() -> None:
    assert _sent_thrice("n2") >= 3 * FEW
    assert _sent_thrice("n3") == 0, "n3 is MOVING: what it answers says nothing of n2"


def test_a_batch_that_both_copies_answered_is_not_sent_again() -> None:
    primary = Primary()
    operation = Noted(0)
    primary.ship(operation)
    ((targets, batch),) = primary.sent()
    assert targets == ("n2", "n3")
    primary.answer("n2", batch)
    assert operation.counts
    primary.answer("n3", batch)
    assert primary.sendings(1_000) == []
    assert primary.replication.wake_at == NEVER


def test_what_a_joiner_answered_before_its_demand_does_not_count_for_what_it_gets_after() -> None:
    primary = Primary()
    primary.ship(Noted(0))
    ((_, passed_over),) = primary.sent()
    primary.replication.lag("n3", {0})  # its demand overtakes its answer
    ((targets, again),) = primary.sent()
    assert (targets, again.records) == (("n3",), passed_over.records)
    primary.answer("n3", passed_over)
    assert primary.replication.outstanding("n3", 0), "it has yet to answer the batch that came after the demand"
    primary.answer("n3", again)
    assert not primary.replication.outstanding("n3", 0)


def test_a_joiner_is_late_from_when_it_is_waited_for() -> None:
    primary = Primary()
    suspicion = primary.core.settings.suspicion_ms * MS
    primary.ship(Noted(0))
    primary.listens(suspicion)
    primary.replication.wait_for("n3", 0)
    assert primary.replication.stalled(1) == ["n2"], "it had no reason to hurry before"
    primary.listens(suspicion)
    assert primary.replication.stalled(1) == ["n2", "n3"]


def test_who_is_busy_itself_calls_a_copy_late_later() -> None:
    primary = Primary()
    suspicion = primary.core.settings.suspicion_ms * MS
    primary.ship(Noted(0))
    primary.is_busy(BUSY_TIMES * suspicion - BUSY_TIMES)
    assert primary.replication.stalled(1) == [], "the answer may lie before it"
    assert primary.replication.lags_ms()["n2"] == (BUSY_TIMES * suspicion - BUSY_TIMES) // MS
    primary.is_busy(BUSY_TIMES)
    assert primary.replication.stalled(1) == ["n2"]


def test_a_joiner_that_is_later_than_those_who_are_waited_for_is_behind() -> None:
    primary = Primary()
    least = 2 * primary.core.settings.suspicion_ms * MS

    def is_behind() -> bool:
        primary.core.turns += 1
        return primary.replication.is_behind("n3")

    primary.ship(Noted(0))
    ((_, first),) = primary.sent()
    primary.listens(least)
    assert not is_behind(), "it has some time"
    primary.answer("n2", first)
    primary.is_busy(1)
    assert is_behind()
    primary.ship(Noted(1))
    ((_, second),) = primary.sent()
    primary.answer("n3", second)
    assert not is_behind(), "what came before, it has and keeps for a supply"
    primary.ship(Noted(2))
    primary.listens(2 * least)
    assert not is_behind(), "all are late"
    primary.answer("n2", second)
    primary.ship(Noted(3))
    ((_, third), (_, _)) = primary.sent()
    primary.answer("n2", third)
    assert is_behind(), "it is later than they are"


def test_what_waits_for_an_answer_counts_once_though_a_joiner_gets_it_twice() -> None:
    primary = Primary()
    operation = Noted(0)
    primary.ship(operation)
    ((_, first),) = primary.sent()
    primary.replication.lag("n3", {0})
    ((_, second),) = primary.sent()
    primary.answer("n3", second)
    assert not operation.counts, "the copy in sync has not answered"
    primary.answer("n2", first)
    assert operation.counts


def test_what_is_decided_in_one_turn_leaves_in_batches_of_which_a_copy_can_leave_some_to_its_next() -> None:
    """In their order, as each was decided whole; and what no batch holds goes alone."""
    primary, each = Primary(), work_of(Noted(0).records[0])
    operations = [Noted(start, BATCH_WORK * BYTES_OF_WORK if start == 7 else 1) for start in range(3 * BATCH_WORK)]
    batches = _shipped(primary, *operations)
    assert [record for batch in batches for record in batch.records] == [o.records[0] for o in operations]
    assert max(sum(map(work_of, batch.records)) for batch in batches if len(batch.records) > 1) <= BATCH_WORK
    assert [len(batch.records) for batch in batches[:3]] == [7, 1, BATCH_WORK // each]
    for batch in reversed(batches):
        primary.answer("n2", batch)
    assert all(operation.counts for operation in operations)


def test_a_copy_answers_in_as_much_as_its_primary_can_count_in_a_part_of_a_turn() -> None:
    primary, copy = Primary(), _copy()
    batches = _shipped(primary, *(Noted(start) for start in range(2 * BATCH_WORK)))
    small = [batch for start in range(9) for batch in _shipped(primary, Noted(2 * BATCH_WORK + start))]
    for batch in (*batches, *small):
        copy.replication.on_replicate("n2", batch)
    copy.replication.flush()
    answers = [said for _, said in copy.core.effects.send if isinstance(said, Replicated)]
    assert [sequence for answer in answers for sequence in answer.sequences] == [b.sequence for b in (*batches, *small)]
    assert [len(answer.sequences) for answer in answers] == [1] * len(batches) + [len(small)]


def test_batches_of_many_turns_are_cut_when_a_new_topology_sends_them_together() -> None:
    primary = Primary()
    operations = [Noted(start, WORK_MAX * BYTES_OF_WORK // 3) for start in range(7)]
    for operation in operations:
        primary.ship(operation)
    primary.sent()
    primary.replication.switch(NewMap([], [], []))
    batches = [batch for _, batch in primary.sent()]
    assert [len(batch.records) for batch in batches] == [1, 1], "that is enough for a turn"
    while len(batches) < 7:
        primary.core.work = WORK_MAX  # what came is as much as it may do
        assert primary.replication.wake_at <= primary.core.now, "the others are to leave at once"
        primary.replication.tick()
        ((_, batch),) = primary.sent()
        batches.append(batch)
    assert [len(batch.records) for batch in batches] == [1] * 7
    assert len(primary.replication.open_records()) == len(operations), "all of them are known, sent or not"
    for batch in batches:
        primary.answer("n2", batch)
    assert all(operation.counts for operation in operations)


def test_of_very_many_small_writes_a_map_sends_again_as_much_as_a_turn_may_do() -> None:
    """Each is next to nothing in bytes."""
    primary = Primary()
    _shipped(primary, *(Noted(start) for start in range(4 * WORK_MAX)))
    primary.replication.switch(NewMap([], [], []))
    said = sum(work_of(record) for _, batch in primary.sent() for record in batch.records)
    assert WORK_MAX - BATCH_WORK <= said <= WORK_MAX
    primary.core.work = 0
    primary.replication.tick()
    assert 0 < primary.core.work <= WORK_MAX + BATCH_WORK
    assert len(primary.replication.open_records()) == 4 * WORK_MAX


def test_what_only_a_copy_that_is_lost_had_not_answered_counts_with_the_map_and_is_hardly_looked_at() -> None:
    primary = Primary()
    primary.local.needed, primary.local.moving, primary.local.receivers = ("n2", "n3"), (), (("n2", "n3"), ())
    operations = [Noted(start) for start in range(1_000)]
    primary.ship(*operations)
    for _, batch in primary.sent():
        primary.answer("n2", batch)
    primary.local.needed, primary.local.receivers = ("n2",), (("n2",), ())

    with called() as calls:
        primary.replication.switch(NewMap([], [], []))
    assert all(operation.counts for operation in operations)
    assert not primary.sent(), "nobody is left who lacks it"
    assert calls.total() <= 3 * len(operations)


def test_another_map_comes_while_very_many_count_with_the_one_before() -> None:
    """What has counted by then is over; the rest goes to the copies of the next map once more, and counts with them."""
    primary, operations = Primary(), [Noted(start) for start in range(5_000)]
    primary.local.needed, primary.local.moving, primary.local.receivers = ("n2", "n3"), (), (("n2", "n3"), ())
    primary.ship(*operations)
    for _, batch in primary.sent():
        primary.answer("n2", batch)
    primary.local.needed, primary.local.receivers = ("n2",), (("n2",), ())
    primary.replication.switch(NewMap([], [], []))
    counted = [operation for operation in operations if operation.counts]
    assert len(counted) == WORK_MAX
    assert primary.replication.open_records() == [o.records[0] for o in operations if not o.counts]
    primary.replication.switch(NewMap([], [], []))
    primary.core.begin_turn()
    primary.core.go_on()
    assert [operation for operation in operations if operation.counts] == counted, "they belong to another map by now"
    again = 0
    primary.replication.tick()
    while batches := primary.sent():
        for _, batch in batches:
            again += len(batch.records)
            primary.answer("n2", batch)
        primary.core.begin_turn()
        primary.replication.tick()
    assert again == len(operations) - len(counted)
    assert all(operation.counts for operation in operations)


def test_what_a_copy_that_stays_has_not_answered_is_said_again_when_another_is_lost() -> None:
    primary, (first, second) = Primary(), (Noted(0), Noted(1))
    primary.local.receivers = (("n2", "n3"), ())
    for operation in (first, second):
        primary.ship(operation)
    ((_, batch), _) = primary.sent()
    primary.answer("n2", batch)
    primary.local.receivers = (("n2",), ())
    primary.replication.switch(NewMap([], [], []))
    assert (first.counts, second.counts) == (True, False)
    ((targets, again),) = primary.sent()
    assert (targets, again.records) == (("n2",), second.records)


def test_the_outcome_of_a_large_transaction_is_taken_once_more_by_a_copy_in_which_it_has_ended() -> None:
    copy = _copy()
    keys = [b"%d" % number for number in range(LARGE_KEYS + 1)]
    write = r.Write("acc", 0, 1, 0, keys, [b""] * len(keys), 0)
    copy.core.replica.apply(r.Prepare(TX, 0, 1, [write], [], [0], 0))
    outcome = r.Outcome(TX, 0, 1, True, [("acc", 0, len(keys))])
    for sequence in (1, 2):  # the second time in another batch, because a topology came between
        copy.replication.on_replicate("n2", Replicate(Version(1, 0), sequence, [outcome], sequence))
        while copy.core.resumed:
            copy.core.work = 0
            copy.core.go_on()
        copy.replication.flush()
        ((_, answer),) = [said for said in copy.core.effects.send if isinstance(said[1], Replicated)]
        copy.core.effects = Effects()
        assert isinstance(answer, Replicated)
        assert answer.sequences == [sequence]
    assert copy.core.replica.fragment(("acc", 0)).counter.lwm == len(keys)


class Large(Noted):
    """A write of so many keys that it is worked out in pieces."""

    def __init__(self) -> None:
        super().__init__(0)
        keys = [b"%d" % number for number in range(3 * LARGE_KEYS)]
        self.records = [r.Update([r.Write("acc", 0, 1, 0, keys, [b"there"] * len(keys), 0)])]
        self.gone = False

    def abandoned(self) -> None:
        self.gone = True


def moves(node: Primary, to: NodeId) -> None:
    """The partition is another's, by a handover step."""
    placed_at_once(node.local, Placement(2, 2, (to, "n1", "n3"), (to, "n1", "n3")), "n1")
    node.replication.step(NewMap([node.local], [node.local], []))


def a_piece(node: Primary) -> None:
    """A turn that has room for little."""
    node.core.work = WORK_MAX - 1
    node.core.go_on()


def test_a_large_write_that_is_being_worked_out_goes_to_the_next_primary_as_it_is() -> None:
    primary, operation = Primary(), Large()
    primary.core.replica.apply(r.EpochStart(0, 1, [("acc", 1)]))
    shipped = Operation(primary.local, operation.records, counted=operation.counted, abandoned=operation.abandoned)
    primary.replication.ship_large(shipped, primary.local)
    primary.replication.flush()
    assert primary.sent() == [], "to log it was as much as a turn may do"
    assert primary.replication.open_records() == operation.records
    a_piece(primary)
    ((_, batch),) = primary.sent()
    assert primary.core.resumed, "half of it is worked out"
    moves(primary, "n2")
    assert operation.gone
    assert primary.core.replica.fragment(("acc", 0)).counter.lwm == 3 * LARGE_KEYS, "it is part of what this copy has"
    primary.answer("n2", batch)
    while primary.core.resumed:
        a_piece(primary)
    assert not operation.counts
    assert primary.replication.open_records() == []


def test_a_large_write_that_was_worked_out_is_not_worked_out_again_when_another_map_takes_it() -> None:
    primary, operation = Primary(), Large()
    replica, applied = primary.core.replica, list[bool]()
    replica.apply(r.EpochStart(0, 1, [("acc", 1)]))
    primary.replication.ship_large(Operation(primary.local, operation.records), primary.local)
    while primary.core.resumed:
        a_piece(primary)
    apply = replica._apply_write

    def noted(write: r.Write) -> bool:
        applied.append((write.fragment, write.start) in replica.ahead)
        return apply(write)

    replica._apply_write = noted  # type: ignore[method-assign]
    moves(primary, "n2")
    assert applied == [True]
    assert replica.fragment(("acc", 0)).counter.lwm == 3 * LARGE_KEYS
    assert not replica.ahead


def test_a_large_write_that_is_about_to_leave_goes_to_the_next_primary_as_it_is() -> None:
    primary, operation = Primary(), Large()
    primary.core.replica.apply(r.EpochStart(0, 1, [("acc", 1)]))
    shipped = Operation(primary.local, operation.records, counted=operation.counted, abandoned=operation.abandoned)
    primary.replication.ship_large(shipped, primary.local)
    moves(primary, "n2")
    assert operation.gone
    assert primary.core.replica.fragment(("acc", 0)).counter.lwm == 3 * LARGE_KEYS, "it is part of what this copy has"
    while primary.core.resumed:
        a_piece(primary)
    assert primary.sent() == []
    assert primary.replication.open_records() == []


def test_a_large_write_that_a_copy_works_out_is_refused_when_its_primary_has_moved_meanwhile() -> None:
    copy, write = _copy(), Large()
    copy.core.work = WORK_MAX - 1
    copy.replication.on_replicate("n2", Replicate(Version(1, 0), 1, write.records, 1))
    assert copy.core.resumed, "half of it is worked out"
    placed_at_once(copy.local, Placement(2, 2, ("n3", "n1", "n2"), ("n3", "n1", "n2")), "n1")
    while copy.core.resumed:
        a_piece(copy)
    copy.replication.flush()
    assert copy.core.effects.send == [], "whoever asks this copy next is told that it does not have it"
    assert copy.core.replica.fragment(("acc", 0)).counter.hwm == 0


def test_what_a_copy_takes_in_a_turn_is_counted_by_its_keys() -> None:
    """Thirty batches of nearly two thousand keys were as much work as thirty of one."""
    copy, start, taken = _copy(), 0, 0
    copy.core.work = 0
    while copy.core.work < WORK_MAX:
        keys = [b"%d" % number for number in range(LARGE_KEYS)]
        write = r.Write("acc", 0, 1, start, keys, [b""] * len(keys), 0)
        start, taken = start + len(keys), taken + 1
        copy.replication.on_replicate("n2", Replicate(Version(1, 0), taken, [r.Update([write])], 1))
    assert taken <= 4
    halves = [r.Write(ns, 0, 1, 0, [b"%d" % n for n in range(100)], [b""] * 100, 0) for ns in ("acc", "pay")]
    ended = r.Outcome(TX, 0, 1, True, [("acc", 0, 100), ("pay", 0, 100)])
    for record in (r.Update(halves), r.Prepare(TX, 0, 1, halves, [], [0], 0), ended):
        assert work_of(record) == 2 + 200 // KEYS_OF_WORK
    assert work_of(r.NoOp(0, 1, [])) == 2
    large: list[list[bytes | None]] = [[bytes(16 << 20)], [bytes(8 << 20), None, bytes(8 << 20)]]
    for values in large:
        prepare = r.Prepare(TX, 0, 1, [r.Write("acc", 0, 1, 0, [b"k"] * len(values), values)], [], [0], 0)
        assert work_of(prepare) == 2 + (16 << 20) // BYTES_OF_WORK, "it is logged, and is more than a turn has room for"
    assert work_of(r.Stable(0, 1, [(f"n{number}", 1) for number in range(256)])) == 2 + 256
    assert work_of(r.EpochStart(0, 2, [(f"n{number}", 1) for number in range(256)])) == 2 + 256 * EPOCH_WORK
