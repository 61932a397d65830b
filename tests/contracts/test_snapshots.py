"""Snapshots behind every door: one state of everything, for as long as it is open, beside whoever writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.support.patience import PATIENCE_SECONDS

Name = Callable[[], str]
Bytes = engine.Namespace[bytes, bytes]
ACCOUNTS = [f"a{number}" for number in range(12)]
BALANCE = 100
TRANSFERS = 40


def test_money_that_moves_is_all_there_in_each_snapshot(db: engine.Database, fresh: Name) -> None:
    accounts = db.namespace(fresh(), codec="json")
    savings = db.namespace(fresh(), codec="json")
    accounts.put_many(dict.fromkeys(ACCOUNTS, BALANCE))
    savings.put_many(dict.fromkeys(ACCOUNTS, BALANCE))
    done = threading.Event()
    failures: list[BaseException] = []

    def move(number: int) -> None:
        def transfer(tx: Any) -> None:
            source, target = tx.namespace(accounts), tx.namespace(savings)
            one, other = ACCOUNTS[number % len(ACCOUNTS)], ACCOUNTS[(number * 5 + 3) % len(ACCOUNTS)]
            source.put(one, source.get_for_update(one) - 1)
            target.put(other, target.get_for_update(other) + 1)

        db.run(transfer)

    def writer() -> None:
        try:
            for number in range(TRANSFERS):
                move(number)
        except BaseException as error:  # told below
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=writer)
    thread.start()
    totals, taken = [], 0
    while not done.is_set() or not taken:
        with db.snapshot() as snapshot:
            found = [dict(snapshot.namespace(each).scan()) for each in (accounts, savings)]
            again = [snapshot.namespace(each).get_many(ACCOUNTS) for each in (accounts, savings)]
            assert found == again
        totals.append(sum(sum(each.values()) for each in found))
        taken += 1
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not failures
    assert totals == [2 * len(ACCOUNTS) * BALANCE] * taken
    with db.snapshot() as snapshot:
        assert sum(dict(snapshot.namespace(savings).scan()).values()) == len(ACCOUNTS) * BALANCE + TRANSFERS


def test_it_stays_as_it_was(db: engine.Database, ns: Bytes) -> None:
    rows = {b"k%02d" % number: b"v%d" % number for number in range(40)}
    ns.put_many(rows)
    with db.snapshot() as snapshot:
        past = snapshot.namespace(ns)
        ns.put_many(dict.fromkeys(list(rows)[::2], b"new"))
        ns.delete_many(list(rows)[::3])
        ns.put(b"k00a", b"came later")
        with db.snapshot() as later:
            ns.delete_many(rows)
            ns.put_many(dict.fromkeys(list(rows)[::4], b"newest"))
            assert list(past.scan()) == list(rows.items())
            assert list(past.scan(prefix=b"k1")) == [(k, v) for k, v in rows.items() if k.startswith(b"k1")]
            assert list(past.scan(start=b"k05", end=b"k08", limit=2)) == list(rows.items())[5:7]
            assert past.get(b"k00") == b"v0"
            assert past.get(b"k00a") is None
            assert past.get(b"k00a", b"nothing") == b"nothing"
            assert past.get_many([b"k02", b"k00a", b"k03"]) == {b"k02": b"v2", b"k03": b"v3"}
            between = dict(later.namespace(ns.name).scan())
            assert len(between) == 40 - 14 + 1
            assert between[b"k00a"] == b"came later"
            assert between[b"k02"] == b"new"
        assert list(past.scan()) == list(rows.items())
    assert dict(ns.scan()) == dict.fromkeys(list(rows)[::4], b"newest") | {b"k00a": b"came later"}


def test_what_is_acknowledged_is_in_the_next_snapshot_and_not_in_the_last(db: engine.Database, ns: Bytes) -> None:
    for number in range(10):
        with db.snapshot() as snapshot:
            ns.put(b"number", b"%d" % number)
            ns.put(b"again", b"%d" % number)
            past = snapshot.namespace(ns).get_many([b"number", b"again"])
            assert past == ({b"number": b"%d" % (number - 1), b"again": b"%d" % (number - 1)} if number else {})


def test_more_rows_than_a_page_has(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"%05d" % number: b"then" for number in range(3_500)})
    with db.snapshot() as snapshot:
        rows = iter(snapshot.namespace(ns).scan())
        first = next(rows)
        ns.put_many({b"%05d" % number: b"now" for number in range(0, 3_500, 7)})
        assert [first, *rows] == [(b"%05d" % number, b"then") for number in range(3_500)]


def test_its_codec_is_the_namespace_s(db: engine.Database, fresh: Name) -> None:
    texts = db.namespace(fresh(), codec="json")
    texts.put("a", {"b": [1]})
    with db.snapshot() as snapshot:
        assert snapshot.namespace(texts).get("a") == {"b": [1]}
        assert snapshot.namespace(texts.name, codec="json").get("a") == {"b": [1]}
        with pytest.raises(engine.UsageError, match="kept in 'json'"):
            snapshot.namespace(texts.name, codec="str").get("a")
        with pytest.raises(engine.UsageError, match="has its codec"):
            snapshot.namespace(texts, codec="str")  # type: ignore[call-overload]  # what is refused
        with pytest.raises(engine.UsageError, match="namespace"):
            snapshot.namespace("no name")


def test_it_is_read_inside_its_with(db: engine.Database, ns: Bytes) -> None:
    ns.put(b"a", b"1")
    snapshot = db.snapshot()
    with pytest.raises(engine.UsageError, match="not begun"):
        snapshot.namespace(ns).get(b"a")
    with snapshot:
        past = snapshot.namespace(ns)
        assert past.get(b"a") == b"1"
    with pytest.raises(engine.UsageError, match="over"):
        past.get(b"a")
    with pytest.raises(engine.UsageError, match="over"):
        list(past.scan())
    with pytest.raises(engine.UsageError, match="begin another one"):
        snapshot.__enter__()


def test_a_function_is_run_on_a_snapshot(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"a": b"1", b"b": b"2"})
    assert db.read(lambda snapshot: list(snapshot.namespace(ns).scan())) == [(b"a", b"1"), (b"b", b"2")]
    tried: list[object] = []

    def lost(snapshot: object) -> None:
        tried.append(snapshot)
        raise engine.SnapshotLost("as if a node had failed")

    with pytest.raises(engine.SnapshotLost):
        db.read(lost, attempts=3)
    assert len(tried) == 3


def test_a_snapshot_of_a_dict_is_one(tmp_path: Path) -> None:
    with engine.open(tmp_path) as db:
        ns = db.namespace("names", codec="str")
        ns.update({"a": "1", "b": "2"})
        with db.snapshot() as snapshot:
            past = snapshot.namespace(ns)
            ns.clear()
            assert len(past) == 2
            assert dict(past) == {"a": "1", "b": "2"} == dict(past.items())
            assert list(past.values()) == ["1", "2"]
            assert "a" in past
            assert "c" not in past
            assert past["b"] == "2"
            with pytest.raises(KeyError):
                past["c"]
            assert not hasattr(past, "put")


def test_more_is_overwritten_than_is_kept(tmp_path: Path) -> None:
    with engine.open(tmp_path, cut_bytes_max=10_000) as db:
        ns = db.namespace("values")
        keys = [b"%d" % number for number in range(20)]
        ns.put_many(dict.fromkeys(keys, bytes(1_000)))
        with db.snapshot() as snapshot:
            past = snapshot.namespace(ns)
            ns.put_many(dict.fromkeys(keys[:5], b""))
            assert past.get(keys[0]) == bytes(1_000)
            ns.put_many(dict.fromkeys(keys, b""))
            with pytest.raises(engine.SnapshotTooOld, match="cut_bytes_max") as raised:
                past.get(keys[0])
            assert raised.value.retryable
        assert db.read(lambda snapshot: snapshot.namespace("values").get(keys[0])) == b""
