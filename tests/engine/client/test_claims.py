"""What a claim asks of the nodes: told with a queue that lies in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from engine.client.claims import claimed
from engine.client.scans import ScanCall
from engine.protocol.requests import Rows
from tests.support.probes import heard

NAME = "jobs"
Claimed = list[tuple[bytes, bytes]]


class _Queue:
    """Its rows, and whom of them somebody has; `rank`: so many others are told of them before."""

    name = NAME

    def __init__(self, *jobs: bytes) -> None:
        self.jobs = dict.fromkeys(jobs, b"v")
        self.locked: dict[bytes, None] = {}
        self.rank = 0
        self.sure = True
        self.looks = self.all = 0

    def _page(self, low: bytes, high: bytes | None, limit: int, keys: Iterable[bytes], *, sure: bool) -> ScanCall:
        call = ScanCall(NAME, low, high, limit)
        found = sorted(keys)
        told = found[:limit]
        call.take([0], Rows(1, told, [b"v"] * len(told), len(found) > limit, sure=sure and len(found) <= limit))
        return call

    async def unlocked(self, low: bytes, high: bytes | None, limit: int, *, reverse: bool) -> tuple[ScanCall, int]:
        """A page of those that nobody has."""
        self.looks += 1
        return self._page(low, high, limit, self.jobs.keys() - self.locked.keys(), sure=self.sure), self.rank

    async def pages(
        self, low: bytes, high: bytes | None, limit: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[ScanCall]:
        """All, in one page."""
        self.all += 1
        yield self._page(low, high, limit or 1_000, self.jobs, sure=False)


class _Claimer:
    """Whoever claims. What it asks to be locked, it has, unless somebody else has it."""

    def __init__(self, queue: _Queue) -> None:
        self.queue = queue
        self.asked: list[list[bytes]] = []

    def own(self, namespace: str, low: bytes, high: bytes | None, *, read: bool = False) -> dict[bytes, bytes | None]:
        """It has nothing yet."""
        return {}

    async def get_many(
        self, namespace: str, keys: Iterable[bytes], *, update: bool = False, skip_locked: bool = False
    ) -> dict[bytes, bytes]:
        """Lock what is free."""
        wanted = list(keys)
        self.asked.append(wanted)
        free = {key: self.queue.jobs[key] for key in wanted if key not in self.queue.locked}
        self.queue.locked |= dict.fromkeys(free)
        return free

    def claim(self, limit: int | None = 1, **options: Any) -> Claimed:
        """Claim the first rows."""
        return asyncio.run(claimed(self, self.queue, (b"", None), limit, **options))


def test_where_it_is_sure_that_there_is_none_nobody_is_asked_again() -> None:
    queue = _Queue()
    assert _Claimer(queue).claim() == []
    assert (queue.looks, queue.all) == (1, 0)
    queue = _Queue(b"a", b"b")
    queue.locked[b"a"] = None
    assert _Claimer(queue).claim(3) == [(b"b", b"v")]
    assert (queue.looks, queue.all) == (1, 0)


def test_where_something_is_in_doubt_all_are_asked_for() -> None:
    queue = _Queue()
    queue.sure = False
    with heard() as paths:
        assert _Claimer(queue).claim() == []
    assert (queue.looks, queue.all) == (1, 1)
    assert "claim.asked_for_all" in paths


def test_who_asks_together_with_others_tries_for_another_row() -> None:
    for rank, first in ((0, b"a"), (1, b"b"), (2, b"c"), (3, b"a"), (7, b"b")):
        queue = _Queue(b"a", b"b", b"c")
        queue.rank = rank
        claimer = _Claimer(queue)
        assert claimer.claim() == [(first, b"v")]
        assert claimer.asked == [[first]]


def test_who_is_behind_others_still_has_all_that_is_free() -> None:
    queue = _Queue(b"a", b"b", b"c")
    queue.rank = 2
    assert _Claimer(queue).claim(5) == [(b"a", b"v"), (b"b", b"v"), (b"c", b"v")]
