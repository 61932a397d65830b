"""Requests of the right types and any content: a node refuses or answers them, and never dies of one.

They go to a real `Node` in this process, of which nothing is simulated but the disk. `test_hostile_clients` brings them to
a live server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import Message
from engine.node.node import Node
from engine.protocol.requests import (
    REQUESTS,
    Admin,
    Check,
    Code,
    CommitTx,
    Done,
    Failed,
    Get,
    GetStatus,
    Lock,
    Put,
    Remap,
    Reply,
    Request,
    Scan,
    StageWrites,
    Swap,
    Values,
)
from engine.protocol.sizes import KEYS_MAX
from engine.state.recover import recover
from engine.state.store import LayeredStore
from engine.state.store_memory import MemoryStore
from engine.turn.events import Asked, CheckpointWritten, WriteCheckpoint
from engine.turn.settings import Settings
from tests.support.any_request import ANY, KINDS
from wal.ids import partition_of
from wal.records import Record

PARTITIONS = 8
MS = 1_000_000


class _NoLog:
    """A log that says nothing."""

    begins = 1

    def replay(self, from_lsn: int) -> Iterable[_Block]:
        """The blocks of a new node."""
        del from_lsn
        return ()


class _Block(msgspec.Struct):
    records: list[Record]


class Alone:
    """A node that is a cluster by itself, and whatever it answered."""

    def __init__(self) -> None:
        self.now = 1_000 * MS
        self.store = MemoryStore()
        replica = recover(LayeredStore(self.store), _NoLog())
        knobs = Settings(partitions=PARTITIONS, backups=0, connection_lost_ms=0, namespaces_max=5, lock_timeout_ms=200)
        self.node = Node(knobs, replica, node="n1", allocation="a", address="n1:1", durable_lsn=0)
        self.replies: list[Reply] = []
        self.sent: list[Message] = []

    def form(self) -> Alone:
        """Make it a cluster."""
        self.ask(Admin(0, "init", {"cluster": ["c1"]}))
        self.wait(2_000)
        assert self.node.core.serving
        return self

    def ask(self, *requests: Request) -> None:
        """Bring requests to it, all in one turn."""
        events: list[Asked | CheckpointWritten] = [Asked(1, request) for request in requests]
        while True:
            effects = self.node.turn(self.now, events)
            events = []
            self.node.core.durable_lsn += len(effects.log)
            self.replies += [reply for _, reply in effects.reply]
            for task in effects.tasks:
                if isinstance(task, WriteCheckpoint):
                    self.store.write(task.image)
                    events.append(CheckpointWritten(task.image.lsn))
            self.node.core.replica.check()
            if not events and not self.node.core.to_self:
                return

    def wait(self, ms: int) -> None:
        """Time passes."""
        for _ in range(ms // 50):
            self.now += 50 * MS
            self.ask()

    def told(self, *requests: Request) -> list[Reply]:
        """What it answers to requests, waiting as long as it may take."""
        self.replies.clear()
        self.ask(*requests)
        return list(self.replies)


def _staged(writes: Sequence[tuple[str, list[bytes], list[bytes | None]]], **said: Any) -> StageWrites:
    good = StageWrites(1, bytes(16), bytes(16), 0, 1, 9, list(writes))
    return msgspec.structs.replace(good, **said)


def _tested(conditions: Sequence[tuple[str, bytes, str, bytes | None, int, int]], *, optimistic: bool = True) -> CommitTx:
    """A transaction with these conditions."""
    return CommitTx(1, bytes(16), bytes(16), optimistic, [("a", [b"k"], [None])], [], [], conditions=list(conditions))


# Any request.


def test_every_request_has_its_strategy() -> None:
    assert set(KINDS) == set(REQUESTS)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(ANY, st.sampled_from([0, 0, 0, 50, 400])), max_size=25))
def test_no_sequence_of_requests_ends_a_node(asked: list[tuple[Request, int]]) -> None:
    alone = Alone().form()
    for request, pause_ms in asked:
        alone.ask(request)
        alone.wait(pause_ms)
    alone.wait(35_000)  # beyond every lease, and the longest wait for a vote
    (put,) = alone.told(Put(1, bytes([9]) * 16, "a", [b"a"], [b"after"]))
    assert isinstance(put, Done) or (isinstance(put, Failed) and put.code in {Code.USAGE, Code.CONFLICT}), put
    (got,) = alone.told(Get(2, "a", [b"a"]))
    assert isinstance(got, Values)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(ANY, max_size=20))
def test_no_requests_at_once_end_a_node_that_is_in_no_cluster(asked: list[Request]) -> None:
    alone = Alone()
    alone.ask(*asked)
    alone.wait(1_000)
    assert len(alone.replies) == len(asked), "each is answered at once"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Put(1, bytes(1000), "acc", [b"a"], [b"v"]), "a transaction id has 1000 bytes: expected 16"),
        (Put(1, b"", "acc", [b"a"], [b"v"]), "a transaction id has 0 bytes: expected 16"),
        (Put(1, bytes(16), "", [b"a"], [b"v"]), "namespace '' is not a legal name"),
        (Put(1, bytes(16), "acc", [b"a", b"a"], [b"v", b"v"]), "a key was given twice in one batch"),
        (Put(1, bytes(16), "acc", [b"a"], []), "1 keys came with 0 values"),
        (Put(1, bytes(16), "acc", [b"a"], [bytes(17 << 20)]), "a value has 17825792 bytes: expected at most 16777216"),
        (Put(1, bytes(16), "acc", [b"%d" % n for n in range(5)], [bytes(16 << 20)] * 5), "expected at most 67108864"),
        (
            Swap(1, bytes(16), "acc", b"a", "perhaps", None, None),
            "condition 'perhaps' is not known: expected one of absent",
        ),
        (Get(1, "~tx", [b"a"]), "namespace '~tx' is not a legal name"),
        (Get(1, "acc", []), "no key was given"),
        (
            Get(1, "acc", [b"k%d" % n for n in range(KEYS_MAX + 1)]),
            "100001 keys were given: expected at most 100000",
        ),
        (Lock(1, bytes(16), "acc", [b"a"], -5), "a lock is to be waited for -5 ms: expected 0 to 3600000"),
        (Lock(1, bytes(16), "acc", [b"a"], 1 << 62), "expected 0 to 3600000"),
        (CommitTx(1, bytes(16), bytes(16), False, [], [], []), "the transaction writes nothing: end it with a check"),
        (
            CommitTx(1, bytes(16), bytes(16), False, [("a", [b"k"], [None])], [], [], staged=-1),
            "a transaction has -1 pieces",
        ),
        (_staged([]), "nothing was to be staged"),
        (_staged([("a", [b"k"], [None])], tx=b""), "a transaction id has 0 bytes"),
        (_staged([("a", [b"k"], [None])], owner=b""), "a transaction id has 0 bytes"),
        (_staged([("a", [b"k"], [None])], partition=8), "partition 8 does not exist"),
        (_staged([("a", [b"k"], [None])], number=0), "a transaction has -1 pieces"),
        (_staged([("a", [b"k"], [None])], size=0), "1 bytes of 0 were to be staged"),
        (_staged([("a", [b"k"], [None])], size=(256 << 20) + 1), "expected at most 268435456 in all"),
        (_staged([("a", [b"k"], [None]), ("a", [b"l"], [None])]), "namespace 'a' was given twice in one transaction"),
        (_staged([("~tx", [b"k"], [None])]), "namespace '~tx' is not a legal name"),
        (_staged([("a", [b"k", b"k"], [None, None])]), "a key was given twice in one batch"),
        (_staged([("a", [b"k"], [None])], ttls=[("a", b"l", 5)]), "what has a time to live is not among what is written"),
        (_staged([("a", [b"k"], [None])], ttls=[("a", b"k", 5)]), "a delete has no time to live"),
        (
            CommitTx(1, bytes(16), bytes(16), False, [("a", [b"k"], [None]), ("a", [b"k"], [b"v"])], [], []),
            "namespace 'a' was given twice in one transaction",
        ),
        (CommitTx(1, bytes(16), b"", False, [("a", [b"k"], [None])], [], []), "a transaction id has 0 bytes"),
        (_tested((("a", b"k", "perhaps", None, 0, 0),)), "condition 'perhaps' is not known"),
        (_tested((("~tx", b"k", "absent", None, 0, 0),)), "namespace '~tx' is not a legal name"),
        (_tested((("a", b"", "absent", None, 0, 0),)), "a key has 0 bytes"),
        (_tested((("a", b"k", "version", None, -1, 0),)), "something was read at -1.0"),
        (_tested((("a", b"k", "equals", bytes((16 << 20) + 1), 0, 0),)), "a value has 16777217 bytes"),
        (_tested((("a", b"k", "absent", None, 0, 0),), optimistic=False), "conditions came with locks"),
        (_tested((("a", b"k", "absent", None, 0, 0),) * 100_001), "100001 things were given in one list"),
        (Check(1, bytes(16), [], [("a", b"k", -1, 0)]), "something was read at -1.0"),
        (GetStatus(1, bytes(16), 8), "partition 8 does not exist: expected 0 to 7"),
        (Scan(1, "acc", [-1], b"", None, 10), "partition -1 does not exist"),
        (Scan(1, "acc", [3, 3], b"", None, 10), "a partition was given twice"),
        (Scan(1, "acc", [3], bytes(402), None, 10), "an end of the range has 402 bytes: expected at most 401"),
        (Scan(1, "acc", [3], b"", None, 0), "limit is 0: expected 1 or more"),
        (Admin(1, "init", {}), "`init` needs the id of the new cluster"),
        (Admin(1, "init", {"cluster": [""]}), "cluster '' is not a legal name"),
        (Admin(1, "baseline", {"nodes": ["n1", "n1"]}), "a node was named twice"),
        (Admin(1, "baseline", {}), "a baseline needs at least one node"),
        (Admin(1, "dance", {}), "command 'dance' is not known"),
    ],
)
def test_a_refusal_says_what_was_expected(request_: Request, says: str) -> None:
    (told,) = Alone().form().told(request_)
    assert isinstance(told, Failed)
    assert told.code == Code.USAGE
    assert says in told.message
    assert len(told.message) < 400, "nobody is sent back what he sent"
    assert not isinstance(told, Remap)


@pytest.mark.parametrize(
    "single", [Put(1, bytes(16), "acc", [b"a"], [b"v"]), Swap(1, bytes(16), "acc", b"a", "absent", None, b"v")]
)
@pytest.mark.parametrize("write_first", [True, False])
def test_an_id_that_a_write_and_a_transaction_share_at_once_has_one_meaning(single: Put | Swap, write_first: bool) -> None:
    alone = Alone().form()
    far = next(key for key in (b"k%d" % at for at in range(99)) if partition_of(key, 8) != partition_of(b"a", 8))
    commit = CommitTx(2, bytes(16), bytes(16), True, [("acc", [b"a", far], [b"t", b"t"])], [], [])
    told = {reply.id: reply for reply in alone.told(*((single, commit) if write_first else (commit, single)))}
    first, second = (1, 2) if write_first else (2, 1)
    assert isinstance(told[first], Done)
    later = told[second]
    assert isinstance(later, Failed)
    assert later.code == Code.BUSY
    asked_again = alone.told(commit if write_first else single)
    assert asked_again == [Done(second)], "it is told what became of the id"
    (held,) = alone.told(Get(3, "acc", [b"a"]))
    assert isinstance(held, Values)
    assert held.values[0][2] == (b"v" if write_first else b"t")
