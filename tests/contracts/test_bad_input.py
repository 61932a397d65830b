"""Whatever is given to the public API, it is done, or refused at the call with an error of ours: never another exception.

Every parameter of every public function is drawn from good and bad values of all kinds, by its signature: what is added to
the API is tried as well. A refusal is an `engine.Error`, and of a wrong argument a `UsageError`; KeyError is the dict's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import engine
from engine import aio
from engine.client.loop import Loop
from engine.testing import Cluster, cluster
from tests.contracts.driven import Driven


class Odd:
    """What nobody expects."""

    def __repr__(self) -> str:
        return "<Odd>"


class Unhashable(Odd):
    """What cannot be a key of a dict."""

    __hash__ = None  # type: ignore[assignment]


ANYTHING: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 1 << 70, 0.0, 0.5, -2.5, 1e-9, math.inf, -math.inf, math.nan),
    *("", "k", "key", "a b", "\0", "x" * 500, "é", "\ud800", "n" * 70, "\udcff", "json", "jsn", "PESSIMISTIC", "OPTIMISTC"),
    *(b"", b"k", b"x" * 401, bytearray(b"k"), memoryview(b"k"), b"\xff" * 10),
    *([], ["k"], [b"k"], [1], ["k", b"k"], [[]], [None], [("k", "v")], [("k",)], [("k", "v", 1)], ("k",), [b"k", b"k"]),
    *({}, {"k": "v"}, {b"k": b"v"}, {"k": None}, {1: 2}, {"k": {1, 2}}, {"s"}, frozenset({b"k"})),
    *(
        Odd(),
        Unhashable(),
        Odd,
        int,
        list[int],
        dict[str, int],
        object,
        lambda tx: 1,
        lambda: 1,
        iter(["k"]),
        Path("x"),
        1j,
    ),
    *(range(3), "0" * 32 + "@0", "0" * 32 + "@99999", "zz@0", "0" * 32 + "@" + "9" * 5000, "127.0.0.1:1"),
]
VALUES = st.sampled_from(ANYTHING)
KNOWN = {
    "timeout": st.sampled_from([None, 0.5, 1, 5.0]) | VALUES,
    "lock_timeout": st.sampled_from([0.05, 0.01]) | VALUES,
    "attempts": st.sampled_from([1, 2]) | VALUES.filter(lambda v: not isinstance(v, int | float) or v < 3),
    "limit": st.sampled_from([None, 1]) | VALUES,
    "function": st.sampled_from([lambda tx: 1, lambda tx: getattr(tx, "id", None)])
    | VALUES.filter(lambda given: not callable(given)),
    "codec": st.sampled_from([None, "str", "json", "msgpack", int, dict]) | VALUES,
    "name": st.sampled_from(["ns", "other"]) | VALUES,
    "namespace": st.sampled_from(["ns", "other"]) | VALUES,
}
FINE = (engine.Error, KeyError)


def public(of: type) -> list[str]:
    """The names of what an application may call."""
    special = ["__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__repr__", "__eq__"]
    special += ["__bool__", "__reversed__"]
    return [
        name
        for name, member in inspect.getmembers(of)
        if (not name.startswith("_") or name in special) and callable(member) and name not in {"close", "register"}
    ]


def draw_call(data: st.DataObject, call: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments that fit the signature, of any kind."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(call).parameters.values():
        values = KNOWN.get(parameter.name, VALUES)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and data.draw(st.booleans()):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = data.draw(values)
        else:
            given.append(data.draw(values))
    return given, named


def attempt(data: st.DataObject, what: str, call: Callable[..., Any]) -> None:
    """Call it with something; what is neither an answer nor a refusal of ours is a fault."""
    given, named = draw_call(data, call)
    try:
        result = call(*given, **named)
        if isinstance(result, Iterator):
            for _, _ in zip(range(5), result, strict=False):
                pass
        repr(result)
    except FINE:
        return
    except Exception as error:
        raise AssertionError(f"{what}(*{given!r}, **{named!r}) raised {type(error).__name__}: {error}") from error


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Database]:
    """A node in this process."""
    with engine.open(tmp_path_factory.mktemp("fuzzed"), partitions=2, durability="NONE", lock_timeout_ms=50) as database:
        yield database


PROFILE = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("codec", ["bytes", "str", "json", "msgpack", int])
@pytest.mark.parametrize("method", public(engine.Namespace))
@given(data=st.data())
@PROFILE
def test_a_namespace_refuses_what_it_cannot_do(db: engine.Database, method: str, codec: Any, data: st.DataObject) -> None:
    namespace = db.namespace(f"fuzzed-{getattr(codec, '__name__', codec)}", codec=codec)
    attempt(data, method, getattr(namespace, method))


@pytest.mark.parametrize("method", public(engine.Database))
@given(data=st.data())
@PROFILE
def test_a_database_refuses_what_it_cannot_do(db: engine.Database, method: str, data: st.DataObject) -> None:
    attempt(data, method, getattr(db, method))


@pytest.mark.parametrize("kind", [engine.Put, engine.Delete, engine.Check])
@given(data=st.data())
@PROFILE
def test_what_is_said_at_once_is_looked_at(db: engine.Database, kind: Any, data: st.DataObject) -> None:
    good = db.namespace("at-once", codec="json")

    def said(namespace: Any, key: Any, value: Any, **tests: Any) -> bool:
        return db.transact(
            [engine.Put(good, "k", 1), kind(namespace, key, *([value] if kind is engine.Put else []), **tests)]
        )

    tests = [
        "if_value",
        "if_version",
        *(["if_absent"] if kind is not engine.Delete else []),
        *(["ttl"] if kind is engine.Put else []),
    ]
    drawn = data.draw(st.dictionaries(st.sampled_from(tests), VALUES, max_size=2))
    namespace = data.draw(st.just(good) | VALUES)
    key = data.draw(st.sampled_from(["k", "other"]) | VALUES)
    attempt(data, kind.__name__, functools.partial(said, namespace, key, data.draw(VALUES), **drawn))


@pytest.mark.parametrize("codec", ["bytes", "json"])
@pytest.mark.parametrize("method", public(engine.api.TransactionNamespace))
@given(data=st.data())
@PROFILE
def test_a_transaction_refuses_what_it_cannot_do(db: engine.Database, method: str, codec: Any, data: st.DataObject) -> None:
    transaction = db.transaction(lock_timeout=0.05)
    try:
        attempt(data, method, getattr(transaction.namespace(f"in-{codec}", codec=codec), method))
    finally:
        transaction.rollback()


@pytest.mark.parametrize("codec", ["bytes", "json"])
@pytest.mark.parametrize("method", public(engine.api.SnapshotNamespace))
@given(data=st.data())
@PROFILE
def test_a_snapshot_refuses_what_it_cannot_do(db: engine.Database, method: str, codec: Any, data: st.DataObject) -> None:
    with db.snapshot() as snapshot:
        attempt(data, method, getattr(snapshot.namespace(f"past-{codec}", codec=codec), method))


@given(data=st.data())
@PROFILE
def test_a_transactions_namespace_is_looked_at(db: engine.Database, data: st.DataObject) -> None:
    transaction = db.transaction()
    try:
        attempt(data, "namespace", transaction.namespace)
    finally:
        transaction.rollback()


@given(
    addresses=VALUES.filter(lambda a: a != "127.0.0.1:1"),
    more=st.dictionaries(st.sampled_from(["timeout", "domain"]), VALUES),
)
@PROFILE
def test_connect_refuses_what_is_no_address(addresses: Any, more: dict[str, Any]) -> None:
    with pytest.raises(engine.UsageError):
        engine.connect(addresses, **more).close()


@given(name=st.sampled_from(["partitions", "backups", "durability", "checkpoint_ms", "domain", "nonsense"]), value=VALUES)
@PROFILE
def test_open_refuses_what_is_no_setting(tmp_path_factory: pytest.TempPathFactory, name: str, value: Any) -> None:
    directory = tmp_path_factory.mktemp("opened") / "node"
    try:
        engine.open(directory, **{name: value}).close()
    except engine.UsageError:
        assert not directory.exists() or not any(directory.iterdir()), "what is refused leaves nothing behind"


@given(path=VALUES)
@PROFILE
def test_open_refuses_what_is_no_path(path: Any) -> None:
    if isinstance(path, str | Path) and str(path).isprintable() and str(path):
        return
    with pytest.raises(engine.UsageError):
        engine.open(path).close()


@given(function=VALUES, first=VALUES)
@PROFILE
def test_what_is_no_function_of_a_transaction_is_refused_where_it_is_marked(function: Any, first: Any) -> None:
    try:
        marked: Any = engine.transactional(function)
    except engine.UsageError:
        assert not callable(function)
        return
    assert callable(function)
    with pytest.raises(engine.UsageError):
        marked(first)


@given(codec=VALUES)
@PROFILE
def test_keys_that_are_tuples_go_with_a_codec_only(codec: Any) -> None:
    with contextlib.suppress(engine.UsageError):
        assert isinstance(engine.by_tuple(codec), engine.Codec)


# Asynchronous: the same again, each in the form that is native.

FEW = settings(PROFILE, max_examples=25)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """A node in this process, by its asynchronous face."""
    loop = Loop()
    path = tmp_path_factory.mktemp("native")
    with Driven(loop.run(aio.open(path, partitions=2, durability="NONE", lock_timeout_ms=50)), loop) as database:
        yield database
    loop.stop()


def signed(driven: Driven, of: type, method: str) -> Callable[..., Any]:
    """A method that can be called here, with the signature that it has there."""
    there = getattr(of, method)
    call: Any = functools.wraps(there)(functools.partial(getattr(driven, method)))
    parameters = inspect.signature(there).parameters.values()
    call.__signature__ = inspect.Signature(list(parameters)[1:])
    return cast("Callable[..., Any]", call)


ASYNCHRONOUS = [(of, name) for of in (aio.Namespace, aio.Database) for name in public(of) if not name.startswith("_")]


@pytest.mark.parametrize(("of", "method"), [pair for pair in ASYNCHRONOUS if pair[1] not in {"run", "read", "did_commit"}])
@given(data=st.data())
@FEW
def test_the_asynchronous_form_refuses_what_it_cannot_do(
    native: Driven, of: type, method: str, data: st.DataObject
) -> None:
    face = native if of is aio.Database else native.namespace("native", codec="json")
    attempt(data, method, signed(face, of, method))


@pytest.mark.parametrize("method", [name for name in public(aio.TransactionNamespace) if not name.startswith("_")])
@given(data=st.data())
@FEW
def test_an_asynchronous_transaction_refuses_what_it_cannot_do(native: Driven, method: str, data: st.DataObject) -> None:
    transaction = native.transaction(lock_timeout=0.05)
    try:
        attempt(data, method, signed(transaction.namespace("inside", codec="json"), aio.TransactionNamespace, method))
    finally:
        transaction.rollback()


@pytest.mark.parametrize("method", ["run", "read"])
@given(function=VALUES, attempts=VALUES)
@FEW
def test_an_asynchronous_run_refuses_what_it_cannot_do(native: Driven, method: str, function: Any, attempts: Any) -> None:
    with pytest.raises(engine.UsageError):
        native._loop.run(getattr(native._native, method)(function, attempts=attempts))


# Clusters for an application's tests.


@pytest.mark.parametrize("what", ["nodes", "directory", "timeout", "partitions", "durability", "nonsense"])
@given(value=VALUES)
@PROFILE
def test_a_cluster_is_refused_before_a_process_is_started(
    what: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = {
        "nodes": isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 9,
        "directory": value is None or (isinstance(value, str | Path) and str(value).isprintable() and bool(str(value))),
        "timeout": isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf,
        "partitions": value == 1 and not isinstance(value, bool),
    }
    if good.get(what):
        return
    place = tmp_path_factory.mktemp("refused") / "nodes"
    with pytest.raises(engine.UsageError), cluster(**{"directory": place, what: value}):
        pass
    assert not place.exists()


@pytest.mark.parametrize("method", sorted({*public(Cluster)} - {"form", "wait_until_whole"}))
@given(data=st.data())
@PROFILE
def test_a_cluster_refuses_nodes_that_are_not_there(idle: Cluster, method: str, data: st.DataObject) -> None:
    attempt(data, method, getattr(idle, method))
    assert repr(idle) == "<Cluster one dead>"


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of which no node was started."""
    made = Cluster(tmp_path_factory.mktemp("idle"), ["one"], {}, timeout=0.1)
    yield made
    made.close()


# That nothing is left out, and that it would be noticed.


def test_every_public_name_is_tried() -> None:
    told = {name for name in engine.__all__ if not isinstance(getattr(engine, name), type)}
    assert told == {"by_tuple", "connect", "transactional"}, "a function that nothing here tries"
    kinds = {name for name in engine.__all__ if name not in told and not issubclass(getattr(engine, name), engine.Error)}
    assert kinds == {
        "Aged",
        "Codec",
        "Concurrency",
        "Database",
        "Check",
        "Delete",
        "Entry",
        "Isolation",
        "Namespace",
        "NamespaceInfo",
        "Put",
        "Snapshot",
        "Transaction",
        "Version",
    }
    assert {"nowait", "skip_locked"} <= set(inspect.signature(engine.api.TransactionNamespace.get_many).parameters)


@given(data=st.data())
@PROFILE
def test_another_exception_is_noticed(data: st.DataObject) -> None:
    def half(key: Any, *, limit: Any = None) -> Any:
        raise {0: ValueError, 1: TypeError, 2: AssertionError}[data.draw(st.integers(0, 2))](key)

    with pytest.raises(AssertionError, match=r"half\(\*.* raised (ValueError|TypeError|AssertionError): "):
        attempt(data, "half", half)
