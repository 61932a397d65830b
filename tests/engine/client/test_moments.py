"""The moment at which an optimistic transaction reads: asked for, then cut, and asked for again if the cut is lost."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from engine import errors
from engine.client.calls import Call, GetCall
from engine.client.cuts import KeepCutCall
from engine.client.ends import CheckCall
from engine.client.moments import CHECKS_TO_CUT, HeldCut, Moment
from wal.ids import NO_ERA, Era

CUT: Era = (0, 7)


class Session:
    """Takes cuts, unless it cannot, and remembers what it was asked."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.able = True
        self.leading = [0]
        self.router: Any = None

    async def call(self, call: Any, *, timeout: float | None = None) -> Any:
        self.said.append(call)
        if not isinstance(call, KeepCutCall):
            if not self.able:
                raise errors.Unavailable("a member says nothing")
            call.cut = CUT
        return call


class Story:
    """A moment, and what was asked for it."""

    def __init__(self) -> None:
        self.session = Session()
        self.asked: list[Call] = []
        self.lost = False
        self.moment = Moment(self.session, math.inf)  # type: ignore[arg-type]  # it does what a moment needs

    async def _ask(self, call: Call) -> None:
        self.asked.append(call)
        if self.lost and isinstance(call, GetCall) and call.cut != NO_ERA:
            raise errors.SnapshotLost("its primary is gone")

    async def sure(self, times: int) -> None:
        for _ in range(times):
            await self.moment.be_sure(self._ask, [CheckCall(b"tx", [], [], [], scanned=[])])


def test_it_is_cut_after_some_questions_and_before_the_last_of_them() -> None:
    async def story() -> None:
        told = Story()
        await told.sure(CHECKS_TO_CUT - 1)
        cut = [told.moment.is_cut, bool(told.session.said)]
        await told.sure(1)
        assert [*cut, told.moment.is_cut] == [False, False, True]
        assert len(told.asked) == CHECKS_TO_CUT
        assert (await told.moment.get(told._ask, "ns", [b"k"])).cut == CUT
        await told.moment.leave()
        assert isinstance(told.session.said[-1], KeepCutCall)
        assert told.session.said[-1].over
        assert (await told.moment.get(told._ask, "ns", [b"k"])).cut == NO_ERA

    asyncio.run(story())


def test_where_the_cut_is_lost_it_goes_on_without() -> None:
    async def story() -> None:
        told = Story()
        await told.sure(CHECKS_TO_CUT)
        told.lost = True
        assert (await told.moment.get(told._ask, "ns", [b"k"])).cut == NO_ERA
        assert not told.moment.is_cut, "what is read next may be of another moment"

    asyncio.run(story())


def test_where_no_cut_can_be_taken_it_goes_on_asking() -> None:
    async def story() -> None:
        told = Story()
        told.session.able = False
        await told.sure(2 * CHECKS_TO_CUT)
        assert not told.moment.is_cut
        assert len(told.asked) == 2 * CHECKS_TO_CUT

    asyncio.run(story())


def test_a_cut_is_kept_until_its_time_is_over() -> None:
    async def story() -> None:
        session = Session()
        held = HeldCut(session, until=-math.inf)  # type: ignore[arg-type]  # as above
        await held.take()
        assert held._keeper is not None
        await held._keeper
        assert not any(isinstance(call, KeepCutCall) for call in session.said)

    asyncio.run(story())
