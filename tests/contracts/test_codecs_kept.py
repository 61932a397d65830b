"""A namespace keeps its codec, and keys that are tuples sort as tuples, behind each door."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.client.tuples import pack, unpack

PARTS = (
    st.text(max_size=4)
    | st.binary(max_size=4)
    | st.integers(-(1 << 64) + 1, (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
)


@dataclass
class Account:
    """A value."""

    balance: int


def calls_of(db: engine.Database, name: str, codec: Any, key: Any, value: Any) -> list[Callable[[], object]]:
    """Everything that reads or writes in a namespace."""
    wrong = db.namespace(name, codec=codec)
    return [
        lambda: wrong.get(key),
        lambda: wrong.get_many([key]),
        lambda: wrong.get_aged(key),
        lambda: wrong.pop(key, None),
        lambda: list(wrong.scan()),
        lambda: wrong.put(key, value),
        lambda: wrong.delete(key),
        lambda: db.run(lambda tx: tx.namespace(name, codec=codec).get(key)),
        lambda: db.run(lambda tx: tx.namespace(name, codec=codec).delete(key)),
    ]


def test_another_codec_is_refused(db: engine.Database, fresh: Callable[[], str]) -> None:
    name = fresh()
    db.namespace(name, codec="json").put("k", 1)
    others: list[tuple[Any, Any, Any]] = [
        ("msgpack", "k", 1),
        ("str", "k", "1"),
        ("bytes", b"k", b"1"),
        (engine.by_tuple("json"), ("k",), 1),
    ]
    for other, key, value in others:
        for call in calls_of(db, name, other, key, value):
            with pytest.raises(engine.UsageError, match=rf"namespace '{name}' is kept in 'json', and was asked for in"):
                call()
    assert db.namespace(name, codec="json").get("k") == 1
    raw = db.namespace(fresh())
    raw.put(b"k", b"1")
    for call in calls_of(db, raw.name, "json", "k", 1):
        with pytest.raises(
            engine.UsageError, match=rf"namespace '{raw.name}' is kept in 'bytes', and was asked for in 'json'"
        ):
            call()
    assert raw.get(b"k") == b"1"
    typed = db.namespace(fresh(), codec=Account)
    typed.put("ann", Account(3))
    assert db.namespace(typed.name, codec="json").get("ann") == {"balance": 3}, "a type is JSON, whatever it is called"


def test_a_codec_outlives_its_clients(tmp_path: Path) -> None:
    with engine.open(tmp_path / "node") as db:
        db.namespace("a", codec="json")["k"] = 1
        with db.transaction() as tx:
            tx.namespace("b", codec="str").put("k", "v")
    with engine.open(tmp_path / "node") as db:
        for name, form in (("a", "json"), ("b", "str")):
            with pytest.raises(engine.UsageError, match=f"is kept in '{form}', and was asked for in 'msgpack'"):
                db.namespace(name, codec="msgpack").put("k", 1)
        assert (db.namespace("a", codec="json")["k"], db.namespace("b", codec="str")["k"]) == (1, "v")


def test_keys_that_are_tuples_sort_as_they_do(db: engine.Database, fresh: Callable[[], str]) -> None:
    events = db.namespace(fresh(), codec=engine.by_tuple("json"))
    keys = [("ann", 2), ("ann", 10), ("ann", -3), ("anna", 1), ("bob", 0), ("ann",)]
    events.put_many({key: list(key) for key in keys})
    assert [key for key, _ in events.scan()] == sorted(keys)
    assert [key for key, _ in events.scan(prefix=("ann",))] == [("ann",), ("ann", -3), ("ann", 2), ("ann", 10)]
    assert [key for key, _ in events.scan(start=("ann", 2), end=("anna",))] == [("ann", 2), ("ann", 10)]
    assert events.get(("bob", 0)) == ["bob", 0]
    wrong: list[Any] = ["ann", ("ann", 1 << 64), ("ann", ()), (float("nan"),), ()]
    for key in wrong:
        with pytest.raises(engine.UsageError):
            events.put(key, 1)


def test_a_prefix_of_parts_finds_what_begins_with_these_parts_and_nothing_else(
    db: engine.Database, fresh: Callable[[], str]
) -> None:
    ns = db.namespace(fresh(), codec=engine.by_tuple("json"))
    keys: list[tuple[Any, ...]] = [
        ("a",),
        ("a", ""),
        ("a", 1),
        ("a", "\U0010ffff"),
        ("a\0",),
        ("a\0b", 1),
        ("a\0\0",),
        ("ab",),
    ]
    keys += [
        (b"\1", 1),
        (b"\1\0\2", 1),
        (b"\1\xff", 1),
        (1,),
        (1, True),
        (256,),
        (256, None),
        ("x" * 398,),
        ("x" * 397, None),
    ]
    ns.put_many(dict.fromkeys(keys, 1))
    for prefix in [(), ("b",), *keys]:
        found = sorted((key for key in keys if key[: len(prefix)] == prefix), key=pack)
        assert [key for key, _ in ns.scan(prefix=prefix)] == found
        assert [key for key, _ in ns.scan(prefix=prefix, reverse=True)] == found[::-1]
        with db.transaction() as tx:
            assert [key for key, _ in tx.namespace(ns).scan(prefix=prefix)] == found


@dataclass
class Reading:
    """A value whose fields take more than JSON has."""

    level: float | None = None
    tags: Any = None


@dataclass
class Corrected(Reading):
    """Another one, which has more."""

    by: str = ""


@dataclass(eq=False)
class Silent:
    """A value that does not say what equals it."""

    inner: list[Reading]
    next: Silent | None = None


def test_a_type_refuses_what_would_come_back_as_something_else(db: engine.Database, fresh: Callable[[], str]) -> None:
    lossy: list[tuple[Any, Any]] = [
        (Reading, Reading(math.inf)),
        (Reading, Reading(math.nan)),
        (Reading, Reading(1.0, (1, 2))),
        (Reading, Reading(1.0, {1, 2})),
        (Reading, Reading(1.0, {1: 2})),
        (Reading, Reading(1.0, b"raw")),
        (Reading, Reading((1 << 60) + 1)),
        (Reading, Corrected(1.0, None, "ann")),
        (Silent, Silent([Reading(-math.inf)])),
        (Silent, Silent([], Silent([Corrected(by="ann")]))),
        (dict, {"a": (1, 2)}),
        (dict[str, object], {"a": b"raw"}),
        (float | None, math.inf),
        (list[int], (1, 2)),
    ]
    for kind, value in lossy:
        ns = db.namespace(fresh(), codec=kind)
        with pytest.raises(engine.UsageError, match=r"it would come back as .*: expected what JSON carries as "):
            ns.put("k", value)
        assert ns.get("k") is None
    kept: list[tuple[Any, Any]] = [
        (Reading, Reading(5, ["a", {"b": None}])),
        (Corrected, Corrected(1.5, None, "ann")),
        (dict[int, tuple[int, ...]], {1: (2, 3)}),
        (set[int], {1, 2}),
        (float, 5),
        (bytes, b"raw"),
        (datetime, datetime(2026, 11, 26, tzinfo=UTC)),
    ]
    for kind, value in kept:
        ns = db.namespace(fresh(), codec=kind)
        ns.put("k", value)
        assert ns.get("k") == value
    silent = db.namespace(fresh(), codec=Silent)
    silent.put("k", Silent([Reading(1.0)], Silent([])))
    found = silent.get("k")
    assert found is not None
    assert (found.inner, type(found.next)) == ([Reading(1.0)], Silent)


@given(st.lists(PARTS, max_size=4).map(tuple))
def test_a_tuple_comes_back_as_it_was(key: tuple[Any, ...]) -> None:
    back = unpack(pack(key))
    assert back == key
    assert list(map(type, back)) == list(map(type, key))


KINDS = [st.text(), st.binary(), st.integers(-(1 << 64) + 1, (1 << 64) - 1), st.floats(allow_nan=False), st.booleans()]


@given(st.lists(st.sampled_from(KINDS), max_size=3).flatmap(lambda kinds: st.tuples(st.tuples(*kinds), st.tuples(*kinds))))
def test_two_tuples_sort_as_their_bytes_do(pair: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    one, other = pair
    by_text = [tuple(part.encode() if isinstance(part, str) else part for part in key) for key in pair]
    assert (by_text[0] < by_text[1]) == (pack(one) < pack(other))
    assert pack((*one, 1)).startswith(pack(one))


@given(st.binary(max_size=40))
def test_no_bytes_do_harm(data: bytes) -> None:
    try:
        pack(unpack(data))
    except (ValueError, engine.UsageError):
        return
