"""Stories of disks that are full: copies that nobody waits for need not take what there is no room for."""

from __future__ import annotations

import msgspec

from tests.sim.planted.stage import SETTINGS, Stage, Stories, key
from tests.sim.planted.stories_of_asynchronous import BEHIND, stands
from tests.sim.world import Plant
from wal.ids import NodeId

ROOM = Stories()
story = ROOM.story

SIZE = 1 << 10
MANY = 200
"""So many values of this size are some segments of the log."""


def _put_many(stage: Stage, value: bytes) -> None:
    for number in range(MANY):
        stage.put(key(0, number), value * SIZE)


def _goes_on(stage: Stage, name: NodeId) -> None:
    """It has no room, and has not ended for it."""
    node = stage[name].node
    stage.must(stage[name].up and node is not None, f"{name} goes on: {stage[name].why}")
    assert node is not None
    stage.must(node.core.is_cramped, f"{name} has no room")


@story
def a_copy_that_is_filled_finds_no_room(plant: Plant | None) -> None:
    """n3 has a new disk, with room for the first segment of a log and no more. It takes of the transfer what half of that
    holds, and nothing of what is written meanwhile, and goes on; when there is room it becomes whole."""
    with Stage(plant, settings=msgspec.structs.replace(SETTINGS, supply_batch_bytes=2 << 10)) as stage:
        _put_many(stage, b"u")
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        stage.start("n3")
        stage["n3"].disk.capacity = stage["n3"].disk.used
        stage.until(lambda: stage.listed("n3"), "n3 is a member")
        _put_many(stage, b"v")
        stage.wait(20_000)
        _goes_on(stage, "n3")
        stage["n3"].disk.repair()
        stage.curtain()


@story
def an_asynchronous_copy_finds_no_room(plant: Plant | None) -> None:
    """n2 leads nothing that is written, and nobody waits for its copy. It stays behind while its disk is full, goes on, and
    gets the rest when there is room."""
    with Stage(plant, settings=msgspec.structs.replace(BEHIND, anti_entropy_ms=0)) as stage:
        stage.put(key(0), b"before")
        stage["n2"].disk.capacity = stage["n2"].disk.used
        _put_many(stage, b"u")
        _put_many(stage, b"v")
        _goes_on(stage, "n2")
        stage["n2"].disk.repair()
        stage.wait(8_000)
        stage.must(stands(stage, "n1") == stands(stage, "n2"), "n2 has asked for what it passed over, and got it")
        stage.curtain()
