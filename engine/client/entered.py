"""In whose `with` code is, so that it does not wait for a transaction which waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Protocol

from engine import errors
from wal.ids import Namespace


class Holder(Protocol):
    """Who may hold locks: `engine.client.transaction.Transaction`. `session`: its client's; `name`: as a person is told."""

    @property
    def session(self) -> object: ...

    @property
    def name(self) -> str: ...

    @property
    def over(self) -> bool: ...

    def holds(self, namespace: Namespace, keys: Iterable[bytes] | None, *, shared: bool) -> bytes | None:
        """A key of these (None: of all) that nobody else can lock beside it, to read it (`shared`) or to write it; None:
        there is none."""
        ...


_entered: ContextVar[tuple[tuple[Holder, object], ...]] = ContextVar("_entered", default=())
"""Each with the task that entered it (None: a thread's own)."""


def enter(transaction: Holder, task: object) -> None:
    """This code is in its `with` from now on."""
    _entered.set((*(pair for pair in _entered.get() if not pair[0].over), (transaction, task)))


def leave(transaction: Holder) -> None:
    """This code is in its `with` no more."""
    _entered.set(tuple(pair for pair in _entered.get() if pair[0] is not transaction))


def waits_for_us(
    session: object, namespace: Namespace, keys: Iterable[bytes] | None, *, shared: bool, beside: Holder | None = None
) -> tuple[Holder, bytes] | None:
    """A transaction of this client in whose `with` this code is, other than one, and a key of these that it holds."""
    for other, task in _entered.get():
        mine = other is not beside and other.session is session and (task is None or task is asyncio.current_task())
        if mine and (key := other.holds(namespace, keys, shared=shared)) is not None:
            return other, key
    return None


def refuse_own_locks(waiting: Holder, namespace: Namespace, keys: Iterable[bytes], *, shared: bool) -> None:
    """Refuse to wait for a transaction which waits for this one."""
    if found := waits_for_us(waiting.session, namespace, keys, shared=shared, beside=waiting):
        other, key = found
        raise errors.UsageError(
            f"{namespace}:{key!r} is locked by transaction {other.name}, in whose `with` {waiting.name} is: "
            "it would wait for its end, in vain; join that one (pass it on), or begin this one after it"
        )
