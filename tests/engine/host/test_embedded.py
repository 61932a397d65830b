"""An embedded node that fails, or is closed, under the calls of its application: none waits for ever, none is lied to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import engine
from engine import aio, errors
from engine.aio import open_embedded
from engine.host.embedded import Embedded
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


@pytest.mark.parametrize("at", ["turn", "early", "rest"])
def test_a_turn_that_is_interrupted_is_the_last_one(tmp_path: Path, at: str) -> None:
    """Ctrl-C, in whatever the thread of the loop was just doing. What the node had decided and not logged is not there."""
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(open_embedded(tmp_path / "data", OPTIONS | {"partitions": 1}))
    accounts = database.namespace("accounts", codec="str")
    loop.run_until_complete(accounts.put("ann", "before"))
    links = database.session.links
    assert isinstance(links, Embedded)
    part = links.driver.node if at == "turn" else links.driver.duties
    whole = getattr(part, at)

    def interrupted(*given: object) -> object:
        if at != "turn" or whole(*given).log:
            setattr(part, at, whole)
            raise KeyboardInterrupt
        return whole(*given)

    setattr(part, at, interrupted)
    put = loop.create_task(accounts.put("bob", "meanwhile"))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(put)

    async def go_on() -> None:
        with pytest.raises(errors.CommitUnknown):
            await put
        with pytest.raises(errors.Error, match="stopped: KeyboardInterrupt came in the middle of a turn"):
            await accounts.put("cat", "never")
        await database.close()

    async def open_again() -> None:
        async with await open_embedded(tmp_path / "data", OPTIONS) as again:
            accounts = again.namespace("accounts", codec="str")
            assert await accounts.get("ann") == "before"
            assert await accounts.get("bob") in {None, "meanwhile"}
            await accounts.put("cat", "again")

    loop.run_until_complete(go_on())
    loop.close()
    asyncio.run(open_again())


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("durability", ["FSYNC", "NONE"])
def test_a_loop_that_ended_without_close_gives_its_directory_back(tmp_path: Path, durability: str, kept: bool) -> None:
    async def forget_to_close() -> aio.Database | None:
        database = await aio.open(tmp_path / "data", durability=durability)
        await database.namespace("accounts", codec="str").put("ann", "1")
        await database.transaction().namespace("accounts", codec="str").put("bob", "never")
        return database if kept else None

    async def open_again() -> None:
        async with await aio.open(tmp_path / "data", durability=durability) as again:
            accounts = again.namespace("accounts", codec="str")
            assert [row async for row in accounts.scan()] == [("ann", "1")]
            await accounts.put("ann", "2")

    with contextlib.nullcontext() if kept else pytest.warns(ResourceWarning, match="unclosed <Database embedded"):
        left = asyncio.run(forget_to_close())  # if nobody has it, its loop ends in the middle of closing it
    asyncio.run(open_again())
    with engine.open(tmp_path / "data") as blocking:
        assert blocking.namespace("accounts", codec="str")["ann"] == "2"
    del left


def test_a_loop_that_may_run_again_keeps_its_directory_until_it_is_closed(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(aio.open(tmp_path / "data"))
    with pytest.raises(errors.UsageError, match="whose event loop does not run: close it in that loop, or close the loop"):
        engine.open(tmp_path / "data")
    loop.run_until_complete(database.namespace("accounts").put(b"ann", b"1"))
    loop.close()
    with engine.open(tmp_path / "data") as again:
        assert again.namespace("accounts")[b"ann"] == b"1"


def test_a_checkpoint_that_a_loop_leaves_under_way_ends_before_its_directory_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(aio.open(tmp_path / "data"))
    links = database.session.links
    assert isinstance(links, Embedded)
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        done.append("written")

    links.driver.background("checkpoint", work, lambda _, __: None)
    begun.wait(PATIENCE_SECONDS)
    loop.close()
    threading.Timer(0.1, go_on.set).start()
    with engine.open(tmp_path / "data"):
        assert done == ["written"]
    assert not caplog.records, "that nobody is told any more is nothing to speak of"


def test_what_was_left_in_a_directory_that_is_gone_is_in_nobodys_way(tmp_path: Path) -> None:
    async def forget_to_close() -> aio.Database:
        database = await aio.open(tmp_path / "data")
        await database.namespace("accounts", codec="str").put("ann", "1")
        return database

    left = asyncio.run(forget_to_close())
    assert not left.session.closed
    shutil.rmtree(tmp_path / "data")
    with engine.open(tmp_path / "data") as again:
        assert len(again.namespace("accounts")) == 0


def test_the_first_open_of_a_process_reads_the_node_in_a_thread_and_not_on_its_callers_loop(tmp_path: Path) -> None:
    script = """
import asyncio, sys, threading
import engine.aio

class Watch:
    threads = []
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("engine.node", "engine.host", "lmdb")):
            self.threads.append(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watch())

async def main():
    databases = await asyncio.gather(*(engine.aio.open(path) for path in sys.argv[1:]))
    for database in databases:
        await database.namespace("accounts", codec="str").put("ann", "1")
        await database.close()
    print(len(Watch.threads) > 10, any(Watch.threads))

asyncio.run(main())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "b")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert told.stdout.split() == ["True", "False"], "at least ten modules, and none by the thread that runs the loop"


@pytest.mark.parametrize("address", ["127.0.0.1:7401", "n1:7401,n2:7401", "[::1]:7400"])
def test_an_address_is_not_made_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.UsageError, match="is an address, and no directory of that name is here: `connect`"):
        engine.open(address)
    assert list(tmp_path.iterdir()) == []
    engine.open(Path(address)).close()
    engine.open(address).close()  # it is there now
    with pytest.raises(errors.UsageError, match="is an address"):
        engine.open("other:1")
    engine.open("./other:1").close()
