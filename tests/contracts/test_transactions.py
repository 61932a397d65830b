"""Transactions behind every door: what they see, how they end, what they are protected from, and who tries again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import engine
from engine import aio
from tests.support.patience import PATIENCE_SECONDS

Name = Callable[[], str]
MODES = ("PESSIMISTIC", "OPTIMISTIC")
both_modes = pytest.mark.parametrize("mode", MODES)


class OurOwn(Exception):
    """Something that happens in an application."""


# What they see.


@both_modes
def test_a_transaction_reads_what_it_wrote(db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode) -> None:
    ns.put_many({b"a": b"1", b"b": b"2", b"c": b"3"})
    with db.transaction(concurrency=mode) as tx:
        inside = tx.namespace(ns)
        inside.put(b"a", b"10")
        inside.delete(b"b")
        inside.put_many([(b"d", b"4"), (b"d", b"5")])
        assert inside.get(b"a") == b"10"
        assert inside.get(b"b") is None
        assert inside.get(b"b", b"gone") == b"gone"
        assert inside.get_for_update(b"c") == b"3"
        assert inside.get_many([b"a", b"b", b"d", b"nope", b"a"]) == {b"a": b"10", b"d": b"5"}
        assert list(inside.scan()) == [(b"a", b"10"), (b"c", b"3"), (b"d", b"5")]
        assert list(inside.scan(start=b"b", end=b"d")) == [(b"c", b"3")]
        assert list(inside.scan(prefix=b"d")) == [(b"d", b"5")]
        assert list(inside.scan(limit=2)) == [(b"a", b"10"), (b"c", b"3")]
        assert list(inside.scan(limit=0)) == []
    assert list(ns.scan()) == [(b"a", b"10"), (b"c", b"3"), (b"d", b"5")]


@both_modes
def test_nobody_sees_a_transaction_before_its_end(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    with db.transaction(concurrency=mode) as tx:
        tx.namespace(ns).put(b"a", b"1")
        assert ns.get(b"a") is None
    assert ns.get(b"a") == b"1"


def test_a_namespace_inside_is_named_or_given(db: engine.Database, fresh: Name) -> None:
    accounts = db.namespace(fresh(), codec="json")
    with db.transaction() as tx:
        tx.namespace(accounts).put("ann", [1])
        tx.namespace(accounts.name, codec="json").put("bob", [2])
        assert tx.namespace(accounts.name, codec="json").get("bob") == [2]
        assert (tx.namespace(accounts).name, tx.namespace(accounts).codec) == (accounts.name, accounts.codec)
    assert dict(accounts.scan()) == {"ann": [1], "bob": [2]}


# How they end.


@both_modes
def test_a_transaction_over_many_partitions_and_namespaces_is_one(db: engine.Database, fresh: Name, mode: aio.Mode) -> None:
    one, other = db.namespace(fresh()), db.namespace(fresh())
    keys = [b"k%d" % at for at in range(40)]
    with db.transaction(concurrency=mode) as tx:
        tx.namespace(one).put_many(dict.fromkeys(keys, b"1"))
        tx.namespace(other).put_many(dict.fromkeys(keys, b"2"))
    assert (len(one.get_many(keys)), len(other.get_many(keys))) == (40, 40)
    assert db.transaction_status(tx.id) == "committed"


def test_what_is_more_than_a_record_holds_is_one_transaction_in_one_partition(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    values = {b"{one}%d" % number: bytes([number]) * (6 << 20) for number in range(3)}
    with db.transaction(timeout=PATIENCE_SECONDS) as tx:
        tx.namespace(ns).put_many(values)
        tx.namespace(ns).put(b"beside", b"1")
    assert all(ns.get(key) == value for key, value in values.items())
    assert ns.get(b"beside") == b"1"
    with db.transaction(timeout=PATIENCE_SECONDS) as tx:
        for key in values:
            tx.namespace(ns).delete(key)
    assert ns.count() == 1


@both_modes
@pytest.mark.parametrize("error", [OurOwn, KeyboardInterrupt, engine.UsageError])
def test_an_exception_rolls_back(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode, error: type[BaseException]
) -> None:
    ns.put(b"a", b"1")
    with pytest.raises(error), db.transaction(concurrency=mode) as tx:
        tx.namespace(ns).put(b"a", b"2")
        tx.namespace(ns).put(b"b", b"2")
        raise error("no")
    assert list(ns.scan()) == [(b"a", b"1")]
    assert db.transaction_status(tx.id) == "aborted"
    ns.put(b"a", b"3")  # and its locks are gone


@both_modes
def test_what_was_ended_by_hand_is_left_alone_by_the_with(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    with db.transaction(concurrency=mode) as tx:
        tx.namespace(ns).put(b"a", b"1")
        tx.commit()
        assert ns.get(b"a") == b"1"
    with db.transaction(concurrency=mode) as tx:
        tx.namespace(ns).put(b"a", b"2")
        tx.rollback()
        tx.rollback()
    assert ns.get(b"a") == b"1"


@both_modes
def test_after_its_end_a_transaction_is_over(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    for end in ("commit", "rollback"):
        with db.transaction(concurrency=mode, label="mine") as tx:
            inside = tx.namespace(ns)
            inside.put(b"a", b"1")
            getattr(tx, end)()
        calls: list[Callable[[], object]] = [
            lambda inside=inside: inside.get(b"a"),  # type: ignore[misc]  # mypy infers no lambda with a default
            lambda inside=inside: inside.put(b"a", b""),  # type: ignore[misc]
            lambda inside=inside: inside.delete(b"a"),  # type: ignore[misc]
            lambda inside=inside: list(inside.scan()),  # type: ignore[misc]
            tx.commit,
        ]
        for call in calls:
            with pytest.raises(engine.UsageError, match="the transaction mine is over: it was "):
                call()
        with pytest.raises(engine.UsageError, match="was used already"), tx:
            pass


def test_a_transaction_is_entered_once(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    with pytest.raises(engine.UsageError, match="was used already"), db.transaction() as tx:
        tx.namespace(ns).put(b"a", b"1")
        with tx:
            pass
    assert ns.get(b"a") is None


def test_a_transaction_that_did_nothing_ends_quietly(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    with db.transaction():
        pass
    with db.transaction() as tx:
        tx.namespace(ns).put_many({})
        assert tx.namespace(ns).get_many([]) == {}


def test_a_transaction_has_a_largest_size(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    most = bytes(16 << 20)
    with db.transaction(label="large") as tx:
        inside = tx.namespace(ns)
        with pytest.raises(
            engine.UsageError,
            match="the writes of transaction large would have 285212696 bytes: expected at most 268435456",
        ):
            inside.put_many({b"%d" % number: most for number in range(17)})
        inside.put(b"a", most)
        inside.put(b"a", b"small")
        inside.put(b"b", b"small")
    assert dict(ns.scan()) == {b"a": b"small", b"b": b"small"}


@both_modes
def test_a_transaction_that_is_larger_than_a_request_is_all_or_nothing(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: Any
) -> None:
    """It is staged before: deletes, times to live and what it has read go with it as with any other."""
    ns.put_many({b"old": b"1", b"read": b"1"})
    values = {b"k%d" % number: b"%d" % number + bytes(1 << 20) for number in range(40)}
    for stale in (True, False):
        tx = db.transaction(concurrency=mode, isolation="SERIALIZABLE", timeout=PATIENCE_SECONDS)
        inside = tx.namespace(ns)
        assert inside.get(b"read") == b"1"
        inside.put_many(values)
        inside.put(b"fleeting", b"1", ttl=600)
        inside.delete(b"old")
        if stale and mode == "OPTIMISTIC":
            ns.put(b"read", b"1")
            with pytest.raises(engine.Conflict):
                tx.commit()
            assert sorted(dict(ns.scan())) == [b"old", b"read"], "nothing of it was written"
        elif not stale:
            assert dict(inside.scan(start=b"x")) == {}, "so that it is prepared before it is decided"
            tx.commit()
            assert db.transaction_status(tx.id) == "committed"
        else:
            tx.rollback()
    assert dict(ns.scan()) == {**values, b"fleeting": b"1", b"read": b"1"}
    assert ns.expires_at(b"fleeting") is not None
    assert ns.expires_at(b"k39") is None


# What they are protected from.


def test_a_pessimistic_transaction_keeps_others_from_what_it_touched(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    tx = db.transaction()  # in no `with`: nobody knows that the others are begun by whoever began it
    inside = tx.namespace(ns)
    inside.get(b"a")
    inside.put(b"b", b"2")
    for key, read in ((b"a", "get_for_update"), (b"b", "get"), (b"b", "get_for_update")):
        with db.transaction(lock_timeout=0.05) as other:
            with pytest.raises(engine.LockTimeout) as caught:
                getattr(other.namespace(ns), read)(key)
            assert caught.value.retryable
            assert not caught.value.maybe_committed
    assert inside.get(b"a") == b"1"
    tx.commit()
    with db.transaction() as other:
        assert other.namespace(ns).get(b"b") == b"2"


def test_many_read_a_key_at_once_and_nobody_writes_it_meanwhile(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put(b"a", b"1")
    readers = [db.transaction() for _ in range(5)]
    assert [tx.namespace(ns).get(b"a") for tx in readers] == [b"1"] * 5
    with pytest.raises(engine.LockTimeout), db.transaction(lock_timeout=0.05) as tx:
        tx.namespace(ns).put(b"a", b"2")
    with pytest.raises(engine.LockTimeout), db.transaction(lock_timeout=0.05) as tx:
        tx.namespace(ns).delete(b"a")
    for tx in readers:
        assert tx.namespace(ns).get(b"a") == b"1"
        tx.commit()
    assert ns.get(b"a") == b"1"


def test_its_only_reader_writes_a_key_at_once_and_others_wait(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put(b"a", b"1")
    tx, other = db.transaction(lock_timeout=0.05), db.transaction(lock_timeout=0.05)
    inside = tx.namespace(ns)
    assert inside.get(b"a") == b"1"
    assert other.namespace(ns).get(b"a") == b"1"
    with pytest.raises(engine.LockTimeout):
        inside.put(b"a", b"2")
    assert inside.get(b"a") == b"1", "it still reads it"
    other.commit()
    inside.put(b"a", b"2")
    with pytest.raises(engine.LockTimeout), db.transaction(lock_timeout=0.05) as late:
        late.namespace(ns).get(b"a")
    tx.commit()
    assert ns.get(b"a") == b"2"


def test_of_two_who_read_and_want_to_write_one_gives_way(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"a", b"0")
    both, refused = threading.Barrier(2), list[engine.Error]()

    def add(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        found = int(inside.get(b"a") or b"0")
        with suppress(threading.BrokenBarrierError):
            both.wait(PATIENCE_SECONDS)
        both.abort()  # the second attempt meets nobody
        try:
            inside.get_for_update(b"a")
        except engine.LockTimeout as error:
            refused.append(error)
            raise
        inside.put(b"a", b"%d" % (found + 1))

    with ThreadPoolExecutor(2) as adding:
        for done in [adding.submit(db.run, add, lock_timeout=PATIENCE_SECONDS) for _ in range(2)]:
            done.result(PATIENCE_SECONDS)
    assert [type(error) for error in refused] == [engine.Deadlock]
    assert ns.get(b"a") == b"2"


def test_a_lock_that_was_not_got_can_be_asked_for_again(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"a", b"1")
    with db.transaction(lock_timeout=0.05) as tx:
        inside = tx.namespace(ns)
        other = db.transaction()
        other.namespace(ns).put(b"a", b"2")
        with pytest.raises(engine.LockTimeout):
            inside.get(b"a")
        other.commit()
        assert inside.get(b"a") == b"2"
        inside.put(b"a", b"3")
    assert ns.get(b"a") == b"3"


def test_an_optimistic_transaction_fails_if_what_it_read_has_changed(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    for meanwhile in (lambda: ns.put(b"a", b"9"), lambda: ns.delete(b"a"), lambda: ns.put(b"new", b"9")):
        ns.put(b"a", b"1")
        ns.delete(b"new")
        with pytest.raises(engine.Conflict) as caught, db.transaction(concurrency="OPTIMISTIC") as tx:
            inside = tx.namespace(ns)
            inside.get_many([b"a", b"new"])
            meanwhile()
            inside.put(b"b", b"2")
        assert caught.value.retryable
        assert not caught.value.maybe_committed
        assert caught.value.tx_id == tx.id
        assert ns.get(b"b") == b"1", "nothing of it happened"


def test_an_optimistic_transaction_that_only_read_is_checked_too(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    ns.put_many({b"a": b"1", b"b": b"1"})
    with pytest.raises(engine.Conflict), db.transaction(concurrency="OPTIMISTIC") as tx:
        inside = tx.namespace(ns)
        before = inside.get(b"a")
        with db.transaction() as other:
            other.namespace(ns).put_many({b"a": b"2", b"b": b"2"})
        assert (before, inside.get(b"b"), inside.get(b"a")) == (b"1", b"2", b"1"), "two halves that never were"


def test_what_an_optimistic_transaction_writes_unread_conflicts_with_nobody(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    with db.transaction(concurrency="OPTIMISTIC") as tx:
        tx.namespace(ns).put(b"a", b"1")
        ns.put(b"a", b"9")
    assert ns.get(b"a") == b"1"


@both_modes
def test_a_transaction_may_be_shared_by_threads(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    ns.put_many({b"k%d" % at: b"v%d" % at for at in range(8)})
    with db.transaction(concurrency=mode) as tx, ThreadPoolExecutor(8) as threads:
        inside = tx.namespace(ns)
        found = list(threads.map(lambda at: inside.get(b"k%d" % (at % 8)), range(32)))
        list(threads.map(lambda at: inside.put(b"k%d" % at, b"w"), range(8)))
    assert found == [b"v%d" % (at % 8) for at in range(32)]
    assert [value for _, value in ns.scan()] == [b"w"] * 8


# Time.


@both_modes
def test_a_transaction_that_takes_too_long_is_rolled_back(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    ns.put(b"a", b"1")
    with pytest.raises(engine.TransactionTimeout, match=r"slow took longer than its timeout of 0\.1 s") as caught:
        with db.transaction(concurrency=mode, timeout=0.1, label="slow") as tx:
            tx.namespace(ns).put(b"a", b"2")
            time.sleep(0.12)
            tx.namespace(ns).put(b"b", b"2")
    assert caught.value.retryable
    with pytest.raises(engine.TransactionTimeout), db.transaction(concurrency=mode, timeout=0.1) as tx:
        tx.namespace(ns).put(b"a", b"2")
        time.sleep(0.12)
    assert list(ns.scan()) == [(b"a", b"1")]


class _Passing:
    """A clock on which a minute passes between any two looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * 60.0


