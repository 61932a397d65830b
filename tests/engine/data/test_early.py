"""Batches that come before the supply they follow are kept, few of them, and taken once it has begun."""

from __future__ import annotations

from engine.data.early import BATCHES_MAX, BYTES_MAX, TAKEN_AT_ONCE, Early
from engine.messages import Replicate
from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.core import Core
from engine.turn.settings import Settings
from rebalance.ports import WORK_MAX
from wal import records as r
from wal.ids import NodeId, Version


def batch(sequence: int, size: int = 100) -> Replicate:
    write = r.Write("acc", 1, 1, sequence, [b"k"], [b"v" * size], 0, b"t" * 16)
    return Replicate(Version(1, 0), sequence, [r.Update([write])])


class Taking:
    """Turns that have no room left, of a node that keeps batches; each that it takes is so much work."""

    def __init__(self, work: int = 1) -> None:
        replica = Replica(LayeredStore(MemoryStore()))
        self.core = Core(Settings(), replica, node="n1", allocation="d1", incarnation=1, address="a", durable_lsn=0)
        self.early, self.work = Early(), work
        self.taken: list[tuple[NodeId, int]] = []

    def turn(self, *demanded: int) -> list[tuple[NodeId, int]]:
        self.core.work, self.taken = WORK_MAX, []
        self.early.take(self.core, lambda number: number in demanded, self._take)
        return self.taken

    def _take(self, sender: NodeId, message: Replicate) -> None:
        self.core.work += self.work
        self.taken.append((sender, message.sequence))


def test_each_waits_for_its_own_partition_and_is_taken_once() -> None:
    taking = Taking()
    taking.early.keep("n2", batch(7), 1)
    taking.early.keep("n3", batch(7), 2)
    assert taking.turn(1, 2) == []
    assert taking.turn(1) == [("n3", 7)]
    assert taking.turn() == [("n2", 7)]
    assert taking.turn() == []


def test_one_that_is_said_again_is_kept_once_and_one_that_waits_for_nothing_is_not() -> None:
    taking = Taking()
    taking.early.keep("n2", batch(7), 1)
    taking.early.keep("n2", batch(7), 1)
    taking.early.keep("n2", batch(8), None)
    assert taking.turn() == [("n2", 7)]
    assert taking.turn() == []


def test_a_full_turn_takes_some_and_the_next_one_the_rest() -> None:
    taking = Taking(work=TAKEN_AT_ONCE // 2)
    for sequence in range(5):
        taking.early.keep("n2", batch(sequence), 1)
    assert [len(taking.turn()) for _ in range(4)] == [2, 2, 1, 0]


def test_one_that_has_to_wait_for_another_partition_may_be_kept_again() -> None:
    taking = Taking()
    taking.early.keep("n2", batch(7), 1)
    again = taking.early.keep
    taking.early.take(taking.core, lambda _: False, lambda sender, message: again(sender, message, 2))
    assert taking.turn(2) == []
    assert taking.turn() == [("n2", 7)]


def test_few_are_kept_and_few_bytes() -> None:
    taking = Taking(work=0)
    for sequence in range(2 * BATCHES_MAX):
        taking.early.keep("n2", batch(sequence), 1)
    assert len(taking.turn()) == BATCHES_MAX
    for sequence in range(4):
        taking.early.keep("n2", batch(sequence, BYTES_MAX // 3), 1)
    assert [sequence for _, sequence in taking.turn()] == [0, 1]
    taking.early.keep("n2", batch(9, BYTES_MAX // 3), 1)
    assert taking.turn() == [("n2", 9)], "what was taken makes room"
