"""Whoever is refused over keys of a transaction that is over has waited for its outcome, and for as long as it must."""

from __future__ import annotations

import pytest

from engine.errors import Conflict
from tests.sim.planted.stage import NAMESPACE, SETTINGS, Stage, key
from tests.sim.violation import Violation
from tests.sim.workloads.rivals import Attempt, Rivals


def _refused(stage: Stage, rivals: Rivals, *, after_ms: int) -> Attempt:
    """A transaction over keys of one whose outcome does not come; it asks after so long, and waits until it is refused."""
    x, y = key(0), key(1)
    stage.put(y, b"0")
    first, second = stage.transaction(), stage.transaction(optimistic=True)
    was = rivals.begin(first.tx, [x.decode(), y.decode()])
    stage.lose("finish", "n1", "n2")
    stage.do(first.get(NAMESPACE, [y]))
    stage.do(first.put(NAMESPACE, {x: b"1", key(1, 1): b"1"}))
    stage.do(first.commit())
    rivals.committed(was)
    stage.wait(1)
    now = rivals.begin(second.tx, [y.decode()])
    stage.do(second.get(NAMESPACE, [y]))
    stage.do(second.put(NAMESPACE, {y: b"2"}))
    committing = stage.begin(second.commit())
    stage.wait(after_ms)
    rivals.asks(now)
    stage.until(lambda: isinstance(committing.failure, Conflict), "it is refused")
    return now


def test_who_waited_long_enough_for_an_outcome_may_be_refused() -> None:
    with Stage(None) as stage:
        rivals = Rivals(stage.world)
        rivals.refused(_refused(stage, rivals, after_ms=0))


def test_who_waited_for_less_has_been_wronged() -> None:
    with Stage(None) as stage:
        rivals = Rivals(stage.world)
        attempt = _refused(stage, rivals, after_ms=SETTINGS.in_doubt_ms // 2)
        with pytest.raises(Violation, match="nobody else touched"):
            rivals.refused(attempt)
