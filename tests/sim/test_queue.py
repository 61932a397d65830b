"""What the book of a queue says of claims that cannot have been, and of those that can."""

from __future__ import annotations

import pytest

from tests.sim.planted.catalogue import FAULTS
from tests.sim.planted.stories import STORIES
from tests.sim.violation import Violation
from tests.sim.workloads.jobs import EXPIRED_AFTER_NS, LEFT_BEHIND_NS, Attempt, Jobs, Row, key_of

A, B, C = (Row(key_of(job, job), job) for job in (1, 2, 3))


class Book:
    """Writes attempts; times are what a story says. A job's result is its number times ten."""

    def __init__(self) -> None:
        self.jobs = Jobs()

    def _new(self) -> Attempt:
        return self.jobs.begin(b"tx%d" % len(self.jobs.attempts), 0)

    def put(self, since: int, until: int, *rows: Row, committed: bool | None = True, single: bool = True) -> Attempt:
        """Somebody puts rows."""
        one = self._new()
        one.since, one.committing, one.put = since, since, dict.fromkeys(rows)
        one.touched, one.single = {row.key: None for row in rows}, single
        self.jobs.end(one, until, committed=committed)
        return one

    def claim(
        self,
        asked: int,
        found: int,
        until: int,
        *rows: Row,
        limit: int = 1,
        done: bool = True,
        committed: bool | None = True,
        left: bool = False,
        reverse: bool = False,
    ) -> Attempt:
        """Somebody claims rows, and does them, or leaves them."""
        one = self._new()
        one.since, one.asked, one.found, one.committing = asked, asked, found, until - 1
        one.limit, one.rows, one.steady, one.reverse = limit, list(rows), True, reverse
        one.touched = {row.key: None for row in rows}
        if done:
            one.changed, one.did = dict.fromkeys(rows), {row.mark: 10 * row.mark for row in rows}
        else:
            one.committing = None
        self.jobs.end(one, until, committed=committed, left=left)
        return one

    def judge(self, *done: Row) -> str:
        """What it says, when these jobs were done in the end."""
        return "\n".join(one.what for one in self.jobs.judge({row.mark: [10 * row.mark] for row in done}))


def test_jobs_are_put_and_claimed_and_done() -> None:
    book = Book()
    book.put(0, 10, A)
    book.put(0, 10, B, C, single=False)
    book.claim(20, 30, 40, A)
    book.claim(50, 60, 70, B, C, limit=2)
    book.claim(80, 90, 100)
    assert book.judge(A, B, C) == ""
    assert book.jobs.judged == 3


def test_a_job_is_never_done() -> None:
    book = Book()
    book.put(0, 10, A)
    assert "never done" in book.judge()


def test_a_job_that_may_not_have_been_put_need_not_be_done() -> None:
    book = Book()
    book.put(0, 10, A, committed=None)
    book.put(0, 10, B, committed=False)
    book.put(0, 10, C).expiring = True
    assert book.judge() == ""


def test_a_job_is_done_twice() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 40, A)
    assert [one.what for one in book.jobs.judge({1: [10, 11]})] == ["job 1 was done 2 times"]


def test_two_who_are_acknowledged_take_one_row() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 40, A)
    book.claim(20, 30, 40, A)
    assert "taken by" in book.judge(A)


def test_what_came_of_a_job_is_gone() -> None:
    book = Book()
    book.put(0, 10, A).expiring = True
    book.claim(20, 30, 40, A)
    assert "what came of it is gone" in book.judge()


def test_a_job_was_done_by_who_was_told_that_it_failed() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 40, A, committed=False, left=True)
    assert "it was told to have failed" in book.judge(A)


def test_a_row_is_claimed_that_was_gone_before() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 40, A)
    book.claim(41, 50, 60, A, done=False, committed=False)
    assert "was gone since" in book.judge(A)


def test_a_row_is_claimed_while_it_goes() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(39, 50, 60, A, done=False, committed=False)
    book.claim(20, 30, 40, A)
    assert book.judge(A) == ""


@pytest.mark.parametrize("committed", [False, True])
def test_a_row_is_claimed_that_was_not_put_yet(committed: bool) -> None:
    book = Book()
    book.put(31 if committed else 0, 40, A, committed=committed)
    book.claim(20, 30, 50, A, done=False, committed=False)
    assert "nobody had put it there" in book.judge(A)


def test_a_row_is_handed_to_another_before_its_transaction_commits() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 100, A)
    book.claim(40, 50, 60, A, done=False, committed=False)
    assert "while it was" in book.judge(A)


