"""What is done to one key in one step, behind every door: numbers, texts, versions, conditions, in a transaction too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import engine
from engine.protocol.operations import ANSWER_BYTES_MAX
from wal.ids import VALUE_BYTES_MAX

Name = Callable[[], str]
MAX = (1 << 63) - 1


@pytest.fixture(params=["outside", "inside"])
def where(request: pytest.FixtureRequest, db: engine.Database) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Do something with a namespace: as it is, or in a transaction of its own."""
    if request.param == "outside":
        return lambda ns, do: do(ns)
    return lambda ns, do: db.run(lambda tx: do(tx.namespace(ns)))


# Numbers.


@pytest.mark.parametrize("codec", ["bytes", "str", "json", "msgpack", int])
def test_a_number_is_incremented_in_every_codec_that_has_any(
    db: engine.Database, fresh: Name, where: Any, codec: Any
) -> None:
    ns: Any = db.namespace(fresh(), codec=codec)
    key = b"k" if codec == "bytes" else "k"
    assert where(ns, lambda n: [n.increment(key), n.increment(key, 5), n.increment(key, by=-7)]) == [1, 6, -1]
    assert where(ns, lambda n: n.increment(key, 0)) == -1
    assert ns.get(key) == {"bytes": b"-1", "str": "-1"}.get(codec, -1)
    ns.delete(key)
    assert where(ns, lambda n: n.increment(key, 2, initial=40)) == 42
    ns.put(key, {"bytes": b"7", "str": "7"}.get(codec, 7))
    assert where(ns, lambda n: n.increment(key)) == 8


def test_many_clients_count_and_none_is_lost(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec=int)
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(lambda _: ns.increment("n"), range(100)))
    assert (sorted(told), ns.get("n")) == (list(range(1, 101)), 100)


@pytest.mark.parametrize("value", [1.0, "1", None, [1], MAX + 1, -MAX - 2])
def test_what_is_no_whole_number_is_not_incremented(db: engine.Database, fresh: Name, where: Any, value: object) -> None:
    for codec in ("json", "msgpack"):
        if codec == "msgpack" and value == -MAX - 2:
            continue  # it has no form for that
        ns: Any = db.namespace(fresh(), codec=codec)
        ns.put("k", value)
        with pytest.raises(engine.UsageError, match="no whole number of 64 bits"):
            where(ns, lambda n: n.increment("k"))
        assert ns.get("k") == value


def test_a_number_does_not_overflow(db: engine.Database, fresh: Name, where: Any) -> None:
    ns = db.namespace(fresh(), codec=int)
    for most, by in ((MAX, 1), (-MAX - 1, -1)):
        ns.put("k", most)
        with pytest.raises(engine.UsageError, match="expected a whole number of 64 bits; nothing was changed"):
            where(ns, lambda n, by=by: n.increment("k", by))
        assert ns.get("k") == most
    for wrong in (True, 1.5, "1", MAX + 1, None):
        with pytest.raises(engine.UsageError, match="by is"):
            where(ns, lambda n, wrong=wrong: n.increment("k", wrong))
        with pytest.raises(engine.UsageError, match="initial is"):
            where(ns, lambda n, wrong=wrong: n.increment("k", 1, wrong))


def test_values_that_are_no_numbers_or_texts_have_update(db: engine.Database, fresh: Name, where: Any) -> None:
    ns: Any = db.namespace(fresh(), codec=list[int])
    with pytest.raises(engine.UsageError, match="there is `update`"):
        where(ns, lambda n: n.increment("k"))
    with pytest.raises(engine.UsageError, match="there is `update`"):
        where(ns, lambda n: n.append("k", [1]))
    assert where(ns, lambda n: n.update("k", lambda held: [*(held or []), 1])) == [1]
    assert where(ns, lambda n: n.update("k", lambda held: [*(held or []), 2])) == [1, 2]
    assert ns.get("k") == [1, 2]


# Texts.


