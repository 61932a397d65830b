"""What any copy answers is judged by what was read of its primary before."""

from __future__ import annotations

import pytest

from tests.sim.checkers.history import Stamp
from tests.sim.network import MS
from tests.sim.violation import Violation
from tests.sim.workloads.ages import Seen


def test_what_is_older_than_was_allowed_is_found() -> None:
    seen = Seen()
    seen.note("x0", 1_000 * MS, Stamp(1, 5), 7)
    seen.note("x0", 2_000 * MS, Stamp(1, 6), 8)
    assert seen.version_of("x0", 7) == Stamp(1, 5)
    assert seen.version_of("x1", 7) is None
    with pytest.raises(Violation, match=r"x0 at 1\.6 was read more than 100 ms before it was told at 1\.5"):
        seen.judge("x0", Stamp(1, 5), 2_200 * MS, 100)


def test_what_may_be_so_old_and_what_is_newer_is_not() -> None:
    seen = Seen()
    seen.note("x0", 2_000 * MS, Stamp(1, 6), 8)
    seen.judge("x0", Stamp(1, 5), 2_120 * MS, 100)  # its copy's clock may be slow
    seen.judge("x0", Stamp(2, 1), 9_000 * MS, 100)
    seen.judge("x1", Stamp(0, 0), 9_000 * MS, 100)
