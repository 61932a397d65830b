"""Namespaces with settings of their own: what every form of the API promises of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

import engine


def named(db: engine.Database) -> dict[str, tuple[int, float | None]]:
    """What is there."""
    return {info.name: (info.rows, info.ttl) for info in db.namespaces()}


def test_a_namespace_is_listed_with_its_rows_and_its_settings(db: engine.Database, fresh: Callable[[], str]) -> None:
    before, written, created = named(db), fresh(), fresh()
    db.namespace(written).put_many({b"%d" % n: b"v" for n in range(5)})
    db.create_namespace(created, ttl=60)
    found = named(db)
    assert {name: found[name] for name in found if name not in before} == {written: (5, None), created: (0, 60.0)}


def test_its_ttl_is_for_what_is_put_without_one(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    db.create_namespace(name, ttl=60)
    db.create_namespace(name, ttl=60)  # it is so already
    sessions = db.namespace(name, codec="str")
    sessions.put("as-the-namespace-says", "v")
    sessions.put("shorter", "v", ttl=5)
    sessions.put("for-good", "v", ttl=math.inf)
    with db.transaction() as tx:
        tx.namespace(sessions).put("in-a-transaction", "v")
        tx.namespace(sessions).put("in-a-transaction-for-good", "v", ttl=math.inf)
    now, lasts = time.time(), [("as-the-namespace-says", 60), ("shorter", 5), ("in-a-transaction", 60)]
    for key, seconds in lasts:
        when = sessions.expires_at(key)
        assert when is not None
        assert when - now < seconds + 1
        assert when - now > seconds - 60
    assert sessions.expires_at("for-good") is None
    assert sessions.expires_at("in-a-transaction-for-good") is None
    assert sessions.persist("as-the-namespace-says")
    assert sessions.expires_at("as-the-namespace-says") is None
    db.create_namespace(name)
    sessions.put("as-it-says-now", "v")
    assert sessions.expires_at("as-it-says-now") is None


def test_a_dropped_namespace_is_gone_and_may_begin_anew(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    doomed = db.namespace(name, codec="str")
    doomed.put_many({f"k{n}": "v" for n in range(100)})
    db.create_namespace(name, ttl=60)
    with db.snapshot() as before:
        db.drop_namespace(name)
        assert before.namespace(doomed).get("k1") == "v", "a snapshot shows what was"
    assert name not in named(db)
    assert (doomed.count(), doomed.get("k1"), list(doomed.scan())) == (0, None, [])
    doomed.put("k1", "new")
    assert named(db)[name] == (1, None), "its settings went with it"
    assert list(doomed.scan()) == [("k1", "new")]
    db.drop_namespace(name)
    with pytest.raises(engine.UsageError, match=f"there is no namespace '{name}'"):
        db.drop_namespace(name)


def test_what_is_no_namespace_is_refused(db: engine.Database, fresh: Callable[[], str]) -> None:
    there = fresh()
    db.namespace(there).put(b"k", b"v")
    with pytest.raises(engine.UsageError, match=f"there is no namespace 'elsewhere' to be dropped: there are .*{there}"):
        db.drop_namespace("elsewhere")
    for bad in ("~tx", "", "a b", 7):
        with pytest.raises(engine.UsageError):
            db.create_namespace(bad)  # type: ignore[arg-type]
        with pytest.raises(engine.UsageError):
            db.drop_namespace(bad)  # type: ignore[arg-type]
    for ttl in (0, -1, "1", True, math.nan):
        with pytest.raises(engine.UsageError, match="ttl"):
            db.create_namespace(there, ttl=ttl)  # type: ignore[arg-type]


def test_a_namespace_has_as_many_copies_as_it_was_created_with(db: engine.Database, fresh: Callable[[], str]) -> None:
    lonely, usual = fresh(), fresh()
    db.create_namespace(lonely, backups=1, loss_policy="READ_ONLY_SAFE")
    db.create_namespace(lonely, backups=1)  # it is so already
    one, other = db.namespace(lonely, codec="str", backups=1), db.namespace(usual, codec="str")
    one.put_many({f"k{n}": "v" for n in range(50)})
    other.put("k1", "w")
    with db.transaction() as tx:
        assert tx.namespace(one).get("k1") == "v"
        tx.namespace(one).put("k1", "x")
        tx.namespace(other).put("k1", "y")
    assert (one.get("k1"), other.get("k1")) == ("x", "y")
    assert (one.count(), len(list(one.scan())), one.get("k2", stale=True)) == (50, 50, "v")
    with db.snapshot() as past:
        one.put("k1", "z")
        assert past.namespace(one).get("k1") == "x"
        assert past.namespace(one).count() == 50
    found = {info.name: info for info in db.namespaces()}
    assert (found[lonely].backups, found[lonely].loss_policy, found[lonely].rows) == (1, "READ_ONLY_SAFE", 50)
    assert found[usual].loss_policy == "READ_WRITE_SAFE"


def test_the_copies_of_what_was_written_cannot_be_changed(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    ns = db.namespace(name, codec="str")
    ns.put("k", "v")
    with pytest.raises(engine.UsageError, match=rf"'{name}' was written, .*expected the backups that it has"):
        db.create_namespace(name, backups=1)
    assert ns.get("k") == "v", "it goes on as it was"
    db.create_namespace(name, ttl=60)
    with db.snapshot() as before:
        db.drop_namespace(name)
        db.create_namespace(name, backups=1)
        ns.put("l", "w")
        with pytest.raises(engine.Error, match="was created anew since this snapshot"):
            before.namespace(ns).get("k")
    assert list(ns.scan()) == [("l", "w")]
    with pytest.raises(engine.UsageError, match="has 1: expected that"):
        db.namespace(name, backups=2)
    for backups in (-1, 7, True, "1", 1.0):
        with pytest.raises(engine.UsageError, match=r"backups is .*: expected 0 to 6"):
            db.create_namespace(fresh(), backups=backups)  # type: ignore[arg-type]
    with pytest.raises(engine.UsageError, match="loss_policy is 'IGNORE': expected READ_WRITE_SAFE or READ_ONLY_SAFE"):
        db.create_namespace(fresh(), loss_policy="IGNORE")  # type: ignore[arg-type]
