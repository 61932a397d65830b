"""No false alarm: a thousand honest histories for each checker, with overlaps, aborts and lost replies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import pytest

from tests.sim.checkers import bank, idempotent, list_append, monotonic, register, ring, scan, sets
from tests.sim.checkers.history import Anomaly, Operation
from tests.sim.checkers_tests import honest

Check: TypeAlias = Callable[[list[Operation]], list[Anomaly]]

WORKLOADS: dict[str, tuple[honest.Generator, Check]] = {
    "list-append": (honest.list_append, list_append.check),
    "register": (honest.register, register.check),
    "sets": (honest.sets, sets.check),
    "bank": (honest.bank, lambda history: bank.check(100, history, accounts=[f"a{i}" for i in range(8)])),
    "ring": (honest.ring, lambda history: ring.check([f"k{i}" for i in range(6)], history)),
    "monotonic": (honest.monotonic, monotonic.check),
    "idempotent": (honest.idempotent, idempotent.check),
    "scan": (honest.scan, scan.check),
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_thousand_honest_histories_are_left_alone(workload: str) -> None:
    generate, check = WORKLOADS[workload]
    for seed in range(1000):
        rng = Random(seed)
        found = check(generate(rng, rng.randint(2, 8), 40))
        assert not found, f"seed {seed}: {found[0]}"


@pytest.mark.parametrize("info", [0.0, 0.3, 0.6])
def test_many_unknown_outcomes_are_no_reason_for_suspicion(info: float) -> None:
    for seed in range(100):
        found = list_append.check(honest.list_append(Random(seed), 6, 60, info=info))
        found += register.check(honest.register(Random(seed), 6, 60, keys=1, info=info))
        assert not found, f"seed {seed}: {found[0]}"
