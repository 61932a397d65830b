"""Those who ask for the same at the same moment share a page, and nobody is told of one that was sent before it asked."""

from __future__ import annotations

import asyncio

import pytest

from engine import errors
from engine.client.together import Together
from tests.support.probes import heard


class _Pages:
    """Pages that come when they are let come. Each is as old as the moment at which it was sent."""

    def __init__(self) -> None:
        self.together: Together[int] = Together()
        self.sent: list[asyncio.Future[int]] = []
        self.now = 0

    async def call(self) -> int:
        """Send a page, and wait for it."""
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]

    def ask(self, what: str = "jobs") -> asyncio.Task[tuple[int, int]]:
        """Somebody asks for one."""
        return asyncio.create_task(self.together.ask(what, self.call))

    async def come(self, value: int) -> None:
        """The page that was sent last comes."""
        await _quiet()
        self.sent[-1].set_result(value)
        await _quiet()


async def _quiet() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_asks_alone_asks_at_once() -> None:
    async def story() -> None:
        pages = _Pages()
        for value in range(3):
            asked = pages.ask()
            await pages.come(value)
            assert await asked == (value, 0)
        assert len(pages.sent) == 3

    asyncio.run(story())


def test_who_comes_while_a_page_is_under_way_shares_the_next_one() -> None:
    async def story() -> None:
        pages = _Pages()
        first = pages.ask()
        await _quiet()
        others = [pages.ask() for _ in range(4)]
        await pages.come(1)
        assert await first == (1, 0)
        assert not any(other.done() for other in others), "that page was sent before they asked"
        late = pages.ask()
        with heard() as paths:
            await pages.come(2)
        assert "claim.asked_together" in paths
        assert [await other for other in others] == [(2, 0), (2, 1), (2, 2), (2, 3)]
        assert not late.done()
        await pages.come(3)
        assert await late == (3, 0)
        assert len(pages.sent) == 3

    asyncio.run(story())


def test_who_asks_for_something_else_shares_nothing() -> None:
    async def story() -> None:
        pages = _Pages()
        asked = [pages.ask(), pages.ask("others")]
        await _quiet()
        for value, sent in enumerate(pages.sent):
            sent.set_result(value)
        assert [await one for one in asked] == [(0, 0), (1, 0)]

    asyncio.run(story())


def test_who_is_given_up_holds_up_nobody() -> None:
    async def story() -> None:
        pages = _Pages()
        first, second, third = pages.ask(), None, None
        await _quiet()
        second, third = pages.ask(), pages.ask()
        await _quiet()
        first.cancel()
        second.cancel()
        await pages.come(2)
        assert await third == (2, 0)
        alone = pages.ask()
        await pages.come(3)
        assert await alone == (3, 0)

    asyncio.run(story())


def test_where_a_shared_page_fails_each_asks_for_its_own() -> None:
    async def story() -> None:
        pages = _Pages()
        first = pages.ask()
        await _quiet()
        others = [pages.ask(), pages.ask()]
        await _quiet()
        pages.sent[-1].set_exception(errors.Unavailable("nobody is there"))
        with pytest.raises(errors.Unavailable):
            await first
        await _quiet()
        pages.sent[-1].set_exception(errors.Unavailable("nor now"))
        await _quiet()
        assert len(pages.sent) == 4
        for value, sent in enumerate(pages.sent[2:]):
            sent.set_result(value)
        assert [await other for other in others] == [(0, 0), (1, 0)]

    asyncio.run(story())
