"""Scans that ask for the same are read once for all who asked before that; told with one node that is its own cluster."""

from __future__ import annotations

from engine.protocol.requests import Put, Reply, Rows, Scan
from engine.turn.events import Asked, Event
from tests.engine.data.test_sessions import Alone
from tests.support.probes import heard
from wal.ids import tx_of

CLIENT = b"a client.."
ROWS = 3_000


class Filled(Alone):
    """A node with rows, that counts into how many pages it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0
        keys = [b"k%06d" % number for number in range(ROWS)]
        self.ask(Put(1, tx_of(CLIENT, 1), "acc", keys, [b"v"] * ROWS))
        store = self.node.core.replica.store
        page = store.page

        def counted(*asked: object, **options: object) -> object:
            self.pages += 1
            return page(*asked, **options)  # type: ignore[arg-type]

        store.page = counted  # type: ignore[method-assign,assignment]


def _scan(number: int, *, start: bytes = b"", limit: int = ROWS, within_ms: int = 0) -> Scan:
    return Scan(number, "acc", [0], start, None, limit, within_ms=within_ms)


def _answers(replies: list[Reply]) -> dict[int, int]:
    return {reply.id: len(reply.keys) for reply in replies if isinstance(reply, Rows)}


def test_those_who_ask_together_are_answered_by_one_look() -> None:
    alone = Filled()
    alone.turn([Asked(1, _scan(7))])
    once, alone.pages = alone.pages, 0
    told = alone.turn([Asked(session, _scan(100 + session)) for session in range(64)])
    assert _answers(told) == {100 + session: ROWS for session in range(64)}
    assert alone.pages == once


def test_who_asks_for_something_else_is_answered_apart() -> None:
    alone = Filled()
    told = alone.turn([Asked(1, _scan(1)), Asked(2, _scan(2, limit=5)), Asked(3, _scan(3, start=b"k002990", limit=20))])
    assert _answers(told) == {1: ROWS, 2: 5, 3: 10}


def test_who_comes_when_it_has_begun_is_not_told_what_was_read_before() -> None:
    alone = Filled()
    node, now = alone.node, alone.node.core.now
    node.turn(now + 1, [Asked(1, _scan(1))])
    assert node.core.resumed, "so many rows take more than a turn"
    late: list[Event] = [
        Asked(2, Put(2, tx_of(CLIENT, 2), "acc", [b"a first one"], [b"v"])),
        Asked(2, _scan(3, limit=ROWS + 1)),
        Asked(3, _scan(4)),
    ]
    told = {reply.id: reply for reply in alone.turn(late) if isinstance(reply, Rows)}
    assert sorted(told) == [1, 3, 4]
    assert (told[1].keys[0], told[3].keys[0], told[4].keys[0]) == (b"k000000", b"a first one", b"a first one")


def test_it_ends_when_nobody_waits_for_it_and_goes_on_as_long_as_one_does() -> None:
    alone = Filled()
    node, now = alone.node, alone.node.core.now
    with heard() as paths:
        node.turn(now + 1, [Asked(1, _scan(1, within_ms=50)), Asked(2, _scan(2))])
    assert "scan.shared" in paths
    assert node.core.resumed
    assert _answers(alone.turn([], later_ms=100)) == {2: ROWS}
    node.turn(node.core.now + 1, [Asked(1, _scan(3, within_ms=50)), Asked(2, _scan(4, within_ms=60))])
    assert _answers(alone.turn([], later_ms=100)) == {}
    assert not node.core.resumed
    assert _answers(alone.turn([Asked(1, _scan(5))])) == {5: ROWS}
