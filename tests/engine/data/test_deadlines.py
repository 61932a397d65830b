"""What nobody waits for any more is not done, told with one node that is its own cluster."""

from __future__ import annotations

from engine.data.under_way import ISSUED_WORK
from engine.protocol.requests import Code, Done, Failed, Get, Lock, Put, Scan, Unlock, Values
from engine.turn.events import Asked
from rebalance.ports import MS, WORK_MAX
from tests.engine.data.test_sessions import Alone
from wal.ids import tx_of

CLIENT = b"a client.."


def put(number: int, within_ms: int, key: bytes = b"k") -> Put:
    """A write whose client waits so long."""
    return Put(number, tx_of(CLIENT, number), "acc", [key], [b"v"], -1, 0, within_ms)


def test_what_waits_for_its_turn_is_dropped_when_its_client_has_gone() -> None:
    alone = Alone()
    count = 2 * WORK_MAX
    asked = [Asked(1, put(number, 50 if number % 2 else 0, b"k%d" % number)) for number in range(1, count + 1)]
    node = alone.node
    node.turn(node.core.now + 1, asked)
    told = alone.turn([], later_ms=100)
    answered = {reply.id for reply in told}
    late = set(range(WORK_MAX // (1 + ISSUED_WORK) + 1, count + 1))
    assert answered == {number for number in late if number % 2 == 0}, "half of those that waited were still wanted"
    held = alone.ask(Get(1, "acc", [b"k%d" % (count - 1), b"k%d" % count]))
    assert isinstance(held, Values)
    assert [value for _, _, value in held.values] == [None, b"v"]


def test_a_write_waits_for_a_lock_nearly_as_long_as_its_client_does_who_hears_that_nothing_was_done() -> None:
    alone = Alone()
    assert isinstance(alone.ask(Lock(1, tx_of(CLIENT, 900), "acc", [b"k"], 1_000)), Values)
    assert alone.turn([Asked(1, put(2, 100))]) == []
    assert alone.turn([], later_ms=86) == []
    (refused,) = alone.turn([], later_ms=2)
    assert isinstance(refused, Failed)
    assert (refused.code, refused.id) == (Code.LOCK_TIMEOUT, 2)
    assert "waited 88 ms" in refused.message
    assert alone.ask(Unlock(3, tx_of(CLIENT, 900))) == Done(3)
    assert alone.value() is None


def test_what_is_parked_waits_as_long_as_its_client_does() -> None:
    alone = Alone()
    core = alone.node.core
    (local,) = core.local
    for number, within_ms in ((1, 100), (2, 300), (3, 0)):
        alone.node.desk.park(local, 1, put(number, within_ms))
    core.now += 200 * MS
    waited = alone.node.desk.unpark(local)
    left = alone.node.desk.still_wanted((asked.session, asked.request, asked.since) for asked in waited)
    assert [(request.id, getattr(request, "within_ms", None)) for _, request in left] == [(2, 100), (3, 0)]
    assert alone.node.desk.parked_bytes == 0


def test_a_scan_ends_with_its_client() -> None:
    alone = Alone()
    count = 50_000
    for at in range(0, count, 10_000):
        keys = [b"k%06d" % number for number in range(at, at + 10_000)]
        alone.ask(Put(1, tx_of(CLIENT, at + 1), "acc", keys, [None] * len(keys)))
    node = alone.node
    node.turn(node.core.now + 1, [Asked(1, Scan(2, "acc", [0], b"", None, 1, 50))])
    assert node.core.resumed, "tombstones by the ten thousand take more than a turn"
    assert alone.turn([], later_ms=100) == []
    assert not node.core.resumed


def test_nonsense_is_refused() -> None:
    alone = Alone()
    for within_ms in (-1, 3_600_001, 1 << 62):
        refused = alone.ask(put(1, within_ms))
        assert isinstance(refused, Failed)
        assert refused.message == f"an answer is waited for {within_ms} ms: expected 0 to 3600000"
    for age_ms in (-2, 3_600_001):
        refused = alone.ask(Get(1, "acc", [b"k"], True, age_ms))
        assert isinstance(refused, Failed)
        assert refused.message == f"age_ms is {age_ms}: expected -1 (however old) to 3600000"
