"""Seeds 1 to 100: each a cluster, a load and a storm of its own, judged by every oracle."""

from __future__ import annotations

import pytest

from tests.sim.run import DELIVERIES_MIN, KINDS_MIN, run_seed

SEEDS = 100
AT_ONCE = 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_nothing_is_found_however_much_goes_wrong(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        result = run_seed(seed, digest=False)
        assert result.violation is None, (
            f"{result.violation}\n{result.options}\nagain: python -m tests.sim run --seed {seed} -v"
        )
        if not result.shape.small:
            continue  # much of one thing, and less of everything else
        assert result.deliveries >= DELIVERIES_MIN, f"seed {seed} shows too little: {result.deliveries} deliveries"
        assert len(result.faults) >= KINDS_MIN, f"seed {seed} has too few kinds of faults: {result.faults}"
