"""What interrupts a thread, Ctrl-C or an alarm, at each place where a blocking call may be then: whoever called is told,
everybody else is served, and nothing stays locked or kept."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import engine
from tests.support.patience import PATIENCE_SECONDS, joined

STEPS_MAX = 3_000


class Interrupted(BaseException):
    """What is raised."""


class Interrupting:
    """Raises at one step of what a thread does: where a function begins or ends, or one that is written in C has ended.
    There Python looks for signals."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.done = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" or frame.f_code.co_name == "__del__" or "weakref" in frame.f_code.co_filename:
            return  # what is raised as something is let go of is told to nobody
        self._left -= 1
        if self._left < 0 and not self.done:
            self.done = True
            raise Interrupted


@pytest.fixture
def db(tmp_path: Path) -> Iterator[engine.Database]:
    """A database of one node."""
    with engine.open(tmp_path / "node") as database:
        database.namespace("held", codec="json").put_many({"a": 1, "b": 2})
        yield database


def put(db: engine.Database) -> None:
    db.namespace("held", codec="json").put("c", 3)


def transaction(db: engine.Database) -> None:
    with db.transaction() as tx:
        held = tx.namespace("held", codec="json")
        held.put("a", held.get_for_update("a"))


def run(db: engine.Database) -> None:
    db.run(lambda tx: tx.namespace("held", codec="json").update("b", lambda value: value))


def snapshot(db: engine.Database) -> None:
    with db.snapshot() as all_of_it:
        assert all_of_it.namespace("held", codec="json")["a"] == 1


def scan(db: engine.Database) -> None:
    assert dict(db.namespace("held", codec="json").scan(limit=2)) == {"a": 1, "b": 2}


@pytest.mark.parametrize("work", [put, transaction, run, snapshot, scan])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was interrupted before
def test_wherever_a_call_is_interrupted_all_others_are_served(
    work: Callable[[engine.Database], None], db: engine.Database
) -> None:
    steps = list[int]()

    def sweep() -> None:
        for at in range(STEPS_MAX):
            interrupting = Interrupting(at)
            sys.setprofile(interrupting)
            try:
                work(db)
            except Interrupted:
                pass
            finally:
                sys.setprofile(None)
            steps.append(at)
            if not interrupting.done:
                break
        gc.collect()
        with db.transaction(lock_timeout=PATIENCE_SECONDS, timeout=PATIENCE_SECONDS) as tx:
            tx.namespace("held", codec="json").put_many({"a": 1, "b": 2})
        steps.append(at)

    thread = threading.Thread(target=sweep, daemon=True)
    thread.start()
    joined(thread)
    assert 30 < len(steps) < STEPS_MAX, "it was interrupted everywhere, and came to its end"
    assert steps[-1] == steps[-2], "and what was locked is not any more"
    assert db._native.session.cuts._held == {}, "and no cut is kept"
