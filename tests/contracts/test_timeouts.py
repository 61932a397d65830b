"""What a call's own patience and a reader's own standards are, behind each door."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest

import engine
from tests.support.patience import PATIENCE_SECONDS

Namespace = engine.Namespace[bytes, bytes]


def test_every_call_takes_a_timeout_of_its_own(ns: Namespace) -> None:
    ns.put(b"k", b"v", timeout=PATIENCE_SECONDS)
    ns.put_many({b"a": b"1", b"b": b"2"}, timeout=PATIENCE_SECONDS)
    assert ns.get(b"k", timeout=PATIENCE_SECONDS) == b"v"
    assert ns.get_many([b"a", b"none"], timeout=PATIENCE_SECONDS) == {b"a": b"1"}
    assert ns.put_if_absent(b"k", b"w", timeout=PATIENCE_SECONDS) is False
    assert ns.replace(b"k", b"v", b"w", timeout=PATIENCE_SECONDS)
    assert ns.pop(b"k", timeout=PATIENCE_SECONDS) == b"w"
    assert ns.delete(b"k", timeout=PATIENCE_SECONDS) is False
    ns.delete_many([b"b"], timeout=PATIENCE_SECONDS)
    assert list(ns.scan(timeout=PATIENCE_SECONDS)) == [(b"a", b"1")]


CALLS: list[Callable[[Namespace, float], object]] = [
    lambda ns, seconds: ns.put(b"k", b"2", timeout=seconds),
    lambda ns, seconds: ns.put_many({b"k": b"2"}, timeout=seconds),
    lambda ns, seconds: ns.delete(b"k", timeout=seconds),
    lambda ns, seconds: ns.replace(b"k", b"1", b"2", timeout=seconds),
]


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_a_write_that_must_wait_longer_says_so(db: engine.Database, ns: Namespace, call: int) -> None:
    ns.put(b"k", b"1")
    with db.transaction() as tx:
        inside = tx.namespace(ns)
        assert inside.get(b"k") == b"1"
    tx = db.transaction()  # its locks stay: it is entered by nobody
    try:
        assert tx.namespace(ns).get(b"k") == b"1"
        with pytest.raises((engine.CommitUnknown, engine.LockTimeout)):
            CALLS[call](ns, 0.05)
    finally:
        tx.rollback()


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, "1", True])
def test_a_timeout_is_a_number_of_seconds(db: engine.Database, ns: Namespace, seconds: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ns.get(b"k", timeout=seconds),
        lambda: ns.put(b"k", b"v", timeout=seconds),
        lambda: ns.put_many({b"k": b"v"}, timeout=seconds),
        lambda: ns.pop(b"k", timeout=seconds),
        lambda: list(ns.scan(timeout=seconds)),
        lambda: db.transaction(timeout=seconds),
        lambda: engine.connect("127.0.0.1:1", timeout=seconds),
    ]
    for call in calls:
        with pytest.raises(engine.UsageError, match=r"timeout is .*: expected a number of seconds above 0"):
            call()


@pytest.mark.parametrize("seconds", [3601.0, 1e9, 1e300, sys.float_info.max, 10**400])
def test_as_long_as_one_likes_may_be_waited(db: engine.Database, ns: Namespace, seconds: float) -> None:
    ns.put(b"k", b"v", timeout=seconds)
    ns.put_many({b"k": b"v"}, timeout=seconds)
    assert ns.get(b"k", timeout=seconds) == b"v"
    with db.transaction(timeout=seconds, lock_timeout=seconds) as tx:
        assert tx.namespace(ns).get_for_update(b"k") == b"v"
        tx.namespace(ns).put(b"k", b"w")
    assert list(ns.scan(timeout=seconds)) == [(b"k", b"w")]
    assert db.transaction_status(tx.id, timeout=seconds) == "committed"


def test_a_stale_read_says_how_old_it_is(ns: Namespace) -> None:
    ns.put(b"k", b"v")
    fresh = ns.get_aged(b"k", max_age=30)
    assert fresh.value == b"v"
    assert fresh.age is not None
    assert 0 <= fresh.age <= 30
    assert ns.get(b"k", stale=True) in {b"v", None}
    assert ns.get(b"k", max_age=0) == b"v"
    assert ns.get_many([b"k", b"none"], max_age=0) == {b"k": b"v"}
    assert dict(ns.scan(max_age=0)) == {b"k": b"v"}
    assert dict(ns.scan(stale=True, limit=1)) in ({}, {b"k": b"v"})
    missing = ns.get_aged(b"none", max_age=30)
    assert missing.value is None


@pytest.mark.parametrize("seconds", [-1, 3601, math.nan, "1", True])
def test_an_age_is_a_number_of_seconds(ns: Namespace, seconds: float) -> None:
    for call in (
        lambda: ns.get(b"k", max_age=seconds),
        lambda: ns.get_aged(b"k", max_age=seconds),
        lambda: list(ns.scan(max_age=seconds)),
    ):
        with pytest.raises(engine.UsageError, match=r"max_age is .*: expected a number of seconds from 0 to 3600"):
            call()
