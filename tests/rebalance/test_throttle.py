"""So many bytes a second: what may leave when, and whose turn it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rebalance.rule import NEVER
from rebalance.throttle import REST_A_REQUEST_NS, REST_A_WORK_NS, SAVED_NS, SECOND_NS, Throttle


def limited(rate: int) -> Throttle:
    throttle = Throttle()
    throttle.limit(rate)
    return throttle


def test_without_a_limit_everything_leaves() -> None:
    throttle = Throttle()
    throttle.spend(1 << 40, 0)
    assert throttle.admits("n2", 0)
    assert throttle.due == NEVER


def test_one_batch_leaves_whatever_it_weighs_and_is_owed_from_then_on() -> None:
    throttle = limited(1_000)
    assert throttle.admits("n2", SECOND_NS)
    throttle.spend(5_000, SECOND_NS)
    owed_until = SECOND_NS - SAVED_NS + 5 * SECOND_NS
    assert not throttle.admits("n2", owed_until - 1)
    assert throttle.due == owed_until
    assert throttle.next(owed_until - 1) is None
    assert throttle.next(owed_until) == "n2"
    assert throttle.admits("n2", owed_until)


def test_who_waits_goes_in_turn_and_nobody_comes_between() -> None:
    throttle = limited(1_000)
    throttle.spend(1_000, SECOND_NS)
    for asked in ("n2", "n3", "n2"):
        assert not throttle.admits(asked, SECOND_NS)
    now, went = 2 * SECOND_NS, list[str]()
    for _ in range(4):
        while (node := throttle.next(now)) is not None:
            assert went or not throttle.admits("n4", now), "it came later than who waits"
            assert throttle.admits(node, now)
            throttle.spend(1_000, now)
            went.append(node)
            assert not throttle.admits(node, now), "one batch each"
        now += SECOND_NS
    assert went == ["n2", "n3", "n4", "n2"]


def test_who_does_not_use_its_turn_is_passed_over() -> None:
    throttle = limited(1_000)
    throttle.spend(1_000, SECOND_NS)
    assert not throttle.admits("n2", SECOND_NS)
    assert not throttle.admits("n3", SECOND_NS)
    assert [throttle.next(3 * SECOND_NS) for _ in range(3)] == ["n2", "n3", None]
    assert throttle.due == NEVER


def test_another_limit_forgets_what_is_owed_and_none_lets_all_go() -> None:
    throttle = limited(1)
    throttle.spend(1 << 30, SECOND_NS)
    assert not throttle.admits("n2", 2 * SECOND_NS)
    throttle.limit(1)
    assert throttle.next(2 * SECOND_NS) is None, "the same limit is no news"
    throttle.limit(0)
    assert throttle.next(2 * SECOND_NS) == "n2"
    assert throttle.admits("n2", 2 * SECOND_NS)


@given(
    st.integers(1, 1 << 20),
    st.lists(
        st.tuples(st.sampled_from(["n2", "n3", "n4"]), st.integers(1, 1 << 20), st.integers(0, SECOND_NS)), max_size=60
    ),
)
def test_the_mean_is_never_above_the_limit_and_somebody_is_always_due(rate: int, asked: list[tuple[str, int, int]]) -> None:
    throttle, now, sent, last = limited(rate), SECOND_NS, 0, 0
    for node, size, later in asked:
        now += later
        if throttle.admits(node, now):
            throttle.spend(size, now)
            sent, last = sent + size, size
        allowed = rate * (now - SECOND_NS + SAVED_NS) // SECOND_NS + last + len(asked)
        assert sent <= allowed, "all but what is under way was allowed"
    waiting = [node for node in ("n2", "n3", "n4") if throttle.waits(node)]
    if waiting:
        served = {throttle.next(max(throttle.due, now)) for _ in waiting}
        assert served == set(waiting), "each has its turn"


def test_beside_clients_a_batch_is_followed_by_a_rest_that_grows_with_its_work_and_with_their_requests() -> None:
    for work, requests, rest in (
        (100, 0, 0),
        (100, 50, 100 * REST_A_WORK_NS),
        (1_000, 50, 1_000 * REST_A_WORK_NS),
        (1_000, 1, REST_A_REQUEST_NS),
    ):
        throttle = Throttle()
        assert throttle.admits("n2", SECOND_NS)
        throttle.give_way(work, requests, SECOND_NS)
        assert throttle.admits("n2", SECOND_NS) == (not rest)
        assert throttle.due == (SECOND_NS + rest if rest else NEVER)
        assert throttle.admits("n3", SECOND_NS + rest) == (not rest), "who waits goes first"
        assert throttle.next(SECOND_NS + rest) == ("n2" if rest else None)


def test_a_limit_that_is_lower_than_what_clients_need_is_the_limit() -> None:
    throttle = limited(1_000)
    throttle.spend(1_000, SECOND_NS)
    throttle.give_way(10, 10, SECOND_NS)
    assert not throttle.admits("n2", SECOND_NS)
    assert throttle.due == 2 * SECOND_NS - SAVED_NS


def test_what_clients_asked_for_before_a_batch_that_is_no_work_counts_for_the_next_one() -> None:
    throttle = Throttle()
    throttle.give_way(0, 50, SECOND_NS)
    assert throttle.admits("n2", SECOND_NS)
    throttle.give_way(100, 50, SECOND_NS)
    assert not throttle.admits("n2", SECOND_NS + 100 * REST_A_WORK_NS - 1)
    throttle.give_way(100, 50, 2 * SECOND_NS)
    assert throttle.next(2 * SECOND_NS) == "n2", "nobody has asked since"
