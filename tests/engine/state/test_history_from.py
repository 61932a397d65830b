"""From which counter on a copy says that its log has everything: never from below what was trimmed."""

from __future__ import annotations

from engine.state.replica import Replica
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from wal import records as r


def test_a_full_transfer_does_not_bring_back_live_writes_that_were_trimmed_while_it_ran() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    live = [r.Write("acc", 7, 1, start, [b"k%d" % start], [b"v"]) for start in (3, 4)]
    replica.apply(r.FragmentClear("acc", 7, "test"))
    replica.apply(r.Update(live))
    replica.apply(r.Trimmed(9, [("acc", 7, 4)]))  # the log lost the live write of counter 4
    replica.apply(r.FragmentReady("acc", 7, 3, 0, [(1, 1)], True))
    copy = replica.fragment(("acc", 7))
    assert copy.counter.lwm == 5
    assert copy.history_from == 4


def test_a_full_transfer_above_everything_that_was_trimmed_serves_history_from_there_on() -> None:
    replica = Replica(LayeredStore(MemoryStore()))
    replica.apply(r.FragmentClear("acc", 7, "test"))
    replica.apply(r.Trimmed(9, [("acc", 7, 2)]))
    replica.apply(r.FragmentReady("acc", 7, 3, 0, [(1, 1)], True))
    assert replica.fragment(("acc", 7)).history_from == 3
