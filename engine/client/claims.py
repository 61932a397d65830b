"""Claims from a range: the first rows of it that nobody else has locked, so that many can take from one list.

Who looks at the first rows only would meet everybody else there, one refused lock after the other. So whoever has been
refused goes on with rows further on in the page, drawn at random, and mostly has one after a try or two.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from engine.client.calls import ScanCall
from engine.client.transaction import Transaction

CANDIDATES = 100
"""So many rows are looked at beside those that are wanted."""


async def claimed(
    tx: Transaction, pages: AsyncIterator[ScanCall], limit: int | None, *, reverse: bool = False
) -> list[tuple[bytes, bytes]]:
    """Some `limit` rows of `pages` that are locked for nobody else: they are this transaction's from now on. `reverse`: the
    pages come in descending order, and so do the rows."""
    rows: dict[bytes, bytes] = {}
    if limit == 0:
        return []
    async for page in pages:
        own = tx.own(page.namespace, *page.covered)
        there = own.keys() | {key for key, _ in page.rows}
        keys = sorted((key for key in there if own.get(key, b"") is not None), reverse=reverse)
        refused = False
        while keys and (limit is None or len(rows) < limit):
            wanted = len(keys) if limit is None else min(limit - len(rows), len(keys))
            some = random.sample(keys, wanted) if refused else keys[:wanted]  # spreads claims, hides no secret
            rows |= await tx.get_many(page.namespace, some, update=True, skip_locked=True)
            keys = sorted(set(keys) - set(some), reverse=reverse)
            refused = True
        if limit is not None and len(rows) >= limit:
            break
    return sorted(rows.items(), reverse=reverse)
