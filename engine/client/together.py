"""Pages for those who ask for the same at the same moment: one serves all of them who asked before it was sent.

Many workers of one program that claim from one list each want its first free rows, of every node. Whoever comes while a
page is under way waits for the next one, with all others who came meanwhile: what a page costs is shared by as many as
there are, and it misses nothing that any of them knew of. Who asks alone asks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from engine import errors
from wal.probe import probe

P = TypeVar("P")


class Together(Generic[P]):
    """Who waits for which page. `P`: what a page is."""

    def __init__(self) -> None:
        self._next: dict[Hashable, list[asyncio.Future[tuple[P, int] | None]]] = {}  # of what is under way
        self._tasks: dict[asyncio.Task[None], None] = {}  # the loop alone would not keep them

    async def ask(self, what: Hashable, call: Callable[[], Awaitable[P]]) -> tuple[P, int]:
        """The page, and as the how manieth of those who are told of it, from 0; `call` asks for `what`."""
        waiting = self._next.get(what)
        if waiting is not None:
            mine: asyncio.Future[tuple[P, int] | None] = asyncio.get_running_loop().create_future()
            waiting.append(mine)
            found = await mine
            return found if found is not None else (await call(), 0)  # whoever fails is told so by its own call
        self._next[what] = []
        try:
            return await call(), 0
        finally:
            self._go_on(what, call)

    def _go_on(self, what: Hashable, call: Callable[[], Awaitable[P]]) -> None:
        """What was under way is over: whoever came meanwhile has its page now."""
        waiting = [one for one in self._next.pop(what) if not one.done()]
        if waiting:
            self._next[what] = []
            task = asyncio.get_running_loop().create_task(self._for_all(what, waiting, call))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _for_all(
        self,
        what: Hashable,
        waiting: list[asyncio.Future[tuple[P, int] | None]],
        call: Callable[[], Awaitable[P]],
    ) -> None:
        page: P | None = None
        try:
            with suppress(errors.Error):
                page = await call()
                probe("claim.asked_together")
        finally:
            for rank, one in enumerate(one for one in waiting if not one.done()):
                one.set_result((page, rank) if page is not None else None)
            self._go_on(what, call)
