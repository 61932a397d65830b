"""Stories of slow links: what is large takes seconds on its way, and is neither late nor said again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.messages import Message, Supply
from tests.sim.observer import Observer
from tests.sim.planted.stage import SETTINGS, Stage, Stories, key
from tests.sim.world import Plant
from wal.ids import NodeId

LINK_BYTES_PER_S = SETTINGS.link_bytes_per_s
LARGE_BYTES = 3 << 20
SLOW = msgspec.structs.replace(SETTINGS, wal_segment_bytes=8 << 20, wal_total_bytes=64 << 20)
LINKS = Stories()
story = LINKS.story


class _Bytes(Observer):
    """How many bytes of some kind came to a node."""

    def __init__(self, name: NodeId, weigh: Callable[[Message], int]) -> None:
        self.count = 0
        self._name = name
        self._weigh = weigh

    def delivered(self, src: NodeId, dst: NodeId, message: Message) -> None:
        """Count."""
        if dst == self._name:
            self.count += self._weigh(message)


@story
def a_copy_is_filled_over_links_of_one_megabyte(plant: Plant | None) -> None:
    """What may be under way of a transfer takes each link for eight seconds, and other writes go on beside it."""
    with Stage(plant, settings=SLOW) as stage:
        names = [b"v%d" % number for number in range(64)]
        for name in names:
            stage.put(name, bytes(128 << 10))
        stage.power_cut("n3")
        stage["n3"].wipe()
        stage.left_out("n3")
        stage.world.network.narrow([(a, "n3") for a in ("n1", "n2")], LINK_BYTES_PER_S)
        said = _Bytes("n3", lambda message: message.size if isinstance(message, Supply) else 0)
        stage.world.watch([said])
        stage.start("n3")
        put = [stage.begin_put(key(partition), b"beside") for partition in range(4)]
        stage.wait(3_000)
        stage.must(all(task.done and task.failure is None for task in put), "writes do not wait for a copy that is filled")
        stage.wait(9_000)
        whole = stage.world.newest()
        stage.must(whole is not None and all("n3" in p.in_sync for p in whole.placements), "n3 is whole when all has come")
        twice = said.count - sum(128 << 10 for _ in names)
        stage.must(twice < 1 << 20, f"{twice} bytes came more than once, or were no values")
        stage.world.network.widen()
        stage.curtain()
