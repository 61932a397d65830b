"""An embedded node that fails, or is closed, under the calls of its application: none waits for ever, none is lied to."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import engine
from engine import aio, errors
from engine.aio import open_embedded
from tests.support.failing_disk import failing
from tests.support.patience import PATIENCE_SECONDS, joined

OPTIONS = {"partitions": 16, "wal_segment_bytes": 64 << 10, "wal_total_bytes": 1 << 20}


@pytest.mark.parametrize("trouble", ["sync", "full"])
def test_a_write_under_way_when_the_disk_fails_is_unknown_and_never_called_undone(tmp_path: Path, trouble: str) -> None:
    control = tmp_path / "disk"

    async def story() -> None:
        database = await open_embedded(tmp_path / "data", OPTIONS, disk=failing(control))
        accounts = database.namespace("accounts", codec="str")
        await accounts.put("ann", "before")
        control.write_text(trouble, encoding="ascii")
        puts = [accounts.put("ann", "after"), accounts.put("bob", "after"), accounts.delete("ann")]
        told = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(error) for error in told] == [errors.CommitUnknown] * 3
        assert all(isinstance(error, errors.Error) and error.maybe_committed for error in told)
        with pytest.raises(errors.Error, match="ENOSPC" if trouble == "full" else "EIO") as later:
            await accounts.put("cat", "never")
        assert not later.value.maybe_committed, "the node had stopped before it was asked"
        await database.close()
        control.unlink()
        database = await open_embedded(tmp_path / "data", OPTIONS)
        accounts = database.namespace("accounts", codec="str")
        assert await accounts.get("ann") in {"before", "after", None}
        assert await accounts.get("cat") is None
        await accounts.put("ann", "again")
        await database.close()

    asyncio.run(story())


def test_a_commit_under_way_when_the_disk_fails_says_whom_to_ask_about(tmp_path: Path) -> None:
    control = tmp_path / "disk"

    async def story() -> None:
        database = await open_embedded(tmp_path / "data", OPTIONS, disk=failing(control))
        transaction = database.transaction()
        inside = transaction.namespace("accounts", codec="str")
        for at in range(20):
            await inside.put(f"k{at}", "1")
        control.write_text("sync", encoding="ascii")
        with pytest.raises(errors.CommitUnknown) as unknown:
            await transaction.commit()
        await database.close()
        control.unlink()
        assert unknown.value.tx_id is not None
        database = await open_embedded(tmp_path / "data", OPTIONS)
        outcome = await database.transaction_status(unknown.value.tx_id)
        held = await database.namespace("accounts", codec="str").get_many(f"k{at}" for at in range(20))
        assert len(held) == (20 if outcome == "committed" else 0)
        await database.close()

    asyncio.run(story())


def test_closing_ends_the_calls_that_wait(tmp_path: Path) -> None:
    async def story() -> None:
        database = await aio.open(tmp_path / "data", **OPTIONS)
        holder, waiter = database.transaction(), database.transaction()
        await holder.namespace("accounts", codec="str").put("ann", "1")
        waiting = asyncio.ensure_future(waiter.namespace("accounts", codec="str").get("ann"))
        writing = asyncio.ensure_future(database.namespace("accounts", codec="str").put("ann", "2"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await database.close()
        with pytest.raises(errors.UsageError, match="the database was closed"):
            await waiting
        with pytest.raises(errors.CommitUnknown, match="the database was closed"):
            await writing
        with pytest.raises(errors.UsageError, match="the database was closed"):
            await database.namespace("accounts").get(b"ann")

    asyncio.run(story())


def test_closing_ends_the_blocking_calls_of_other_threads(tmp_path: Path) -> None:
    database = engine.open(tmp_path / "data", **OPTIONS)
    accounts = database.namespace("accounts", codec="str")
    holder = database.transaction()
    holder.namespace(accounts).put("ann", "1")
    told: list[Exception] = []
    waits = threading.Event()

    def work() -> None:
        waits.set()
        try:
            with database.transaction() as waiter:
                waiter.namespace(accounts).get("ann")
        except errors.Error as error:
            told.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE_SECONDS)
    database.close()
    joined(thread)
    assert [type(error) for error in told] == [errors.UsageError]
    with pytest.raises(errors.UsageError, match="the database was closed"):
        accounts.get("ann")
    database.close()
