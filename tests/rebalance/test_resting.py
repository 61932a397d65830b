"""A node that was set aside asks for nothing for a while: which of its copies take what is written meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance import demanding
from rebalance.demanding import Rest
from rebalance.fragment import FragmentState
from rebalance.partition import PartitionState
from tests.sim.planted.fault import swapped
from wal import records as r

NUMBER = 3
WAITING: dict[str, dict[int, None]] = {"n2": {NUMBER: None}}


class Resting:
    """A node that was set aside, with one partition: counter 1 is missing there, and 2 is not."""

    def __init__(self) -> None:
        replica = Replica(LayeredStore(MemoryStore()))
        replica.apply_write(r.Write("acc", NUMBER, 1, 1, [b"b"], [b"2"]))
        self.state = replica.partition(NUMBER)
        self.core: Any = SimpleNamespace(now=0, slow_until=0, work=0, node="n1", replica=replica)
        self.set_aside(1)

    def set_aside(self, times: int) -> None:
        """By another map."""
        self.core.topology = SimpleNamespace(aside={"n1": times})

    def prepare(self, start: int, tx: bytes) -> None:
        """A vote that holds a counter."""
        write = r.Write("acc", NUMBER, 1, start, [b"a"], [b"1"], tx=tx)
        self.state.prepared[tx] = r.Prepare(tx, NUMBER, 1, [write], [], [NUMBER], NUMBER)


def test_a_copy_that_was_found_to_have_a_gap_is_not_looked_at_for_each_record() -> None:
    looked = 0

    def look(state: PartitionState) -> bool:
        nonlocal looked
        looked += 1
        return right(state)

    resting, right = Resting(), demanding.has_a_gap
    rest = Rest(resting.core)
    with swapped(demanding, "has_a_gap", look):
        assert not rest.passes_over(NUMBER, WAITING), "it does not rest"
        assert rest.begins()
        assert not rest.passes_over(NUMBER + 1, WAITING), "that one is not to be asked for"
        assert all(rest.passes_over(NUMBER, WAITING) for _ in range(100))
        assert looked == 1
        assert not rest.begins(), "by another map it rests on"
        resting.prepare(0, b"t" * 16)
        assert not rest.passes_over(NUMBER, WAITING), "what is prepared will bring what is missing"
        resting.set_aside(2)
        assert rest.begins()
        resting.state.prepared.clear()
        assert rest.passes_over(NUMBER, WAITING)
        resting.core.now = rest.until
        assert not rest.goes_on()
        assert not rest.passes_over(NUMBER, WAITING), "it is over"


def test_what_is_prepared_elsewhere_closes_no_gap() -> None:
    resting = Resting()
    for start in range(2, 5):
        resting.prepare(start, bytes([start]) * 16)
    assert demanding.has_a_gap(resting.state)
    resting.prepare(0, b"t" * 16)
    assert not demanding.has_a_gap(resting.state)
    resting.state.fragments["other"] = FragmentState(("other", NUMBER))
    resting.state.fragments["other"].loading = True
    assert demanding.has_a_gap(resting.state)
