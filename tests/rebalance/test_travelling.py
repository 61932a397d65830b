"""What is answered, and may be on its way, is not answered again; what was lost is."""

from __future__ import annotations

from rebalance.ports import MS
from rebalance.travelling import TRAVELS_SECONDS_MAX, Answers
from tests.rebalance.copies import Copies
from tests.rebalance.test_transfers import three


def a_node() -> tuple[Copies, Answers, int, int]:
    """One that answers, how much its links take in a second, and for how long it waits with what it says again."""
    copies = three()
    settings = copies.settings
    return copies, Answers(copies["n2"]), settings.link_bytes_per_s, settings.retransmit_ms * MS


def test_an_answer_comes_as_long_as_it_takes_and_what_was_said_before_it() -> None:
    copies, answers, rate, pause = a_node()
    answers.note("n1", 0, "first", 3 * rate)
    answers.note("n1", 1, "second", 4 * rate)
    assert answers.comes("n1", 0, "first")
    assert not answers.comes("n1", 0, "another question")
    assert not answers.comes("n3", 0, "first"), "another node has a link of its own"
    copies.now += 3_000 * MS + pause
    assert not answers.comes("n1", 0, "first")
    assert answers.comes("n1", 1, "second"), "it stood behind that"
    copies.now += 4_000 * MS
    assert not answers.comes("n1", 1, "second")


def test_what_is_little_is_answered_whenever_it_is_asked_for_and_nothing_is_waited_for_without_end() -> None:
    copies, answers, rate, pause = a_node()
    answers.note("n1", 0, "a word", 100)
    assert not answers.comes("n1", 0, "a word")
    answers.note("n1", 0, "very much", 1_000 * rate)
    copies.now += TRAVELS_SECONDS_MAX * 1_000 * MS + pause
    assert not answers.comes("n1", 0, "very much")


def test_what_was_on_its_way_over_a_connection_that_broke_is_not_any_more() -> None:
    copies, answers, rate, _ = a_node()
    for node in ("n1", "n3"):
        answers.note(node, 0, "first", 9 * rate)
    answers.forget("n1")
    assert not answers.comes("n1", 0, "first")
    assert answers.comes("n3", 0, "first")
    answers.note("n1", 0, "first", 2 * rate)
    copies.now += 4_000 * MS
    assert not answers.comes("n1", 0, "first"), "nor does it stand behind that"
    answers.forget()
    assert not answers.comes("n3", 0, "first")
