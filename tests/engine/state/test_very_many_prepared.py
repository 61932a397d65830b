"""What one record makes of very many transactions that are prepared in a partition: a look at each, which calls nothing."""

from __future__ import annotations

from collections.abc import Callable

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from rebalance.beginning import beginning
from rebalance.issuing import Again
from rebalance.partition import LocalPartition
from rebalance.table import Placement
from tests.support.called import called
from wal import records as r

MANY = 2_000
NUMBER = 3
NAME = ("acc", NUMBER)


def _tx(counter: int) -> bytes:
    return counter.to_bytes(16, "big")


def _prepared(*, below: int = 0) -> Replica:
    """Each has the next two counters, above some that are not here yet; and writes in another namespace, too."""
    replica = Replica(LayeredStore(MemoryStore()))
    for n in range(MANY):
        writes = [
            r.Write("acc", NUMBER, 1, below + 2 * n, [b"a", b"b"], [b"1", b"2"], tx=_tx(n)),
            r.Write("other", NUMBER, 1, n, [b"c"], [b"3"], tx=_tx(n)),
        ]
        replica.apply(r.Prepare(_tx(n), NUMBER, 1, writes, [], [NUMBER], NUMBER))
    return replica


def _calls(do: Callable[[], object]) -> int:
    with called() as calls:
        do()
    return calls.total()


def test_what_is_prepared_stays_reserved_as_an_epoch_begins() -> None:
    replica = _prepared()
    assert _calls(lambda: replica.apply(r.EpochStart(NUMBER, 1, [("acc", 1), ("other", 1)]))) <= MANY // 10
    assert len(replica.partition(NUMBER).prepared) == MANY
    assert replica.fragment(NAME).counter.hwm == 2 * MANY
    assert replica.fragment(("other", NUMBER)).counter.hwm == MANY


def test_what_ended_before_a_transfer_was_whole_is_prepared_no_more() -> None:
    """The transfer of the second fragment tells of one end; that of the first one told of more, and of none alone."""
    replica = _prepared(below=10)
    assert _calls(lambda: replica.apply(r.FragmentReady("acc", NUMBER, 10, 0, [(1, 1)], full=False))) <= MANY // 10
    replica.apply(r.NoOp(NUMBER, 1, [("acc", 10, 6), ("other", 0, 2), ("acc", 30, 2)]))
    replica.apply(r.FragmentReady("acc", NUMBER, 0, 0, [(1, 1)], full=False))
    assert list(replica.partition(NUMBER).prepared) == [_tx(n) for n in range(2, MANY)]
    replica.apply(r.NoOp(NUMBER, 1, [("other", 10, 1)]))
    replica.apply(r.FragmentReady("other", NUMBER, 0, 0, [(1, 1)], full=False))
    assert list(replica.partition(NUMBER).prepared) == [_tx(n) for n in range(2, MANY) if n != 10]


def test_history_is_held_against_what_is_prepared_at_its_counters() -> None:
    replica = _prepared(below=10)
    missed = [r.Write("acc", NUMBER, 1, n, [b"x"], [b"9"], tx=_tx(MANY + n)) for n in range(10)]
    assert _calls(lambda: replica.apply(r.History(missed))) <= MANY
    assert len(replica.partition(NUMBER).prepared) == MANY
    ended = replica.partition(NUMBER).prepared[_tx(3)]
    replica.apply(r.History(ended.writes[:1]))
    assert len(replica.partition(NUMBER).prepared) == MANY, "not all of it has come"
    replica.apply(r.History(ended.writes[1:]))
    assert list(replica.partition(NUMBER).prepared) == [_tx(n) for n in range(MANY) if n != 3]


def test_what_was_issued_again_is_one_span_of_counters_as_an_epoch_begins() -> None:
    replica, local = _prepared(below=10), LocalPartition(NUMBER, Placement(1, 1, ("n1",), ("n1",)))
    local.epoch = 1
    state = replica.partition(NUMBER)
    again = Again([], {})
    found = beginning(local, state, again)
    assert _calls(lambda: beginning(local, state, again)) <= MANY // 10
    assert found == (r.EpochStart(NUMBER, 1, [("acc", 1), ("other", 1)]), [r.NoOp(NUMBER, 1, [("acc", 0, 10)])])
