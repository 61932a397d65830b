"""Rows that were not asked for before their transaction or snapshot was over are refused, as all else is then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import engine
from engine import aio, errors

ROWS = {f"k{number:04}": "v" for number in range(2_500)}
"""More than one chunk of the blocking form, and more than one page of a scan."""


def test_in_a_blocking_form(tmp_path: Path) -> None:
    with engine.open(tmp_path / "data") as db:
        ns = db.namespace("rows", codec="str")
        ns.put_many(ROWS)
        with db.transaction() as tx, db.snapshot() as snapshot:
            scans = [(tx.namespace(ns).scan(), "transaction"), (snapshot.namespace(ns).scan(), "snapshot")]
            scans += [(tx.namespace(ns).scan(), "transaction"), (snapshot.namespace(ns).scan(), "snapshot")]
            for (scan, _), taken in zip(scans, (1, 1, 1_700, 1_700), strict=True):
                assert [key for key, _ in (next(scan) for _ in range(taken))] == list(ROWS)[:taken]
        for scan, what in scans:
            with pytest.raises(errors.UsageError, match=f"the {what} .*is over"):
                next(scan)
            assert list(scan) == []
        outside = ns.scan()
        next(outside)
        assert len(list(outside)) == len(ROWS) - 1


def test_in_the_asynchronous_form(tmp_path: Path) -> None:
    async def story() -> None:
        async with await aio.open(tmp_path / "data") as db:
            ns = db.namespace("rows", codec="str")
            await ns.put_many(ROWS)
            async with db.transaction() as tx, db.snapshot() as snapshot:
                scans = [(tx.namespace(ns).scan(), "transaction"), (snapshot.namespace(ns).scan(), "snapshot")]
                for scan, _ in scans:
                    assert (await anext(scan))[0] == "k0000"
            for scan, what in scans:
                with pytest.raises(errors.UsageError, match=f"the {what} .*is over"):
                    await anext(scan)

    asyncio.run(story())
