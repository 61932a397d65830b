"""What a partition remembers of transactions: as much as it says, whenever it is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rebalance.results import ABORTED, COMMITTED, TAKEN_IN, Results
from wal.ids import tx_of

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
