"""What is no key or no value, and codecs of an application's own with their mistakes: each is told with its namespace, and
none reaches a node.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

import engine

Name = Callable[[], str]


def _codec(
    name: str,
    *,
    encode_key: Callable[[Any], Any] = str.encode,
    encode: Callable[[Any], Any] = str.encode,
    decode: Callable[[bytes], Any] = bytes.decode,
) -> engine.Codec[Any, Any]:
    """One of an application's own, with its mistakes."""
    return engine.Codec(name, encode_key, bytes.decode, encode, decode)


@pytest.mark.parametrize("made", [str, lambda _: None, lambda _: 5])
@pytest.mark.parametrize("what", ["key", "value"])
def test_what_a_codec_makes_that_is_not_bytes_is_refused_with_its_names(
    db: engine.Database, fresh: Name, what: str, made: Callable[[Any], Any]
) -> None:
    name = fresh()
    kind = type(made("k")).__name__
    codec = _codec("wrong", encode_key=made) if what == "key" else _codec("wrong", encode=made)
    ns = db.namespace(name, codec=codec)
    says = re.escape(f"{name}: codec 'wrong' made a {kind} of a {what}: expected bytes")
    calls: list[Callable[[], object]] = [lambda: ns.put("k", "v"), lambda: ns.put_many({"k": "v"})]
    calls += [lambda: db.transact([engine.Put(ns, "k", "v")]), lambda: ns.get_and_put("k", "v")]
    if what == "key":
        calls += [lambda: ns.get("k"), lambda: ns.get_many(["k"]), lambda: list(ns.scan(prefix="k"))]
    for call in calls:
        with pytest.raises(engine.UsageError, match=says):
            call()
    with pytest.raises(engine.UsageError, match=says), db.transaction() as tx:
        tx.namespace(ns).put("k", "v")
    assert list(db.namespace(fresh()).scan()) == [], "the database goes on"


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
def test_a_buffer_that_a_codec_made_is_kept_as_it_was(
    db: engine.Database, fresh: Name, kind: Callable[[bytes], Any]
) -> None:
    """A node in this process would keep the object: a key of that kind stopped it, a value changed with its maker's."""
    made: list[Any] = []

    def encode(text: str) -> Any:
        made.append(kind(text.encode()))
        return made[-1]

    ns = db.namespace(fresh(), codec=_codec("buffers", encode_key=encode, encode=encode))
    ns.put("ann", "1")
    with db.transaction() as tx:
        tx.namespace(ns).put("bob", "2")
    for buffer in made:
        buffer[0] = ord("x")
    assert list(ns.scan()) == [("ann", "1"), ("bob", "2")]


def test_what_a_codec_raises_when_it_reads_is_told_with_the_row(db: engine.Database, fresh: Name) -> None:
    def fail(_: bytes) -> str:
        raise LookupError("no such thing")

    name = fresh()
    ns = db.namespace(name, codec=_codec("failing", decode=fail))
    ns.put("ann", "1")
    with db.transaction() as tx, db.snapshot() as snapshot:
        inside, then = tx.namespace(ns), snapshot.namespace(ns)
        calls: list[Callable[[], object]] = [lambda: ns.get("ann"), lambda: list(ns.scan()), lambda: ns.get_many(["ann"])]
        calls += [
            lambda: inside.get("ann"),
            lambda: list(inside.scan()),
            lambda: then.get("ann"),
            lambda: list(then.scan()),
        ]
        for call in calls:
            with pytest.raises(LookupError, match="no such thing") as told:
                call()
            assert told.value.__notes__ == [f"codec 'failing' was reading {name}:'ann'"]


def test_what_cannot_be_a_key_or_a_value_is_told_with_the_namespace(db: engine.Database, fresh: Name) -> None:
    name = fresh()
    ns: engine.Namespace[Any, Any] = db.namespace(name, codec="str")
    with db.transaction() as tx:
        for place in (ns, tx.namespace(ns)):
            with pytest.raises(engine.UsageError, match=f"^{name}: a key has 500 bytes"):
                place.put("x" * 500, "v")
            with pytest.raises(engine.UsageError, match=f"^{name}, a key: expected str, found int"):
                place.put(5, "v")
            with pytest.raises(engine.UsageError, match=f"^{name}, a value: expected str, found list"):
                place.put("k", [])
            with pytest.raises(engine.UsageError, match=f"^{name}, a key: expected str, found int"):
                list(place.scan(start=5))


def test_what_a_codec_may_be_unable_to_read_is_read_once_where_it_is_taken_away(db: engine.Database, fresh: Name) -> None:
    read: list[bytes] = []

    def decode(data: bytes) -> str:
        read.append(data)
        return data.decode()

    ns = db.namespace(fresh(), codec=_codec("counting", decode=decode))
    ns.put("ann", "1")
    assert (ns.get_and_put("ann", "2"), ns.pop("ann"), ns.get_and_put("ann", "3"), ns.pop("bob", None)) == (
        "1",
        "2",
        None,
        None,
    )
    assert read == [b"1", b"2"]


def _plain(text: str) -> bytes:
    return text.encode()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((5, _plain, bytes.decode, _plain, bytes.decode), "a codec's name is 5: expected text"),
        (("", _plain, bytes.decode, _plain, bytes.decode), "a codec's name is '': expected text"),
        (("mine", "utf-8", bytes.decode, _plain, bytes.decode), "codec 'mine': encode_key is a str: expected a function"),
        (("mine", _plain, None, _plain, bytes.decode), "codec 'mine': decode_key is a NoneType: expected a function"),
        (("mine", _plain, bytes.decode, 5, bytes.decode), "codec 'mine': encode is a int: expected a function"),
        (("mine", _plain, bytes.decode, _plain, b""), "codec 'mine': decode is a bytes: expected a function"),
    ],
)
def test_what_cannot_be_a_codec_is_told_what_is_expected(given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(engine.UsageError, match=re.escape(says)):
        engine.Codec(*given)


def test_the_form_of_a_codec_is_text() -> None:
    with pytest.raises(engine.UsageError, match="codec 'mine': form is 5: expected text"):
        engine.Codec("mine", _plain, bytes.decode, _plain, bytes.decode, form=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["key", "value", "read"])
def test_who_cancels_in_a_codec_is_told_what_it_raised(db: engine.Database, fresh: Name, where: str) -> None:
    """It was told that the database was closed, which it is not."""

    def cancel(_: object) -> Any:
        raise asyncio.CancelledError("mine")

    name = fresh()
    ways: dict[str, Any] = {"key": {"encode_key": cancel}, "value": {"encode": cancel}, "read": {"decode": cancel}}
    ns = db.namespace(name, codec=_codec("cancelling", **ways[where]))
    with pytest.raises(asyncio.CancelledError, match="mine"):
        ns.put("ann", "1")
        ns.get("ann")
    assert db.namespace(name, codec=_codec("cancelling")).count() == (where == "read"), "the database goes on"
