"""Stories of who is in the map and who is waited for: slow disks, broken links, orders of a person."""

from __future__ import annotations

import msgspec

from tests.sim.network import MS
from tests.sim.planted.stage import SETTINGS, Stage, Stories, key, told
from tests.sim.world import Plant
from wal.ids import NodeId

MEMBERS = Stories()
story = MEMBERS.story


def _slow(stage: Stage, name: NodeId) -> None:
    """Each sync of a node's disk takes a second from now on."""
    speed = stage[name].speed
    speed.slow, speed.slow_until = 1_000 * MS // speed.sync, 1 << 62


def _in_sync(stage: Stage, partition: int) -> tuple[NodeId, ...]:
    newest = stage.world.newest()
    assert newest is not None
    return newest.placements[partition].in_sync


def _busy(stage: Stage, seconds: int) -> None:
    """There is something to sync all the time."""
    for _ in range(4 * seconds):
        stage.begin_put(key(0), b"busy")
        stage.wait(250)


@story
def a_second_slow_disk_and_then_the_last_fast_one_breaks(plant: Plant | None) -> None:
    """Of three copies two are slow, one after the other; then the third is lost. The slow ones are here and answer."""
    with Stage(plant, nodes=5) as stage:
        _slow(stage, "n2")
        _busy(stage, 10)
        stage.must(_in_sync(stage, 0) == ("n1", "n3"), "one slow copy of three is not waited for")
        _slow(stage, "n3")
        _busy(stage, 10)
        stage.put(key(0), b"acknowledged")
        first = stage["n1"]
        first.stop("its disk broke", calls=0)
        first.wipe()
        stage.world.destroyed(first, "lost its disk")
        stage.until(lambda: stage.primary(0, "n3"), "the slow copy serves")
        for name in ("n2", "n3"):
            stage[name].speed.slow_until = 0
        stage.start("n1")
        stage.wait(40_000)
        stage.curtain()


@story
def the_last_other_copy_beats_and_does_not_answer(plant: Plant | None) -> None:
    """n2 is away, and all that is replicated to n3 is lost: a write to n1 waits for what is no slow copy."""
    with Stage(plant, nodes=5, settings=msgspec.structs.replace(SETTINGS, suspicion_ms=600)) as stage:
        stage.power_cut("n2")
        stage.left_out("n2")
        lost = stage.lose("replicate", "", "n3")
        put = stage.begin_put(key(0), b"1")
        stage.wait(9_000)
        stage.must(told(put), "a write waits for a copy that never answers no longer than the slowest disk may take")
        stage.end(lost)
        stage.wait(15_000)
        stage.curtain()
