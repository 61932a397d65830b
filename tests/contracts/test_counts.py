"""`len` and `bool` behind every door: what a scan would find, without one."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import engine
from tests.support.patience import PATIENCE_SECONDS

Bytes = engine.Namespace[bytes, bytes]


def test_a_namespace_knows_how_many_keys_it_has(db: engine.Database, ns: Bytes) -> None:
    assert ns.count() == 0
    ns.put_many({b"k%03d" % number: b"v" for number in range(100)})
    assert ns.count() == 100
    ns.put(b"k000", b"another value")
    ns.delete_many([b"k001", b"k002", b"was never there"])
    assert ns.count() == 98
    ns.put(b"k001", b"again")
    assert ns.count() == ns.count(stale=True) == ns.count(max_age=1.0) == len(list(ns.scan())) == 99

    def change(tx: Any) -> None:
        inside = tx.namespace(ns)
        inside.put(b"new", b"v")
        inside.put(b"k003", b"v")
        inside.delete(b"k004")
        inside.delete(b"k005")

    db.run(change)
    assert ns.count() == len(list(ns.scan())) == 98


def test_a_dict_says_its_length_and_whether_it_has_any(db: engine.Database, ns: Bytes) -> None:
    if type(db) is not engine.Database:
        return  # `len` cannot be awaited: there is `count`
    assert (len(ns), bool(ns), len(ns.items())) == (0, False, 0)
    ns[b"k"] = b""
    assert (len(ns), bool(ns), len(ns.items())) == (1, True, 1)
    with db.snapshot() as snapshot:
        past = snapshot.namespace(ns)
        del ns[b"k"]
        assert (len(ns), bool(ns), len(past), bool(past)) == (0, False, 1, True)


def test_a_snapshot_counts_what_there_was(db: engine.Database, ns: Bytes) -> None:
    rows = {b"k%04d" % number: b"v" for number in range(3_000)}
    ns.put_many(rows)
    with db.snapshot() as snapshot:
        past = snapshot.namespace(ns)
        ns.delete_many(list(rows)[:10])
        ns.put_many({b"later": b"v", b"k0001": b"again", b"k2000": b"another"})
        assert (past.count(), ns.count()) == (3_000, 2_992)
        with db.snapshot() as later:
            ns.delete_many(rows)  # more than is reckoned back: it is walked
            assert (past.count(), later.namespace(ns).count(), ns.count()) == (3_000, 2_992, 1)
            assert len(list(past.scan())) == 3_000
        assert past.count() == 3_000


def test_what_is_counted_at_one_moment_is_right_beside_whoever_writes(db: engine.Database, ns: Bytes) -> None:
    """Each transaction moves a row from one name to another: at each cut there are as many."""
    ns.put_many({b"a%d" % number: b"v" for number in range(8)})
    done, failures = threading.Event(), list[BaseException]()

    def mover() -> None:
        def move(tx: Any, one: bytes, other: bytes) -> None:
            inside = tx.namespace(ns)
            inside.delete(one)
            inside.put(other, b"v")

        try:
            for number in range(40):
                names = (b"a%d" % (number % 8), b"b%d" % (number % 8))
                one, other = names if number // 8 % 2 == 0 else reversed(names)
                db.run(partial(move, one=one, other=other))
        except BaseException as error:  # told below
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=mover)
    thread.start()
    counted: list[int] = []
    while not done.is_set() or not counted:
        with db.snapshot() as snapshot:
            counted.append(snapshot.namespace(ns).count())
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not failures
    assert set(counted) == {8}
    assert ns.count() == 8


def test_a_count_beside_whoever_writes_new_keys_is_of_a_moment_in_between(db: engine.Database, ns: Bytes) -> None:
    """No fewer than were acknowledged when it was asked for, and no more than were sent when it was answered."""
    done, failures = threading.Event(), list[BaseException]()
    sent, acknowledged = [0, 0], [0, 0]

    def writer(me: int) -> None:
        try:
            while not done.is_set():
                rows = {b"%d-%d" % (me, sent[me] + number): b"v" for number in range(500)}
                sent[me] += len(rows)
                ns.put_many(rows)
                acknowledged[me] += len(rows)
        except BaseException as error:  # told below
            failures.append(error)

    threads = [threading.Thread(target=writer, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            before = sum(acknowledged)
            assert before <= ns.count() <= sum(sent)
    finally:
        done.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert not failures
    assert ns.count() == sum(acknowledged)
