"""Nodes at sites that are far apart: what takes round trips, with the settings that `docs/three-hosts.md` advises."""

from __future__ import annotations

import msgspec
import pytest

from engine.turn.settings import Settings
from tests.sim.network import MS, Weather
from tests.sim.planted.stage import PARTITIONS, SETTINGS, Stage, key, told

PATIENT = msgspec.structs.replace(SETTINGS, retransmit_ms=1_500, suspicion_ms=5_000, connection_lost_ms=2_000)
PRIMARIES = ("n1", "n2", "n3", "n1")


def _all_back(stage: Stage) -> bool:
    newest = stage.world.newest()
    return newest is not None and all(
        len(p.in_sync) == 3 and p.primary == first for p, first in zip(newest.placements, PRIMARIES, strict=True)
    )


def _version(stage: Stage) -> str:
    newest = stage.world.newest()
    assert newest is not None
    return str(newest.version)


class _Writer:
    """Puts in each partition, one after the other, while something goes on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.longest = 0

    def until_ended(self, ms: int, *, ends: bool) -> None:
        """Write until all is as it was, or for so long."""
        stage = self.stage
        began = stage.world.now
        while stage.world.now < began + ms * MS and not (ends and _all_back(stage)):
            since = stage.world.now
            puts = [stage.begin_put(key(partition), b"%d" % since) for partition in range(PARTITIONS)]
            stage.until(lambda puts=puts: all(task.done for task in puts), "every write is answered")  # type: ignore[misc]
            stage.must(all(map(told, puts)), "and is made")
            self.longest = max(self.longest, (stage.world.now - since) // MS)
        stage.must(not ends or _all_back(stage), f"it takes more than {ms} ms")

    def took(self) -> int:
        """How long the longest write took, in ms, since this was asked."""
        longest, self.longest = self.longest, 0
        return longest


@pytest.mark.parametrize(
    ("round_trip", "settings"),
    [(100, SETTINGS), (300, SETTINGS), (600, PATIENT)],
    ids=["100ms", "300ms", "600ms-and-set-for-it"],
)
def test_sites_that_are_far_apart_lose_nobody_who_is_there(round_trip: int, settings: Settings) -> None:
    """One fails and returns, another one is stopped in good order and returns: each costs a few round trips, and no more
    maps than where they are near."""
    with Stage(None, settings=settings) as stage:
        world, writer = stage.world, _Writer(stage)
        world.network.weather = Weather(delay=round_trip * MS // 2, jitter=round_trip * MS // 10)
        writer.until_ended(5_000, ends=False)
        stage.must(_version(stage) == "1.0", "nothing happens by itself")
        stage.must(writer.took() <= 4 * round_trip, "the first writes of a client, which asks where things are")
        stage.power_cut("n1")
        writer.until_ended(settings.suspicion_ms + 5 * round_trip, ends=False)
        blocked = writer.took()
        stage.must(blocked <= settings.suspicion_ms + 9 * round_trip, f"a failure blocks writes for {blocked} ms")
        stage.start("n1")
        writer.until_ended(12 * round_trip + 1_000, ends=True)
        stage.must(writer.took() <= 5 * round_trip, "who returns stops nobody")
        stage.must(_version(stage) in ("3.1", "3.2", "3.3"), "it is let in, whole, and has its partitions back")
        world.command(stage["n2"], "stop")
        writer.until_ended(11 * round_trip, ends=False)
        stage.must(stage["n2"].gone, "it has handed over, and is gone")
        took = writer.took()
        stage.must(took <= 7 * round_trip, f"which stops nobody, either: {took}")
        stage["n2"].gone = False
        stage.start("n2")
        writer.until_ended(12 * round_trip + 1_000, ends=True)
        world.network.weather = Weather()
        stage.curtain()
