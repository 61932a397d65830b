"""Transactions that are said at once, behind every door: all of it or nothing, in one request, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import engine
from engine import Check, Delete, Put
from engine.client.session import Links
from engine.protocol.addresses import Address
from engine.protocol.requests import CommitTx, KeepSessions, Request
from tests.support.patience import PATIENCE_SECONDS

Bytes = engine.Namespace[bytes, bytes]
Name = Callable[[], str]
PUT: Any = Put
ONE_MIB = bytes(1 << 20)


class Counted:
    """The ways to the nodes, and what went there."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self.said: list[Request] = []

    def connect(self, address: Address) -> None:
        """As ever."""
        self._links.connect(address)

    def send(self, address: Address, requests: list[Request]) -> None:
        """And keep it."""
        self.said += [request for request in requests if not isinstance(request, KeepSessions)]
        self._links.send(address, requests)

    async def close(self) -> None:
        """As ever."""
        await self._links.close()


@contextmanager
def counted(db: Any) -> Iterator[list[Request]]:
    """What a client asks meanwhile."""
    session = db._native.session
    links = session.links
    session.links = ways = Counted(links)
    try:
        yield ways.said
    finally:
        session.links = links


@pytest.fixture
def other(db: engine.Database, fresh: Name) -> engine.Namespace[str, Any]:
    """A second namespace, in another codec."""
    return db.namespace(fresh(), codec="json")


def test_it_writes_in_several_namespaces_at_once(db: engine.Database, ns: Bytes, other: Any) -> None:
    ns.put_many({b"old": b"1", b"same": b"1"})
    other.put("seen", 0)
    operations = [Put(ns, b"new%d" % number, b"v") for number in range(20)]
    with counted(db) as said:
        assert db.transact([*operations, Delete(ns, b"old"), Delete(ns, b"nobody"), Put(other, "seen", {"by": 1})])
    assert [type(request) for request in said] == [CommitTx], "one request, wherever the keys are"
    assert (ns.get(b"old"), ns.get(b"same"), len(ns.get_many([b"new%d" % n for n in range(20)]))) == (None, b"1", 20)
    assert other.get("seen") == {"by": 1}


def test_a_function_that_only_writes_is_one_request_if_it_is_optimistic(db: engine.Database, ns: Bytes) -> None:
    def write(tx: Any) -> None:
        tx.namespace(ns).put_many({b"k%d" % number: b"v" for number in range(20)})

    ns.put(b"k0", b"")
    with counted(db) as said:
        db.run(write, concurrency="OPTIMISTIC")
    assert [type(request) for request in said] == [CommitTx]
    assert ns.count() == 20


@pytest.mark.parametrize("keys", [(b"{t}a", b"{t}b"), (b"a", b"b")], ids=["in one partition", "in several"])
def test_conditions_hold_or_nothing_is_done(db: engine.Database, ns: Bytes, keys: tuple[bytes, bytes]) -> None:
    one, two = keys
    absent = keys[0] + b"{t}nobody"
    ns.put_many({one: b"1", two: b"2"})
    entry, late = ns.get_entry(one), ns.get_entry(two)
    assert entry is not None
    assert late is not None
    ns.put(two, b"2")

    def tried(*tests: Any) -> bool:
        before = dict(ns.scan())
        done = db.transact([Put(ns, b"{t}mark", b"%d" % (len(before) + 1)), Put(ns, b"mark", b"x"), *tests])
        assert done == (dict(ns.scan()) != before)
        if done:
            ns.put_many({**before, one: b"1"})
            ns.delete_many([b"{t}mark", b"mark", absent])
        return done

    assert tried(Check(ns, one))
    assert tried(Check(ns, one, if_value=b"1"), Check(ns, two, if_value=b"2"), Check(ns, absent, if_absent=True))
    assert not tried(Check(ns, absent))
    assert not tried(Check(ns, one, if_value=b"1"), Check(ns, two, if_value=b"1"))
    assert not tried(Check(ns, one, if_absent=True))
    assert not tried(Check(ns, two, if_version=late.version))
    assert not tried(Put(ns, two, b"9", if_version=late.version))
    assert not tried(Put(ns, one, b"9", if_absent=True))
    assert not tried(Delete(ns, one, if_value=b"2"))
    assert tried(Put(ns, absent, b"new", if_absent=True), Delete(ns, one, if_value=b"1"))
    found = ns.get_entry(one)
    assert found is not None
    assert tried(Put(ns, one, b"1", if_version=found.version), Put(ns, two, b"2", if_value=b"2"))


