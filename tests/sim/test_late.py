"""What is locked by the commit, beside locks on what was read: the workload that counts so notices who does not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client import transaction as client_transaction
from engine.client.calls import GetCall, LockCall
from engine.messages import Part
from engine.transactions.touching import Refusal, Touching, Want
from tests.sim.run import run_seed
from tests.sim.workloads import late
from tests.sim.world import SECOND


def test_whoever_counts_without_a_lock_and_is_not_looked_at_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its lock nor its commit keeps others away, in this namespace: a number is counted twice."""
    objection = Touching._objection

    def none_here(self: Touching, want: Want, part: Part) -> Refusal | None:
        return None if any(namespace == late.NAMESPACE for namespace, *_ in part.reads) else objection(self, want, part)

    def unlocked(owner: bytes, namespace: str, keys: list[bytes], *wait: Any, **how: Any) -> GetCall:
        return GetCall(namespace, keys) if namespace == late.NAMESPACE else LockCall(owner, namespace, keys, *wait, **how)

    monkeypatch.setattr(Touching, "_objection", none_here)
    monkeypatch.setattr(client_transaction, "LockCall", unlocked)
    result = run_seed(1, rates={}, storm_ns=4 * SECOND, digest=False)
    assert result.violation is not None
    assert result.violation.oracle == "late"
    assert "counted twice" in str(result.violation)
