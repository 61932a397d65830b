"""A log that its node trims while it is read beside what the directory folds to: no healthy node contradicts itself."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import wal
from tests.support.directories import copies
from tools.wal import beside
from wal import inspect

UNSAID = "not checked: whether what it says can be; the node that runs here trims it while it is read"


@pytest.fixture
def live(left: list[Path], tmp_path: Path) -> Iterator[Path]:
    """A directory that is in use, as it is while a node runs in it."""
    (directory,) = copies(left[:1], tmp_path)
    with (directory / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def trimmed(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many times, half of a log is gone when it is read beside what it was folded with."""
    readings = count(1)

    def read(*args: Any, **options: Any) -> Iterator[object]:
        found = list(inspect(*args, **options))
        return iter(found[len(found) // 2 :] if next(readings) <= times else found)

    monkeypatch.setattr(beside, "inspect", read)
    monkeypatch.setattr(beside, "AGAIN_SECONDS", 0)


@pytest.mark.parametrize("option", ["--logic", "--audit"])
def test_it_is_read_again_with_what_it_folds_to(live: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    trimmed(monkeypatch, beside.ATTEMPTS - 1)
    told = wal("verify", live, option)
    assert (told.exit_code, UNSAID in told.stdout) == (0, False), told.output


@pytest.mark.parametrize("option", ["--logic", "--audit"])
def test_what_is_never_of_one_moment_is_not_judged(live: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    trimmed(monkeypatch, beside.ATTEMPTS)
    told = wal("verify", live, option)
    assert (told.exit_code, UNSAID in told.stdout) == (0, True), told.output


def test_a_log_that_nobody_trims_is_judged_as_it_is(left: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed(monkeypatch, beside.ATTEMPTS)
    assert wal("verify", left[0], "--logic").exit_code == 7, "no node runs there: what is not in it is gone"
