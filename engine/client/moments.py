"""A moment of the whole database, kept for who reads at it, and what an optimistic transaction makes of one.

What such a transaction has read was so at one moment, or nobody is shown it. Each of its reads is followed by a question to
whoever has what it read before: is it so still? What is as it was when it is looked at was so when the last of it was read.
That costs as much as has been read, each time; so now and then the database is cut just before the question. What is as it
was after the cut was so at the cut, and what is read at the cut from then on, keys and ranges, goes with it unasked. It is
a lease, which may be lost; then one goes on as before.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeAlias

from engine import errors
from engine.client.calls import Call, GetCall
from engine.client.cuts import TakeCutCall
from engine.client.scans import ScanCall
from engine.client.session import Session
from wal.ids import NO_ERA, TX_ID_BYTES, Era, Namespace
from wal.probe import probe

CHECKS_TO_CUT = 32
"""So many times it is asked whether all is as it was; then a cut is dearer no more."""
CUT_SECONDS = 2.0
"""One that takes longer is done without."""

Ask: TypeAlias = Callable[[Call], Awaitable[None]]
Pages: TypeAlias = Callable[[bytes, bytes | None, Era, bool], AsyncIterator[ScanCall]]
"""Pages of a range, low <= key < high, at a cut if there is one, the first of them with its marks if they are asked for."""


class HeldCut:
    """A cut that is kept until it is let go, or `until` (of the session's clock). `cut`: what the nodes call it."""

    def __init__(self, session: Session, until: float = math.inf) -> None:
        self._session = session
        self._until = until
        self._holder = session.chance.randbytes(TX_ID_BYTES)
        self.cut: Era = NO_ERA

    async def take(self, timeout: float | None = None) -> None:
        """Take it: all that was acknowledged is in it."""
        call = TakeCutCall(self._holder)
        self.cut = (await self._session.call(call, timeout=timeout)).cut
        self._session.cuts.keep(self.cut, self._holder, self._until)

    def let_go(self) -> None:
        """Nobody reads at it any more."""
        if self.cut != NO_ERA:
            self._session.cuts.let_go(self.cut, self._holder)


class Moment:
    """The moment at which a transaction reads. `unsure`: what it has read may not have been so at one.

    Its time is over at `until`. It has no way back to its transaction, which has it: each would keep the other in memory
    until the interpreter looks for such circles. So it is told with each question how to `ask` one within that time.
    """

    def __init__(self, session: Session, until: float) -> None:
        self._session = session
        self._until = until
        self._held: HeldCut | None = None
        self._checks = 0
        self.unsure = False

    async def get(self, ask: Ask, namespace: Namespace, keys: list[bytes]) -> GetCall:
        """Read keys: at the cut, if there is one; else as they are now."""
        if self._held is not None:
            call = GetCall(namespace, keys, cut=self._held.cut)
            try:
                await ask(call)
            except (errors.SnapshotLost, errors.SnapshotTooOld):
                self.leave()
            else:
                return call
        call = GetCall(namespace, keys)
        await ask(call)
        return call

    async def pages(self, pages: Pages, low: bytes, high: bytes | None, *, marked: bool) -> AsyncIterator[ScanCall]:
        """A range, page by page: at the cut, if there is one, for as long as it can be read; else as it is now."""
        at: tuple[bytes, bytes | None] | None = (low, high)
        held = self._held
        if held is not None:
            try:
                async for page in pages(low, high, held.cut, marked):
                    if page.unmarked:
                        probe("moment.an_older_node_has_no_marks")
                        break
                    yield page
                    at, marked = page.following, False
                else:
                    return
            except (errors.SnapshotLost, errors.SnapshotTooOld):
                probe("moment.lost_in_a_scan")
            if self._held is held:
                self.leave()
        if at is not None:
            async for page in pages(*at, NO_ERA, marked):
                yield page

    @property
    def cut(self) -> Era:
        """The cut at which is read what is read now, and at which all was so that was read before, if there is one."""
        return self._held.cut if self._held is not None else NO_ERA

    @property
    def is_cut(self) -> bool:
        """Whether there is one."""
        return self._held is not None

    async def be_sure(self, ask: Ask, checks: Iterable[Call]) -> None:
        """See that all is as it was, which is what these calls ask."""
        self._checks += 1
        self.leave()
        if not self._checks % CHECKS_TO_CUT:
            self._held = HeldCut(self._session, self._until)
            try:
                await self._held.take(CUT_SECONDS)
            except errors.Error:
                self._held = None  # it goes without, and is told by the others what is wrong
        for check in checks:
            await ask(check)
        self.unsure = False

    def leave(self) -> None:
        """It reads at no cut any more."""
        held, self._held = self._held, None
        if held is not None:
            held.let_go()
