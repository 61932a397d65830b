"""A scan for who is to lock some rows passes over what is locked and waits for nobody; told with one node by itself."""

from __future__ import annotations

import msgspec

from engine.protocol.requests import SKIPPED, Failed, Lock, Put, Rows, Scan, Unlock, Values
from engine.turn.events import Asked
from tests.engine.data.test_sessions import Alone
from tests.support.probes import heard
from wal.ids import Era, Namespace, tx_of

CLIENT, ANN, BOB = b"a client..", tx_of(b"ann.......", 1), tx_of(b"bob.......", 1)
PARTITIONS = 8
JOBS = [b"job-%02d" % number for number in range(20)]


class Queue(Alone):
    """A node with jobs in some partitions."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS)
        for number, job in enumerate(JOBS, 1):
            self.ask(Put(1, tx_of(CLIENT, number), "jobs", [job], [b"to do"]))

    def lock(self, owner: bytes, *jobs: bytes, shared: bool = False) -> None:
        """A transaction has some jobs."""
        self.ask(Lock(1, owner, "jobs", list(jobs), 0, shared=shared))

    def first(self, limit: int = 3, *, reverse: bool = False, unlocked: bool = True) -> list[bytes]:
        """The first jobs, as they are told."""
        scan = Scan(1, "jobs", list(range(PARTITIONS)), b"", None, limit, reverse=reverse, unlocked=unlocked)
        told = self.ask(scan)
        assert isinstance(told, Rows)
        return told.keys


def test_what_somebody_has_locked_is_passed_over() -> None:
    queue = Queue()
    assert queue.first() == JOBS[:3]
    queue.lock(ANN, JOBS[0])
    queue.lock(BOB, JOBS[2], JOBS[19], shared=True)
    assert queue.first() == [JOBS[1], JOBS[3], JOBS[4]]
    assert queue.first(reverse=True) == [JOBS[18], JOBS[17], JOBS[16]]
    assert queue.first(unlocked=False) == JOBS[:3], "who is not to lock any is told of all"
    queue.ask(Unlock(1, ANN))
    assert queue.first() == [JOBS[0], JOBS[1], JOBS[3]]


def test_who_wants_to_read_what_is_free_leaves_it_to_other_readers() -> None:
    queue, carl = Queue(), tx_of(b"carl......", 1)

    def read(owner: bytes) -> list[bytes | None]:
        told = queue.ask(Lock(1, owner, "jobs", JOBS[:2], 0, skip=True, shared=True))
        assert isinstance(told, Values)
        return [value if epoch != SKIPPED else None for epoch, _, value in told.values]

    queue.lock(ANN, JOBS[1])
    assert read(BOB) == [b"to do", None]
    assert read(carl) == [b"to do", None], "it was locked to be read"
    assert isinstance(queue.ask(Lock(1, ANN, "jobs", [JOBS[0]], 0)), Failed), "and so is nobody's to write"
    queue.ask(Unlock(1, ANN))
    assert read(BOB) == [b"to do", b"to do"]


def test_nothing_is_told_where_all_is_locked() -> None:
    queue = Queue()
    queue.lock(ANN, *JOBS)
    assert queue.first() == []
    queue.ask(Unlock(1, ANN))
    assert queue.first(100) == JOBS


def test_a_single_write_that_is_under_way_is_passed_over() -> None:
    queue = Queue()
    queue.node.locks.pend(("jobs", JOBS[0]))
    assert queue.first() == JOBS[1:4]
    queue.node.locks.unpend(("jobs", JOBS[0]))
    assert queue.first() == JOBS[:3]


def test_no_outcome_is_waited_for() -> None:
    queue = Queue()
    queue.node.locks.pin(ANN, [("jobs", JOBS[1]), ("jobs", b"job-")])
    for _ in range(3):  # the first rows are known then, and what is in doubt is so still
        assert queue.first() == [JOBS[0], JOBS[2], JOBS[3]]
    scan = Scan(1, "jobs", list(range(PARTITIONS)), b"", None, 3)
    with heard() as paths:
        assert queue.turn([Asked(1, scan)]) == []
    assert "scan.waited_for_outcome" in paths


def test_who_claims_is_told_whether_there_may_be_others() -> None:
    """It need not look for more where there is none: what was acknowledged is here, or somebody's, or in doubt."""
    queue = Queue()

    def sure(limit: int = 100, *, unlocked: bool = True) -> bool:
        told = queue.ask(Scan(1, "jobs", list(range(PARTITIONS)), b"", None, limit, unlocked=unlocked))
        assert isinstance(told, Rows)
        return told.sure

    assert sure()
    assert sure(len(JOBS))
    assert not sure(len(JOBS) - 1), "there are more"
    assert not sure(unlocked=False)
    queue.lock(ANN, *JOBS)
    assert sure(), "all are somebody's"
    queue.ask(Unlock(1, ANN))
    queue.node.locks.pend(("jobs", JOBS[0]))
    assert not sure()
    queue.node.locks.unpend(("jobs", JOBS[0]))
    queue.node.locks.pin(ANN, [("jobs", b"put by who was told that it is committed")])
    assert not sure()
    queue.node.locks.release(ANN)
    queue.node.locks.pin(ANN, [("others", JOBS[0])])
    assert sure()


