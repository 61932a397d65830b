"""How a transaction that has written is decided: by one call, or in two steps if it has scanned ranges."""

from __future__ import annotations

import asyncio

from engine import errors
from engine.client.calls import UnlockCall, Whereabouts
from engine.client.ends import CheckCall, CommitCall
from engine.client.keeping import UNLOCK_SECONDS
from engine.client.ranges import in_pieces
from engine.client.session import Session
from engine.protocol.requests import Scanned


async def decide(
    session: Session, commit: CommitCall, prepare: CommitCall | None, scanned: list[Scanned], patience: float
) -> None:
    """Commit it. `prepare`: all that it writes is prepared first, and then nothing may have come into what was `scanned`;
    else it is taken back."""
    if prepare is not None:
        try:
            await session.call(prepare, timeout=patience)
        except errors.CommitUnknown as error:
            await withdraw(session, prepare)
            raise errors.Unavailable(f"it may be prepared, and nothing of it will happen: {error}") from error
        except asyncio.CancelledError:
            await withdraw(session, prepare)
            raise
        try:
            for piece in in_pieces(scanned):
                await session.call(CheckCall(prepare.owner, [], [], [], scanned=piece, tx=prepare.tx), timeout=patience)
        except BaseException:
            await withdraw(session, prepare)
            raise
        commit.staged = prepare.staged
    await session.call(commit, timeout=patience)


async def withdraw(session: Session, call: CommitCall) -> None:
    """What was to be prepared will not be committed, whoever may find it prepared: nobody has asked for that."""
    identity = session.router.identity
    try:
        await session.call(UnlockCall(call.tx, Whereabouts([call.first_written])), timeout=UNLOCK_SECONDS)
        identity.close(call.tx)
    except errors.Error:
        # Its lease runs out; until then its session is not to be forgotten.
        identity.leave(call.tx, session.router.now)
