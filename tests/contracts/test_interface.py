"""The blocking form and the asynchronous one are one interface: the same names, parameters, defaults and errors."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import aio, api, errors
from tests.support.patience import PATIENCE_SECONDS

PAIRS = [
    (api.Database, aio.Database),
    (api.Namespace, aio.Namespace),
    (api.Transaction, aio.Transaction),
    (api.TransactionNamespace, aio.TransactionNamespace),
    (api.Snapshot, aio.Snapshot),
    (api.SnapshotNamespace, aio.SnapshotNamespace),
    (api.connect, aio.connect),
    (api.open, aio.open),
]
SHARED_WITH_THE_FACE = {"check_open", "did_commit", "inside"}
"""What `engine.api` needs of `engine.aio` to do the same; not for applications."""

RETRYABLE = {"Conflict", "Deadlock", "LockTimeout", "TransactionTimeout", "NoQuorum", "Unavailable", "PartitionLost"}
RETRYABLE |= {"SnapshotLost", "SnapshotTooOld"}
FINAL = {
    "AlreadyAnswered",
    "CommitUnknown",
    "ClusterReadOnly",
    "UsageError",
    "CorruptionError",
    "DiskFull",
    "ProtocolError",
}


def _methods(of: type) -> dict[str, list[tuple[str, object]]]:
    return {
        name: [(p.name, _default(p.default)) for p in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_")
    }


def _default(value: object) -> object:
    return "a mark of its own" if type(value) is object else value


@pytest.mark.parametrize(("blocking", "native"), [p for p in PAIRS if inspect.isclass(p[0])])
def test_both_forms_have_the_same_methods(blocking: type, native: type) -> None:
    ours, theirs = _methods(blocking), _methods(native)
    for name in SHARED_WITH_THE_FACE:
        theirs.pop(name, None)
    if blocking is api.Namespace:  # a dict has `update`, too, of which this one is another form
        assert {"update"} == {name for name in theirs if ours.get(name) != theirs[name]}
        theirs.pop("update")
        ours.pop("update")
    assert {name: ours.get(name) for name in theirs} == theirs
    more = set(ours) - set(theirs)
    assert more <= set(dir(MutableMapping)), "what only the blocking form has is what makes it a dict"


@pytest.mark.parametrize(("blocking", "native"), [p for p in PAIRS if not inspect.isclass(p[0])])
def test_both_forms_are_entered_alike(blocking: object, native: object) -> None:
    assert inspect.signature(blocking).parameters.keys() == inspect.signature(native).parameters.keys()  # type: ignore[arg-type]  # functions, as the pairs say


def test_everything_public_is_named_once_and_documented() -> None:
    assert len(set(engine.__all__)) == len(engine.__all__)
    assert all(inspect.getdoc(getattr(engine, name)) for name in engine.__all__)
    for blocking, native in PAIRS:
        for thing in (blocking, native):
            assert inspect.getdoc(thing)
            members = inspect.getmembers(thing, inspect.isfunction) if inspect.isclass(thing) else []
            assert [name for name, member in members if not name.startswith("_") and not inspect.getdoc(member)] == []


def test_every_error_is_one_and_says_what_a_program_may_do() -> None:
    found = {n: e for n, e in vars(errors).items() if inspect.isclass(e) and issubclass(e, Exception) and n != "Error"}
    assert set(found) == RETRYABLE | FINAL
    for name, error in found.items():
        assert issubclass(error, engine.Error)
        assert getattr(engine, name) is error
        assert error.retryable is (name in RETRYABLE)
        assert error.maybe_committed is (name == "CommitUnknown")
        assert error("why", tx_id="id").tx_id == "id"
        assert error("why").tx_id is None


def test_a_blocking_namespace_is_a_mutable_mapping(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", partitions=4) as db:
        ns = db.namespace("ns", codec="json")
        assert isinstance(ns, MutableMapping)
        assert (len(ns), bool(ns), list(ns), "a" in ns) == (0, False, [], False)
        ns["b"], ns["a"] = 2, 1
        ns.update({"c": 3}, d=4)
        ns.update([("e", 5)])
        assert list(ns) == list(ns.keys()) == ["a", "b", "c", "d", "e"]
        assert list(ns.values()) == [1, 2, 3, 4, 5]
        assert list(ns.items()) == list(dict(ns).items())
        assert (("a", 1) in ns.items(), ("a", 2) in ns.items(), 5 in ns.values(), 6 in ns.values()) == (True, False) * 2
        assert (ns["a"], ns.get("z", 0), ns.setdefault("a", 9), ns.setdefault("f", 6), "f" in ns) == (1, 0, 1, 6, True)
        assert ns == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}
        del ns["b"]
        for missing in (lambda: ns["b"], lambda: ns.__delitem__("b"), lambda: ns.pop("b")):
            with pytest.raises(KeyError, match="b"):
                missing()
        assert (ns.pop("c"), ns.pop("c", None), ns.popitem(), len(ns)) == (3, None, ("a", 1), 3)
        ns.clear()
        assert not ns
        with pytest.raises(KeyError, match="ns is empty"):
            ns.popitem()


def test_what_is_printed_names_what_it_is(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", partitions=4) as db:
        assert repr(db) == f"<Database embedded {tmp_path / 'node'}>"
        ns = db.namespace("ns", codec="json")
        assert repr(ns) == "<Namespace ns codec=json>"
        with db.transaction(label="salary") as tx:
            assert repr(tx) == "<Transaction salary PESSIMISTIC REPEATABLE_READ open>"
            assert repr(tx.namespace(ns)) == "<Namespace ns codec=json in salary PESSIMISTIC REPEATABLE_READ open>"
        assert repr(tx) == "<Transaction salary PESSIMISTIC REPEATABLE_READ committed>"
    assert repr(db).endswith(" closed>")


def test_a_star_import_leaves_the_builtins_alone() -> None:
    names: dict[str, object] = {}
    exec("from engine import *", names)
    assert "open" not in names
    assert names["connect"] is engine.connect
    assert engine.open is api.open


def test_run_refuses_what_would_run_after_its_transaction(tmp_path: Path) -> None:
    async def asynchronous(tx: engine.Transaction) -> None:
        raise AssertionError("it is not run")

    def rows(tx: engine.Transaction) -> Iterator[object]:
        yield from tx.namespace("ns").scan()

    with engine.open(tmp_path / "node", partitions=1) as db:
        for wrong, what in ((asynchronous, "asynchronous gave a coroutine"), (rows, "rows gave a generator")):
            with pytest.raises(
                engine.UsageError, match=rf"{what}, which would run after its transaction: expected a plain"
            ):
                db.run(wrong)

    async def story() -> None:
        async with await aio.open(tmp_path / "node") as db:
            for wrong, what in ((lambda _: 3, "gave a int: expected an `async def`"), (rows, "rows gave a generator")):
                with pytest.raises(engine.UsageError, match=what):
                    await db.run(wrong)  # type: ignore[arg-type]  # that is what is tried

    asyncio.run(story())


def test_waiting_for_ones_own_transaction_is_told_at_once(tmp_path: Path) -> None:
    says = r"ns:b'k' is locked by transaction mine, in whose `with` this is: a write outside it would wait for its end, in"
    with engine.open(tmp_path / "node", partitions=1) as db:
        ns = db.namespace("ns", codec="json")
        with db.transaction(label="mine") as tx:
            tx.namespace(ns).put("k", 1)
            for write in (lambda: ns.put("k", 2), lambda: ns.put_many({"a": 1, "k": 2}), lambda: ns.delete("k")):
                with pytest.raises(engine.UsageError, match=says):
                    write()
            with db.transaction(label="inner") as inner:
                with pytest.raises(engine.UsageError, match="by transaction mine, in whose `with` inner is: it would wait"):
                    inner.namespace(ns).get("k")
            ns["other"] = 1
            with db.transaction(concurrency="OPTIMISTIC") as inner:
                inner.namespace(ns).put("free", 1)
                ns["free"] = 2
                inner.rollback()
        ns["k"] = 3
        assert dict(ns) == {"free": 2, "k": 3, "other": 1}

    async def story() -> None:
        async with await aio.open(tmp_path / "node") as db:
            ns = db.namespace("ns", codec="json")
            async with db.transaction(label="mine") as tx:
                await tx.namespace(ns).put("k", 4)
                with pytest.raises(engine.UsageError, match=says):
                    await ns.put("k", 5)
                async with db.transaction(label="inner") as inner:
                    with pytest.raises(
                        engine.UsageError, match="by transaction mine, in whose `with` inner is: it would wait"
                    ):
                        await inner.namespace(ns).get("k")
                waits = asyncio.create_task(ns.put("k", 6))  # another task may wait: nobody waits for it
                await asyncio.sleep(0.01)
                assert not waits.done()
            await waits
            assert await ns.get("k") == 6

    asyncio.run(story())


def test_ones_own_transaction_whose_time_is_over_is_waited_for(tmp_path: Path) -> None:
    """What it holds is given back then: who waits for that does not wait for itself."""
    with engine.open(tmp_path / "node", partitions=1) as db:
        ns = db.namespace("ns", codec="json")
        timeout, held = 0.05, False
        while not held:
            timeout *= 2
            with pytest.raises(engine.TransactionTimeout), db.transaction(timeout=timeout) as late:
                try:
                    late.namespace(ns).put("k", 1)
                    held = True
                    while True:
                        late.namespace(ns).get("k")
                except engine.TransactionTimeout:
                    ns["k"] = 2
                    raise
        assert dict(ns) == {"k": 2}


def test_after_close_everything_says_so(tmp_path: Path) -> None:
    db = engine.open(tmp_path / "node", partitions=1)
    ns, tx = db.namespace("ns"), db.transaction()
    rows = ns.scan()
    inside = tx.namespace(ns)
    inside.put(b"a", b"1")
    db.close()
    db.close()
    for call in (
        lambda: ns.get(b"a"),
        lambda: ns.put(b"a", b""),
        lambda: list(rows),
        lambda: inside.get(b"b"),
        tx.commit,
        db.transaction,
        lambda: db.transaction_status(tx.id),
        lambda: db.run(lambda _: None),
        lambda: db.__enter__().namespace("ns").get(b"a"),
    ):
        with pytest.raises(engine.UsageError, match="the database was closed"):
            call()


def test_a_call_that_waits_ends_when_the_database_is_closed(tmp_path: Path) -> None:
    async def story() -> None:
        db = await aio.open(tmp_path / "node", partitions=1)
        ns = db.namespace("ns")
        async with db.transaction(timeout=PATIENCE_SECONDS) as holder:
            await holder.namespace(ns).put(b"a", b"1")
            other = db.transaction(lock_timeout=PATIENCE_SECONDS)
            waiting = asyncio.create_task(other.namespace(ns).get(b"a"))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            await db.close()
            with pytest.raises(engine.UsageError, match="the database was closed"):
                await waiting
            with pytest.raises(engine.UsageError, match="the database was closed"):
                db.transaction()
            await holder.rollback()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_what_belongs_to_its_process_is_neither_copied_nor_sent(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node") as db, db.transaction() as tx:
        names = db.namespace("names", codec="str")
        given = [db, names, tx, tx.namespace(names)]
        given += [db._native, names._native, tx._native]
        for one in given:
            for send in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(engine.UsageError, match=rf"a {type(one).__name__} belongs to its process"):
                    send(one)
    error = engine.Conflict("met", tx_id="t")
    assert pickle.loads(pickle.dumps(error)).tx_id == "t", "what is raised in a worker is told by it"


def test_a_directory_is_opened_once_and_settings_are_checked(tmp_path: Path) -> None:
    with (
        engine.open(tmp_path / "node", partitions=2),
        pytest.raises(engine.UsageError, match="is open in this process: use the database that it has"),
    ):
        engine.open(tmp_path / "node")
    for settings, says in (
        ({"partition": 2}, "unknown setting 'partition': did you mean 'partitions'"),
        ({"partitions": 3}, "partitions is 3: expected a power of two"),
        ({"partitions": "many"}, "partitions is 'many': Expected `int`"),
        ({"durability": "MAYBE"}, "durability is 'MAYBE': expected one of FSYNC, LOG_ONLY, BACKGROUND, NONE"),
        ({"durability": "fsync"}, "did you mean 'FSYNC'?"),
    ):
        with pytest.raises(engine.UsageError, match=says):
            engine.open(tmp_path / "other", **settings)


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        ("", "no address was given"),
        (" , ", "no address was given"),
        ([], "no address was given"),
        ("7401", "is not an address: expected host:port"),
        (["127.0.0.1:7401", "7402"], "7402.* is not an address: expected host:port"),
        ([7401], "an address is 7401: expected texts of the form host:port"),
        (b"127.0.0.1:7401", "expected addresses as str, or a list of them, found bytes"),
        (bytearray(b"127.0.0.1:7401"), "expected addresses as str, or a list of them, found bytearray"),
    ],
)
def test_an_address_has_a_form(addresses: Any, says: str) -> None:
    with pytest.raises(engine.UsageError, match=says):
        engine.connect(addresses)


def test_nobody_answers() -> None:
    with pytest.raises(engine.Unavailable, match=r"no node of a formed cluster answered within 0\.3 s \(127\.0\.0\.1:1: "):
        engine.connect(["127.0.0.1:1"], timeout=0.3)


# Functions that make a transaction, or join one.


@engine.transactional
def deposit(tx: engine.Transaction, name: str, amount: int) -> int:
    """What both of the following are made of."""
    inside = tx.namespace("accounts", codec="json")
    inside.put(name, inside.get(name, 0) + amount)
    left: int = inside.get(name, 0)
    if left < 0:
        raise OverdrawnError(name)
    return left


class OverdrawnError(Exception):
    """An application's error."""