@both_modes
def test_its_time_may_be_over_at_any_moment(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    for looks in range(1, 16):
        with monkeypatch.context() as patch:
            patch.setattr(db._native.session, "seconds", _Passing())
            try:
                with db.transaction(concurrency=mode, isolation="REPEATABLE_READ", timeout=(looks + 0.5) * 60) as tx:
                    tx.namespace(ns).get(b"a")
                    tx.namespace(ns).put(b"b", b"1")
            except engine.TransactionTimeout:
                ended.append(looks)
    assert ended, "some of them were over in the middle"


@both_modes
def test_who_is_told_of_a_commit_does_not_meet_it_again(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    for at in range(40):
        with db.transaction(concurrency=mode) as tx:
            inside = tx.namespace(ns)
            seen = inside.get(b"a")
            assert seen == (b"%d" % (at - 1) if at else None)
            inside.put_many(dict.fromkeys((b"a", b"b", b"c", b"d"), b"%d" % at))


def test_a_transaction_that_is_never_ended_gives_its_locks_back_at_its_time(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    locked = False
    while not locked:
        forgotten = db.transaction(timeout=1.0)
        with suppress(engine.TransactionTimeout):  # a machine that stood still for so long
            forgotten.namespace(ns).put(b"a", b"1")
            locked = True
    with db.transaction(timeout=PATIENCE_SECONDS, lock_timeout=PATIENCE_SECONDS) as tx:
        tx.namespace(ns).put(b"a", b"2")
    assert ns.get(b"a") == b"2"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_are_above_nothing(db: engine.Database, seconds: float) -> None:
    for name in ("timeout", "lock_timeout"):
        with pytest.raises(engine.UsageError, match=rf"^{name} is .*: expected a number of seconds above 0"):
            db.transaction(**{name: seconds})  # type: ignore[arg-type]  # a name of a number


# Modes.


@pytest.mark.parametrize("concurrency", list(engine.Concurrency))
@pytest.mark.parametrize("isolation", list(engine.Isolation))
def test_six_modes_are_there(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], concurrency: engine.Concurrency, isolation: engine.Isolation
) -> None:
    texts: Any = (str(concurrency), str(isolation))
    for given in ((concurrency, isolation), texts, (concurrency, None)):
        with db.transaction(concurrency=given[0], isolation=given[1]) as tx:
            tx.namespace(ns).put(b"a", b"1")


@pytest.mark.parametrize("mode", [{"concurrency": "HOPEFUL"}, {"isolation": "SNAPSHOT"}])
def test_a_mode_that_was_never_heard_of_is_refused(db: engine.Database, mode: dict[str, str]) -> None:
    with pytest.raises(engine.UsageError, match="expected PESSIMISTIC or OPTIMISTIC, and READ_COMMITTED, "):
        db.transaction(**mode)  # type: ignore[arg-type]  # names of texts


# Ids.


@pytest.mark.parametrize("id_", ["", "0" * 32, "zz@1", "00@1", "0" * 32 + "@", "0" * 32 + "@x", None])
def test_an_id_has_a_form(db: engine.Database, id_: Any) -> None:
    with pytest.raises(engine.UsageError, match="is not a transaction id: expected 32 hex digits, '@' and a partition"):
        db.transaction_status(id_)


def test_the_id_that_a_transaction_has_before_its_end_is_the_one_to_ask_about_after_it(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    with db.transaction() as tx:
        tx.namespace(ns).put(b"a", b"1")
        before = tx.id
    assert tx.id == before
    assert db.transaction_status(before) == "committed"
    with pytest.raises(OurOwn), db.transaction() as tx:
        tx.namespace(ns).put(b"a", b"2")
        before = tx.id
        raise OurOwn
    assert tx.id == before
    assert db.transaction_status(before) == "aborted"


def test_a_transaction_nobody_heard_of_is_aborted_and_stays_so(
    db: engine.Database, ns: engine.Namespace[bytes, bytes]
) -> None:
    with pytest.raises(engine.Conflict), db.transaction() as tx:
        tx.namespace(ns).put(b"a", b"1")
        assert db.transaction_status(tx.id) == "aborted"
        assert db.transaction_status(tx.id) == "aborted"
    assert db.transaction_status(tx.id) == "aborted"
    assert ns.get(b"a") is None
    with pytest.raises(engine.UsageError, match="partition 99999 does not exist"):
        db.transaction_status("0" * 32 + "@99999")


# Mistakes.


def test_a_namespace_of_another_database_is_refused(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with engine.open(tmp_path_factory.mktemp("other"), partitions=1) as other, db.transaction() as tx:
        for wrong in (other.namespace("x"), other.namespace("x")._native, 7, None):
            with pytest.raises(engine.UsageError, match=r"of another database|expected a namespace of engine"):
                tx.namespace(wrong)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(engine.UsageError, match="has its codec"):
            tx.namespace(ns, codec="json")  # type: ignore[call-overload]  # the mistake


# Trying again.


def test_run_returns_what_the_function_does_and_commits(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    def work(tx: engine.Transaction) -> str:
        tx.namespace(ns).put(b"a", b"1")
        return "done"

    assert db.run(work) == "done"
    assert ns.get(b"a") == b"1"


@both_modes
def test_run_tries_again_what_may_succeed_and_not_for_ever(
    db: engine.Database, ns: engine.Namespace[bytes, bytes], mode: aio.Mode
) -> None:
    tried: list[str] = []

    def in_vain(tx: engine.Transaction) -> None:
        tried.append(tx.id)
        tx.namespace(ns).put(b"a", b"%d" % len(tried))
        raise engine.Conflict("once more")

    def at_last(tx: engine.Transaction) -> int:
        tried.append(tx.id)
        tx.namespace(ns).put(b"a", b"%d" % len(tried))
        if len(tried) < 4:
            raise engine.LockTimeout("once more")
        return len(tried)

    with pytest.raises(engine.Conflict):
        db.run(in_vain, attempts=3, concurrency=mode)
    assert (len(tried), len(set(tried)), ns.get(b"a")) == (3, 3, None), "each try is a transaction of its own"
    tried.clear()
    assert db.run(at_last, concurrency=mode) == 4
    assert ns.get(b"a") == b"4"


def test_run_does_not_try_again_what_cannot_succeed(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    for error in (OurOwn, engine.UsageError, engine.CommitUnknown):
        tried: list[str] = []

        def work(tx: engine.Transaction, tried: list[str] = tried, error: type[BaseException] = error) -> None:
            tried.append(tx.id)
            tx.namespace(ns).put(b"a", b"1")
            raise error("no")

        with pytest.raises(error):
            db.run(work)
        assert (len(tried), ns.get(b"a")) == (1, None)


def test_run_refuses_what_it_cannot_do(db: engine.Database) -> None:
    with pytest.raises(engine.UsageError, match="attempts is 0: expected a whole number, at least 1"):
        db.run(lambda tx: None, attempts=0)
    with pytest.raises(TypeError, match=r"run\(\) got an unexpected keyword argument 'tries': expected attempts, conc"):
        db.run(lambda tx: None, tries=3)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(engine.UsageError, match="expected PESSIMISTIC or OPTIMISTIC"):
        db.run(lambda tx: None, isolation="SNAPSHOT")  # type: ignore[arg-type]  # a mode that there is not


@both_modes
def test_counters_that_many_increment_count_everything(db: engine.Database, fresh: Name, mode: aio.Mode) -> None:
    ns = db.namespace(fresh(), codec="json")

    def add(tx: engine.Transaction) -> None:
        inside = tx.namespace(ns)
        for key in ("a", "b"):
            inside.put(key, inside.get_for_update(key, 0) + 1)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(lambda: db.run(add, attempts=1000, concurrency=mode)) for _ in range(40)]:
            done.result()
    assert dict(ns.scan()) == {"a": 40, "b": 40}


def test_run_within_run_is_another_transaction(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    def deep(tx: engine.Transaction, depth: int = 12) -> int:
        tx.namespace(ns).put(b"k%d" % depth, b"")
        return 1 + db.run(lambda inner: deep(inner, depth - 1)) if depth else 1

    assert db.run(deep) == 13
    assert len(list(ns.scan())) == 13


def test_a_blocking_function_runs_where_it_was_called(tmp_path_factory: pytest.TempPathFactory) -> None:
    with engine.open(tmp_path_factory.mktemp("thread"), partitions=1) as db:
        assert db.run(lambda _: threading.current_thread()) is threading.current_thread()


def test_who_holds_a_lock_is_told_by_name(db: engine.Database, ns: engine.Namespace[bytes, bytes]) -> None:
    ns.put(b"k", b"1")
    holder, waiter = db.transaction(label="salary"), db.transaction(label="audit", lock_timeout=0.3)
    try:
        assert holder.namespace(ns).get_for_update(b"k") == b"1"
        with pytest.raises(engine.LockTimeout) as caught:
            waiter.namespace(ns).get(b"k")
        said = str(caught.value)
        assert re.fullmatch(
            r"waited 300 ms for a lock on \S+: "
            + re.escape(f"{ns.name}:{b'k'!r}")
            + r" held by 'salary' \([0-9a-f]{32}\) for \d+\.\d s",
            said,
        ), said
    finally:
        holder.rollback()
        waiter.rollback()


@pytest.mark.parametrize(
    ("label", "says"), [("x" * 201, "a label has 201 characters: expected at most 200"), (3, "a label is 3")]
)
def test_a_label_is_a_short_text(db: engine.Database, label: str, says: str) -> None:
    with pytest.raises(engine.UsageError, match=says):
        db.transaction(label=label)


def test_many_claim_from_one_range_and_each_row_is_claimed_once(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    names = [f"job-{n:03d}" for n in range(40)]
    jobs.put_many(dict.fromkeys(names, "to do"))
    first, second = db.transaction(), db.transaction(isolation="SERIALIZABLE")
    mine = first.namespace(jobs)
    assert [key for key, _ in mine.scan(limit=2, skip_locked=True)] == names[:2], "the first ones, where they are free"
    mine.delete(names[0])
    mine.put("job-", "its own")
    assert [key for key, _ in mine.scan(limit=2, skip_locked=True)] == ["job-", names[1]], "with what it has written"
    others = [key for key, _ in second.namespace(jobs).scan(limit=3, skip_locked=True)]
    assert len(others) == 3
    assert not {*names[:2], "job-"} & set(others), "what another one has claimed is left out"
    rest = [key for key, _ in second.namespace(jobs).scan(skip_locked=True)]
    assert rest == names[2:], "without a limit, all that is free"
    with db.transaction() as third:
        assert list(third.namespace(jobs).scan(limit=1, skip_locked=True)) == []
    first.commit()
    second.commit()
    assert [key for key, _ in jobs.scan()] == ["job-", *names[1:]]
    with db.transaction(concurrency="OPTIMISTIC") as tx, pytest.raises(engine.UsageError, match="claims nothing"):
        list(tx.namespace(jobs).scan(limit=1, skip_locked=True))


def test_what_was_committed_a_moment_ago_can_be_claimed(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    for number in range(20):
        names = [f"job-{number}-{part}" for part in range(4)]
        with db.transaction() as tx:
            tx.namespace(jobs).put_many(dict.fromkeys(names, "to do"))
        with db.transaction() as tx:
            inside = tx.namespace(jobs)
            (found,) = inside.scan(limit=1, skip_locked=True)
            assert found[0] in names, "its outcome may be on its way yet"
            for key in names:
                inside.delete(key)


def test_what_a_transaction_has_locked_is_among_what_it_claims(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    jobs.put_many(dict.fromkeys("abcde", "to do"))
    with db.transaction() as tx, db.transaction() as other:
        inside = tx.namespace(jobs)
        assert inside.get("a") == "to do"  # which locks it to read
        assert inside.get_for_update("b") == "to do"
        assert inside.get("nothing") is None
        inside.delete("c")
        assert other.namespace(jobs).get_for_update("d") == "to do"
        assert [key for key, _ in inside.scan(limit=3, skip_locked=True)] == ["a", "b", "e"]
        assert [key for key, _ in inside.scan(limit=2, skip_locked=True)] == ["a", "b"]
        assert [key for key, _ in inside.scan(limit=2, skip_locked=True, start="x", end="c")] == []


def test_who_does_not_wait_is_told_at_once(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    jobs.put_many({"a": "1", "b": "2"})
    with db.transaction(label="holder") as holder:
        holder.namespace(jobs).get_for_update("a")
        other = db.transaction(lock_timeout=30.0)
        inside = other.namespace(jobs)
        with pytest.raises(engine.LockTimeout, match=r"waited 0 ms for a lock on .* held by 'holder'"):
            inside.get_for_update("a", nowait=True)
        with pytest.raises(engine.LockTimeout):
            inside.get_many(["a", "b"], nowait=True)
        assert inside.get_for_update("b", nowait=True) == "2"
        other.rollback()
    with db.transaction() as tx:
        assert tx.namespace(jobs).get_for_update("a", nowait=True) == "1", "the lock went with its transaction"


def test_many_claim_from_one_list_without_waiting(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    names = [f"job-{n}" for n in range(8)]
    jobs.put_many(dict.fromkeys(names, "to do"))
    first, second, third = (db.transaction(lock_timeout=30.0) for _ in range(3))
    assert set(first.namespace(jobs).get_many(names[:3], skip_locked=True)) == set(names[:3])
    assert set(second.namespace(jobs).get_many(names[:5], skip_locked=True)) == set(names[3:5])
    assert third.namespace(jobs).get_many(names[:5], skip_locked=True) == {}
    assert set(first.namespace(jobs).get_many(names[:5], skip_locked=True)) == set(names[:3]), "its own are not skipped"
    first.namespace(jobs).delete(names[0])
    first.commit()
    until = time.monotonic() + PATIENCE_SECONDS
    while set(third.namespace(jobs).get_many(names[:5], skip_locked=True)) != set(names[1:3]):
        assert time.monotonic() < until, "locks go soon after their transaction"
        time.sleep(0.01)
    third.namespace(jobs).put(names[1], "done")
    second.rollback()
    third.commit()
    left = dict(jobs.scan())
    assert left == dict.fromkeys(names[1:], "to do") | {names[1]: "done"}


def test_a_claim_that_cannot_be_meant_is_refused(db: engine.Database, fresh: Callable[[], str]) -> None:
    jobs = db.namespace(fresh(), codec="str")
    with db.transaction(concurrency="OPTIMISTIC", label="reader") as tx:
        with pytest.raises(engine.UsageError, match="transaction reader is OPTIMISTIC: it locks nothing before its end"):
            tx.namespace(jobs).get_many(["a"], skip_locked=True)
    with db.transaction() as tx:
        with pytest.raises(engine.UsageError, match="expected True of one of them at most"):
            tx.namespace(jobs).get_many(["a"], skip_locked=True, nowait=True)
        with pytest.raises(engine.UsageError, match="nowait is 1, and skip_locked False: expected True"):
            tx.namespace(jobs).get_for_update("a", nowait=1)  # type: ignore[call-overload]  # the mistake
