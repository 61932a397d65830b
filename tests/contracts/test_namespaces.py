"""A namespace behind every door: single operations, batches, scans, codecs and limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engine
from tests.support.patience import joined
from wal.ids import KEY_BYTES_MAX, VALUE_BYTES_MAX

Name = Callable[[], str]


@dataclass
class Booking:
    """An application's type."""

    room: str
    guests: list[str]
    nights: int


# One key.


def test_what_was_put_is_there_until_it_is_deleted(ns: engine.Namespace[bytes, bytes]) -> None:
    assert ns.get(b"k") is None
    assert ns.get(b"k", b"nothing") == b"nothing"
    ns.put(b"k", b"v")
    ns.put(b"k", b"w")
    assert ns.get(b"k") == b"w"
    assert (ns.delete(b"k"), ns.delete(b"k"), ns.get(b"k")) == (True, False, None)


def test_an_empty_value_is_a_value(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"k", b"")
    assert (ns.get(b"k"), ns.get_many([b"k"]), list(ns.scan())) == (b"", {b"k": b""}, [(b"k", b"")])
    assert not ns.put_if_absent(b"k", b"v")
    assert ns.pop(b"k") == b""


def test_put_if_absent_sets_a_key_once(ns: engine.Namespace[bytes, bytes]) -> None:
    assert (ns.put_if_absent(b"k", b"1"), ns.put_if_absent(b"k", b"2"), ns.get(b"k")) == (True, False, b"1")
    ns.delete(b"k")
    assert ns.put_if_absent(b"k", b"3")


def test_replace_needs_the_value_that_is_there(ns: engine.Namespace[bytes, bytes]) -> None:
    assert not ns.replace(b"k", b"1", b"2")
    ns.put(b"k", b"1")
    assert (ns.replace(b"k", b"0", b"2"), ns.replace(b"k", b"1", b"2"), ns.get(b"k")) == (False, True, b"2")


def test_pop_returns_what_it_deletes(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"k", b"v")
    assert (ns.pop(b"k"), ns.get(b"k"), ns.pop(b"k", None), ns.pop(b"k", b"d")) == (b"v", None, None, b"d")
    with pytest.raises(KeyError):
        ns.pop(b"k")


def test_a_stale_read_is_of_something_that_was_written(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"k", b"v")
    assert ns.get(b"k", stale=True) in (None, b"v")
    assert ns.get_many([b"k"], stale=True) in ({}, {b"k": b"v"})


# Several keys.


def test_many_keys_are_got_once_each_and_only_if_they_exist(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"a": b"1", b"b": b"2", b"c": b"3"})
    assert ns.get_many([b"c", b"nope", b"a", b"c"]) == {b"c": b"3", b"a": b"1"}
    assert ns.get_many([]) == {}


def test_many_keys_are_put_from_a_mapping_or_from_pairs(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"a": b"1"})
    ns.put_many(iter([(b"b", b"2"), (b"c", b"3"), (b"b", b"4")]))
    ns.put_many([])
    assert list(ns.scan()) == [(b"a", b"1"), (b"b", b"4"), (b"c", b"3")]


def test_many_keys_are_deleted_whether_or_not_they_exist(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"a": b"1", b"b": b"2", b"c": b"3"})
    ns.delete_many([b"a", b"nope", b"c", b"a"])
    ns.delete_many([])
    assert list(ns.scan()) == [(b"b", b"2")]


def test_one_key_is_not_several(ns: engine.Namespace[bytes, bytes]) -> None:
    for call in (ns.get_many, ns.delete_many):
        with pytest.raises(engine.UsageError, match="put it into a list"):
            call(b"key")  # type: ignore[arg-type]  # the mistake


def test_batches_may_be_larger_than_a_page_and_a_message(ns: engine.Namespace[bytes, bytes]) -> None:
    rows = {b"%05d" % at: b"v%d" % at for at in range(12_345)}
    ns.put_many(rows)
    assert dict(ns.scan()) == rows
    assert ns.get_many(rows) == rows
    ns.delete_many(rows)
    assert list(ns.scan()) == []


