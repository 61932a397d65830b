"""Claims from a range: the first rows of it that nobody else has locked, so that many can take from one list.

Who looks at the first rows only would meet everybody else there, one refused lock after the other. So whoever has been
refused goes on with rows further on in the page, drawn at random, and mostly has one after a try or two.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from engine.client.calls import ScanCall
from engine.client.modes import check_patience
from engine.client.transaction import Transaction

CANDIDATES = 100
"""So many rows are looked at beside those that are wanted."""


async def claimed(
    tx: Transaction, pages: AsyncIterator[ScanCall], low: bytes, high: bytes | None, limit: int | None
) -> list[tuple[bytes, bytes]]:
    """Some `limit` rows with low <= key < high that are locked for nobody else: they are this transaction's from now on."""
    check_patience(False, True, tx.concurrency, tx.name)
    rows: dict[bytes, bytes] = {}
    at = low
    if limit == 0:
        return []
    async for page in pages:
        end = page.next_start if page.next_start is not None else high
        own = tx.own(page.namespace, at, end)
        keys = sorted(key for key in own.keys() | {key for key, _ in page.rows} if own.get(key, b"") is not None)
        refused = False
        while keys and (limit is None or len(rows) < limit):
            wanted = len(keys) if limit is None else min(limit - len(rows), len(keys))
            some = random.sample(keys, wanted) if refused else keys[:wanted]  # spreads claims, hides no secret
            rows |= await tx.get_many(page.namespace, some, update=True, skip_locked=True)
            keys = sorted(set(keys) - set(some))
            refused = True
        if end is None or (limit is not None and len(rows) >= limit):
            break
        at = end
    return sorted(rows.items())
