"""Serial against parallel: how large the cluster is, when its copies are whole, what a figure says; links that delay."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from engine.turn.settings import Settings
from rebalance.supplier import MANY_UPDATES
from tests.tools.bench.test_bench import bench
from tools.bench.links import SlowLinks, behind
from tools.bench.side_by_side import (
    ALL,
    GOALS,
    NODES,
    PARTITIONS_MIN,
    ROWS,
    SERIAL,
    STAY,
    USUAL,
    figures_of,
    is_spread,
    keys_of_all,
    partitions_of,
)
from wal.ids import partition_of


@pytest.mark.parametrize(("updates", "partitions"), [(100, PARTITIONS_MIN), (3_400, 32), (200_000, Settings().partitions)])
def test_a_cluster_has_as_many_partitions_as_the_updates_ask_for(updates: int, partitions: int) -> None:
    assert partitions_of(updates) == partitions


def test_each_partition_has_its_rows_and_they_make_it_large_when_they_are_written_over() -> None:
    each = Counter(partition_of(key, 16) for key in keys_of_all(16))
    assert each == dict.fromkeys(range(16), ROWS)
    assert MANY_UPDATES % ROWS == 0


def status(baseline: tuple[str, ...], *, moving: int = 0, **owning: int) -> dict[str, object]:
    members = [{"node": name, "owning": count, "moving": moving} for name, count in owning.items()]
    return {"baseline": list(baseline), "members": members}


def test_copies_are_whole_when_those_who_are_to_hold_them_do_and_nothing_moves() -> None:
    assert is_spread(status(STAY, n1=16, n2=16, n3=7), STAY, 16), "what is surplus at the third delays nobody"
    assert not is_spread(status(NODES, n1=16, n2=16, n3=7), STAY, 16), "the order is not in the map yet"
    assert not is_spread(status(STAY, n1=16, n2=15, n3=7), STAY, 16)
    assert not is_spread(status(STAY, n1=16, n2=16, moving=1), STAY, 16)
    assert is_spread(status(NODES, n1=11, n2=11, n3=10), NODES, 16)
    assert not is_spread(status(NODES, n1=16, n2=16, n3=0), NODES, 16)
    assert not is_spread(status(NODES, n1=16, n2=16), NODES, 16), "who is to have some is not here"


def test_a_figure_is_the_time_of_one_at_a_time_by_that_of_many() -> None:
    took = {most: dict.fromkeys(GOALS, seconds) for most, seconds in ((SERIAL, 30.0), (USUAL, 4.0), (ALL, 1.5))}
    found = {measured.figure: measured for measured in figures_of("x", 16, took)}
    assert {name: measured.value for name, measured in found.items()} == {
        "x-leaves-10": 7.5,
        "x-leaves-all": 20.0,
        "x-crashes-10": 7.5,
        "x-crashes-all": 20.0,
    }
    assert [name for name, measured in found.items() if measured.reached] == ["x-leaves-all", "x-crashes-all"]


def test_a_slow_link_keeps_the_order_and_passes_the_end_on() -> None:
    said = b"".join(b"%d " % number for number in range(50_000))
    assert asyncio.run(echoed(said)) == said


async def echoed(said: bytes) -> bytes:
    """What comes back over a link that is slow at first, of whoever answers at the end of what is said."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async with SlowLinks() as links:
        _, listen, _, advertised = await links.add()
        assert listen == behind(advertised) != advertised
        async with await asyncio.start_server(answer, *listen.rsplit(":", 1)):
            reader, writer = await asyncio.open_connection(*advertised.rsplit(":", 1))
            links.delay_seconds = 0.001
            writer.write(said[:1000])
            await writer.drain()
            links.delay_seconds = 0.0
            writer.write(said[1000:])
            writer.write_eof()
            answered = await reader.read()
            writer.close()
            return answered


@pytest.mark.processes
def test_the_copies_are_counted_after_each_crash(tmp_path: Path) -> None:
    figures, _ = bench(tmp_path, "serial-parallel")
    assert len(figures) == 4
    assert {figure["counted"] for figure in figures} == {PARTITIONS_MIN * MANY_UPDATES}
