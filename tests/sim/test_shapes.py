"""Large shapes are as large as they say, and the book of what was written in bulk finds what is wrong."""

from __future__ import annotations

import pytest

from tests.sim.draws import Draws
from tests.sim.oracles_tests.small import small_world
from tests.sim.recorder import Recorder
from tests.sim.run import run_seed
from tests.sim.shapes import SHAPES, SMALL, Shape, draw_shape
from tests.sim.violation import Violation
from tests.sim.workloads import Bulk, Load
from tests.sim.world import SECOND
from wal.ids import KEY_BYTES_MAX, PARTITIONS_MAX


def test_most_seeds_are_small_and_every_shape_is_drawn() -> None:
    drawn = [draw_shape(Draws(seed)) for seed in range(300)]
    assert 200 < sum(shape == SMALL for shape in drawn) < 280
    assert {shape.name for shape in drawn} == set(SHAPES)


def test_a_shape_that_is_asked_for_is_had() -> None:
    for seed, name in enumerate(SHAPES):
        assert draw_shape(Draws(seed), name).name == name
    assert draw_shape(Draws(1), "widest").partitions == PARTITIONS_MAX


def test_the_widest_is_one_seed_of_a_hundred() -> None:
    assert 20 < sum(draw_shape(Draws(seed)).widest for seed in range(3_000)) < 40


def test_a_deep_seed_has_fragments_of_thousands_of_rows() -> None:
    result = run_seed(4, shape=Shape("deep", bulk=2_000, clients=2, storms=1), digest=False)
    assert result.violation is None, str(result.violation)
    assert result.written > 2_000


def test_a_wide_seed_has_a_thousand_partitions() -> None:
    result = run_seed(
        1, shape=Shape("wide", partitions=1_024, bulk=600, clients=2, storms=1), storm_ns=SECOND, digest=False
    )
    assert result.violation is None, str(result.violation)
    assert result.written > 0


@pytest.mark.parametrize("what", ["lost", "changed", "strange"])
def test_a_row_that_is_not_as_it_was_written_is_found(what: str) -> None:
    with small_world() as small:
        load = Load(Recorder(small.world))
        bulk = Bulk(load, Draws("bulk").of("bulk"), namespaces=2, most=50, narrow=True)
        small.world.run_for(30 * SECOND)
        load.stop()
        small.world.run_for(5 * SECOND)
        assert bulk.written > 100
        assert bulk.committed > 5
        assert any(len(key) == KEY_BYTES_MAX for _, key in bulk.possible)
        reading = bulk.client.spawn(bulk.read())
        assert small.world.run_while(lambda: not reading.done, at_most=60 * SECOND)
        assert reading.failure is None
        row = next(row for row, held in bulk.possible.items() if held[-1] is not None and len(held) == 1)
        match what:
            case "lost":
                bulk.possible[row[0], b"{0}never"] = (b"written",)
            case "changed":
                bulk.possible[row] = (b"something else",)
            case _:
                del bulk.possible[row]
        bulk.client.spawn(bulk.read())
        with pytest.raises(Violation, match="history-bulk"):
            small.world.run_for(60 * SECOND)
