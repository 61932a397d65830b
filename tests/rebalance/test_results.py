"""What a partition remembers of transactions: as much as it says, whenever it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rebalance.results import ABORTED, COMMITTED, LISTED_FROM, TAKEN_IN, Results
from wal.ids import TxId, end_of, tx_of

SESSIONS = (b"a" * 10, b"b" * 10)
IDS = st.tuples(st.sampled_from(SESSIONS), st.integers(0, 9)).map(lambda at: tx_of(*at))


@given(
    st.lists(st.tuples(st.sampled_from(["commit", "note", "abort", "forget", "up to", "merge", "ask"]), IDS), max_size=60)
)
def test_when_it_is_asked_makes_no_difference(steps: list[tuple[str, bytes]]) -> None:
    lazy, eager = Results(), Results()
    for step, at in steps:
        match step:
            case "commit":
                lazy.note_committed(at)
                eager.note(at, COMMITTED)
            case "ask":
                assert (lazy.get(at), len(lazy), lazy.floor) == (eager.get(at), len(eager), eager.floor)
            case _:
                for results in (lazy, eager):
                    if step == "forget":
                        results.forget(at)
                    elif step == "up to":
                        results.forget_up_to([(at[:10], at[-1])])
                    elif step == "merge":
                        results.merge([at], [ABORTED], at if at[-1] % 2 else b"")
                    else:
                        results.note(at, COMMITTED if step == "note" else ABORTED)
    assert (lazy.items(), lazy.floor) == (eager.items(), eager.floor)


def test_what_is_forgotten_is_what_the_record_names_and_nothing_else() -> None:
    results = Results()
    for session in SESSIONS:
        for number in range(1, TAKEN_IN + 2):
            results.note_committed(tx_of(session, number))
    assert results.floor == b"", "nothing was forgotten, however many there are"
    results.forget_up_to([(SESSIONS[0], TAKEN_IN), (b"c" * 10, 5)])
    kept = [tx for tx, _ in results.items()]
    assert kept == [tx_of(SESSIONS[0], TAKEN_IN + 1), *(tx_of(SESSIONS[1], n) for n in range(1, TAKEN_IN + 2))]
    assert results.floor, "and now somebody may ask for what was forgotten"


def test_that_something_was_forgotten_comes_with_the_results_of_another_copy() -> None:
    results = Results()
    results.merge([], [], tx_of(SESSIONS[0], 9))
    assert results.floor == tx_of(SESSIONS[0], 9)


def test_what_is_said_of_ids_is_what_is_known_of_them_at_that_moment() -> None:
    results = Results()
    kept, told, aborted, gone, never = (tx_of(SESSIONS[0], number) for number in range(1, 6))
    for tx in (kept, told, gone):
        results.note_committed(tx)
    results.note(aborted, ABORTED)
    results.keep(told, b"an answer")
    results.keep(gone, b"another")
    results.forget(gone)
    known = {aborted: ABORTED, told: COMMITTED, kept: COMMITTED}
    assert results.known_of([aborted, gone, told, never, kept]) == (known, [(told, b"an answer")])
    assert results.known_of([gone]) == ({}, [])


class Walked(dict[TxId, int]):
    """Outcomes, each of which is a step."""

    steps = 0

    def __iter__(self) -> Iterator[TxId]:
        for tx in super().__iter__():
            self.steps += 1
            yield tx


def test_of_very_many_answers_those_of_some_sessions_are_forgotten_without_a_walk_over_all() -> None:
    """And what is left is what a walk would leave, whatever was noted, undone or brought by another copy in between."""
    sessions = [b"%010d" % number for number in range(100)]
    results, model = Results(), dict[TxId, int]()
    for number in range(1, LISTED_FROM // 50):
        for session in sessions:
            results.note_committed(tx_of(session, number))
            model[tx_of(session, number)] = COMMITTED
    walked = Walked(results.outcomes())
    results._outcomes = walked

    def forget(up_to: list[tuple[bytes, int]]) -> None:
        results.forget_up_to(up_to)
        for session, number in up_to:
            for tx in [tx for tx in model if tx[:10] == session and tx < end_of(session, number)]:
                del model[tx]

    forget([(sessions[7], 100), (sessions[8], 10_000), (b"c" * 10, 5)])
    assert walked.steps == 0
    results.note(tx_of(sessions[8], 3), ABORTED)
    results.merge([tx_of(sessions[7], 3), tx_of(b"d" * 10, 1)], [COMMITTED, ABORTED], b"")
    results.forget(tx_of(sessions[9], 7))
    model |= {tx_of(sessions[8], 3): ABORTED, tx_of(sessions[7], 3): COMMITTED, tx_of(b"d" * 10, 1): ABORTED}
    del model[tx_of(sessions[9], 7)]
    assert results.items() == list(model.items())
    forget([(sessions[9], 9), (sessions[8], 4), (b"d" * 10, 0)])
    assert walked.steps == 0
    assert results.items() == list(model.items())
    forget([(session, 350) for session in sessions[10:]])
    assert len(results) < LISTED_FROM // 2
    forget([(session, 399) for session in sessions[50:]])
    assert results.items() == list(model.items())
