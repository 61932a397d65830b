"""The codec of a namespace is put on record once for all who write there at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from engine import aio, errors
from engine.client.calls import GetCall, SwapCall
from engine.client.namespace import Access, Namespace
from engine.client.session import Session
from wal.ids import CODECS

FORM = "bytes"


class _Cluster:
    """A session with a cluster that answers when it is let; it says how many conditional writes it was asked for."""

    timeout = 10.0

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[bytes | errors.Error | None]] = []
        self.seconds_given: list[float] = []
        self.now = 0.0
        self.namespaces = Access(cast("Session", self))

    def check_here(self) -> None:
        """Who asks is on the loop,"""

    check_loop = check_here

    def new_tx(self) -> bytes:
        """The next id."""
        return b"%d" % len(self.asked)

    def seconds(self) -> float:
        """What the clock reads."""
        return self.now

    async def call(self, call: SwapCall, *, timeout: float) -> SwapCall:
        """Wait for what is answered."""
        self.asked.append(asyncio.get_running_loop().create_future())
        self.seconds_given.append(timeout)
        found = await self.asked[-1]
        if isinstance(found, errors.Error):
            raise found
        call.applied, call.found = found is None, found
        return call

    def agree(self, timeout: float | None = None) -> asyncio.Task[None]:
        """Somebody is about to write."""
        return asyncio.create_task(Namespace(self.namespaces, "acc", FORM).agree(timeout))

    async def answer(self, found: bytes | errors.Error | None) -> None:
        """The last one is answered."""
        await _quiet()
        self.asked[-1].set_result(found)
        await _quiet()


async def _quiet() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


Story = Callable[[_Cluster], Awaitable[None]]


def _tell(story: Story) -> None:
    async def told() -> None:
        await story(_Cluster())

    asyncio.run(told())


def test_one_asks_for_all_who_come_meanwhile() -> None:
    async def story(cluster: _Cluster) -> None:
        writers = [cluster.agree() for _ in range(100)]
        await cluster.answer(None)
        await asyncio.gather(*writers)
        assert len(cluster.asked) == 1

    _tell(story)


def test_another_codec_is_told_to_each_of_them() -> None:
    async def story(cluster: _Cluster) -> None:
        writers = [cluster.agree() for _ in range(3)]
        await cluster.answer(b"json")
        for writer in writers:
            with pytest.raises(errors.UsageError, match="is kept in 'json', and was asked for in 'bytes'"):
                await writer
        assert len(cluster.asked) == 1

    _tell(story)


@pytest.mark.parametrize("who", [0, 1])
def test_who_gives_up_ends_it_for_nobody_else(who: int) -> None:
    async def story(cluster: _Cluster) -> None:
        writers = [cluster.agree() for _ in range(4)]
        await _quiet()
        writers[who].cancel()
        await _quiet()
        assert writers[who].cancelled()
        assert len(cluster.asked) == (2 if who == 0 else 1), "another one asks if it was the one who asked"
        await cluster.answer(None)
        await asyncio.gather(*writers[:who], *writers[who + 1 :])

    _tell(story)


def test_a_failure_is_told_to_all_who_have_no_time_left_and_the_next_one_tries_again() -> None:
    async def story(cluster: _Cluster) -> None:
        writers = [cluster.agree(2) for _ in range(3)]
        patient = cluster.agree(5)
        await _quiet()
        cluster.now = 2.0
        await cluster.answer(errors.CommitUnknown("no answer in 2 s"))
        for writer in writers:
            with pytest.raises(errors.Unavailable, match="'acc' could not be put on record: no answer in 2 s"):
                await writer
        assert cluster.seconds_given == [2, 3], "who has more time has what is left of it"
        later = cluster.agree()
        await cluster.answer(None)
        await asyncio.gather(patient, later)
        assert len(cluster.asked) == 2

    _tell(story)


def test_what_one_is_refused_all_are_refused_and_nobody_asks_again() -> None:
    async def story(cluster: _Cluster) -> None:
        writers = [cluster.agree() for _ in range(3)]
        await cluster.answer(errors.UsageError("256 namespaces are there already"))
        told = await asyncio.gather(*writers, return_exceptions=True)
        assert [(type(one), str(one)) for one in told] == [(errors.UsageError, "256 namespaces are there already")] * 3
        assert len({id(one) for one in told}) == 3, "an error that many raise would grow a traceback with each of them"
        assert len(cluster.asked) == 1

    _tell(story)


def test_who_has_less_time_waits_no_longer_than_that() -> None:
    async def story(cluster: _Cluster) -> None:
        first = cluster.agree()
        await _quiet()
        with pytest.raises(errors.Unavailable, match="another call asks for that, and was not answered in time"):
            await cluster.agree(0.01)
        await cluster.answer(None)
        await first

    _tell(story)


def test_very_many_first_puts_put_one_codec_on_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put: list[SwapCall] = []
    call = Session.call

    async def counted(self: Session, asked: SwapCall, *, timeout: float | None = None) -> SwapCall:
        if isinstance(asked, SwapCall) and asked.namespace == CODECS:
            put.append(asked)
        return await call(self, asked, timeout=timeout)

    monkeypatch.setattr(Session, "call", counted)

    async def story() -> None:
        async with await aio.open(tmp_path) as db:
            await asyncio.gather(*(db.namespace("new").put(b"%d" % n, b"v") for n in range(2_000)))
            assert await db.namespace("new").count() == 2_000

    asyncio.run(story())
    assert 1 <= len(put) < 20, "who comes to it after the first was told asks again"


def test_very_many_first_reads_look_for_one_codec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked: list[GetCall] = []
    call = Session.call

    async def counted(self: Session, asked: GetCall, *, timeout: float | None = None) -> GetCall:
        if isinstance(asked, GetCall) and asked.namespace == CODECS:
            looked.append(asked)
        return await call(self, asked, timeout=timeout)

    monkeypatch.setattr(Session, "call", counted)

    async def story() -> None:
        async with await aio.open(tmp_path) as db:
            found = await asyncio.gather(*(db.namespace("new").get(b"%d" % n) for n in range(2_000)))
            assert found == [None] * 2_000
            assert len(looked) == 1
            made_before = [db.namespace("texts", codec="str") for _ in range(2)]
            await db.namespace("texts", codec="json").put("k", 1)
            for namespace in made_before:
                with pytest.raises(errors.UsageError, match="is kept in 'json', and was asked for in 'str'"):
                    await namespace.get("k")

    asyncio.run(story())
