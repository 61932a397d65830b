"""A database that nobody has any more and nobody has closed: it is closed then, and a developer is told (`-X dev`)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import aio
from engine.client import loop as loops
from engine.host import embedded
from tests.support.patience import PATIENCE_SECONDS, joined

SAYS = r"unclosed <Database .*>: expected `close`, or `with`"


def clients() -> set[threading.Thread]:
    """The threads of blocking databases."""
    return {thread for thread in threading.enumerate() if thread.name == "foreshore-client"}


@contextmanager
def no_more_clients() -> Iterator[None]:
    """What was begun in the block ends after it, by itself."""
    before = clients()
    yield
    joined(*(clients() - before))


def dropped(begin: Callable[[], engine.Database]) -> weakref.ref[engine.Database]:
    """A database that was used, and forgotten: no search for circles is needed to find that out."""
    gc.disable()
    try:
        return used_and_lost(begin)
    finally:
        gc.enable()


def used_and_lost(begin: Callable[[], engine.Database]) -> weakref.ref[engine.Database]:
    """Nobody has it any more when this returns."""
    db = begin()
    db.namespace("ns", codec=int)["k"] = 1
    return weakref.ref(db)


def test_a_directory_whose_database_nobody_has_is_opened_again(tmp_path: Path) -> None:
    with no_more_clients():
        for _ in range(3):
            with pytest.warns(ResourceWarning, match=SAYS):
                lost = dropped(lambda: engine.open(tmp_path / "node", partitions=2))
            assert lost() is None
        with engine.open(tmp_path / "node") as db:
            assert dict(db.namespace("ns", codec=int)) == {"k": 1}


def test_a_client_that_nobody_has_hangs_up(addresses: str) -> None:
    with no_more_clients(), pytest.warns(ResourceWarning, match=SAYS):
        lost = dropped(lambda: engine.connect(addresses))
    assert lost() is None


ROWS = 2_000
PARTS: dict[str, tuple[Callable[[engine.Database], Any], Callable[[Any], int]]] = {
    "a namespace": (lambda db: db.namespace("ns", codec=int), len),
    "its rows": (lambda db: db.namespace("ns", codec=int).scan(), lambda rows: len(list(rows))),
    "a view of it": (lambda db: db.namespace("ns", codec=int).items(), lambda view: len(list(view))),
    "a transaction": (lambda db: db.transaction(), lambda tx: len(list(tx.namespace("ns", codec=int).scan()))),
    "a namespace inside": (lambda db: db.transaction().namespace("ns", codec=int), lambda ns: len(list(ns.scan()))),
    "a snapshot": (lambda db: db.snapshot().__enter__(), lambda then: len(then.namespace("ns", codec=int))),
    "a namespace then": (lambda db: db.snapshot().__enter__().namespace("ns", codec=int), len),
    "its rows then": (
        lambda db: db.snapshot().__enter__().namespace("ns", codec=int).scan(),
        lambda rows: len(list(rows)),
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_whoever_has_a_part_has_the_database(tmp_path: Path, part: str) -> None:
    take, use = PARTS[part]

    def taken() -> object:
        db = engine.open(tmp_path / "node", partitions=2)
        db.namespace("ns", codec=int).put_many({f"k{number}": number for number in range(ROWS)})
        return take(db)

    def lost() -> int:
        kept = taken()
        gc.collect()
        return use(kept)

    with pytest.warns(ResourceWarning, match=SAYS), no_more_clients():
        assert lost() == ROWS


def test_two_of_one_circle_are_both_closed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def entangled() -> None:
        first, second = ([engine.open(tmp_path / name, partitions=2)] for name in ("first", "second"))
        first[0].namespace("ns").put(b"k", b"1")
        circle: list[Any] = [first, second]
        circle.append(circle)

    def lost() -> None:
        entangled()
        gc.collect()

    with no_more_clients(), pytest.warns(ResourceWarning, match=SAYS) as told:
        lost()
    assert not caplog.records
    for name in ("first", "second"):
        assert sum(f"/{name}>" in str(warning.message) for warning in told) == 1
        engine.open(tmp_path / name).close()


def test_it_is_closed_whichever_thread_has_lost_it(tmp_path: Path) -> None:
    with no_more_clients(), ThreadPoolExecutor(1) as pool, pytest.warns(ResourceWarning, match=SAYS):
        lost = pool.submit(dropped, lambda: engine.open(tmp_path / "node", partitions=2)).result()
    assert lost() is None


def test_a_loop_that_could_not_begin_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> asyncio.AbstractEventLoop:
        raise OSError("no descriptors")

    told: list[object] = []
    monkeypatch.setattr(loops, "_new_loop", none)
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with pytest.raises(OSError, match="no descriptors"):
        loops.Loop()
    gc.collect()
    assert not told


AIO_PARTS: dict[str, tuple[Callable[[aio.Database], Any], Callable[[Any], AsyncIterator[object]]]] = {
    "a namespace": (lambda db: db.namespace("ns"), lambda ns: ns.scan()),
    "its rows": (lambda db: db.namespace("ns").scan(), aiter),
    "a transaction": (lambda db: db.transaction(), lambda tx: tx.namespace("ns").scan()),
    "a namespace inside": (lambda db: db.transaction().namespace("ns"), lambda ns: ns.scan()),
    "rows inside": (lambda db: db.transaction().namespace("ns").scan(), aiter),
}


@pytest.mark.parametrize("part", AIO_PARTS)
def test_whoever_has_a_part_has_the_database_in_an_event_loop(tmp_path: Path, part: str) -> None:
    take, use = AIO_PARTS[part]

    async def taken() -> object:
        db = await aio.open(tmp_path / "node", partitions=2)
        await db.namespace("ns").put(b"k", b"1")
        return take(db)

    async def lost() -> list[object]:
        kept = await taken()
        gc.collect()
        await asyncio.sleep(0)
        rows = [row async for row in use(kept)]
        del kept
        gc.collect()
        return rows

    async def story() -> None:
        before = asyncio.all_tasks()
        with pytest.warns(ResourceWarning, match=SAYS):
            rows = await lost()
        assert rows == [(b"k", b"1")]
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_in_an_event_loop_it_is_closed_and_told_too(tmp_path: Path, addresses: str) -> None:
    async def story() -> None:
        before = asyncio.all_tasks()

        async def lose(begin: Callable[[], Coroutine[Any, Any, aio.Database]]) -> None:
            await (await begin()).namespace("raw").put(b"k", b"1")

        for begin in (partial(aio.open, tmp_path / "node", partitions=2), partial(aio.connect, addresses)):
            for _ in range(3):
                with pytest.warns(ResourceWarning, match=SAYS):
                    await lose(begin)
                while asyncio.all_tasks() - before:
                    await asyncio.sleep(0.001)
        async with await aio.open(tmp_path / "node") as db:
            assert await db.namespace("raw").get(b"k") == b"1"

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


@pytest.mark.parametrize("door", ["open", "connect"])
def test_one_that_is_lost_while_its_loop_rests_is_told_and_closed_when_that_goes_on(
    tmp_path: Path, addresses: str, door: str
) -> None:
    def begin() -> Coroutine[Any, Any, aio.Database]:
        return aio.open(tmp_path / "node", partitions=2) if door == "open" else aio.connect(addresses)

    async def use(db: aio.Database) -> None:
        await db.namespace("raw").put(b"k", b"1")

    async def go_on() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)

    def lose() -> None:
        loop.run_until_complete(use(loop.run_until_complete(begin())))

    loop = asyncio.new_event_loop()
    for _ in range(2):
        with pytest.warns(ResourceWarning, match=SAYS):
            lose()
        loop.run_until_complete(go_on())
    assert not [node for node in embedded._begun if node.driver.loop is loop]
    loop.close()


def test_one_that_is_lost_after_its_loop_was_closed_is_told_of(tmp_path: Path) -> None:
    async def kept() -> aio.Database:
        return await aio.open(tmp_path / "node", partitions=2)

    with pytest.warns(ResourceWarning, match=SAYS):
        asyncio.run(kept())
    with engine.open(tmp_path / "node") as db:
        assert not db.namespaces()


def test_who_opens_what_is_just_being_closed_waits_for_that(tmp_path: Path) -> None:
    async def story() -> None:
        for steps in range(12):
            db = await aio.open(tmp_path / "node", partitions=2)
            closing = asyncio.create_task(db.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            if steps:
                again = await aio.open(tmp_path / "node")
                await again.close()
            await db.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_who_keeps_a_loop_from_closing_what_he_opens_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking call in an event loop, which would have to go on first."""
    monkeypatch.setattr(embedded, "STILL_SECONDS", 0.2)

    async def story() -> None:
        db = await aio.open(tmp_path / "node", partitions=2)
        closing = asyncio.create_task(db.close())
        (node,) = (node for node in embedded._begun if node.place == os.path.realpath(tmp_path / "node"))
        while not node.ends:
            await asyncio.sleep(0)
        with pytest.raises(engine.UsageError, match="is being closed in this process, by an event loop that stands still"):
            engine.open(tmp_path / "node")
        await closing
        engine.open(tmp_path / "node").close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_a_child_does_not_wait_for_what_its_parent_is_just_closing(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", partitions=2):
        (node,) = (node for node in embedded._begun if node.place == os.path.realpath(tmp_path / "node"))
        node.let_go()
        if (child := os.fork()) == 0:
            signal.alarm(int(PATIENCE_SECONDS))
            try:
                engine.open(tmp_path / "node")
            except engine.UsageError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


STORY = """
import engine, os, sys
door, where, end = sys.argv[1:]
db = getattr(engine, door)(where)
ns = db.namespace("programs")
ns[b"k"] = b"1"
if os.fork() == 0:
    if door == "connect":
        ns[b"child"] = b"1"
    del db, ns
    sys.exit(0)
assert os.wait()[1] == 0
ns[b"l"] = b"1"
if end == "drop":
    del db, ns
if end == "close":
    db.close()
print("end")
"""


@pytest.mark.parametrize("end", ["drop", "end", "close"])
@pytest.mark.parametrize("door", ["open", "connect"])
def test_the_end_of_a_program_or_of_a_child_is_none_of_a_database(
    tmp_path: Path, addresses: str, door: str, end: str
) -> None:
    where = str(tmp_path / "node") if door == "open" else addresses
    command = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", STORY, door, where, end]
    told = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert (told.returncode, told.stdout) == (0, "end\n"), told.stderr
    assert "Traceback" not in told.stderr, told.stderr
    warned = [line for line in told.stderr.splitlines() if "ResourceWarning: unclosed" in line]
    assert len(warned) == (end == "drop") + (door == "connect"), told.stderr  # the child of a client has one of its own
