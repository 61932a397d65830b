"""The router when answers come in pieces, too late, from the wrong node, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from engine import errors
from engine.client.calls import GetCall, PutCall
from engine.client.cuts import KeepCutCall
from engine.client.ends import StatusCall
from engine.client.places import SILENCE_MS
from engine.client.routing import Router
from engine.client.scans import CountCall, ScanCall
from engine.protocol.requests import (
    Code,
    Done,
    Failed,
    Get,
    GetStatus,
    GetTable,
    KeepCut,
    KeepSessions,
    Put,
    Remap,
    Reply,
    Request,
    Rows,
    Scan,
    Status,
    Table,
    Values,
)
from rebalance import table as topology
from rebalance.ports import MS
from rebalance.table import Member, Placement, Topology
from wal.ids import Version, partition_of, sequence_of

A, B = "127.0.0.1:1", "127.0.0.1:2"
PARTITIONS = 4
KEYS = {partition_of(key, PARTITIONS): key for key in (b"k%d" % at for at in range(40))}
SECOND = 1000 * MS
R = TypeVar("R")


def table(version: Version, primaries: str) -> Table:
    """A map of two nodes, a and b, with these primaries."""
    made = Topology(
        version,
        "c1",
        "foreshore",
        PARTITIONS,
        1,
        (Member("a", "x", 1, A, 1), Member("b", "y", 1, B, 2)),
        ("a", "b"),
        tuple(Placement(1, 1, (p, "b" if p == "a" else "a"), (p,)) for p in primaries),
        {},
        {},
        3,
    )
    return Table(0, version, topology.encode(made))


class Story:
    """A router that knows both nodes, and what it sent."""

    def __init__(self) -> None:
        self.router = Router([A, B], draw=1, now=0, wall_ms=0)
        self.router.places.to_connect.clear()
        self.now = SECOND
        for address in (A, B):
            self.router.on_connected(address, self.now)
        self.router.on_reply(A, table(Version(1, 0), "aabb"), self.now)
        self.sent()

    def sent(self) -> list[tuple[str, Request]]:
        """What was sent since this was asked last."""
        sends, self.router.sends = self.router.sends, []
        return sends

    def of(self, address: str, kind: type[R]) -> list[R]:
        """The requests of one kind that were sent to one node since."""
        return [request for to, request in self.sent() if to == address and isinstance(request, kind)]

    def put(self, *partitions: int) -> PutCall:
        """Begin to write one key in each partition."""
        keys = [KEYS[number] for number in partitions]
        call = PutCall(self.router.identity.new_tx(self.now), "acc", keys, [b"v"] * len(keys))
        self.router.begin(call, self.now, self.now + 10 * SECOND)
        return call

    def wait(self, ms: int) -> None:
        """Time passes; it ticks when it wants to."""
        for _ in range(ms // 10):
            self.now += 10 * MS
            if self.now >= self.router.wake_at:
                self.router.tick(self.now)


def test_a_primary_that_falls_silent_is_left_for_the_one_that_another_node_names() -> None:
    story = Story()
    call = story.put(0)
    (put,) = story.of(A, Put)
    story.wait(SILENCE_MS + 1_000)
    sent = story.sent()
    assert B in {to for to, request in sent if isinstance(request, GetTable)}, "another one is asked"
    assert not any(isinstance(request, Put) for _, request in sent), "nothing is sent again before it is known where to"
    story.router.on_reply(B, table(Version(2, 0), "bbbb"), story.now)
    story.wait(50)
    (again,) = story.of(B, Put)
    assert (again.tx, again.keys) == (put.tx, put.keys), "a write is the same write wherever it is sent"
    assert call.unanswered
    story.router.on_reply(A, Done(put.id), story.now)
    assert not call.finished, "what the zombie says comes too late"
    story.router.on_reply(B, Done(again.id), story.now)
    assert (call.finished, call.error) == (True, None)


def test_a_refusal_after_a_silent_primary_does_not_say_that_nothing_happened() -> None:
    story = Story()
    call = story.put(0)
    story.wait(SILENCE_MS + 500)
    story.sent()
    story.router.on_reply(B, table(Version(2, 0), "bbbb"), story.now)
    story.wait(50)
    (again,) = story.of(B, Put)
    story.router.on_reply(B, Failed(again.id, Code.LOCK_TIMEOUT, "waited"), story.now)
    assert isinstance(call.error, errors.CommitUnknown)


def test_a_primary_that_takes_its_time_is_not_left() -> None:
    story = Story()
    call = story.put(0)
    (put,) = story.of(A, Put)
    for _ in range(6):
        story.wait(SILENCE_MS + 300)
        for to, asked in story.sent():
            assert isinstance(asked, GetTable)
            same = table(Version(1, 0), "aabb")
            story.router.on_reply(to, Table(asked.id, same.version, same.topology), story.now)
    story.router.on_reply(A, Done(put.id), story.now)
    assert (call.finished, call.error, call.unanswered) == (True, None, False)


def test_a_silent_node_that_the_table_still_names_is_waited_for_until_the_deadline() -> None:
    story = Story()
    call = story.put(0)
    story.wait(9_000)
    assert not call.finished
    story.wait(1_100)
    assert isinstance(call.error, errors.CommitUnknown)


def test_a_batch_of_which_a_part_was_done_is_never_called_undone() -> None:
    for last in (Failed(0, Code.LOCK_TIMEOUT, "waited"), Failed(0, Code.CONFLICT, "aborted"), None):
        story = Story()
        call = story.put(0, 2)
        (first,), (second,) = (
            [r for to, r in story.router.sends if to == address and isinstance(r, Put)] for address in (A, B)
        )
        story.router.on_reply(A, Done(first.id), story.now)
        if last is not None:
            story.router.on_reply(B, Failed(second.id, last.code, last.message), story.now)
        else:
            story.router.on_reply(B, Remap(second.id, Version(1, 0)), story.now)
            story.router.on_disconnected(B, story.now)
            story.wait(11_000)
        assert isinstance(call.error, errors.CommitUnknown), call.error


def test_values_that_come_in_pieces_are_asked_for_until_all_are_there() -> None:
    story = Story()
    call = GetCall("acc", [KEYS[0], KEYS[1], b"none{" + KEYS[0] + b"}"])
    story.router.begin(call, story.now, story.now + SECOND)
    (first,) = story.of(A, Get)
    assert len(first.keys) == 3
    story.router.on_reply(A, Values(first.id, [(1, 1, b"x")]), story.now)
    (rest,) = story.of(A, Get)
    assert rest.keys == first.keys[1:]
    story.router.on_reply(A, Values(rest.id, [(1, 2, b"y"), (0, 0, None)]), story.now)
    assert (call.finished, call.error) == (True, None)
    assert [value for _, _, value in call.values] == [b"x", b"y", None]


@pytest.mark.parametrize("count", [0, 4])
def test_an_answer_with_too_many_values_or_none_is_none(count: int) -> None:
    story = Story()
    call = GetCall("acc", [KEYS[0], KEYS[1]])
    story.router.begin(call, story.now, story.now + SECOND)
    (first,) = story.of(A, Get)
    story.router.on_reply(A, Values(first.id, [(1, 1, b"x")] * count), story.now)
    assert isinstance(call.error, errors.ProtocolError)


def test_the_end_tells_every_call_what_is_true_of_it() -> None:
    story = Story()
    write, read = story.put(0), GetCall("acc", [KEYS[1]])
    story.router.begin(read, story.now, story.now + SECOND)
    unsent = PutCall(bytes(16), "acc", [KEYS[2]], [b"v"])
    story.router.on_disconnected(B, story.now)
    story.router.begin(unsent, story.now, story.now + SECOND)
    story.router.end(errors.DiskFull("no room"))
    assert [type(call.error) for call in (write, read, unsent)] == [errors.CommitUnknown, errors.DiskFull, errors.DiskFull]
    assert len({id(call.error) for call in (read, unsent)}) == 2, "an error belongs to who is told it"
    assert {id(call) for call in story.router.done} == {id(call) for call in (write, read, unsent)}


def test_a_request_that_is_too_large_is_refused_to_its_caller_alone() -> None:
    story = Story()
    large, small = story.put(0), story.put(1)
    sent = story.of(A, Put)
    story.router.on_unsendable(sent[0], "70000000 bytes were to be sent at once: expected at most 67108864")
    assert isinstance(large.error, errors.UsageError)
    assert "expected at most 67108864" in str(large.error)
    story.router.on_reply(A, Done(sent[1].id), story.now)
    assert (small.finished, small.error) == (True, None)


def test_the_status_of_a_transaction_that_may_be_forgotten_is_unknown_and_no_other_is_asked_about() -> None:
    story = Story()
    call = StatusCall(bytes(16), 0)
    story.router.begin(call, story.now, story.now + 10 * SECOND)
    (asked,) = story.of(A, GetStatus)
    assert asked.age_ms == -1, "it is not this client's"
    story.router.on_reply(A, Failed(asked.id, Code.FORGOTTEN, "not known", maybe_committed=True), story.now)
    story.wait(100)
    assert story.sent() == []
    assert isinstance(call.error, errors.CommitUnknown)


def test_what_is_answered_is_acknowledged_with_the_next_request_and_what_is_open_holds_it_back() -> None:
    story = Story()
    story.put(0)
    story.put(1)
    story.put(1)
    first, second, third = story.of(A, Put)
    assert [p.acked for p in (first, second, third)] == [0, 0, 0]
    assert {p.version for p in (first, second, third)} == {Version(1, 0).number}
    story.router.on_reply(A, Done(third.id), story.now)
    story.router.on_reply(A, Done(second.id), story.now)
    story.put(0)
    (fourth,) = story.of(A, Put)
    assert fourth.acked == 0, "the first has no answer"
    story.router.on_reply(A, Done(first.id), story.now)
    story.put(0)
    (fifth,) = story.of(A, Put)
    assert fifth.acked == sequence_of(third.tx)
    assert sequence_of(fifth.tx) == 5


def test_who_asks_again_in_a_session_that_nothing_is_left_of_says_that_it_was_answered() -> None:
    story = Story()
    answered = story.put(0)
    (put,) = story.of(A, Put)
    story.router.on_reply(A, Done(put.id), story.now)
    unknown = story.put(0)
    story.wait(11_000)
    assert isinstance(unknown.error, errors.CommitUnknown)
    story.router.identity.close(unknown.tx)
    story.sent()
    again = PutCall(answered.tx, "acc", answered.keys, answered.values)
    story.router.begin(again, story.now, story.now + SECOND)
    (put,) = story.of(A, Put)
    assert put.acked == sequence_of(answered.tx), "a node that never heard of the session is told by the request"
    story.router.on_reply(A, Failed(put.id, Code.ANSWERED, "its client said so"), story.now)
    assert isinstance(again.error, errors.AlreadyAnswered)


def test_an_id_that_another_client_handed_on_is_not_called_answered() -> None:
    story = Story()
    handed_on = PutCall(bytes(15) + b"t", "acc", [b"k"], [b"v"])
    story.router.begin(handed_on, story.now, story.now + SECOND)
    (put,) = story.of(A, Put)
    assert put.acked == -1, "nothing is known here of what its client was told: it is executed, if it never was"


def test_a_node_that_takes_an_open_request_for_answered_leaves_it_unknown() -> None:
    story = Story()
    call = story.put(0)
    (put,) = story.of(A, Put)
    story.router.on_reply(A, Failed(put.id, Code.ANSWERED, "its client said so"), story.now)
    assert isinstance(call.error, errors.CommitUnknown), "its client was silent for too long: no answer ever came"


def test_a_session_with_an_unknown_is_left_and_its_age_goes_with_the_question() -> None:
    story = Story()
    unknown = story.put(0)
    story.of(A, Put)
    story.wait(11_000)
    assert isinstance(unknown.error, errors.CommitUnknown)
    story.put(0)
    (after,) = story.of(A, Put)
    assert after.tx[:10] != unknown.tx[:10], "no answer that comes later waits for one that never came"
    story.router.keep()
    (kept,) = story.of(A, KeepSessions)
    assert kept.sessions == [(unknown.tx[:10], 0), (after.tx[:10], 0)]
    status = StatusCall(unknown.tx, 0)
    story.router.begin(status, story.now, story.now + SECOND)
    (asked,) = story.of(A, GetStatus)
    assert 11_000 <= asked.age_ms < 12_000
    story.router.on_reply(A, Status(asked.id, "aborted"), story.now)
    story.router.keep()
    (kept,) = story.of(A, KeepSessions)
    assert kept.sessions == [(after.tx[:10], 0)], "there is an answer now"


def test_an_answer_that_speaks_of_a_newer_map_makes_an_idle_client_ask_for_it() -> None:
    story = Story()
    story.wait(400)
    story.sent()
    story.put(0)
    (put,) = story.of(A, Put)
    story.router.on_reply(A, Done(put.id, version=Version(1, 7).number), story.now)
    assert story.sent() == [], "copies came and went: whoever asks the wrong node is told"
    story.put(0)
    (put,) = story.of(A, Put)
    story.router.on_reply(A, Done(put.id, version=Version(2, 0).number), story.now)
    assert [type(request) for _, request in story.sent()] == [GetTable]


def test_a_connection_that_breaks_under_a_write_leaves_it_unknown() -> None:
    story = Story()
    call = story.put(0)
    assert story.of(A, Put)
    story.router.on_disconnected(A, story.now)
    story.wait(11_000)
    assert isinstance(call.error, errors.CommitUnknown), call.error


def test_a_remap_of_a_write_that_had_begun_leaves_it_unknown() -> None:
    story = Story()
    call = story.put(0)
    (put,) = story.of(A, Put)
    story.router.on_reply(A, Remap(put.id, Version(1, 0), True), story.now)
    story.router.on_disconnected(A, story.now)
    story.router.on_disconnected(B, story.now)
    story.wait(11_000)
    assert isinstance(call.error, errors.CommitUnknown), call.error


def test_a_page_ends_where_the_first_node_has_more() -> None:
    scan = ScanCall("acc", b"", None, 1000)
    scan.take([0], Rows(1, [b"a", b"c"], [b"", b""], True))  # cut by its bytes: `d` and `e` are still there
    scan.take([1], Rows(2, [b"b", b"z"], [b"", b""], True))
    assert [key for key, _ in scan.rows] == [b"a", b"b", b"c"]
    assert scan.next_start == b"c\0"


def _two_copies() -> Router:
    """A router that knows both nodes, and that both have every partition; it is near the second one."""
    router, now = Router([A, B], draw=1, now=0, wall_ms=0, domain="here"), SECOND
    router.places.to_connect.clear()
    for address in (A, B):
        router.on_connected(address, now)
    everywhere = Topology(
        Version(1, 0),
        "c1",
        "foreshore",
        PARTITIONS,
        1,
        (Member("a", "x", 1, A, 1, "there"), Member("b", "y", 1, B, 2, "here")),
        ("a", "b"),
        (Placement(1, 1, ("a", "b"), ("a", "b")),) * PARTITIONS,
        {},
        {"a": "there", "b": "here"},
        3,
    )
    router.on_reply(A, Table(0, Version(1, 0), topology.encode(everywhere)), now)
    router.sends.clear()
    return router


def test_a_stale_read_asks_the_nearest_copy_and_another_one_when_that_is_silent() -> None:
    router, now = _two_copies(), SECOND
    for partition in range(PARTITIONS):
        router.begin(GetCall("acc", [KEYS[partition]], stale=True), now, now + 10 * SECOND)
    assert [to for to, request in router.sends if isinstance(request, Get)] == [B] * PARTITIONS
    router.sends.clear()
    router.begin(GetCall("acc", [KEYS[0]]), now, now + 10 * SECOND)
    assert [to for to, request in router.sends if isinstance(request, Get)] == [A], "only the primary knows the newest"
    router.sends.clear()
    while now < SECOND + SILENCE_MS * MS:
        now += 10 * MS
        if now >= router.wake_at:
            router.tick(now)
    asked = [to for to, request in router.sends if isinstance(request, Get) and request.stale]
    assert asked.count(A) >= PARTITIONS, "who is near and does not answer is not waited for"


def _answered_after(
    delay_ms: int, call: CountCall | ScanCall | GetCall, make: Callable[[Request], Reply]
) -> tuple[int, int]:
    """Every node answers all that it is asked, so long after it was asked; how long the call took, and what it asked."""
    router, now, asked = _two_copies(), SECOND, 0
    router.begin(call, now, now + 20 * SECOND)
    under_way: list[tuple[int, str, Request]] = []
    while not call.finished:
        under_way += [(now + delay_ms * MS, to, request) for to, request in router.sends if isinstance(request, Scan | Get)]
        asked += len(router.sends)
        router.sends.clear()
        while under_way and under_way[0][0] <= now:
            _, to, request = under_way.pop(0)
            router.on_reply(to, make(request), now)
        if now >= router.wake_at:
            router.tick(now)
        now += MS
    return (now - SECOND) // MS, asked


@pytest.mark.parametrize("delay_ms", [10, 60, 500, 3_000, 10_000])
def test_a_stale_scan_of_busy_copies_takes_what_comes_late(delay_ms: int) -> None:
    scan = ScanCall("acc", b"", None, 1000, stale=True)

    def rows(request: Request) -> Rows:
        assert isinstance(request, Scan)
        return Rows(request.id, [KEYS[n] for n in request.partitions], [b"v"] * len(request.partitions), False)

    took_ms, asked = _answered_after(delay_ms, scan, rows)
    assert (scan.error, [key for key, _ in scan.rows]) == (None, sorted(KEYS.values()))
    assert took_ms <= delay_ms + 2
    assert asked <= 2 + delay_ms // 100, "whoever is busy is not asked more and more"


def test_a_stale_read_of_busy_copies_takes_what_comes_late() -> None:
    read = GetCall("acc", list(KEYS.values()), stale=True)

    def values(request: Request) -> Values:
        assert isinstance(request, Get)
        return Values(request.id, [(1, 1, b"v" + key) for key in request.keys], Version(1, 0).number, 0)

    took_ms, _ = _answered_after(3_000, read, values)
    assert ([value for _, _, value in read.values], took_ms <= 3_002) == ([b"v" + key for key in KEYS.values()], True)


def test_a_stale_count_of_busy_copies_counts_nothing_twice() -> None:
    count = CountCall("acc", stale=True)

    def rows(request: Request) -> Rows:
        assert isinstance(request, Scan)
        return Rows(request.id, [], [], False, count=len(request.partitions))

    took_ms, _ = _answered_after(3_000, count, rows)
    assert (count.counted, took_ms <= 3_002) == (PARTITIONS, True)


def test_who_reads_at_a_cut_tells_each_primary_once_and_one_that_has_moved_where_it_is() -> None:
    story = Story()
    assert sorted(story.router.places.leading) == [0, 2]
    call = KeepCutCall((1, 1), b"holder", leading=story.router.places.leading)
    story.router.begin(call, story.now, story.now + 10 * SECOND)
    told = story.sent()
    assert sorted((to, type(request)) for to, request in told) == [(A, KeepCut), (B, KeepCut)]
    for to, request in told:
        story.router.on_reply(to, Done(request.id) if to == A else Remap(request.id, Version(2, 0)), story.now)
    story.router.on_reply(A, table(Version(2, 0), "aaaa"), story.now)
    story.wait(100)
    (again,) = story.of(A, KeepCut)
    story.router.on_reply(A, Done(again.id), story.now)
    assert (call.finished, call.error) == (True, None)


def test_a_lost_partition_keeps_nobody_from_telling_that_a_cut_is_not_read_any_more() -> None:
    story = Story()
    made = topology.decode(table(Version(2, 0), "aabb").topology)
    gone = [replace(placed, lost=True) if number == 3 else placed for number, placed in enumerate(made.placements)]
    lost = replace(made, placements=tuple(gone))
    story.router.on_reply(A, Table(0, lost.version, topology.encode(lost)), story.now)
    story.sent()
    call = KeepCutCall((1, 1), b"holder", over=True)
    story.router.begin(call, story.now, story.now + 10 * SECOND)
    for to, request in story.sent():
        story.router.on_reply(to, Done(request.id), story.now)
    assert (call.finished, call.error) == (True, None)
