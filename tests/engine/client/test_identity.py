"""A client's sessions: a label that comes again has its own, and an answer that is missing holds back only one."""

from __future__ import annotations

from engine.client.identity import AHEAD_MAX, LABELS_MAX, LABELS_SEEN_MAX, Identity
from wal.ids import SESSION_BYTES, TX_ID_BYTES, TxId, opened_s


def _session(tx: TxId) -> bytes:
    return tx[:SESSION_BYTES]


def test_a_label_that_comes_again_has_a_session_of_its_own() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    plain, once = identity.new_tx(1), identity.new_tx(1, "pay")
    assert _session(plain) == _session(once)
    assert not identity.labels_all(once)
    again, third = identity.new_tx(1, "pay"), identity.new_tx(1, "pay")
    assert _session(again) == _session(third) != _session(plain)
    assert identity.labels_all(again)
    assert _session(identity.new_tx(1)) == _session(plain)


def test_labels_that_are_numbered_spend_no_sessions() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    for at in range(10 * LABELS_SEEN_MAX):
        assert _session(identity.new_tx(1, f"order {at}")) == identity.current.name
    assert len(identity.acknowledged) == 1


def test_beyond_so_many_labels_a_label_is_said_each_time() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    for at in range(2 * LABELS_MAX):
        txs = [identity.new_tx(1, f"kind {at}") for _ in range(2)]
        assert identity.labels_all(txs[1]) is (at < LABELS_MAX)
    assert len(identity.acknowledged) == LABELS_MAX + 1


def test_each_session_acknowledges_its_own_answers() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    identity.new_tx(1, "pay")
    first, second = identity.new_tx(1, "pay"), identity.new_tx(2, "pay")
    assert identity.awaits(first)
    assert identity.acked(first) == 0
    identity.close(first)
    assert identity.acked(second) == 1
    assert (_session(first), 1) in identity.acknowledged
    assert identity.age_ns(second, 5) == 3


def test_where_an_answer_is_missing_only_the_session_of_its_label_is_left() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    plain = identity.new_tx(1)
    identity.new_tx(1, "pay")
    lost = identity.new_tx(1, "pay")
    assert identity.leave(lost, 2)
    assert not identity.leave(lost, 2), "it is left"
    assert _session(identity.new_tx(1)) == _session(plain)
    later = identity.new_tx(1, "pay")
    assert _session(later) != _session(lost)
    assert identity.labels_all(later)
    assert identity.labels_all(lost), "it may be asked again, and is called as it was"
    assert identity.awaits(lost)
    identity.close(lost)
    assert identity.acked(lost) == 1, "the session has ended, and nothing in it is new"


def test_a_session_that_runs_far_ahead_is_left_with_its_label() -> None:
    identity = Identity(7, now=0, wall_ms=0)
    identity.new_tx(1, "pay")
    first = identity.new_tx(1, "pay")
    for _ in range(AHEAD_MAX):
        last = identity.new_tx(1, "pay")
    assert _session(first) != _session(last)
    assert identity.labels_all(last)


def test_a_session_says_when_it_was_opened_and_differs_from_every_other() -> None:
    """By the clock as it was when its client began: what that clock does later changes nothing."""
    second = 1_000_000_000
    identity, other = (Identity(draw, now=5 * second, wall_ms=1_700_000_000_000) for draw in (7 << 100, 8 << 100))
    first, theirs = identity.new_tx(5 * second), other.new_tx(5 * second)
    assert identity.leave(first, 65 * second)
    later = identity.new_tx(66 * second)
    identity.new_tx(66 * second, "pay")
    labelled = identity.new_tx(100 * second, "pay")
    assert [opened_s(tx) - 1_700_000_000 for tx in (first, theirs, later, labelled)] == [0, 0, 60, 95]
    assert len({_session(tx) for tx in (first, theirs, later, labelled, identity.new_owner())}) == 5
    assert first.hex().startswith(f"{1_700_000_000:08x}"), "so whoever knows the time finds it by its beginning"


def test_a_clock_that_reads_anything_makes_a_session() -> None:
    for wall_ms in (-(10**15), 0, 2**32 * 1000 + 7_000, 10**18):
        identity = Identity(7, now=0, wall_ms=wall_ms)
        assert len(identity.new_tx(0)) == TX_ID_BYTES
        assert opened_s(identity.new_tx(0)) == wall_ms // 1000 % 2**32