# Scans.


@pytest.fixture
def letters(ns: engine.Namespace[bytes, bytes]) -> engine.Namespace[bytes, bytes]:
    """Keys that begin alike, and some of the last byte."""
    ns.put_many({key: key.upper() for key in (b"a", b"ab", b"aba", b"ac", b"b", b"ba", b"\xff", b"\xff\xff", b"\xff\xffz")})
    return ns


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [b"a", b"ab", b"aba", b"ac", b"b", b"ba", b"\xff", b"\xff\xff", b"\xff\xffz"]),
        ({"prefix": b"ab"}, [b"ab", b"aba"]),
        ({"prefix": b"z"}, []),
        ({"prefix": b""}, [b"a", b"ab", b"aba", b"ac", b"b", b"ba", b"\xff", b"\xff\xff", b"\xff\xffz"]),
        ({"prefix": b"\xff\xff"}, [b"\xff\xff", b"\xff\xffz"]),
        ({"start": b"ab", "end": b"b"}, [b"ab", b"aba", b"ac"]),
        ({"start": b"b\0"}, [b"ba", b"\xff", b"\xff\xff", b"\xff\xffz"]),
        ({"end": b"ab"}, [b"a"]),
        ({"start": b"b", "end": b"a"}, []),
        ({"prefix": b"a", "start": b"aba"}, [b"aba", b"ac"]),
        ({"prefix": b"ab", "end": b"aba"}, [b"ab"]),
        ({"prefix": b"a", "start": b"b"}, []),
        ({"limit": 2}, [b"a", b"ab"]),
        ({"limit": 0}, []),
        ({"limit": 100, "prefix": b"b"}, [b"b", b"ba"]),
        ({"start": b"x" * 1000}, [b"\xff", b"\xff\xff", b"\xff\xffz"]),
        ({"prefix": b"a" * 1000}, []),
    ],
)
def test_a_scan_is_of_a_range_in_order(
    letters: engine.Namespace[bytes, bytes], wanted: dict[str, Any], found: list[bytes]
) -> None:
    assert list(letters.scan(**wanted)) == [(key, key.upper()) for key in found]


@pytest.mark.parametrize("limit", [-1, 1.5, "2"])
def test_a_limit_is_a_number_of_rows(ns: engine.Namespace[bytes, bytes], limit: Any) -> None:
    with pytest.raises(engine.UsageError, match=r"limit is .*: expected a whole number from 0"):
        list(ns.scan(limit=limit))


def test_a_scan_that_is_left_half_way_disturbs_nobody(ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put_many({b"%04d" % at: b"" for at in range(3000)})
    rows = iter(ns.scan())
    assert next(rows) == (b"0000", b"")
    del rows
    assert list(ns.scan(start=b"2999")) == [(b"2999", b"")]


keys = st.sampled_from([b"a", b"aa", b"b", b"\0", b"\xff"])
values = st.sampled_from([b"", b"1", b"2"])
steps = st.one_of(
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("put_if_absent"), keys, values),
    st.tuples(st.just("replace"), keys, values, values),
    st.tuples(st.just("pop"), keys, st.none()),
    st.tuples(st.just("put_many"), st.dictionaries(keys, values)),
    st.tuples(st.just("delete_many"), st.lists(keys)),
)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=12))
def test_a_namespace_is_what_a_dict_would_be(db: engine.Database, fresh: Name, said: list[tuple[Any, ...]]) -> None:
    ns, model = db.namespace(fresh()), _Model()
    for method, *arguments in said:
        assert getattr(ns, method)(*arguments) == getattr(model, method)(*arguments), (method, arguments)
    assert list(ns.scan()) == sorted(model.rows.items())


