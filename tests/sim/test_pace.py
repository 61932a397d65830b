"""Who is too slow beside what the others need: where all machines are alike nobody is, and one that is not is noticed.

Turns take what they do, on processors so many times slower than the usual one, and writers ask for more than that: so most
of what there is to do lies before some node, whoever that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import count

from engine.client.calls import PutCall
from tests.sim.costs import Modelled
from tests.sim.planted.stage import NAMESPACE, PARTITIONS, Stage
from tests.sim.world import SECOND
from wal.ids import partition_of

ROWS = 500
WRITERS = 96
VALUES: list[bytes | None] = [b"v" * 100] * ROWS


@cache
def _keys(partition: int) -> list[bytes]:
    some = (b"k%d" % n for n in range(2 * ROWS * PARTITIONS))
    return [key for key in some if partition_of(key, PARTITIONS) == partition][:ROWS]


def _until_somebody_is_set_aside(slowness: Mapping[str, int], *, seconds: int) -> tuple[Mapping[str, int], int]:
    """Writers write all the time; who is set aside within so many seconds, and for how long somebody was not answered."""
    with Stage(None) as stage:
        world, late = stage.world, 0
        world.costs = Modelled()
        for name, times in slowness.items():
            world.machines[name].speed.slowness = times

        async def write(first: int) -> None:
            for number in count(first):
                keys = _keys(number % PARTITIONS)
                put = PutCall(stage.client.new_tx(), NAMESPACE, keys, VALUES)
                await stage.client.call(put, timeout_ns=60 * SECOND)

        for number in range(WRITERS):
            stage.begin(write(number))
        for _ in range(4 * seconds):
            stage.wait(250)
            nodes = [machine.node for machine in world.machines.values() if machine.node is not None]
            late = max([late, *[ms for node in nodes for ms in node.replication.lags_ms().values()]])
            if (newest := world.newest()) is not None and newest.aside:
                return newest.aside, late
        return {}, late


def test_where_all_are_equally_slow_nobody_is_too_slow() -> None:
    """Answers take longer than a suspicion, each way: they lie before nodes that have as much to do themselves."""
    aside, late = _until_somebody_is_set_aside({"n1": 60, "n2": 60, "n3": 60}, seconds=10)
    assert aside == {}
    assert late > 1_500, "longer than anybody was waited for, once"


def test_one_that_is_slower_than_the_others_is_set_aside() -> None:
    """They have nothing to do but to wait for it."""
    aside, _ = _until_somebody_is_set_aside({"n1": 6, "n2": 6, "n3": 100}, seconds=12)
    assert aside == {"n3": 1}