def test_a_text_grows_at_its_end(db: engine.Database, fresh: Name, where: Any) -> None:
    texts = db.namespace(fresh(), codec="str")
    assert where(texts, lambda n: [n.append("k", "ä"), n.append("k", "bc"), n.append("k", "")]) == [2, 4, 4]
    assert texts.get("k") == "äbc"


def test_a_value_does_not_grow_beyond_what_is_a_value(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    ns.put(b"k", bytes(VALUE_BYTES_MAX))
    with pytest.raises(engine.UsageError, match="nothing was changed"):
        where(ns, lambda n: n.append(b"k", b"x"))
    assert where(ns, lambda n: n.append(b"k", b"")) == VALUE_BYTES_MAX


# What was there.


@pytest.mark.parametrize("size", [0, 1, ANSWER_BYTES_MAX, ANSWER_BYTES_MAX + 1, 100_000])
def test_what_is_replaced_or_deleted_is_told(ns: engine.Namespace[bytes, bytes], where: Any, size: int) -> None:
    value = b"v" * size
    assert where(ns, lambda n: n.get_and_put(b"k", value)) is None
    assert where(ns, lambda n: n.get_and_put(b"k", b"w", b"nothing")) == value
    assert where(ns, lambda n: n.get_and_put(b"k", value)) == b"w"
    assert where(ns, lambda n: n.get_and_delete(b"k")) == value
    assert where(ns, lambda n: [n.get_and_delete(b"k"), n.get_and_delete(b"k", b"d")]) == [None, b"d"]
    ns.put(b"k", value)
    assert where(ns, lambda n: [n.pop(b"k"), n.pop(b"k", None)]) == [value, None]
    with pytest.raises(KeyError):
        where(ns, lambda n: n.pop(b"k"))


# Conditions.


def test_a_key_is_compared_and_set(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    assert not where(ns, lambda n: n.compare_and_set(b"k", b"1", b"2"))
    assert where(ns, lambda n: n.compare_and_set(b"k", None, b"1"))
    assert not where(ns, lambda n: n.compare_and_set(b"k", None, b"2"))
    assert where(ns, lambda n: [n.compare_and_set(b"k", b"1", b"2"), n.compare_and_set(b"k", b"1", b"3")]) == [True, False]
    assert where(ns, lambda n: [n.compare_and_set(b"k", b"2", None), n.get(b"k")]) == [True, None]
    assert where(ns, lambda n: [n.put_if_absent(b"k", b"5"), n.put_if_absent(b"k", b"6")]) == [True, False]
    assert where(ns, lambda n: [n.replace(b"k", b"6", b"7"), n.replace(b"k", b"5", b"7")]) == [False, True]


def test_a_key_is_deleted_if_it_has_a_value(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    ns.put(b"k", b"v")
    assert where(ns, lambda n: [n.delete(b"k", if_value=b"w"), n.get(b"k")]) == [False, b"v"]
    assert where(ns, lambda n: [n.delete(b"k", if_value=b"v"), n.get(b"k")]) == [True, None]
    assert not where(ns, lambda n: n.delete(b"k", if_value=b"v"))


def test_a_version_is_of_one_value_only(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    assert where(ns, lambda n: n.get_entry(b"k")) is None
    assert where(ns, lambda n: [n.put_if_version(b"k", b"a", None), n.put_if_version(b"k", b"b", None)]) == [True, False]
    first = ns.get_entry(b"k")
    assert first is not None
    assert (first.value, where(ns, lambda n: n.get_entry(b"k"))) == (b"a", first)
    ns.put(b"k", b"b")
    ns.put(b"k", b"a")
    assert not where(ns, lambda n: n.put_if_version(b"k", b"c", first.version))
    assert not where(ns, lambda n: n.delete(b"k", if_version=first.version))
    now = ns.get_entry(b"k")
    assert now is not None
    assert now.version > first.version
    assert where(ns, lambda n: n.put_if_version(b"k", b"c", now.version))
    last = ns.get_entry(b"k")
    assert last is not None
    assert where(ns, lambda n: n.delete(b"k", if_version=last.version))
    assert ns.get(b"k") is None
    assert not where(ns, lambda n: n.put_if_version(b"k", b"c", last.version))


def test_a_version_is_what_get_entry_gave(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    ns.put(b"k", b"v")
    wrong: Any
    for wrong in ((1, 1), "1.1", 5):
        with pytest.raises(engine.UsageError, match="expected what `get_entry` gave"):
            where(ns, lambda n, wrong=wrong: n.put_if_version(b"k", b"w", wrong))
    with pytest.raises(engine.UsageError, match="a value and a version were given"):
        where(ns, lambda n: n.delete(b"k", if_value=b"v", if_version=engine.Version(1, 1)))


def test_a_namespace_is_true_if_it_has_a_key(ns: engine.Namespace[bytes, bytes]) -> None:
    if isinstance(ns, engine.Namespace):  # a question of the dict's, which only the blocking form is
        assert not ns
        ns.put_many({b"%d" % number: b"" for number in range(3_000)})
        assert ns
        ns.clear()
        assert not ns


# Pages.


@pytest.mark.parametrize("limit", [None, 0, 1, 999, 1_000, 1_001, 5_500, 10_000])
def test_a_scan_of_several_pages_has_all_its_rows(
    ns: engine.Namespace[bytes, bytes], where: Any, limit: int | None
) -> None:
    ns.put_many({b"%05d" % number: b"%d" % number for number in range(6_000)})
    found = where(ns, lambda n: list(n.scan(limit=limit)))
    assert found == [(b"%05d" % number, b"%d" % number) for number in range(6_000)][:limit]


# What a function makes of a value.


def test_a_key_is_updated_by_a_function(ns: engine.Namespace[bytes, bytes], where: Any) -> None:
    seen: list[bytes | None] = []

    def grow(held: bytes | None) -> bytes | None:
        seen.append(held)
        return (held or b"") + b"x"

    assert where(ns, lambda n: [n.update(b"k", grow), n.update(b"k", grow)]) == [b"x", b"xx"]
    assert seen == [None, b"x"]
    assert where(ns, lambda n: [n.update(b"k", lambda _: None), n.get(b"k"), n.update(b"k", lambda _: None)]) == [None] * 3
    not_a_function: Any = b"v"
    with pytest.raises(engine.UsageError, match="expected a function of a value, found bytes"):
        where(ns, lambda n: n.update(b"k", not_a_function))
    with pytest.raises(engine.UsageError, match="expected a plain function"):
        where(ns, lambda n: n.update(b"k", lambda _: (b for b in (b"v",))))


def test_an_update_that_meets_another_begins_again(ns: engine.Namespace[bytes, bytes]) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: ns.update(b"k", lambda held: b"%d" % (int(held or b"0") + 1)), range(30)))
    assert ns.get(b"k") == b"30"


# In a transaction.


@pytest.mark.parametrize("concurrency", ["PESSIMISTIC", "OPTIMISTIC"])
def test_a_transaction_builds_on_what_it_has_written(db: engine.Database, fresh: Name, concurrency: Any) -> None:
    ns = db.namespace(fresh(), codec="json")
    ns.put("kept", 5)
    with db.transaction(concurrency=concurrency) as tx:
        inside = tx.namespace(ns)
        inside.put("n", 1)
        assert (inside.increment("n"), inside.get_and_put("n", 7), inside.get("n")) == (2, 2, 7)
        assert not inside.put_if_absent("n", 8)
        assert inside.increment("kept", -5) == 0
        with pytest.raises(engine.UsageError, match="it has a version when that commits"):
            inside.get_entry("n")
    assert ns.get_many(["n", "kept"]) == {"n": 7, "kept": 0}
    with pytest.raises(ZeroDivisionError), db.transaction(concurrency=concurrency) as tx:
        tx.namespace(ns).increment("n", 100)
        raise ZeroDivisionError
    assert ns.get("n") == 7


def test_an_optimistic_transaction_that_lost_its_key_conflicts(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec=int)
    ns.put("n", 1)
    with pytest.raises(engine.Conflict), db.transaction(concurrency="OPTIMISTIC") as tx:
        tx.namespace(ns).increment("n")
        ns.increment("n")
    assert ns.get("n") == 2


def test_what_a_type_cannot_read_is_told_with_its_key(db: engine.Database, fresh: Name) -> None:
    """Of thousands of rows one is not what it should be: which?"""
    name = fresh()
    plain, typed = db.namespace(name, codec="json"), db.namespace(name, codec=int)
    plain.put_many({"a": 1, "odd": "three", "z": 2})
    says = f"{name}:'odd': what is stored is not what codec 'int' wrote: Expected `int`, got `str`"
    asks: list[Callable[[Any], object]] = [
        lambda n: n.get("odd"),
        lambda n: n.get_many(["a", "odd"]),
        lambda n: n.get_entry("odd"),
        lambda n: n.get_and_put("odd", 3),
        lambda n: n.get_and_delete("odd"),
        lambda n: n.pop("odd"),
        lambda n: n.update("odd", lambda _: 3),
        lambda n: list(n.scan()),
        lambda n: list(n.scan(prefix="o", reverse=True)),
    ]
    outside: list[Callable[[Any], object]] = [*asks, lambda n: n.get("odd", stale=True), lambda n: n.get_aged("odd")]
    inside: list[Callable[[Any], object]] = [
        *asks,
        lambda n: n.get_for_update("odd"),
        lambda n: list(n.scan(skip_locked=True)),
    ]
    for ask in outside:
        with pytest.raises(engine.UsageError, match=says):
            ask(typed)
    with db.transaction() as tx:
        for ask in inside:
            with pytest.raises(engine.UsageError, match=says):
                ask(tx.namespace(typed))
        tx.rollback()
    with db.snapshot() as snapshot:
        for ask in (*asks[:2], *asks[-2:]):
            with pytest.raises(engine.UsageError, match=says):
                ask(snapshot.namespace(typed))
    assert dict(plain.scan()) == {"a": 1, "odd": "three", "z": 2}
    by_tuple = db.namespace(fresh(), codec=engine.by_tuple(int))
    by_tuple.put(("a", 1), 1)
    liar = engine.Codec("bytes", bytes, bytes, bytes, bytes, form="json by tuple")
    db.namespace(by_tuple.name, codec=liar).put(b"\xff", b"1")
    with pytest.raises(engine.UsageError, match=r":b'\\xff': what is stored is not what codec 'json by tuple' wrote"):
        list(by_tuple.scan())


def test_what_a_type_cannot_read_is_not_taken_away(db: engine.Database, fresh: Name, where: Any) -> None:
    name = fresh()
    free, typed = db.namespace(name, codec="json"), db.namespace(name, codec=int)
    for value in ("three", "x" * (ANSWER_BYTES_MAX + 1)):
        free.put("k", value)
        for take in (lambda n: n.pop("k"), lambda n: n.get_and_delete("k"), lambda n: n.get_and_put("k", 4)):
            with pytest.raises(engine.UsageError, match="what is stored is not what codec 'int' wrote"):
                where(typed, take)
            assert free.get("k") == value

    def caught(tx: Any) -> None:
        with pytest.raises(engine.UsageError):
            tx.namespace(typed).pop("k")

    db.run(caught)
    assert free.get("k") == value
    typed.put("k", 3)
    assert where(typed, lambda n: [n.get_and_put("k", 4), n.get_and_delete("k"), n.get_and_delete("k", 7)]) == [3, 4, 7]
    assert where(typed, lambda n: [n.get_and_put("k", 5, 6), n.pop("k"), n.pop("k", None)]) == [6, 5, None]
