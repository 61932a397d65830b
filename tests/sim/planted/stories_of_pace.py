"""A story of machines that have more to do than they can, all of them alike.

Turns take what they do, on processors so many times slower than the usual one, and writers ask for more than that: so most
of what there is to do lies before some node, whoever that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import count

from engine.client.calls import PutCall
from tests.sim.costs import Modelled
from tests.sim.planted.stage import NAMESPACE, PARTITIONS, Stage, Stories
from tests.sim.world import SECOND, Plant
from wal.ids import partition_of

PACE = Stories()
story = PACE.story

ROWS = 500
WRITERS = 96
VALUES: list[bytes | None] = [b"v" * 100] * ROWS


@cache
def _keys(partition: int) -> list[bytes]:
    some = (b"k%d" % n for n in range(2 * ROWS * PARTITIONS))
    return [key for key in some if partition_of(key, PARTITIONS) == partition][:ROWS]


def until_somebody_is_set_aside(
    stage: Stage, slowness: Mapping[str, int], *, seconds: int
) -> tuple[Mapping[str, int], int]:
    """Writers write all the time; who is set aside within so many seconds, and for how long (ms) one was not answered."""
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


@story
def all_machines_are_equally_slow(plant: Plant | None) -> None:
    """Answers take longer than a suspicion, each way: they lie before nodes that have as much to do themselves."""
    with Stage(plant) as stage:
        aside, late = until_somebody_is_set_aside(stage, {"n1": 60, "n2": 60, "n3": 60}, seconds=10)
        stage.must(not aside, f"nobody is too slow beside the others, and {', '.join(aside)} was set aside")
        stage.must(late > 1_500, "somebody was not answered for longer than anybody is waited for who has nothing to do")
