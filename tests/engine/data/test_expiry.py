"""What expires, told with one node that is its own cluster: who is told what, and what is logged for it."""

from __future__ import annotations

import pytest

from engine.data.expiry import DELETED_AT_ONCE
from engine.protocol.requests import (
    Code,
    CommitTx,
    Done,
    Failed,
    Get,
    Lock,
    Put,
    Reply,
    Rows,
    Scan,
    Swap,
    Unlock,
    Values,
)
from engine.state.store import Entry
from engine.turn.events import Asked
from rebalance.deadlines import row_of, said
from tests.engine.data.test_sessions import Alone
from wal import records as r
from wal.ids import EXPIRIES, tx_of

CLIENT = b"a client.."


def put(number: int, key: bytes = b"k", value: bytes = b"v", ttl_ms: int = 0) -> Put:
    """A write whose value expires."""
    return Put(number, tx_of(CLIENT, number), "acc", [key], [value], ttl_ms=ttl_ms)


def swap(number: int, when: str, value: bytes | None = b"w", **more: object) -> Swap:
    """A conditional one."""
    return Swap(number, tx_of(CLIENT, number), "acc", b"k", when, None, value, **more)  # type: ignore[arg-type]


def value_in(reply: Reply) -> bytes | None:
    """The one value that was read."""
    assert isinstance(reply, Values)
    ((_, _, value),) = reply.values
    return value


def rows_in(reply: Reply) -> list[bytes]:
    """The keys that were found."""
    assert isinstance(reply, Rows)
    return reply.keys


class Story(Alone):
    """A node, and how long a value lasts there."""

    def deleted(self) -> list[bytes]:
        """What was deleted since somebody looked, in the order of the log."""
        found = [w for record in self.records if isinstance(record, r.Update) for w in record.writes if not w.tx]
        self.records.clear()
        return [key for w in found if w.namespace != EXPIRIES for key in w.keys]

    def read(self) -> bytes | None:
        """The value of the key."""
        return value_in(self.ask(Get(900, "acc", [b"k"])))

    def counted(self) -> int:
        """How many keys there are."""
        rows = self.ask(Scan(901, "acc", [0], b"", None, 1, count=True))
        assert isinstance(rows, Rows)
        return rows.count

    def stands(self) -> bool:
        """Whether the key has a row in the store, whatever the time."""
        held = self.node.core.replica.store.get(("acc", 0), b"k")
        return held is not None and held.value is not None


def test_a_value_is_there_until_its_time_has_come_and_is_deleted_before_anybody_is_told() -> None:
    alone = Story()
    assert alone.ask(put(1, ttl_ms=500)) == Done(1, version=alone.version)
    alone.turn([], later_ms=400)
    assert alone.read() == b"v"
    assert alone.deleted() == []
    alone.node.expiry.alarm.off()  # nobody looks by himself
    (told,) = alone.turn([Asked(1, Get(2, "acc", [b"k"]))], later_ms=200)
    assert value_in(told) is None
    assert alone.deleted() == [b"k"]
    assert not alone.stands()


def test_what_nobody_reads_is_deleted_too() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    alone.turn([], later_ms=499)
    assert alone.stands()
    alone.idle(2_000)
    assert not alone.stands()
    assert alone.deleted() == [b"k"]
    row = alone.node.core.replica.store.get((EXPIRIES, 0), row_of("acc", b"k"))
    assert row is None or row.value is None, "nothing is left of it"


def test_a_later_put_is_another_entry_and_stays() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    alone.ask(put(2, value=b"w"))
    alone.idle(3_000)
    assert alone.read() == b"w"
    assert alone.deleted() == []
    row = alone.node.core.replica.store.get((EXPIRIES, 0), row_of("acc", b"k"))
    assert row is None or row.value is None, "what was said of the first is gone"


def test_a_put_renews_and_the_time_may_be_shorter() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    alone.ask(put(2, ttl_ms=5_000))
    alone.idle(2_000)
    assert alone.read() == b"v"
    alone.ask(put(3, ttl_ms=500))
    alone.idle(1_500)
    assert not alone.stands()


def test_a_wall_clock_that_goes_back_brings_nothing_back() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    node = alone.node
    node.core.wall = 10_000
    assert alone.read() is None
    node.core.wall = 0
    assert alone.read() is None


def test_a_scan_passes_over_what_is_over() -> None:
    alone = Story()
    for number in range(1, 41):
        alone.ask(put(number, b"k%02d" % number, ttl_ms=500 if number % 2 else 0))
    alone.node.expiry.alarm.off()
    (told,) = alone.turn([Asked(1, Scan(100, "acc", [0], b"", None, 30))], later_ms=501)
    assert rows_in(told) == [b"k%02d" % number for number in range(2, 41, 2)]
    assert alone.deleted() == [b"k%02d" % number for number in range(1, 41, 2)]


def test_a_count_waits_for_what_is_over_to_be_deleted() -> None:
    alone = Story()
    for number in range(1, 41):
        alone.ask(put(number, b"k%02d" % number, ttl_ms=500 if number % 2 else 0))
    assert alone.counted() == 40
    alone.node.expiry.alarm.off()
    (told,) = alone.turn([Asked(1, Scan(100, "acc", [0], b"", None, 1, count=True))], later_ms=501)
    assert isinstance(told, Rows)
    assert told.count == 20
    assert alone.counted() == 20