def test_of_those_who_claim_together_only_who_is_told_of_all_rows_is_sure() -> None:
    queue = Queue()
    claims = [Scan(n, "jobs", list(range(PARTITIONS)), b"", None, 100, unlocked=True) for n in range(3)]
    told = queue.turn([Asked(claim.id, claim) for claim in claims])
    assert {reply.id: reply.sure for reply in told if isinstance(reply, Rows)} == {0: True, 1: False, 2: False}


def test_those_who_claim_together_are_told_by_one_look_and_apart_from_who_reads() -> None:
    queue = Queue()
    queue.lock(ANN, JOBS[0])

    def scan(number: int, *, unlocked: bool) -> Scan:
        return Scan(number, "jobs", list(range(PARTITIONS)), b"", None, 2, unlocked=unlocked)

    with heard() as paths:
        told = queue.turn([Asked(session, scan(session, unlocked=session != 3)) for session in (1, 2, 3)])
    assert "scan.shared" in paths
    rows = {reply.id: reply.keys for reply in told if isinstance(reply, Rows)}
    assert rows == {1: JOBS[1:3], 2: JOBS[2:3], 3: JOBS[:2]}


def test_of_those_who_claim_together_each_tries_for_another_row() -> None:
    queue = Queue()
    claims = [Scan(n, "jobs", list(range(PARTITIONS)), b"", None, 9, unlocked=True, reverse=n > 6) for n in range(8)]
    told = queue.turn([Asked(claim.id, claim) for claim in claims])
    rows = {reply.id: reply.keys for reply in told if isinstance(reply, Rows)}
    assert rows == {n: JOBS[n % 5 : 9] for n in range(7)} | {7: JOBS[:10:-1]}, "and all are told of half of them"
    assert all(reply.more for reply in told if isinstance(reply, Rows))
    assert queue.first() == JOBS[:3], "who asks alone is told of the first"
    queue.lock(ANN, *JOBS[1:])
    told = queue.turn([Asked(claim.id, claim) for claim in claims[:3]])
    assert [reply.keys for reply in told if isinstance(reply, Rows)] == [JOBS[:1]] * 3


def test_it_is_asked_only_of_what_is_there_now() -> None:
    queue = Queue()
    for other in ({"count": True}, {"stale": True}, {"cut": (1, 1)}):
        scan = msgspec.structs.replace(Scan(1, "jobs", [0], b"", None, 1, unlocked=True), **other)
        told = queue.ask(scan)
        assert isinstance(told, Failed)
        assert "unlocked" in told.message


class _Older(msgspec.Struct, frozen=True, array_like=True, tag="scan", gc=False):
    """What a node knows of a scan that has not heard of locked rows."""

    id: int
    namespace: Namespace
    partitions: list[int]
    start: bytes
    end: bytes | None
    limit: int
    within_ms: int = 0
    stale: bool = False
    age_ms: int = -1
    marks: bool = False
    cut: Era = (0, 0)
    count: bool = False
    reverse: bool = False


def test_an_older_node_takes_it_for_a_scan_and_an_older_client_asks_for_all() -> None:
    said = Scan(1, "jobs", [0, 1], b"a", b"z", 5, reverse=True, unlocked=True)
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=_Older)
    assert (older.partitions, older.start, older.end, older.limit, older.reverse) == ([0, 1], b"a", b"z", 5, True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Scan) == msgspec.structs.replace(said, unlocked=False)
