"""What an application hears when nodes fail: real processes that are stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import engine
from tests.support.commands import Node, nodes
from tests.support.patience import PATIENCE_SECONDS
from wal.ids import partition_of

T = TypeVar("T")
pytestmark = pytest.mark.processes


@contextmanager
def silent(node: Node) -> Iterator[None]:
    """The node does nothing for a while, and does not know it."""
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.process.pid, signal.SIGCONT)


def settled(ask: Callable[[], T]) -> T:
    """What one gets as soon as there is somebody to answer; what is asked for may be done more than once."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except engine.Error as error:
            if not (error.retryable or error.maybe_committed) or time.monotonic() > until:
                raise


def connected(node: Node, seconds: float) -> engine.Database:
    """Who waits for so long for an answer; the node may be slow to give the first one."""
    return settled(lambda: engine.connect(node.address, timeout=seconds))


def test_a_lost_answer_is_unknown_and_its_id_tells(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as [node], connected(node, 2.0) as db:
        ns = db.namespace("ns")
        settled(lambda: ns.put(b"a", b"1"))
        writes: list[Callable[[], object]] = [
            lambda: ns.put(b"a", b"2"),
            lambda: ns.delete(b"a"),
            lambda: ns.put_if_absent(b"b", b"2"),
            lambda: ns.replace(b"a", b"1", b"2"),
            lambda: ns.put_many({b"a": b"2"}),
        ]
        for write in writes:
            with silent(node), pytest.raises(engine.CommitUnknown) as caught:
                write()
            assert caught.value.maybe_committed
            assert caught.value.tx_id is not None
            assert settled(partial(db.transaction_status, caught.value.tx_id)) in {"committed", "aborted"}
        with silent(node), pytest.raises(engine.Unavailable) as unread:
            ns.get(b"a")
        assert unread.value.retryable


def test_a_commit_that_was_not_answered_is_all_or_nothing_as_its_status_says(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1") as [node], connected(node, 2.0) as db:
        ns = db.namespace("ns")
        keys = [b"k%d" % at for at in range(20)]

        def begun() -> engine.Transaction:
            tx = db.transaction()
            tx.namespace(ns).put_many(dict.fromkeys(keys, b"1"))
            return tx

        tx = settled(begun)
        with silent(node), pytest.raises(engine.CommitUnknown) as caught:
            tx.commit()
        assert caught.value.tx_id == tx.id
        status = settled(lambda: db.transaction_status(tx.id))
        found = settled(lambda: ns.get_many(keys))
        assert found == (dict.fromkeys(keys, b"1") if status == "committed" else {})
        assert settled(lambda: db.transaction_status(tx.id)) == status, "an answer stays true"


def test_a_minority_refuses_and_goes_on_by_itself_when_it_is_healed(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3") as [first, second, third]:
        with connected(first, 3.0) as db:
            ns = db.namespace("ns")
            keys = [b"k%d" % at for at in range(64)]
            settled(lambda: ns.put_many(dict.fromkeys(keys, b"1")))
            topology = db._native.session.router.topology
            assert topology is not None
            mine = next(k for k in keys if topology.placements[partition_of(k, topology.partitions)].primary == "n1")
            with silent(second), silent(third):
                until = time.monotonic() + PATIENCE_SECONDS
                refused: list[engine.Error] = []
                while not any(isinstance(error, engine.NoQuorum) for error in refused):
                    assert time.monotonic() < until, refused
                    with pytest.raises(engine.Error) as caught:
                        ns.put(mine, b"2")
                    refused.append(caught.value)
                assert all(isinstance(e, engine.NoQuorum | engine.CommitUnknown | engine.Unavailable) for e in refused)
                assert "majority" in str(refused[-1])
            settled(lambda: db.run(lambda tx: tx.namespace(ns).put_many(dict.fromkeys(keys, b"3"))))
            assert settled(lambda: ns.get_many(keys)) == dict.fromkeys(keys, b"3")
