"""The cuts that the readers of one client read at: kept for as long as one of them does, and let go of together.

Many read at the same cut, and one word keeps it for all of them. Nobody waits for it to be let go of, so that is said of
all that ended within a moment at once: a snapshot of a few keys would else take as long to leave as to read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol, TypeVar

from engine import errors
from engine.client.calls import Call
from engine.client.cuts import KeepCutCall
from engine.protocol.requests import LET_GO_MAX
from wal.ids import Era

KEEP_SECONDS = 3.0
"""Whoever reads at a cut says so to all nodes, which would let it go after ten seconds."""
LET_GO_SECONDS = 0.02
"""For so long it is waited for others that end, too."""

C = TypeVar("C", bound=Call)


class Caller(Protocol):
    """What says it to the nodes."""

    @property
    def leading(self) -> list[int]:
        """A partition of each primary."""
        ...

    def seconds(self) -> float:
        """What the clock reads."""
        ...

    async def call(self, call: C, *, timeout: float | None = None) -> C:
        """Do a call; raise its error."""
        ...


class CutLeases:
    """Of one client, on its event loop."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self._held: dict[bytes, tuple[Era, float]] = {}  # by reader: the cut, and until when it is to be kept
        self._left: list[tuple[Era, bytes]] = []
        self._saying: dict[asyncio.Task[None], None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def keep(self, cut: Era, holder: bytes, until: float) -> None:
        """Keep a cut for a reader until it lets go, or `until` (of the caller's clock)."""
        self._held[holder] = cut, until
        if "keep" not in self._timers:
            self._timers["keep"] = self._loop.call_later(KEEP_SECONDS, self._keep)

    def let_go(self, cut: Era, holder: bytes) -> None:
        """This reader has read what it wanted."""
        self._held.pop(holder, None)
        self._left.append((cut, holder))
        if "leave" not in self._timers:
            self._timers["leave"] = self._loop.call_later(LET_GO_SECONDS, self._leave)

    def close(self) -> list[KeepCutCall]:
        """Nobody reads any more: what is yet to be said of it."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        return self._over()

    def _keep(self) -> None:
        del self._timers["keep"]
        now = self._caller.seconds()
        cuts = {cut: holder for holder, (cut, until) in self._held.items() if now < until}
        for cut, holder in cuts.items():
            self._say(KeepCutCall(cut, holder, leading=self._caller.leading))
        if cuts:
            self._timers["keep"] = self._loop.call_later(KEEP_SECONDS, self._keep)

    def _leave(self) -> None:
        del self._timers["leave"]
        for call in self._over():
            self._say(call)

    def _over(self) -> list[KeepCutCall]:
        left, self._left, calls = self._left, [], list[KeepCutCall]()
        for at in range(0, len(left), LET_GO_MAX):
            (cut, holder), *others = left[at : at + LET_GO_MAX]
            calls.append(KeepCutCall(cut, holder, over=True, others=others, leading=self._caller.leading))
        return calls

    def _say(self, call: KeepCutCall) -> None:
        task = self._loop.create_task(self._said(call))
        self._saying[task] = None
        task.add_done_callback(self._saying.pop)

    async def _said(self, call: KeepCutCall) -> None:
        with suppress(errors.Error):  # whoever reads is told, and the nodes let go by themselves
            await self._caller.call(call, timeout=KEEP_SECONDS)
