"""As long as a transaction is open its client says so, lest what it has locked is given to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from engine import errors
from engine.client.calls import KeepLocksCall, Whereabouts
from engine.client.session import Session
from wal.ids import TxId

Over = Callable[[], Awaitable[object]]
UNLOCK_SECONDS = 2.0
"""For so long it is tried to give locks back; else their leases run out."""


class Keeper:
    """Renews the leases of one transaction's locks, once it has any. `where`: these are.

    It refers to its transaction only between `begin` and `stop`, so that no circle of the two is left behind.
    """

    __slots__ = ("_ends_at", "_every", "_keeping", "_owner", "_session", "_where")

    def __init__(self, session: Session, owner: TxId, where: Whereabouts, ends_at: float) -> None:
        self._session = session
        self._owner = owner
        self._where = where
        self._ends_at = ends_at
        self._keeping: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._every = 0.0

    def begin(self, left: float, over: Over) -> None:
        """It has locks from now on, and so many seconds left; `over` gives them back when these are over.

        Said again when locks were granted: meanwhile a node may have greeted whose leases are shorter.
        """
        every = self._session.renewals.of_locks
        if self._keeping is None or every < self._every:
            self.stop()
            self._every = every
            self._keeping = asyncio.get_running_loop().call_later(min(every, left), self._begin_to_keep, over)

    def stop(self) -> None:
        """It needs none any more."""
        if self._keeping is not None:
            self._keeping.cancel()
        self._keeping = None

    def _begin_to_keep(self, over: Over) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep(over))  # few last for so long

    async def _keep(self, over: Over) -> None:
        """Renew the locks' leases for as long as the transaction is open, and give them back when its time is over."""
        while (left := self._ends_at - self._session.seconds()) > 0:
            every = self._session.renewals.of_locks
            with suppress(errors.Error):  # the commit will tell if a lock was lost
                await self._session.call(KeepLocksCall(self._owner, self._where), timeout=every)
            await asyncio.sleep(min(every, left))
        await over()
