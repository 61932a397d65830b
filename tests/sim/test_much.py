"""Where very much is prepared, or lies beyond a gap, no turn is too long: what it costs is modelled, and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from rebalance.messages import Supply, Tail, work_of_writes
from rebalance.ports import WORK_MAX
from tests.sim.costs import Free, Modelled
from tests.sim.machine import Machine
from tests.sim.network import Rule
from tests.sim.planted.stage import ANSWER_NS, NAMESPACE, SETTINGS, Stage, key, told
from tests.sim.transactions import SimTransaction

MUCH = msgspec.structs.replace(
    SETTINGS,
    staged_bytes_max=256 << 20,
    wal_segment_bytes=64 << 20,
    wal_total_bytes=1 << 30,
    link_bytes_per_s=1 << 30,  # what is lost is not waited for as long as it could still be on its way
)
VALUE = bytes(8 << 20)
"""One record, and all that a turn has room for."""
KEYS = [key(1, number) for number in range(8)]


@contextmanager
def prepared() -> Iterator[Stage]:
    """A transaction has prepared 64 MiB in a partition that n2 leads, n3 is away, and nobody hears how it ends."""
    with Stage(None, settings=MUCH) as stage:
        stage.power_cut("n3")
        stage.wait(2 * SETTINGS.suspicion_ms)
        stage.world.costs = Modelled()
        lost = stage.lose("finish")
        tx = SimTransaction(stage.client, optimistic=True, timeout_ns=10 * ANSWER_NS, at_once=len(VALUE))
        stage.do(tx.put(NAMESPACE, {key(0): b"1"} | dict.fromkeys(KEYS, VALUE)))
        committing = stage.begin(tx.commit())
        stage.until(lambda: told(committing), "all have voted")
        stage.until(lambda: lost.caught > 0, "and nobody hears of the outcome")
        yield stage
        stage.end(lost)
        stage.curtain()


@pytest.mark.parametrize("lost", [0, len(KEYS)])
def test_a_copy_that_comes_back_is_told_what_is_prepared_in_turns_of_their_own(lost: int) -> None:
    """Also where it is lost on its way, and all of it is said once more."""
    with prepared() as stage:
        batches = Rule("batches", lambda src, _, said: src == "n2" and isinstance(said, Supply), drop=True, left=lost)
        stage.world.network.rules.append(batches)
        stage.start("n3")
        stage.wait(8 * SETTINGS.suspicion_ms)
        assert batches.caught == lost
        held = stage["n3"]
        assert held.node is not None
        assert len(held.node.core.replica.partition(1).prepared) == len(KEYS)


def test_a_new_primary_is_told_what_is_prepared_in_turns_of_their_own() -> None:
    """What it lacks, and another copy has, of a partition whose primary died before all had it; some parts are lost."""
    lost = 3
    patient = msgspec.structs.replace(MUCH, suspicion_ms=3_000, slow_ms=6_000)  # nobody is set aside meanwhile
    with Stage(None, settings=patient) as stage:
        silent = stage.lose("replicate", receiver="n3")
        stage.world.costs = Modelled()
        for number, name in enumerate(KEYS):
            tx = SimTransaction(stage.client, optimistic=True, timeout_ns=10 * ANSWER_NS, at_once=len(VALUE))
            stage.do(tx.put(NAMESPACE, {name: VALUE, key(0, number): b"1"}))
            stage.begin(tx.commit())
        there, here = stage["n1"].node, stage["n3"].node
        assert there is not None
        assert here is not None
        stage.until(lambda: len(there.core.replica.partition(1).prepared) == len(KEYS), "one copy has it")
        tails = Rule("tails", lambda src, _, said: src == "n1" and isinstance(said, Tail), drop=True, left=lost)
        stage.world.network.rules.append(tails)
        stage.world.network.cut("the client", [("c1", "n1"), ("c1", "n3")])  # which would ask for all of them again
        stage.power_cut("n2")
        stage.end(silent)
        assert not here.core.replica.partition(1).prepared
        stage.until(lambda: here.core.local[1].active, "the other one leads")
        assert tails.caught == lost
        stage.world.costs = Free()
        stage.start("n2")
        stage.curtain()


BEYOND = 4


def test_what_lies_beyond_a_gap_comes_to_a_copy_in_pieces() -> None:
    """A transaction is prepared, and holds a counter: what was written since counts, and no log says so by itself."""
    with Stage(None) as stage:
        lost = stage.lose("finish")
        tx = SimTransaction(stage.client, optimistic=True, timeout_ns=ANSWER_NS)
        stage.do(tx.put(NAMESPACE, {key(0): b"1", key(1): b"1"}))
        committing = stage.begin(tx.commit())
        stage.until(lambda: told(committing), "all have voted")
        stage.until(lambda: lost.caught > 0, "and nobody hears of the outcome")
        stage.power_cut("n3")
        stage.wait(2 * SETTINGS.suspicion_ms)
        names = [key(1, number) for number in range(1, BEYOND + 1)]
        value = bytes(WORK_MAX * 1_500)
        for name in names:
            stage.put(name, value)
        said: list[Supply] = []

        def matches(src: str, _: str, what: object) -> bool:
            if src == "n2" and isinstance(what, Supply):
                said.append(what)
            return False

        stage.world.network.rules.append(Rule("batches", matches, drop=False))
        stage.world.costs = Modelled()
        stage.start("n3")
        stage.until(lambda: _ranges(stage["n3"]) == ((1, BEYOND),), "it has all of it")
        assert sum(len(batch.writes) for batch in said) >= BEYOND
        assert max(work_of_writes(batch.writes) for batch in said) < WORK_MAX, "none is more than a turn says"
        stage.end(lost)
        stage.curtain()


def _ranges(machine: Machine) -> tuple[tuple[int, int], ...]:
    """What a copy has beyond its gap."""
    return machine.node.core.replica.fragment((NAMESPACE, 1)).counter.ranges if machine.node is not None else ()


def test_a_copy_that_is_filled_gets_a_batch_that_is_larger_than_what_is_kept_for_it() -> None:
    """It lacks nothing else, and need not be filled once more while the next one comes (seed 600062)."""
    with Stage(None, settings=msgspec.structs.replace(SETTINGS, backlog_bytes_max=1 << 10)) as stage:
        stage.put(key(1), b"first")
        stage.power_cut("n3")
        stage.left_out("n3")
        stage.put(key(1), b"second")
        supply = stage.lose("supply", receiver="n3")
        stage.start("n3")
        stage.until(lambda: supply.caught > 0, "n3 is to be filled")
        lost = stage.lose("replicate", receiver="n3")
        stage.put(key(1), bytes(4 << 10))
        stage.end(supply)
        n3 = stage["n3"].node
        assert n3 is not None
        stage.until(lambda: n3.core.replica.fragment((NAMESPACE, 1)).counter.lwm == 2, "n3 has what it asked for")
        asks = stage.lose("demand", "n3")
        stage.end(lost)
        stage.until(lambda: n3.core.replica.fragment((NAMESPACE, 1)).counter.lwm == 3, "and what was written meanwhile")
        assert asks.caught == 0, "it has asked for nothing again"
        stage.end(asks)
        stage.curtain()
