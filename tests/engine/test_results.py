"""What a partition remembers of transactions: as much as it says, whenever it is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.results import ABORTED, COMMITTED, KEPT, Results

IDS = st.integers(0, 40).map(lambda n: n.to_bytes(16, "big"))


def tx(n: int) -> bytes:
    """The id of transaction `n`; ids order by age."""
    return n.to_bytes(16, "big")


@given(st.lists(st.tuples(st.sampled_from(["commit", "note", "abort", "forget", "merge", "ask"]), IDS), max_size=60))
def test_when_it_is_asked_makes_no_difference(steps: list[tuple[str, bytes]]) -> None:
    lazy, eager = Results(), Results()
    for step, at in steps:
        match step:
            case "commit":
                lazy.note_committed(at)
                eager.note(at, COMMITTED)
            case "ask":
                assert (lazy.get(at), lazy.is_new(at), lazy.too_old(at)) == (
                    eager.get(at),
                    eager.is_new(at),
                    eager.too_old(at),
                )
            case _:
                for results in (lazy, eager):
                    if step == "forget":
                        results.forget(at)
                    elif step == "merge":
                        results.merge([at], [ABORTED], tx(at[-1] // 2))
                    else:
                        results.note(at, COMMITTED if step == "note" else ABORTED)
    assert (lazy.items(), lazy.floor) == (eager.items(), eager.floor)


def test_many_commits_push_out_the_oldest_and_raise_the_floor_alike() -> None:
    lazy, eager = Results(), Results()
    for n in range(5 * KEPT):
        lazy.note_committed(tx(n))
        eager.note(tx(n), COMMITTED)
    assert (lazy.items(), lazy.floor) == (eager.items(), eager.floor)
    assert lazy.too_old(tx(0))
    assert not lazy.is_new(tx(0))
    assert lazy.get(tx(5 * KEPT - 1)) == COMMITTED
    assert lazy.is_new(tx(5 * KEPT))
    assert KEPT <= len(lazy.items()) <= 2 * KEPT


def test_the_floor_comes_with_the_results_of_another_copy() -> None:
    results = Results()
    results.merge([], [], tx(9))
    assert results.too_old(tx(5)), "it may have been answered there, and forgotten"
    assert not results.is_new(tx(9))
    assert results.is_new(tx(10))
