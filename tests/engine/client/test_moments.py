"""The moment at which an optimistic transaction reads: asked for, then cut, and asked for again if the cut is lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import errors
from engine.client.calls import Call, GetCall
from engine.client.cuts import KeepCutCall
from engine.client.ends import CheckCall
from engine.client.leases import CutLeases
from engine.client.moments import CHECKS_TO_CUT, HeldCut, Moment
from engine.client.scans import ScanCall
from engine.client.timing import REAL
from engine.protocol.requests import LET_GO_MAX
from wal.ids import NO_ERA, Era

CUT: Era = (0, 7)


class Session:
    """Takes cuts, unless it cannot, and remembers what it was asked."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.able = True
        self.leading = [0]
        self.chance = REAL.chance
        self.router: Any = None
        self.cuts = CutLeases(self, asyncio.get_running_loop())

    def seconds(self) -> float:
        """What the clock reads."""
        return asyncio.get_running_loop().time()

    async def call(self, call: Any, *, timeout: float | None = None) -> Any:
        self.said.append(call)
        if not isinstance(call, KeepCutCall):
            if not self.able:
                raise errors.Unavailable("a member says nothing")
            call.cut = CUT
        return call

    def cuts_said(self) -> list[KeepCutCall]:
        """What was said of cuts that were taken."""
        return [call for call in self.said if isinstance(call, KeepCutCall)]


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
        told.moment.leave()
        (over,) = told.session.cuts.close()
        assert (over.cut, over.over) == (CUT, True)
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


@pytest.mark.parametrize("older", [False, True], ids=["lost", "without marks"])
def test_a_range_is_read_at_the_cut_and_where_it_cannot_be_it_goes_on_without(older: bool) -> None:
    async def story() -> None:
        told = Story()
        await told.sure(CHECKS_TO_CUT)
        asked: list[tuple[Era, bool]] = []

        async def pages(low: bytes, high: bytes | None, cut: Era, marked: bool) -> AsyncIterator[ScanCall]:
            for size in range(len(low), 4):
                asked.append((cut, marked))
                if size == 2 and cut != NO_ERA and not older:
                    raise errors.SnapshotLost("its primary is gone")
                page = ScanCall("ns", bytes(size), high, 1, marked=marked, cut=cut)
                page.unmarked = older and cut != NO_ERA
                page._complete_up_to = bytes(size) if size < 3 else None
                page._rows = [(bytes(size), b"v")]
                yield page
                marked = False

        rows = [row async for page in told.moment.pages(pages, b"\0", None, marked=True) for row in page.rows]
        assert rows == [(bytes(size), b"v") for size in (1, 2, 3)], "each once, and in order"
        assert not told.moment.is_cut
        if older:
            assert asked == [(CUT, True), (NO_ERA, True), (NO_ERA, False), (NO_ERA, False)]
        else:
            assert asked == [(CUT, True), (CUT, False), (NO_ERA, False), (NO_ERA, False)]

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
        for until in (-math.inf, math.inf):
            session.cuts.keep(CUT, b"%f" % until, until)
            session.cuts._keep()
        assert [(call.cut, call.over) for call in session.cuts_said()] == []
        await asyncio.sleep(0)
        assert [(call.cut, call.over) for call in session.cuts_said()] == [(CUT, False)]
        session.cuts.close()

    asyncio.run(story())


def test_one_word_keeps_a_cut_for_all_who_read_at_it_and_lets_it_go_for_all_who_end() -> None:
    async def story() -> None:
        session = Session()
        readers = [HeldCut(session) for _ in range(LET_GO_MAX + 1)]  # type: ignore[arg-type]  # as above
        for reader in readers:
            await reader.take()
        session.said.clear()
        session.cuts._keep()
        await asyncio.sleep(0)
        assert [(call.cut, call.over) for call in session.cuts_said()] == [(CUT, False)]
        session.said.clear()
        for reader in readers:
            reader.let_go()
        assert not session.said, "nobody waits for it"
        session.cuts._leave()
        await asyncio.sleep(0)
        first, second = session.cuts_said()
        assert (len(first.others), second.others, first.over, second.over) == (LET_GO_MAX - 1, [], True, True)
        assert {first.holder, second.holder, *(holder for _, holder in first.others)} == {r._holder for r in readers}
        session.said.clear()
        session.cuts._keep()
        await asyncio.sleep(0)
        assert not session.said, "there is nothing left to keep"

    asyncio.run(story())
