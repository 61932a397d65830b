"""How large a seed's cluster is, in each direction. Most are small, so that things meet; some are not, so that nothing is
right only where there is little of it.

A seed of a wide or deep shape has fewer operations in a shorter storm, so that it stays within seconds. The widest has as
many partitions as there can be, in one group, on three nodes, and two seconds of storm: half a minute of processor and
more, so that it is one seed of a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.draws import Draws
from wal.ids import PARTITIONS_MAX


@dataclass(frozen=True)
class Shape:
    """What a seed is made of. `bulk`: batches of up to so many keys, over so many `namespaces`.

    `batch_bytes`: what is supplied goes in batches of so many at least. Sixty thousand rows in batches of ten, one under
    way at a time, on a disk of 8 ms a sync take longer than any patience, and nothing is wrong with them.
    """

    name: str = "small"
    partitions: int = 0  # 0: as the settings were drawn
    namespaces: int = 1
    bulk: int = 0
    clients: int = 4
    batch_bytes: int = 0
    nodes: int = 0  # 0: as they were drawn
    storm_ms: int = 0  # 0: as long as others
    storms: int = 60  # a storm in which too little happened goes on for up to so many times as long

    @property
    def widest(self) -> bool:
        """There are as many partitions as there can be: settings are patient, and one group has them all."""
        return self.partitions == PARTITIONS_MAX

    @property
    def small(self) -> bool:
        """Enough happens in its storm, or it goes on."""
        return self.name == "small"


SMALL = Shape()
SHAPES = ("small", "wide", "many", "deep", "widest")
WIDEST_SHARE = 0.01


def draw_shape(draws: Draws, name: str = "") -> Shape:
    """The shape of a seed; or what the seed makes of the one of this name."""
    draw = draws.of("shape")
    kind = draw.random()
    if not name and draws.of("the widest").random() < WIDEST_SHARE:
        name = "widest"
    if not name:
        name = "small" if kind < 0.80 else "wide" if kind < 0.86 else "many" if kind < 0.92 else "deep"
    match name:
        case "small":
            return SMALL
        case "wide":
            return Shape("wide", partitions=draw.choice([1_024, 1_024, 2_048]), bulk=1_000, clients=2, storms=1)
        case "many":
            return Shape("many", namespaces=draw.choice([16, 64, 200]), bulk=200, clients=2, storms=1)
        case "deep":
            bulk = draw.choice([400, 2_000, 9_000, 30_000, 100_000])
            return Shape("deep", bulk=bulk, batch_bytes=max(16 << 10, 2 * bulk), clients=2, storms=1)
    assert name == "widest", f"there is no shape {name!r}"
    return Shape("widest", partitions=PARTITIONS_MAX, bulk=400, clients=1, nodes=3, storm_ms=2_000, storms=1)
