"""A cut lies at one moment, whatever was under way when it was taken. Seed 395 at ff15d13 saw that it did not."""

from __future__ import annotations

from engine.client.cuts import TakeCutCall
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, Stage, key, told
from tests.sim.workloads.cuts import scanned


def test_who_reads_after_a_cut_sees_what_is_in_it() -> None:
    """A put is under way when the cut is taken, and counts later; in between another key is written, and both are read.

    At the cut neither is there. The first was, once, and the second was not: but who read both saw the second one alone.
    """
    with Stage(None) as stage:
        for partition in (0, 1):
            stage.put(key(partition), b"old")
        other = stage.another()
        stage.get(key(0), other)  # so that it knows the map
        lost = stage.lose("replicate", "n1", "n3")
        doing = stage.begin_put(key(0), b"new")
        stage.wait(20)
        taking = TakeCutCall(b"h" * 16)
        stage.do(other.call(taking, timeout_ns=ANSWER_NS), other)
        stage.put(key(1), b"new", other)
        seen = stage.get(key(0), other)
        stage.end(lost)
        stage.until(lambda: told(doing), "the put counts")
        rows = stage.do(scanned(other, NAMESPACE, taking.cut, 10), other)
        assert rows[key(1)] == b"old", "it began after the cut"
        assert rows[key(0)] == seen
