"""Ranges in a transaction: their rows as the transaction reads, and claims from them, the first rows that nobody else has
locked, so that many can take from one list.

Who looks at the first rows only would meet everybody else there, one refused lock after the other. So whoever has been
refused goes on with rows further on in the page, drawn at random, and mostly has one after a try or two. What is locked
already the nodes leave out themselves.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from engine.client.namespace import Namespace
from engine.client.scans import ScanCall
from engine.client.transaction import Transaction
from wal.ids import Era
from wal.probe import probe

CANDIDATES = 100
"""So many rows are looked at beside those that are wanted."""

Sample = Callable[[list[bytes], int], list[bytes]]
"""Draws so many of some keys."""


class Claimer(Protocol):
    """Who claims: `engine.client.transaction.Transaction`, or another one that locks as it does."""

    def own(self, namespace: str, low: bytes, high: bytes | None, *, read: bool = False) -> dict[bytes, bytes | None]:
        """What it has written so far, low <= key < high; `read`: and what it has read and locked."""
        ...

    async def get_many(
        self, namespace: str, keys: Iterable[bytes], *, update: bool = False, skip_locked: bool = False
    ) -> dict[bytes, bytes]:
        """The values of the keys that exist; `skip_locked`: and that are its own from now on."""
        ...


class Rows(Protocol):
    """What it claims from, with pages of it: `engine.client.namespace.Namespace`."""

    @property
    def name(self) -> str:
        """The namespace's."""
        ...

    async def unlocked(self, low: bytes, high: bytes | None, limit: int, *, reverse: bool) -> tuple[ScanCall, int]:
        """Up to `limit` rows that nobody has locked, as far as one page goes; and how many others are told of them
        before."""
        ...

    def pages(
        self, low: bytes, high: bytes | None, limit: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[ScanCall]:
        """All rows, a page at a time; `limit`: about so many will do."""
        ...


def pages_of(
    tx: Transaction, rows: Namespace, low: bytes, high: bytes | None, limit: int | None, *, reverse: bool
) -> AsyncIterator[ScanCall]:
    """A range as the transaction reads, page by page; `limit` and `reverse` as with `Namespace.pages`."""

    def pages(low: bytes, high: bytes | None, cut: Era, marked: bool) -> AsyncIterator[ScanCall]:
        return rows.pages(low, high, limit, marked=marked, cut=cut, reverse=reverse)

    return tx.moment.pages(pages, low, high, marked=tx.serializable)


async def scanned(
    tx: Transaction,
    pages: AsyncIterator[ScanCall],
    between: tuple[bytes, bytes | None],
    limit: int | None,
    *,
    reverse: bool = False,
    update: bool = False,
    nowait: bool = False,
) -> list[tuple[bytes, bytes]]:
    """The first `limit` rows with low <= key < high, as the transaction reads, with its own writes: what lies behind
    them is not touched. `pages` are of this range, the first with its marks if the transaction is `serializable`;
    `reverse`: they come in descending order, and so do the rows. `update` and `nowait` as with `Transaction.get_many`."""
    tx.check_open()
    if limit == 0:
        return []
    cut = tx.moment.cut  # of the first page
    rows: list[tuple[bytes, bytes]] = []
    touched: list[bytes] = []
    marks: dict[int, tuple[int, int]] = {}
    namespace = ""
    async for page in pages:
        namespace, marks = page.namespace, marks or page.marks
        keys = _keys(tx, page, reverse=reverse)
        while keys and (limit is None or len(rows) < limit):
            some = keys if limit is None else keys[: limit - len(rows)]
            keys = keys[len(some) :]
            touched += some
            found = await tx.get_many(namespace, some, update=update, nowait=nowait, in_part=True)
            rows += sorted(found.items(), reverse=reverse)
        if limit is not None and len(rows) >= limit:
            break
    low, high = between
    if limit is not None and len(rows) >= limit:
        low, high = (rows[-1][0], high) if reverse else (low, rows[-1][0] + b"\0")
    if marks:
        tx.saw(namespace, (low, high), marks, touched, cut=cut)
    await tx.be_sure()
    return rows


def _keys(tx: Claimer, page: ScanCall, *, reverse: bool, locked: bool = False) -> list[bytes]:
    """The keys of what a page covers, with the transaction's own writes and what it has `locked`, in order."""
    own = tx.own(page.namespace, *page.covered, read=locked)
    there = own.keys() | {key for key, _ in page.rows}
    return sorted((key for key in there if own.get(key, b"") is not None), reverse=reverse)


async def claimed(
    tx: Claimer,
    namespace: Rows,
    between: tuple[bytes, bytes | None],
    limit: int | None,
    *,
    reverse: bool = False,
    candidates: int = CANDIDATES,
    sample: Sample = random.sample,
) -> list[tuple[bytes, bytes]]:
    """Some `limit` rows with low <= key < high that are locked for nobody else: they are this transaction's from now on.
    `reverse`: the last ones, and descending. `candidates` as `CANDIDATES`; `sample`: what draws.

    What somebody has locked is passed over where it lies. Only where that leaves too few, and nobody is sure that there are
    no others, are all rows asked for, and what is in doubt is waited for: a row that was acknowledged a moment ago may be
    locked by the transaction that put it.
    """
    rows: dict[bytes, bytes] = {}
    low, high = between
    if limit == 0 or (high is not None and low >= high):
        return []
    sure = False
    if limit is not None:
        page, rank = await namespace.unlocked(low, high, limit + candidates, reverse=reverse)
        await _claim(tx, page, rows, limit, sample, reverse=reverse, first=rank * limit)
        sure = page.sure
    if limit is None or (len(rows) < limit and not sure):
        probe("claim.asked_for_all")
        gone = sum(value is None for value in tx.own(namespace.name, low, high).values())
        async for page in namespace.pages(low, high, limit and limit + gone + candidates, reverse=reverse):
            await _claim(tx, page, rows, limit, sample, reverse=reverse)
            if limit is not None and len(rows) >= limit:
                break
    return sorted(rows.items(), reverse=reverse)


async def _claim(
    tx: Claimer,
    page: ScanCall,
    rows: dict[bytes, bytes],
    limit: int | None,
    sample: Sample,
    *,
    reverse: bool,
    first: int = 0,
) -> None:
    """Add rows of a page to those that are claimed, up to the limit. `first`: others try for so many of them, so that
    it is tried with those behind them."""
    keys = [key for key in _keys(tx, page, reverse=reverse, locked=True) if key not in rows]
    at = first % max(1, len(keys))
    keys = keys[at:] + keys[:at]
    refused = False
    while keys and (limit is None or len(rows) < limit):
        wanted = len(keys) if limit is None else min(limit - len(rows), len(keys))
        some = sample(keys, wanted) if refused else keys[:wanted]  # spreads claims, hides no secret
        rows |= await tx.get_many(page.namespace, some, update=True, skip_locked=True)
        keys = sorted(set(keys) - set(some), reverse=reverse)
        refused = True