def test_who_counts_by_conditions_loses_nothing(db: engine.Database, ns: Bytes) -> None:
    """Four threads move marks between two keys: each move is made once, and each refusal is of what came first."""
    ns.put_many({b"a": b"0", b"b": b"0"})
    failures: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(10):
                while True:
                    found = ns.get_many([b"a", b"b"])
                    moved = [Put(ns, key, b"%d" % (int(value) + 1), if_value=value) for key, value in sorted(found.items())]
                    if db.transact(moved, attempts=100):
                        break
        except BaseException as error:  # told below
            failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert not failures
    assert ns.get_many([b"a", b"b"]) == {b"a": b"40", b"b": b"40"}


def test_it_gives_way_to_who_has_locks_and_says_so(db: engine.Database, ns: Bytes) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    holder = db.transaction()
    holder.namespace(ns).put(b"a", b"2")
    with pytest.raises(engine.Conflict):
        db.transact([Put(ns, b"a", b"3"), Put(ns, b"b", b"3")], attempts=2)
    with pytest.raises(engine.Conflict):
        db.transact([Put(ns, b"b", b"3"), Check(ns, b"a", if_value=b"1")], attempts=1)
    holder.rollback()
    assert ns.get_many([b"a", b"b"]) == {b"a": b"1", b"b": b"1"}
    assert db.transact([Put(ns, b"a", b"3"), Put(ns, b"b", b"3")])


@pytest.mark.parametrize(
    "given",
    [
        lambda ns: [],
        lambda ns: None,
        lambda ns: "put",
        lambda ns: [("put", b"k", b"v")],
        lambda ns: [Check(ns, b"k")],
        lambda ns: [Put(ns, b"k", b"v"), Delete(ns, b"k")],
        lambda ns: [Put(ns, "k", b"v")],
        lambda ns: [Put(ns, b"k", 3)],
        lambda ns: [Put(ns, b"k", b"v", if_absent=True, if_value=b"v")],
        lambda ns: [Put(ns, b"k", b"v", if_value=b"v", if_version=engine.Version(1, 1))],
        lambda ns: [PUT(ns, b"k", b"v", if_version=3)],
        lambda ns: [PUT(ns, b"k", b"v", if_absent=1)],
        lambda ns: [PUT("ns", b"k", b"v")],
        lambda ns: [Put(ns, b"", b"v")],
        lambda ns: [Put(ns, b"k%d" % number, ONE_MIB) for number in range(257)],
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    db: engine.Database, ns: Bytes, given: Callable[[Bytes], Any]
) -> None:
    with pytest.raises(engine.UsageError):
        db.transact(given(ns))
    assert ns.count() == 0
    for attempts in (0, "3", True, None):
        with pytest.raises(engine.UsageError):
            db.transact([Put(ns, b"k", b"v")], attempts=attempts)  # type: ignore[arg-type]  # that is what is tried


def test_who_would_wait_for_itself_is_told(db: engine.Database, ns: Bytes) -> None:
    if type(db) is not engine.Database:
        return  # `with` is of another task there
    with db.transaction() as tx:
        tx.namespace(ns).put(b"k", b"v")
        with pytest.raises(engine.UsageError, match="is locked by transaction"):
            db.transact([Put(ns, b"k", b"v")])
