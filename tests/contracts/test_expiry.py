"""What an application sees of values that expire: embedded, outside transactions and inside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine import errors

LONG, SHORT = 1_000.0, 0.05


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Database]:
    """A database of one node."""
    with engine.open(tmp_path_factory.mktemp("expiry")) as database:
        yield database


def wait() -> None:
    """Until what was put for a short time is over."""
    time.sleep(2 * SHORT)


def test_a_value_with_a_time_to_live_goes(db: engine.Database) -> None:
    flights = db.namespace("goes", codec="json")
    flights.put("a", 1, ttl=SHORT)
    flights.put_many({"b": 2, "c": 3}, ttl=SHORT)
    flights.put("d", 4, ttl=LONG)
    flights.put("e", 5)
    wait()
    assert flights.get("a") is None
    assert flights.get_many(["b", "d"]) == {"d": 4}
    assert len(flights) == 2
    assert dict(flights.scan()) == {"d": 4, "e": 5}
    assert "c" not in flights
    assert flights.get_entry("c") is None
    assert flights.put_if_absent("a", 6, ttl=LONG)
    assert flights["a"] == 6


def test_it_is_known_when_and_can_be_kept(db: engine.Database) -> None:
    flights = db.namespace("kept", codec="json")
    before = time.time()
    flights.put("a", 1, ttl=LONG)
    when = flights.expires_at("a")
    assert when is not None
    assert before + LONG - 1 <= when <= time.time() + LONG + 1
    flights.put("b", 2)
    assert flights.expires_at("b") is flights.expires_at("none") is None
    flights.put("c", 3, ttl=SHORT)
    assert flights.persist("c")
    assert not flights.persist("none")
    wait()
    assert flights["c"] == 3
    assert flights.expires_at("c") is None


def test_a_later_write_is_another_value(db: engine.Database) -> None:
    counts = db.namespace("later", codec="json")
    counts.put("a", 1, ttl=SHORT)
    counts.put("a", 2)
    counts.put("b", 1, ttl=LONG)
    assert (counts.increment("b"), counts.expires_at("b")) == (2, None)
    wait()
    assert (counts["a"], counts["b"]) == (2, 2)


@pytest.mark.parametrize("concurrency", ["PESSIMISTIC", "OPTIMISTIC"])
def test_the_same_in_a_transaction(db: engine.Database, concurrency: engine.Concurrency) -> None:
    name = f"in-{concurrency.lower()}"
    plain = db.namespace(name, codec="json")
    plain.put("old", 0, ttl=SHORT)
    plain.put("kept", 1, ttl=LONG)
    wait()
    with db.transaction(concurrency=concurrency) as tx:
        flights = tx.namespace(name, codec="json")
        assert flights.get("old") is None
        assert flights.expires_at("kept") is not None
        assert flights.persist("kept")
        assert not flights.persist("old")
        flights.put("a", 1, ttl=SHORT)
        flights.put_many({"b": 2, "c": 3}, ttl=LONG)
        flights.put("d", 4, ttl=SHORT)
        flights.put("d", 5)
        with pytest.raises(errors.UsageError, match="known after the commit"):
            flights.expires_at("a")
    wait()
    assert dict(plain.scan()) == {"b": 2, "c": 3, "d": 5, "kept": 1}
    assert plain.expires_at("b") is not None
    assert plain.expires_at("d") is plain.expires_at("kept") is None


@pytest.mark.parametrize("concurrency", ["PESSIMISTIC", "OPTIMISTIC"])
def test_what_is_kept_in_a_transaction_stays_whatever_its_namespace_says(
    db: engine.Database, concurrency: engine.Concurrency
) -> None:
    name = f"stays-{concurrency.lower()}"
    db.create_namespace(name, ttl=LONG)
    plain = db.namespace(name, codec="json")
    plain.put_many({"a": 1, "b": 2})
    with db.transaction(concurrency=concurrency) as tx:
        inside = tx.namespace(plain)
        assert inside.persist("a")
        inside.put("c", 3, ttl=LONG / 2)
        assert inside.persist("c")
        assert inside.persist("b")
        assert inside.increment("b") == 3  # which lasts as what is put without a time to live
    assert plain.expires_at("a") is plain.expires_at("c") is None
    assert plain.expires_at("b") is not None
    db.run(lambda tx: tx.namespace(plain).persist("b"), concurrency=concurrency)
    assert plain.expires_at("b") is None


def test_what_is_put_where_nothing_is_may_expire_in_a_transaction_too(db: engine.Database) -> None:
    flights = db.namespace("absent", codec="json")
    flights["old"] = 0
    with db.transaction() as tx:
        inside = tx.namespace(flights)
        assert inside.put_if_absent("new", 1, ttl=LONG)
        assert not inside.put_if_absent("old", 1, ttl=LONG)
    assert flights.expires_at("new") is not None
    assert (flights["old"], flights.expires_at("old")) == (0, None)


def test_the_same_of_what_is_said_at_once(db: engine.Database) -> None:
    flights, others = db.namespace("at-once", codec="json"), db.namespace("at-once-too", codec="json")
    flights.put("kept", 1, ttl=SHORT)
    assert db.transact(
        [
            engine.Put(flights, "a", 1, ttl=SHORT),
            engine.Put(flights, "kept", 2),
            engine.Put(others, "b", 3, ttl=LONG, if_absent=True),
            engine.Check(flights, "c", if_absent=True),
        ]
    )
    assert not db.transact([engine.Put(others, "b", 4, ttl=SHORT, if_absent=True)])
    wait()
    assert (dict(flights.scan()), dict(others.scan())) == ({"kept": 2}, {"b": 3})
    assert flights.expires_at("kept") is None
    assert others.expires_at("b") is not None
    with pytest.raises(errors.UsageError, match="ttl is"):
        db.transact([engine.Put(flights, "a", 1, ttl=0)])


def test_what_is_no_time_to_live_is_refused(db: engine.Database) -> None:
    flights = db.namespace("refused", codec="json")
    for wrong in (0, -1, 1e12, float("nan"), True, "soon"):
        with pytest.raises(errors.UsageError, match="ttl is"):
            flights.put("a", 1, ttl=wrong)  # type: ignore[arg-type]
    assert flights.get("a") is None


def test_what_expires_does_so_after_a_restart(tmp_path: Path) -> None:
    with engine.open(tmp_path) as db:
        db.namespace("acc", codec="json").put_many({str(n): n for n in range(100)}, ttl=0.5)
        db.namespace("acc", codec="json").put("stays", 1, ttl=LONG)
    time.sleep(0.5)
    with engine.open(tmp_path) as db:
        acc = db.namespace("acc", codec="json")
        assert dict(acc.scan()) == {"stays": 1}
        assert acc.expires_at("stays") is not None
