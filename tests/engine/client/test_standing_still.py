"""A client that did not run for a while, because its process, its machine or its loop stood still, has not waited; and one
that runs and waits does not look all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import engine
from engine.client.calls import GetCall
from engine.client.session import LOOK_SECONDS, TICK_SECONDS, Session
from engine.client.timing import Surroundings
from engine.protocol.addresses import Address
from engine.protocol.requests import GetTable, Request, Values
from tests.engine.client.test_routing import SECOND, table
from wal.ids import Version

NODE = "127.0.0.1:1"


class Clock:
    """The clock that the session reads: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now = SECOND

    def read(self) -> int:
        """What it reads, in ns."""
        return self.now


class Ways:
    """A node that takes everything and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def connect(self, address: Address) -> None:
        """It is there already."""

    def send(self, address: Address, requests: list[Request]) -> None:
        """Keep what was asked."""
        self.asked += [request for request in requests if not isinstance(request, GetTable)]

    async def close(self) -> None:
        """There is nothing to hang up."""


class Story:
    """A session of one node, which has the clock of the story."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.ways = clock, Ways()
        self.session = Session([NODE], timeout=2.0, around=Surroundings(clock.read))
        self.session.links = self.ways
        self.session.look_seconds = TICK_SECONDS
        self.session.on_connected(NODE)
        self.session.on_replies(NODE, [table(Version(1, 0), "aaaa")])

    def get(self) -> asyncio.Task[GetCall]:
        """Begin to read a key."""
        return asyncio.ensure_future(self.session.call(GetCall("acc", [b"k"])))

    async def ticks(self) -> None:
        """The loop runs, and what is due is looked at."""
        await asyncio.sleep(3 * TICK_SECONDS)

    async def wait(self, seconds: float, times: int = 1) -> None:
        """So long the loop does not tick, so often."""
        for _ in range(times):
            self.clock.now += int(seconds * SECOND)
            await self.ticks()


def play(story: Callable[[Story], Coroutine[Any, Any, None]]) -> None:
    """Tell a story."""

    async def whole() -> None:
        await story(Story(Clock()))

    asyncio.run(whole())


def test_who_stood_still_for_longer_than_it_would_wait_is_answered() -> None:
    async def story(client: Story) -> None:
        reading = client.get()
        await client.ticks()
        await client.wait(60)
        assert not reading.done(), "it ran for no second of them"
        (asked,) = client.ways.asked
        client.session.on_replies(NODE, [Values(asked.id, [(1, 1, b"v")])])
        assert (await reading).values == [(1, 1, b"v")]

    play(story)


def test_who_runs_waits_for_as_long_as_it_said() -> None:
    async def story(client: Story) -> None:
        reading = client.get()
        await client.ticks()
        await client.wait(0.9, times=2)
        assert not reading.done()
        await client.wait(0.9)
        with pytest.raises(engine.Unavailable, match="no answer"):
            await reading

    play(story)


def test_who_stands_still_again_and_again_does_not_wait_for_ever() -> None:
    async def story(client: Story) -> None:
        reading = client.get()
        await client.ticks()
        await client.wait(60)
        assert not reading.done()
        await client.wait(60)
        with pytest.raises(engine.Unavailable):
            await reading

    play(story)


def test_what_is_begun_after_it_has_no_share_in_it() -> None:
    async def story(client: Story) -> None:
        before = client.get()
        await client.ticks()
        client.clock.now += 60 * SECOND
        after = client.get()  # in the pass of the loop that comes before its next tick
        await client.ticks()
        await client.wait(0.9)
        assert not after.done()
        await client.wait(0.9, times=2)
        with pytest.raises(engine.Unavailable):
            await after
        with pytest.raises(engine.Unavailable):
            await before

    play(story)


@pytest.mark.parametrize(("stale", "seconds"), [(False, LOOK_SECONDS), (True, 0.05)])
def test_who_waits_looks_when_something_is_due(stale: bool, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(client: Story) -> None:
        session, delays = client.session, list[float]()
        session.look_seconds = LOOK_SECONDS
        later = session.loop.call_later

        def noted(delay: float, do: Callable[..., object]) -> asyncio.TimerHandle:
            delays.append(delay)
            return later(delay, do)

        monkeypatch.setattr(session.loop, "call_later", noted)
        reading = asyncio.ensure_future(session.call(GetCall("acc", [b"k"], stale=stale)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert delays == [seconds], "another copy is asked then, or it looks whether it stood still"
        (asked,) = client.ways.asked
        session.on_replies(NODE, [Values(asked.id, [(1, 1, b"v")], age_ms=0 if stale else -1)])
        await reading

    play(story)
