"""Many threads, several event loops, an end in the middle of things, and cancellation wherever there is an await."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import aio
from tests.support.patience import PATIENCE_SECONDS, joined


def test_one_database_serves_many_threads(db: engine.Database, fresh: Callable[[], str]) -> None:
    ns = db.namespace(fresh(), codec=int)

    def add(_: int) -> None:
        def once(tx: engine.Transaction) -> None:
            inside = tx.namespace(ns)
            inside.put("n", inside.get_for_update("n", 0) + 1)

        db.run(once, attempts=50)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
        list(threads.map(lambda number: ns.put(f"k{number}", number), range(40)))
    assert ns.get("n") == 40
    assert len(list(ns.scan(prefix="k"))) == 40


def test_several_loops_have_a_database_each(addresses: str) -> None:
    shared = engine.connect(addresses)
    ns = shared.namespace("loops", codec="json")

    async def story(number: int) -> None:
        async with await aio.connect(addresses) as mine:
            await mine.namespace("loops", codec="json").put(f"own{number}", number)
        await asyncio.to_thread(ns.put, f"shared{number}", number)  # the blocking form is for every thread

    threads = [threading.Thread(target=asyncio.run, args=(story(number),), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    joined(*threads)
    assert len(list(ns.scan())) == 8
    shared.close()


def test_a_database_of_another_loop_is_refused(addresses: str) -> None:
    async def connect() -> aio.Database:
        return await aio.connect(addresses)

    async def use(database: aio.Database) -> None:
        await database.namespace("loops").get(b"k")

    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    database = loop.run_until_complete(connect())
    try:
        with pytest.raises(engine.UsageError, match="belongs to another event loop: connect to it in the one that uses it"):
            other.run_until_complete(use(database))
    finally:
        loop.run_until_complete(database.close())
        loop.close()
        other.close()


def test_a_call_from_another_thread_does_nothing_to_those_who_are_served(tmp_path: Path) -> None:
    async def strays(database: aio.Database) -> None:
        ns = database.namespace("strays")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: ns.put(b"k", b"v"),
            lambda: ns.get(b"k"),
            lambda: database.transact([engine.Put(ns, b"k", b"v")]),
            lambda: database.snapshot().__aenter__(),
            database.close,
        ]
        for call in calls * 20:
            with pytest.raises(
                engine.UsageError, match="belongs to another event loop: connect to it in the one that uses it"
            ):
                await call()
        with pytest.raises(engine.UsageError, match="belongs to another event loop"):
            database.transaction()

    async def story() -> None:
        async with await aio.open(tmp_path / "node") as database:
            ns = database.namespace("served")
            stray = asyncio.ensure_future(asyncio.to_thread(asyncio.run, strays(database)))
            served = 0
            while not stray.done() or served < 10:
                await ns.put(b"%d" % served, b"v")
                served += 1
            await stray
            assert await ns.count() == served
            assert await database.namespace("strays").count() == 0

    asyncio.run(story())


def test_a_loop_may_be_run_by_one_thread_after_another(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(aio.open(tmp_path / "node"))
    ns = database.namespace("moved")
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(ns.put(b"k", b"v"), loop).result(PATIENCE_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    joined(thread)
    assert loop.run_until_complete(ns.get(b"k")) == b"v"
    loop.run_until_complete(database.close())
    loop.close()


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_a_program_in_a_codec_is_told_and_ends_no_database(end: BaseException, tmp_path: Path) -> None:
    def give_up(_: bytes) -> bytes:
        raise end

    with engine.open(tmp_path / "node") as db:
        ns = db.namespace("ends", codec=engine.Codec("ends", str.encode, bytes.decode, give_up, bytes))
        with pytest.raises(type(end)):
            ns.put("k", b"v")
        with pytest.raises(type(end)), db.transaction() as tx:
            tx.namespace(ns).put("k", b"v")
        assert ns.get("k") is None, "all others are served"


def test_closing_on_the_own_thread_of_a_database_is_refused(tmp_path: Path) -> None:
    def close(_: bytes) -> bytes:
        db.close()
        return b""

    with engine.open(tmp_path / "node") as db:
        ns = db.namespace("closes", codec=engine.Codec("closes", str.encode, bytes.decode, close, bytes))
        with pytest.raises(engine.UsageError, match="a blocking call was made on the database's own thread"):
            ns.put("k", b"v")
        assert ns.get("k") is None


def test_what_is_iterated_over_is_walked_in_the_callers_thread(tmp_path: Path) -> None:
    db = engine.open(tmp_path / "node")
    source, copy = db.namespace("source", codec="json"), db.namespace("copy", codec="json")
    source.put_many({f"k{number:04}": number for number in range(1500)})
    rows, here = dict(source), threading.get_ident()

    def numbered() -> Iterator[tuple[str, Any]]:
        for key in ("k0001", "k0002"):
            assert threading.get_ident() == here, "a blocking call may be made, and others are served meanwhile"
            yield key, source[key]

    puts: list[Callable[[], object]] = [
        lambda: copy.put_many(source),
        lambda: copy.put_many(source.items()),
        lambda: copy.put_many(source.scan()),
        lambda: copy.update(source),
        lambda: db.transact(engine.Put(copy, key, value) for key, value in source.items()),
        lambda: db.run(lambda tx: tx.namespace(copy).put_many(source.scan())),
        lambda: db.run(lambda tx: tx.namespace(copy).put_many(tx.namespace(source).scan())),
        lambda: db.read(lambda snapshot: copy.put_many(snapshot.namespace(source))),
    ]
    for put in puts:
        put()
        assert copy == rows
        copy.delete_many(source)
        assert not copy
    copy.put_many(numbered())
    assert copy == {"k0001": 1, "k0002": 2} == copy.get_many(source) == copy.get_many(copy.keys())
    assert db.read(lambda snapshot: snapshot.namespace(source).get_many(key for key, _ in numbered())) == dict(copy)
    assert db.run(lambda tx: tx.namespace(source).get_many(key for key, _ in numbered())) == dict(copy)
    with pytest.raises(ZeroDivisionError):
        copy.put_many((str(key), 1 // key) for key in (1, 0))
    assert len(copy) == 2, "nothing of it was done"
    db.close()


@pytest.mark.parametrize("where", ["embedded", "cluster"])
def test_closing_ends_the_calls_that_run(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    db = engine.open(tmp_path / "node") if where == "embedded" else engine.connect(request.getfixturevalue("addresses"))
    ns = db.namespace("closed", codec="json")
    ns["k"] = 1
    begun = threading.Barrier(5)
    ends: list[BaseException] = []

    def work(number: int) -> None:
        begun.wait(PATIENCE_SECONDS)
        try:
            while True:
                ns[f"k{number}"] = number
        except engine.Error as error:
            ends.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(PATIENCE_SECONDS)
    db.close()
    joined(*threads)
    assert [type(end).__name__ for end in ends if not isinstance(end, engine.UsageError | engine.CommitUnknown)] == []
    assert len(ends) == 4, "each thread was told, and none waits for ever"


LEAVES = """
import atexit, sys, threading
atexit.register(lambda: print([t.name for t in threading.enumerate() if t.name.startswith("foreshore")]))
import engine
db = engine.open(sys.argv[1]) if sys.argv[2] == "open" else engine.connect(sys.argv[1])
ns = db.namespace("left", codec="json")
ns["k"] = "v"
tx = db.transaction()
tx.namespace(ns).put("k", "w")
threading.Thread(target=lambda: [ns.get("k") for _ in range(10_000)], daemon=True).start()
rows = ns.scan()
next(rows)
"""


@pytest.mark.parametrize("how", ["open", "connect"])
def test_a_program_may_end_without_closing(how: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where = str(tmp_path / "node") if how == "open" else request.getfixturevalue("addresses")
    ran = subprocess.run(
        [sys.executable, "-c", LEAVES, where, how], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "[]\n", "a loop that runs while the interpreter goes takes one program of a hundred down"
    with engine.open(where) if how == "open" else engine.connect(where) as db:
        assert db.namespace("left", codec="json").get("k") == "v", "what was acknowledged is there, and nothing else"


STEPS = 14
"""So many passes of the loop an operation takes at most here before it is done; cancelled after each of them."""


def _operations(db: aio.Database, ns: aio.Namespace[str, Any]) -> dict[str, Callable[[], Awaitable[object]]]:
    async def scanned() -> None:
        async for _ in ns.scan():
            await asyncio.sleep(0)

    async def transaction(concurrency: aio.Concurrency) -> None:
        async with db.transaction(concurrency=concurrency) as tx:
            inside = tx.namespace(ns)
            await inside.put("a", (await inside.get("a", 0)) + 1)
            await inside.put("b", 1)

    async def run() -> None:
        async def add(tx: aio.Transaction) -> None:
            await tx.namespace(ns).put("a", 1)

        await db.run(add)

    return {
        "get": lambda: ns.get("a"),
        "get_many": lambda: ns.get_many(["a", "b"]),
        "get_aged": lambda: ns.get_aged("a"),
        "put": lambda: ns.put("a", 1),
        "put_many": lambda: ns.put_many({f"k{n}": n for n in range(20)}),
        "delete": lambda: ns.delete("b"),
        "put_if_absent": lambda: ns.put_if_absent("a", 1),
        "replace": lambda: ns.replace("a", 1, 2),
        "pop": lambda: ns.pop("b", None),
        "scan": scanned,
        "pessimistic": lambda: transaction(aio.Concurrency.PESSIMISTIC),
        "optimistic": lambda: transaction(aio.Concurrency.OPTIMISTIC),
        "run": run,
        "status": lambda: db.transaction_status(f"{db.transaction().id}@0"),
    }


def test_every_await_may_be_cancelled(addresses: str, tmp_path: Path) -> None:
    async def story(db: aio.Database) -> None:
        ns = db.namespace("cancelled", codec="json")
        await ns.put_many({"a": 0, "b": 0})
        cancelled = 0
        for name, operation in _operations(db, ns).items():
            for steps in range(STEPS):
                task = asyncio.ensure_future(operation())
                for _ in range(steps):
                    await asyncio.sleep(0.0005 if steps % 2 else 0)
                task.cancel()
                (end,) = await asyncio.gather(task, return_exceptions=True)
                cancelled += isinstance(end, asyncio.CancelledError)
                if name == "optimistic" and isinstance(end, engine.Conflict):
                    continue  # the one before may have been cancelled while it was being committed, and commit meanwhile
                assert end is None or not isinstance(end, Exception), f"{name} after {steps}: {end!r}"
            await ns.put_many({"a": 0, "b": 0}, timeout=PATIENCE_SECONDS)  # nobody holds a lock, nothing hangs
        assert cancelled > STEPS, "most of them were cancelled in the middle"

    async def both() -> None:
        async with await aio.connect(addresses) as db:
            await story(db)
        async with await aio.open(tmp_path / "node") as db:
            await story(db)

    asyncio.run(both())


STAGES_SECONDS = [0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04]
"""After so long, opening and closing are cancelled: from the first await to the last."""


def test_opening_and_closing_may_be_cancelled(addresses: str, tmp_path: Path) -> None:
    async def given_up(work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(seconds)
        task.cancel()
        end: Any = (await asyncio.gather(task, return_exceptions=True))[0]
        assert not isinstance(end, Exception), repr(end)
        return end

    async def story(begin: Callable[[], Coroutine[Any, Any, aio.Database]]) -> None:
        for seconds in STAGES_SECONDS:
            database = await given_up(begin(), seconds)
            if isinstance(database, aio.Database):
                await database.close()
            database = await begin()  # nobody has it
            await given_up(database.close(), seconds)
            await asyncio.gather(database.close(), database.close())  # nobody is told of what is closed already
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            assert not tasks, "nobody is at work any more"

    asyncio.run(story(lambda: aio.open(tmp_path / "node")))
    asyncio.run(story(lambda: aio.connect(addresses)))


INTERRUPTED = """
import os, signal, sys, threading, time
import engine
for seconds in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03, 0.05, 0.08):
    try:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
        db = engine.open(sys.argv[1])
        time.sleep(60)
    except KeyboardInterrupt:
        if "db" in globals():
            db.close()
            del db
    with engine.open(sys.argv[1]) as db:
        db.namespace("a")[b"k"] = b"v"
    del db
"""


def test_who_interrupts_the_opening_of_a_database_may_open_it_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "node")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert (ran.returncode, ran.stderr) == (0, "")
