"""Settings of a namespace and its end, told with one node that is its own cluster: what is logged, and who is told what."""

from __future__ import annotations

import msgspec
import pytest

from engine.data.dropping import DELETED_AT_ONCE
from engine.messages import SetNamespace
from engine.protocol.requests import Admin, Code, CommitTx, Done, Failed, Get, Lock, Put, Report, Scan, Swap, Unlock, Values
from engine.turn.events import Asked, Event
from rebalance.deadlines import row_of
from rebalance.namespaces import Stands
from tests.engine.data.test_expiry import CLIENT, Story, rows_in, swap, value_in
from wal import records as r
from wal.ids import EXPIRIES, NO_VERSION, Version, tx_of

TTL_MS = 500


class Named(Story):
    """A node, and the operator of it."""

    def told(self, **arguments: str) -> Report | Failed:
        """What the operator is answered."""
        reply = self.ask(Admin(800, "namespaces", {name: [value] for name, value in arguments.items()}))
        assert isinstance(reply, Report | Failed)
        return reply

    def order(self, ttl_ms: int = 0, *, drop: bool = False, seen: str = "", wait_ms: int = 3_000) -> None:
        """Order something of the namespace as it stands, and wait for the map."""
        more = {"drop": ""} if drop else {}
        reply = self.told(name="acc", seen=seen or str(self.since), ttl_ms=str(ttl_ms), **more)
        assert isinstance(reply, Report), reply
        self.idle(wait_ms)

    @property
    def since(self) -> object:
        """Which version said what the map says of it."""
        said = self.node.core.namespaces.get("acc")
        return said.since if said is not None else NO_VERSION

    @property
    def is_now(self) -> str:
        """Whether it is there, as the map says."""
        said = self.node.core.namespaces.get("acc")
        return said.stands if said is not None else ""

    def has_deadline(self, key: bytes = b"k") -> bool:
        """Whether it is said when a key expires."""
        row = self.node.core.replica.store.get((EXPIRIES, 0), row_of("acc", key))
        return row is not None and row.value is not None

    def lives(self) -> list[bytes]:
        """The keys that have a row."""
        found = self.node.core.replica.store.page(("acc", 0), b"", 100_000).rows
        return [key for key, held in found if held.value is not None]


def test_what_is_put_without_a_time_lasts_as_long_as_its_namespace_says() -> None:
    alone = Named()
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"before"], [b"v"]))
    alone.order(TTL_MS)
    alone.ask(Put(2, tx_of(CLIENT, 2), "acc", [b"k", b"l"], [b"v", b"v"]))
    alone.ask(Put(3, tx_of(CLIENT, 3), "acc", [b"m"], [b"v"], ttl_ms=10_000))
    alone.ask(Put(4, tx_of(CLIENT, 4), "acc", [b"n"], [b"v"], ttl_ms=-1))
    alone.ask(Put(5, tx_of(CLIENT, 5), "other", [b"o"], [b"v"]))
    assert [key for key in (b"before", b"k", b"l", b"m", b"n") if alone.has_deadline(key)] == [b"k", b"l", b"m"]
    alone.idle(2_000)
    assert alone.lives() == [b"before", b"m", b"n"]
    assert value_in(alone.ask(Get(6, "other", [b"o"]))) == b"v"


def test_conditional_writes_and_transactions_begin_it_anew_and_keep_ends_it() -> None:
    alone = Named()
    alone.order(TTL_MS)
    alone.ask(swap(1, "absent"))
    assert alone.has_deadline()
    alone.ask(Swap(2, tx_of(CLIENT, 2), "acc", b"k", "present", None, None, how="keep"))
    alone.idle(2_000)
    assert alone.read() == b"w", "it was kept"
    writes = [("acc", [b"k", b"l", b"m"], [b"x", b"y", None])]
    ttls = [("acc", b"l", -1)]
    assert isinstance(alone.ask(CommitTx(3, tx_of(CLIENT, 3), tx_of(CLIENT, 3), True, writes, [], [], ttls=ttls)), Done)
    assert [key for key in (b"k", b"l", b"m") if alone.has_deadline(key)] == [b"k"]
    alone.idle(2_000)
    assert alone.lives() == [b"l"]


def test_deletes_write_no_deadlines() -> None:
    alone = Named()
    alone.order(TTL_MS)
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [None]))
    alone.ask(swap(2, "always", None))
    assert (EXPIRIES, 0) not in alone.node.core.replica.fragments


def test_a_drop_is_counted_deletes_and_the_name_begins_anew() -> None:
    alone = Named()
    keys = [b"k%03d" % n for n in range(2 * DELETED_AT_ONCE + 5)]
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", keys, [b"v"] * len(keys), ttl_ms=3_600_000))
    alone.records.clear()
    alone.order(drop=True)
    assert alone.is_now == Stands.DROPPED
    assert alone.lives() == []
    updates = [record for record in alone.records if isinstance(record, r.Update)]
    deleted = [key for update in updates for w in update.writes if w.namespace == "acc" for key in w.keys]
    assert sorted(deleted) == keys, "each was deleted by a record, once"
    assert max(len(update.writes[0].keys) for update in updates) <= DELETED_AT_ONCE
    assert not any(alone.has_deadline(key) for key in keys), "nothing is left of what was said of them"
    counter = alone.node.core.replica.fragments["acc", 0].counter
    assert counter.lwm == counter.hwm == 2 * len(keys)
    assert alone.counted() == 0
    alone.ask(Put(2, tx_of(CLIENT, 2), "acc", [b"k"], [b"new"]))
    assert alone.lives() == [b"k"]


