"""A prepared transaction holds its counters: whatever becomes of the rows, a live copy says what a recovered one would."""

from __future__ import annotations

import pytest

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from wal import records as r

PREPARE = r.Prepare(b"t" * 16, 7, 1, [r.Write("acc", 7, 1, 3, [b"k"], [b"v"])], [], [7], 7)


@pytest.mark.parametrize("record", [r.FragmentClear("acc", 7, "test"), r.Undo("acc", 7, 2, [])], ids=["cleared", "undone"])
def test_a_copy_that_lost_its_rows_still_knows_which_counters_are_promised(record: r.Record) -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(r.Update([r.Write("acc", 7, 1, at, [b"k"], [b"v"]) for at in range(3)]))
    replica.apply(PREPARE)
    replica.apply(record)
    assert replica.partition(7).prepared == {PREPARE.tx: PREPARE}
    assert replica.fragment(("acc", 7)).counter.hwm == 4


def test_a_copy_that_moved_away_holds_no_votes() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(PREPARE)
    replica.apply(r.FragmentClear("acc", 7, "the copy moved away", True))
    assert not replica.partition(7).prepared
    assert not replica.fragments