def test_a_row_that_was_lost_to_another_was_handed_to_nobody_twice() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 100, A, committed=False, left=True).did = {1: 11}  # its lease ran out
    book.claim(40, 50, 60, A)
    assert book.judge(A) == ""


def test_a_row_was_free_and_nobody_is_told() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(20, 30, 40)
    book.claim(50, 60, 70, A)
    assert "was there and free" in book.judge(A)


@pytest.mark.parametrize(("since", "until"), [(15, 25), (25, 40), (0, 19 - LEFT_BEHIND_NS // 2)])
def test_a_row_that_somebody_may_have_held_meanwhile_need_not_be_told(since: int, until: int) -> None:
    book = Book()
    book.put(-2 * LEFT_BEHIND_NS, 10 - 2 * LEFT_BEHIND_NS, A)
    book.claim(since - (LEFT_BEHIND_NS if until < 0 else 0), since, until, A, done=False, committed=False, left=until < 0)
    book.claim(20, 30, 40)
    book.claim(50, 60, 70, A)
    assert book.judge(A) == ""


def test_who_gave_a_row_back_before_does_not_hold_it() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(11, 12, 13, A, done=False, committed=False)
    book.claim(20, 30, 40)
    book.claim(50, 60, 70, A)
    assert "was there and free" in book.judge(A)


def test_what_may_have_been_done_is_not_asked_about() -> None:
    book = Book()
    book.put(0, 10, A)
    book.claim(11, 12, 13, A, committed=None, left=True)
    book.claim(3 * LEFT_BEHIND_NS, 3 * LEFT_BEHIND_NS + 10, 3 * LEFT_BEHIND_NS + 20)
    assert book.judge(A) == ""


@pytest.mark.parametrize("reverse", [False, True])
def test_who_is_alone_is_told_of_the_first(reverse: bool) -> None:
    first, last = (B, A) if reverse else (A, B)
    right, wrong = Book(), Book()
    for book, told, left in ((right, first, last), (wrong, last, first)):
        book.put(0, 10, A)
        book.put(0, 10, B)
        book.claim(20, 30, 40, told, reverse=reverse)
        book.claim(50, 60, 70, left)
    assert right.judge(A, B) == ""
    assert "was the first and free" in wrong.judge(A, B)


@pytest.mark.parametrize("later", [0, 2 * EXPIRED_AFTER_NS])
def test_who_is_alone_may_be_told_of_another_one_where_a_row_expires_just_then(later: int) -> None:
    """Seed 9 at addd6c4: it was told of a row that was gone when it was to be locked, and went on with any other one."""
    book = Book()
    book.put(0, 10, A).expiring = True
    for row in (B, C):
        book.put(0, 10, row)
    book.claim(20 + later, 30 + later, 40 + later, C)
    book.claim(50 + later, 60 + later, 70 + later, B)
    assert ("was the first and free" in book.judge(B, C)) == bool(later)


def test_who_claims_beside_others_need_not_be_told_of_the_first() -> None:
    book = Book()
    book.put(0, 10, A)
    book.put(0, 10, B)
    book.claim(20, 30, 40, B)
    book.claim(25, 35, 45, A)
    assert book.judge(A, B) == ""


def test_what_a_transaction_put_a_moment_ago_may_be_locked_by_it_and_need_not_be_the_first() -> None:
    book = Book()
    book.put(0, 10, A, single=False)
    book.put(0, 10, B)
    book.claim(20, 30, 40, B)
    book.claim(50, 60, 70, A)
    assert book.judge(A, B) == ""


def test_rows_come_in_order_and_no_more_than_were_asked_for() -> None:
    book = Book()
    book.put(0, 10, A, B)
    book.claim(20, 30, 40, B, A, limit=2)
    assert "asked for 2 rows" in book.judge(A, B)
    book = Book()
    book.put(0, 10, A, B)
    book.claim(20, 30, 40, A, B)
    assert "asked for 1 rows" in book.judge(A, B)


@pytest.mark.parametrize(
    ("fault", "story"),
    [
        ("what-was-found-is-told-whatever-came-since", "many-claim-from-one-queue"),
        ("what-follows-what-is-known-is-skipped", "many-claim-from-one-queue"),
        ("what-is-locked-is-handed-out-twice", "two-claim-where-there-is-a-job-for-one"),
    ],
)
def test_the_book_finds_what_is_wrong_with_claims(fault: str, story: str) -> None:
    with pytest.raises(Violation) as found:
        STORIES[story](FAULTS[fault].plant)
    assert found.value.oracle == "queue"
