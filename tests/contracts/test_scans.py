"""Scans in reverse, scans that lock, and those that do not wait for locks, behind every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import engine

Bytes = engine.Namespace[bytes, bytes]
ROWS = {b"k%04d" % number: b"v%d" % number for number in range(2_600)}
"""More than two pages."""


@pytest.fixture(scope="module")
def filled(db: engine.Database) -> Bytes:
    """A namespace with all rows, which nobody changes."""
    ns = db.namespace("scans-filled")
    ns.put_many(ROWS)
    return ns


@pytest.mark.parametrize(
    ("named", "keys"),
    [
        ({}, list(ROWS)),
        ({"limit": 3}, [b"k2597", b"k2598", b"k2599"]),
        ({"prefix": b"k12", "limit": 2}, [b"k1298", b"k1299"]),
        ({"start": b"k2000", "end": b"k2003"}, [b"k2000", b"k2001", b"k2002"]),
        ({"start": b"k2000", "end": b"k2000"}, []),
        ({"start": b"k2598"}, [b"k2598", b"k2599"]),
        ({"end": b"k0001"}, [b"k0000"]),
        ({"end": b"k1500", "limit": 1_200}, list(ROWS)[300:1_500]),
        ({"limit": 0}, []),
        ({"prefix": b"nothing"}, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["outside", "stale", "transaction", "snapshot"])
def test_a_scan_in_reverse_gives_the_last_rows_first(
    db: engine.Database, filled: Bytes, where: str, named: dict[str, Any], keys: list[bytes]
) -> None:
    if where == "transaction" and len(keys) > 10:
        return  # it would lock them all
    wanted = [(key, ROWS[key]) for key in reversed(keys)]
    if where == "transaction":
        with db.transaction() as tx:
            assert list(tx.namespace(filled).scan(reverse=True, **named)) == wanted
    elif where == "snapshot":
        with db.snapshot() as snapshot:
            assert list(snapshot.namespace(filled).scan(reverse=True, **named)) == wanted
    else:
        assert list(filled.scan(reverse=True, stale=where == "stale", **named)) == wanted


def test_a_transaction_sees_its_own_writes_in_reverse(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"b": b"1", b"d": b"1", b"f": b"1"})
    with db.transaction(isolation="SERIALIZABLE") as tx:
        inside = tx.namespace(ns)
        inside.put_many({b"a": b"2", b"e": b"2", b"g": b"2"})
        inside.delete(b"f")
        assert list(inside.scan(reverse=True)) == [(b"g", b"2"), (b"e", b"2"), (b"d", b"1"), (b"b", b"1"), (b"a", b"2")]
        assert list(inside.scan(reverse=True, limit=3)) == [(b"g", b"2"), (b"e", b"2"), (b"d", b"1")]
        assert list(inside.scan(start=b"b", end=b"e", reverse=True)) == [(b"d", b"1"), (b"b", b"1")]


def test_a_serializable_scan_in_reverse_is_protected_where_it_looked(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"a": b"1", b"m": b"1", b"x": b"1", b"y": b"1"})

    def last_two(tx: Any, meanwhile: bytes) -> list[bytes]:
        inside = tx.namespace(ns)
        found = [key for key, _ in inside.scan(reverse=True, limit=2)]
        ns.put(meanwhile, b"new")
        inside.put(b"{own}", b"1")
        return found

    with db.transaction(concurrency="OPTIMISTIC", isolation="SERIALIZABLE") as tx:
        assert last_two(tx, b"b") == [b"y", b"x"]  # below what it looked at
    ns.delete(b"{own}")
    with pytest.raises(engine.Conflict), db.transaction(concurrency="OPTIMISTIC", isolation="SERIALIZABLE") as tx:
        last_two(tx, b"xx")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_claim_in_reverse_takes_what_nobody_has(db: engine.Database, ns: Bytes, reverse: bool) -> None:
    ns.put_many({b"%d" % number: b"job" for number in range(6)})
    with db.transaction() as one, db.transaction() as other:
        mine = list(one.namespace(ns).scan(limit=2, skip_locked=True, reverse=reverse))
        theirs = list(other.namespace(ns).scan(limit=4, skip_locked=True, reverse=reverse))
        assert mine == sorted(mine, reverse=reverse)
        assert [key for key, _ in mine] == ([b"5", b"4"] if reverse else [b"0", b"1"])
        assert sorted(key for key, _ in (*mine, *theirs)) == sorted(b"%d" % number for number in range(6))


def test_rows_that_are_scanned_for_update_are_locked_for_it(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    with db.transaction() as holder:
        assert list(holder.namespace(ns).scan(limit=1, for_update=True)) == [(b"a", b"1")]
        with db.transaction() as other:
            inside = other.namespace(ns)
            with pytest.raises(engine.LockTimeout):
                inside.get(b"a", nowait=True)
            with pytest.raises(engine.LockTimeout):
                list(inside.scan(nowait=True))
            assert list(inside.scan(start=b"b", nowait=True, for_update=True)) == [(b"b", b"1")]
    with db.transaction() as reader, db.transaction() as other:
        assert list(reader.namespace(ns).scan()) == [(b"a", b"1"), (b"b", b"1")]
        assert other.namespace(ns).get(b"a", nowait=True) == b"1", "to read it, both may"
        with pytest.raises(engine.LockTimeout):
            list(other.namespace(ns).scan(for_update=True, nowait=True))


Given = Callable[[Any], object]


@pytest.mark.parametrize(
    "call",
    [
        lambda inside: list(inside.scan(nowait=True, skip_locked=True)),
        lambda inside: list(inside.scan(nowait="yes")),
        lambda inside: list(inside.scan(reverse=1)),
        lambda inside: list(inside.scan(for_update=None)),
        lambda inside: inside.get(b"k", nowait=1),
    ],
)
def test_what_cannot_be_meant_is_refused(db: engine.Database, ns: Bytes, call: Given) -> None:
    with db.transaction() as tx, pytest.raises(engine.UsageError):
        call(tx.namespace(ns))


def test_an_optimistic_scan_has_no_locks_to_wait_for(db: engine.Database, ns: Bytes) -> None:
    ns.put(b"k", b"v")
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        assert list(tx.namespace(ns).scan(for_update=True)) == [(b"k", b"v")]
        with pytest.raises(engine.UsageError, match="locks nothing"):
            list(tx.namespace(ns).scan(nowait=True))


def test_a_dict_is_walked_backwards(db: engine.Database, ns: Bytes) -> None:
    if type(db) is not engine.Database:
        return
    ns.put_many({b"a": b"1", b"b": b"2"})
    views: list[Any] = [ns, ns.values(), ns.items()]
    assert [list(reversed(view)) for view in views] == [[b"b", b"a"], [b"2", b"1"], [(b"b", b"2"), (b"a", b"1")]]
