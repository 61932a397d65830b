"""Small worlds are walked whole, and what a deliberate fault breaks is found in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.sim.__main__ import main
from tests.sim.explore.catalogue import WORLDS
from tests.sim.explore.command import explore
from tests.sim.explore.fingerprint import fingerprint
from tests.sim.explore.search import Walk
from tests.sim.planted.catalogue import FAULTS


@pytest.mark.parametrize("name", ["second-ballot", "lost-disk", "cut-and-reader"])
def test_a_whole_world_keeps_its_promises(name: str) -> None:
    found = explore(name)
    assert not found.violation, str(found)
    assert found.whole
    assert found.states > 500


def test_every_other_world_keeps_them_for_a_few_steps() -> None:
    for name in WORLDS:
        found = explore(name, depth=6)
        assert not found.violation, str(found)
        assert found.depth == 6


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("lost-disk", "any-life-of-a-voter-accepts"),
        ("second-ballot", "any-accepted-map-instead-of-the-last"),
        ("second-ballot", "own-map-instead-of-the-accepted-one"),
        ("second-ballot", "accept-below-the-promise"),
        ("second-ballot", "commit-with-one-accept"),
    ],
)
def test_a_fault_is_found_without_being_told_where(name: str, fault: str) -> None:
    found = explore(name, FAULTS[fault].plant)
    assert found.violation == "1.0 is followed by more than one map", str(found)
    assert len(found.story) == found.depth


def test_a_primary_that_moves_under_a_promise_that_is_gone_is_found() -> None:
    found = explore("handover", FAULTS["a-promise-for-one-version"].plant)
    assert found.violation == "2.2 is followed by more than one map", str(found)
    assert "n1 proposes a step that moves the primary" in found.story


@pytest.mark.parametrize(
    ("name", "fault", "broken"),
    [
        ("commit", "recovery-aborts-what-all-have-prepared", "one copy committed what another one rolled back"),
        ("in-line", "a-key-is-handed-on-with-the-vote", "what is read is never committed"),
        (
            "cut-and-puts",
            "a-write-is-of-the-era-in-which-it-was-issued",
            "what was read at the cut is another thing the next time",
        ),
        ("cut-and-reader", "what-is-prepared-is-not-noted", "a transaction is on both sides of the cut"),
        ("repeat", "retry-executed-twice", "a request was told b'1' and b'2'"),
        ("counting", "who-waits-for-a-key-writes-by-itself", "somebody has counted twice"),
        ("catching-up", "vouched-for-without-waiting-for-it", "n2 counts, and does not have what was acknowledged"),
        (
            "asynchronous",
            "an-asynchronous-copy-does-not-ask-how-readers-ended",
            "of what is prepared in partition 0 one copy knows, and the other does not",
        ),
    ],
)
def test_what_breaks_a_promise_about_data_is_found(name: str, fault: str, broken: str) -> None:
    found = explore(name, FAULTS[fault].plant)
    assert found.violation == broken, str(found)
    assert len(found.story) == found.depth


def test_no_more_states_are_kept_than_there_is_room_for() -> None:
    found = explore("join", states=500)
    assert not found.whole
    assert 500 <= found.states < 600


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "second-ballot", "--depth", "3"]) == 0
    assert "all up to 3 steps" in capsys.readouterr().out
    assert main(["explore", "second-ballot", "--fault", "a-minority-may-commit"]) == 1
    assert "BROKEN: 1.0 is followed by more than one map" in capsys.readouterr().out
    assert main(["explore", "nowhere"]) == 2


def test_equal_things_have_one_fingerprint_and_others_another() -> None:
    shared = [1]
    assert fingerprint({"a": [1], "b": (2, b"x")}) == fingerprint({"a": [1], "b": (2, b"x")})
    assert fingerprint([shared, shared]) != fingerprint([[1], [1]])  # what changes the one changes the other
    for other in ({"a": [1, 2], "b": (2, b"x")}, {"a": [1], "b": (2, "x")}, {"a": [1]}, {"b": (2, b"x"), "a": [1]}):
        assert fingerprint(other) != fingerprint({"a": [1], "b": (2, b"x")})


def test_what_a_function_has_closed_over_is_part_of_a_state() -> None:
    """An outcome on its way to the copies knows its era from there alone: two states that differ by it are two."""

    def later(era: int) -> Callable[[], int]:
        return lambda: era

    assert fingerprint([later(1)]) == fingerprint([later(1)])
    for one, other in [
        (later(1), later(2)),
        (partial(later, 1), partial(later, 2)),
        ([1].append, [2].append),
        (Walk.happen, Walk.after),
    ]:
        assert fingerprint([one]) != fingerprint([other]), (one, other)