def test_nobody_reads_or_writes_what_is_being_dropped_and_a_transaction_is_waited_for() -> None:
    alone = Named()
    owner = tx_of(CLIENT, 5)
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k", b"l"], [b"v", b"v"]))
    assert isinstance(alone.ask(Lock(2, owner, "acc", [b"k"], 1_000)), Values)
    alone.order(drop=True)
    assert alone.is_now == Stands.DROPPING
    assert alone.lives() == [b"k"], "what a transaction holds is not deleted under it"
    for request in (
        Get(3, "acc", [b"l"]),
        Get(3, "acc", [b"l"], stale=True),
        Put(3, tx_of(CLIENT, 3), "acc", [b"l"], [b"w"]),
        swap(3, "always"),
        Lock(3, owner, "acc", [b"l"], 1_000),
        Scan(3, "acc", [0], b"", None, 9),
        Scan(3, "acc", [0], b"", None, 9, count=True),
        CommitTx(3, tx_of(CLIENT, 4), owner, False, [("acc", [b"k"], [b"w"])], [], []),
    ):
        refused = alone.ask(request)
        assert isinstance(refused, Failed), request
        assert (refused.code, refused.retryable) == (Code.USAGE, False)
        assert "is being dropped" in refused.message
    alone.ask(Unlock(6, owner))
    alone.idle(1_000)
    assert (alone.is_now, alone.lives()) == (Stands.DROPPED, [])
    assert rows_in(alone.ask(Scan(7, "acc", [0], b"", None, 9))) == []


def test_what_is_prepared_is_waited_for_and_its_outcome_brings_nothing_back() -> None:
    alone = Named()
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    commit = CommitTx(2, tx_of(CLIENT, 2), tx_of(CLIENT, 2), True, [("acc", [b"l"], [b"w"])], [], [], prepare_only=True)
    alone.ask(commit)
    alone.order(drop=True)
    assert (alone.is_now, alone.lives()) == (Stands.DROPPING, [])
    assert isinstance(alone.ask(Unlock(4, tx_of(CLIENT, 2))), Done)
    alone.idle(2_000)
    assert (alone.is_now, alone.lives()) == (Stands.DROPPED, [])


def test_a_put_that_waited_for_a_transaction_is_refused_and_holds_nothing() -> None:
    alone = Named()
    owner = tx_of(CLIENT, 5)
    alone.ask(Put(9, tx_of(CLIENT, 9), "acc", [b"k"], [b"v"]))
    alone.ask(Lock(1, owner, "acc", [b"k"], 1_000))
    waiting: list[Event] = [Asked(1, Put(2, tx_of(CLIENT, 2), "acc", [b"k"], [b"v"]))]
    waiting.append(Asked(1, Lock(3, tx_of(CLIENT, 6), "acc", [b"k"], 5_000)))
    assert alone.turn(waiting) == []
    alone.order(drop=True, wait_ms=600)
    assert alone.is_now == Stands.DROPPING
    told = alone.turn([Asked(1, Unlock(4, owner))])
    told += alone.turn([], later_ms=100)
    assert sorted(reply.id for reply in told if isinstance(reply, Failed)) == [2, 3]
    alone.idle(1_000)
    assert (alone.is_now, len(alone.node.locks)) == (Stands.DROPPED, 0)


def test_an_order_on_what_stands_no_more_is_refused_and_a_late_one_is_void() -> None:
    alone = Named()
    alone.order(TTL_MS)
    first = str(alone.since)
    refused = alone.told(name="acc", seen="0.0", ttl_ms="9")
    assert isinstance(refused, Failed)
    assert "was changed meanwhile" in refused.message
    alone.order(drop=True)
    late = alone.node.membership.orders.namespaces
    major, _, minor = first.partition(".")
    order = SetNamespace("acc", Version(int(major), int(minor)), 9, drop=True)
    late.handle(order)
    version = alone.node.core.version
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    alone.idle(2_000)
    assert (alone.node.core.version, alone.lives()) == (version, [b"k"]), "a drop that comes late drops nothing"


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "~tx", "seen": "0.0", "ttl_ms": "1"},
        {"name": "a b", "seen": "0.0", "ttl_ms": "1"},
        {"name": "acc", "seen": "now", "ttl_ms": "1"},
        {"name": "acc", "seen": "1.1"},
        {"name": "acc", "seen": "0.0", "ttl_ms": "-1"},
        {"name": "acc", "seen": "0.0", "ttl_ms": "9" * 15},
        {"name": "acc", "seen": "0.0", "ttl_ms": "\N{ARABIC-INDIC DIGIT ONE}"},
    ],
)
def test_an_order_that_says_nothing_is_refused(arguments: dict[str, str]) -> None:
    alone = Named()
    refused = alone.told(**arguments)
    assert isinstance(refused, Failed)
    assert refused.code == Code.USAGE


def test_a_dropped_name_leaves_room_for_another() -> None:
    alone = Named()
    alone.node.core.settings = msgspec.structs.replace(alone.node.core.settings, namespaces_max=1)
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", [b"k"], [b"v"]))
    crowded = Put(2, tx_of(CLIENT, 2), "next", [b"k"], [b"v"])
    assert isinstance(alone.ask(crowded), Failed)
    alone.order(drop=True)
    assert isinstance(alone.ask(crowded), Done)
