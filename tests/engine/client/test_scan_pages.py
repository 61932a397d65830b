"""Pages of a scan over several nodes: each node is asked for its part, and nothing is left out or told twice."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client.codecs import CODECS
from engine.client.namespace import Access, Namespace
from engine.client.outside import CodedNamespace
from engine.client.scans import PART_ROWS, ScanCall
from engine.client.session import Session
from engine.protocol.requests import Rows, Scan
from tests.support.maps import a_map

COUNT = 8


def _ask(call: ScanCall, nodes: list[list[int]], rows: dict[int, list[bytes]], cut: int) -> list[int]:
    """Each node answers, with no more than `cut` rows; how many it was asked for."""
    call.partitions(a_map(COUNT))
    limits: list[int] = []
    for number, items in enumerate(nodes):
        asked = call.request(number, items)
        assert isinstance(asked, Scan)
        limits.append(asked.limit)
        found = sorted(key for item in items for key in rows.get(item, []) if key >= asked.start)
        most = min(asked.limit, cut)
        call.take(items, Rows(number, found[:most], [b"v"] * len(found[:most]), len(found) > most))
    return limits


@given(
    keys=st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.binary(min_size=1, max_size=2)), max_size=60, unique_by=lambda p: p[1]
    ),
    sides=st.lists(st.integers(0, 2), min_size=COUNT, max_size=COUNT),
    limit=st.integers(1, 40),
    cut=st.integers(1, 50),
)
@settings(max_examples=60, deadline=None)
def test_all_rows_come_once_and_in_order(keys: list[tuple[int, bytes]], sides: list[int], limit: int, cut: int) -> None:
    rows: dict[int, list[bytes]] = {}
    for partition, key in keys:
        rows.setdefault(partition, []).append(key)
    nodes = [items for side in range(3) if (items := [p for p in range(COUNT) if sides[p] == side])]
    at: bytes | None = b""
    told: list[bytes] = []
    while at is not None:
        call = ScanCall("acc", at, None, limit)
        _ask(call, nodes, rows, cut)
        assert len(call.rows) <= limit
        assert call.rows or call.next_start is None, "each page gets somewhere"
        told += [key for key, _ in call.rows]
        at = call.next_start
    assert told == sorted(key for _, key in keys)


def test_a_node_is_asked_for_its_part_of_a_large_page_and_for_all_of_a_small_one() -> None:
    nodes = [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert _ask(ScanCall("acc", b"", None, 16_000), nodes, {}, 1) == [5_008, 7_508, 7_508]
    assert _ask(ScanCall("acc", b"", None, 1), nodes, {}, 1) == [1, 1, 1]
    assert _ask(ScanCall("acc", b"", None, 9), nodes, {}, 1) == [9, 9, 9]
    assert PART_ROWS == 8


class _Cluster:
    """A session with a cluster of one node."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.calls = 0

    async def call(self, call: ScanCall, *, timeout: float | None) -> ScanCall:
        """Answer a page."""
        self.calls += 1
        _ask(call, [list(range(COUNT))], {0: self.keys}, len(self.keys))
        return call


def _access(cluster: _Cluster) -> Access:
    access = Access(cast("Session", cluster))
    access.forms[("acc", "")] = access.forms[("acc", CODECS["bytes"].form)] = "agreed"
    return access


def test_who_has_the_rows_that_were_asked_for_asks_no_more() -> None:
    cluster = _Cluster([b"%04d" % number for number in range(1_000)])
    namespace = CodedNamespace(_access(cluster), "acc", CODECS["bytes"])

    async def first(limit: int) -> list[bytes]:
        return [key async for key, _ in namespace.scan(limit=limit)]

    assert asyncio.run(first(10)) == cluster.keys[:10]
    assert cluster.calls == 1
    assert asyncio.run(first(0)) == []
    assert cluster.calls == 1


def test_who_wants_more_than_it_said_is_not_told_row_by_row() -> None:
    """A claim asks for some rows, and may find all of them locked, by somebody who has claimed a thousand."""
    keys = [b"%04d" % number for number in range(1_000)]
    cluster = _Cluster(keys)
    namespace = Namespace(_access(cluster), "acc", "")

    async def all_pages() -> list[list[bytes]]:
        return [[key for key, _ in page.rows] async for page in namespace.pages(b"", None, 101)]

    pages = asyncio.run(all_pages())
    assert [key for page in pages for key in page] == keys
    assert len(pages[0]) == 101
    assert cluster.calls == len(pages) == 2
