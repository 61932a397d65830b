"""Namespaces with settings of their own: what every form of the API promises of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

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


def test_who_has_locked_something_of_a_namespace_is_not_left_waiting_for_himself_by_dropping_it(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node") as db:
        ns = db.namespace("ours")
        ns[b"k"] = b"v"
        with db.transaction() as tx:
            tx.namespace(ns).get(b"k")
            with pytest.raises(engine.UsageError, match="in whose `with` this is: to drop the namespace is to wait"):
                db.drop_namespace("ours")
        assert dict(ns) == {b"k": b"v"}
        db.drop_namespace("ours")
        assert not ns


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


def copies(db: engine.Database, name: str) -> tuple[int, int]:
    """How many backups a namespace has, and how many asynchronous ones."""
    (found,) = [info for info in db.namespaces() if info.name == name]
    return found.backups, found.async_backups


def test_a_namespace_may_have_asynchronous_copies(db: engine.Database, fresh: Callable[[], str]) -> None:
    far, usual, both = fresh(), fresh(), fresh()
    db.create_namespace(far, backups=1, async_backups=1)
    db.create_namespace(far, backups=1, async_backups=1)  # it is so already
    one, other = db.namespace(far, codec="str", backups=1), db.namespace(usual, codec="str")
    one.put_many({f"k{n}": "v" for n in range(20)})
    other.put("k1", "w")
    with db.transaction() as tx:
        tx.namespace(one).put("k1", tx.namespace(other).get("k1") or "")
    assert (one.get("k1"), one.count(), one.get("k2")) == ("w", 20, "v")
    db.create_namespace(far, ttl=60)
    db.create_namespace(both, async_backups=2)
    assert (copies(db, far), copies(db, both)) == ((1, 1), (copies(db, usual)[0], 2))


def test_asynchronous_copies_of_what_was_written_cannot_be_changed(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    ns = db.namespace(name, codec="str")
    ns.put("k", "v")
    with pytest.raises(engine.UsageError, match=rf"'{name}' was written, .*expected the backups that it has"):
        db.create_namespace(name, async_backups=1)
    assert ns.get("k") == "v", "it goes on as it was"
    db.drop_namespace(name)
    db.create_namespace(name, backups=2, async_backups=1)
    ns.put("l", "w")
    with pytest.raises(
        engine.UsageError, match=r"with 2 backups and 1 asynchronous ones .*expected the backups that it has"
    ):
        db.create_namespace(name, backups=2)
    db.create_namespace(name, backups=2, async_backups=1, ttl=60)
    assert (copies(db, name), list(ns.scan())) == ((2, 1), [("l", "w")])


def test_six_backups_of_both_kinds_are_the_most(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    for bad in (-1, 7, True, "1", 1.0):
        with pytest.raises(engine.UsageError, match=r"^async_backups is .*: expected 0 to 6"):
            db.create_namespace(name, async_backups=bad)  # type: ignore[arg-type]
    with pytest.raises(engine.UsageError, match="backups is 4 and async_backups is 3: expected 6 at most in all"):
        db.create_namespace(name, backups=4, async_backups=3)
    assert name not in named(db)
    db.create_namespace(name, backups=3, async_backups=3)
    assert copies(db, name) == (3, 3)


def test_of_what_is_not_said_a_namespace_has_as_many_as_the_cluster(tmp_path: Path) -> None:
    with engine.open(tmp_path, partitions=2, backups=1, async_backups=2) as db:
        for given in ({"backups": 3}, {"async_backups": 0}, {"backups": 0}, {"ttl": 60}):
            db.create_namespace("-".join(f"{what}{number}" for what, number in given.items()), **given)  # type: ignore[arg-type]
        db.create_namespace("backups3", backups=3)  # it is so already
        found = {info.name: (info.backups, info.async_backups) for info in db.namespaces()}
        assert found == {"backups3": (3, 2), "async_backups0": (1, 0), "backups0": (0, 2), "ttl60": (1, 2)}
        with pytest.raises(
            engine.UsageError, match=r"backups is 5 and async_backups is 2 \(the cluster's\): expected 6 at most in all"
        ):
            db.create_namespace("a", backups=5)
        with pytest.raises(engine.UsageError, match=r"backups is 1 \(the cluster's\) and async_backups is 6: expected 6"):
            db.create_namespace("a", async_backups=6)