@engine.transactional
def transfer(tx: engine.Transaction, source: str, target: str, amount: int) -> None:
    deposit(tx, target, amount)
    deposit(tx, source, -amount)


def test_a_transactional_function_begins_a_transaction_or_joins_one(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", partitions=4) as db:
        accounts = db.namespace("accounts", codec="json")
        assert deposit(db, "ann", amount=10) == 10
        transfer(db, "ann", "bob", 4)
        assert dict(accounts) == {"ann": 6, "bob": 4}
        with pytest.raises(OverdrawnError):
            transfer(db, "ann", "bob", 7)
        assert dict(accounts) == {"ann": 6, "bob": 4}, "the deposit that had joined is undone with the rest"
        with pytest.raises(OverdrawnError), db.transaction() as tx:
            deposit(tx, "cat", 1)
            transfer(tx, "ann", "bob", 7)
        assert "cat" not in accounts
        assert (deposit.__name__, deposit.__doc__) == ("deposit", "What both of the following are made of.")
        for wrong in (None, "db", accounts):
            with pytest.raises(engine.UsageError, match=r"expected a Database or a Transaction of engine\.api, found "):
                deposit(wrong, "ann", 1)  # type: ignore[arg-type]  # the mistake


def test_a_transactional_function_is_tried_again_ten_times_at_most(tmp_path: Path) -> None:
    tried: list[int] = []

    @engine.transactional
    def in_vain(tx: engine.Transaction) -> None:
        tried.append(1)
        raise engine.Conflict("once more")

    with engine.open(tmp_path / "node", partitions=1) as db:
        with pytest.raises(engine.Conflict):
            in_vain(db)
        assert len(tried) == 10
        tried.clear()
        with pytest.raises(engine.Conflict), db.transaction() as tx:
            in_vain(tx)
        assert len(tried) == 1, "whoever joined leaves trying again to who began"


def test_asynchronous_functions_are_transactional_too(tmp_path: Path) -> None:
    @engine.transactional
    async def add(tx: aio.Transaction, amount: int) -> int:
        inside = tx.namespace("n", codec="json")
        await inside.put("k", (await inside.get("k", 0)) + amount)
        found: int = await inside.get("k", 0)
        return found

    @engine.transactional
    async def twice(tx: aio.Transaction, amount: int) -> int:
        await add(tx, amount)
        found: int = await add(tx, amount)
        return found

    async def story() -> None:
        async with await aio.open(tmp_path / "node", partitions=1) as db:
            assert await add(db, 1) == 1
            assert await twice(db, 2) == 5
            async with db.transaction() as tx:
                assert await twice(tx, 1) == 7
                await tx.rollback()
            assert await db.namespace("n", codec="json").get("k") == 5
            with pytest.raises(engine.UsageError, match=r"expected a Database or a Transaction of engine\.aio, found str"):
                await add("db", 1)  # type: ignore[arg-type]  # the mistake

    asyncio.run(story())


def test_the_blocking_form_is_refused_on_the_databases_own_thread(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node", partitions=1) as db:

        async def wrong(tx: aio.Transaction) -> None:
            db.namespace("ns").get(b"a")

        with pytest.raises(engine.UsageError, match=r"on the database's own thread: use engine\.aio there"):
            db._loop.run(db._native.run(wrong))
