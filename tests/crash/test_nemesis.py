"""A dozen troubles of links, names, disks and directories on real nodes under load; and the proxies by themselves."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from engine.protocol.wire import MAGIC, PROTOCOL, Hello, frame
from tests.crash.kills import schedule
from tests.crash.nemesis import NEMESIS
from tests.crash.processes import free_port
from tests.crash.proxies import Proxies
from tests.crash.run import crash_run

CYCLES = 14
SEED = 3


@pytest.mark.slow
@pytest.mark.processes
def test_nothing_acknowledged_is_lost_whatever_befalls_links_names_and_directories() -> None:
    directory = Path(tempfile.mkdtemp(prefix="foreshore-nemesis-"))  # stays behind if the test fails
    report = crash_run(directory, seed=SEED, cycles=CYCLES, nemesis=True)
    assert report.kills.total() == CYCLES
    assert len(report.kills) >= 6, report.kills
    assert report.answers["ok"] > 10 * CYCLES, "\n".join(report.lines())
    report.forget()


def test_every_kind_of_trouble_comes_in_a_long_run() -> None:
    assert set(schedule(Random(SEED), 40, NEMESIS)) == set(NEMESIS)


def test_what_is_cut_waits_and_arrives_when_the_way_is_healed_and_a_reset_closes_it() -> None:
    target, port = free_port(Random(1)), free_port(Random(2))
    greeting = frame(Hello(MAGIC, PROTOCOL, "peer", node="n1"))

    async def story(proxies: Proxies) -> None:
        arrived: asyncio.Queue[bytes] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(1_000):
                    arrived.put_nowait(data)
                    writer.write(b"heard")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", target):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(greeting)
            assert await arrived.get() == greeting
            assert await reader.readexactly(5) == b"heard"
            proxies.ways.cut([("n1", "n2")])
            writer.write(b"one")
            while not proxies.ways.held:
                await asyncio.sleep(0.01)
            assert arrived.empty(), "nothing passes"
            proxies.ways.heal()
            assert await arrived.get() == b"one"
            proxies.ways.cut([("n2", "n1")])
            writer.write(b"two")
            assert await arrived.get() == b"two", "the other direction works"
            proxies.reset([("n1", "n2")])
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(10)
            proxies.ways.heal()
            writer.close()
            await asyncio.sleep(0.1)  # for the other end to hear of it

    with Proxies() as proxies:
        proxies.add("n2", port, target)
        asyncio.run(asyncio.wait_for(story(proxies), 60))
