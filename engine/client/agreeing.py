"""What is asked once for all who need it: the codec of a namespace, looked for before the first read, and put on record
before the first write.

Very many may begin at once in a new namespace. One of them asks; whoever comes while that is under way waits for what it
is told, for as long as its own call may take. What it is refused, they are refused, too; but for what may pass one of them
asks again, as when it gives up, unless they have no time left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from engine import errors
from engine.client.session import Session
from engine.client.timing import check_seconds
from wal.ids import Namespace
from wal.probe import probe

Asking = Callable[[float], Awaitable[bytes | None]]
"""Ask for it, for so many seconds: what is on record then."""
_Asked = asyncio.Future[bytes | errors.Error | None]

What = tuple[Namespace, str | None]
"""A namespace, and the form of its codec; None: whichever it is."""

AGAIN_SECONDS = 0.1
"""Who has not even so much time left does not ask again what another one has asked in vain."""


class Agreeing:
    """What is being asked by the clients of one database."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Asked] = {}  # (session, what) -> what the one who asks is told; None: it gave up

    async def agree(self, session: Session, what: What, timeout: float | None, ask: Asking) -> bytes | None:
        """What is on record, after it was asked for, by this caller or by another."""
        session.check_here()
        seconds = session.timeout if timeout is None else check_seconds("timeout", timeout)
        key, told = (session, what), None
        if key not in self._under_way:
            return await self._ask(key, seconds, ask)
        until = session.seconds() + seconds
        while key in self._under_way:
            session.check_loop()  # what another loop waits for cannot be waited for here
            asked = self._under_way[key]
            left = until - session.seconds()
            if left > 0:
                probe("agree.waited_for_another")
                await asyncio.wait([asked], timeout=left)
            told = asked.result() if asked.done() else _late(what)
            if isinstance(told, bytes):
                return told
            if told is not None and (not told.retryable or until - session.seconds() < AGAIN_SECONDS):
                raise type(told)(str(told), tx_id=told.tx_id)  # one of its own for each of them
        return await self._ask(key, max(1e-3, until - session.seconds()), ask)

    async def _ask(self, key: Hashable, seconds: float, ask: Asking) -> bytes | None:
        asked = self._under_way[key] = asyncio.get_running_loop().create_future()
        told: bytes | errors.Error | None = None
        try:
            told = await ask(seconds)
        except errors.Error as error:
            told = error
            raise
        finally:
            del self._under_way[key]
            asked.set_result(told)
        return told


def _late(what: What) -> errors.Unavailable:
    return errors.Unavailable(
        f"the codec of namespace {what[0]!r} is not known yet: another call asks for that, and was not answered in time"
    )
