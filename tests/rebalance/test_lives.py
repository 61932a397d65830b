"""What a life says of those before it, however many there were."""

from __future__ import annotations

import pytest

from rebalance.lives import LEFT_OUT, LIVES_KEPT, LIVES_SAID, Life, in_brief, keeps, lives_after, lives_before
from wal.records import Claim

STARTS = [3, LIVES_SAID, LIVES_SAID + 40, LIVES_KEPT + 40]


def _started(starts: int, *, first_ended: int) -> list[tuple[int, int]]:
    """The lives of a disk; each but the first wrote ten records."""
    return [(1, 0), *((number, first_ended + 10 * (number - 2)) for number in range(2, starts + 1))]


def _life(lives: list[tuple[int, int]]) -> Life:
    incarnation, begun = lives[-1]
    return Life("disk", incarnation, begun, lives_before(lives[:-1], 1))


def _claimed(incarnation: int, durable_lsn: int) -> Claim:
    return Claim("n1", "disk", incarnation, durable_lsn)


@pytest.mark.parametrize("starts", STARTS)
def test_a_disk_that_was_set_back_says_so_however_often_it_starts(starts: int) -> None:
    life = _life(_started(starts, first_ended=100))
    brief = Life("disk", life.incarnation, life.boot_lsn, in_brief(life.before))
    for said in (life, brief):
        assert keeps(said, _claimed(1, 100))
        assert not keeps(said, _claimed(1, 101))


def test_what_an_early_life_claimed_is_shown_by_all_lives_and_not_in_brief() -> None:
    life = _life(_started(1_000, first_ended=100))
    early = _claimed(7, 100 + 10 * 6)
    assert keeps(life, early)
    assert not keeps(life, _claimed(7, early.durable_lsn + 1))
    assert not keeps(Life("disk", life.incarnation, life.boot_lsn, in_brief(life.before)), early)


@pytest.mark.parametrize("starts", STARTS)
def test_what_a_start_wrote_in_brief_is_known_in_full(starts: int) -> None:
    lives = _started(starts, first_ended=100)
    known: list[tuple[int, int]] = []
    for incarnation, begun in lives:
        before = in_brief(lives_before(known, 1))
        for _ in range(2):  # a record may be folded in twice
            known = [*lives_after(known, incarnation, before), (incarnation, begun)]
        assert len(before) <= LIVES_SAID
    if starts <= LIVES_KEPT:
        assert known == lives
    else:
        assert known.count(LEFT_OUT) == 1
        assert len(known) == LIVES_KEPT + 1


def test_what_nobody_knows_is_taken_as_it_was_written() -> None:
    before = in_brief(_started(100, first_ended=100))
    assert lives_after([], 101, before) == before
    assert lives_after([], 1, []) == []


def test_lives_that_came_before_the_one_that_is_listed_are_left_out() -> None:
    lives = _started(5, first_ended=100)
    assert lives_before(lives, 3) == lives[2:]
    assert lives_after(lives, 6, lives_before(lives, 3)) == lives[2:]