class _Model:
    """The same, in a dict."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def delete(self, key: bytes) -> bool:
        return self.rows.pop(key, None) is not None

    def put_if_absent(self, key: bytes, value: bytes) -> bool:
        return key not in self.rows and self.rows.setdefault(key, value) == value

    def replace(self, key: bytes, old: bytes, new: bytes) -> bool:
        if self.rows.get(key) != old:
            return False
        self.rows[key] = new
        return True

    def pop(self, key: bytes, default: None) -> bytes | None:
        return self.rows.pop(key, default)

    def put_many(self, items: dict[bytes, bytes]) -> None:
        self.rows.update(items)

    def delete_many(self, keys: list[bytes]) -> None:
        for key in keys:
            self.rows.pop(key, None)


# Codecs.


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        ("bytes", b"\x00\xff"),
        ("str", "caf\u00e9 \U0001f30a"),
        ("json", {"a": [1, 2.5, None, True, "x"], "b": {}}),
        ("json", None),
        ("msgpack", {1: {b"k": None}}),
        ("msgpack", {"raw": b"\x00", "n": [1, -1, 2**63]}),
    ],
)
def test_a_codec_carries_values_there_and_back(db: engine.Database, fresh: Name, codec: Any, value: Any) -> None:
    ns = db.namespace(fresh(), codec=codec)
    key = b"k" if codec == "bytes" else "k"
    ns.put(key, value)
    assert (ns.get(key, "absent"), list(ns.scan())) == (value, [(key, value)])
    assert ns.replace(key, value, value)
    with db.transaction() as tx:
        assert tx.namespace(ns).get(key, "absent") == value
    assert ns.pop(key) == value


def test_text_is_ordered_as_its_bytes_are(db: engine.Database, fresh: Name) -> None:
    ns = db.namespace(fresh(), codec="str")
    ns.put_many({"\u00e9": "", "z": "", "a": "", "\U0001f30a": ""})
    assert [key for key, _ in ns.scan()] == ["a", "z", "\u00e9", "\U0001f30a"]
    assert [key for key, _ in ns.scan(start="z", end="\U0001f30a")] == ["z", "\u00e9"]


def test_a_codec_of_ones_own_is_used_as_it_is(db: engine.Database, fresh: Name) -> None:
    number = engine.Codec(
        "numbers", lambda n: int(n).to_bytes(4, "big"), lambda b: int.from_bytes(b, "big"), str.encode, bytes.decode
    )
    ns = db.namespace(fresh(), codec=number)
    ns.put_many({n: f"n{n}" for n in (300, 2, 70_000)})
    assert list(ns.scan(start=3)) == [(300, "n300"), (70_000, "n70000")]


@pytest.mark.parametrize(
    ("codec", "key", "value", "says"),
    [
        (None, "k", b"v", "expected bytes, found str: name a codec, such as codec='str'"),
        (None, b"k", "v", "expected bytes, found str"),
        (None, 1, b"v", "expected bytes, found int"),
        ("str", b"k", "v", "expected str, found bytes"),
        ("str", "k", 1, "expected str, found int"),
        ("json", b"k", 1, "expected str, found bytes"),
        ("json", "k", object(), "cannot encode a object"),
        ("msgpack", "k", {"n": 2**70}, "cannot encode a dict"),
        ("str", "k", "\ud800", "cannot encode a str"),
        (
            "json",
            "k",
            {1, 2},
            "a set would come back as something else: expected bool or int or str or float, None, a list",
        ),
        ("json", "k", [(1, 2)], "a tuple would come back as something else"),
        ("json", "k", {"at": datetime(2020, 1, 1)}, "a datetime would come back as something else"),
        ("json", "k", {1: 2}, "a key of a dict is a int, expected str"),
        ("json", "k", b"raw", "a bytes would come back as something else"),
        ("json", "k", float("nan"), "nan is no number that it can carry"),
        ("msgpack", "k", [{"x": {1}}], "a set would come back as something else"),
        ("msgpack", "k", {1.5: 1}, "a key of a dict is a float, expected str or int or bytes"),
        ("msgpack", "k", float("inf"), "inf is no number"),
        (Booking, "k", Booking("101", ["ann"], nights="3"), "cannot encode a Booking: Expected `int`, got `str`"),  # type: ignore[arg-type]  # the mistake
        (Booking, "k", {"room": 101}, "cannot encode a dict"),
        (list[int], "k", [1, "2"], "cannot encode a list: Expected `int`, got `str`"),
    ],
)
def test_what_a_codec_cannot_carry_is_refused(
    db: engine.Database, fresh: Name, codec: Any, key: Any, value: Any, says: str
) -> None:
    ns = db.namespace(fresh(), codec=codec)
    with pytest.raises(engine.UsageError, match=says):
        ns.put(key, value)
    with db.transaction() as tx, pytest.raises(engine.UsageError, match=says):
        tx.namespace(ns).put(key, value)
    assert list(ns.scan()) == []


def test_a_value_that_another_codec_wrote_is_told(db: engine.Database, fresh: Name) -> None:
    codecs: tuple[Any, ...] = ("str", "json", "msgpack")
    for codec in codecs:
        name, liar = fresh(), engine.Codec(codec, str.encode, bytes.decode, bytes, bytes)
        db.namespace(name, codec=liar).put("k", b"\xff{")
        with pytest.raises(engine.UsageError, match=f"is not what codec '{codec}' wrote"):
            db.namespace(name, codec=codec).get("k")


def test_a_codec_that_is_not_there_is_named_with_those_that_are(db: engine.Database) -> None:
    with pytest.raises(engine.UsageError, match="codec 'pickle' is not known: expected one of bytes, str, json, msgpack"):
        db.namespace("x", codec="pickle")  # type: ignore[call-overload]  # the mistake
    with pytest.raises(engine.UsageError, match=r"codec 'jsn' is not known: did you mean 'json'\?"):
        db.namespace("x", codec="jsn")  # type: ignore[call-overload]  # the mistake


def test_a_type_is_a_codec(db: engine.Database, fresh: Name) -> None:
    name = fresh()
    bookings = db.namespace(name, codec=Booking)
    bookings.put("monday", Booking("101", ["ann", "bob"], 3))
    assert bookings.get("monday", Booking("", [], 0)).guests == ["ann", "bob"]
    assert dict(bookings.scan()) == {"monday": Booking("101", ["ann", "bob"], 3)}
    db.namespace(name, codec="json").put("tuesday", {"room": 7})
    with pytest.raises(
        engine.UsageError, match=r"is not what codec 'Booking' wrote: Expected `str`, got `int` - at `\$.room`"
    ):
        bookings.get("tuesday")
    counts = db.namespace(fresh(), codec=dict[str, int])
    counts.put("a", {"x": 1})
    assert counts.get("a") == {"x": 1}
    with pytest.raises(engine.UsageError, match="cannot be a codec"):
        db.namespace(name, codec=list[int] | list[str])  # type: ignore[arg-type]  # a type that JSON cannot tell apart


# Names and limits.


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "caf\u00e9", "~tx"])
def test_a_name_has_a_rule(db: engine.Database, name: str) -> None:
    with pytest.raises(engine.UsageError, match="is not a legal name: expected 1 to 64 letters, digits"):
        db.namespace(name)


def test_a_name_is_text(db: engine.Database) -> None:
    with pytest.raises(engine.UsageError, match="expected a str"):
        db.namespace(b"flights")  # type: ignore[call-overload]  # the mistake


def test_backups_are_what_the_cluster_keeps(db: engine.Database, request: pytest.FixtureRequest) -> None:
    kept = 2 if "cluster" in request.node.callspec.id else 0
    db.namespace("flights", backups=kept)
    with pytest.raises(engine.UsageError, match=f"and has {kept}: expected that"):
        db.namespace("flights", backups=5)


def test_namespaces_do_not_see_each_other(db: engine.Database, fresh: Name) -> None:
    one, other = db.namespace(fresh()), db.namespace(fresh())
    one.put(b"k", b"1")
    other.put(b"k", b"2")
    one.delete(b"k")
    assert (one.get(b"k"), other.get(b"k")) == (None, b"2")


def test_keys_have_1_to_400_bytes(ns: engine.Namespace[bytes, bytes], db: engine.Database) -> None:
    longest = b"k" * KEY_BYTES_MAX
    ns.put(longest, b"v")
    assert (ns.get(longest), list(ns.scan())) == (b"v", [(longest, b"v")])
    with db.transaction() as tx:
        tx.namespace(ns).put(longest, b"w")
    assert ns.get(longest) == b"w"
    for key in (b"", longest + b"k"):
        says = f"a key has {len(key)} bytes: expected 1 to 400"
        calls: list[Callable[[], object]] = [
            lambda key=key: ns.get(key),  # type: ignore[misc]  # mypy infers no lambda with a default
            lambda key=key: ns.put(key, b""),  # type: ignore[misc]
            lambda key=key: ns.delete(key),  # type: ignore[misc]
            lambda key=key: ns.get_many([b"a", key]),  # type: ignore[misc]
            lambda key=key: ns.put_many({b"a": b"", key: b""}),  # type: ignore[misc]
            lambda key=key: ns.delete_many([b"a", key]),  # type: ignore[misc]
            lambda key=key: ns.put_if_absent(key, b""),  # type: ignore[misc]
            lambda key=key: ns.replace(key, b"", b""),  # type: ignore[misc]
            lambda key=key: ns.pop(key, None),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(engine.UsageError, match=says):
                call()
        with db.transaction() as tx:
            for method, arguments in (("get", ()), ("get_for_update", ()), ("put", (b"",)), ("delete", ())):
                with pytest.raises(engine.UsageError, match=says):
                    getattr(tx.namespace(ns), method)(key, *arguments)
    assert len(list(ns.scan())) == 1, "a refused batch does nothing"


def test_values_have_up_to_16_mib(ns: engine.Namespace[bytes, bytes], db: engine.Database) -> None:
    largest = bytes(VALUE_BYTES_MAX)
    ns.put(b"k", largest)
    assert ns.get(b"k") == largest
    with db.transaction() as tx:
        inside = tx.namespace(ns)
        inside.put(b"k2", largest)
        with pytest.raises(engine.UsageError, match="a value has 16777217 bytes: expected at most 16777216"):
            inside.put(b"k3", largest + b"x")
    assert ns.get_many([b"k", b"k2", b"k3"]) == {b"k": largest, b"k2": largest}
    for call in (ns.put, ns.put_if_absent, lambda key, value: ns.replace(key, b"", value)):
        with pytest.raises(engine.UsageError, match="a value has 16777217 bytes: expected at most 16777216"):
            call(b"k3", largest + b"x")
    ns.delete_many([b"k", b"k2"])


def test_a_large_batch_in_one_partition_is_seen_whole_or_not_at_all(ns: engine.Namespace[bytes, bytes]) -> None:
    keys = [b"{one}%05d" % at for at in range(12_000)]
    seen: set[tuple[bytes | None, bytes | None]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            found = ns.get_many([keys[0], keys[-1]])
            seen.add((found.get(keys[0]), found.get(keys[-1])))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    for value in (b"old", b"new"):
        ns.put_many(dict.fromkeys(keys, value))
    over.set()
    joined(looking)
    assert all(first == last for first, last in seen), seen


def test_large_values_come_one_by_one_where_they_do_not_fit_together(ns: engine.Namespace[bytes, bytes]) -> None:
    rows = {b"{together}%d" % at: bytes([at]) * VALUE_BYTES_MAX for at in range(3)}
    with pytest.raises(engine.UsageError, match="of a batch are in partition"):
        ns.put_many(rows)  # it would have to be one record
    assert ns.get_many(rows) == {}
    for key, value in rows.items():
        ns.put(key, value)
    assert ns.get_many(rows) == rows
    assert dict(ns.scan()) == rows
    ns.delete_many(rows)
