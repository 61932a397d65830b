"""What `db.run` writes, and has not read to write it, its commit locks: who sees what meanwhile, and who gives way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import engine
from engine import aio
from engine.client.calls import LockCall
from engine.protocol.requests import Request
from tests.support.patience import PATIENCE_SECONDS

Name = Callable[[], str]
LEVELS: tuple[aio.Level, ...] = ("READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE")


def test_what_is_only_written_is_locked_by_the_commit_and_what_is_read_at_once(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put_many({b"read": b"1", b"written": b"1"})
    refused: list[bytes] = []

    def work(tx: engine.Transaction) -> bytes | None:
        inside = tx.namespace(ns)
        inside.put(b"written", inside.get_for_update(b"read", b""))
        inside.put(b"read", b"2")
        with db.transaction(lock_timeout=0.2) as other:
            assert other.namespace(ns).get_for_update(b"written", nowait=True) == b"1", "nobody has it"
            try:
                other.namespace(ns).get_for_update(b"read", nowait=True)
            except engine.LockTimeout:
                refused.append(b"read")
        return inside.get(b"written")

    assert db.run(work) == b"1"
    assert refused == [b"read"]
    assert dict(ns.scan()) == {b"read": b"2", b"written": b"1"}


def test_what_another_one_has_is_waited_for_by_the_next_attempt(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    holder = db.transaction()
    holder.namespace(ns).put(b"k", b"first")
    attempts: list[str] = []
    second = threading.Event()

    def work(tx: engine.Transaction) -> None:
        attempts.append(tx.id)
        if len(attempts) > 1:
            second.set()
        tx.namespace(ns).put(b"k", b"second")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(db.run, work, lock_timeout=PATIENCE_SECONDS, timeout=2 * PATIENCE_SECONDS)
        assert second.wait(PATIENCE_SECONDS), "the commit of the first one was refused"
        assert not running.done()
        holder.commit()
        running.result()
    assert len(attempts) == 2, "and the second one had its lock before it went on"
    assert ns.get(b"k") == b"second"


def test_who_has_one_attempt_waits_at_once(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    holder = db.transaction()
    holder.namespace(ns).put(b"k", b"first")
    with pytest.raises(engine.LockTimeout):
        db.run(lambda tx: tx.namespace(ns).put(b"k", b"second"), attempts=1, lock_timeout=0.1)
    holder.commit()
    assert ns.get(b"k") == b"first"


def test_rows_that_its_scan_read_are_written_by_the_commit_alone(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, as rows are deleted, each would ask its node to write what is locked to be read."""
    ns.put_many({b"%02d" % number: b"1" for number in range(30)})
    asked: list[int] = []
    request = LockCall.request

    def ask(call: LockCall, request_id: int, items: list[int]) -> Request:
        asked.append(len(items))
        return request(call, request_id, items)

    monkeypatch.setattr(LockCall, "request", ask)

    def work(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        for key, value in list(inside.scan()):
            if key < b"10":
                inside.delete(key)
            else:
                inside.put(key, value + inside.get(key, b""))
        assert inside.get_many([b"00", b"10"]) == {b"10": b"11"}

    db.run(work, attempts=3)
    assert sum(asked) == 30, "each key is locked once, to be read"
    assert dict(ns.scan()) == {b"%02d" % number: b"11" for number in range(10, 30)}


@pytest.mark.parametrize("level", LEVELS[1:])
def test_two_who_read_and_then_write_lose_nothing_of_each_other(db: engine.Database, fresh: Name, level: aio.Level) -> None:
    """Both read before either commits: one is refused, and does it again, then before all others."""
    ns = db.namespace(fresh(), codec=int)
    both = threading.Barrier(2)
    attempts: list[int] = []

    def work(tx: engine.Transaction, number: int) -> None:
        inside = tx.namespace(ns)
        count = inside.get("count", 0)
        attempts.append(number)
        if attempts.count(number) == 1:
            both.wait(PATIENCE_SECONDS)
        inside.put("count", count + 1)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(lambda n: db.run(lambda tx: work(tx, n), isolation=level), n) for n in (1, 2)]:
            done.result()
    assert ns.get("count") == 2
    assert len(attempts) <= 4, "who was refused has what it wants to write from its beginning on"


def test_its_own_writes_are_there_and_cost_no_lock(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"a": b"1", b"b": b"2"})

    def work(tx: engine.Transaction) -> list[object]:
        inside = tx.namespace(ns)
        inside.put(b"a", b"10")
        inside.delete(b"b")
        inside.put(b"c", b"30")
        found: list[object] = [inside.get(b"a"), inside.get_for_update(b"b"), inside.get_many([b"a", b"b", b"c"])]
        found += [inside.get_and_put(b"c", b"31"), inside.put_if_absent(b"b", b"20"), list(inside.scan())]
        with db.transaction() as other:
            other.namespace(ns).get_many([b"a", b"b", b"c"], nowait=True)
        return found

    rows = [(b"a", b"10"), (b"b", b"20"), (b"c", b"31")]
    assert db.run(work)[:5] == [b"10", None, {b"a": b"10", b"c": b"30"}, b"30", True]
    assert list(ns.scan()) == rows


@pytest.mark.parametrize("level", LEVELS)
def test_what_rests_on_what_was_read_is_as_it_was(db: engine.Database, fresh: Name, level: aio.Level) -> None:
    """One key is read and written, and what follows from it only written: nobody's comes in between."""
    ns = db.namespace(fresh(), codec=int)

    def work(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        count = inside.get_for_update("count", 0) + 1
        inside.put("double", 2 * count)
        inside.put(f"of {count}", count)
        inside.put("count", count)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(lambda: db.run(work, attempts=1_000, isolation=level)) for _ in range(40)]:
            done.result()
    rows = dict(ns.scan())
    assert (rows.pop("count"), rows.pop("double")) == (40, 80)
    assert rows == {f"of {count}": count for count in range(1, 41)}


def test_many_who_write_the_same_keys_all_come_to_their_end(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec=int)
    keys = [f"k{number}" for number in range(8)]

    def work(tx: engine.Transaction, number: int) -> None:
        for key in keys if number % 2 else reversed(keys):
            tx.namespace(ns).put(key, number)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(lambda n: db.run(lambda tx: work(tx, n), attempts=1_000), n) for n in range(24)]:
            done.result()
    values = set(dict(ns.scan()).values())
    assert len(values) == 1, "each has written all or nothing"


def test_a_read_whose_lock_was_lost_is_seen_by_the_commit(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    """What was read under a lock is told to the commit with its version: it need not trust the lock."""
    ns.put(b"read", b"1")
    seen: list[bytes | None] = []

    def work(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        seen.append(inside.get(b"read"))
        inside.put(b"written", seen[-1] or b"")
        if len(seen) == 1:
            with ThreadPoolExecutor(1) as beside:
                beside.submit(change, tx).result()

    def change(tx: Any) -> None:
        db._loop.run(tx._native._raw._release())  # as by an operator, who gave up what it holds
        ns.put(b"read", b"2")

    db.run(work)
    assert seen == [b"1", b"2"]
    assert ns.get(b"written") == b"2"