def test_what_expired_is_absent_for_a_condition() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    assert alone.ask(swap(2, "absent")) == Done(2, False, b"v")
    (told,) = alone.turn([Asked(1, swap(3, "absent", ttl_ms=500))], later_ms=501)
    assert isinstance(told, Done)
    assert told.applied
    assert alone.read() == b"w"
    (told,) = alone.turn([Asked(1, swap(5, "present"))], later_ms=501)
    assert isinstance(told, Done)
    assert (told.applied, told.found) == (False, None)
    assert not alone.stands()


def test_what_is_kept_does_not_expire() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    kept = alone.ask(swap(2, "present", None, how="keep"))
    assert isinstance(kept, Done)
    assert kept.applied
    alone.idle(2_000)
    assert alone.read() == b"v"
    assert value_in(alone.ask(Get(3, "acc", [b"k"], expiry=True))) == b""


def test_whoever_asks_is_told_when() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=5_000))
    when = value_in(alone.ask(Get(2, "acc", [b"k"], expiry=True)))
    row = alone.node.core.replica.store.get((EXPIRIES, 0), row_of("acc", b"k"))
    assert row is not None
    assert row.value is not None
    assert when == b"%d" % said(row.value)[0]
    assert 4_900 <= int(when) - alone.node.core.wall_ms <= 5_000
    assert value_in(alone.ask(Get(3, "acc", [b"none"], expiry=True))) is None


def test_a_transaction_keeps_what_it_holds() -> None:
    alone = Story()
    owner = tx_of(CLIENT, 900)
    alone.ask(put(1, ttl_ms=500))
    assert value_in(alone.ask(Lock(2, owner, "acc", [b"k"], 1_000))) == b"v"
    alone.turn([], later_ms=700)
    assert alone.stands()
    assert alone.read() == b"v", "nothing changes under a transaction"
    assert alone.ask(Unlock(3, owner)) == Done(3)
    assert alone.read() is None


def test_a_transaction_that_comes_too_late_finds_nothing() -> None:
    alone = Story()
    owner = tx_of(CLIENT, 900)
    alone.ask(put(1, ttl_ms=500))
    alone.node.expiry.alarm.off()
    (told,) = alone.turn([Asked(1, Lock(2, owner, "acc", [b"k"], 1_000))], later_ms=600)
    assert value_in(told) is None
    assert alone.deleted() == [b"k"]
    assert alone.node.locks.holds(owner, ("acc", b"k"))


def test_what_is_handed_on_is_told_although_what_stood_before_it_has_expired() -> None:
    """The store has the entry of before, whose time is over, until the outcome counts."""
    alone, key = Story(), ("acc", b"k")
    ann, bob = tx_of(CLIENT, 900), tx_of(CLIENT, 901)
    locks = alone.node.locks
    alone.ask(put(1, ttl_ms=500))
    alone.node.expiry.alarm.off()
    assert value_in(alone.ask(Lock(2, ann, "acc", [b"k"], 1_000))) == b"v"
    assert alone.turn([Asked(1, Lock(3, bob, "acc", [b"k"], 10_000))]) == []
    alone.turn([], later_ms=700)
    locks.pin(ann, [key], [], in_doubt=True, sure=True)
    alone.records.clear()
    alone.node.core.resume(lambda: locks.certain(ann, ann, 0, lambda _: Entry(1, 9, b"new"), None))
    (told,) = alone.turn([])
    assert value_in(told) == b"new"
    assert alone.deleted() == []
    assert locks.in_doubt(key)


def test_what_is_large_is_deleted_in_pieces() -> None:
    alone = Story()
    count = 5 * DELETED_AT_ONCE
    keys = [b"k%05d" % number for number in range(count)]
    alone.ask(Put(1, tx_of(CLIENT, 1), "acc", keys, [b"v"] * count, ttl_ms=500))
    alone.records.clear()
    alone.idle(6_000)
    pieces = [len(w.keys) for e in alone.records if isinstance(e, r.Update) for w in e.writes if w.namespace == "acc"]
    assert sum(pieces) == count
    assert max(pieces) <= DELETED_AT_ONCE


def test_a_node_that_begins_anew_finds_in_its_rows_what_is_to_expire() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    (local,) = alone.node.core.local
    alone.node.expiry.activated(local)  # as if another had led until now
    assert not alone.node.expiry._deadlines
    alone.idle(2_000)
    assert not alone.stands()


@pytest.mark.parametrize("ttl_ms", [-2, 1 << 62])
def test_what_is_no_time_is_refused(ttl_ms: int) -> None:
    alone = Story()
    refused = alone.ask(put(1, ttl_ms=ttl_ms))
    assert isinstance(refused, Failed)
    assert refused.code == Code.USAGE


def test_a_condition_of_a_transaction_is_tried_again_when_what_is_over_is_gone() -> None:
    alone = Story()
    alone.ask(put(1, ttl_ms=500))
    alone.node.expiry.alarm.off()

    def commit(number: int) -> CommitTx:
        tx = tx_of(CLIENT, number)
        unless = ("acc", b"k", "absent", None, 0, 0)
        return CommitTx(number, tx, tx, True, [("acc", [b"j"], [b"w"])], [], [], conditions=[unless])

    (refused,) = alone.turn([Asked(1, commit(2))], later_ms=501)
    assert isinstance(refused, Failed)
    assert (refused.code, refused.retryable) == (Code.CONFLICT, True)
    done = alone.ask(commit(3))
    assert isinstance(done, Done)
    assert done.applied
